/* f16.h: half-precision storage types and their exact conversions (IEEE 754 binary16, bfloat16;
 * round to nearest even). Structs, so that they are never used in arithmetic by mistake. Pure
 * functions. */
#ifndef EA_BASE_F16_H
#define EA_BASE_F16_H

#include <stdint.h>
#include <string.h>

typedef struct ea_f16 {
    uint16_t bits;
} ea_f16;
typedef struct ea_bf16 {
    uint16_t bits;
} ea_bf16;

static inline uint32_t ea_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float ea_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float ea_f16_to_f32(ea_f16 h)
{
    uint32_t sign = (uint32_t)(h.bits & 0x8000u) << 16, exp = h.bits >> 10 & 0x1f,
             man = h.bits & 0x3ffu;
    if (exp == 31)
        return ea_f32_from_bits(sign | 0x7f800000u | man << 13);
    if (exp)
        return ea_f32_from_bits(sign | (exp + 112) << 23 | man << 13);
    float tiny = (float)man * 0x1p-24f; /* zero and subnormals: exact */
    return sign ? -tiny : tiny;
}

static inline ea_f16 ea_f32_to_f16(float x)
{
    uint32_t u = ea_f32_bits(x), sign = u >> 16 & 0x8000u, abs = u & 0x7fffffffu;
    if (abs >= 0x7f800000u) /* infinity, NaN (kept quiet) */
        return (ea_f16){
            (uint16_t)(sign | 0x7c00u | (abs > 0x7f800000u ? 0x200u | (abs >> 13 & 0x3ffu) : 0))};
    if (abs >= 0x477ff000u) /* rounds past 65504 */
        return (ea_f16){(uint16_t)(sign | 0x7c00u)};
    if (abs < 0x38800000u) { /* subnormal: adding 0.5 puts the rounding at the right bit */
        uint32_t r = ea_f32_bits(ea_f32_from_bits(abs) + 0.5f) - 0x3f000000u;
        return (ea_f16){(uint16_t)(sign | r)};
    }
    uint32_t r = abs - 0x38000000u + 0xfffu + (abs >> 13 & 1u);
    return (ea_f16){(uint16_t)(sign | r >> 13)};
}

static inline float ea_bf16_to_f32(ea_bf16 b)
{
    return ea_f32_from_bits((uint32_t)b.bits << 16);
}

static inline ea_bf16 ea_f32_to_bf16(float x)
{
    uint32_t u = ea_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (ea_bf16){(uint16_t)(u >> 16 | 0x40u)};
    return (ea_bf16){(uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}

#endif
