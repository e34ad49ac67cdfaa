/* matmul.c: matrix products of quantised weights on AMX, for steps of several rows; fewer rows go
 * to the vector kernels, whose bits these are.
 *
 * A tile of activations is a group of 16 rows (ea_q8_chunk), a tile of weights 16 columns. The unit
 * does integer products only; what limits it is not the multiplying but what lies around it:
 * storing a tile of sums takes as long as the product, and scaling 256 sums takes as long again.
 *
 * K formats (k_*): their blocks' scales are integers, so they are multiplied into the codes before
 * the product: q * sc = base * hi + lo with hi and lo of a byte each. Two products a 64 inputs,
 * summed up in the unit over the whole super-block of 256, and only then stored and scaled: base *
 * sum(hi) + sum(lo) is the exact isum of kernel.h.
 *   unsigned scales (Q4_K, Q5_K, Q2_K): sc = 8 * sh + sl; q * sh and q * sl stay below 256
 *   signed scales (Q6_K, Q3_K): v = q * sc has 14 bits; hi = v >> 7, lo = v & 127
 * Minima are one more product: the sums of activations are cut into two bf16 each, exactly
 * (ea_q8_chunk), and f32 holds the integer sums of such products exactly too.
 *
 * Formats with f16 scales (b_*): a product a 32-block, stored, scaled and added in f32.
 *
 * In both, three things run side by side since they use different parts of the core: the products
 * of one unit of work (one group; one super-block, or 8 blocks), the scaling of an earlier one, the
 * unpacking of the next weights. Two things were found to decide the speed. A tile store that still
 * waits for its product holds back every later load whose address agrees in the lower 12 bits: so
 * sums are stored some products after they were complete. And everything that is written again and
 * again (codes, sums) must stay in the first-level cache beside the activations that stream through
 * it, so there is as little of it as can be: codes are replaced in place, and rings are as short as
 * the distances that they bridge. */
#include "kernel/amx/matmul.h"

#include <immintrin.h>

#include "kernel/amx/tile.h"
#include "kernel/avx512/put.h"
#include "kernel/avx512vnni/matmul.h"
#include "kernel/formats.h"
#include "quant/blocks.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    GROUP = EA_ACTS_GROUP,
    MAX_GROUPS = 32, /* groups whose accumulators are kept at a time */
    /* Tiles side by side: what several groups read of the activations is read once for all of them.
     * Fewer groups than COLUMNS_FROM take one at a time. */
    K_COLUMNS = 2,
    B_COLUMNS = 2,
    COLUMNS_FROM = 4,
    /* Activations that go through all tiles together: most of a second-level cache of 2 MiB. */
    ROWS_BYTES = 1500000,
    PAIRS = 4, /* products of 64 inputs in a super-block */
};

INLINE __m512i load(const void *p)
{
    return _mm512_load_si512(p);
}

INLINE void store(void *p, __m512i v)
{
    _mm512_store_si512(p, v);
}

INLINE int32_t load32(const void *p)
{
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

INLINE __m512 f16_row(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)p));
}

INLINE __m512i u8_row(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(const void *)p));
}

/* ---- what a call works on ---- */

/* The rows of a call, as groups of 16 of the activations' buffer. */
typedef struct ea_groups {
    const struct ea_q8_chunk *x; /* first chunk of the first group */
    size_t stride;               /* chunks from group to group */
    int n;
    int lo, hi; /* rows of the call: lo .. hi - 1, counted from the first group's first row */
} ea_groups;

typedef float ea_acc[GROUP][EA_TILE_N];

/* Where the walk over a call's tiles is: it takes a few tiles at a time, side by side (fewer at the
 * end), of them one chunk of 256 inputs after the other, all groups of rows times each, and of a
 * group every tile. One group times one chunk of one tile is a unit of work; units follow each
 * other across all of these, so that nothing stands still where one tile ends and the next begins.
 */
typedef struct ea_place {
    int tile0, n_tiles;  /* those side by side */
    int chunk, group, t; /* t: tile of them */
    int i;               /* chunks so far */
} ea_place;

typedef struct ea_walk {
    const ea_matmul_args *args;
    const ea_groups *x;
    int n_chunks, columns; /* of a tile; tiles side by side */
    int r0;                /* output row of the first row */
} ea_walk;

