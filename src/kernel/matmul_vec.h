/* matmul_vec.h: matrix products of quantised weights, the body that the vector folders share. A
 * folder's matmul.c defines the vector operations below and includes this file.
 *
 * A vector has a lane for each output column of a tile (two registers make one where registers have
 * 256 bits), so that a dot product needs no horizontal sum. Four unsigned codes of a column are
 * multiplied by four broadcast activations; signed formats start the integer sum at -zero *
 * sum(activations), which keeps it exact. With VNNI that is one instruction; else vpmaddubsw adds
 * pairs into int16, and as many groups of four are added in int16 as the codes' width allows before
 * they are widened. Results: kernel.h, "Numerics".
 *
 * Rows go in blocks, in one always-inline body each: the format and the block's row count are
 * compile-time constants.
 *   few_*   up to MAX_ROWS rows: codes are unpacked from the tile as they are multiplied
 *   many_*  more rows: the codes of 256 inputs are unpacked once, to bytes that stay in the first-
 *           level cache while blocks of rows pass. Only where unpacking is dear (many_pays).
 * Where code times scale fits into a byte (Q2_K, Q3_K with VNNI), blocks of several rows multiply
 * that ("folded"): a super-block is then one long dot product.
 *
 * What the folder defines before including it:
 *   LEVEL                    suffix of the names that are exported
 *   VNNI                     1: vi_dot4 and vi_dot2 are one instruction
 *   MAX_ROWS                 largest row block: 12, 8 or 4
 *   CHUNK_BYTES              weights that stay in the second-level cache while rows pass
 *   vi, vf                   vectors of 16 int32 / f32
 *   vi_load vi_store vi_zero vi_set1_8/16/32(x) vi_table(p) (16 bytes, repeated)
 *   vi_and vi_or vi_xor vi_srl16 vi_sll16 vi_sll32 vi_sra32
 *   vi_and_or(a, mask8, b)   (a & mask8 in every byte) | b
 *   vi_lookup(t, v)          bytes of the table t
 *   vi_add vi_mul vi_abs32   int32; vi_mul16 vi_min16: int16
 *   vi_madd16                int16 pairs multiplied and added
 *   vi_dot2(acc, a, b)       acc + vi_madd16(a, b)
 *   vi_dot4(acc, u, s)       VNNI: acc + sum of four u8 * s8
 *   vi_dot2_at vi_dot4_at    the same with s (b) the 32 bits at an address, for all lanes
 *   vi_madd8(u, s) vi_add16  without VNNI: pairs u8 * s8 in int16, saturating
 *   vi_abs8(v) vi_sign8(x, w)  without VNNI: |v|; x with w's sign, 0 where w is 0
 *   vi_from_u8(p) vi_from_i8(p)  16 bytes to int32
 *   vi_pairs_u8(p) vi_pairs_i8(p)  bytes at p and p + 16 to pairs of int16
 *   vf_zero vf_set1(x) vf_add vf_mul vf_fma(a, b, c) vf_fnma(a, b, c) vf_from_i32 vf_load vf_store
 *   vf_load_f16
 *   put(args, tile, r, acc)  bias, old value, store of a tile's columns */
#include <immintrin.h>
#include <string.h>

#include "kernel/formats.h"
#include "quant/blocks.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL_ROWS _Pragma("GCC unroll 12")

