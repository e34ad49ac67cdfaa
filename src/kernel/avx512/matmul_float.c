/* matmul_float.c: matrix products of F32, F16 and BF16 weights, AVX-512.
 *
 * A lane is one output column; every output is one chain of FMAs over ascending inputs, so speed
 * comes from chains side by side: several rows, and for few rows several tiles. */
#include <immintrin.h>

#include "kernel/avx512/matmul.h"
#include "kernel/avx512/put.h"

#define INLINE static inline __attribute__((always_inline))

typedef enum ea_float_kind { KIND_F32, KIND_F16, KIND_BF16 } ea_float_kind;

enum { MAX_TILES = 4, MAX_ROWS = 12 };

/* 16 columns of input i. */
INLINE __m512 weights(const ea_float_kind kind, const uint8_t *tile, int i)
{
    if (kind == KIND_F32)
        return _mm512_load_ps((const float *)(const void *)tile + (size_t)i * EA_TILE_N);
    const __m256i h = _mm256_load_si256((const __m256i *)(const void *)tile + i);
    if (kind == KIND_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* n_tiles tiles from `tile` times n_rows rows from r. */
INLINE void tiles_rows(const ea_float_kind kind, const ea_matmul_args *args, int tile, int r,
                       const int n_tiles, const int n_rows)
{
    const size_t stride = (size_t)args->x->k_pad, tile_bytes = args->w->tile_bytes;
    const uint8_t *w = args->w->data + (size_t)tile * tile_bytes;
    const float *x = ea_acts_row(args->x, args->row0 + r);
    __m512 acc[MAX_TILES][MAX_ROWS];
#pragma GCC unroll 4
    for (int t = 0; t < n_tiles; t++)
#pragma GCC unroll 12
        for (int j = 0; j < n_rows; j++)
            acc[t][j] = _mm512_setzero_ps();
    for (int i = 0; i < args->w->k; i++)
#pragma GCC unroll 4
        for (int t = 0; t < n_tiles; t++) {
            const __m512 wt = weights(kind, w + (size_t)t * tile_bytes, i);
#pragma GCC unroll 12
            for (int j = 0; j < n_rows; j++)
                acc[t][j] = _mm512_fmadd_ps(wt, _mm512_set1_ps(x[(size_t)j * stride + (size_t)i]),
                                            acc[t][j]);
        }
#pragma GCC unroll 4
    for (int t = 0; t < n_tiles; t++)
#pragma GCC unroll 12
        for (int j = 0; j < n_rows; j++)
            ea_put16__avx512(args, tile + t, r + j, acc[t][j]);
}

/* Few rows: tiles side by side; the last ones alone. */
INLINE void few_rows(const ea_float_kind kind, const ea_matmul_args *args, int r, const int n_tiles,
                     const int n_rows)
{
    int tile = args->tile0;
    for (; tile + n_tiles <= args->tile1; tile += n_tiles)
        tiles_rows(kind, args, tile, r, n_tiles, n_rows);
    for (; tile < args->tile1; tile++)
        tiles_rows(kind, args, tile, r, 1, n_rows);
}

INLINE void run(const ea_float_kind kind, const ea_matmul_args *args)
{
    int r = 0;
    for (; args->n_rows - r >= 12; r += 12)
        few_rows(kind, args, r, 1, 12);
    for (; args->n_rows - r >= 4; r += 4)
        few_rows(kind, args, r, 2, 4);
    switch (args->n_rows - r) {
    case 3: few_rows(kind, args, r, 2, 3); break;
    case 2: few_rows(kind, args, r, 4, 2); break;
    case 1: few_rows(kind, args, r, 4, 1); break;
    default: break;
    }
}

#define FORMAT(name, kind)                             \
    static void run_##name(const ea_matmul_args *args) \
    {                                                  \
        run(kind, args);                               \
    }                                                  \
    const ea_matmul_impl ea_matmul_##name##__avx512 = {&ea_layout_##name, run_##name};
FORMAT(f32, KIND_F32)
FORMAT(f16, KIND_F16)
FORMAT(bf16, KIND_BF16)
