/* put.h: the end of a product, shared by this folder's matrix kernels. */
#ifndef EA_KERNEL_AVX512_PUT_H
#define EA_KERNEL_AVX512_PUT_H

#include <immintrin.h>

#include "kernel/matmul.h"

/* Bias, old value, store of the columns (those below n) of a tile in row r. */
static inline __attribute__((always_inline)) void ea_put16__avx512(const ea_matmul_args *args,
                                                                   int tile, int r, __m512 acc)
{
    const int col = tile * EA_TILE_N, left = args->w->n - col;
    const __mmask16 mask = left >= EA_TILE_N ? 0xffff : (__mmask16)((1u << left) - 1);
    float *out = args->out + (size_t)r * args->ld + col;
    if (args->bias)
        acc = _mm512_add_ps(acc, _mm512_maskz_loadu_ps(mask, args->bias + col));
    if (args->accumulate)
        acc = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), acc);
    _mm512_mask_storeu_ps(out, mask, acc);
}

#endif
