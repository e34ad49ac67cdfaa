/* matmul.c: matrix products of quantised weights and the activation quantiser, AVX2.
 *
 * The tiles are those of AVX-512 (matmul.h), read in two halves of eight columns. vpmaddubsw
 * multiplies unsigned codes by signed activations and adds pairs into int16; it saturates, so as
 * many groups are added in int16 as the codes' width allows (span_groups), then widened. Codes of
 * eight bits would saturate at once: there the sign moves from the weight to the activation. One
 * always-inline body (half_rows) is instantiated for every format and 1 to 4 rows. Results:
 * kernel.h, "Numerics". */
#include "kernel/avx2/matmul.h"

#include <immintrin.h>
#include <string.h>

#include "kernel/avx2/put.h"
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
    int zero; /* u = q + zero; 0 where group_codes gives q itself */
    int sb_blocks, code_bytes;
} ea_fmt;

enum { HEAD_BLOCK = 64, HEAD_K = 320, MAX_ROWS = 4, LANES = 8 };

/* Groups whose products may be added in int16: a pair of products is at most 2 * 127 * u, so 32,767
 * holds 8 groups of u <= 15, 4 of u <= 31, 2 of u <= 63; signed bytes (2 * 127 * 128) just one. */
INLINE int span_groups(const ea_fmt f)
{
    switch (f.codes) {
    case CODES5: return 4;
    case CODES6: return 2;
    case CODES8:
    case CODES4_NL: return 1;
    default: return 8;
    }
}

INLINE __m256i load(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)(const void *)p);
}

/* Bits of `plane` at position `from` moved to position `to`, the others garbage. */
INLINE __m256i move_bits(__m256i plane, int from, int to)
{
    if (from < to)
        return _mm256_slli_epi16(plane, to - from);
    if (from > to)
        return _mm256_srli_epi16(plane, from - to);
    return plane;
}

/* (a & mask) | b */
INLINE __m256i and_or(__m256i a, char mask, __m256i b)
{
    return _mm256_or_si256(_mm256_and_si256(a, _mm256_set1_epi8(mask)), b);
}

/* Codes of group g (0..7) of the 32-block whose half starts at p: unsigned, but signed values for
 * the formats of eight bits. */
INLINE __m256i group_codes(const ea_fmt f, const uint8_t *p, int g)
{
    if (f.codes == CODES8)
        return _mm256_xor_si256(load(p + 64 * g), _mm256_set1_epi8((char)0x80));
    if (f.codes == CODES2 || f.codes == CODES3) {
        __m256i u = _mm256_and_si256(move_bits(load(p + 64 * (g / 4)), 2 * (g % 4), 0),
                                     _mm256_set1_epi8(3));
        return f.codes == CODES3 ? and_or(move_bits(load(p + 128), g, 2), 4, u) : u;
    }
    __m256i u =
        _mm256_and_si256(move_bits(load(p + 64 * (g / 2)), 4 * (g % 2), 0), _mm256_set1_epi8(15));
    if (f.codes == CODES5)
        return and_or(move_bits(load(p + 256), g, 4), 0x10, u);
    if (f.codes == CODES6)
        return and_or(move_bits(load(p + 256 + 64 * (g / 4)), 2 * (g % 4), 4), 0x30, u);
    if (f.codes == CODES4_NL)
        return _mm256_shuffle_epi8(
            _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)ea_iq4nl_values)), u);
    return u;
}

INLINE __m256 f16_row(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p));
}

INLINE __m128i load8(const uint8_t *p)
{
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}

INLINE __m256 u8_row(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load8(p)));
}

