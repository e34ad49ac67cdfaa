/* matmul_vec.h: matrix products of quantised weights, the body that the vector folders share. A
 * folder's matmul.c defines the vector operations below and includes this file.
 *
 * A vector lane is one output column: LANES columns of a tile are worked on at a time, a dot
 * product needs no horizontal sum. Four unsigned codes of a column are multiplied by four broadcast
 * activations; signed formats start the integer sum at -zero * sum(activations), which keeps it
 * exact. With VNNI that is one instruction; else vpmaddubsw adds pairs into int16, and as many
 * groups of four are added in int16 as the codes' width allows before they are widened. One
 * always-inline body is instantiated for every format and several row counts; the format is a
 * compile-time constant in each. Results: kernel.h, "Numerics".
 *
 * What the folder defines before including it:
 *   LEVEL                    suffix of the names that are exported
 *   LANES                    columns of a vector: 8 or 16
 *   VNNI                     1: vi_dot4 exists
 *   MAX_ROWS                 largest row block: 12, 8 or 4
 *   CHUNK_BYTES              weights that stay in the second-level cache while rows pass
 *   vi, vf                   vectors of LANES int32 / f32
 *   vi_load(p) vi_zero() vi_set1_8(x) vi_set1_32(x) vi_and vi_or vi_srl16(v, n) vi_sll16(v, n)
 *   vi_sll32(v, n)
 *   vi_and_or(a, mask8, b)   (a & mask8 in every byte) | b
 *   vi_lookup(p, v)          bytes of the table of 16 at p
 *   vi_xor8(v, x)            every byte xor x
 *   vi_add vi_madd16         int32 sums; int16 pairs multiplied and added
 *   vi_dot4(acc, u, s)       VNNI: acc + sum of four u8 * s8
 *   vi_madd8(u, s) vi_add16  without VNNI: pairs u8 * s8 in int16, saturating
 *   vi_abs8(v) vi_sign8(x, w)  without VNNI: |v|; x with w's sign, 0 where w is 0
 *   vi_from_u8(p) vi_from_i8(p)  LANES bytes to int32
 *   vi_mul(a, b)             int32 products
 *   vf_zero() vf_set1(x) vf_add vf_mul vf_fma(a, b, c) vf_fnma(a, b, c) vf_from_i32(v) vf_load(p)
 *   vf_store(p, v) vf_load_f16(p)
 *   put(args, tile, col, r, acc)  bias, old value, store of LANES columns */
#include <immintrin.h>
#include <string.h>

#include "kernel/formats.h"
#include "quant/blocks.h"

#define INLINE static inline __attribute__((always_inline))