INLINE ea_place walk_next_chunk(const ea_walk *w, ea_place p)
{
    p.i++;
    if (++p.chunk == w->n_chunks) {
        p.chunk = 0;
        p.tile0 += p.n_tiles;
        p.n_tiles = EA_MIN(w->columns, w->args->tile1 - p.tile0);
    }
    return p;
}

INLINE ea_place walk_next(const ea_walk *w, ea_place p)
{
    if (++p.t < p.n_tiles)
        return p;
    p.t = 0;
    if (++p.group < w->x->n)
        return p;
    p.group = 0;
    return walk_next_chunk(w, p);
}

INLINE ea_place walk_begin(const ea_walk *w)
{
    return (ea_place){.tile0 = w->args->tile0,
                      .n_tiles = EA_MIN(w->columns, w->args->tile1 - w->args->tile0)};
}

INLINE int walk_units(const ea_walk *w)
{
    return (w->args->tile1 - w->args->tile0) * w->n_chunks * w->x->n;
}

INLINE const struct ea_q8_chunk *walk_acts(const ea_walk *w, ea_place p)
{
    return w->x->x + (size_t)p.group * w->x->stride + (size_t)p.chunk * GROUP;
}

INLINE const uint8_t *walk_tile_data(const ea_walk *w, ea_place p)
{
    return w->args->w->data + (size_t)(p.tile0 + p.t) * w->args->w->tile_bytes;
}

/* Rows r .. r1 - 1 of the group at p are complete. */
INLINE void put_rows(const ea_walk *w, const ea_place p, int r, int r1, ea_acc acc)
{
    r = EA_MAX(r, w->x->lo - p.group * GROUP);
    r1 = EA_MIN(r1, w->x->hi - p.group * GROUP);
    for (; r < r1; r++)
        ea_put16__avx512(w->args, p.tile0 + p.t, w->r0 + p.group * GROUP + r - w->x->lo,
                         _mm512_load_ps(acc[r]));
}

/* ---- K formats ---- */

/* d and dmin of a super-block. */
typedef struct ea_k_head {
    float d[EA_TILE_N], dmin[EA_TILE_N];
} ea_k_head;

/* What one thread needs for tiles of a K format: codes [pair of 32-blocks][hi, lo][64 / 4][16][4]
 * and minima of the super-block at hand, of up to K_COLUMNS tiles side by side, and the sums of the
 * units under way, [row][column]. It is kept small: with the activations that stream by it should
 * stay in the first-level cache, or every store of a tile waits for the second. */
enum { K_HEADS = 4, K_SUMS = 2, K_MIN_SUMS = 3 };

/* How far ahead weights are asked for: about one super-block of Q4_K. */
enum { K_FETCH_BYTES = 2048 };
typedef struct ea_k_scratch {
    _Alignas(64) uint8_t codes[K_COLUMNS][PAIRS][2][16][64];
    _Alignas(64) uint32_t mins[K_COLUMNS][16][16];
    _Alignas(64) ea_k_head head[K_HEADS][K_COLUMNS];
    _Alignas(64) int32_t hi[K_SUMS][GROUP][EA_TILE_N];
    _Alignas(64) int32_t lo[K_SUMS][GROUP][EA_TILE_N];
    _Alignas(64) float min[K_MIN_SUMS][GROUP][EA_TILE_N];
    _Alignas(64) ea_acc acc[MAX_GROUPS][K_COLUMNS];
} ea_k_scratch;

/* Bits of `plane` at position `from` moved to position `to`, the others garbage. */
INLINE __m512i move_bits(__m512i plane, const int from, const int to)
{
    if (from < to)
        return _mm512_slli_epi16(plane, (unsigned)(to - from));
    if (from > to)
        return _mm512_srli_epi16(plane, (unsigned)(from - to));
    return plane;
}

/* (a & mask) | b */
INLINE __m512i and_or(__m512i a, const int mask, __m512i b)
{
    return _mm512_ternarylogic_epi32(a, _mm512_set1_epi8((char)mask), b, 0xea);
}

