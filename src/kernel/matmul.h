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

enum { EA_Q8_K = 32, EA_Q8_CHUNK = 256, EA_CHUNK_BLOCKS = EA_Q8_CHUNK / EA_Q8_K };

/* 256 inputs of one row, quantised; three times two cache lines. EA_FORM_Q8: d and s for each
 * 32-block. EA_FORM_Q8K: one scale for all, d[0], and the sums in the forms that minima are
 * multiplied with. */
struct ea_q8_chunk {
    int8_t q[EA_Q8_CHUNK]; /* -127..127 */
    union {
        float d[EA_CHUNK_BLOCKS]; /* scale */
        struct {
            float d0[4];
            int16_t sum32[EA_CHUNK_BLOCKS]; /* Q8K: sums of the blocks' q, |sum| <= 32 * 127 */
        };
    };
    int16_t sum16[2 * EA_CHUNK_BLOCKS]; /* sums of the half blocks' q */
    union {
        float s[EA_CHUNK_BLOCKS]; /* Q8: d * float(sum of the block's q) */
        /* Q8K: sum16 as two bf16 whose sum it is: the multiple of 64 below, and the rest */
        ea_bf16 parts[2 * EA_CHUNK_BLOCKS][2];
    };
};
_Static_assert(sizeof(struct ea_q8_chunk) == 384, "rows of a group: no power of two apart");

/* Chunks go in groups of 16 rows, [rows / 16][chunk][16]: the rows of a group are one tile of a
 * matrix unit, and a row's chunks are EA_ACTS_GROUP apart. */
enum { EA_ACTS_GROUP = 16 };

static inline int ea_acts_chunks(const ea_acts *a)
{
    return (a->k_pad + EA_Q8_CHUNK - 1) / EA_Q8_CHUNK;
}

/* A block whose largest magnitude is below this counts as zero: 127 / max must stay finite. */
#define EA_Q8_TINY 0x1p-100f

/* First chunk of a row in one of its int8 forms. */
static inline struct ea_q8_chunk *ea_acts_q8(const ea_acts *a, ea_acts_form form, int row)
{
    size_t group = (size_t)(row / EA_ACTS_GROUP) * (size_t)ea_acts_chunks(a);
    return a->q8[form] + group * EA_ACTS_GROUP + row % EA_ACTS_GROUP;
}

/* How far ahead of the codes a product of few rows asks for weights: the hardware's prefetcher
 * stops at every 4-KiB page, a tile is a run of many. Measured on a Xeon with two busy cores: 1 to
 * 8 KiB all help, 4 KiB most. An address past the end is only a hint and harmless. */
enum { EA_PREFETCH_BYTES = 4096 };

/* How a format is packed. A tile is, for quantised formats, `front` (front_bytes for each
 * super-block, together rounded up to 64) and then the super-blocks: a header of head_bytes and the
 * codes of sb_blocks 32-blocks. Where what lies is told in pack_block.c and pack_k.c. */
typedef struct ea_tile_layout ea_tile_layout;
struct ea_tile_layout {
    ea_dtype type;
    ea_acts_form form; /* of the activations that it is multiplied with */
    int sb_blocks;     /* 32-blocks of a super-block; 0: float format */
    int front_bytes, head_bytes, code_bytes;
    /* n_cols (1..16) rows of the file to one zeroed tile */
    void (*pack)(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile);
};

static inline size_t ea_layout_sb_bytes(const ea_tile_layout *l)
{
    return (size_t)(l->head_bytes + l->sb_blocks * l->code_bytes);
}

/* Super-blocks of a tile over k inputs, and bytes in front of them. */
static inline size_t ea_layout_n_sb(const ea_tile_layout *l, int k)
{
    return ((size_t)k / EA_Q8_K + (size_t)l->sb_blocks - 1) / (size_t)l->sb_blocks;
}

static inline size_t ea_layout_front(const ea_tile_layout *l, int k)
{
    return (ea_layout_n_sb(l, k) * (size_t)l->front_bytes + 63) / 64 * 64;
}

/* What a kernel folder provides for one format: the layout that it reads and the product. */
struct ea_matmul_impl {
    const ea_tile_layout *layout;
    void (*run)(const ea_matmul_args *args);
    /* From unit_rows rows on a matrix unit does the product (0: there is none): tiles that it takes
     * side by side, and about its multiply-adds a nanosecond. For cutting work: ea_matrix_cut. */
    int unit_rows, unit_tiles, unit_speed;
};

/* ea_matrix_init with a given implementation: n, k >= 1 and k a multiple of the format's block. */
void ea_matrix_init_impl(ea_matrix *m, const ea_matmul_impl *impl, int n, int k, size_t *n_bytes);

#define EA_MATMUL(name, dtype) extern const ea_tile_layout ea_layout_##name;
#define EA_SLOT(name, ret, args, names)
#include "kernel/kernel_slots.def"
#undef EA_MATMUL
#undef EA_SLOT

#endif