INLINE int32_t load32(const void *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* ---- codes ---- */

/* How the codes of a 32-block are stored: as in the tile; as bytes, vector g = group g; as bytes
 * times their scales. */
typedef enum ea_store { PACKED, BYTES, FOLDED } ea_store;

/* Bytes of a 32-block's codes once they are unpacked. */
enum { UNPACKED = 8 * 64 };

/* Bits of `plane` at position `from` moved to position `to`, the others garbage. */
INLINE vi move_bits(vi plane, const int from, const int to)
{
    if (from < to)
        return vi_sll16(plane, to - from);
    if (from > to)
        return vi_srl16(plane, from - to);
    return plane;
}

/* Codes of group g (0..7) of the 32-block at p. Unsigned; without VNNI signed for the formats of
 * eight bits (signed_codes). */
INLINE vi group_codes(const ea_fmt f, const ea_store store, const uint8_t *p, const int g)
{
    if (store != PACKED)
        return vi_load(p + 64 * g);
    if (f.codes == CODES8)
        return VNNI ? vi_load(p + 64 * g) : vi_xor(vi_load(p + 64 * g), vi_set1_8(0x80));
    if (f.codes == CODES2 || f.codes == CODES3) {
        const vi u = vi_and(move_bits(vi_load(p + 64 * (g / 4)), 2 * (g % 4), 0), vi_set1_8(3));
        return f.codes == CODES3 ? vi_and_or(move_bits(vi_load(p + 128), g, 2), 4, u) : u;
    }
    const vi u = vi_and(move_bits(vi_load(p + 64 * (g / 2)), 4 * (g % 2), 0), vi_set1_8(15));
    if (f.codes == CODES5)
        return vi_and_or(move_bits(vi_load(p + 256), g, 4), 0x10, u);
    if (f.codes == CODES6)
        return vi_and_or(move_bits(vi_load(p + 256 + 64 * (g / 4)), 2 * (g % 4), 4), 0x30, u);
    if (f.codes == CODES4_NL) {
        const vi values = vi_table(ea_iq4nl_values);
        return vi_lookup(VNNI ? vi_xor(values, vi_set1_8(0x80)) : values, u);
    }
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

/* Chunks of the rows of a block: one pointer for each four, which lie in one group of 16. */
typedef struct ea_rows {
    const struct ea_q8_chunk *x[(MAX_ROWS + 3) / 4];
} ea_rows;

#define ROW(rows, r) ((rows)->x[(r) / 4] + (r) % 4)

INLINE ea_rows first_chunks(const ea_fmt f, const ea_matmul_args *args, int r, const int n_rows)
{
    ea_rows rows = {{NULL}};
#pragma GCC unroll 3
    for (int i = 0; i < (n_rows + 3) / 4; i++)
        rows.x[i] = ea_acts_q8(args->x, ea_fmt_form(f), args->row0 + r + 4 * i);
    return rows;
}

INLINE void next_chunk(ea_rows *rows, const int n_rows)
{
#pragma GCC unroll 3
    for (int i = 0; i < (n_rows + 3) / 4; i++)
        rows->x[i] += EA_ACTS_GROUP;
}

/* Weights that a pass over a tile asks for: of each super-block's lines every step-th from the
 * first on, `ahead` bytes after those that it works on. step = 0: none. */
typedef struct ea_fetch {
    size_t ahead;
    int first, step;
} ea_fetch;

/* Ask for what is due while n lines from p on are worked on; it may be past the end. To the second-
 * level cache, which can wait for more lines than the first: 15.8 GB/s of Q4_K instead of 14.8 on
 * one core of a Xeon. */
INLINE void prefetch(const ea_fetch fetch, const uint8_t *p, const int n)
{
    if (fetch.step == 0)
        return;
    const uintptr_t line = (uintptr_t)p + fetch.ahead;
#pragma GCC unroll 1
    for (int l = fetch.first; l < n; l += fetch.step)
        _mm_prefetch((const char *)(line + (uintptr_t)(64 * l)), _MM_HINT_T1);
}

/* ---- integer dot products ---- */

/* dot += products of the groups g0 .. g1 - 1 of the rows' block j. */
INLINE void add_groups(const ea_fmt f, const ea_store store, const uint8_t *codes, const int g0,
                       const int g1, const ea_rows *rows, const int j, const int n_rows,
                       vi dot[MAX_ROWS])
{
#if VNNI
#pragma GCC unroll 8
    for (int g = g0; g < g1; g++) {
        const vi w = group_codes(f, store, codes, g);
        UNROLL_ROWS
        for (int r = 0; r < n_rows; r++)
            dot[r] = vi_dot4_at(dot[r], w, ROW(rows, r)->q + 32 * j + 4 * g);
    }
#else
    const int span = EA_MIN(span_groups(f), g1 - g0);
    vi pairs[MAX_ROWS];
    for (int r = 0; r < n_rows; r++)
        pairs[r] = vi_zero();
#pragma GCC unroll 8
    for (int g = g0; g < g1; g++) {
        const vi w = group_codes(f, store, codes, g);
        UNROLL_ROWS
        for (int r = 0; r < n_rows; r++) {
            const vi x = vi_set1_32(load32(ROW(rows, r)->q + 32 * j + 4 * g));
            const vi p = signed_codes(f) ? vi_madd8(vi_abs8(w), vi_sign8(x, w)) : vi_madd8(w, x);
            pairs[r] = (g - g0) % span == 0 ? p : vi_add16(pairs[r], p);
            if ((g - g0) % span == span - 1)
                dot[r] = vi_dot2(dot[r], pairs[r], vi_set1_16(1));
        }
    }
#endif
}

/* The same from 0, codes less their zero. `zeros`: the int16 halves of the pair (sum of the first
 * half, of the second) that count are -zero. */
INLINE void dot_rows(const ea_fmt f, const ea_store store, const uint8_t *codes, const int g0,
                     const int g1, const bool subtract, const ea_rows *rows, const int j,
                     const int n_rows, vi dot[MAX_ROWS])
{
    const uint32_t z = (uint16_t)-f.zero;
    const uint32_t zeros = (g0 == 0 ? z : 0) | (g1 == 8 ? z << 16 : 0);
    UNROLL_ROWS
    for (int r = 0; r < n_rows; r++)
        dot[r] = subtract && f.zero && !signed_codes(f)
                     ? vi_madd16(vi_set1_32((int32_t)zeros),
                                 vi_set1_32(load32(ROW(rows, r)->sum16 + 2 * j)))
                     : vi_zero();
    add_groups(f, store, codes, g0, g1, rows, j, n_rows, dot);
}

/* ---- 32-blocks of formats with f16 scales ---- */

/* Block `nth` of the super-block at sb times the rows' block j. */
INLINE void block_rows(const ea_fmt f, const ea_store store, const uint8_t *sb,
                       const uint8_t *codes, const int nth, const ea_rows *rows, const int j,
                       const int n_rows, vf acc[MAX_ROWS])
{
    vi dot[MAX_ROWS];
    dot_rows(f, store, codes, 0, 8, true, rows, j, n_rows, dot);
    const vf dw = vf_load_f16(sb + (f.scales == MIN ? 0 : 32 * nth));
    const vf m = f.scales == MIN ? vf_load_f16(sb + 32) : vf_zero();
    UNROLL_ROWS
    for (int r = 0; r < n_rows; r++) {
        const vf scale = vf_mul(dw, vf_set1(ROW(rows, r)->d[j]));
        acc[r] = vf_fma(vf_from_i32(dot[r]), scale, acc[r]);
        if (f.scales == MIN)
            acc[r] = vf_fma(m, vf_set1(ROW(rows, r)->s[j]), acc[r]);
    }
}

/* ---- one super-block of a K format ---- */

/* Is code times scale one byte, so that blocks of several rows multiply by that? Q2_K: 3 * 15;
 * Q3_K: 7 * 32, see fold_scale. */
INLINE bool folds(const ea_fmt f)
{
    return VNNI && (f.codes == CODES2 || f.codes == CODES3);
}

/* The integer scales of a header row. */
INLINE vi small_scale(const ea_fmt f, const uint8_t *p)
{
    if (f.scales == K16)
        return vi_from_i8(p);
    return f.scales == K16_MIN ? vi_and(vi_from_u8(p), vi_set1_32(15)) : vi_from_u8(p);
}

/* 32-blocks of a super-block whose integer dots times integer scales sum up to less than 2^24, so
 * that f32 adds them exactly (|dot| <= 127 * 32 * u); 0: too few, integers multiply. */
INLINE int exact_blocks(const ea_fmt f)
{
    switch (f.codes) {
    case CODES4: return 4; /* Q4_K: 4 * 60,960 * 63 */
    case CODES2:
    case CODES3: return 8; /* Q2_K: 8 * 12,192 * 15; Q3_K: 8 * (28,448 + 16,256) * 32 */
    default: return 0;
    }
}

/* Weights that are asked for ahead while a super-block is worked on, where they come from memory:
 * evenly, since a burst fills the line buffers and everything waits. */
INLINE void prefetch_part(const ea_fmt f, const ea_fetch fetch, const uint8_t *small, const int j)
{
    const int lines = ((int)ea_fmt_sb_bytes(f) / 64 + 7) / 8;
    prefetch(fetch, small + 256 - f.head_bytes + 64 * lines * j, lines);
}

/* isum += the groups' integer products times their integer scale, as f32 or as int32. */
INLINE void add_scaled(const ea_fmt f, const ea_store store, const uint8_t *codes, const int g0,
                       const int g1, const bool subtract, const ea_rows *rows, const int j,
                       const int n_rows, const uint8_t *scale, vf s[MAX_ROWS], vi isum[MAX_ROWS])
{
    vi dot[MAX_ROWS];
    dot_rows(f, store, codes, g0, g1, subtract, rows, j, n_rows, dot);
    const vi sc = small_scale(f, scale);
    const vf scf = vf_from_i32(sc);
    UNROLL_ROWS
    for (int r = 0; r < n_rows; r++) {
        if (exact_blocks(f))
            s[r] = vf_fma(vf_from_i32(dot[r]), scf, s[r]);
        else
            isum[r] = vi_add(isum[r], vi_mul(dot[r], sc));
    }
}

/* Blocks j0 .. j1 - 1 of a super-block. */
INLINE void add_blocks(const ea_fmt f, const ea_store store, const uint8_t *small,
                       const uint8_t *codes, const ea_fetch fetch, const bool subtract,
                       const ea_rows *rows, const int j0, const int j1, const int n_rows,
                       vf s[MAX_ROWS], vi isum[MAX_ROWS])
{
    const int step = store == PACKED ? f.code_bytes : UNPACKED;
#pragma GCC unroll 2
    for (int j = j0; j < j1; j++) {
        const uint8_t *c = codes + j * step;
        prefetch_part(f, fetch, small, j);
        if (ea_fmt_is_k16(f)) {
            add_scaled(f, store, c, 0, 4, subtract, rows, j, n_rows, small + 32 * j, s, isum);
            add_scaled(f, store, c, 4, 8, subtract, rows, j, n_rows, small + 32 * j + 16, s, isum);
        } else {
            add_scaled(f, store, c, 0, 8, subtract, rows, j, n_rows, small + 16 * j, s, isum);
        }
    }
}

/* sum += int16 pairs that `small` says times the sums of activations: minima; or, where subtract is
 * set, -zero * scales. */
INLINE void add_sums(const ea_fmt f, const bool fold, const uint8_t *small, const ea_rows *rows,
                     const int n_rows, vi sum[MAX_ROWS])
{
    for (int i = 0; i < (ea_fmt_is_k16(f) ? 8 : 4); i++) {
        vi m;
        if (f.scales == K32_MIN) {
            m = vi_pairs_u8(small + 128 + 32 * i);
        } else if (f.scales == K16_MIN) {
            m = vi_srl16(vi_pairs_u8(small + 32 * i), 4);
        } else {
            const vi sc = vi_pairs_i8(small + 32 * i);
            m = vi_mul16(sc, vi_set1_16(-f.zero));
            if (fold) /* -4 sc, of negative scales 3 sc */
                m = vi_min16(m, vi_mul16(sc, vi_set1_16(3)));
        }
        UNROLL_ROWS
        for (int r = 0; r < n_rows; r++) {
            const struct ea_q8_chunk *x = ROW(rows, r);
            const int16_t *sums = (ea_fmt_is_k16(f) ? x->sum16 : x->sum32) + 2 * i;
            sum[r] = vi_dot2_at(sum[r], m, sums);
        }
    }
}

/* acc += (s * d - imin * dmin) * dx, where s is float(isum), imin minima times the sums. */
INLINE void finish_super(const ea_fmt f, const uint8_t *d, const uint8_t *small,
                         const ea_rows *rows, const int n_rows, vf s[MAX_ROWS],
                         float acc[MAX_ROWS][EA_TILE_N])
{
    const vf dw = vf_load_f16(d);
    UNROLL_ROWS
    for (int r = 0; r < n_rows; r++)
        s[r] = vf_mul(s[r], dw);
    if (f.scales != K16) {
        const vf dmin = vf_load_f16(d + 32);
        vi imin[MAX_ROWS];
        UNROLL_ROWS
        for (int r = 0; r < n_rows; r++)
            imin[r] = vi_zero();
        add_sums(f, false, small, rows, n_rows, imin);
        UNROLL_ROWS
        for (int r = 0; r < n_rows; r++)
            s[r] = vf_fnma(vf_from_i32(imin[r]), dmin, s[r]);
    }
    UNROLL_ROWS
    for (int r = 0; r < n_rows; r++)
        vf_store(acc[r], vf_fma(s[r], vf_set1(ROW(rows, r)->d[0]), vf_load(acc[r])));
}

/* acc += the rows' chunk times the super-block whose header and codes begin at `small` and `codes`,
 * d and dmin at d. The sums of a super-block are a second set of accumulators: acc waits in memory.
 */
INLINE void super_rows(const ea_fmt f, const ea_store store, const uint8_t *d, const uint8_t *small,
                       const uint8_t *codes, const ea_fetch fetch, const ea_rows *rows,
                       const int n_rows, float acc[MAX_ROWS][EA_TILE_N])
{
    const int exact = exact_blocks(f);
    /* The zero of all blocks at once: costs work for the tile, saves some for each row. */
    const bool at_once = f.scales == K16 && n_rows >= 4, subtract = !at_once;
    vf s[MAX_ROWS];
    vi isum[MAX_ROWS];
    UNROLL_ROWS
    for (int r = 0; r < n_rows; r++)
        isum[r] = vi_zero();
    if (at_once)
        add_sums(f, false, small, rows, n_rows, isum);
    UNROLL_ROWS
    for (int r = 0; r < n_rows; r++)
        s[r] = at_once && exact ? vf_from_i32(isum[r]) : vf_zero();
    if (exact == 4) { /* two sums, each exact: adding them rounds as converting the whole would */
        _Alignas(64) float first[MAX_ROWS][EA_TILE_N];
        add_blocks(f, store, small, codes, fetch, subtract, rows, 0, 4, n_rows, s, isum);
        UNROLL_ROWS
        for (int r = 0; r < n_rows; r++) {
            vf_store(first[r], s[r]);
            s[r] = vf_zero();
        }
        add_blocks(f, store, small, codes, fetch, subtract, rows, 4, 8, n_rows, s, isum);
        UNROLL_ROWS
        for (int r = 0; r < n_rows; r++)
            s[r] = vf_add(s[r], vf_load(first[r]));
    } else {
        add_blocks(f, store, small, codes, fetch, subtract, rows, 0, 8, n_rows, s, isum);
        UNROLL_ROWS
        for (int r = 0; r < n_rows && !exact; r++)
            s[r] = vf_from_i32(isum[r]);
    }
    finish_super(f, d, small, rows, n_rows, s, acc);
}

/* ---- folded super-blocks ---- */

/* Scales of a half block as both int16 of a lane, without their sign; *flip: what turns codes whose
 * scale is negative around, 7 - u, which counts from 3 where u does from 4. */
INLINE vi fold_scale(const ea_fmt f, const uint8_t *p, vi *flip)
{
    vi sc = small_scale(f, p);
    if (f.scales == K16) {
        *flip = vi_and(vi_sra32(sc, 31), vi_set1_8(7));
        sc = vi_abs32(sc);
    }
    return vi_or(sc, vi_sll32(sc, 16));
}

INLINE vi fold_group(const ea_fmt f, const uint8_t *codes, const int g, vi sc, vi flip)
{
    vi u = group_codes(f, PACKED, codes, g);
    if (f.scales == K16)
        u = vi_xor(u, flip);
    return vi_mul16(u, sc); /* no carry from byte to byte */
}

/* Block j of a super-block to bytes times scales. */
INLINE void fold_block(const ea_fmt f, const uint8_t *small, const uint8_t *codes, const int j,
                       uint8_t to[UNPACKED])
{
    vi flip = vi_zero();
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        const vi sc = fold_scale(f, small + 32 * j + 16 * h, &flip);
#pragma GCC unroll 4
        for (int g = 4 * h; g < 4 * h + 4; g++)
            vi_store(to + 64 * g, fold_group(f, codes + j * f.code_bytes, g, sc, flip));
    }
}

/* super_rows for formats that fold; store is PACKED or FOLDED. A sum waits for its last step: few
 * rows have two sums each. */
INLINE void folded_rows(const ea_fmt f, const ea_store store, const uint8_t *d,
                        const uint8_t *small, const uint8_t *codes, const ea_fetch fetch,
                        const ea_rows *rows, const int n_rows, float acc[MAX_ROWS][EA_TILE_N])
{
#if VNNI
    const bool two = MAX_ROWS > 4 && n_rows <= 8;
    vf s[MAX_ROWS];
    vi isum[MAX_ROWS], odd[MAX_ROWS];
    UNROLL_ROWS
    for (int r = 0; r < n_rows; r++)
        isum[r] = odd[r] = vi_zero();
    if (f.scales == K16)
        add_sums(f, true, small, rows, n_rows, isum);
#pragma GCC unroll 1
    for (int j = 0; j < EA_CHUNK_BLOCKS; j++) {
        vi sc = vi_zero(), flip = vi_zero();
        prefetch_part(f, fetch, small, j);
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) {
            vi w;
            if (store == PACKED) {
                if (g % 4 == 0)
                    sc = fold_scale(f, small + 32 * j + 4 * g, &flip);
                w = fold_group(f, codes + j * f.code_bytes, g, sc, flip);
            } else {
                w = vi_load(codes + j * UNPACKED + 64 * g);
            }
            UNROLL_ROWS
            for (int r = 0; r < n_rows; r++) {
                vi *sum = two && g % 2 ? &odd[r] : &isum[r];
                *sum = vi_dot4_at(*sum, w, ROW(rows, r)->q + 32 * j + 4 * g);
            }
        }
    }
    UNROLL_ROWS
    for (int r = 0; r < n_rows; r++)
        s[r] = vf_from_i32(two ? vi_add(isum[r], odd[r]) : isum[r]);
    finish_super(f, d, small, rows, n_rows, s, acc);
#else
    super_rows(f, store, d, small, codes, fetch, rows, n_rows, acc);
#endif
}

