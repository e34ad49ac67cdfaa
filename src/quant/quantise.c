/* quantise.c: floats to blocks, for tests and tiny models: right and repeatable rather than best.
 * Values are expected finite and small enough for an f16 scale (|x| < 65504); others are clamped
 * and give some block, never undefined behaviour.
 *
 * Method. Small blocks: the scale follows from the range. Super-blocks: a wanted scale (and
 * minimum) per sub-block follows from its range, the super-block's d from the largest of them, and
 * the sub-block's integer scale (and minimum) is the one of least squared error among the rounded
 * value and its neighbours. */
#include <math.h>
#include <string.h>

#include "quant/blocks.h"
#include "quant/convert.h"

/* Nearest integer in lo..hi; NaN gives lo. */
static int round_clamp(float x, int lo, int hi)
{
    if (!(x > (float)lo))
        return lo;
    return x >= (float)hi ? hi : (int)lrintf(x);
}

static float inverse(float d)
{
    return d != 0.0f ? 1.0f / d : 0.0f;
}

/* Round to f16 and say what was stored, so that the integers are chosen for the stored scale. */
static ea_f16 store_f16(float x, float *stored)
{
    ea_f16 h = ea_f32_to_f16(x);
    *stored = ea_f16_to_f32(h);
    return h;
}

/* The value of largest magnitude, with its sign. */
static float signed_max(const float *x, int n)
{
    float best = 0.0f;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(best))
            best = x[i];
    return best;
}

static void range(const float *x, int n, float *lo, float *hi)
{
    *lo = *hi = x[0];
    for (int i = 1; i < n; i++) {
        *lo = x[i] < *lo ? x[i] : *lo;
        *hi = x[i] > *hi ? x[i] : *hi;
    }
}

/* ---- plain floats ---- */

void ea_quantise_f32(const float *src, void *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof *src);
}

void ea_quantise_f16(const float *src, void *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        ea_f16 h = ea_f32_to_f16(src[i]);
        memcpy((char *)dst + i * 2, &h, sizeof h);
    }
}

void ea_quantise_bf16(const float *src, void *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        ea_bf16 b = ea_f32_to_bf16(src[i]);
        memcpy((char *)dst + i * 2, &b, sizeof b);
    }
}

/* ---- small blocks ---- */

/* Integers of one block: q = clamp(round((x - m) / d)) + zero. */
static void pick(const float *x, float d, float m, int zero, int max, uint8_t q[EA_QK])
{
    float inv = inverse(d);
    for (int i = 0; i < EA_QK; i++)
        q[i] = (uint8_t)(round_clamp((x[i] - m) * inv, -zero, max - zero) + zero);
}

static void pack_nibbles(const uint8_t q[EA_QK], uint8_t *qs)
{
    for (int i = 0; i < EA_QK / 2; i++)
        qs[i] = (uint8_t)((q[i] & 15) | (q[i + EA_QK / 2] & 15) << 4);
}

static void pack_fifth_bits(const uint8_t q[EA_QK], uint8_t *qh)
{
    memset(qh, 0, 4);
    for (int i = 0; i < EA_QK; i++)
        qh[i / 8] |= (uint8_t)((q[i] >> 4 & 1) << (i % 8));
}

/* Symmetric formats have one more level below zero than above, so the value of largest magnitude is
 * put on the lowest level, whatever its sign. */
void ea_quantise_q4_0(const float *src, void *dst, int64_t n)
{
    ea_block_q4_0 *b = dst;
    uint8_t q[EA_QK];
    float d;
    for (int64_t i = 0; i < n / EA_QK; i++, b++, src += EA_QK) {
        b->d = store_f16(signed_max(src, EA_QK) / -8.0f, &d);
        pick(src, d, 0.0f, 8, 15, q);
        pack_nibbles(q, b->qs);
    }
}

void ea_quantise_q5_0(const float *src, void *dst, int64_t n)
{
    ea_block_q5_0 *b = dst;
    uint8_t q[EA_QK];
    float d;
    for (int64_t i = 0; i < n / EA_QK; i++, b++, src += EA_QK) {
        b->d = store_f16(signed_max(src, EA_QK) / -16.0f, &d);
        pick(src, d, 0.0f, 16, 31, q);
        pack_nibbles(q, b->qs);
        pack_fifth_bits(q, b->qh);
    }
}