/* Unsigned codes of group g of the 32-block at p. */
INLINE __m512i group_codes(const ea_fmt f, const uint8_t *p, const int g)
{
    if (f.codes == CODES2 || f.codes == CODES3) {
        const __m512i u = _mm512_and_si512(move_bits(load(p + 64 * (g / 4)), 2 * (g % 4), 0),
                                           _mm512_set1_epi8(3));
        return f.codes == CODES3 ? and_or(move_bits(load(p + 128), g, 2), 4, u) : u;
    }
    const __m512i u =
        _mm512_and_si512(move_bits(load(p + 64 * (g / 2)), 4 * (g % 2), 0), _mm512_set1_epi8(15));
    if (f.codes == CODES5)
        return and_or(move_bits(load(p + 256), g, 4), 0x10, u);
    if (f.codes == CODES6)
        return and_or(move_bits(load(p + 256 + 64 * (g / 4)), 2 * (g % 4), 4), 0x30, u);
    return u;
}

/* The same number in both 16-bit halves of every lane. */
INLINE __m512i twice16(__m512i v)
{
    return _mm512_or_si512(v, _mm512_slli_epi32(v, 16));
}

/* Groups g0 .. g1 - 1 of a block times unsigned scales: bytes times a digit below 8, two at a time,
 * no carry between them (u <= 31). */
INLINE void unsigned_digits(const ea_fmt f, const uint8_t *codes, const int g0, const int g1,
                            __m512i sc, uint8_t hi[16][64], uint8_t lo[16][64])
{
    const __m512i sh = twice16(_mm512_srli_epi32(sc, 3));
    const __m512i sl = twice16(_mm512_and_si512(sc, _mm512_set1_epi32(7)));
#pragma GCC unroll 8
    for (int g = g0; g < g1; g++) {
        const __m512i u = group_codes(f, codes, g);
        store(hi[g], _mm512_mullo_epi16(u, sh));
        store(lo[g], _mm512_mullo_epi16(u, sl));
    }
}

/* The same for signed scales: products of the even and of the odd bytes in 16 bits, less zero * sc,
 * cut into the bits from 7 on (signed) and the seven below. */
INLINE void signed_digits(const ea_fmt f, const uint8_t *codes, const int g0, const int g1,
                          __m512i sc, uint8_t hi[16][64], uint8_t lo[16][64])
{
    const __m512i sc16 = twice16(_mm512_and_si512(sc, _mm512_set1_epi32(0xffff)));
    const __m512i zero = _mm512_mullo_epi16(sc16, _mm512_set1_epi16((short)f.zero));
    const __mmask64 odd = 0xaaaaaaaaaaaaaaaa;
#pragma GCC unroll 4
    for (int g = g0; g < g1; g++) {
        const __m512i u = group_codes(f, codes, g);
        const __m512i v0 = _mm512_sub_epi16(
            _mm512_mullo_epi16(_mm512_and_si512(u, _mm512_set1_epi16(0xff)), sc16), zero);
        const __m512i v1 =
            _mm512_sub_epi16(_mm512_mullo_epi16(_mm512_srli_epi16(u, 8), sc16), zero);
        store(hi[g],
              _mm512_mask_blend_epi8(odd, _mm512_srai_epi16(v0, 7), _mm512_slli_epi16(v1, 1)));
        store(lo[g], _mm512_and_si512(_mm512_mask_blend_epi8(odd, v0, _mm512_slli_epi16(v1, 8)),
                                      _mm512_set1_epi8(127)));
    }
}

/* Block j of the super-block at sb into its half of a pair of tiles. */
INLINE void k_unpack_block(const ea_fmt f, const uint8_t *sb, const int j,
                           uint8_t to[PAIRS][2][16][64])
{
    const uint8_t *codes = sb + f.head_bytes + j * f.code_bytes;
    uint8_t(*hi)[64] = to[j / 2][0] + 8 * (j % 2), (*lo)[64] = to[j / 2][1] + 8 * (j % 2);
    if (f.scales == K32_MIN) {
        unsigned_digits(f, codes, 0, 8, u8_row(sb + 64 + 16 * j), hi, lo);
    } else if (f.scales == K16_MIN) {
        const __m512i low = _mm512_set1_epi32(15);
        const uint8_t *scm = sb + 64 + 32 * j;
        unsigned_digits(f, codes, 0, 4, _mm512_and_si512(u8_row(scm), low), hi, lo);
        unsigned_digits(f, codes, 4, 8, _mm512_and_si512(u8_row(scm + 16), low), hi, lo);
    } else {
        const __m128i *sc = (const __m128i *)(const void *)(sb + 32 * j);
        signed_digits(f, codes, 0, 4, _mm512_cvtepi8_epi32(_mm_load_si128(sc)), hi, lo);
        signed_digits(f, codes, 4, 8, _mm512_cvtepi8_epi32(_mm_load_si128(sc + 1)), hi, lo);
    }
}

