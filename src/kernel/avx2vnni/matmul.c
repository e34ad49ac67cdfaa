/* matmul.c: matrix products of quantised weights for AVX2 with AVX-VNNI. Body: matmul_vec.h. */
#include "kernel/avx2vnni/matmul.h"

#include "kernel/avx2/vec_int.h"

#define LEVEL avx2vnni
#define VNNI 1
#define MAX_ROWS 4
enum { CHUNK_BYTES = 768 * 1024 };

VI3(vi_dot4, _mm256_dpbusd_avx_epi32)
VI3(vi_dot2, _mm256_dpwssd_avx_epi32)
#define vi_dot4_at(acc, u, p) vi_dot4((acc), (u), vi_set1_32(load32(p)))
#define vi_dot2_at(acc, a, p) vi_dot2((acc), (a), vi_set1_32(load32(p)))

#include "kernel/matmul_vec.h"