/* ---- few rows ---- */

/* Do n_rows gain by folding? Measured. */
INLINE bool fold_pays(const ea_fmt f, const int n_rows)
{
    return folds(f) && n_rows >= (f.codes == CODES2 ? 3 : 5);
}

INLINE void few_k(const ea_fmt f, const ea_matmul_args *args, int tile, int r, const ea_fetch fetch,
                  const int n_rows)
{
    const int n_sb = args->w->k / EA_Q8_CHUNK;
    const uint8_t *base = args->w->data + (size_t)tile * args->w->tile_bytes;
    const uint8_t *sb = base + ea_fmt_front(f, n_sb * EA_CHUNK_BLOCKS);
    ea_rows rows = first_chunks(f, args, r, n_rows);
    _Alignas(64) float acc[MAX_ROWS][EA_TILE_N];
    UNROLL_ROWS
    for (int i = 0; i < n_rows; i++)
        vf_store(acc[i], vf_zero());
    for (int i = 0; i < n_sb; i++, sb += ea_fmt_sb_bytes(f)) {
        const uint8_t *d = f.front ? base + i * f.front : sb;
        const uint8_t *small = sb + f.head_bytes - 256, *codes = sb + f.head_bytes;
        if (fold_pays(f, n_rows))
            folded_rows(f, PACKED, d, small, codes, fetch, &rows, n_rows, acc);
        else
            super_rows(f, PACKED, d, small, codes, fetch, &rows, n_rows, acc);
        next_chunk(&rows, n_rows);
    }
    UNROLL_ROWS
    for (int i = 0; i < n_rows; i++)
        put(args, tile, r + i, vf_load(acc[i]));
}

