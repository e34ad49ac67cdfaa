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
 * unpacking of the next weights. A tile store that still waits for its product holds back every
 * later load whose address agrees in the lower 12 bits, and four tiles cover all of those: so sums
 * are stored a unit (or three blocks) after they were complete, from a second set of tiles. */
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
    PAIRS = 4,       /* products of 64 inputs in a super-block */
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

static void put_rows(const ea_matmul_args *args, int tile, const ea_groups *x, int r0, ea_acc *acc)
{
    for (int r = x->lo; r < x->hi; r++)
        ea_put16__avx512(args, tile, r0 + r - x->lo, _mm512_load_ps(acc[r / GROUP][r % GROUP]));
}

/* ---- K formats ---- */

/* d and dmin of a super-block. */
typedef struct ea_k_head {
    float d[EA_TILE_N], dmin[EA_TILE_N];
} ea_k_head;

/* Sums of one unit of work, [row][column]. */
typedef struct ea_k_sums {
    int32_t hi[GROUP][EA_TILE_N], lo[GROUP][EA_TILE_N];
    float min[GROUP][EA_TILE_N];
} ea_k_sums;

/* Rings: super-blocks unpacked ahead, and units between their first product and their scaling. */
enum { K_CODES = 3, K_MINS = 4, K_HEADS = 8, K_UNITS = 8 };

/* What one thread needs for a tile of a K format: codes [pair of 32-blocks][hi, lo][64 / 4][16][4]
 * and minima of the next super-blocks, sums of the units under way. */
