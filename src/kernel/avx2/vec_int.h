/* vec_int.h: the vector operations of matmul_vec.h for AVX2: a vector is two registers, so that a
 * broadcast activation serves a whole tile and weights are read front to back. */
#ifndef EA_KERNEL_AVX2_VEC_INT_H
#define EA_KERNEL_AVX2_VEC_INT_H

#include <immintrin.h>

#include "kernel/avx2/put.h"

/* Columns 0..7 and 8..15. */
typedef struct vi {
    __m256i lo, hi;
} vi;
typedef struct vf {
    __m256 lo, hi;
} vf;

#define VEC_FN static inline __attribute__((always_inline))

#define VI1(name, fn)                    \
    VEC_FN vi name(vi a)                 \
    {                                    \
        return (vi){fn(a.lo), fn(a.hi)}; \
    }
#define VI2(name, fn)                                \
    VEC_FN vi name(vi a, vi b)                       \
    {                                                \
        return (vi){fn(a.lo, b.lo), fn(a.hi, b.hi)}; \
    }
#define VI3(name, fn)                                            \
    VEC_FN vi name(vi a, vi b, vi c)                             \
    {                                                            \
        return (vi){fn(a.lo, b.lo, c.lo), fn(a.hi, b.hi, c.hi)}; \
    }
#define VI_SHIFT(name, fn)                     \
    VEC_FN vi name(vi a, const int n)          \
    {                                          \
        return (vi){fn(a.lo, n), fn(a.hi, n)}; \
    }
#define VF2(name, fn)                                \
    VEC_FN vf name(vf a, vf b)                       \
    {                                                \
        return (vf){fn(a.lo, b.lo), fn(a.hi, b.hi)}; \
    }
#define VF3(name, fn)                                            \
    VEC_FN vf name(vf a, vf b, vf c)                             \
    {                                                            \
        return (vf){fn(a.lo, b.lo, c.lo), fn(a.hi, b.hi, c.hi)}; \
    }

VI1(vi_abs8, _mm256_abs_epi8)
VI1(vi_abs32, _mm256_abs_epi32)
VI2(vi_and, _mm256_and_si256)
VI2(vi_or, _mm256_or_si256)
VI2(vi_xor, _mm256_xor_si256)
VI2(vi_add, _mm256_add_epi32)
VI2(vi_add16, _mm256_add_epi16)
VI2(vi_mul, _mm256_mullo_epi32)
VI2(vi_mul16, _mm256_mullo_epi16)
VI2(vi_min16, _mm256_min_epi16)
VI2(vi_madd16, _mm256_madd_epi16)
VI2(vi_madd8, _mm256_maddubs_epi16)
VI2(vi_lookup, _mm256_shuffle_epi8)
VI2(vi_sign8, _mm256_sign_epi8)
VI_SHIFT(vi_srl16, _mm256_srli_epi16)
VI_SHIFT(vi_sll16, _mm256_slli_epi16)
VI_SHIFT(vi_sll32, _mm256_slli_epi32)
VI_SHIFT(vi_sra32, _mm256_srai_epi32)
VF2(vf_add, _mm256_add_ps)
VF2(vf_mul, _mm256_mul_ps)
VF3(vf_fma, _mm256_fmadd_ps)
VF3(vf_fnma, _mm256_fnmadd_ps)

VEC_FN vi vi_load(const void *p)
{
    const __m256i *v = (const __m256i *)p;
    return (vi){_mm256_load_si256(v), _mm256_load_si256(v + 1)};
}

VEC_FN void vi_store(void *p, vi v)
{
    _mm256_store_si256((__m256i *)p, v.lo);
    _mm256_store_si256((__m256i *)p + 1, v.hi);
}

VEC_FN vi vi_zero(void)
{
    return (vi){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

VEC_FN vi vi_set1_8(int x)
{
    return (vi){_mm256_set1_epi8((char)x), _mm256_set1_epi8((char)x)};
}

VEC_FN vi vi_set1_16(int x)
{
    return (vi){_mm256_set1_epi16((short)x), _mm256_set1_epi16((short)x)};
}

VEC_FN vi vi_set1_32(int x)
{
    const __m256i v = _mm256_set1_epi32(x);
    return (vi){v, v};
}

VEC_FN vi vi_and_or(vi a, const int mask, vi b)
{
    return vi_or(vi_and(a, vi_set1_8(mask)), b);
}

VEC_FN vi vi_table(const int8_t t[16])
{
    const __m256i v =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)t));
    return (vi){v, v};
}

VEC_FN vi vi_from_u8(const uint8_t *p)
{
    return (vi){_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)),
                _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p + 8)))};
}

VEC_FN vi vi_from_i8(const uint8_t *p)
{
    return (vi){_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p + 8)))};
}

VEC_FN vi vi_pairs_u8(const uint8_t *p)
{
    const __m128i *v = (const __m128i *)(const void *)p;
    const __m128i a = _mm_load_si128(v), b = _mm_load_si128(v + 1);
    return (vi){_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b)),
                _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b))};
}

VEC_FN vi vi_pairs_i8(const uint8_t *p)
{
    const __m128i *v = (const __m128i *)(const void *)p;
    const __m128i a = _mm_load_si128(v), b = _mm_load_si128(v + 1);
    return (vi){_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)),
                _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b))};
}

VEC_FN vf vf_zero(void)
{
    return (vf){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

VEC_FN vf vf_set1(float x)
{
    const __m256 v = _mm256_set1_ps(x);
    return (vf){v, v};
}

VEC_FN vf vf_from_i32(vi v)
{
    return (vf){_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)};
}

VEC_FN vf vf_load(const float *p)
{
    return (vf){_mm256_load_ps(p), _mm256_load_ps(p + 8)};
}

VEC_FN void vf_store(float *p, vf v)
{
    _mm256_store_ps(p, v.lo);
    _mm256_store_ps(p + 8, v.hi);
}

VEC_FN vf vf_load_f16(const uint8_t *p)
{
    const __m128i *v = (const __m128i *)(const void *)p;
    return (vf){_mm256_cvtph_ps(_mm_load_si128(v)), _mm256_cvtph_ps(_mm_load_si128(v + 1))};
}

VEC_FN void put(const ea_matmul_args *args, int tile, int r, vf acc)
{
    ea_put8__avx2(args, tile * EA_TILE_N, r, acc.lo);
    ea_put8__avx2(args, tile * EA_TILE_N + 8, r, acc.hi);
}

#endif