INLINE int32_t load32(const void *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* ---- one 32-block, eight columns, R rows ---- */

/* Rows of one group of four, from `lane` on. */
typedef struct ea_rows {
    const struct ea_q8_block *x;
    int lane;
} ea_rows;

/* Integer dot products of groups g0..g1-1; `zeros` holds -zero in the int16 halves that count. */
INLINE void dot_rows(const ea_fmt f, const uint8_t *codes, int g0, int g1, int zeros,
                     const ea_rows *rows, const int n_rows, __m256i dot[MAX_ROWS])
{
    const __m256i ones = _mm256_set1_epi16(1);
    const int span = span_groups(f);
    for (int r = 0; r < n_rows; r++)
        dot[r] = f.zero
                     ? _mm256_madd_epi16(_mm256_set1_epi32(zeros),
                                         _mm256_set1_epi32(load32(rows->x->sum16[rows->lane + r])))
                     : _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int s = g0; s < g1; s += span) {
        __m256i pairs[MAX_ROWS];
#pragma GCC unroll 8
        for (int g = s; g < EA_MIN(s + span, g1); g++) {
            const __m256i w = group_codes(f, codes, g);
#pragma GCC unroll 4
            for (int r = 0; r < n_rows; r++) {
                const __m256i x = _mm256_set1_epi32(load32(rows->x->q[rows->lane + r] + 4 * g));
                const __m256i p =
                    span == 1 ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
                              : _mm256_maddubs_epi16(w, x);
                pairs[r] = g == s ? p : _mm256_add_epi16(pairs[r], p);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++)
            dot[r] = _mm256_add_epi32(dot[r], _mm256_madd_epi16(pairs[r], ones));
    }
}

/* Block j of the super-block at sb, columns from `col` (0 or 8) on. Scales per 16: idot = sc0 dot0
 * + sc1 dot1 is below 2^24 in magnitude (ref/matmul.c), so taking it in f32 is exact. */
INLINE void block_rows(const ea_fmt f, const uint8_t *sb, int j, int col, const ea_rows *rows,
                       const int n_rows, __m256 acc[MAX_ROWS])
{
    const uint8_t *codes = sb + (f.k ? HEAD_K : HEAD_BLOCK) + j * f.code_bytes + 4 * col;
    const uint8_t *halves = sb + 2 * col, *scales = sb + 64 + 32 * j + col;
    const uint16_t z = (uint16_t)-f.zero;
    __m256i dot[MAX_ROWS];
    __m256 idot[MAX_ROWS];
    if (f.scales == PLAIN || f.scales == MIN) {
        dot_rows(f, codes, 0, 8, (int)((uint32_t)z << 16 | z), rows, n_rows, dot);
        for (int r = 0; r < n_rows; r++)
            idot[r] = _mm256_cvtepi32_ps(dot[r]);
    } else {
        __m256 sc[2];
        for (int h = 0; h < 2; h++) {
            const __m128i b = load8(scales + 16 * h);
            sc[h] =
                _mm256_cvtepi32_ps(f.scales == SCALES16 ? _mm256_cvtepi8_epi32(b)
                                                        : _mm256_and_si256(_mm256_cvtepu8_epi32(b),
                                                                           _mm256_set1_epi32(15)));
        }
        dot_rows(f, codes, 0, 4, (int)z, rows, n_rows, dot);
        for (int r = 0; r < n_rows; r++)
            idot[r] = _mm256_mul_ps(_mm256_cvtepi32_ps(dot[r]), sc[0]);
        dot_rows(f, codes, 4, 8, (int)((uint32_t)z << 16), rows, n_rows, dot);
        for (int r = 0; r < n_rows; r++)
            idot[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r]), sc[1], idot[r]);
    }

    __m256 dw = f16_row(halves + (f.k || f.scales == MIN ? 0 : 32 * j)), m = _mm256_setzero_ps();
    if (f.scales == MIN) {
        m = f16_row(halves + 32);
        if (f.k) { /* exact: 11 + 6 bits */
            dw = _mm256_mul_ps(dw, u8_row(sb + 64 + 16 * j + col));
            m = _mm256_mul_ps(m, u8_row(sb + 192 + 16 * j + col));
        }
    }
    for (int r = 0; r < n_rows; r++) {
        const int lane = rows->lane + r;
        acc[r] =
            _mm256_fmadd_ps(idot[r], _mm256_mul_ps(dw, _mm256_set1_ps(rows->x->d[lane])), acc[r]);
        if (f.scales == MIN) {
            const __m256 sx = _mm256_set1_ps(rows->x->s[lane]);
            acc[r] = f.k ? _mm256_fnmadd_ps(m, sx, acc[r]) : _mm256_fmadd_ps(m, sx, acc[r]);
        }
    }
    if (f.scales == SCALES16_MIN) {
        /* Minima of both halves as int16 pairs, times the pairs of sums. */
        const __m256i lo = _mm256_srli_epi32(_mm256_cvtepu8_epi32(load8(scales)), 4),
                      hi = _mm256_srli_epi32(_mm256_cvtepu8_epi32(load8(scales + 16)), 4);
        const __m256i pair = _mm256_or_si256(lo, _mm256_slli_epi32(hi, 16));
        const __m256 dmin = f16_row(halves + 32);
        for (int r = 0; r < n_rows; r++) {
            const int lane = rows->lane + r;
            const __m256 imin = _mm256_cvtepi32_ps(
                _mm256_madd_epi16(pair, _mm256_set1_epi32(load32(rows->x->sum16[lane]))));
            acc[r] = _mm256_fnmadd_ps(imin, _mm256_mul_ps(dmin, _mm256_set1_ps(rows->x->d[lane])),
                                      acc[r]);
        }
    }
}

