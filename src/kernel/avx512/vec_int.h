/* vec_int.h: the vector operations of matmul_vec.h for AVX-512, a whole tile at a time. */
#ifndef EA_KERNEL_AVX512_VEC_INT_H
#define EA_KERNEL_AVX512_VEC_INT_H

#include <immintrin.h>

#include "kernel/avx512/put.h"

typedef __m512i vi;
typedef __m512 vf;

#define VEC_FN static inline __attribute__((always_inline))

VEC_FN vi vi_load(const void *p)
{
    return _mm512_load_si512(p);
}

VEC_FN void vi_store(void *p, vi v)
{
    _mm512_store_si512(p, v);
}

#define vi_zero _mm512_setzero_si512
#define vi_set1_8(x) _mm512_set1_epi8((char)(x))
#define vi_set1_16(x) _mm512_set1_epi16((short)(x))
#define vi_set1_32 _mm512_set1_epi32
#define vi_and _mm512_and_si512
#define vi_or _mm512_or_si512
#define vi_xor _mm512_xor_si512
#define vi_srl16(v, n) _mm512_srli_epi16((v), (unsigned)(n))
#define vi_sll16(v, n) _mm512_slli_epi16((v), (unsigned)(n))
#define vi_sll32(v, n) _mm512_slli_epi32((v), (unsigned)(n))
#define vi_sra32(v, n) _mm512_srai_epi32((v), (unsigned)(n))
#define vi_add _mm512_add_epi32
#define vi_add16 _mm512_add_epi16
#define vi_madd16 _mm512_madd_epi16
#define vi_madd8 _mm512_maddubs_epi16
#define vi_lookup _mm512_shuffle_epi8
#define vi_abs8 _mm512_abs_epi8
#define vi_abs32 _mm512_abs_epi32
#define vi_mul _mm512_mullo_epi32
#define vi_mul16 _mm512_mullo_epi16
#define vi_min16 _mm512_min_epi16

VEC_FN vi vi_and_or(vi a, const int mask, vi b)
{
    return _mm512_ternarylogic_epi32(a, _mm512_set1_epi8((char)mask), b, 0xea);
}

VEC_FN vi vi_table(const int8_t t[16])
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)t));
}

/* x with the sign of w, 0 where w is 0. */
VEC_FN vi vi_sign8(vi x, vi w)
{
    x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
    return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(w, w), x);
}

VEC_FN vi vi_from_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(const void *)p));
}

VEC_FN vi vi_from_i8(const uint8_t *p)
{
    return _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)(const void *)p));
}

/* Words 0, 16, 1, 17, ...: two rows of 16 become pairs. */
VEC_FN vi vi_pair_words(vi v)
{
    const vi order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                      23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, v);
}

VEC_FN vi vi_pairs_u8(const uint8_t *p)
{
    return vi_pair_words(_mm512_cvtepu8_epi16(_mm256_load_si256((const __m256i *)(const void *)p)));
}

VEC_FN vi vi_pairs_i8(const uint8_t *p)
{
    return vi_pair_words(_mm512_cvtepi8_epi16(_mm256_load_si256((const __m256i *)(const void *)p)));
}

#define vf_add _mm512_add_ps
#define vf_zero _mm512_setzero_ps
#define vf_set1 _mm512_set1_ps
#define vf_mul _mm512_mul_ps
#define vf_fma _mm512_fmadd_ps
#define vf_fnma _mm512_fnmadd_ps
#define vf_from_i32 _mm512_cvtepi32_ps
#define vf_load _mm512_load_ps
#define vf_store _mm512_store_ps

VEC_FN vf vf_load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)p));
}

#define put ea_put16__avx512

#endif
