/* matmul_float_vec.h: matrix products of F32, F16 and BF16 weights, the body that the vector
 * folders share. A folder's matmul_float.c defines a few operations and includes this file.
 *
 * A lane is an output column, and every output is one chain of FMAs over ascending inputs
 * (kernel.h, "Numerics"), so speed comes from chains side by side: a block of rows times
 * BLOCK_TILES tiles, whose sums stay in registers while all inputs pass.
 *   few_*   one block of rows: weights are converted as they are multiplied, the next ones asked
 *           for ahead, since memory is the limit
 *   many_*  more rows: a strip of those tiles, STRIP inputs long, is converted once, to f32 that
 *           stays in the first-level cache while blocks of rows pass (f32 weights are used where
 *           they lie); their sums wait in memory between strips, which changes no bit
 *
 * What the folder defines before including it:
 *   LEVEL, vf_zero vf_set1 vf_fma vf_load vf_store vf_load_f16 put, see matmul_vec.h
 *   vf_load_bf16(p)   16 BF16 numbers
 *   MAX_ROWS          largest row block
 *   BLOCK_TILES       tiles of a block, 1 or 2; MAX_ROWS * BLOCK_TILES sums fit into the registers
 */
#include <immintrin.h>

#include "kernel/matmul.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL_ROWS _Pragma("GCC unroll 12")
#define UNROLL_TILES _Pragma("GCC unroll 4")

typedef enum ea_float_kind { KIND_F32, KIND_F16, KIND_BF16 } ea_float_kind;

enum {
    STRIP = 128,     /* inputs of a strip */
    GROUP_ROWS = 96, /* rows whose sums wait for the next strip; a multiple of MAX_ROWS */
    GROUP_BLOCKS = GROUP_ROWS / MAX_ROWS,
    GROUP_BYTES = 1024 * 1024 /* of activations */
};

/* Bytes of a tile's weights of one input. */
INLINE size_t input_bytes(const ea_float_kind kind)
{
    return EA_TILE_N * (kind == KIND_F32 ? 4 : 2);
}

/* 16 columns of one input. */
INLINE vf load_weights(const ea_float_kind kind, const uint8_t *p)
{
    if (kind == KIND_F32)
        return vf_load((const float *)(const void *)p);
    return kind == KIND_F16 ? vf_load_f16(p) : vf_load_bf16(p);
}

