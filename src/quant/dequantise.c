/* dequantise.c: blocks to floats, the plain way. This is the oracle of every kernel test, so each
 * function follows the layout comment of its block in blocks.h and nothing else; speed is the
 * kernels' job. Products of a scale and an integer are taken in f32, left to right. */
#include <string.h>

#include "quant/blocks.h"
#include "quant/convert.h"

const int8_t ea_iq4nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};

void ea_q4k_scales_unpack(const uint8_t packed[EA_K_SCALES], uint8_t sc[8], uint8_t m[8])
{
    for (int i = 0; i < 4; i++) {
        sc[i] = packed[i] & 63;
        m[i] = packed[i + 4] & 63;
        sc[i + 4] = (uint8_t)((packed[i + 8] & 15) | (packed[i] >> 6) << 4);
        m[i + 4] = (uint8_t)(packed[i + 8] >> 4 | (packed[i + 4] >> 6) << 4);
    }
}

void ea_q3k_scales_unpack(const uint8_t packed[EA_K_SCALES], int8_t sc[16])
{
    for (int i = 0; i < 16; i++) {
        int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
        int high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
        sc[i] = (int8_t)((low | high << 4) - 32);
    }
}

/* ---- plain floats: by memcpy, since the source may be unaligned ---- */

void ea_dequantise_f32(const void *src, float *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof *dst);
}

void ea_dequantise_f16(const void *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        ea_f16 h;
        memcpy(&h, (const char *)src + i * 2, sizeof h);
        dst[i] = ea_f16_to_f32(h);
    }
}

void ea_dequantise_bf16(const void *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        ea_bf16 b;
        memcpy(&b, (const char *)src + i * 2, sizeof b);
        dst[i] = ea_bf16_to_f32(b);
    }
}

/* ---- small blocks ---- */

/* Element i of 16 bytes of nibble pairs. */
static int nibble(const uint8_t *qs, int i)
{
    return i < EA_QK / 2 ? qs[i] & 15 : qs[i - EA_QK / 2] >> 4;
}

/* The same with the fifth bit from qh. */
static int five_bits(const uint8_t *qs, const uint8_t *qh, int i)
{
    return nibble(qs, i) | (qh[i / 8] >> (i % 8) & 1) << 4;
}

void ea_dequantise_q4_0(const void *src, float *dst, int64_t n)
{
    const ea_block_q4_0 *b = src;
    for (int64_t i = 0; i < n / EA_QK; i++, b++)
        for (int j = 0; j < EA_QK; j++)
            *dst++ = (float)(nibble(b->qs, j) - 8) * ea_f16_to_f32(b->d);
}

void ea_dequantise_q4_1(const void *src, float *dst, int64_t n)
{
    const ea_block_q4_1 *b = src;
    for (int64_t i = 0; i < n / EA_QK; i++, b++)
        for (int j = 0; j < EA_QK; j++)
            *dst++ = (float)nibble(b->qs, j) * ea_f16_to_f32(b->d) + ea_f16_to_f32(b->m);
}

void ea_dequantise_q5_0(const void *src, float *dst, int64_t n)
{
    const ea_block_q5_0 *b = src;
    for (int64_t i = 0; i < n / EA_QK; i++, b++)
        for (int j = 0; j < EA_QK; j++)
            *dst++ = (float)(five_bits(b->qs, b->qh, j) - 16) * ea_f16_to_f32(b->d);
}

void ea_dequantise_q5_1(const void *src, float *dst, int64_t n)
{
    const ea_block_q5_1 *b = src;
    for (int64_t i = 0; i < n / EA_QK; i++, b++)
        for (int j = 0; j < EA_QK; j++)
            *dst++ = (float)five_bits(b->qs, b->qh, j) * ea_f16_to_f32(b->d) + ea_f16_to_f32(b->m);
}

void ea_dequantise_q8_0(const void *src, float *dst, int64_t n)
{
    const ea_block_q8_0 *b = src;
    for (int64_t i = 0; i < n / EA_QK; i++, b++)
        for (int j = 0; j < EA_QK; j++)
            *dst++ = (float)b->qs[j] * ea_f16_to_f32(b->d);
}

