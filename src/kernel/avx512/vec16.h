/* vec16.h: sixteen floats in one AVX-512 register; the operations that rows_vec.h and
 * attention_vec.h are written in. Every instruction-set folder has the same ones, with the same
 * bits. Pure functions. */
#ifndef EA_KERNEL_AVX512_VEC16_H
#define EA_KERNEL_AVX512_VEC16_H

#include <immintrin.h>
#include <stdbool.h>

#include "kernel/exp.h"

#define VEC_INLINE static inline __attribute__((always_inline))
#define EA_LANE_CLAMP(i) ((i) < 0 ? 0 : (i) > 16 ? 16 : (i))

typedef __m512 v16;

VEC_INLINE v16 v16_set1(float x)
{
    return _mm512_set1_ps(x);
}

VEC_INLINE v16 v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

VEC_INLINE void v16_store(float *p, v16 x)
{
    _mm512_storeu_ps(p, x);
}

/* The first n lanes, 0..16; the others are zero, or not written. */
VEC_INLINE v16 v16_load_part(const float *p, int n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}

VEC_INLINE void v16_store_part(float *p, v16 x, int n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x);
}

VEC_INLINE v16 v16_load_f16(const ea_f16 *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* Eight values; the upper lanes are zero. */
VEC_INLINE v16 v16_load_f16_half(const ea_f16 *p)
{
    return _mm512_cvtph_ps(_mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)p)));
}

VEC_INLINE void v16_store_f16(ea_f16 *p, v16 x)
{
    _mm256_storeu_si256((__m256i *)p,
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Sixteen int8 as floats. */
VEC_INLINE v16 v16_load_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* The low (high: the high) halves of sixteen bytes, less 8, as floats. */
VEC_INLINE v16 v16_load_i4(const void *p, const bool high)
{
    const v16 value = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm512_permutexvar_ps(high ? _mm512_srli_epi32(x, 4) : x, value);
}

/* Rounded to nearest even, kept within -128..127; |x| < 2^31. */
VEC_INLINE void v16_store_i8(void *p, v16 x)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x)));
}

VEC_INLINE v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}

VEC_INLINE v16 v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}

VEC_INLINE v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}

VEC_INLINE v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}

/* The larger; b where a is NaN. */
VEC_INLINE v16 v16_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}

VEC_INLINE v16 v16_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}

/* a * b + c, a * b - c, c - a * b, each rounded once */
VEC_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

VEC_INLINE v16 v16_fms(v16 a, v16 b, v16 c)
{
    return _mm512_fmsub_ps(a, b, c);
}

VEC_INLINE v16 v16_fnma(v16 a, v16 b, v16 c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* Even lanes a * b - c, odd lanes a * b + c. */
VEC_INLINE v16 v16_fmaddsub(v16 a, v16 b, v16 c)
{
    return _mm512_fmaddsub_ps(a, b, c);
}

VEC_INLINE v16 v16_dup_even(v16 x)
{
    return _mm512_moveldup_ps(x);
}

VEC_INLINE v16 v16_dup_odd(v16 x)
{
    return _mm512_movehdup_ps(x);
}

VEC_INLINE v16 v16_swap_pairs(v16 x)
{
    return _mm512_permute_ps(x, 0xb1);
}

/* 32 floats of pairs: the first of each to *even, the second to *odd. */
VEC_INLINE void v16_load_pairs(const float *p, v16 *even, v16 *odd)
{
    const __m512i pick =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    v16 a = v16_load(p), b = v16_load(p + 16);
    *even = _mm512_permutex2var_ps(a, pick, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_or_si512(pick, _mm512_set1_epi32(1)), b);
}

/* Lanes lo..hi of x, `other` elsewhere. lo and hi may lie outside 0..15. */
VEC_INLINE v16 v16_keep(v16 x, int lo, int hi, float other)
{
    unsigned below = (1u << EA_LANE_CLAMP(lo)) - 1, upto = (1u << EA_LANE_CLAMP(hi + 1)) - 1;
    return _mm512_mask_blend_ps((__mmask16)(upto & ~below), _mm512_set1_ps(other), x);
}

/* Bit i: a[i] == b[i] */
VEC_INLINE unsigned v16_equal(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

/* Lanes i and i + 8, then + 4, + 2, + 1. */
VEC_INLINE float v16_hsum(v16 x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

VEC_INLINE float v16_first(v16 x)
{
    return _mm512_cvtss_f32(x);
}

/* No lane may be NaN. */
VEC_INLINE float v16_hmax(v16 x)
{
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

/* e^x for x <= 0, -inf or NaN. */
VEC_INLINE v16 v16_exp_neg(v16 x)
{
    v16 t = v16_fma(x, v16_set1(EA_EXP_LOG2E), v16_set1(EA_EXP_MAGIC));
    v16 n = v16_sub(t, v16_set1(EA_EXP_MAGIC));
    v16 r = v16_fnma(n, v16_set1(EA_EXP_LN2_LO), v16_fnma(n, v16_set1(EA_EXP_LN2_HI), x));
    v16 p = v16_fma(v16_set1(EA_EXP_C6), r, v16_set1(EA_EXP_C5));
    p = v16_fma(p, r, v16_set1(EA_EXP_C4));
    p = v16_fma(p, r, v16_set1(EA_EXP_C3));
    p = v16_fma(p, r, v16_set1(EA_EXP_C2));
    p = v16_fma(p, r, v16_set1(1.0f));
    p = v16_fma(p, r, v16_set1(1.0f));
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, v16_set1(EA_EXP_LO), _CMP_NLT_UQ), p, n);
}

/* e^x */
VEC_INLINE v16 v16_exp(v16 x)
{
    __mmask16 high = _mm512_cmp_ps_mask(x, v16_set1(EA_EXP_HI), _CMP_GT_OQ);
    return _mm512_mask_mov_ps(v16_exp_neg(x), high, v16_set1(INFINITY));
}

/* ---- 64 bytes of integers ---- */

typedef __m512i v16i;

VEC_INLINE v16i v16i_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

#define v16i_set1 _mm512_set1_epi32
#define v16i_and _mm512_and_si512
#define v16i_srl16(x, n) _mm512_srli_epi16((x), (n))
#define v16i_add _mm512_add_epi32
#define v16i_add16 _mm512_add_epi16
#define v16i_madd16 _mm512_madd_epi16   /* pairs of int16 products, added */
#define v16i_madd8 _mm512_maddubs_epi16 /* the same of uint8 by int8; sums must fit into int16 */
#define v16_from_i32 _mm512_cvtepi32_ps

#endif