/* A super-block's minima by half blocks, once for each of the two parts of a sum: integers below 64
 * in bf16. */
INLINE void k_unpack_mins(const ea_fmt f, const uint8_t *sb, uint32_t to[16][16])
{
#pragma GCC unroll 4
    for (int h = 0; h < 16; h++) {
        __m512i m = f.scales == K32_MIN ? u8_row(sb + 192 + 16 * (h / 2))
                                        : _mm512_srli_epi32(u8_row(sb + 64 + 16 * h), 4);
        m = _mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(m)), 16);
        store(to[h], twice16(m));
    }
}

INLINE void k_unpack_head(const ea_fmt f, const uint8_t *d, ea_k_head *to)
{
    _mm512_store_ps(to->d, f16_row(d));
    if (f.scales != K16)
        _mm512_store_ps(to->dmin, f16_row(d + 32));
}

/* Row r of one group: its accumulator takes the sums. */
INLINE void k_scale_row(const ea_fmt f, __m512i hi, __m512i lo, const float *min, const __m512 d,
                        const __m512 dmin, const float *dx, float *acc)
{
    const int shift = f.scales == K16 ? 7 : 3;
    const __m512i isum = _mm512_add_epi32(_mm512_slli_epi32(hi, shift), lo);
    __m512 t = _mm512_mul_ps(_mm512_cvtepi32_ps(isum), d);
    if (f.scales != K16)
        t = _mm512_fnmadd_ps(_mm512_load_ps(min), dmin, t);
    _mm512_store_ps(acc, _mm512_fmadd_ps(t, _mm512_set1_ps(*dx), _mm512_load_ps(acc)));
}

INLINE const uint8_t *k_super(const ea_fmt f, const ea_walk *w, ea_place p)
{
    return walk_tile_data(w, p) + ea_fmt_front(f, w->n_chunks * EA_CHUNK_BLOCKS) +
           (size_t)p.chunk * ea_fmt_sb_bytes(f);
}

/* Rows r0 .. r0 + 7 of unit v, whose sums are stored. fetch: the super-block that this step
 * unpacks, or NULL; what follows it is asked for line by line between the rows, since a burst would
 * fill all buffers that loads of tiles need too. */
INLINE void k_scale(const ea_fmt f, const ea_walk *w, ea_k_scratch *s, const ea_place p, int v,
                    const int r0, const uint8_t *fetch)
{
    const int lines = ((int)ea_fmt_sb_bytes(f) / 64 + GROUP - 1) / GROUP;
    const ea_k_head *head = &s->head[p.i % K_HEADS][p.t];
    const struct ea_q8_chunk *x = walk_acts(w, p);
    const __m512 d = _mm512_load_ps(head->d), dmin = _mm512_load_ps(head->dmin);
    float(*acc)[EA_TILE_N] = s->acc[p.group][p.t];
    if (p.chunk == 0)
        for (int r = r0; r < r0 + 8; r++)
            _mm512_store_ps(acc[r], _mm512_setzero_ps());
#pragma GCC unroll 8
    for (int r = r0; r < r0 + 8; r++) {
        for (int l = 0; l < lines && fetch; l++)
            _mm_prefetch(
                (const char *)((uintptr_t)fetch + K_FETCH_BYTES + 64 * (uintptr_t)(r * lines + l)),
                _MM_HINT_T1);
        k_scale_row(f, load(s->hi[v % K_SUMS][r]), load(s->lo[v % K_SUMS][r]),
                    s->min[v % K_MIN_SUMS][r], d, dmin, &x[r].d[0], acc[r]);
    }
    if (p.chunk == w->n_chunks - 1)
        put_rows(w, p, r0, r0 + 8, acc);
}