INLINE void few_blocks(const ea_fmt f, const ea_matmul_args *args, int tile, int r,
                       const ea_fetch fetch, const int n_rows)
{
    const int n_blocks = args->w->k / EA_Q8_K;
    const uint8_t *sb = args->w->data + (size_t)tile * args->w->tile_bytes;
    ea_rows rows = first_chunks(f, args, r, n_rows);
    vf acc[MAX_ROWS];
    UNROLL_ROWS
    for (int i = 0; i < n_rows; i++)
        acc[i] = vf_zero();
    for (int b = 0; b < n_blocks;) {
        const int end = EA_MIN(n_blocks, b + EA_CHUNK_BLOCKS);
        for (int j = 0; b < end; b += f.sb_blocks, sb += ea_fmt_sb_bytes(f)) {
            prefetch(fetch, sb, (int)ea_fmt_sb_bytes(f) / 64);
#pragma GCC unroll 2
            for (int nth = 0; nth < f.sb_blocks; nth++, j++)
                if (nth == 0 || b + nth < end)
                    block_rows(f, PACKED, sb, sb + f.head_bytes + nth * f.code_bytes, nth, &rows, j,
                               n_rows, acc);
        }
        next_chunk(&rows, n_rows);
    }
    UNROLL_ROWS
    for (int i = 0; i < n_rows; i++)
        put(args, tile, r + i, acc[i]);
}

