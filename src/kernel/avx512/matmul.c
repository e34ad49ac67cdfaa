/* matmul.c: matrix products of quantised weights and the activation quantiser, AVX-512 with VNNI.
 *
 * One vector lane is one output column. vpdpbusd multiplies four unsigned codes of a column by four
 * broadcast activations, so a 32-block costs eight of them a row and no horizontal sum. Signed
 * formats start the integer accumulator at -zero * sum(activations), which keeps it exact. One
 * always-inline body (tile_rows) is instantiated for every format and for 1, 2, 3, 4, 8 and 12
 * rows; the format is a compile-time constant in each. Results: kernel.h, "Numerics". */
#include "kernel/avx512/matmul.h"

#include <immintrin.h>
#include <string.h>

#include "kernel/avx512/put.h"
#include "quant/blocks.h"

#define INLINE static inline __attribute__((always_inline))

/* ---- formats, as constants of the instantiations ---- */

typedef enum ea_codes_kind {
    CODES4,
    CODES4_NL,
    CODES5,
    CODES6,
    CODES8,
    CODES2,
    CODES3
} ea_codes_kind;
typedef enum ea_scale_kind {
    PLAIN,       /* one scale a 32-block */
    MIN,         /* and one minimum */
    SCALES16,    /* integer scales per 16, one d */
    SCALES16_MIN /* and integer minima */
} ea_scale_kind;

typedef struct ea_fmt {
    ea_codes_kind codes;
    ea_scale_kind scales;
    bool k;   /* super-blocks of 256 with a header of 320 bytes, see pack_k.c; else pack_block.c */
    int zero; /* u = q + zero */
    int sb_blocks, code_bytes;
} ea_fmt;

enum { HEAD_BLOCK = 64, HEAD_K = 320, MAX_ROWS = 12 };

INLINE __m512i load(const uint8_t *p)
{
    return _mm512_load_si512((const void *)p);
}

/* Bits of `plane` at position `from` moved to position `to`, the others garbage. */
INLINE __m512i move_bits(__m512i plane, int from, int to)
{
    if (from < to)
        return _mm512_slli_epi16(plane, (unsigned)(to - from));
    if (from > to)
        return _mm512_srli_epi16(plane, (unsigned)(from - to));
    return plane;
}

/* (a & mask) | b */
INLINE __m512i and_or(__m512i a, char mask, __m512i b)
{
    return _mm512_ternarylogic_epi32(a, _mm512_set1_epi8(mask), b, 0xea);
}

/* Codes of group g (0..7) of the 32-block at p. */
INLINE __m512i group_codes(const ea_fmt f, const uint8_t *p, int g)
{
    const __m512i low4 = _mm512_set1_epi8(15), low2 = _mm512_set1_epi8(3);
    if (f.codes == CODES8)
        return load(p + 64 * g);
    if (f.codes == CODES2 || f.codes == CODES3) {
        __m512i u = _mm512_and_si512(move_bits(load(p + 64 * (g / 4)), 2 * (g % 4), 0), low2);
        return f.codes == CODES3 ? and_or(move_bits(load(p + 128), g, 2), 4, u) : u;
    }
    __m512i u = _mm512_and_si512(move_bits(load(p + 64 * (g / 2)), 4 * (g % 2), 0), low4);
    if (f.codes == CODES5)
        return and_or(move_bits(load(p + 256), g, 4), 0x10, u);
    if (f.codes == CODES6)
        return and_or(move_bits(load(p + 256 + 64 * (g / 4)), 2 * (g % 4), 4), 0x30, u);
    if (f.codes == CODES4_NL) { /* the table's values + 128 */
        const __m512i table = _mm512_xor_si512(
            _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)ea_iq4nl_values)),
            _mm512_set1_epi8((char)0x80));
        return _mm512_shuffle_epi8(table, u);
    }
    return u;
}

INLINE __m512 f16_row(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)p));
}

INLINE __m512 u8_row(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)p)));
}

INLINE __m512 i8_row(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)p)));
}

