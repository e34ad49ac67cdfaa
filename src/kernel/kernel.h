/* kernel.h: the CPU kernels' interface: packed weights, quantised activations, matmul, attention
 * over paged KV, and the small row operators. Implementations live in ref/, avx2/, avx512/, one
 * table each; ea_kernel() is the table that this machine runs (each slot from the highest level
 * that has it).
 *
 * Numerics (ARCHITECTURE.md, "Numerics"): a result is a function of its own row and its weights
 * only, and every level gives the same bits. So every sum has one order, written here:
 *  - quantised weights with one scale a 32-block (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL): the
 * activation row is quantised to int8 by blocks of 32 (scale dx = max|x|/127, f32). Per output and
 * per 32-block the integer dot product is exact; then acc = fma(float(idot), dw * dx, acc), blocks
 * in ascending order, one f32 accumulator an output. Formats with a minimum add acc = fma(m, sx,
 * acc) after that, where sx = dx * float(sum of the block's int8 activations).
 *  - quantised weights with super-blocks of 256 (the K formats): the row is quantised by blocks of
 * 256. Per super-block isum = sum of integer scale * integer dot product of its block (of 32 in
 * Q4_K and Q5_K, else of 16), and imin = sum of integer minimum * sum of the block's int8
 * activations, both exact in int32; then acc = fma(t, dx, acc), where t = float(isum) * d and, for
 * formats with minima, t = fma(-float(imin), dmin, that).
 *  - float weights (F32, F16, BF16): acc = fma(w[k], x[k], acc), k ascending, one f32 accumulator
 * an output.
 *  - attention and norms: see the slots.
 * All functions are pure but for their outputs; any thread. Nothing allocates. */
#ifndef EA_KERNEL_KERNEL_H
#define EA_KERNEL_KERNEL_H

#include "base/error.h"
#include "quant/quant.h"

/* Forms of an activation row: as it is; int8 by blocks of 32; int8 by blocks of 256. */
typedef enum ea_acts_form { EA_FORM_F32, EA_FORM_Q8, EA_FORM_Q8K, EA_N_FORMS } ea_acts_form;

/* ---- weights ---- */

enum { EA_TILE_N = 16 }; /* output columns of one tile: one 512-bit vector of f32 */

typedef struct ea_matmul_impl ea_matmul_impl; /* kernels + geometry + packer of one weight layout */

/* A weight matrix, n outputs by k inputs, packed once into tiles of 16 outputs (the last one padded
 * with zeros). */
typedef struct ea_matrix {
    ea_dtype type; /* format in the file */
    int n, k;
    int n_tiles;
    size_t tile_bytes; /* multiple of 64 */
    uint8_t *data;     /* n_tiles * tile_bytes, 64-byte aligned, owned by the caller */
    const ea_matmul_impl *impl;
} ea_matrix;

/* Bytes that data must have. EA_EUNSUPPORTED where the format has no kernel or k is no multiple of
 * its block. */
ea_status ea_matrix_init(ea_matrix *m, ea_dtype type, int n, int k, size_t *n_bytes,
                         ea_error *err) EA_MUST_CHECK;
/* Pack one tile from the tensor's file rows (row i at rows + i * ea_dtype_row_bytes(type, k));
 * m->data is set. */
void ea_matrix_pack_tile(const ea_matrix *m, int tile, const void *rows);
/* How a product of this matrix with n_rows is best cut: pieces are multiples of *unit tiles;
 * returns about what a tile takes in nanoseconds, right to a factor of two or so. */
double ea_matrix_cut(const ea_matrix *m, int n_rows, int *unit);
/* The form of the activations that this matrix reads. */
ea_acts_form ea_matrix_form(const ea_matrix *m);

/* ---- activations ---- */

/* Up to max_rows rows of k inputs: f32 and, once they were quantised, the int8 forms that `forms`
 * (bit 1 << form) asks for, see matmul.h. Rows are written by whoever quantises them; several
 * threads may fill neighbouring rows, or different units of one row. */
typedef struct ea_acts {
    int k, k_pad, max_rows; /* k_pad: k rounded up to 32; the padding is zero */
    unsigned forms;
    float *f32;                         /* [max_rows][k_pad] */
    struct ea_q8_chunk *q8[EA_N_FORMS]; /* see ea_acts_q8; NULL where not in `forms` */
} ea_acts;

