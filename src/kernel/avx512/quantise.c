/* quantise.c: int8 forms of activations, AVX-512. */
#include <immintrin.h>

#include "kernel/avx512/slots.h"
#include "kernel/matmul.h"

#define INLINE static inline __attribute__((always_inline))

/* Scale of n (a multiple of 32) inputs, and its inverse. */
INLINE float scale_of(const float *x, const int n, float *inv)
{
    __m512 most = _mm512_setzero_ps();
#pragma GCC unroll 16
    for (int i = 0; i < n; i += 16) /* max(NaN, most) is the second operand: NaN never wins */
        most = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(x + i)), most);
    const float amax = _mm512_reduce_max_ps(most);
    *inv = amax >= EA_Q8_TINY ? 127.0f / amax : 0;
    return amax >= EA_Q8_TINY ? amax / 127.0f : 0;
}

/* 16 codes to q; their sum. */
INLINE int quantise16(const float *x, __m512 inv, int8_t *q)
{
    __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x), inv);
    /* NaN becomes -127 */
    v = _mm512_min_ps(_mm512_max_ps(v, _mm512_set1_ps(-127.0f)), _mm512_set1_ps(127.0f));
    const __m512i codes = _mm512_cvtps_epi32(v);
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(codes));
    return _mm512_reduce_add_epi32(codes);
}

/* Block j of a chunk from x; the sum of its codes. */
INLINE int quantise_block(const float *x, float inv, struct ea_q8_chunk *c, int j)
{
    const __m512 v = _mm512_set1_ps(inv);
    const int a = quantise16(x, v, c->q + 32 * j), b = quantise16(x + 16, v, c->q + 32 * j + 16);
    c->sum16[2 * j] = (int16_t)a;
    c->sum16[2 * j + 1] = (int16_t)b;
    return a + b;
}

/* sum16 to parts: small integers, exact in bf16. */
INLINE void split_sums(struct ea_q8_chunk *c)
{
    const __m512i sum = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const void *)c->sum16));
    const __m512i low = _mm512_and_si512(sum, _mm512_set1_epi32(63));
    const __m512i hi = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_sub_epi32(sum, low)));
    const __m512i lo = _mm512_castps_si512(_mm512_cvtepi32_ps(low));
    _mm512_storeu_si512(c->parts, _mm512_or_si512(_mm512_srli_epi32(hi, 16), lo));
}

void ea_acts_quantise_cols__avx512(const ea_acts *a, int row, int col0, int n)
{
    const float *x = ea_acts_row(a, row);
    float inv;
    if (a->q8[EA_FORM_Q8])
        for (int b = col0 / EA_Q8_K; b < (col0 + n + EA_Q8_K - 1) / EA_Q8_K; b++) {
            const int j = b % EA_CHUNK_BLOCKS;
            struct ea_q8_chunk *c =
                ea_acts_q8(a, EA_FORM_Q8, row) + b / EA_CHUNK_BLOCKS * EA_ACTS_GROUP;
            const float d = scale_of(x + b * EA_Q8_K, EA_Q8_K, &inv);
            const int sum = quantise_block(x + b * EA_Q8_K, inv, c, j);
            c->d[j] = d;
            c->s[j] = d * (float)sum;
        }
    if (a->q8[EA_FORM_Q8K])
        for (int i = col0 / EA_Q8_CHUNK; i < (col0 + n) / EA_Q8_CHUNK; i++) {
            struct ea_q8_chunk *c = ea_acts_q8(a, EA_FORM_Q8K, row) + i * EA_ACTS_GROUP;
            c->d[0] = scale_of(x + i * EA_Q8_CHUNK, EA_Q8_CHUNK, &inv);
            for (int j = 0; j < EA_CHUNK_BLOCKS; j++)
                c->sum32[j] = (int16_t)quantise_block(x + i * EA_Q8_CHUNK + j * EA_Q8_K, inv, c, j);
            split_sums(c);
        }
}
