/* pack_k.c: tile layouts of the formats with super-blocks of 256 (eight 32-blocks).
 *
 * Q4_K, Q5_K, Q2_K: header of 320 bytes: d (16 x f16), dmin (16 x f16), then 256 bytes of small
 * scales. Q4_K, Q5_K: sc[8][16], m[8][16], one row a 32-block, u8. Q2_K: scm[16][16], one row a
 * half block, scale in the low, minimum in the high nibble.
 *
 * Q6_K, Q3_K: no minimum; the super-blocks' d stand together in front of the tile, so that a header
 * is whole cache lines: sc[16][16], one row a half block, int8.
 *
 * Codes of a 32-block: Q4_K 4-bit plane; Q5_K + 1-bit plane; Q6_K 4-bit + 2-bit plane (u = q + 32);
 * Q2_K 2-bit plane; Q3_K + 1-bit plane of the third bit (u = q + 4). */
#include "kernel/pack.h"
#include "quant/blocks.h"

enum { HEAD_MIN = 320, HEAD = 256, N_BLOCKS = EA_QK_K / EA_Q8_K };

/* Row i (16 bytes) of the small scales that begin at `scales`. */
static uint8_t *scale_row(uint8_t *scales, int i)
{
    return scales + EA_TILE_N * i;
}

/* Bytes in front of the super-blocks of Q6_K and Q3_K. */
static size_t front(int k)
{
    return ((size_t)(k / EA_QK_K) * 2 * EA_TILE_N + 63) / 64 * 64;
}

/* Sixteen small scales of column n: bytes of lo, then of hi. */
static void put_scales(uint8_t *scales, int n, uint64_t lo, uint64_t hi)
{
    for (int i = 0; i < 8; i++) {
        scale_row(scales, i)[n] = (uint8_t)(lo >> (8 * i));
        scale_row(scales, 8 + i)[n] = (uint8_t)(hi >> (8 * i));
    }
}

/* ea_q4k_scales_unpack, four scales at a time. */
static void put_q4k_scales(uint8_t *sb, int n, ea_f16 d, ea_f16 dmin, const uint8_t *packed)
{
    uint32_t a, b, c;
    memcpy(&a, packed, 4);
    memcpy(&b, packed + 4, 4);
    memcpy(&c, packed + 8, 4);
    uint32_t sc = (c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u),
             m = (c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u);
    ea_pack_f16(sb, n, d);
    ea_pack_f16(sb + 32, n, dmin);
    put_scales(sb + 64, n, (a & 0x3f3f3f3fu) | (uint64_t)sc << 32,
               (b & 0x3f3f3f3fu) | (uint64_t)m << 32);
}

/* ea_q3k_scales_unpack, eight at a time. */
static void put_q3k_scales(uint8_t *sb, int n, const uint8_t *packed)
{
    const uint64_t top = EA_EACH_BYTE(0x80), zero = EA_EACH_BYTE(32);
    uint64_t low;
    uint32_t h;
    memcpy(&low, packed, 8);
    memcpy(&h, packed + 8, 4);
    const uint32_t two = 0x03030303u;
    uint64_t h0 = (h & two) | (uint64_t)(h >> 2 & two) << 32,
             h1 = (h >> 4 & two) | (uint64_t)(h >> 6 & two) << 32;
    uint64_t lo = (low & EA_EACH_BYTE(15)) | h0 << 4, hi = (low >> 4 & EA_EACH_BYTE(15)) | h1 << 4;
    /* Minus 32 in each byte, no borrow leaving it. */
    put_scales(sb, n, ((lo | top) - zero) ^ top, ((hi | top) - zero) ^ top);
}

static void pack_q4_k(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    for (int i = 0; i < k / EA_QK_K; i++, tile += HEAD_MIN + N_BLOCKS * 256) {
        for (int n = 0; n < n_cols; n++) {
            const ea_block_q4_k *src = (const ea_block_q4_k *)(rows + (size_t)n * row_bytes) + i;
            put_q4k_scales(tile, n, src->d, src->dmin, src->scales);
            for (int s = 0; s < N_BLOCKS; s++)
                ea_pack_plane4(tile + HEAD_MIN + s * 256, n,
                               ea_codes_load(src->qs + s / 2 * 32, s % 2 * 4, 15));
        }
    }
}