void ea_quantise_q4_1(const float *src, void *dst, int64_t n)
{
    ea_block_q4_1 *b = dst;
    uint8_t q[EA_QK];
    float lo, hi, d, m;
    for (int64_t i = 0; i < n / EA_QK; i++, b++, src += EA_QK) {
        range(src, EA_QK, &lo, &hi);
        b->d = store_f16((hi - lo) / 15.0f, &d);
        b->m = store_f16(lo, &m);
        pick(src, d, m, 0, 15, q);
        pack_nibbles(q, b->qs);
    }
}

void ea_quantise_q5_1(const float *src, void *dst, int64_t n)
{
    ea_block_q5_1 *b = dst;
    uint8_t q[EA_QK];
    float lo, hi, d, m;
    for (int64_t i = 0; i < n / EA_QK; i++, b++, src += EA_QK) {
        range(src, EA_QK, &lo, &hi);
        b->d = store_f16((hi - lo) / 31.0f, &d);
        b->m = store_f16(lo, &m);
        pick(src, d, m, 0, 31, q);
        pack_nibbles(q, b->qs);
        pack_fifth_bits(q, b->qh);
    }
}

void ea_quantise_q8_0(const float *src, void *dst, int64_t n)
{
    ea_block_q8_0 *b = dst;
    float d;
    for (int64_t i = 0; i < n / EA_QK; i++, b++, src += EA_QK) {
        b->d = store_f16(fabsf(signed_max(src, EA_QK)) / 127.0f, &d);
        float inv = inverse(d);
        for (int j = 0; j < EA_QK; j++)
            b->qs[j] = (int8_t)round_clamp(src[j] * inv, -127, 127);
    }
}

static uint8_t nearest_iq4nl(float x)
{
    int best = 0;
    for (int i = 1; i < 16; i++)
        if (fabsf(x - (float)ea_iq4nl_values[i]) < fabsf(x - (float)ea_iq4nl_values[best]))
            best = i;
    return (uint8_t)best;
}

void ea_quantise_iq4_nl(const float *src, void *dst, int64_t n)
{
    ea_block_iq4_nl *b = dst;
    uint8_t q[EA_QK];
    float d;
    for (int64_t i = 0; i < n / EA_QK; i++, b++, src += EA_QK) {
        b->d = store_f16(signed_max(src, EA_QK) / (float)ea_iq4nl_values[0], &d);
        float inv = inverse(d);
        for (int j = 0; j < EA_QK; j++)
            q[j] = nearest_iq4nl(src[j] * inv);
        pack_nibbles(q, b->qs);
    }
}

/* ---- super-blocks ---- */

/* Squared error of x against step * q - low with the best q in lo..hi. */
static float squared_error(const float *x, int n, float step, float low, int lo, int hi)
{
    float inv = inverse(step), sum = 0.0f;
    for (int i = 0; i < n; i++) {
        float e = x[i] + low - step * (float)round_clamp((x[i] + low) * inv, lo, hi);
        sum += e * e;
    }
    return sum;
}

/* A super-block with minima under way: what Q2_K, Q4_K and Q5_K have in common. */
typedef struct ea_min_block {
    ea_f16 d, dmin;
    uint8_t sc[16], m[16];
    uint8_t q[EA_QK_K];
} ea_min_block;

