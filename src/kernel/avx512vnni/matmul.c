/* matmul.c: matrix products of quantised weights, AVX-512 with VNNI. Body: matmul_vec.h. */
#include "kernel/avx512vnni/matmul.h"

#include "kernel/avx512/vec_int.h"

#define LEVEL avx512vnni
#define VNNI 1
#define MAX_ROWS 12
enum { CHUNK_BYTES = 768 * 1024 };

#define vi_dot4 _mm512_dpbusd_epi32
#define vi_dot2 _mm512_dpwssd_epi32

#include "kernel/matmul_vec.h"