typedef struct ea_k_scratch {
    _Alignas(64) uint8_t codes[K_CODES][PAIRS][2][16][64];
    _Alignas(64) uint32_t mins[K_MINS][16][16];
    ea_k_head head[K_HEADS];
    _Alignas(64) ea_k_sums sums[K_UNITS];
    _Alignas(64) ea_acc acc[MAX_GROUPS];
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

/* One unit of work: number v of the walk over a tile is super-block v / n_groups, group v %
 * n_groups. */
typedef struct ea_k_unit {
    const struct ea_q8_chunk *x;
    int sb, group;
} ea_k_unit;

typedef struct ea_k_walk {
    const ea_groups *x;
    const uint8_t *base, *first; /* the tile, its first super-block */
    int n_sb, n_units;
    ea_k_scratch *s;
} ea_k_walk;

INLINE ea_k_unit k_unit(const ea_k_walk *w, int sb, int group)
{
    return (ea_k_unit){w->x->x + (size_t)group * w->x->stride + (size_t)sb * GROUP, sb, group};
}

INLINE ea_k_unit k_next(const ea_k_walk *w, ea_k_unit u)
{
    return u.group + 1 < w->x->n ? k_unit(w, u.sb, u.group + 1) : k_unit(w, u.sb + 1, 0);
}

/* Rows r0 .. r0 + 7 of unit v, whose sums are stored. */
INLINE void k_scale(const ea_fmt f, const ea_k_walk *w, const ea_k_unit u, int v, const int r0)
{
    const ea_k_sums *s = &w->s->sums[v % K_UNITS];
    const ea_k_head *head = &w->s->head[u.sb % K_HEADS];
    const __m512 d = _mm512_load_ps(head->d), dmin = _mm512_load_ps(head->dmin);
#pragma GCC unroll 8
    for (int r = r0; r < r0 + 8; r++)
        k_scale_row(f, load(s->hi[r]), load(s->lo[r]), s->min[r], d, dmin, &u.x[r].d[0],
                    w->s->acc[u.group][r]);
}

/* Half of the codes of super-block i. */
INLINE void k_unpack(const ea_fmt f, const ea_k_walk *w, int i, const int half)
{
    const uint8_t *sb = w->first + (size_t)i * ea_fmt_sb_bytes(f);
    const int lines = (int)ea_fmt_sb_bytes(f) / 128 + 1;
#pragma GCC unroll 4
    for (int j = 4 * half; j < 4 * half + 4; j++)
        k_unpack_block(f, sb, j, w->s->codes[i % K_CODES]);
    for (int l = 0; l < lines; l++)
        _mm_prefetch((const char *)((uintptr_t)sb + EA_PREFETCH_BYTES +
                                    (uintptr_t)(64 * (half * lines + l))),
                     _MM_HINT_T0);
}

/* Scales and minima of super-block i: they are wanted a unit before the codes. */
INLINE void k_unpack_scales(const ea_fmt f, const ea_k_walk *w, int i)
{
    const uint8_t *sb = w->first + (size_t)i * ea_fmt_sb_bytes(f);
    k_unpack_head(f, f.front ? w->base + i * f.front : sb, &w->s->head[i % K_HEADS]);
    if (f.scales != K16)
        k_unpack_mins(f, sb, w->s->mins[i % K_MINS]);
}

/* The two products of pair p of a unit. */
#define K_PAIR(DOT, th, tl, u, s, p)                       \
    TILE_LOAD(6, (u).x->q + 64 * (p), (int)sizeof *(u).x); \
    TILE_LOAD(7, (s)->codes[(u).sb % K_CODES][p][0], 64);  \
    DOT(th, 6, 7);                                         \
    TILE_LOAD(7, (s)->codes[(u).sb % K_CODES][p][1], 64);  \
    DOT(tl, 6, 7);

/* One step, v: pairs 2 and 3 of unit v in tiles ch, cl; pairs 0 and 1 of unit v + 1 in nh, nl: four
 * chains of products side by side, since each waits for its own last. In the tiles zh, zl the sums
 * of unit v - 1 lie ready to be stored, after which the product with minima of unit v + 2 has its
 * place there. K_STEP_1 and K_STEP_2 are the halves of a step. */
#define K_STEP_1(DOT, ch, cl, nh, nl, zh, zl)               \
    if (v >= 0) {                                           \
        K_PAIR(DOT, ch, cl, cur, s, 2)                      \
    }                                                       \
    if (v + 1 < w->n_units) {                               \
        TILE_ZERO(nh);                                      \
        TILE_ZERO(nl);                                      \
        K_PAIR(DOT, nh, nl, next, s, 0)                     \
    }                                                       \
    if (v >= 1) {                                           \
        TILE_STORE(zh, s->sums[(v - 1) % K_UNITS].hi, 64);  \
        TILE_STORE(zl, s->sums[(v - 1) % K_UNITS].lo, 64);  \
    }                                                       \
    if (f.scales != K16 && v + 2 < w->n_units) {            \
        TILE_ZERO(zh);                                      \
        TILE_LOAD(6, after.x->parts, (int)sizeof *after.x); \
        TILE_LOAD(7, s->mins[after.sb % K_MINS], 64);       \
        TILE_DOT_BF16(zh, 6, 7);                            \
    }

#define K_STEP_2(DOT, ch, cl, nh, nl, zh, zl)  \
    if (v >= 0) {                              \
        K_PAIR(DOT, ch, cl, cur, s, 3)         \
    }                                          \
    if (v + 1 < w->n_units) {                  \
        K_PAIR(DOT, nh, nl, next, s, 1)        \
    }                                          \
    if (f.scales != K16 && v + 2 < w->n_units) \
        TILE_STORE(zh, s->sums[(v + 2) % K_UNITS].min, 64);

/* The units take three sets of tiles in turn. */
#define K_STEP(STEP, DOT)                       \
    switch ((v + 3) % 3) {                      \
    case 0: STEP(DOT, 0, 1, 2, 3, 4, 5) break;  \
    case 1: STEP(DOT, 2, 3, 4, 5, 0, 1) break;  \
    default: STEP(DOT, 4, 5, 0, 1, 2, 3) break; \
    }

INLINE void k_products(const ea_fmt f, const ea_k_walk *w, const int half, int v,
                       const ea_k_unit cur, const ea_k_unit next, const ea_k_unit after)
{
    ea_k_scratch *s = w->s;
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

/* The first unit's sums with minima: there is no step two before it. */
INLINE void k_first_mins(const ea_k_walk *w, const ea_k_unit u)
{
    TILE_ZERO(0);
    TILE_LOAD(6, u.x->parts, (int)sizeof *u.x);
    TILE_LOAD(7, w->s->mins[u.sb % K_MINS], 64);
    TILE_DOT_BF16(0, 6, 7);
    TILE_STORE(0, w->s->sums[0].min, 64);
}

/* All groups of x times one tile. */
INLINE void k_tile(const ea_fmt f, const ea_matmul_args *args, const int tile, const ea_groups *x,
                   const int r0, ea_k_scratch *s)
{
    const int n_sb = args->w->k / EA_Q8_CHUNK;
    const uint8_t *base = args->w->data + (size_t)tile * args->w->tile_bytes;
    const ea_k_walk walk = {.x = x,
                            .base = base,
                            .first = base + ea_fmt_front(f, n_sb * EA_CHUNK_BLOCKS),
                            .n_sb = n_sb,
                            .n_units = n_sb * x->n,
                            .s = s},
                    *w = &walk;
    for (int g = 0; g < x->n; g++)
        for (int r = 0; r < GROUP; r++)
            _mm512_store_ps(s->acc[g][r], _mm512_setzero_ps());
    k_unpack(f, w, 0, 0);
    k_unpack(f, w, 0, 1);
    k_unpack_scales(f, w, 0);
    if (n_sb > 1)
        k_unpack_scales(f, w, 1);
    ea_k_unit before[2] = {{0}}, cur = {0}, next = k_unit(w, 0, 0), after = k_next(w, next);
    if (f.scales != K16)
        k_first_mins(w, next);
    for (int v = -1; v < w->n_units + 2; v++) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            k_products(f, w, half, v, cur, next, after);
            if (next.group == 0 && next.sb + 1 < n_sb)
                k_unpack(f, w, next.sb + 1, half);
            if (next.group == 0 && next.sb + 2 < n_sb && half == 0)
                k_unpack_scales(f, w, next.sb + 2);
            if (v >= 2)
                k_scale(f, w, before[0], v - 2, 8 * half);
        }
        before[0] = before[1], before[1] = cur, cur = next, next = after, after = k_next(w, after);
    }
    put_rows(args, tile, x, r0, s->acc);
}

