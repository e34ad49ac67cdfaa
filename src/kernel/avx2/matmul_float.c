/* matmul_float.c: matrix products of float weights for AVX2. Body: matmul_float_vec.h. */
#include "kernel/avx2/matmul.h"

#include "kernel/avx2/vec_int.h"

#define LEVEL avx2
#define MAX_ROWS 6
#define BLOCK_TILES 1

VEC_FN __m256 half_from_bf16(const uint8_t *p)
{
    const __m128i h = _mm_load_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

VEC_FN vf vf_load_bf16(const uint8_t *p)
{
    return (vf){half_from_bf16(p), half_from_bf16(p + 16)};
}

#include "kernel/matmul_float_vec.h"