INLINE int32_t load32(const void *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* ---- codes ---- */

/* Bits of `plane` at position `from` moved to position `to`, the others garbage. */
INLINE vi move_bits(vi plane, const int from, const int to)
{
    if (from < to)
        return vi_sll16(plane, to - from);
    if (from > to)
        return vi_srl16(plane, from - to);
    return plane;
}

/* Codes of group g (0..7) of the 32-block whose columns begin at p. Unsigned; without VNNI signed
 * for the formats of eight bits (signed_codes). */
INLINE vi group_codes(const ea_fmt f, const uint8_t *p, const int g)
{
    if (f.codes == CODES8)
        return VNNI ? vi_load(p + 64 * g) : vi_xor8(vi_load(p + 64 * g), 0x80);
    if (f.codes == CODES2 || f.codes == CODES3) {
        const vi u = vi_and(move_bits(vi_load(p + 64 * (g / 4)), 2 * (g % 4), 0), vi_set1_8(3));
        return f.codes == CODES3 ? vi_and_or(move_bits(vi_load(p + 128), g, 2), 4, u) : u;
    }
    const vi u = vi_and(move_bits(vi_load(p + 64 * (g / 2)), 4 * (g % 2), 0), vi_set1_8(15));
    if (f.codes == CODES5)
        return vi_and_or(move_bits(vi_load(p + 256), g, 4), 0x10, u);
    if (f.codes == CODES6)
        return vi_and_or(move_bits(vi_load(p + 256 + 64 * (g / 4)), 2 * (g % 4), 4), 0x30, u);
    if (f.codes == CODES4_NL)
        return VNNI ? vi_xor8(vi_lookup(ea_iq4nl_values, u), 0x80) : vi_lookup(ea_iq4nl_values, u);
    return u;
}

/* Does group_codes give q itself? Then there is no zero to correct for. */
INLINE bool signed_codes(const ea_fmt f)
{
    return !VNNI && (f.codes == CODES8 || f.codes == CODES4_NL);
}

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

/* ---- rows ---- */

/* First chunks of the rows of a block: one pointer for each four, which lie in one group of 16. */
typedef struct ea_rows {
    const struct ea_q8_chunk *x[(MAX_ROWS + 3) / 4];
} ea_rows;

#define ROW(rows, r) ((rows)->x[(r) / 4] + (r) % 4)

/* Integer dot products of the groups g0 .. g1 - 1 of block j. `zeros`: the int16 halves of the pair
 * (sum of the first half, of the second) that count are -zero. */
INLINE void dot_rows(const ea_fmt f, const uint8_t *codes, const int g0, const int g1,
                     const ea_rows *rows, const int j, const int n_rows, vi dot[MAX_ROWS])
{
    const uint32_t z = (uint16_t)-f.zero;
    const uint32_t zeros = (g0 == 0 ? z : 0) | (g1 == 8 ? z << 16 : 0);
#pragma GCC unroll 12
    for (int r = 0; r < n_rows; r++)
        dot[r] = f.zero && !signed_codes(f)
                     ? vi_madd16(vi_set1_32((int32_t)zeros),
                                 vi_set1_32(load32(ROW(rows, r)->sum16 + 2 * j)))
                     : vi_zero();
#if VNNI
#pragma GCC unroll 8
    for (int g = g0; g < g1; g++) {
        const vi w = group_codes(f, codes, g);
#pragma GCC unroll 12
        for (int r = 0; r < n_rows; r++)
            dot[r] = vi_dot4(dot[r], w, vi_set1_32(load32(ROW(rows, r)->q + 32 * j + 4 * g)));
    }
#else
    const int span = EA_MIN(span_groups(f), g1 - g0);
    vi pairs[MAX_ROWS];
    for (int r = 0; r < n_rows; r++)
        pairs[r] = vi_zero();
#pragma GCC unroll 8
    for (int g = g0; g < g1; g++) {
        const vi w = group_codes(f, codes, g);
#pragma GCC unroll 12
        for (int r = 0; r < n_rows; r++) {
            const vi x = vi_set1_32(load32(ROW(rows, r)->q + 32 * j + 4 * g));
            const vi p = signed_codes(f) ? vi_madd8(vi_abs8(w), vi_sign8(x, w)) : vi_madd8(w, x);
            pairs[r] = (g - g0) % span == 0 ? p : vi_add16(pairs[r], p);
            if ((g - g0) % span == span - 1)
                dot[r] = vi_add(dot[r], vi_madd16(pairs[r], vi_set1_32(0x00010001)));
        }
    }
#endif
}

/* ---- one 32-block of a format with f16 scales ---- */

/* Block `nth` of the super-block at sb (both moved to the columns), times the rows' block j. */
INLINE void block_rows(const ea_fmt f, const uint8_t *sb, const uint8_t *codes, const int nth,
                       const ea_rows *rows, const int j, const int n_rows, vf acc[MAX_ROWS])
{
    vi dot[MAX_ROWS];
    dot_rows(f, codes, 0, 8, rows, j, n_rows, dot);
    const vf dw = vf_load_f16(sb + (f.scales == MIN ? 0 : 32 * nth));
    const vf m = f.scales == MIN ? vf_load_f16(sb + 32) : vf_zero();
#pragma GCC unroll 12
    for (int r = 0; r < n_rows; r++) {
        const vf scale = vf_mul(dw, vf_set1(ROW(rows, r)->d[j]));
        acc[r] = vf_fma(vf_from_i32(dot[r]), scale, acc[r]);
        if (f.scales == MIN)
            acc[r] = vf_fma(m, vf_set1(ROW(rows, r)->s[j]), acc[r]);
    }
}

/* ---- one super-block of a K format ---- */

/* The integer scales of a header row. */
INLINE vi small_scale(const ea_fmt f, const uint8_t *p)
{
    if (f.scales == K16)
        return vi_from_i8(p);
    return f.scales == K16_MIN ? vi_and(vi_from_u8(p), vi_set1_32(15)) : vi_from_u8(p);
}

/* Minima of two neighbouring blocks (halves, for K16_MIN) as int16 pairs. */
INLINE vi small_mins(const ea_fmt f, const uint8_t *p, const int i)
{
    vi a = vi_from_u8(p + 16 * i), b = vi_from_u8(p + 16 * (i + 1));
    if (f.scales == K16_MIN)
        a = vi_srl16(a, 4), b = vi_srl16(b, 4);
    return vi_or(a, vi_sll32(b, 16));
}

/* 32-blocks of a super-block whose integer dots times integer scales sum up to less than 2^24, so
 * that f32 adds them exactly (|dot| <= 127 * 32 * u); 0: too few, integers multiply. */
INLINE int exact_blocks(const ea_fmt f)
{
    switch (f.codes) {
    case CODES4: return 4; /* Q4_K: 4 * 60,960 * 63 */
    case CODES2:
    case CODES3: return 8; /* Q2_K: 8 * 12,192 * 15; Q3_K: 8 * 16,256 * 32 */
    default: return 0;
    }
}

/* isum += the groups' integer products times their integer scale, as f32 or as int32. */
INLINE void add_scaled(const ea_fmt f, const uint8_t *codes, const int g0, const int g1,
                       const ea_rows *rows, const int j, const int n_rows, const uint8_t *scale,
                       vf s[MAX_ROWS], vi isum[MAX_ROWS])
{
    vi dot[MAX_ROWS];
    dot_rows(f, codes, g0, g1, rows, j, n_rows, dot);
    const vi sc = small_scale(f, scale);
    const vf scf = vf_from_i32(sc);
#pragma GCC unroll 12
    for (int r = 0; r < n_rows; r++) {
        if (exact_blocks(f))
            s[r] = vf_fma(vf_from_i32(dot[r]), scf, s[r]);
        else
            isum[r] = vi_add(isum[r], vi_mul(dot[r], sc));
    }
}

/* Blocks j0 .. j1 - 1 of a super-block. */
INLINE void add_blocks(const ea_fmt f, const uint8_t *small, const uint8_t *codes,
                       const ea_rows *rows, const int j0, const int j1, const int n_rows,
                       vf s[MAX_ROWS], vi isum[MAX_ROWS])
{
    for (int j = j0; j < j1; j++) {
        const uint8_t *c = codes + j * f.code_bytes;
        if (ea_fmt_is_k16(f)) {
            add_scaled(f, c, 0, 4, rows, j, n_rows, small + 32 * j, s, isum);
            add_scaled(f, c, 4, 8, rows, j, n_rows, small + 32 * j + 16, s, isum);
        } else {
            add_scaled(f, c, 0, 8, rows, j, n_rows, small + 16 * j, s, isum);
        }
    }
}

/* acc -= minima times the sums of activations. */
INLINE void super_mins(const ea_fmt f, const uint8_t *d, const uint8_t *small, const ea_rows *rows,
                       const int n_rows, float acc[MAX_ROWS][LANES])
{
    vi imin[MAX_ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < n_rows; r++)
        imin[r] = vi_zero();
    for (int i = 0; i < (f.scales == K16_MIN ? 8 : 4); i++) {
        const vi m = small_mins(f, f.scales == K16_MIN ? small : small + 128, 2 * i);
#pragma GCC unroll 12
        for (int r = 0; r < n_rows; r++) {
            const struct ea_q8_chunk *x = ROW(rows, r);
            const int16_t *sums = (f.scales == K16_MIN ? x->sum16 : x->sum32) + 2 * i;
            imin[r] = vi_add(imin[r], vi_madd16(m, vi_set1_32(load32(sums))));
        }
    }
    const vf dmin = vf_load_f16(d + 32);
#pragma GCC unroll 12
    for (int r = 0; r < n_rows; r++)
        vf_store(acc[r], vf_fnma(vf_from_i32(imin[r]), vf_mul(dmin, vf_set1(ROW(rows, r)->d[0])),
                                 vf_load(acc[r])));
}

/* acc += the rows' chunk times the super-block whose header and codes begin at `small` and `codes`
 * (moved to the columns), d and dmin at d. The sums of a super-block are a second set of
 * accumulators: acc waits in memory. */
INLINE void super_rows(const ea_fmt f, const uint8_t *d, const uint8_t *small, const uint8_t *codes,
                       const ea_rows *rows, const int n_rows, float acc[MAX_ROWS][LANES])
{
    const int exact = exact_blocks(f);
    vf s[MAX_ROWS];
    vi isum[MAX_ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < n_rows; r++) {
        s[r] = vf_zero();
        isum[r] = vi_zero();
    }
    if (exact == 4) { /* two sums, each exact: adding them rounds as converting the whole would */
        _Alignas(64) float first[MAX_ROWS][LANES];
        add_blocks(f, small, codes, rows, 0, 4, n_rows, s, isum);
#pragma GCC unroll 12
        for (int r = 0; r < n_rows; r++) {
            vf_store(first[r], s[r]);
            s[r] = vf_zero();
        }
        add_blocks(f, small, codes, rows, 4, 8, n_rows, s, isum);
#pragma GCC unroll 12
        for (int r = 0; r < n_rows; r++)
            s[r] = vf_add(s[r], vf_load(first[r]));
    } else {
        add_blocks(f, small, codes, rows, 0, 8, n_rows, s, isum);
#pragma GCC unroll 12
        for (int r = 0; r < n_rows && !exact; r++)
            s[r] = vf_from_i32(isum[r]);
    }
    const vf dw = vf_load_f16(d);
#pragma GCC unroll 12
    for (int r = 0; r < n_rows; r++)
        vf_store(acc[r], vf_fma(s[r], vf_mul(dw, vf_set1(ROW(rows, r)->d[0])), vf_load(acc[r])));
    if (f.scales != K16)
        super_mins(f, d, small, rows, n_rows, acc);
}

/* ---- LANES columns of one tile times R rows ---- */

/* Ask for n lines from what lies EA_PREFETCH_BYTES behind p. */
INLINE void prefetch(const uint8_t *p, const int n)
{
    const uintptr_t at = (uintptr_t)p + EA_PREFETCH_BYTES;
#pragma GCC unroll 16
    for (int l = 0; l < n; l++)
        _mm_prefetch((const char *)(at + (uintptr_t)(64 * l)), _MM_HINT_T0);
}

INLINE void next_chunk(ea_rows *rows, const int n_rows)
{
#pragma GCC unroll 3
    for (int i = 0; i < (n_rows + 3) / 4; i++)
        rows->x[i] += EA_ACTS_GROUP;
}

INLINE void k_cols(const ea_fmt f, const ea_matmul_args *args, int tile, const int col, int r,
                   const int n_rows, ea_rows *rows)
{
    const int n_sb = args->w->k / EA_Q8_CHUNK;
    const uint8_t *base = args->w->data + (size_t)tile * args->w->tile_bytes;
    const uint8_t *sb = base + ea_fmt_front(f, n_sb * EA_CHUNK_BLOCKS);
    _Alignas(64) float acc[MAX_ROWS][LANES];
#pragma GCC unroll 12
    for (int i = 0; i < n_rows; i++)
        vf_store(acc[i], vf_zero());
    for (int i = 0; i < n_sb; i++, sb += ea_fmt_sb_bytes(f)) {
        const uint8_t *d = f.front ? base + i * f.front : sb;
        if (n_rows <= 4 && col == 0) /* other columns come from the cache */
#pragma GCC unroll 1
            for (int l = 0; l < (int)ea_fmt_sb_bytes(f) / 64; l += 8)
                prefetch(sb + 64 * l, 8);
        super_rows(f, d + 2 * col, sb + f.head_bytes - 256 + col, sb + f.head_bytes + 4 * col, rows,
                   n_rows, acc);
        next_chunk(rows, n_rows);
    }
#pragma GCC unroll 12
    for (int i = 0; i < n_rows; i++)
        put(args, tile, col, r + i, vf_load(acc[i]));
}

INLINE void block_cols(const ea_fmt f, const ea_matmul_args *args, int tile, const int col, int r,
                       const int n_rows, ea_rows *rows)
{
    const int n_blocks = args->w->k / EA_Q8_K;
    const uint8_t *sb = args->w->data + (size_t)tile * args->w->tile_bytes;
    vf acc[MAX_ROWS];
#pragma GCC unroll 12
    for (int i = 0; i < n_rows; i++)
        acc[i] = vf_zero();
    for (int b = 0; b < n_blocks;) {
        const int end = EA_MIN(n_blocks, b + EA_CHUNK_BLOCKS);
        for (int j = 0; b < end; b += f.sb_blocks, sb += ea_fmt_sb_bytes(f)) {
            if (n_rows <= 4 && col == 0)
                prefetch(sb, (int)ea_fmt_sb_bytes(f) / 64);
#pragma GCC unroll 2
            for (int nth = 0; nth < f.sb_blocks; nth++, j++)
                if (nth == 0 || b + nth < end)
                    block_rows(f, sb + 2 * col, sb + f.head_bytes + nth * f.code_bytes + 4 * col,
                               nth, rows, j, n_rows, acc);
        }
        next_chunk(rows, n_rows);
    }
#pragma GCC unroll 12
    for (int i = 0; i < n_rows; i++)
        put(args, tile, col, r + i, acc[i]);
}

/* Rows r .. r + n_rows - 1 of args; each four of them lie in one group of 16. */
INLINE void tile_rows(const ea_fmt f, const ea_matmul_args *args, int tile, int r, const int n_rows)
{
#pragma GCC unroll 2
    for (int col = 0; col < EA_TILE_N; col += LANES) {
        ea_rows rows;
#pragma GCC unroll 3
        for (int i = 0; i < (n_rows + 3) / 4; i++)
            rows.x[i] = ea_acts_q8(args->x, ea_fmt_form(f), args->row0 + r + 4 * i);
        if (ea_fmt_is_k(f))
            k_cols(f, args, tile, col, r, n_rows, &rows);
        else
            block_cols(f, args, tile, col, r, n_rows, &rows);
    }
}

/* ---- rows in blocks ---- */

typedef void (*ea_tile_fn)(const ea_matmul_args *args, int tile, int r);

/* Kernels of one format by row count. */
typedef struct ea_tile_fns {
    ea_tile_fn rows1, rows2, rows3, rows4;
#if MAX_ROWS >= 8
    ea_tile_fn rows8;
#endif
#if MAX_ROWS >= 12
    ea_tile_fn rows12;
#endif
} ea_tile_fns;

/* The kernel for the next *n of `left` rows, the first of which is `row` of its buffer: blocks of
 * four stay inside a group of 16. */
static ea_tile_fn pick(const ea_tile_fns *fns, int row, int left, int *n)
{
    const int lane = row % 4;
    int take = lane ? EA_MIN(4 - lane, left) : EA_MIN(left, 4);
#if MAX_ROWS >= 8
    if (lane == 0 && left >= 8)
        take = MAX_ROWS >= 12 && left >= 12 && left != 16 ? 12 : 8;
#endif
    *n = take;
    switch (take) {
    case 1: return fns->rows1;
    case 2: return fns->rows2;
    case 3: return fns->rows3;
#if MAX_ROWS >= 8
    case 8: return fns->rows8;
#endif
#if MAX_ROWS >= 12
    case 12: return fns->rows12;
#endif
    default: return fns->rows4;
    }
}

/* A claim of tiles is worked off in chunks that stay in the second-level cache while rows pass. */
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
        tile_rows(ea_fmt_##name, args, tile, r, n);                           \
    }
#if MAX_ROWS >= 12
#define MANY_ROWS(name) ROWS_FN(name, 8) ROWS_FN(name, 12)
#define MANY_FNS(name) , name##_8rows, name##_12rows
#elif MAX_ROWS >= 8
#define MANY_ROWS(name) ROWS_FN(name, 8)
#define MANY_FNS(name) , name##_8rows
#else
#define MANY_ROWS(name)
#define MANY_FNS(name)
#endif
#define IMPL2(name, level) ea_matmul_##name##__##level
#define IMPL(name, level) IMPL2(name, level)
#define EA_FORMAT(name, ...)                                                      \
    ROWS_FN(name, 1)                                                              \
    ROWS_FN(name, 2)                                                              \
    ROWS_FN(name, 3)                                                              \
    ROWS_FN(name, 4)                                                              \
    MANY_ROWS(name)                                                               \
    static void run_##name(const ea_matmul_args *args)                            \
    {                                                                             \
        static const ea_tile_fns fns = {name##_1rows, name##_2rows, name##_3rows, \
                                        name##_4rows MANY_FNS(name)};             \
        run(args, &fns);                                                          \
    }                                                                             \
    const ea_matmul_impl IMPL(name, LEVEL) = {&ea_layout_##name, run_##name};
#include "kernel/formats.def"
#undef EA_FORMAT
