/* vec16.h: sixteen floats in two AVX2 registers; the operations that rows_vec.h and attention_vec.h
 * are written in. Every instruction-set folder has the same ones, with the same bits. Pure
 * functions. */
#ifndef EA_KERNEL_AVX2_VEC16_H
#define EA_KERNEL_AVX2_VEC16_H

#include <immintrin.h>
#include <stdbool.h>

#include "kernel/exp.h"

#define VEC_INLINE static inline __attribute__((always_inline))

typedef struct v16 {
    __m256 lo, hi;
} v16;

VEC_INLINE v16 v16_set1(float x)
{
    __m256 v = _mm256_set1_ps(x);
    return (v16){v, v};
}

VEC_INLINE v16 v16_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

VEC_INLINE void v16_store(float *p, v16 x)
{
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}

/* All bits set in lanes below n. */
VEC_INLINE __m256i lanes_below(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The first n lanes, 0..16; the others are zero, or not written. */
VEC_INLINE v16 v16_load_part(const float *p, int n)
{
    return (v16){_mm256_maskload_ps(p, lanes_below(n)),
                 _mm256_maskload_ps(p + 8, lanes_below(n - 8))};
}

VEC_INLINE void v16_store_part(float *p, v16 x, int n)
{
    _mm256_maskstore_ps(p, lanes_below(n), x.lo);
    _mm256_maskstore_ps(p + 8, lanes_below(n - 8), x.hi);
}

VEC_INLINE v16 v16_load_f16(const ea_f16 *p)
{
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}

/* Eight values; the upper lanes are zero. */
VEC_INLINE v16 v16_load_f16_half(const ea_f16 *p)
{
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_setzero_ps()};
}

VEC_INLINE void v16_store_f16(ea_f16 *p, v16 x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT));
}

/* Sixteen int8 as floats. */
VEC_INLINE v16 v16_load_i8(const void *p)
{
    const __m128i x = _mm_loadu_si128((const __m128i *)p);
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(x, x)))};
}

/* The low (high: the high) halves of sixteen bytes, less 8, as floats. */
VEC_INLINE v16 v16_load_i4(const void *p, const bool high)
{
    __m128i x = _mm_loadu_si128((const __m128i *)p);
    x = _mm_and_si128(high ? _mm_srli_epi16(x, 4) : x, _mm_set1_epi8(15));
    x = _mm_sub_epi8(x, _mm_set1_epi8(8));
    return v16_load_i8(&x);
}

/* Rounded to nearest even, kept within -128..127; |x| < 2^31. */
VEC_INLINE void v16_store_i8(void *p, v16 x)
{
    __m256i lo = _mm256_cvtps_epi32(x.lo), hi = _mm256_cvtps_epi32(x.hi);
    __m128i a = _mm_packs_epi32(_mm256_castsi256_si128(lo), _mm256_extracti128_si256(lo, 1));
    __m128i b = _mm_packs_epi32(_mm256_castsi256_si128(hi), _mm256_extracti128_si256(hi, 1));
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(a, b));
}

/* Two instructions for one of the sixteen lanes' operation. */
#define EA_BOTH2(name, op)                            \
    VEC_INLINE v16 name(v16 a, v16 b)                 \
    {                                                 \
        return (v16){op(a.lo, b.lo), op(a.hi, b.hi)}; \
    }
#define EA_BOTH3(name, op)                                        \
    VEC_INLINE v16 name(v16 a, v16 b, v16 c)                      \
    {                                                             \
        return (v16){op(a.lo, b.lo, c.lo), op(a.hi, b.hi, c.hi)}; \
    }

EA_BOTH2(v16_add, _mm256_add_ps)
EA_BOTH2(v16_sub, _mm256_sub_ps)
EA_BOTH2(v16_mul, _mm256_mul_ps)
EA_BOTH2(v16_div, _mm256_div_ps)
EA_BOTH2(v16_max, _mm256_max_ps) /* the larger; b where a is NaN */
EA_BOTH2(v16_min, _mm256_min_ps)
/* a * b + c, a * b - c, c - a * b, each rounded once */
EA_BOTH3(v16_fma, _mm256_fmadd_ps)
EA_BOTH3(v16_fms, _mm256_fmsub_ps)
EA_BOTH3(v16_fnma, _mm256_fnmadd_ps)
EA_BOTH3(v16_fmaddsub, _mm256_fmaddsub_ps) /* even lanes a * b - c, odd lanes a * b + c */

VEC_INLINE v16 v16_dup_even(v16 x)
{
    return (v16){_mm256_moveldup_ps(x.lo), _mm256_moveldup_ps(x.hi)};
}

VEC_INLINE v16 v16_dup_odd(v16 x)
{
    return (v16){_mm256_movehdup_ps(x.lo), _mm256_movehdup_ps(x.hi)};
}

VEC_INLINE v16 v16_swap_pairs(v16 x)
{
    return (v16){_mm256_permute_ps(x.lo, 0xb1), _mm256_permute_ps(x.hi, 0xb1)};
}

/* 16 floats of pairs: the first of each in the lower half of the result, the second in the upper.
 */