size_t ea_acts_bytes(int max_rows, int k, unsigned forms);
/* mem: ea_acts_bytes, 64-byte aligned, zeroed. EA_FORM_Q8K needs k a multiple of 256. */
void ea_acts_init(ea_acts *a, int max_rows, int k, unsigned forms, void *mem);
static inline float *ea_acts_row(const ea_acts *a, int row)
{
    return a->f32 + (size_t)row * (size_t)a->k_pad;
}
/* Columns that are quantised together. */
static inline int ea_acts_unit(const ea_acts *a)
{
    return a->forms >> EA_FORM_Q8K & 1 ? 256 : 32;
}
/* Fill the int8 forms of n columns from col0 (a multiple of ea_acts_unit); n is a multiple of it or
 * reaches the row's end. */
void ea_acts_quantise_cols(const ea_acts *a, int row, int col0, int n);
static inline void ea_acts_quantise(const ea_acts *a, int row)
{
    ea_acts_quantise_cols(a, row, 0, a->k);
}

/* out[r * ld + c] = dot(row0 + r, c) + bias[c]  (+ the old out where accumulate), for r < n_rows
 * and the columns c < n of tiles tile0..tile1-1. bias may be NULL. */
typedef struct ea_matmul_args {
    const ea_matrix *w;
    const ea_acts *x;
    int row0, n_rows;
    int tile0, tile1;
    const float *bias;
    bool accumulate;
    float *out;
    size_t ld;
} ea_matmul_args;
void ea_matmul(const ea_matmul_args *args);

/* ---- KV pages and attention ---- */

/* A page holds EA_PAGE_TOKENS positions. For one layer and KV head it has a K block and a V block
 * of ea_kv_block_bytes each, 64-byte aligned.
 *
 * EA_KV_F16: K is stored in groups of 16 positions, [positions / 16][head_dim][16] (positions in
 * the lanes), V as [positions][head_dim]. Scores need no horizontal sums, and a K element is loaded
 * once for all query rows.
 *
 * EA_KV_Q8_0, EA_KV_Q4_0: head_dim is a multiple of 32, and every 32 components of a position have
 * one f16 scale. A block is its codes, then the scales as [head_dim / 32][positions].
 *   K, Q8_0: bytes [positions / 16][head_dim / 4][16][4], code + 128: four components of a position
 *     side by side.
 *   K, Q4_0: bytes [positions / 16][head_dim / 32][4][16][4], in the low nibble code + 8 of
 *     component 4 j + i, in the high one of component 16 + 4 j + i.
 *   V, Q8_0: bytes [positions][head_dim], the code. Q4_0: [positions][head_dim / 32][16], code + 8
 *     of component i in the low nibble, of 16 + i in the high one.
 * Quantised by (x the 32 components, e the stored scale as f32):
 *   Q8_0: e = f16(max|x| / 127); code = round(x * (1 / e)), clamped to -128..127.
 *   Q4_0: e = f16(y / -8), y = max(x) if that is >= -min(x), else min(x); code = round(x * (1 /
 * e)), clamped to -8..7. Round is to nearest even. Where e is 0 (stored as +0), codes are 0. Where
 * an x is NaN or infinite, e is NaN and codes are 0, so it shows. */
enum { EA_PAGE_TOKENS = 32, EA_ATTN_SPAN = 256, EA_KV_BLOCK = 32 };

static inline bool ea_kv_type_fits(ea_kv_type type, int head_dim)
{
    return type == EA_KV_F16 || head_dim % EA_KV_BLOCK == 0;
}

/* Bytes of the codes (of EA_KV_F16: of the numbers) in a block. */
static inline size_t ea_kv_codes_bytes(ea_kv_type type, int head_dim)
{
    size_t n = (size_t)EA_PAGE_TOKENS * (size_t)head_dim;
    return type == EA_KV_F16 ? 2 * n : type == EA_KV_Q8_0 ? n : n / 2;
}

static inline size_t ea_kv_block_bytes(ea_kv_type type, int head_dim)
{
    size_t scales = (size_t)EA_PAGE_TOKENS * (size_t)(head_dim / EA_KV_BLOCK) * sizeof(ea_f16);
    return ea_kv_codes_bytes(type, head_dim) + (type == EA_KV_F16 ? 0 : scales);
}

/* Write one position's K and V (head_dim floats each) of one KV head into its page's blocks. slot <
 * EA_PAGE_TOKENS. */
void ea_kv_write(ea_kv_type type, uint8_t *k_block, uint8_t *v_block, int slot, int head_dim,
                 const float *k, const float *v);