/* Half of the codes of a super-block. */
INLINE void k_unpack(const ea_fmt f, const ea_walk *w, ea_k_scratch *s, ea_place p, const int half)
{
    const uint8_t *sb = k_super(f, w, p);
#pragma GCC unroll 4
    for (int j = 4 * half; j < 4 * half + 4; j++)
        k_unpack_block(f, sb, j, s->codes[p.t]);
}

/* Scales and minima of a super-block. */
INLINE void k_unpack_scales(const ea_fmt f, const ea_walk *w, ea_k_scratch *s, ea_place p)
{
    const uint8_t *sb = k_super(f, w, p);
    k_unpack_head(f, f.front ? walk_tile_data(w, p) + p.chunk * f.front : sb,
                  &s->head[p.i % K_HEADS][p.t]);
    if (f.scales != K16)
        k_unpack_mins(f, sb, s->mins[p.t]);
}

/* The two products of pair n of the unit, with tiles a and b for what is multiplied. */
#define K_PAIR(DOT, th, tl, a, b, n)               \
    TILE_LOAD(a, x->q + 64 * (n), (int)sizeof *x); \
    TILE_LOAD(b, s->codes[p.t][n][0], 64);         \
    DOT(th, a, b);                                 \
    TILE_LOAD(b, s->codes[p.t][n][1], 64);         \
    DOT(tl, a, b);

/* One step, v, in two halves: the products of unit v in tiles ch and cl; in zh and zl lie the sums
 * of unit v - 1, which are stored first; then zh has room for the product with minima. */
#define K_STEP_1(DOT, ch, cl, zh, zl)                \
    if (v > 0)                                       \
        TILE_STORE(zh, s->hi[(v - 1) % K_SUMS], 64); \
    if (is_unit) {                                   \
        TILE_ZERO(ch);                               \
        TILE_ZERO(cl);                               \
        K_PAIR(DOT, ch, cl, 4, 6, 0)                 \
    }                                                \
    if (v > 0)                                       \
        TILE_STORE(zl, s->lo[(v - 1) % K_SUMS], 64); \
    if (is_unit) {                                   \
        if (f.scales != K16) {                       \
            TILE_ZERO(zh);                           \
            TILE_LOAD(5, x->parts, (int)sizeof *x);  \
            TILE_LOAD(7, s->mins[p.t], 64);          \
            TILE_DOT_BF16(zh, 5, 7);                 \
        }                                            \
        K_PAIR(DOT, ch, cl, 5, 7, 1)                 \
    }

#define K_STEP_2(DOT, ch, cl, zh, zl)                   \
    if (is_unit) {                                      \
        K_PAIR(DOT, ch, cl, 4, 6, 2)                    \
        if (f.scales != K16)                            \
            TILE_STORE(zh, s->min[v % K_MIN_SUMS], 64); \
        K_PAIR(DOT, ch, cl, 5, 7, 3)                    \
    }
/* Units take two pairs of tiles for sums in turn. */
#define K_STEP(STEP, DOT)     \
    if (v % 2 == 0) {         \
        STEP(DOT, 0, 1, 2, 3) \
    } else {                  \
        STEP(DOT, 2, 3, 0, 1) \
    }

INLINE void k_products(const ea_fmt f, const ea_walk *w, ea_k_scratch *s, const int half, int v,
                       bool is_unit, const ea_place p)
{
    const struct ea_q8_chunk *x = walk_acts(w, p);
    if (half == 0 && f.scales == K16) {
        K_STEP(K_STEP_1, TILE_DOT_SS)
    } else if (half == 0) {
        K_STEP(K_STEP_1, TILE_DOT_SU)
    } else if (f.scales == K16) {
        K_STEP(K_STEP_2, TILE_DOT_SS)
    } else {
        K_STEP(K_STEP_2, TILE_DOT_SU)
    }
}

/* All units of the call. The last group's step replaces the codes of its super-block by those of
 * the next one, half by half as they have been multiplied. */
