/* matmul.h: inside of the packed matrix product: tile layouts, the quantised activations' layout,
 * and what a kernel folder provides per weight format. Only files of kernel/ and its tests include
 * it.
 *
 * A tile holds 16 output columns over all of k. Quantised formats: a tile is a run of super-blocks,
 * each a header of scales followed by the codes of its 32-blocks; everything is 64-byte aligned and
 * read front to back, so that one output row streams memory. Codes are unsigned (u = q + zero).
 * Inside a 32-block the inputs are taken in 8 groups of 4; a group is 64 bytes, byte 4 n + i being
 * input 4 g + i of column n. Codes of fewer than 8 bits are split into planes of such vectors:
 *   4-bit plane, 256 bytes: byte j of vector v = group 2 v (low nibble) and 2 v + 1 (high)
 *   2-bit plane, 128 bytes: byte j of vector v = groups 4 v .. 4 v + 3 (bits 0-1, 2-3, 4-5, 6-7)
 *   1-bit plane, 64 bytes: bit g of byte j = group g
 *   8-bit: 512 bytes, vector g = group g
 * Float formats: [k][16] in their own type. */
#ifndef EA_KERNEL_MATMUL_H
#define EA_KERNEL_MATMUL_H

#include "kernel/kernel.h"

/* Four rows of activations in one 32-block of inputs. Rows go in groups of four, so that a register
 * block of 4, 8 or 12 rows needs one pointer per group. */
enum { EA_Q8_ROWS = 4, EA_Q8_K = 32 };
struct ea_q8_block {
    int8_t q[EA_Q8_ROWS][EA_Q8_K]; /* -127..127 */
    float d[EA_Q8_ROWS];           /* scale */
    float s[EA_Q8_ROWS];           /* d * float(sum of the 32 q) */
    int16_t sum16[EA_Q8_ROWS][2];  /* sums of the two halves of q: |sum| <= 16 * 127 */
};

/* A block whose largest magnitude is below this counts as zero: 127 / max must stay finite. */
#define EA_Q8_TINY 0x1p-100f

static inline struct ea_q8_block *ea_acts_q8(const ea_acts *a, int row)
{
    return a->q8 + (size_t)(row / EA_Q8_ROWS) * (size_t)(a->k_pad / EA_Q8_K);
}

/* How far ahead of the codes a product of few rows asks for weights: the hardware's prefetcher
 * stops at every 4-KiB page, a tile is a run of many. Measured on a Xeon with two busy cores: 1 to
 * 8 KiB all help, 4 KiB most. An address past the end is only a hint and harmless. */
enum { EA_PREFETCH_BYTES = 4096 };

/* How a format is packed. Offsets inside a super-block are the formats' own, see layout comments in
 * pack.c. */
typedef struct ea_tile_layout ea_tile_layout;
struct ea_tile_layout {
    ea_dtype type;
    bool q8;                    /* reads the quantised activations */
    int sb_blocks;              /* 32-blocks of a super-block; 0: float format */
    int head_bytes, code_bytes; /* header of a super-block; codes of one 32-block */
    /* n_cols (1..16) rows of the file to one zeroed tile */
    void (*pack)(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile);
};

static inline size_t ea_layout_sb_bytes(const ea_tile_layout *l)
{
    return (size_t)(l->head_bytes + l->sb_blocks * l->code_bytes);
}

/* What a kernel folder provides for one format: the layout that it reads and the product. */
struct ea_matmul_impl {
    const ea_tile_layout *layout;
    void (*run)(const ea_matmul_args *args);
};

/* ea_matrix_init with a given implementation: n, k >= 1 and k a multiple of the format's block. */
void ea_matrix_init_impl(ea_matrix *m, const ea_matmul_impl *impl, int n, int k, size_t *n_bytes);

#define EA_MATMUL(name, dtype) extern const ea_tile_layout ea_layout_##name;
#define EA_SLOT(name, ret, args, names)
#include "kernel/kernel_slots.def"
#undef EA_MATMUL
#undef EA_SLOT

#endif
