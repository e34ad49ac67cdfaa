/* matmul_float.c: matrix products of F32, F16 and BF16 weights, AVX2.
 *
 * A lane is one output column, a tile two vectors; every output is one chain of FMAs over ascending
 * inputs, so speed comes from chains side by side: several rows, and for few rows several tiles. */
#include <immintrin.h>

#include "kernel/avx2/matmul.h"
#include "kernel/avx2/put.h"

#define INLINE static inline __attribute__((always_inline))

typedef enum ea_float_kind { KIND_F32, KIND_F16, KIND_BF16 } ea_float_kind;

enum { MAX_TILES = 4, MAX_ROWS = 4, LANES = 8 };

/* Eight columns, `half` 0 or 1, of input i. */
INLINE __m256 weights(const ea_float_kind kind, const uint8_t *tile, int i, int half)
{
    const size_t at = (size_t)i * 2 + (size_t)half;
    if (kind == KIND_F32)
        return _mm256_load_ps((const float *)(const void *)tile + at * LANES);
    const __m128i h = _mm_load_si128((const __m128i *)(const void *)tile + at);
    if (kind == KIND_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* n_tiles tiles from `tile` times n_rows rows from r. */
INLINE void tiles_rows(const ea_float_kind kind, const ea_matmul_args *args, int tile, int r,
                       const int n_tiles, const int n_rows)
{
    const size_t stride = (size_t)args->x->k_pad, tile_bytes = args->w->tile_bytes;
    const uint8_t *w = args->w->data + (size_t)tile * tile_bytes;
    const float *x = ea_acts_row(args->x, args->row0 + r);
    __m256 acc[MAX_TILES][2][MAX_ROWS];
    for (int t = 0; t < n_tiles; t++)
        for (int h = 0; h < 2; h++)
            for (int j = 0; j < n_rows; j++)
                acc[t][h][j] = _mm256_setzero_ps();
    for (int i = 0; i < args->w->k; i++)
#pragma GCC unroll 4
        for (int t = 0; t < n_tiles; t++)
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                const __m256 wt = weights(kind, w + (size_t)t * tile_bytes, i, h);
#pragma GCC unroll 4
                for (int j = 0; j < n_rows; j++)
                    acc[t][h][j] = _mm256_fmadd_ps(
                        wt, _mm256_set1_ps(x[(size_t)j * stride + (size_t)i]), acc[t][h][j]);
            }
#pragma GCC unroll 4
    for (int t = 0; t < n_tiles; t++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
#pragma GCC unroll 4
            for (int j = 0; j < n_rows; j++)
                ea_put8__avx2(args, (tile + t) * EA_TILE_N + h * LANES, r + j, acc[t][h][j]);
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
    for (; args->n_rows - r >= 4; r += 4)
        few_rows(kind, args, r, 1, 4);
    switch (args->n_rows - r) {
    case 3: few_rows(kind, args, r, 1, 3); break;
    case 2: few_rows(kind, args, r, 2, 2); break;
    case 1: few_rows(kind, args, r, 4, 1); break;
    default: break;
    }
}

#define FORMAT(name, kind)                             \
    static void run_##name(const ea_matmul_args *args) \
    {                                                  \
        run(kind, args);                               \
    }                                                  \
    const ea_matmul_impl ea_matmul_##name##__avx2 = {&ea_layout_##name, run_##name};
FORMAT(f32, KIND_F32)
FORMAT(f16, KIND_F16)
FORMAT(bf16, KIND_BF16)