static void pack_q5_k(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    for (int i = 0; i < k / EA_QK_K; i++, tile += HEAD_MIN + N_BLOCKS * 320) {
        for (int n = 0; n < n_cols; n++) {
            const ea_block_q5_k *src = (const ea_block_q5_k *)(rows + (size_t)n * row_bytes) + i;
            put_q4k_scales(tile, n, src->d, src->dmin, src->scales);
            for (int s = 0; s < N_BLOCKS; s++) {
                uint8_t *codes = tile + HEAD_MIN + s * 320;
                ea_pack_plane4(codes, n, ea_codes_load(src->qs + s / 2 * 32, s % 2 * 4, 15));
                ea_pack_plane1(codes + 256, n, ea_codes_load(src->qh, s, 1));
            }
        }
    }
}

static void pack_q6_k(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    uint8_t *d = tile;
    tile += front(k);
    for (int i = 0; i < k / EA_QK_K; i++, tile += HEAD + N_BLOCKS * 384, d += 2 * EA_TILE_N) {
        for (int n = 0; n < n_cols; n++) {
            const ea_block_q6_k *src = (const ea_block_q6_k *)(rows + (size_t)n * row_bytes) + i;
            ea_pack_f16(d, n, src->d);
            uint64_t sc[2];
            memcpy(sc, src->scales, sizeof sc);
            put_scales(tile, n, sc[0], sc[1]);
            for (int s = 0; s < N_BLOCKS; s++) {
                const uint8_t *ql = src->ql + s / 4 * 64 + s % 2 * 32, *qh = src->qh + s / 4 * 32;
                uint8_t *codes = tile + HEAD + s * 384;
                ea_pack_plane4(codes, n, ea_codes_load(ql, s % 4 / 2 * 4, 15));
                ea_pack_plane2(codes + 256, n, ea_codes_load(qh, s % 4 * 2, 3));
            }
        }
    }
}

/* The low two bits of Q2_K and Q3_K: 32-block s of a super-block. */
static ea_codes two_bits(const uint8_t *qs, int s)
{
    return ea_codes_load(qs + s / 4 * 32, s % 4 * 2, 3);
}

static void pack_q2_k(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    for (int i = 0; i < k / EA_QK_K; i++, tile += HEAD_MIN + N_BLOCKS * 128) {
        for (int n = 0; n < n_cols; n++) {
            const ea_block_q2_k *src = (const ea_block_q2_k *)(rows + (size_t)n * row_bytes) + i;
            ea_pack_f16(tile, n, src->d);
            ea_pack_f16(tile + 32, n, src->dmin);
            uint64_t sc[2];
            memcpy(sc, src->scales, sizeof sc);
            put_scales(tile + 64, n, sc[0], sc[1]);
            for (int s = 0; s < N_BLOCKS; s++)
                ea_pack_plane2(tile + HEAD_MIN + s * 128, n, two_bits(src->qs, s));
        }
    }
}

static void pack_q3_k(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    uint8_t *d = tile;
    tile += front(k);
    for (int i = 0; i < k / EA_QK_K; i++, tile += HEAD + N_BLOCKS * 192, d += 2 * EA_TILE_N) {
        for (int n = 0; n < n_cols; n++) {
            const ea_block_q3_k *src = (const ea_block_q3_k *)(rows + (size_t)n * row_bytes) + i;
            ea_pack_f16(d, n, src->d);
            put_q3k_scales(tile, n, src->scales);
            for (int s = 0; s < N_BLOCKS; s++) {
                uint8_t *codes = tile + HEAD + s * 192;
                ea_pack_plane2(codes, n, two_bits(src->qs, s));
                ea_pack_plane1(codes + 128, n, ea_codes_load(src->hmask, s, 1));
            }
        }
    }
}

#define LAYOUT(name, dtype, n_front, n_head, n_code_bytes)               \
    const ea_tile_layout ea_layout_##name = {.type = EA_DTYPE_##dtype,   \
                                             .form = EA_FORM_Q8K,        \
                                             .sb_blocks = N_BLOCKS,      \
                                             .front_bytes = n_front,     \
                                             .head_bytes = n_head,       \
                                             .code_bytes = n_code_bytes, \
                                             .pack = pack_##name}
LAYOUT(q2_k, Q2_K, 0, HEAD_MIN, 128);
LAYOUT(q3_k, Q3_K, 2 * EA_TILE_N, HEAD, 192);
LAYOUT(q4_k, Q4_K, 0, HEAD_MIN, 256);
LAYOUT(q5_k, Q5_K, 0, HEAD_MIN, 320);
LAYOUT(q6_k, Q6_K, 2 * EA_TILE_N, HEAD, 384);