/* ---- formats with f16 scales ---- */

enum { B_BLOCKS = EA_CHUNK_BLOCKS, B_SUMS = 2 };

/* Weights of a chunk as tiles, [block][32 / 4][16][4], and the sums of a unit: one chunk, one
 * group. */
typedef struct ea_b_scratch {
    _Alignas(64) uint8_t w[2][B_BLOCKS][8][64];
    struct {
        int32_t c[B_BLOCKS][GROUP][EA_TILE_N];
        uint8_t shift[2048 + 64];
    } sums[B_SUMS];
    _Alignas(64) ea_acc acc[MAX_GROUPS];
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

/* One chunk of one group. */
typedef struct ea_b_unit {
    const struct ea_q8_chunk *x;
    int g, b0, n; /* first block, blocks */
} ea_b_unit;

/* Blocks go through five tiles of sums in turn; each is stored three blocks later. */
#define B_PRODUCT(c, u, w, j)                              \
    TILE_ZERO(c);                                          \
    TILE_LOAD(6, (u).x->q + 32 * (j), (int)sizeof *(u).x); \
    TILE_LOAD(7, (w)[j], 64);                              \
    TILE_DOT_SS(c, 6, 7);

INLINE void b_product(const ea_b_unit u, uint8_t w[B_BLOCKS][8][64], const int j)
{
    switch (j % 5) {
    case 0: B_PRODUCT(0, u, w, j) break;
    case 1: B_PRODUCT(1, u, w, j) break;
    case 2: B_PRODUCT(2, u, w, j) break;
    case 3: B_PRODUCT(3, u, w, j) break;
    default: B_PRODUCT(4, u, w, j) break;
    }
}

INLINE void b_store(int32_t sums[B_BLOCKS][GROUP][EA_TILE_N], const int j)
{
    switch (j % 5) {
    case 0: TILE_STORE(0, sums[j], 64); break;
    case 1: TILE_STORE(1, sums[j], 64); break;
    case 2: TILE_STORE(2, sums[j], 64); break;
    case 3: TILE_STORE(3, sums[j], 64); break;
    default: TILE_STORE(4, sums[j], 64); break;
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

INLINE void b_tile(const ea_fmt f, const ea_matmul_args *args, const int tile, const ea_groups *x,
                   const int r0, ea_b_scratch *s)
{
    const int n_blocks = args->w->k / EA_Q8_K;
    const uint8_t *base = args->w->data + (size_t)tile * args->w->tile_bytes;
    ea_b_unit old = {0};
    int n_units = 0;
    __m512 acc[GROUP] = {0};

    for (int g = 0; g < x->n; g++)
        for (int r = 0; r < GROUP; r++)
            _mm512_store_ps(s->acc[g][r], _mm512_setzero_ps());
    for (int j = 0; j < EA_MIN(n_blocks, (int)B_BLOCKS); j++)
        b_unpack(f, base, j, s->w[0][j]);
    for (int b0 = 0, i = 0; b0 < n_blocks; b0 += B_BLOCKS, i++) {
        uint8_t(*w)[8][64] = s->w[i % 2];
        for (int g = 0; g < x->n; g++, n_units++) {
            const ea_b_unit u = {x->x + (size_t)g * x->stride + (size_t)i * GROUP, g, b0,
                                 EA_MIN(n_blocks - b0, (int)B_BLOCKS)};
            int32_t(*sums)[GROUP][EA_TILE_N] = s->sums[n_units % B_SUMS].c;
            int32_t(*old_sums)[GROUP][EA_TILE_N] = s->sums[(n_units + 1) % B_SUMS].c;
            if (n_units)
                acc_load(s->acc[old.g], acc);
#pragma GCC unroll 8
            for (int j = 0; j < B_BLOCKS; j++) {
                if (j < u.n)
                    b_product(u, w, j);
                if (j >= 3 && j < u.n + 3)
                    b_store(sums, j - 3);
                if (g == 0 && b0 + B_BLOCKS + j < n_blocks) {
                    b_unpack(f, base, b0 + B_BLOCKS + j, s->w[(i + 1) % 2][j]);
                    if (x->n == 1)
                        for (int l = 0; l < f.code_bytes / 64 + 1; l++)
                            _mm_prefetch((const char *)b_super(f, base, b0 + B_BLOCKS + j) +
                                             EA_PREFETCH_BYTES + 64 * l,
                                         _MM_HINT_T0);
                }
                if (n_units && j < old.n)
                    b_scale(f, base, old.b0, j, old_sums[j], old.x, acc);
            }
#pragma GCC unroll 3
            for (int j = B_BLOCKS - 3; j < B_BLOCKS; j++)
                if (j < u.n)
                    b_store(sums, j);
            if (n_units)
                acc_store(s->acc[old.g], acc);
            old = u;
        }
    }
    acc_load(s->acc[old.g], acc);
    for (int j = 0; j < old.n; j++)
        b_scale(f, base, old.b0, j, s->sums[(n_units + 1) % B_SUMS].c[j], old.x, acc);
    acc_store(s->acc[old.g], acc);
    put_rows(args, tile, x, r0, s->acc);
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
 * steps of 16. Measured on one core (Emerald Rapids), ns a 32-block and 16 rows, here / VNNI: Q4_K
 * 47 / 43 at 16 rows, 34 / 40 at 32, 25 / 40 at 256; Q4_0 34 / 44 at 16. */
enum { K_LEAST_ROWS = 28, B_LEAST_ROWS = 13 };

INLINE void run(const ea_fmt f, const ea_matmul_args *args, const ea_matmul_impl *few_rows)
{
    if (args->n_rows < (ea_fmt_is_k(f) ? K_LEAST_ROWS : B_LEAST_ROWS)) {
        few_rows->run(args);
        return;
    }
    ea_scratch s;
    TILE_CONFIG(ea_fmt_is_k(f) ? &k_config : &b_config);
    const int end = args->row0 + args->n_rows;
    for (int row = args->row0; row < end;) {
        const int first = row / GROUP * GROUP, last = EA_MIN(end, first + MAX_GROUPS * GROUP);
        const ea_groups x = {.x = ea_acts_q8(args->x, ea_fmt_form(f), first),
                             .stride = (size_t)ea_acts_chunks(args->x) * GROUP,
                             .n = (last - first + GROUP - 1) / GROUP,
                             .lo = row - first,
                             .hi = last - first};
        for (int tile = args->tile0; tile < args->tile1; tile++) {
            if (ea_fmt_is_k(f))
                k_tile(f, args, tile, &x, row - args->row0, &s.k);
            else
                b_tile(f, args, tile, &x, row - args->row0, &s.b);
        }
        row = last;
    }
    TILE_RELEASE();
}

#define EA_FORMAT(name, ...)                                       \
    static void run_##name(const ea_matmul_args *args)             \
    {                                                              \
        run(ea_fmt_##name, args, &ea_matmul_##name##__avx512vnni); \
    }                                                              \
    const ea_matmul_impl EA_AMX_IMPL(name) = {&ea_layout_##name, run_##name};
#include "kernel/formats.def"
#undef EA_FORMAT