/* sub: elements of a sub-block; sc_max: largest integer scale and minimum; q_max: largest q. */
static void fit_min_block(const float *x, int sub, int sc_max, int q_max, ea_min_block *b)
{
    int n_sub = EA_QK_K / sub;
    float scale[16], low[16], max_scale = 0.0f, max_low = 0.0f, d, dmin;
    for (int s = 0; s < n_sub; s++) {
        float lo, hi;
        range(x + s * sub, sub, &lo, &hi);
        low[s] = lo < 0.0f ? -lo : 0.0f; /* minima are stored negated and never positive */
        scale[s] = fmaxf(hi + low[s], 0.0f) / (float)q_max;
        max_scale = fmaxf(max_scale, scale[s]);
        max_low = fmaxf(max_low, low[s]);
    }
    b->d = store_f16(max_scale / (float)sc_max, &d);
    b->dmin = store_f16(max_low / (float)sc_max, &dmin);
    for (int s = 0; s < n_sub; s++) {
        int sc0 = round_clamp(scale[s] * inverse(d), 0, sc_max);
        int m0 = round_clamp(low[s] * inverse(dmin), 0, sc_max);
        float best = INFINITY;
        b->sc[s] = (uint8_t)sc0;
        b->m[s] = (uint8_t)m0;
        for (int sc = sc0 - 1; sc <= sc0 + 1; sc++)
            for (int m = m0 - 1; m <= m0 + 1; m++) {
                if (sc < 0 || sc > sc_max || m < 0 || m > sc_max)
                    continue;
                float e = squared_error(x + s * sub, sub, d * (float)sc, dmin * (float)m, 0, q_max);
                if (e < best) {
                    best = e;
                    b->sc[s] = (uint8_t)sc;
                    b->m[s] = (uint8_t)m;
                }
            }
        float step = d * (float)b->sc[s], inv = inverse(step), l = dmin * (float)b->m[s];
        for (int j = s * sub; j < (s + 1) * sub; j++)
            b->q[j] = (uint8_t)round_clamp((x[j] + l) * inv, 0, q_max);
    }
}

/* The symmetric ones, Q3_K and Q6_K: q_min = -4 or -32, sc_min = -32 or -128; q is stored minus
 * q_min. */
static ea_f16 fit_symmetric_block(const float *x, int q_min, int sc_min, int8_t sc[16],
                                  uint8_t q[EA_QK_K])
{
    float scale[16], d;
    for (int s = 0; s < 16; s++)
        scale[s] = signed_max(x + s * 16, 16) / (float)q_min;
    ea_f16 h = store_f16(signed_max(scale, 16) / (float)sc_min, &d);
    for (int s = 0; s < 16; s++) {
        int sc0 = round_clamp(scale[s] * inverse(d), sc_min, -sc_min - 1);
        float best = INFINITY;
        sc[s] = (int8_t)sc0;
        for (int c = sc0 - 1; c <= sc0 + 1; c++) {
            if (c < sc_min || c > -sc_min - 1)
                continue;
            float e = squared_error(x + s * 16, 16, d * (float)c, 0.0f, q_min, -q_min - 1);
            if (e < best) {
                best = e;
                sc[s] = (int8_t)c;
            }
        }
        float inv = inverse(d * (float)sc[s]);
        for (int j = s * 16; j < (s + 1) * 16; j++)
            q[j] = (uint8_t)(round_clamp(x[j] * inv, q_min, -q_min - 1) - q_min);
    }
    return h;
}

void ea_q4k_scales_pack(const uint8_t sc[8], const uint8_t m[8], uint8_t packed[EA_K_SCALES])
{
    for (int i = 0; i < 4; i++) {
        packed[i] = (uint8_t)((sc[i] & 63) | (sc[i + 4] >> 4) << 6);
        packed[i + 4] = (uint8_t)((m[i] & 63) | (m[i + 4] >> 4) << 6);
        packed[i + 8] = (uint8_t)((sc[i + 4] & 15) | (m[i + 4] & 15) << 4);
    }
}

void ea_q3k_scales_pack(const int8_t sc[16], uint8_t packed[EA_K_SCALES])
{
    memset(packed, 0, EA_K_SCALES);
    for (int i = 0; i < 16; i++) {
        int v = sc[i] + 32;
        packed[i % 8] |= (uint8_t)((v & 15) << (i / 8 * 4));
        packed[8 + i % 4] |= (uint8_t)((v >> 4) << (2 * (i / 4)));
    }
}

/* The two low bits of every q, in the layout of Q2_K and Q3_K. */
static void pack_two_bits(const uint8_t q[EA_QK_K], uint8_t *qs)
{
    memset(qs, 0, EA_QK_K / 4);
    for (int j = 0; j < EA_QK_K; j++)
        qs[j / 128 * 32 + j % 32] |= (uint8_t)((q[j] & 3) << (j % 128 / 32 * 2));
}