INLINE void k_run(const ea_fmt f, const ea_walk *w, ea_k_scratch *s)
{
    const int n_units = walk_units(w);
    ea_place p = walk_begin(w), old[2] = {p, p};
    for (int t = 0; t < p.n_tiles; t++) {
        ea_place first = p;
        first.t = t;
        k_unpack_scales(f, w, s, first);
        k_unpack(f, w, s, first, 0);
        k_unpack(f, w, s, first, 1);
    }
    for (int v = 0; v < n_units + 2; v++) {
        const ea_place ahead = walk_next_chunk(w, p);
        const bool unpack = p.group == w->x->n - 1 && ahead.t < ahead.n_tiles;
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            k_products(f, w, s, half, v, v < n_units, p);
            if (unpack && half == 0)
                k_unpack_scales(f, w, s, ahead);
            if (unpack)
                k_unpack(f, w, s, ahead, half);
            if (v >= 2)
                k_scale(f, w, s, old[0], v - 2, 8 * half, unpack ? k_super(f, w, ahead) : NULL);
        }
        old[0] = old[1], old[1] = p, p = walk_next(w, p);
    }
}

/* ---- formats with f16 scales ---- */

/* A block's sums are stored two blocks after its product, and scaled two blocks later. */
enum { B_BLOCKS = EA_CHUNK_BLOCKS, B_STORE = 2, B_SCALE = 4, B_SUMS = 4 };

/* Weights of a chunk as tiles, [block][32 / 4][16][4], of up to B_COLUMNS tiles side by side, and
 * the sums of the last blocks. */
typedef struct ea_b_scratch {
    _Alignas(64) uint8_t w[B_COLUMNS][B_BLOCKS][8][64];
    _Alignas(64) int32_t sums[B_SUMS][GROUP][EA_TILE_N];
    _Alignas(64) ea_acc acc[MAX_GROUPS][B_COLUMNS];
} ea_b_scratch;

/* Signed codes of group g of the 32-block at p. */
INLINE __m512i signed_group(const ea_fmt f, const uint8_t *p, const int g)
{
    if (f.codes == CODES8)
        return _mm512_xor_si512(load(p + 64 * g), _mm512_set1_epi8((char)0x80));
    const __m512i u = group_codes(f, p, g);
    if (f.codes == CODES4_NL)
        return _mm512_shuffle_epi8(
            _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)ea_iq4nl_values)), u);
    return f.zero ? _mm512_sub_epi8(u, _mm512_set1_epi8((char)f.zero)) : u;
}

/* Where block b of a tile begins: its super-block. */
INLINE const uint8_t *b_super(const ea_fmt f, const uint8_t *tile, int b)
{
    return tile + (size_t)(b / f.sb_blocks) * ea_fmt_sb_bytes(f);
}

INLINE void b_unpack(const ea_fmt f, const uint8_t *tile, int b, uint8_t to[8][64])
{
    const uint8_t *codes = b_super(f, tile, b) + f.head_bytes + b % f.sb_blocks * f.code_bytes;
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++)
        store(to[g], signed_group(f, codes, g));
}

/* Block j of the chunk whose first block is b0: sums of a group into the rows' accumulators. */
INLINE void b_scale(const ea_fmt f, const uint8_t *tile, int b0, const int j,
                    int32_t c[GROUP][EA_TILE_N], const struct ea_q8_chunk *x, __m512 acc[GROUP])
{
    const uint8_t *sb = b_super(f, tile, b0 + j);
    const __m512 d = f16_row(sb + (f.scales == MIN ? 0 : 32 * ((b0 + j) % 2)));
    const __m512 m = f.scales == MIN ? f16_row(sb + 32) : _mm512_setzero_ps();
#pragma GCC unroll 16
    for (int r = 0; r < GROUP; r++) {
        acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(load(c[r])),
                                 _mm512_mul_ps(d, _mm512_set1_ps(x[r].d[j])), acc[r]);
        if (f.scales == MIN)
            acc[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(x[r].s[j]), acc[r]);
    }
}

/* The product of block j of a unit, in tile j % 4. */
#define B_PRODUCT(c, x, w, j)                        \
    TILE_ZERO(c);                                    \
    TILE_LOAD(6, (x)->q + 32 * (j), (int)sizeof *x); \
    TILE_LOAD(7, (w)[j], 64);                        \
    TILE_DOT_SS(c, 6, 7);

INLINE void b_product(const struct ea_q8_chunk *x, uint8_t w[B_BLOCKS][8][64], const int j)
{
    switch (j % B_SUMS) {
    case 0: B_PRODUCT(0, x, w, j) break;
    case 1: B_PRODUCT(1, x, w, j) break;
    case 2: B_PRODUCT(2, x, w, j) break;
    default: B_PRODUCT(3, x, w, j) break;
    }
}

