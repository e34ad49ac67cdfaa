/* pack_k.c: tile layouts of the formats with super-blocks of 256 (eight 32-blocks).
 *
 * Q4_K, Q5_K, Q2_K: header of 320 bytes: d (16 x f16), dmin (16 x f16), then 256 bytes of small
 * scales: Q4_K, Q5_K  sc[8][16], m[8][16]   one row a 32-block, u8 Q2_K        scm[16][16] one row
 * a half block, scale in the low, minimum in the high nibble Q6_K, Q3_K: no minimum; the
 * super-blocks' d stand together in front of the tile, so that a header is whole cache lines:
 * sc[16][16], one row a half block, int8. Codes of a 32-block: Q4_K 4-bit plane; Q5_K + 1-bit
 * plane; Q6_K + 2-bit plane (u = q + 32); Q2_K 2-bit plane; Q3_K + 1-bit plane of the third bit (u
 * = q + 4). */
#include "kernel/pack.h"
#include "quant/blocks.h"

enum { HEAD_MIN = 320, HEAD = 256, N_BLOCKS = EA_QK_K / EA_Q8_K };

/* Codes of a super-block, by 32-block. */
typedef ea_codes ea_codes_k[N_BLOCKS];

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

static void put_q4k_scales(uint8_t *sb, int n, ea_f16 d, ea_f16 dmin, const uint8_t *packed)
{
    uint8_t sc[8], m[8];
    ea_q4k_scales_unpack(packed, sc, m);
    ea_pack_f16(sb, n, d);
    ea_pack_f16(sb + 32, n, dmin);
    for (int i = 0; i < 8; i++) {
        scale_row(sb + 64, i)[n] = sc[i];
        scale_row(sb + 64, 8 + i)[n] = m[i];
    }
}

static void pack_q4_k(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    for (int i = 0; i < k / EA_QK_K; i++, tile += HEAD_MIN + N_BLOCKS * 256) {
        ea_codes_k u = {{{0}}};
        for (int n = 0; n < n_cols; n++) {
            const ea_block_q4_k *src = (const ea_block_q4_k *)(rows + (size_t)n * row_bytes) + i;
            put_q4k_scales(tile, n, src->d, src->dmin, src->scales);
            for (int s = 0; s < N_BLOCKS; s++)
                for (int l = 0; l < 32; l++)
                    u[s][n][l] = src->qs[s / 2 * 32 + l] >> (s % 2 * 4) & 15;
        }
        for (int s = 0; s < N_BLOCKS; s++)
            ea_pack_plane4(tile + HEAD_MIN + s * 256, u[s]);
    }
}

static void pack_q5_k(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    for (int i = 0; i < k / EA_QK_K; i++, tile += HEAD_MIN + N_BLOCKS * 320) {
        ea_codes_k u = {{{0}}};
        for (int n = 0; n < n_cols; n++) {
            const ea_block_q5_k *src = (const ea_block_q5_k *)(rows + (size_t)n * row_bytes) + i;
            put_q4k_scales(tile, n, src->d, src->dmin, src->scales);
            for (int s = 0; s < N_BLOCKS; s++)
                for (int l = 0; l < 32; l++)
                    u[s][n][l] = (uint8_t)((src->qs[s / 2 * 32 + l] >> (s % 2 * 4) & 15) |
                                           (src->qh[l] >> s & 1) << 4);
        }
        for (int s = 0; s < N_BLOCKS; s++) {
            ea_pack_plane4(tile + HEAD_MIN + s * 320, u[s]);
            ea_pack_plane1(tile + HEAD_MIN + s * 320 + 256, u[s], 4);
        }
    }
}

static void pack_q6_k(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    uint8_t *d = tile;
    tile += front(k);
    for (int i = 0; i < k / EA_QK_K; i++, tile += HEAD + N_BLOCKS * 384, d += 2 * EA_TILE_N) {
        ea_codes_k u = {{{0}}};
        for (int n = 0; n < n_cols; n++) {
            const ea_block_q6_k *src = (const ea_block_q6_k *)(rows + (size_t)n * row_bytes) + i;
            ea_pack_f16(d, n, src->d);
            for (int j = 0; j < 16; j++)
                scale_row(tile, j)[n] = (uint8_t)src->scales[j];
            for (int s = 0; s < N_BLOCKS; s++) {
                const uint8_t *ql = src->ql + s / 4 * 64 + s % 2 * 32, *qh = src->qh + s / 4 * 32;
                for (int l = 0; l < 32; l++)
                    u[s][n][l] = (uint8_t)((ql[l] >> (s % 4 / 2 * 4) & 15) |
                                           (qh[l] >> (s % 4 * 2) & 3) << 4);
            }
        }
        for (int s = 0; s < N_BLOCKS; s++) {
            ea_pack_plane4(tile + HEAD + s * 384, u[s]);
            ea_pack_plane2(tile + HEAD + s * 384 + 256, u[s], 4);
        }
    }
}

/* The low two bits of Q2_K and Q3_K: 32-block s of a super-block. */
static void two_bits(const uint8_t *qs, int s, uint8_t *u)
{
    for (int l = 0; l < 32; l++)
        u[l] = qs[s / 4 * 32 + l] >> (s % 4 * 2) & 3;
}

static void pack_q2_k(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    for (int i = 0; i < k / EA_QK_K; i++, tile += HEAD_MIN + N_BLOCKS * 128) {
        ea_codes_k u = {{{0}}};
        for (int n = 0; n < n_cols; n++) {
            const ea_block_q2_k *src = (const ea_block_q2_k *)(rows + (size_t)n * row_bytes) + i;
            ea_pack_f16(tile, n, src->d);
            ea_pack_f16(tile + 32, n, src->dmin);
            for (int j = 0; j < 16; j++)
                scale_row(tile + 64, j)[n] = src->scales[j];
            for (int s = 0; s < N_BLOCKS; s++)
                two_bits(src->qs, s, u[s][n]);
        }
        for (int s = 0; s < N_BLOCKS; s++)
            ea_pack_plane2(tile + HEAD_MIN + s * 128, u[s], 0);
    }
}

static void pack_q3_k(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    uint8_t *d = tile;
    tile += front(k);
    for (int i = 0; i < k / EA_QK_K; i++, tile += HEAD + N_BLOCKS * 192, d += 2 * EA_TILE_N) {
        ea_codes_k u = {{{0}}};
        for (int n = 0; n < n_cols; n++) {
            const ea_block_q3_k *src = (const ea_block_q3_k *)(rows + (size_t)n * row_bytes) + i;
            int8_t sc[16];
            ea_q3k_scales_unpack(src->scales, sc);
            ea_pack_f16(d, n, src->d);
            for (int j = 0; j < 16; j++)
                scale_row(tile, j)[n] = (uint8_t)sc[j];
            for (int s = 0; s < N_BLOCKS; s++) {
                two_bits(src->qs, s, u[s][n]);
                for (int l = 0; l < 32; l++)
                    u[s][n][l] |= (uint8_t)((src->hmask[l] >> s & 1) << 2);
            }
        }
        for (int s = 0; s < N_BLOCKS; s++) {
            ea_pack_plane2(tile + HEAD + s * 192, u[s], 0);
            ea_pack_plane1(tile + HEAD + s * 192 + 128, u[s], 2);
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
