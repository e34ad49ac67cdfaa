/* quantise.c: int8 forms of activations, AVX2. */
#include <immintrin.h>

#include "kernel/avx2/slots.h"
#include "kernel/matmul.h"

#define INLINE static inline __attribute__((always_inline))

/* Scale of n (a multiple of 32) inputs, and its inverse. */
INLINE float scale_of(const float *x, const int n, float *inv)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 most = _mm256_setzero_ps();
    for (int i = 0; i < n; i += 8) /* max(NaN, most) is the second operand: NaN never wins */
        most = _mm256_max_ps(_mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)), most);
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    m4 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    const float amax = _mm_cvtss_f32(_mm_max_ss(m4, _mm_movehdup_ps(m4)));
    *inv = amax >= EA_Q8_TINY ? 127.0f / amax : 0;
    return amax >= EA_Q8_TINY ? amax / 127.0f : 0;
}

/* 16 codes to q; their sum. */
INLINE int quantise16(const float *x, __m256 inv, int8_t *q)
{
    const __m256 lowest = _mm256_set1_ps(-127.0f), highest = _mm256_set1_ps(127.0f);
    __m256i c[2];
    for (int j = 0; j < 2; j++) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * j), inv);
        /* NaN becomes -127 */
        c[j] = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(v, lowest), highest));
    }
    const __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(c[0], c[1]), 0xd8);
    _mm_storeu_si128((__m128i *)(void *)q,
                     _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
    const __m256i t = _mm256_add_epi32(c[0], c[1]);
    __m128i s4 = _mm_add_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
    s4 = _mm_add_epi32(s4, _mm_shuffle_epi32(s4, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s4, _mm_shuffle_epi32(s4, 0xb1)));
}

/* Block j of a chunk from x; the sum of its codes. */
INLINE int quantise_block(const float *x, float inv, struct ea_q8_chunk *c, int j)
{
    const __m256 v = _mm256_set1_ps(inv);
    const int a = quantise16(x, v, c->q + 32 * j), b = quantise16(x + 16, v, c->q + 32 * j + 16);
    c->sum16[2 * j] = (int16_t)a;
    c->sum16[2 * j + 1] = (int16_t)b;
    return a + b;
}

/* sum16 to parts: small integers, exact in bf16. */
INLINE void split_sums(struct ea_q8_chunk *c)
{
    for (int h = 0; h < 16; h += 8) {
        const __m256i sum =
            _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(c->sum16 + h)));
        const __m256i low = _mm256_and_si256(sum, _mm256_set1_epi32(63));
        const __m256i hi = _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_sub_epi32(sum, low)));
        const __m256i lo = _mm256_castps_si256(_mm256_cvtepi32_ps(low));
        _mm256_storeu_si256((__m256i *)(void *)c->parts[h],
                            _mm256_or_si256(_mm256_srli_epi32(hi, 16), lo));
    }
}

void ea_acts_quantise_cols__avx2(const ea_acts *a, int row, int col0, int n)
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