INLINE void b_store(ea_b_scratch *s, const int j)
{
    switch (j % B_SUMS) {
    case 0: TILE_STORE(0, s->sums[0], 64); break;
    case 1: TILE_STORE(1, s->sums[1], 64); break;
    case 2: TILE_STORE(2, s->sums[2], 64); break;
    default: TILE_STORE(3, s->sums[3], 64); break;
    }
}

INLINE void acc_load(ea_acc from, __m512 acc[GROUP])
{
#pragma GCC unroll 16
    for (int r = 0; r < GROUP; r++)
        acc[r] = _mm512_load_ps(from[r]);
}

INLINE void acc_store(ea_acc to, __m512 acc[GROUP])
{
#pragma GCC unroll 16
    for (int r = 0; r < GROUP; r++)
        _mm512_store_ps(to[r], acc[r]);
}

/* Blocks of a unit. */
INLINE int b_blocks(const ea_walk *w, const ea_place p)
{
    return EA_MIN(w->args->w->k / EA_Q8_K - p.chunk * B_BLOCKS, (int)B_BLOCKS);
}

/* Block j of the unit at p, if it has one, to the accumulators of its rows. */
INLINE void b_add(const ea_fmt f, const ea_walk *w, ea_b_scratch *s, const ea_place p, const int j,
                  __m512 acc[GROUP])
{
    if (j < b_blocks(w, p))
        b_scale(f, walk_tile_data(w, p), p.chunk * B_BLOCKS, j, s->sums[j % B_SUMS],
                walk_acts(w, p), acc);
}

INLINE void b_begin(ea_b_scratch *s, const ea_place p, __m512 acc[GROUP])
{
    if (p.chunk > 0) {
        acc_load(s->acc[p.group][p.t], acc);
        return;
    }
#pragma GCC unroll 16
    for (int r = 0; r < GROUP; r++)
        acc[r] = _mm512_setzero_ps();
}

INLINE void b_end(const ea_walk *w, ea_b_scratch *s, const ea_place p, __m512 acc[GROUP])
{
    acc_store(s->acc[p.group][p.t], acc);
    if (p.chunk == w->n_chunks - 1)
        put_rows(w, p, 0, GROUP, s->acc[p.group][p.t]);
}

INLINE void b_unpack_block(const ea_fmt f, const ea_walk *w, ea_b_scratch *s, const ea_place p,
                           const int j)
{
    const uint8_t *tile = walk_tile_data(w, p);
    if (j >= b_blocks(w, p))
        return;
    b_unpack(f, tile, p.chunk * B_BLOCKS + j, s->w[p.t][j]);
    for (int l = 0; l < f.code_bytes / 64 + 1; l++)
        _mm_prefetch((const char *)((uintptr_t)b_super(f, tile, p.chunk * B_BLOCKS + j) +
                                    EA_PREFETCH_BYTES + 64 * (uintptr_t)l),
                     _MM_HINT_T1);
}

/* All units of the call, and one more step for what the last one left. */
INLINE void b_run(const ea_fmt f, const ea_walk *w, ea_b_scratch *s)
{
    const int n_units = walk_units(w);
    ea_place p = walk_begin(w), old = p;
    __m512 acc[GROUP] = {0};
    for (int t = 0; t < p.n_tiles; t++)
#pragma GCC unroll 8
        for (int j = 0; j < B_BLOCKS; j++) {
            ea_place first = p;
            first.t = t;
            b_unpack_block(f, w, s, first, j);
        }
    for (int v = 0; v <= n_units; v++) {
        const ea_place ahead = walk_next_chunk(w, p);
        const bool is_unit = v < n_units;
        const bool unpack = is_unit && p.group == w->x->n - 1 && ahead.t < ahead.n_tiles;
        const int n = is_unit ? b_blocks(w, p) : 0, n_old = v > 0 ? b_blocks(w, old) : 0;
#pragma GCC unroll 8
        for (int j = 0; j < B_BLOCKS; j++) {
            if (j < n)
                b_product(walk_acts(w, p), s->w[p.t], j);
            if (j >= B_STORE ? j - B_STORE < n : B_BLOCKS + j - B_STORE < n_old)
                b_store(s, B_BLOCKS + j - B_STORE);
            if (unpack)
                b_unpack_block(f, w, s, ahead, j);
            if (j >= B_SCALE && is_unit)
                b_add(f, w, s, p, j - B_SCALE, acc);
            if (j < B_SCALE && v > 0)
                b_add(f, w, s, old, B_BLOCKS + j - B_SCALE, acc);
            if (j == B_SCALE - 1) {
                if (v > 0)
                    b_end(w, s, old, acc);
                b_begin(s, p, acc);
            }
        }
        old = p, p = walk_next(w, p);
    }
}

