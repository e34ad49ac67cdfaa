/* kv_vec.h: writing of KV pages, included by attention.c of the vector folders after their vec16.h,
 * with EA_KV_NAME. kernel.h has the layouts, ref/attention.c the bits. */
#include "kernel/kernel.h"

static void write_f16(uint8_t *k_block, uint8_t *v_block, int slot, int head_dim, const float *k,
                      const float *v)
{
    ea_f16 *k_out = (ea_f16 *)k_block + (ptrdiff_t)(slot / 16) * head_dim * 16 + slot % 16;
    ea_f16 *v_out = (ea_f16 *)v_block + (ptrdiff_t)slot * head_dim;
    for (int d = 0; d < head_dim; d += 16) {
        ea_f16 k16[16], v16s[16];
        int lanes = EA_MIN(16, head_dim - d);
        v16_store_f16(k16, v16_load_part(k + d, lanes));
        v16_store_f16(v16s, v16_load_part(v + d, lanes));
        for (int j = 0; j < lanes; j++) {
            k_out[(d + j) * 16] = k16[j];
            v_out[d + j] = v16s[j];
        }
    }
}

/* Codes of 32 numbers, and their scale. */
VEC_INLINE ea_f16 quantise_block(const bool q8, const float *x, uint32_t code[8])
{
    const v16 zero = v16_set1(0), none = v16_set1(-INFINITY);
    v16 x0 = v16_load(x), x1 = v16_load(x + 16), m0 = v16_sub(zero, x0), m1 = v16_sub(zero, x1);
    float high = v16_hmax(v16_max(x1, v16_max(x0, none)));
    float minus_low = v16_hmax(v16_max(m1, v16_max(m0, none)));
    float not_finite = v16_hsum(v16_fma(x0, zero, v16_mul(x1, zero)));
    bool up = high >= minus_low;
    float d = q8 ? (up ? high : minus_low) / 127.0f : (up ? high : -minus_low) / -8.0f;
    ea_f16 scale = ea_f32_to_f16(not_finite == 0 ? d : NAN);
    float e = ea_f16_to_f32(scale);
    if (!(fabsf(e) > 0)) {
        memset(code, 0, EA_KV_BLOCK);
        return e == 0 ? (ea_f16){0} : scale;
    }
    v16 inv = v16_set1(1.0f / e);
    x0 = v16_mul(x0, inv);
    x1 = v16_mul(x1, inv);
    if (!q8) {
        x0 = v16_max(v16_min(x0, v16_set1(7)), v16_set1(-8));
        x1 = v16_max(v16_min(x1, v16_set1(7)), v16_set1(-8));
    }
    v16_store_i8(code, x0);
    v16_store_i8(code + 4, x1);
    return scale;
}

/* Four codes + 8 in the low halves of bytes, four others in the high ones. */
VEC_INLINE uint32_t pack_nibbles(uint32_t low, uint32_t high)
{
    const uint32_t sign = 0x08080808u, mask = 0x0f0f0f0fu;
    return ((low ^ sign) & mask) | ((high ^ sign) & mask) << 4;
}

VEC_INLINE void put_word(uint8_t *p, uint32_t word)
{
    memcpy(p, &word, sizeof word);
}

VEC_INLINE void write_quant(const bool q8, uint8_t *k_block, uint8_t *v_block, int slot,
                            int head_dim, const float *k, const float *v)
{
    size_t codes = ea_kv_codes_bytes(q8 ? EA_KV_Q8_0 : EA_KV_Q4_0, head_dim);
    ea_f16 *k_scale = (ea_f16 *)(k_block + codes) + slot;
    ea_f16 *v_scale = (ea_f16 *)(v_block + codes) + slot;
    k_block += codes / 2 * (size_t)(slot / 16) + (size_t)(slot % 16) * 4;
    v_block += codes / EA_PAGE_TOKENS * (size_t)slot;
    const int words = q8 ? 8 : 4; /* of a block */
    for (int d = 0; d < head_dim; d += EA_KV_BLOCK) {
        uint32_t c[8];
        k_scale[d] = quantise_block(q8, k + d, c); /* EA_PAGE_TOKENS == EA_KV_BLOCK */
        for (int i = 0; i < words; i++, k_block += 64)
            put_word(k_block, q8 ? c[i] ^ 0x80808080u : pack_nibbles(c[i], c[i + 4]));
        v_scale[d] = quantise_block(q8, v + d, c);
        for (int i = 0; i < words; i++, v_block += 4)
            put_word(v_block, q8 ? c[i] : pack_nibbles(c[i], c[i + 4]));
    }
}
_Static_assert((int)EA_PAGE_TOKENS == (int)EA_KV_BLOCK, "scales of a block begin at its component");

void EA_KV_NAME(ea_kv_type type, uint8_t *k_block, uint8_t *v_block, int slot, int head_dim,
                const float *k, const float *v)
{
    if (type == EA_KV_F16)
        write_f16(k_block, v_block, slot, head_dim, k, v);
    else if (type == EA_KV_Q8_0)
        write_quant(true, k_block, v_block, slot, head_dim, k, v);
    else
        write_quant(false, k_block, v_block, slot, head_dim, k, v);
}