VEC_INLINE v16 split_pairs(const float *p)
{
    __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + 8);
    /* The shuffles work within 128 bits and leave quarters 0, 2, 1, 3. */
    __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
    __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
    return (v16){_mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8)),
                 _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8))};
}

/* 32 floats of pairs: the first of each to *even, the second to *odd. */
VEC_INLINE void v16_load_pairs(const float *p, v16 *even, v16 *odd)
{
    v16 a = split_pairs(p), b = split_pairs(p + 16);
    *even = (v16){a.lo, b.lo};
    *odd = (v16){a.hi, b.hi};
}

/* Lanes lo..hi of x, `other` elsewhere. lo and hi may lie outside 0..15. */
VEC_INLINE v16 v16_keep(v16 x, int lo, int hi, float other)
{
    __m256 fill = _mm256_set1_ps(other);
    __m256i a = _mm256_andnot_si256(lanes_below(lo), lanes_below(hi + 1));
    __m256i b = _mm256_andnot_si256(lanes_below(lo - 8), lanes_below(hi + 1 - 8));
    return (v16){_mm256_blendv_ps(fill, x.lo, _mm256_castsi256_ps(a)),
                 _mm256_blendv_ps(fill, x.hi, _mm256_castsi256_ps(b))};
}

/* Bit i: a[i] == b[i] */
VEC_INLINE unsigned v16_equal(v16 a, v16 b)
{
    unsigned lo = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ));
    unsigned hi = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ));
    return lo | hi << 8;
}

/* Lanes i and i + 8, then + 4, + 2, + 1. */
VEC_INLINE float v16_hsum(v16 x)
{
    __m256 a = _mm256_add_ps(x.lo, x.hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

VEC_INLINE float v16_first(v16 x)
{
    return _mm256_cvtss_f32(x.lo);
}

/* No lane may be NaN. */
VEC_INLINE float v16_hmax(v16 x)
{
    __m256 a = _mm256_max_ps(x.lo, x.hi);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

/* 2^i for -126 <= i <= 127, as bits */
VEC_INLINE __m256 pow2(__m256i i)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(i, _mm256_set1_epi32(127)), 23));
}

VEC_INLINE __m256 exp8(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(EA_EXP_MAGIC), one = _mm256_set1_ps(1.0f);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(EA_EXP_LOG2E), magic);
    __m256 n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EA_EXP_LN2_HI), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EA_EXP_LN2_LO), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(EA_EXP_C6), r, _mm256_set1_ps(EA_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EA_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EA_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EA_EXP_C2));
    p = _mm256_fmadd_ps(p, r, one);
    p = _mm256_fmadd_ps(p, r, one);
    __m256i i = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(magic));
    __m256i half = _mm256_srai_epi32(i, 1);
    p = _mm256_mul_ps(_mm256_mul_ps(p, pow2(half)), pow2(_mm256_sub_epi32(i, half)));
    return _mm256_and_ps(p, _mm256_cmp_ps(x, _mm256_set1_ps(EA_EXP_LO), _CMP_NLT_UQ));
}

/* e^x for x <= 0, -inf or NaN. */
VEC_INLINE v16 v16_exp_neg(v16 x)
{
    return (v16){exp8(x.lo), exp8(x.hi)};
}

/* e^x */
VEC_INLINE v16 v16_exp(v16 x)
{
    const __m256 hi = _mm256_set1_ps(EA_EXP_HI), inf = _mm256_set1_ps(INFINITY);
    v16 y = v16_exp_neg(x);
    return (v16){_mm256_blendv_ps(y.lo, inf, _mm256_cmp_ps(x.lo, hi, _CMP_GT_OQ)),
                 _mm256_blendv_ps(y.hi, inf, _mm256_cmp_ps(x.hi, hi, _CMP_GT_OQ))};
}

/* ---- 64 bytes of integers ---- */

typedef struct v16i {
    __m256i lo, hi;
} v16i;

VEC_INLINE v16i v16i_load(const void *p)
{
    const __m256i *from = p;
    return (v16i){_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
}

VEC_INLINE v16i v16i_set1(int x)
{
    __m256i v = _mm256_set1_epi32(x);
    return (v16i){v, v};
}

VEC_INLINE v16i v16i_srl16(v16i x, const int n)
{
    return (v16i){_mm256_srli_epi16(x.lo, n), _mm256_srli_epi16(x.hi, n)};
}

#define EA_BOTH2I(name, op)                            \
    VEC_INLINE v16i name(v16i a, v16i b)               \
    {                                                  \
        return (v16i){op(a.lo, b.lo), op(a.hi, b.hi)}; \
    }

EA_BOTH2I(v16i_and, _mm256_and_si256)
EA_BOTH2I(v16i_add, _mm256_add_epi32)
EA_BOTH2I(v16i_add16, _mm256_add_epi16)
EA_BOTH2I(v16i_madd16, _mm256_madd_epi16)   /* pairs of int16 products, added */
EA_BOTH2I(v16i_madd8, _mm256_maddubs_epi16) /* of uint8 by int8; sums must fit into int16 */

VEC_INLINE v16 v16_from_i32(v16i x)
{
    return (v16){_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)};
}

#endif
