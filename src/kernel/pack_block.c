/* pack_block.c: tile layouts of the formats with one scale a 32-block.
 *
 * Q4_0, Q5_0, Q8_0, IQ4_NL: super-block of two 32-blocks, header 64 bytes: d of the first (16 x
 * f16), d of the second. Q4_1, Q5_1: super-block of one, header d, m. Codes: see each packer. An
 * odd last block leaves the second half of its super-block zero; kernels do not read it. */
#include "kernel/pack.h"
#include "quant/blocks.h"

/* Element i of 16 bytes is in the low half of byte i, element i + 16 in its high half. */
static ea_codes nibbles(const uint8_t *qs)
{
    uint64_t low, high;
    memcpy(&low, qs, 8);
    memcpy(&high, qs + 8, 8);
    const uint64_t mask = EA_EACH_BYTE(15);
    return (ea_codes){{low & mask, high & mask, low >> 4 & mask, high >> 4 & mask}};
}

/* Bit i of qh is code i of a 1-bit plane: byte j of its word holds the bits 4 g + j. */
static void fifth_bits(uint8_t *plane, int n, const uint8_t *qh)
{
    uint32_t bits;
    memcpy(&bits, qh, sizeof bits);
    uint64_t w = 0;
    for (int j = 0; j < 4; j += 2) { /* every fourth bit of each half, then close up */
        uint64_t x = (bits >> j | (uint64_t)bits << (31 - j)) & 0x1111111111111111u;
        x = (x | x >> 3) & 0x0303030303030303u;
        x = (x | x >> 6) & 0x000f000f000f000fu;
        x = (x | x >> 12) & 0x000000ff000000ffu;
        w |= (x | x >> 24) << (8 * j);
    }
    ea_pack_put(plane, 0, n, w);
}

/* Where block b's header row and codes lie in a tile of super-blocks of two. */
static uint8_t *head2(uint8_t *tile, int b, int code_bytes)
{
    return tile + (size_t)(b / 2) * (size_t)(64 + 2 * code_bytes) + 32 * (b % 2);
}

static uint8_t *codes2(uint8_t *tile, int b, int code_bytes)
{
    return tile + (size_t)(b / 2) * (size_t)(64 + 2 * code_bytes) + 64 + code_bytes * (b % 2);
}

/* Q4_0: 4-bit plane, u = q + 8. IQ4_NL: the same plane of table indices. Their blocks are alike. */
static void pack_q4_0(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    for (int b = 0; b < k / EA_QK; b++) {
        for (int n = 0; n < n_cols; n++) {
            const ea_block_q4_0 *src = (const ea_block_q4_0 *)(rows + (size_t)n * row_bytes) + b;
            ea_pack_f16(head2(tile, b, 256), n, src->d);
            ea_pack_plane4(codes2(tile, b, 256), n, nibbles(src->qs));
        }
    }
}

/* Q5_0: 4-bit plane, then 1-bit plane, u = q + 16. */
static void pack_q5_0(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    for (int b = 0; b < k / EA_QK; b++) {
        for (int n = 0; n < n_cols; n++) {
            const ea_block_q5_0 *src = (const ea_block_q5_0 *)(rows + (size_t)n * row_bytes) + b;
            ea_pack_f16(head2(tile, b, 320), n, src->d);
            ea_pack_plane4(codes2(tile, b, 320), n, nibbles(src->qs));
            fifth_bits(codes2(tile, b, 320) + 256, n, src->qh);
        }
    }
}

/* Q8_0: bytes, u = q + 128. */
static void pack_q8_0(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    for (int b = 0; b < k / EA_QK; b++) {
        for (int n = 0; n < n_cols; n++) {
            const ea_block_q8_0 *src = (const ea_block_q8_0 *)(rows + (size_t)n * row_bytes) + b;
            ea_pack_f16(head2(tile, b, 512), n, src->d);
            ea_codes u = ea_codes_load((const uint8_t *)src->qs, 0, 0xff);
            for (int v = 0; v < 4; v++)
                u.x[v] ^= EA_EACH_BYTE(0x80); /* q + 128 */
            ea_pack_plane8(codes2(tile, b, 512), n, u);
        }
    }
}

/* Q4_1: 4-bit plane. */
static void pack_q4_1(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    for (int b = 0; b < k / EA_QK; b++, tile += 64 + 256) {
        for (int n = 0; n < n_cols; n++) {
            const ea_block_q4_1 *src = (const ea_block_q4_1 *)(rows + (size_t)n * row_bytes) + b;
            ea_pack_f16(tile, n, src->d);
            ea_pack_f16(tile + 32, n, src->m);
            ea_pack_plane4(tile + 64, n, nibbles(src->qs));
        }
    }
}

/* Q5_1: 4-bit plane, then 1-bit plane. */
static void pack_q5_1(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    for (int b = 0; b < k / EA_QK; b++, tile += 64 + 320) {
        for (int n = 0; n < n_cols; n++) {
            const ea_block_q5_1 *src = (const ea_block_q5_1 *)(rows + (size_t)n * row_bytes) + b;
            ea_pack_f16(tile, n, src->d);
            ea_pack_f16(tile + 32, n, src->m);
            ea_pack_plane4(tile + 64, n, nibbles(src->qs));
            fifth_bits(tile + 64 + 256, n, src->qh);
        }
    }
}

#define LAYOUT(name, dtype, n_blocks, n_code_bytes, fn)                  \
    const ea_tile_layout ea_layout_##name = {.type = EA_DTYPE_##dtype,   \
                                             .form = EA_FORM_Q8,         \
                                             .sb_blocks = n_blocks,      \
                                             .head_bytes = 64,           \
                                             .code_bytes = n_code_bytes, \
                                             .pack = fn}
LAYOUT(q4_0, Q4_0, 2, 256, pack_q4_0);
LAYOUT(iq4_nl, IQ4_NL, 2, 256, pack_q4_0);
LAYOUT(q5_0, Q5_0, 2, 320, pack_q5_0);
LAYOUT(q8_0, Q8_0, 2, 512, pack_q8_0);
LAYOUT(q4_1, Q4_1, 1, 256, pack_q4_1);
LAYOUT(q5_1, Q5_1, 1, 320, pack_q5_1);