/* Rows r .. r + n_rows - 1 of args times one tile; each four of them lie in one group of 16. fetch:
 * the weights come from memory. */
INLINE void few_rows(const ea_fmt f, const ea_matmul_args *args, int tile, int r,
                     const ea_fetch fetch, const int n_rows)
{
    if (ea_fmt_is_k(f))
        few_k(f, args, tile, r, fetch, n_rows);
    else
        few_blocks(f, args, tile, r, fetch, n_rows);
}

/* ---- many rows ---- */

/* Most rows for which a chunk of codes is unpacked once: accumulators and codes share the first-
 * level cache with the activations that pass. */
enum { MANY_ROWS = 96 };

typedef float ea_acc[EA_TILE_N];

/* Does a format gain by it? Measured: codes of four bits are as fast unpacked again, but for short
 * blocks of rows in Q4_K. */
INLINE bool many_pays(const ea_fmt f)
{
    if (f.codes == CODES4)
        return MAX_ROWS <= 4 && ea_fmt_is_k(f);
    return f.codes != CODES8 && f.codes != CODES4_NL;
}

/* One chunk of inputs of a tile, times blocks of rows. */
typedef struct ea_chunk {
    const uint8_t *d, *sb; /* its scales, its first super-block */
    int n_blocks;
    _Alignas(64) uint8_t codes[EA_CHUNK_BLOCKS][UNPACKED];
} ea_chunk;