/* ---- half a tile times R rows ---- */

/* Ask for the share of block j in the super-block that lies EA_PREFETCH_BYTES ahead. */
INLINE void prefetch(const ea_fmt f, size_t sb_bytes, const uint8_t *sb, int j)
{
    const int lines = (int)(sb_bytes / 64 + (size_t)f.sb_blocks - 1) / f.sb_blocks;
    const uintptr_t at = (uintptr_t)sb + EA_PREFETCH_BYTES + (uintptr_t)(64 * lines * j);
#pragma GCC unroll 10
    for (int l = 0; l < lines; l++)
        _mm_prefetch((const char *)(at + (uintptr_t)(64 * l)), _MM_HINT_T0);
}

/* Rows r .. r + n_rows - 1 of args, all in one group of four; columns col .. col + 7 of the tile.
 */
INLINE void half_rows(const ea_fmt f, const ea_matmul_args *args, int tile, int col, int r,
                      const int n_rows)
{
    const size_t sb_bytes = (size_t)((f.k ? HEAD_K : HEAD_BLOCK) + f.sb_blocks * f.code_bytes);
    const int n_blocks = args->w->k / EA_Q8_K;
    const uint8_t *sb = args->w->data + (size_t)tile * args->w->tile_bytes;
    ea_rows rows = {ea_acts_q8(args->x, args->row0 + r),
                    n_rows == EA_Q8_ROWS ? 0 : (args->row0 + r) % EA_Q8_ROWS};
    __m256 acc[MAX_ROWS];
    for (int i = 0; i < n_rows; i++)
        acc[i] = _mm256_setzero_ps();
    for (int b = 0; b + f.sb_blocks <= n_blocks; b += f.sb_blocks, sb += sb_bytes)
        for (int j = 0; j < f.sb_blocks; j++, rows.x++) {
            if (n_rows == 1 && col == 0) /* the other half comes from the cache */
                prefetch(f, sb_bytes, sb, j);
            block_rows(f, sb, j, col, &rows, n_rows, acc);
        }
    if (f.sb_blocks == 2 && n_blocks % 2)
        block_rows(f, sb, 0, col, &rows, n_rows, acc);
    for (int i = 0; i < n_rows; i++)
        ea_put8__avx2(args, tile * EA_TILE_N + col, r + i, acc[i]);
}

typedef void (*ea_tile_fn)(const ea_matmul_args *args, int tile, int r);

/* Weights that stay in the second-level cache while the rows pass: a claim of tiles is worked off
 * in chunks of this size (256 KiB: the smallest such caches of machines with AVX2). */
enum { CHUNK_BYTES = 192 * 1024 };

/* fns[n]: the kernel of n + 1 rows. */
static void run(const ea_matmul_args *args, const ea_tile_fn fns[MAX_ROWS])
{
    const int chunk = (int)EA_MAX((size_t)1, CHUNK_BYTES / args->w->tile_bytes);
    for (int t0 = args->tile0; t0 < args->tile1; t0 += chunk) {
        const int t1 = EA_MIN(t0 + chunk, args->tile1);
        for (int r = 0, n; r < args->n_rows; r += n) {
            n = EA_MIN(EA_Q8_ROWS - (args->row0 + r) % EA_Q8_ROWS, args->n_rows - r);
            for (int tile = t0; tile < t1; tile++)
                fns[n - 1](args, tile, r);
        }
    }
}

/* ---- instances ---- */