/* Low nibbles. */
INLINE __m512 low4_row(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_and_si512(
        _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)p)), _mm512_set1_epi32(15)));
}

INLINE int32_t load32(const void *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* ---- one 32-block times R rows ---- */

/* Where the activations of R rows are: rows of one group of four, or whole groups. */
typedef struct ea_rows {
    const struct ea_q8_block *x[MAX_ROWS / EA_Q8_ROWS];
    int lane; /* first row in its group; 0 for R >= 4 */
} ea_rows;

#define ROW_X(rows, r) ((rows)->x[(r) / EA_Q8_ROWS])
#define ROW_LANE(rows, r) ((rows)->lane + (r) % EA_Q8_ROWS)

/* Where an integer accumulator starts: -zero times the sums of the halves that `zeros` (a pair of
 * int16) picks. */
INLINE __m512i start_dot(const ea_fmt f, int zeros, const ea_rows *rows, int r)
{
    if (!f.zero)
        return _mm512_setzero_si512();
    return _mm512_madd_epi16(_mm512_set1_epi32(zeros),
                             _mm512_set1_epi32(load32(ROW_X(rows, r)->sum16[ROW_LANE(rows, r)])));
}

INLINE __m512i add_group(__m512i dot, __m512i w, const ea_rows *rows, int r, int g)
{
    return _mm512_dpbusd_epi32(
        dot, w, _mm512_set1_epi32(load32(ROW_X(rows, r)->q[ROW_LANE(rows, r)] + 4 * g)));
}

/* acc += idot * (dw * dx) */
INLINE __m512 add_scaled(__m512 acc, __m512 idot, __m512 dw, const ea_rows *rows, int r)
{
    const __m512 dx = _mm512_set1_ps(ROW_X(rows, r)->d[ROW_LANE(rows, r)]);
    return _mm512_fmadd_ps(idot, _mm512_mul_ps(dw, dx), acc);
}

/* One scale a 32-block. Groups outside, rows inside: as many chains as rows, and only one vector of
 * codes alive. */
INLINE void block_plain(const ea_fmt f, const uint8_t *sb, int j, const ea_rows *rows,
                        const int n_rows, __m512 acc[MAX_ROWS])
{
    const uint8_t *codes = sb + (f.k ? HEAD_K : HEAD_BLOCK) + j * f.code_bytes;
    const uint32_t z = (uint16_t)-f.zero;
    __m512i dot[MAX_ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < n_rows; r++)
        dot[r] = start_dot(f, (int)(z << 16 | z), rows, r);
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        const __m512i w = group_codes(f, codes, g);
#pragma GCC unroll 12
        for (int r = 0; r < n_rows; r++)
            dot[r] = add_group(dot[r], w, rows, r, g);
    }

    __m512 dw = f16_row(sb + (f.k || f.scales == MIN ? 0 : 32 * j)), m = _mm512_setzero_ps();
    if (f.scales == MIN) {
        m = f16_row(sb + 32);
        if (f.k) { /* exact: 11 + 6 bits */
            dw = _mm512_mul_ps(dw, u8_row(sb + 64 + 16 * j));
            m = _mm512_mul_ps(m, u8_row(sb + 192 + 16 * j));
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < n_rows; r++) {
        acc[r] = add_scaled(acc[r], _mm512_cvtepi32_ps(dot[r]), dw, rows, r);
        if (f.scales == MIN) {
            const __m512 sx = _mm512_set1_ps(ROW_X(rows, r)->s[ROW_LANE(rows, r)]);
            acc[r] = f.k ? _mm512_fnmadd_ps(m, sx, acc[r]) : _mm512_fmadd_ps(m, sx, acc[r]);
        }
    }
}

/* Scales per 16: idot = sc0 dot0 + sc1 dot1 is below 2^24 in magnitude (ref/matmul.c), so taking it
 * in f32 is exact. Two integer accumulators a row: all codes stay in registers and the rows pass in
 * fours. */
INLINE void block_scales16(const ea_fmt f, const uint8_t *sb, int j, const ea_rows *rows,
                           const int n_rows, __m512 acc[MAX_ROWS])
{
    const uint8_t *codes = sb + HEAD_K + j * f.code_bytes, *scales = sb + 64 + 32 * j;
    const uint32_t z = (uint16_t)-f.zero;
    __m512 sc[2];
    for (int h = 0; h < 2; h++)
        sc[h] = f.scales == SCALES16 ? i8_row(scales + 16 * h) : low4_row(scales + 16 * h);
    const __m512 dw = f16_row(sb);
    __m512i w[8];
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++)
        w[g] = group_codes(f, codes, g);
#pragma GCC unroll 3
    for (int r0 = 0; r0 < n_rows; r0 += EA_Q8_ROWS) {
        __m512 idot[EA_Q8_ROWS];
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            __m512i dot[EA_Q8_ROWS];
#pragma GCC unroll 4
            for (int i = 0; i < EA_MIN(EA_Q8_ROWS, n_rows); i++)
                dot[i] = start_dot(f, (int)(h ? z << 16 : z), rows, r0 + i);
#pragma GCC unroll 4
            for (int g = 4 * h; g < 4 * h + 4; g++)
#pragma GCC unroll 4
                for (int i = 0; i < EA_MIN(EA_Q8_ROWS, n_rows); i++)
                    dot[i] = add_group(dot[i], w[g], rows, r0 + i, g);
#pragma GCC unroll 4
            for (int i = 0; i < EA_MIN(EA_Q8_ROWS, n_rows); i++) {
                const __m512 part = _mm512_cvtepi32_ps(dot[i]);
                idot[i] = h ? _mm512_fmadd_ps(part, sc[1], idot[i]) : _mm512_mul_ps(part, sc[0]);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < EA_MIN(EA_Q8_ROWS, n_rows); i++)
            acc[r0 + i] = add_scaled(acc[r0 + i], idot[i], dw, rows, r0 + i);
    }
    if (f.scales == SCALES16_MIN) {
        /* Minima of both halves as int16 pairs, times the pairs of sums. */
        const __m512i lo = _mm512_cvtepu8_epi32(_mm_load_si128((const void *)scales)),
                      hi = _mm512_cvtepu8_epi32(_mm_load_si128((const void *)(scales + 16)));
        const __m512i pair = _mm512_or_si512(_mm512_srli_epi32(lo, 4),
                                             _mm512_slli_epi32(_mm512_srli_epi32(hi, 4), 16));
        const __m512 dmin = f16_row(sb + 32);
#pragma GCC unroll 12
        for (int r = 0; r < n_rows; r++) {
            const struct ea_q8_block *x = ROW_X(rows, r);
            const int lane = ROW_LANE(rows, r);
            const __m512 imin = _mm512_cvtepi32_ps(
                _mm512_madd_epi16(pair, _mm512_set1_epi32(load32(x->sum16[lane]))));
            acc[r] =
                _mm512_fnmadd_ps(imin, _mm512_mul_ps(dmin, _mm512_set1_ps(x->d[lane])), acc[r]);
        }
    }
}