INLINE void ask_for(uintptr_t p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

/* Weights of a block, tile t at w + t * stride; and where those lie that are wanted next: at
 * `ahead`, `ahead_step` bytes on with every input, maybe past the end. */
typedef struct ea_source {
    const uint8_t *w;
    uintptr_t ahead;
    size_t stride, ahead_stride, ahead_step;
} ea_source;

/* acc += k inputs of a block's tiles times its rows, the first at x. */
INLINE void add_inputs(const ea_float_kind kind, const ea_source *from, int k, const float *x,
                       size_t x_stride, const int n_tiles, const int n_rows, vf acc[2][MAX_ROWS])
{
    const float *rows[(MAX_ROWS + 3) / 4];
    UNROLL_TILES
    for (int j = 0; j < (n_rows + 3) / 4; j++)
        rows[j] = x + (size_t)(4 * j) * x_stride;
    const size_t stride = from->stride, ahead_stride = from->ahead_stride,
                 ahead_step = from->ahead_step;
    const uint8_t *w = from->w;
    uintptr_t ahead = from->ahead;
    for (int i = 0; i < k; i++) {
        vf wt[2];
        UNROLL_TILES
        for (int t = 0; t < n_tiles; t++) {
            wt[t] = load_weights(kind, w + (size_t)t * stride);
            ask_for(ahead + (size_t)t * ahead_stride);
        }
        UNROLL_ROWS
        for (int j = 0; j < n_rows; j++) {
            const vf xj = vf_set1(rows[j / 4][(size_t)(j % 4) * x_stride + (size_t)i]);
            UNROLL_TILES
            for (int t = 0; t < n_tiles; t++)
                acc[t][j] = vf_fma(wt[t], xj, acc[t][j]);
        }
        w += input_bytes(kind);
        ahead += ahead_step;
    }
}

/* ---- one block of rows ---- */

INLINE void few_tiles(const ea_float_kind kind, const ea_matmul_args *args, int tile,
                      const int n_tiles, const int n_rows)
{
    const size_t tile_bytes = args->w->tile_bytes;
    const uint8_t *w = args->w->data + (size_t)tile * tile_bytes;
    const ea_source from = {w, (uintptr_t)w + EA_PREFETCH_BYTES, tile_bytes, tile_bytes,
                            input_bytes(kind)};
    vf acc[2][MAX_ROWS];
    UNROLL_TILES
    for (int t = 0; t < n_tiles; t++) {
        UNROLL_ROWS
        for (int j = 0; j < n_rows; j++)
            acc[t][j] = vf_zero();
    }
    add_inputs(kind, &from, args->w->k, ea_acts_row(args->x, args->row0), (size_t)args->x->k_pad,
               n_tiles, n_rows, acc);
    UNROLL_TILES
    for (int t = 0; t < n_tiles; t++) {
        UNROLL_ROWS
        for (int j = 0; j < n_rows; j++)
            put(args, tile + t, j, acc[t][j]);
    }
}

/* The last tile may be alone. Two rows have too few chains in one. */
INLINE void few_rows(const ea_float_kind kind, const ea_matmul_args *args, const int n_rows)
{
    const int n_tiles = n_rows <= 2 ? 2 : BLOCK_TILES;
    int tile = args->tile0;
    for (; tile + n_tiles <= args->tile1; tile += n_tiles)
        few_tiles(kind, args, tile, n_tiles, n_rows);
    if (tile < args->tile1)
        few_tiles(kind, args, tile, 1, n_rows);
}

/* ---- more rows ---- */

/* Sums of a block between strips, and a strip of weights. */
typedef struct ea_sums {
    _Alignas(64) float v[BLOCK_TILES][MAX_ROWS][EA_TILE_N];
} ea_sums;
typedef struct ea_strip {
    _Alignas(64) float w[BLOCK_TILES][STRIP][EA_TILE_N];
} ea_strip;

INLINE void convert(const ea_float_kind kind, const uint8_t *w, size_t tile_bytes, int n_tiles,
                    int k, ea_strip *to)
{
    for (int t = 0; t < n_tiles; t++)
#pragma GCC unroll 4
        for (int i = 0; i < k; i++)
            vf_store(to->w[t][i], load_weights(kind, w + (size_t)t * tile_bytes +
                                                         (size_t)i * input_bytes(kind)));
}

/* n_tiles tiles times a block of rows, f32 weights. */
INLINE void strip_block(const ea_source *from, int k, const float *x, size_t x_stride,
                        const int n_tiles, const int n_rows, ea_sums *to)
{
    vf acc[2][MAX_ROWS];
    UNROLL_TILES
    for (int t = 0; t < n_tiles; t++) {
        UNROLL_ROWS
        for (int j = 0; j < n_rows; j++)
            acc[t][j] = vf_load(to->v[t][j]);
    }
    add_inputs(KIND_F32, from, k, x, x_stride, n_tiles, n_rows, acc);
    UNROLL_TILES
    for (int t = 0; t < n_tiles; t++) {
        UNROLL_ROWS
        for (int j = 0; j < n_rows; j++)
            vf_store(to->v[t][j], acc[t][j]);
    }
}

#define EACH_COUNT(X) X(1) X(2) X(3) X(4) X(5) X(6)
#if MAX_ROWS > 6
#define EACH_LARGE_COUNT(X) X(7) X(8) X(9) X(10) X(11) X(12)
#else
#define EACH_LARGE_COUNT(X)
#endif

static void strip_rows(const ea_source *from, int n_tiles, int k, const float *x, size_t x_stride,
                       int n_rows, ea_sums *to)
{
#define BLOCK(n_rows_)                                                   \
    case n_rows_:                                                        \
        if (n_tiles == BLOCK_TILES)                                      \
            strip_block(from, k, x, x_stride, BLOCK_TILES, n_rows_, to); \
        else                                                             \
            strip_block(from, k, x, x_stride, 1, n_rows_, to);           \
        break;
    switch (n_rows) {
        EACH_COUNT(BLOCK)
        EACH_LARGE_COUNT(BLOCK)
    default: break;
    }
#undef BLOCK
}

/* First row of block b where n_rows are n_blocks blocks of about the same size. */
static int block_start(int n_rows, int n_blocks, int b)
{
    return n_rows / n_blocks * b + EA_MIN(b, n_rows % n_blocks);
}

/* n_tiles (1 or BLOCK_TILES) tiles from `tile` times the rows r .. r + n_rows - 1. */
INLINE void many_tiles(const ea_float_kind kind, const ea_matmul_args *args, int tile, int n_tiles,
                       int r, int n_rows)
{
    const size_t tile_bytes = args->w->tile_bytes, x_stride = (size_t)args->x->k_pad;
    const uint8_t *w = args->w->data + (size_t)tile * tile_bytes;
    const float *x = ea_acts_row(args->x, args->row0 + r);
    const int n_blocks = (n_rows + MAX_ROWS - 1) / MAX_ROWS, k = args->w->k;
    /* Each block asks for its share of the next strip. */
    const size_t share = (input_bytes(kind) + (size_t)n_blocks - 1) / (size_t)n_blocks;
    ea_strip strip;
    ea_sums sums[GROUP_BLOCKS];
    for (int b = 0; b < n_blocks; b++)
        for (int t = 0; t < n_tiles; t++)
            for (int j = 0; j < MAX_ROWS; j++)
                vf_store(sums[b].v[t][j], vf_zero());
    for (int i = 0; i < k; i += STRIP) {
        const int len = EA_MIN(STRIP, k - i);
        const uint8_t *here = w + (size_t)i * input_bytes(kind);
        ea_source from = {here, (uintptr_t)here + STRIP * input_bytes(kind), tile_bytes, tile_bytes,
                          share};
        if (i + STRIP >= k) /* the next tiles' first strip, or past the end */
            from.ahead = (uintptr_t)w + (size_t)n_tiles * tile_bytes;
        if (kind != KIND_F32) {
            convert(kind, here, tile_bytes, n_tiles, len, &strip);
            from.w = (const uint8_t *)(const void *)strip.w;
            from.stride = sizeof strip.w[0];
        }
        for (int b = 0; b < n_blocks; b++, from.ahead += STRIP * share) {
            const int first = block_start(n_rows, n_blocks, b);
            strip_rows(&from, n_tiles, len, x + (size_t)first * x_stride + i, x_stride,
                       block_start(n_rows, n_blocks, b + 1) - first, &sums[b]);
        }
    }
    for (int b = 0; b < n_blocks; b++) {
        const int first = block_start(n_rows, n_blocks, b);
        for (int j = first; j < block_start(n_rows, n_blocks, b + 1); j++)
            for (int t = 0; t < n_tiles; t++)
                put(args, tile + t, r + j, vf_load(sums[b].v[t][j - first]));
    }
}

/* A group's activations stay in the second-level cache while tiles pass. Fewer rows than half of
 * GROUP_ROWS would read weights too often. */
INLINE void many_rows(const ea_float_kind kind, const ea_matmul_args *args)
{
    const int fit = GROUP_BYTES / (4 * args->w->k),
              most = EA_MIN(EA_MAX(fit, GROUP_ROWS / 2), GROUP_ROWS),
              n_groups = (args->n_rows + most - 1) / most;
    for (int g = 0; g < n_groups; g++) {
        const int r = block_start(args->n_rows, n_groups, g),
                  n_rows = block_start(args->n_rows, n_groups, g + 1) - r;
        for (int tile = args->tile0; tile < args->tile1; tile += BLOCK_TILES)
            many_tiles(kind, args, tile, EA_MIN(BLOCK_TILES, args->tile1 - tile), r, n_rows);
    }
}

INLINE void run(const ea_float_kind kind, const ea_matmul_args *args)
{
#define FEW(n_rows_) \
    case n_rows_: few_rows(kind, args, n_rows_); break;
    if (args->n_rows > MAX_ROWS) {
        many_rows(kind, args);
        return;
    }
    switch (args->n_rows) {
        EACH_COUNT(FEW)
        EACH_LARGE_COUNT(FEW)
    default: break;
    }
#undef FEW
}

#define IMPL_OF(name, level) ea_matmul_##name##__##level
#define IMPL(name, level) IMPL_OF(name, level)
#define FORMAT(name, kind)                             \
    static void run_##name(const ea_matmul_args *args) \
    {                                                  \
        run(kind, args);                               \
    }                                                  \
    const ea_matmul_impl IMPL(name, LEVEL) = {.layout = &ea_layout_##name, .run = run_##name};
FORMAT(f32, KIND_F32)
FORMAT(f16, KIND_F16)
FORMAT(bf16, KIND_BF16)