/* Attention of several query rows over one KV head. Query row i is one (token row, query head) pair
 * at position pos[i]; it sees positions max(0, pos[i] - window + 1) .. pos[i] (window 0 = all).
 * Pages that no query sees are not touched, and what lies in slots that a query does not see never
 * reaches its result. A query's result does not depend on the others. The queries may come from
 * several sequences where those have the same pages in all that is looked at.
 *
 * Order: s = scale * score. Positions are taken in spans of EA_ATTN_SPAN absolute positions,
 * ascending. Per span, over the positions seen:
 *   m = max(s, -FLT_MAX), p = ea_exp(s - m),
 *   l = sum of p: 16 sums by position mod 16, each ascending, then sums i and i + 8, + 4, + 2, + 1,
 *   o[d] = fma-sum of V and its weight, positions ascending, from 0.
 * Spans merge from M = -FLT_MAX, L = 0, O = 0:
 *   M' = max(M, m), a = ea_exp(M - M'), b = ea_exp(m - M'),
 *   L = fma(L, a, l * b), O = fma(O, a, o * b),
 * and out = O * (1 / L), or 0 where L is 0 (every score was minus infinity).
 * F16: the score is the fma-sum of K q over d ascending, from 0; V's weight is p.
 * Q8_0, Q4_0: the query is quantised by blocks of 32 components, dq = max|q| / 127, code =
 * round(q * (1 / dq)), or all 0 where dq < 2^-100; an infinity or NaN makes dq NaN. Per block the
 * integer dot product is exact; score = fma(float(idot), dk * dq, score), blocks ascending, from 0.
 * V is float(code), its weight p * dv. */
typedef struct ea_attn_args {
    ea_kv_type type;
    int n_queries;         /* <= EA_ATTN_QUERIES */
    int head_dim;          /* multiple of 8 (quantised: of 32), <= 512 */
    const float *const *q; /* n_queries pointers to head_dim floats */
    float *const *out;     /* n_queries pointers to head_dim floats */
    const int32_t *pos;
    float scale;
    int window;
    const uint8_t *kv;         /* base of the page storage */
    size_t page_bytes;         /* stride of pages */
    size_t k_offset, v_offset; /* of this layer's and head's blocks in a page */
    const int32_t *pages;      /* the sequence's table: page of positions 32 i .. 32 i + 31 */
    /* n_spans > 0: only spans span0 .. span0 + n_spans - 1, and not merged: out[i] has, for each of
     * them that query i sees into, ea_attn_part_floats(head_dim) floats at (span - span0) *
     * part_stride: o, then m and l. */
    int span0, n_spans;
    size_t part_stride; /* floats */
    void *scratch;      /* ea_attn_scratch_bytes(), 64-byte aligned, one a worker */
} ea_attn_args;
enum { EA_ATTN_QUERIES = 64 };

size_t ea_attn_scratch_bytes(int head_dim);

/* o[head_dim], rounded up to whole vectors, m, l; rounded up to 64 bytes. */
static inline size_t ea_attn_part_floats(int head_dim)
{
    return ((size_t)head_dim + 15) / 16 * 16 + 16;
}

void ea_attention_f16(const ea_attn_args *args);
void ea_attention_quant(const ea_attn_args *args);

static inline void ea_attention(const ea_attn_args *args)
{
    if (args->type == EA_KV_F16)
        ea_attention_f16(args);
    else
        ea_attention_quant(args);
}

/* Merge the partial results of n_parts spans, ascending; the bits are those of one call over all of
 * them. parts: those of one query, part_stride floats from one span's to the next. */
void ea_attention_merge(float *out, int head_dim, const float *parts, int n_parts,
                        size_t part_stride);

/* ---- small row operators ---- */

/* out = (x * (1 / sqrt(mean(x^2) + eps))) * w. The sum of squares has 16 accumulators (lane = i mod
 * 16, fma), added pairwise: i and i + 8, + 4, + 2, + 1. out may be x. */
void ea_rms_norm(float *out, const float *x, const float *w, int n, float eps);

/* Rotary embedding in place over n_heads vectors of head_dim; the first n_rot components turn. cs:
 * n_rot/2 pairs (cos, sin) of this row's position. neox: pairs (i, i + n_rot/2), else (2i, 2i + 1).
 * (a, b) -> (fma(a, c, -(b * s)), fma(b, c, a * s)). */
void ea_rope(float *x, int n_heads, int head_dim, int n_rot, const float *cs, bool neox);

/* out = (gate / (1 + ea_exp(-gate))) * up. out may be gate or up. */
void ea_silu_mul(float *out, const float *gate, const float *up, int n);

/* Index of the largest of n values; the lowest index among equals. NaN never wins. */
int ea_argmax(const float *x, int n);

/* e^x as all kernels compute it (polynomial, relative error < 2 ulp; 0 below -87.3), scalar form.
 */
float ea_exp(float x);

/* ---- the table (dispatch) ---- */

/* Text of several lines: each slot and the level it comes from. Appends to *buf. */
struct ea_buf;
void ea_kernel_report(struct ea_buf *buf);

#endif
