/* vec_int.h: the vector operations of matmul_vec.h for AVX2, half a tile at a time. */
#ifndef EA_KERNEL_AVX2_VEC_INT_H
#define EA_KERNEL_AVX2_VEC_INT_H

#include <immintrin.h>

#include "kernel/avx2/put.h"

#define LANES 8

typedef __m256i vi;
typedef __m256 vf;

#define VEC_FN static inline __attribute__((always_inline))

VEC_FN vi vi_load(const void *p)
{
    return _mm256_load_si256((const __m256i *)p);
}

#define vi_zero _mm256_setzero_si256
#define vi_set1_8(x) _mm256_set1_epi8((char)(x))
#define vi_set1_32 _mm256_set1_epi32
#define vi_and _mm256_and_si256
#define vi_or _mm256_or_si256
#define vi_srl16 _mm256_srli_epi16
#define vi_sll16 _mm256_slli_epi16
#define vi_sll32 _mm256_slli_epi32
#define vi_add _mm256_add_epi32
#define vi_add16 _mm256_add_epi16
#define vi_madd16 _mm256_madd_epi16
#define vi_madd8 _mm256_maddubs_epi16
#define vi_abs8 _mm256_abs_epi8
#define vi_sign8 _mm256_sign_epi8
#define vi_xor8(v, x) _mm256_xor_si256((v), _mm256_set1_epi8((char)(x)))

VEC_FN vi vi_and_or(vi a, const int mask, vi b)
{
    return _mm256_or_si256(_mm256_and_si256(a, _mm256_set1_epi8((char)mask)), b);
}

VEC_FN vi vi_lookup(const void *table, vi v)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)),
                               v);
}

VEC_FN vi vi_from_u8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

VEC_FN vi vi_from_i8(const uint8_t *p)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

#define vi_mul _mm256_mullo_epi32
#define vf_add _mm256_add_ps
#define vf_zero _mm256_setzero_ps
#define vf_set1 _mm256_set1_ps
#define vf_mul _mm256_mul_ps
#define vf_fma _mm256_fmadd_ps
#define vf_fnma _mm256_fnmadd_ps
#define vf_from_i32 _mm256_cvtepi32_ps
#define vf_load _mm256_load_ps
#define vf_store _mm256_store_ps

VEC_FN vf vf_load_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p));
}

#define put(args, tile, col, r, acc) ea_put8__avx2((args), (tile)*EA_TILE_N + (col), (r), (acc))

#endif