/* The four low bits of every q, in the layout of Q4_K and Q5_K. */
static void pack_four_bits(const uint8_t q[EA_QK_K], uint8_t *qs)
{
    memset(qs, 0, EA_QK_K / 2);
    for (int j = 0; j < EA_QK_K; j++)
        qs[j / 64 * 32 + j % 32] |= (uint8_t)((q[j] & 15) << (j / 32 % 2 * 4));
}

/* Bit `bit` of every q: bit s of byte l for element 32 s + l (Q3_K's hmask, Q5_K's qh). */
static void pack_one_bit(const uint8_t q[EA_QK_K], int bit, uint8_t *bits)
{
    memset(bits, 0, EA_QK_K / 8);
    for (int j = 0; j < EA_QK_K; j++)
        bits[j % 32] |= (uint8_t)((q[j] >> bit & 1) << (j / 32));
}

void ea_quantise_q2_k(const float *src, void *dst, int64_t n)
{
    ea_block_q2_k *b = dst;
    ea_min_block fit;
    for (int64_t i = 0; i < n / EA_QK_K; i++, b++, src += EA_QK_K) {
        fit_min_block(src, 16, 15, 3, &fit);
        for (int s = 0; s < 16; s++)
            b->scales[s] = (uint8_t)(fit.sc[s] | fit.m[s] << 4);
        b->d = fit.d;
        b->dmin = fit.dmin;
        pack_two_bits(fit.q, b->qs);
    }
}

void ea_quantise_q3_k(const float *src, void *dst, int64_t n)
{
    ea_block_q3_k *b = dst;
    uint8_t q[EA_QK_K];
    int8_t sc[16];
    for (int64_t i = 0; i < n / EA_QK_K; i++, b++, src += EA_QK_K) {
        b->d = fit_symmetric_block(src, -4, -32, sc, q);
        ea_q3k_scales_pack(sc, b->scales);
        pack_two_bits(q, b->qs);
        pack_one_bit(q, 2, b->hmask);
    }
}

void ea_quantise_q4_k(const float *src, void *dst, int64_t n)
{
    ea_block_q4_k *b = dst;
    ea_min_block fit;
    for (int64_t i = 0; i < n / EA_QK_K; i++, b++, src += EA_QK_K) {
        fit_min_block(src, 32, 63, 15, &fit);
        b->d = fit.d;
        b->dmin = fit.dmin;
        ea_q4k_scales_pack(fit.sc, fit.m, b->scales);
        pack_four_bits(fit.q, b->qs);
    }
}

void ea_quantise_q5_k(const float *src, void *dst, int64_t n)
{
    ea_block_q5_k *b = dst;
    ea_min_block fit;
    for (int64_t i = 0; i < n / EA_QK_K; i++, b++, src += EA_QK_K) {
        fit_min_block(src, 32, 63, 31, &fit);
        b->d = fit.d;
        b->dmin = fit.dmin;
        ea_q4k_scales_pack(fit.sc, fit.m, b->scales);
        pack_four_bits(fit.q, b->qs);
        pack_one_bit(fit.q, 4, b->qh);
    }
}

void ea_quantise_q6_k(const float *src, void *dst, int64_t n)
{
    ea_block_q6_k *b = dst;
    uint8_t q[EA_QK_K];
    int8_t sc[16];
    for (int64_t i = 0; i < n / EA_QK_K; i++, b++, src += EA_QK_K) {
        b->d = fit_symmetric_block(src, -32, -128, sc, q);
        memcpy(b->scales, sc, sizeof b->scales);
        memset(b->ql, 0, sizeof b->ql);
        memset(b->qh, 0, sizeof b->qh);
        for (int j = 0; j < EA_QK_K; j++) {
            int half = j / 128, s = j % 128 / 32, l = j % 32;
            b->ql[half * 64 + l + s % 2 * 32] |= (uint8_t)((q[j] & 15) << (s / 2 * 4));
            b->qh[half * 32 + l] |= (uint8_t)(q[j] >> 4 << (2 * s));
        }
    }
}
