/* matmul_float.c: matrix products of float weights for AVX-512. Body: matmul_float_vec.h. */
#include "kernel/avx512/matmul.h"

#include "kernel/avx512/vec_int.h"

#define LEVEL avx512
#define MAX_ROWS 12
#define BLOCK_TILES 2

/* Each number to the high half of its lane, zeros below: one operation instead of two. */
VEC_FN vf vf_load_bf16(const uint8_t *p)
{
    const __m512i order = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0, 7,
                                           0, 6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0);
    const __m256i h = _mm256_load_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(
        _mm512_maskz_permutexvar_epi16(0xaaaaaaaa, order, _mm512_castsi256_si512(h)));
}

#include "kernel/matmul_float_vec.h"