#define ROWS_FN(name, n)                                                      \
    static void name##_##n##rows(const ea_matmul_args *args, int tile, int r) \
    {                                                                         \
        for (int col = 0; col < EA_TILE_N; col += LANES)                      \
            half_rows(fmt_##name, args, tile, col, r, n);                     \
    }
#define FORMAT(name, ...)                                                                  \
    static const ea_fmt fmt_##name = {__VA_ARGS__};                                        \
    ROWS_FN(name, 1)                                                                       \
    ROWS_FN(name, 2)                                                                       \
    ROWS_FN(name, 3)                                                                       \
    ROWS_FN(name, 4)                                                                       \
    static void run_##name(const ea_matmul_args *args)                                     \
    {                                                                                      \
        static const ea_tile_fn fns[MAX_ROWS] = {name##_1rows, name##_2rows, name##_3rows, \
                                                 name##_4rows};                            \
        run(args, fns);                                                                    \
    }                                                                                      \
    const ea_matmul_impl ea_matmul_##name##__avx2 = {&ea_layout_##name, run_##name};

/* clang-format off */
/*             codes      scales        k      zero blocks bytes */
FORMAT(q4_0,   CODES4,    PLAIN,        false, 8,   2,     256)
FORMAT(iq4_nl, CODES4_NL, PLAIN,        false, 0,   2,     256)
FORMAT(q5_0,   CODES5,    PLAIN,        false, 16,  2,     320)
FORMAT(q8_0,   CODES8,    PLAIN,        false, 0,   2,     512)
FORMAT(q4_1,   CODES4,    MIN,          false, 0,   1,     256)
FORMAT(q5_1,   CODES5,    MIN,          false, 0,   1,     320)
FORMAT(q4_k,   CODES4,    MIN,          true,  0,   8,     256)
FORMAT(q5_k,   CODES5,    MIN,          true,  0,   8,     320)
FORMAT(q6_k,   CODES6,    SCALES16,     true,  32,  8,     384)
FORMAT(q3_k,   CODES3,    SCALES16,     true,  4,   8,     192)
FORMAT(q2_k,   CODES2,    SCALES16_MIN, true,  0,   8,     128)
/* clang-format on */

/* ---- activations ---- */

void ea_acts_quantise__avx2(const ea_acts *a, int row)
{
    const float *x = ea_acts_row(a, row);
    struct ea_q8_block *b = ea_acts_q8(a, row);
    const int r = row % EA_Q8_ROWS;
    const __m256 sign = _mm256_set1_ps(-0.0f), zero = _mm256_setzero_ps();
    const __m256 lowest = _mm256_set1_ps(-127.0f), highest = _mm256_set1_ps(127.0f);
    for (int i = 0; i < a->k_pad / EA_Q8_K; i++, b++, x += EA_Q8_K) {
        __m256 most = zero;
        for (int j = 0; j < 4; j++) /* max(NaN, most) is the second operand: NaN never wins */
            most = _mm256_max_ps(_mm256_andnot_ps(sign, _mm256_loadu_ps(x + 8 * j)), most);
        __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
        m4 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
        const float amax = _mm_cvtss_f32(_mm_max_ss(m4, _mm_movehdup_ps(m4)));
        const float inv = amax >= EA_Q8_TINY ? 127.0f / amax : 0;
        const float d = amax >= EA_Q8_TINY ? amax / 127.0f : 0;
        int sum[2];
        for (int h = 0; h < 2; h++) {
            __m256i q[2];
            for (int j = 0; j < 2; j++) {
                const __m256 s =
                    _mm256_mul_ps(_mm256_loadu_ps(x + 16 * h + 8 * j), _mm256_set1_ps(inv));
                /* NaN becomes -127 */
                q[j] = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(s, lowest), highest));
            }
            const __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[0], q[1]), 0xd8);
            const __m128i bytes =
                _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
            _mm_storeu_si128((__m128i *)(void *)&b->q[r][16 * h], bytes);
            const __m256i t = _mm256_add_epi32(q[0], q[1]);
            __m128i s4 = _mm_add_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
            s4 = _mm_add_epi32(s4, _mm_shuffle_epi32(s4, 0x4e));
            sum[h] = _mm_cvtsi128_si32(_mm_add_epi32(s4, _mm_shuffle_epi32(s4, 0xb1)));
        }
        b->d[r] = d;
        b->s[r] = d * (float)(sum[0] + sum[1]);
        b->sum16[r][0] = (int16_t)sum[0];
        b->sum16[r][1] = (int16_t)sum[1];
    }
}