void ea_dequantise_iq4_nl(const void *src, float *dst, int64_t n)
{
    const ea_block_iq4_nl *b = src;
    for (int64_t i = 0; i < n / EA_QK; i++, b++)
        for (int j = 0; j < EA_QK; j++)
            *dst++ = (float)ea_iq4nl_values[nibble(b->qs, j)] * ea_f16_to_f32(b->d);
}

/* ---- super-blocks ---- */

/* Two bits of element j (0..255) in the layout that Q2_K and Q3_K share. */
static int two_bits(const uint8_t *qs, int j)
{
    return qs[j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3;
}

void ea_dequantise_q2_k(const void *src, float *dst, int64_t n)
{
    const ea_block_q2_k *b = src;
    for (int64_t i = 0; i < n / EA_QK_K; i++, b++) {
        float d = ea_f16_to_f32(b->d), dmin = ea_f16_to_f32(b->dmin);
        for (int j = 0; j < EA_QK_K; j++) {
            uint8_t sc = b->scales[j / 16];
            *dst++ = d * (float)(sc & 15) * (float)two_bits(b->qs, j) - dmin * (float)(sc >> 4);
        }
    }
}

void ea_dequantise_q3_k(const void *src, float *dst, int64_t n)
{
    const ea_block_q3_k *b = src;
    for (int64_t i = 0; i < n / EA_QK_K; i++, b++) {
        float d = ea_f16_to_f32(b->d);
        int8_t sc[16];
        ea_q3k_scales_unpack(b->scales, sc);
        for (int j = 0; j < EA_QK_K; j++) {
            int q = two_bits(b->qs, j) | (b->hmask[j % 32] >> (j / 32) & 1) << 2;
            *dst++ = d * (float)sc[j / 16] * (float)(q - 4);
        }
    }
}

void ea_dequantise_q4_k(const void *src, float *dst, int64_t n)
{
    const ea_block_q4_k *b = src;
    for (int64_t i = 0; i < n / EA_QK_K; i++, b++) {
        float d = ea_f16_to_f32(b->d), dmin = ea_f16_to_f32(b->dmin);
        uint8_t sc[8], m[8];
        ea_q4k_scales_unpack(b->scales, sc, m);
        for (int j = 0; j < EA_QK_K; j++) {
            int s = j / 32, q = b->qs[s / 2 * 32 + j % 32] >> (s % 2 * 4) & 15;
            *dst++ = d * (float)sc[s] * (float)q - dmin * (float)m[s];
        }
    }
}

void ea_dequantise_q5_k(const void *src, float *dst, int64_t n)
{
    const ea_block_q5_k *b = src;
    for (int64_t i = 0; i < n / EA_QK_K; i++, b++) {
        float d = ea_f16_to_f32(b->d), dmin = ea_f16_to_f32(b->dmin);
        uint8_t sc[8], m[8];
        ea_q4k_scales_unpack(b->scales, sc, m);
        for (int j = 0; j < EA_QK_K; j++) {
            int s = j / 32, l = j % 32;
            int q = (b->qs[s / 2 * 32 + l] >> (s % 2 * 4) & 15) | (b->qh[l] >> s & 1) << 4;
            *dst++ = d * (float)sc[s] * (float)q - dmin * (float)m[s];
        }
    }
}

void ea_dequantise_q6_k(const void *src, float *dst, int64_t n)
{
    const ea_block_q6_k *b = src;
    for (int64_t i = 0; i < n / EA_QK_K; i++, b++) {
        float d = ea_f16_to_f32(b->d);
        for (int j = 0; j < EA_QK_K; j++) {
            int half = j / 128, s = j % 128 / 32, l = j % 32;
            int low = b->ql[half * 64 + l + s % 2 * 32] >> (s / 2 * 4) & 15;
            int q = low | (b->qh[half * 32 + l] >> (2 * s) & 3) << 4;
            *dst++ = d * (float)b->scales[j / 16] * (float)(q - 32);
        }
    }
}
