/* unpack.c: see unpack.h. One block of the file at a time is put together again from its column of
 * the tile, the inverse of the packers, and goes through the format's own conversion: so there is
 * one definition of what a block means. */
#include "kernel/unpack.h"

#include <string.h>

#include "kernel/matmul.h"
#include "quant/blocks.h"

enum { N_BLOCKS = EA_QK_K / EA_Q8_K };

/* Any block of the file. */
typedef union any_block {
    ea_block_q4_0 q4_0; /* and IQ4_NL */
    ea_block_q4_1 q4_1;
    ea_block_q5_0 q5_0;
    ea_block_q5_1 q5_1;
    ea_block_q8_0 q8_0;
    ea_block_q2_k q2_k;
    ea_block_q3_k q3_k;
    ea_block_q4_k q4_k;
    ea_block_q5_k q5_k;
    ea_block_q6_k q6_k;
} any_block;

/* The 32 codes of column n in the planes at p; their number of bytes tells which planes there are.
 */
static void read_codes(const uint8_t *p, int code_bytes, int n, uint8_t *u)
{
    bool four = code_bytes == 256 || code_bytes == 320 || code_bytes == 384;
    bool two = code_bytes == 128 || code_bytes == 192 || code_bytes == 384;
    bool one = code_bytes == 192 || code_bytes == 320;
    p += 4 * n;
    for (int i = 0; i < EA_Q8_K; i++) {
        int g = i / 4, j = i % 4, low = 0;
        const uint8_t *at = p;
        u[i] = 0;
        if (code_bytes == 512)
            u[i] = at[64 * g + j];
        if (four) {
            u[i] = at[64 * (g / 2) + j] >> (4 * (g % 2)) & 15;
            low = 4;
            at += 256;
        }
        if (two) {
            u[i] |= (uint8_t)((at[64 * (g / 4) + j] >> (2 * (g % 4)) & 3) << low);
            low += 2;
            at += 128;
        }
        if (one)
            u[i] |= (uint8_t)((at[j] >> g & 1) << low);
    }
}

static void nibbles(const uint8_t *u, uint8_t *qs)
{
    for (int i = 0; i < EA_QK / 2; i++)
        qs[i] = (uint8_t)((u[i] & 15) | (u[i + EA_QK / 2] & 15) << 4);
}

static void fifth_bits(const uint8_t *u, uint8_t *qh)
{
    for (int i = 0; i < EA_QK; i++)
        qh[i / 8] |= (uint8_t)((u[i] >> 4 & 1) << (i % 8));
}

static ea_f16 read_f16(const uint8_t *p)
{
    ea_f16 h;
    memcpy(&h, p, sizeof h);
    return h;
}

/* A 32-block: `head` is its row of scales (and, 32 bytes on, minima), u its codes. */
static void small_block(ea_dtype type, const uint8_t *head, const uint8_t *u, any_block *b)
{
    ea_f16 d = read_f16(head), m = read_f16(head + 2 * EA_TILE_N);
    switch (type) {
    case EA_DTYPE_Q4_1:
        b->q4_1.d = d;
        b->q4_1.m = m;
        nibbles(u, b->q4_1.qs);
        break;
    case EA_DTYPE_Q5_0:
        b->q5_0.d = d;
        nibbles(u, b->q5_0.qs);
        fifth_bits(u, b->q5_0.qh);
        break;
    case EA_DTYPE_Q5_1:
        b->q5_1.d = d;
        b->q5_1.m = m;
        nibbles(u, b->q5_1.qs);
        fifth_bits(u, b->q5_1.qh);
        break;
    case EA_DTYPE_Q8_0:
        b->q8_0.d = d;
        for (int i = 0; i < EA_QK; i++)
            b->q8_0.qs[i] = (int8_t)(u[i] - 128);
        break;
    default:
        b->q4_0.d = d;
        nibbles(u, b->q4_0.qs);
        break;
    }
}

/* Where the parts of column n of a super-block of 256 lie. */
typedef struct column {
    const uint8_t *d;      /* scale; minimum 32 bytes on */
    const uint8_t *scales; /* small scales, one every 16 bytes */
    const uint8_t *codes;
    int n;
} column;

static uint8_t scale(const column *c, int i)
{
    return c->scales[EA_TILE_N * i];
}

static void q45_k(const column *c, bool fifth, any_block *b)
{
    uint8_t sc[8], m[8], u[EA_Q8_K];
    uint8_t *qs = fifth ? b->q5_k.qs : b->q4_k.qs;
    for (int i = 0; i < 8; i++) {
        sc[i] = scale(c, i);
        m[i] = scale(c, 8 + i);
    }
    b->q4_k.d = read_f16(c->d); /* both blocks begin alike */
    b->q4_k.dmin = read_f16(c->d + 2 * EA_TILE_N);
    ea_q4k_scales_pack(sc, m, b->q4_k.scales);
    for (int s = 0; s < N_BLOCKS; s++) {
        read_codes(c->codes + s * (fifth ? 320 : 256), fifth ? 320 : 256, c->n, u);
        for (int l = 0; l < EA_Q8_K; l++) {
            qs[s / 2 * 32 + l] |= (uint8_t)((u[l] & 15) << (s % 2 * 4));
            if (fifth)
                b->q5_k.qh[l] |= (uint8_t)((u[l] >> 4) << s);
        }
    }
}