/* Block j of the super-block at sb. */
INLINE void block_rows(const ea_fmt f, const uint8_t *sb, int j, const ea_rows *rows,
                       const int n_rows, __m512 acc[MAX_ROWS])
{
    if (f.scales == PLAIN || f.scales == MIN)
        block_plain(f, sb, j, rows, n_rows, acc);
    else
        block_scales16(f, sb, j, rows, n_rows, acc);
}

/* ---- one tile times R rows ---- */

/* Ask for the share of block j in the super-block that lies EA_PREFETCH_BYTES ahead. */
INLINE void prefetch(const ea_fmt f, size_t sb_bytes, const uint8_t *sb, int j)
{
    const int lines = (int)(sb_bytes / 64 + (size_t)f.sb_blocks - 1) / f.sb_blocks;
    const uintptr_t at = (uintptr_t)sb + EA_PREFETCH_BYTES + (uintptr_t)(64 * lines * j);
#pragma GCC unroll 10
    for (int l = 0; l < lines; l++)
        _mm_prefetch((const char *)(at + (uintptr_t)(64 * l)), _MM_HINT_T0);
}

/* Rows r .. r + n_rows - 1 of args; they lie in one group of four, or start at a group. */
INLINE void tile_rows(const ea_fmt f, const ea_matmul_args *args, int tile, int r, const int n_rows)
{
    const size_t sb_bytes = (size_t)((f.k ? HEAD_K : HEAD_BLOCK) + f.sb_blocks * f.code_bytes);
    const int n_blocks = args->w->k / EA_Q8_K;
    const uint8_t *sb = args->w->data + (size_t)tile * args->w->tile_bytes;
    ea_rows rows = {.lane = n_rows >= EA_Q8_ROWS ? 0 : (args->row0 + r) % EA_Q8_ROWS};
#pragma GCC unroll 3
    for (int i = 0; i < (n_rows + 3) / EA_Q8_ROWS; i++)
        rows.x[i] = ea_acts_q8(args->x, args->row0 + r + EA_Q8_ROWS * i);

    __m512 acc[MAX_ROWS];
#pragma GCC unroll 12
    for (int i = 0; i < n_rows; i++)
        acc[i] = _mm512_setzero_ps();
    for (int b = 0; b + f.sb_blocks <= n_blocks; b += f.sb_blocks, sb += sb_bytes)
        for (int j = 0; j < f.sb_blocks; j++) {
            if (n_rows <= EA_Q8_ROWS)
                prefetch(f, sb_bytes, sb, j);
            block_rows(f, sb, j, &rows, n_rows, acc);
#pragma GCC unroll 3
            for (int i = 0; i < (n_rows + 3) / EA_Q8_ROWS; i++)
                rows.x[i]++;
        }
    if (f.sb_blocks == 2 && n_blocks % 2)
        block_rows(f, sb, 0, &rows, n_rows, acc);
#pragma GCC unroll 12
    for (int i = 0; i < n_rows; i++)
        ea_put16__avx512(args, tile, r + i, acc[i]);
}

