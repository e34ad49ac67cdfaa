/* put.h: the end of a product, shared by this folder's matrix kernels. */
#ifndef EA_KERNEL_AVX2_PUT_H
#define EA_KERNEL_AVX2_PUT_H

#include <immintrin.h>

#include "kernel/matmul.h"

/* Bias, old value, store of columns col .. col + 7 (those below n) of row r. */
static inline __attribute__((always_inline)) void ea_put8__avx2(const ea_matmul_args *args, int col,
                                                                int r, __m256 acc)
{
    const int left = args->w->n - col;
    const __m256i mask =
        _mm256_cmpgt_epi32(_mm256_set1_epi32(left), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    if (left <= 0)
        return;
    float *out = args->out + (size_t)r * args->ld + col;
    if (args->bias)
        acc = _mm256_add_ps(acc, _mm256_maskload_ps(args->bias + col, mask));
    if (args->accumulate)
        acc = _mm256_add_ps(_mm256_maskload_ps(out, mask), acc);
    _mm256_maskstore_ps(out, mask, acc);
}

#endif