/* ---- a call ---- */

/* Tiles 0..5: sums. 6: activations. 7: weights. K formats multiply 64 inputs at a time. */
static const ea_tile_config k_config = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};
static const ea_tile_config b_config = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 32, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 8},
};

typedef union ea_scratch {
    ea_k_scratch k;
    ea_b_scratch b;
} ea_scratch;

/* Fewest rows that the matrix unit takes: the vector kernels' time grows with the rows, its own by
 * steps of 16. Measured on one core (Emerald Rapids), ns a 32-block and 16 rows, here / VNNI, at 8,
 * 16, 32 and 256 rows: Q4_K 27 / 22, 27 / 43, 24 / 41, 18 / 40; Q6_K 39 / 31, 39 / 58, 25 / 53, 16
 * / 50; Q4_0 29 / 22, 29 / 42, 28 / 40, 27 / 38. */
enum { LEAST_ROWS = 11 };

/* Groups of rows that go through all tiles together: as many as stay in the second-level cache,
 * while each super-block of weights that is unpacked serves as many as possible; about the same
 * number each time. */
static int groups_at_once(const ea_matmul_args *args)
{
    const size_t group_bytes = (size_t)ea_acts_chunks(args->x) * GROUP * sizeof(struct ea_q8_chunk);
    const int n = (args->row0 + args->n_rows - 1) / GROUP - args->row0 / GROUP + 1;
    const int most =
        (int)EA_MIN(EA_MAX(ROWS_BYTES / group_bytes, (size_t)COLUMNS_FROM), (size_t)MAX_GROUPS);
    const int n_times = (n + most - 1) / most;
    return (n + n_times - 1) / n_times;
}

INLINE void run(const ea_fmt f, const ea_matmul_args *args, const ea_matmul_impl *few_rows)
{
    if (args->n_rows < LEAST_ROWS) {
        few_rows->run(args);
        return;
    }
    ea_scratch s;
    TILE_CONFIG(ea_fmt_is_k(f) ? &k_config : &b_config);
    const int end = args->row0 + args->n_rows, n_groups = groups_at_once(args);
    for (int row = args->row0; row < end;) {
        const int first = row / GROUP * GROUP, last = EA_MIN(end, first + n_groups * GROUP);
        const ea_groups x = {.x = ea_acts_q8(args->x, ea_fmt_form(f), first),
                             .stride = (size_t)ea_acts_chunks(args->x) * GROUP,
                             .n = (last - first + GROUP - 1) / GROUP,
                             .lo = row - first,
                             .hi = last - first};
        const ea_walk w = {
            .args = args,
            .x = &x,
            .n_chunks = ea_acts_chunks(args->x),
            .columns = x.n < COLUMNS_FROM ? 1
                       : ea_fmt_is_k(f)   ? (int)K_COLUMNS
                                          : (int)B_COLUMNS,
            .r0 = row - args->row0,
        };
        if (ea_fmt_is_k(f))
            k_run(f, &w, &s.k);
        else
            b_run(f, &w, &s.b);
        row = last;
    }
    TILE_RELEASE();
}

#define EA_FORMAT(name, ...)                                               \
    static void run_##name(const ea_matmul_args *args)                     \
    {                                                                      \
        run(ea_fmt_##name, args, &ea_matmul_##name##__avx512vnni);         \
    }                                                                      \
    const ea_matmul_impl EA_AMX_IMPL(name) = {.layout = &ea_layout_##name, \
                                              .run = run_##name,           \
                                              .unit_rows = LEAST_ROWS,     \
                                              .unit_tiles = K_COLUMNS,     \
                                              .unit_speed = 300};
#include "kernel/formats.def"
#undef EA_FORMAT