typedef void (*ea_tile_fn)(const ea_matmul_args *args, int tile, int r);

/* Kernels of one format by row count; rows12 may be NULL. */
typedef struct ea_tile_fns {
    ea_tile_fn rows1, rows2, rows3, rows4, rows8, rows12;
} ea_tile_fns;

/* Weights that stay in the second-level cache while the rows pass: a claim of tiles is worked off
 * in chunks of this size. */
enum { CHUNK_BYTES = 768 * 1024 };

static ea_tile_fn pick(const ea_tile_fns *fns, int row, int left, int *n)
{
    const int lane = row % EA_Q8_ROWS;
    int take = lane                                      ? EA_MIN(EA_Q8_ROWS - lane, left)
               : left >= 12 && left != 16 && fns->rows12 ? 12
               : left >= 8                               ? 8
                                                         : EA_MIN(left, 4);
    *n = take;
    switch (take) {
    case 1: return fns->rows1;
    case 2: return fns->rows2;
    case 3: return fns->rows3;
    case 4: return fns->rows4;
    case 8: return fns->rows8;
    default: return fns->rows12;
    }
}

static void run(const ea_matmul_args *args, const ea_tile_fns *fns)
{
    const int chunk = (int)EA_MAX((size_t)1, CHUNK_BYTES / args->w->tile_bytes);
    for (int t0 = args->tile0; t0 < args->tile1; t0 += chunk) {
        const int t1 = EA_MIN(t0 + chunk, args->tile1);
        for (int r = 0, n; r < args->n_rows; r += n) {
            const ea_tile_fn fn = pick(fns, args->row0 + r, args->n_rows - r, &n);
            for (int tile = t0; tile < t1; tile++)
                fn(args, tile, r);
        }
    }
}

/* ---- instances ---- */