static void q6_k(const column *c, any_block *b)
{
    uint8_t u[EA_Q8_K];
    b->q6_k.d = read_f16(c->d);
    for (int i = 0; i < 16; i++)
        b->q6_k.scales[i] = (int8_t)scale(c, i);
    for (int s = 0; s < N_BLOCKS; s++) {
        uint8_t *ql = b->q6_k.ql + s / 4 * 64 + s % 2 * 32, *qh = b->q6_k.qh + s / 4 * 32;
        read_codes(c->codes + s * 384, 384, c->n, u);
        for (int l = 0; l < EA_Q8_K; l++) {
            ql[l] |= (uint8_t)((u[l] & 15) << (s % 4 / 2 * 4));
            qh[l] |= (uint8_t)((u[l] >> 4) << (s % 4 * 2));
        }
    }
}

static void q23_k(const column *c, bool third, any_block *b)
{
    uint8_t u[EA_Q8_K];
    uint8_t *qs = third ? b->q3_k.qs : b->q2_k.qs;
    if (third) {
        int8_t sc[16];
        for (int i = 0; i < 16; i++)
            sc[i] = (int8_t)scale(c, i);
        ea_q3k_scales_pack(sc, b->q3_k.scales);
        b->q3_k.d = read_f16(c->d);
    } else {
        for (int i = 0; i < 16; i++)
            b->q2_k.scales[i] = scale(c, i);
        b->q2_k.d = read_f16(c->d);
        b->q2_k.dmin = read_f16(c->d + 2 * EA_TILE_N);
    }
    for (int s = 0; s < N_BLOCKS; s++) {
        read_codes(c->codes + s * (third ? 192 : 128), third ? 192 : 128, c->n, u);
        for (int l = 0; l < EA_Q8_K; l++) {
            qs[s / 4 * 32 + l] |= (uint8_t)((u[l] & 3) << (s % 4 * 2));
            if (third)
                b->q3_k.hmask[l] |= (uint8_t)((u[l] >> 2) << s);
        }
    }
}

/* Super-block i of column n. */
static void super_block(const ea_tile_layout *l, const uint8_t *tile, int k, int n, int i,
                        any_block *b)
{
    const uint8_t *sb = tile + ea_layout_front(l, k) + (size_t)i * ea_layout_sb_bytes(l);
    column c = {.d = sb + 2 * n, .scales = sb + 64 + n, .codes = sb + l->head_bytes, .n = n};
    if (l->front_bytes) {
        c.d = tile + (size_t)i * (size_t)l->front_bytes + 2 * n;
        c.scales = sb + n;
    }
    switch (l->type) {
    case EA_DTYPE_Q4_K: q45_k(&c, false, b); break;
    case EA_DTYPE_Q5_K: q45_k(&c, true, b); break;
    case EA_DTYPE_Q6_K: q6_k(&c, b); break;
    case EA_DTYPE_Q3_K: q23_k(&c, true, b); break;
    default: q23_k(&c, false, b); break;
    }
}

/* 32-block i of column n. */
static void plain_block(const ea_tile_layout *l, const uint8_t *tile, int n, int i, any_block *b)
{
    uint8_t u[EA_Q8_K];
    const uint8_t *sb = tile + (size_t)(i / l->sb_blocks) * ea_layout_sb_bytes(l);
    int at = i % l->sb_blocks;
    read_codes(sb + l->head_bytes + at * l->code_bytes, l->code_bytes, n, u);
    small_block(l->type, sb + 2 * EA_TILE_N * at + 2 * n, u, b);
}

void ea_matrix_row(const ea_matrix *m, int row, float *out)
{
    EA_ASSERT(row >= 0 && row < m->n);
    const ea_tile_layout *l = m->impl->layout;
    const ea_dtype_info *info = ea_dtype_find((uint32_t)m->type);
    const uint8_t *tile = m->data + (size_t)(row / EA_TILE_N) * m->tile_bytes;
    int n = row % EA_TILE_N;
    if (l->form == EA_FORM_F32) {
        size_t size = (size_t)info->block_bytes;
        for (int i = 0; i < m->k; i++)
            info->dequantise(tile + ((size_t)i * EA_TILE_N + (size_t)n) * size, out + i, 1);
        return;
    }
    for (int i = 0; i < m->k / info->block; i++) {
        any_block b;
        memset(&b, 0, sizeof b);
        if (info->block == EA_QK_K)
            super_block(l, tile, m->k, n, i, &b);
        else
            plain_block(l, tile, n, i, &b);
        info->dequantise(&b, out + (size_t)i * (size_t)info->block, info->block);
    }
}