INLINE void chunk_unpack(const ea_fmt f, ea_chunk *c)
{
    const uint8_t *sb = c->sb;
#pragma GCC unroll 1
    for (int j = 0; j < c->n_blocks; j++) {
        const uint8_t *codes = sb + f.head_bytes + j % f.sb_blocks * f.code_bytes;
        if (folds(f))
            fold_block(f, sb + f.head_bytes - 256, sb + f.head_bytes, j, c->codes[j]);
        else
#pragma GCC unroll 8
            for (int g = 0; g < 8; g++)
                vi_store(c->codes[j] + 64 * g, group_codes(f, PACKED, codes, g));
        if (j % f.sb_blocks == f.sb_blocks - 1)
            sb += ea_fmt_sb_bytes(f);
    }
}

INLINE void chunk_rows(const ea_fmt f, const ea_chunk *c, const ea_fetch fetch, const ea_rows *rows,
                       const int n_rows, ea_acc *acc)
{
    if (folds(f)) {
        folded_rows(f, FOLDED, c->d, c->sb + f.head_bytes - 256, c->codes[0], fetch, rows, n_rows,
                    acc);
    } else if (ea_fmt_is_k(f)) {
        super_rows(f, BYTES, c->d, c->sb + f.head_bytes - 256, c->codes[0], fetch, rows, n_rows,
                   acc);
    } else {
        const uint8_t *sb = c->sb;
        vf sum[MAX_ROWS];
        UNROLL_ROWS
        for (int r = 0; r < n_rows; r++)
            sum[r] = vf_load(acc[r]);
        for (int j = 0; j < c->n_blocks; j += f.sb_blocks, sb += ea_fmt_sb_bytes(f)) {
            prefetch(fetch, sb, (int)ea_fmt_sb_bytes(f) / 64);
#pragma GCC unroll 2
            for (int nth = 0; nth < f.sb_blocks; nth++)
                if (nth == 0 || j + nth < c->n_blocks)
                    block_rows(f, BYTES, sb, c->codes[j + nth], nth, rows, j + nth, n_rows, sum);
        }
        UNROLL_ROWS
        for (int r = 0; r < n_rows; r++)
            vf_store(acc[r], sum[r]);
    }
}