#define ROWS_FN(name, n)                                                      \
    static void name##_##n##rows(const ea_matmul_args *args, int tile, int r) \
    {                                                                         \
        tile_rows(fmt_##name, args, tile, r, n);                              \
    }
#define FORMAT(name, ...)                                                           \
    static const ea_fmt fmt_##name = {__VA_ARGS__};                                 \
    ROWS_FN(name, 1)                                                                \
    ROWS_FN(name, 2)                                                                \
    ROWS_FN(name, 3)                                                                \
    ROWS_FN(name, 4)                                                                \
    ROWS_FN(name, 8)                                                                \
    ROWS_FN(name, 12)                                                               \
    static void run_##name(const ea_matmul_args *args)                              \
    {                                                                               \
        static const ea_tile_fns fns = {name##_1rows, name##_2rows, name##_3rows,   \
                                        name##_4rows, name##_8rows, name##_12rows}; \
        run(args, &fns);                                                            \
    }                                                                               \
    const ea_matmul_impl ea_matmul_##name##__avx512 = {&ea_layout_##name, run_##name};

/* clang-format off */
/*             codes      scales        k      zero blocks bytes */
FORMAT(q4_0,   CODES4,    PLAIN,        false, 8,   2,     256)
FORMAT(iq4_nl, CODES4_NL, PLAIN,        false, 128, 2,     256)
FORMAT(q5_0,   CODES5,    PLAIN,        false, 16,  2,     320)
FORMAT(q8_0,   CODES8,    PLAIN,        false, 128, 2,     512)
FORMAT(q4_1,   CODES4,    MIN,          false, 0,   1,     256)
FORMAT(q5_1,   CODES5,    MIN,          false, 0,   1,     320)
FORMAT(q4_k,   CODES4,    MIN,          true,  0,   8,     256)
FORMAT(q5_k,   CODES5,    MIN,          true,  0,   8,     320)
FORMAT(q6_k,   CODES6,    SCALES16,     true,  32,  8,     384)
FORMAT(q3_k,   CODES3,    SCALES16,     true,  4,   8,     192)
FORMAT(q2_k,   CODES2,    SCALES16_MIN, true,  0,   8,     128)
/* clang-format on */

/* ---- activations ---- */

void ea_acts_quantise__avx512(const ea_acts *a, int row)
{
    const float *x = ea_acts_row(a, row);
    struct ea_q8_block *b = ea_acts_q8(a, row);
    const int r = row % EA_Q8_ROWS;
    const __m512 lowest = _mm512_set1_ps(-127.0f), highest = _mm512_set1_ps(127.0f);
    for (int i = 0; i < a->k_pad / EA_Q8_K; i++, b++, x += EA_Q8_K) {
        const __m512 v[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
        /* max(NaN, 0) is the second operand: NaN never wins. */
        const __m512 zero = _mm512_setzero_ps();
        const float amax = _mm512_reduce_max_ps(_mm512_max_ps(
            _mm512_max_ps(_mm512_abs_ps(v[0]), zero), _mm512_max_ps(_mm512_abs_ps(v[1]), zero)));
        const float inv = amax >= EA_Q8_TINY ? 127.0f / amax : 0;
        const float d = amax >= EA_Q8_TINY ? amax / 127.0f : 0;
        int sum[2];
        for (int h = 0; h < 2; h++) {
            __m512 s = _mm512_mul_ps(v[h], _mm512_set1_ps(inv));
            s = _mm512_min_ps(_mm512_max_ps(s, lowest), highest); /* NaN becomes -127 */
            const __m512i q = _mm512_cvtps_epi32(s);
            _mm_storeu_si128((__m128i *)&b->q[r][16 * h], _mm512_cvtepi32_epi8(q));
            sum[h] = _mm512_reduce_add_epi32(q);
        }
        b->d[r] = d;
        b->s[r] = d * (float)(sum[0] + sum[1]);
        b->sum16[r][0] = (int16_t)sum[0];
        b->sum16[r][1] = (int16_t)sum[1];
    }
}
