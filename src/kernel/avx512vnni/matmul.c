/* matmul.c: matrix products of quantised weights, AVX-512 with VNNI. Body: matmul_vec.h. */
#include "kernel/avx512vnni/matmul.h"

#include "kernel/avx512/vec_int.h"

#define LEVEL avx512vnni
#define VNNI 1
#define MAX_ROWS 12
enum { CHUNK_BYTES = 768 * 1024 };

#define vi_dot4 _mm512_dpbusd_epi32
#define vi_dot2 _mm512_dpwssd_epi32

/* An operand from memory for all lanes, which the compiler would load into a register before: too
 * few registers are left by the sums of 12 rows. */
typedef int32_t __attribute__((aligned(1), may_alias)) any32;

VEC_FN vi vi_dot4_at(vi acc, vi u, const void *p)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(u), "m"(*(const any32 *)p));
    return acc;
}

VEC_FN vi vi_dot2_at(vi acc, vi a, const void *p)
{
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(a), "m"(*(const any32 *)p));
    return acc;
}

#include "kernel/matmul_vec.h"