/* Rows r .. r + n_rows - 1 of args, a multiple of 4 that is at most MANY_ROWS and begins at a
 * multiple of 4 of its buffer, times one tile. */
INLINE void many_rows(const ea_fmt f, const ea_matmul_args *args, int tile, int r,
                      const ea_fetch fetch, int n_rows)
{
    const int n_blocks = args->w->k / EA_Q8_K;
    const uint8_t *base = args->w->data + (size_t)tile * args->w->tile_bytes;
    const int chunk_bytes = EA_CHUNK_BLOCKS / f.sb_blocks * (int)ea_fmt_sb_bytes(f);
    ea_chunk c = {.d = base, .sb = base + ea_fmt_front(f, n_blocks)};
    _Alignas(64) ea_acc acc[MANY_ROWS];
    for (int i = 0; i < n_rows; i++)
        vf_store(acc[i], vf_zero());
    for (int b = 0; b < n_blocks; b += EA_CHUNK_BLOCKS) {
        c.n_blocks = EA_MIN(n_blocks - b, (int)EA_CHUNK_BLOCKS);
        chunk_unpack(f, &c);
        if (!f.front)
            c.d = c.sb;
        int i = 0;
#define ROW_BLOCK(n)                                                          \
    {                                                                         \
        ea_rows rows = first_chunks(f, args, r + i, n);                       \
        for (int q = 0; q < (n) / 4; q++)                                     \
            rows.x[q] += b / EA_CHUNK_BLOCKS * EA_ACTS_GROUP;                 \
        chunk_rows(f, &c, i == 0 ? fetch : (ea_fetch){0}, &rows, n, acc + i); \
    }
        for (; i + MAX_ROWS <= n_rows; i += MAX_ROWS)
            ROW_BLOCK(MAX_ROWS)
#if MAX_ROWS > 8
        for (; i + 8 <= n_rows; i += 8)
            ROW_BLOCK(8)
#endif
#if MAX_ROWS > 4
        if (i < n_rows)
            ROW_BLOCK(4)
#endif
#undef ROW_BLOCK
        c.sb += chunk_bytes;
        if (f.front)
            c.d += f.front;
    }
    for (int i = 0; i < n_rows; i++)
        put(args, tile, r + i, vf_load(acc[i]));
}

/* ---- rows in blocks ---- */

/* Kernels of one format: few[n - 1] for n rows; many may be NULL. heavy: a byte each weight. */
typedef struct ea_tile_fns {
    void (*few[MAX_ROWS])(const ea_matmul_args *args, int tile, int r, ea_fetch fetch);
    void (*many)(const ea_matmul_args *args, int tile, int r, ea_fetch fetch, int n_rows);
    bool heavy;
} ea_tile_fns;

/* How many of `left` rows the next block takes, the first of which is `row` of its buffer: each
 * four rows of a block stay inside a group of 16. */
static int block_size(const ea_tile_fns *fns, int row, int left)
{
    const int room = EA_ACTS_GROUP - row % EA_ACTS_GROUP;
    if (row % 4 && left > room) /* up to the group's end, or to a multiple of 4 before it */
        return room <= MAX_ROWS ? room : room - (room - MAX_ROWS + 3) / 4 * 4;
    if (fns->many && row % 4 == 0 && left / 4 * 4 > MAX_ROWS)
        return EA_MIN(left / 4 * 4, (int)MANY_ROWS);
    return EA_MIN(left, MAX_ROWS);
}

/* One block of rows times one tile; how many rows those are. */
INLINE int run_block(const ea_matmul_args *args, const ea_tile_fns *fns, int tile, int r,
                     const ea_fetch fetch)
{
    const int n = block_size(fns, args->row0 + r, args->n_rows - r);
    if (n > MAX_ROWS)
        fns->many(args, tile, r, fetch, n);
    else
        fns->few[n - 1](args, tile, r, fetch);
    return n;
}

/* Blocks of rows go over a tile one after the other; each asks for its share of the next tile, so
 * that memory delivers all the time. */
static void run_tiles(const ea_matmul_args *args, const ea_tile_fns *fns, const int n_blocks)
{
    ea_fetch fetch = {.ahead = args->w->tile_bytes, .step = n_blocks};
    for (int tile = args->tile0; tile < args->tile1; tile++) {
        fetch.first = 0;
        for (int r = 0; r < args->n_rows; fetch.first++)
            r += run_block(args, fns, tile, r, fetch);
    }
}

/* A block of rows goes over a chunk of tiles, which stays in the second-level cache while the
 * others do. */
static void run_chunks(const ea_matmul_args *args, const ea_tile_fns *fns)
{
    const int chunk = (int)EA_MAX((size_t)1, CHUNK_BYTES / args->w->tile_bytes);
    for (int t0 = args->tile0; t0 < args->tile1; t0 += chunk) {
        const int t1 = EA_MIN(t0 + chunk, args->tile1);
        for (int r = 0, n = 0; r < args->n_rows; r += n) {
            const ea_fetch fetch = {.ahead = EA_PREFETCH_BYTES, .step = r == 0};
            for (int tile = t0; tile < t1; tile++)
                n = run_block(args, fns, tile, r, fetch);
        }
    }
}

/* Blocks of rows up to which run_tiles pays, for formats that are more bytes than work. Measured.
 */
enum { TILE_BLOCKS = 3 };

/* A claim of tiles times all rows. */
static void run(const ea_matmul_args *args, const ea_tile_fns *fns)
{
    const size_t row_bytes = (size_t)ea_acts_chunks(args->x) * sizeof(struct ea_q8_chunk);
    int n_blocks = 0;
    for (int r = 0; r < args->n_rows; n_blocks++)
        r += block_size(fns, args->row0 + r, args->n_rows - r);
    if (fns->heavy && n_blocks > 1 && n_blocks <= TILE_BLOCKS &&
        (size_t)args->n_rows * row_bytes <= CHUNK_BYTES)
        run_tiles(args, fns, n_blocks);
    else
        run_chunks(args, fns);
}

/* ---- instances ---- */

#if MAX_ROWS == 12
#define EACH_COUNT(X, name) \
    X(name, 1)              \
    X(name, 2)              \
    X(name, 3)              \
    X(name, 4)              \
    X(name, 5)              \
    X(name, 6)              \
    X(name, 7)              \
    X(name, 8)              \
    X(name, 9)              \
    X(name, 10)             \
    X(name, 11)             \
    X(name, 12)
#elif MAX_ROWS == 8
#define EACH_COUNT(X, name) \
    X(name, 1) X(name, 2) X(name, 3) X(name, 4) X(name, 5) X(name, 6) X(name, 7) X(name, 8)
#else
#define EACH_COUNT(X, name) X(name, 1) X(name, 2) X(name, 3) X(name, 4)
#endif
#define FEW_FN(name, n)                                                                       \
    static void name##_##n##rows(const ea_matmul_args *args, int tile, int r, ea_fetch fetch) \
    {                                                                                         \
        few_rows(ea_fmt_##name, args, tile, r, fetch, n);                                     \
    }
#define FEW_ENTRY(name, n) name##_##n##rows,
#define IMPL2(name, level) ea_matmul_##name##__##level
#define IMPL(name, level) IMPL2(name, level)
#define EA_FORMAT(name, ...)                                                             \
    EACH_COUNT(FEW_FN, name)                                                             \
    static void name##_many(const ea_matmul_args *args, int tile, int r, ea_fetch fetch, \
                            int n_rows)                                                  \
    {                                                                                    \
        if (many_pays(ea_fmt_##name))                                                    \
            many_rows(ea_fmt_##name, args, tile, r, fetch, n_rows);                      \
    }                                                                                    \
    static void run_##name(const ea_matmul_args *args)                                   \
    {                                                                                    \
        const ea_tile_fns fns = {{EACH_COUNT(FEW_ENTRY, name)},                          \
                                 many_pays(ea_fmt_##name) ? name##_many : NULL,          \
                                 ea_fmt_##name.codes == CODES8};                         \
        run(args, &fns);                                                                 \
    }                                                                                    \
    const ea_matmul_impl IMPL(name, LEVEL) = {.layout = &ea_layout_##name, .run = run_##name};
#include "kernel/formats.def"
#undef EA_FORMAT
