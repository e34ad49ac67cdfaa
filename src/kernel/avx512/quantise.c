/* quantise.c: int8 forms of activations, AVX-512: 256 inputs at a time. */
#include <immintrin.h>

#include "kernel/avx512/slots.h"
#include "kernel/matmul.h"

#define INLINE static inline __attribute__((always_inline))

/* Lane 4 e + l takes lane 4 l + e. */
INLINE __m512i turn(__m512i v)
{
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_permutexvar_epi32(order, v);
}

/* Largest magnitudes of n (a multiple of 32) inputs by lane; NaN never wins. */
INLINE __m512 magnitudes(const float *x, const int n)
{
    __m512 most = _mm512_setzero_ps();
#pragma GCC unroll 16
    for (int i = 0; i < n; i += 16) /* max(NaN, most) is the second operand */
        most = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(x + i)), most);
    return most;
}

/* Scale of a largest magnitude, and its inverse. */
INLINE float scale_of(float amax, float *inv)
{
    *inv = amax >= EA_Q8_TINY ? 127.0f / amax : 0;
    return amax >= EA_Q8_TINY ? amax / 127.0f : 0;
}

/* Codes of 64 inputs, of which inv is for each 16, to q; sums of four. */
INLINE __m512i quantise64(const float *x, const __m512 inv[4], int8_t *q)
{
    __m512i c[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        c[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), inv[i]));
    __m512i codes =
        _mm512_packs_epi16(_mm512_packs_epi32(c[0], c[1]), _mm512_packs_epi32(c[2], c[3]));
    /* Only NaN is out of range: it became the lowest integer and is -127. */
    codes = _mm512_max_epi8(turn(codes), _mm512_set1_epi8(-127));
    _mm512_storeu_si512(q, codes);
    return _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_set1_epi8(1), codes),
                             _mm512_set1_epi16(1));
}

/* Sums of the 16 half blocks from the sums of four. */
INLINE __m512i half_sums(const __m512i s[4])
{
    const __m512i a =
        _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
    const __m512i b =
        _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
    return turn(_mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)));
}

/* A whole chunk from x, inv for each 16 inputs: codes and sum16. Gives the sums of its eight
 * blocks; *halves: those of the half blocks. */
INLINE __m256i quantise_chunk(const float *x, const __m512 inv[16], struct ea_q8_chunk *c,
                              __m512i *halves)
{
    __m512i s[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        s[i] = quantise64(x + 64 * i, inv + 4 * i, c->q + 64 * i);
    *halves = half_sums(s);
    const __m256i sum16 = _mm512_cvtepi32_epi16(*halves);
    _mm256_storeu_si256((__m256i *)(void *)c->sum16, sum16);
    return _mm256_madd_epi16(sum16, _mm256_set1_epi16(1));
}

/* EA_FORM_Q8K. */
static void quantise_k(const float *x, struct ea_q8_chunk *c)
{
    float inv;
    __m512 invs[16];
    __m512i halves;
    c->d[0] = scale_of(_mm512_reduce_max_ps(magnitudes(x, EA_Q8_CHUNK)), &inv);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        invs[i] = _mm512_set1_ps(inv);
    const __m256i sum = quantise_chunk(x, invs, c, &halves);
    _mm_storeu_si128((__m128i *)(void *)c->sum32, _mm256_cvtepi32_epi16(sum));
    /* sum16 to parts: small integers, exact in bf16 */
    const __m512i low = _mm512_and_si512(halves, _mm512_set1_epi32(63));
    const __m512i hi = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_sub_epi32(halves, low)));
    const __m512i lo = _mm512_castps_si512(_mm512_cvtepi32_ps(low));
    _mm512_storeu_si512(c->parts, _mm512_or_si512(_mm512_srli_epi32(hi, 16), lo));
}

/* Largest magnitudes of the chunk's eight blocks. */
INLINE __m256 block_magnitudes(const float *x)
{
    __m256 m[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        const __m512 v = magnitudes(x + 32 * j, 32);
        m[j] = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    }
    __m256 a[4], b[2]; /* a tree of transpositions: after it, lane j is block j */
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++)
        a[j] = _mm256_max_ps(_mm256_unpacklo_ps(m[2 * j], m[2 * j + 1]),
                             _mm256_unpackhi_ps(m[2 * j], m[2 * j + 1]));
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++)
        b[j] = _mm256_max_ps(_mm256_shuffle_ps(a[2 * j], a[2 * j + 1], 0x44),
                             _mm256_shuffle_ps(a[2 * j], a[2 * j + 1], 0xee));
    return _mm256_max_ps(_mm256_permute2f128_ps(b[0], b[1], 0x20),
                         _mm256_permute2f128_ps(b[0], b[1], 0x31));
}

/* EA_FORM_Q8, all eight blocks. */
static void quantise_blocks(const float *x, struct ea_q8_chunk *c)
{
    const __m256 amax = block_magnitudes(x), most = _mm256_set1_ps(127.0f);
    const __mmask8 some = _mm256_cmp_ps_mask(amax, _mm256_set1_ps(EA_Q8_TINY), _CMP_GE_OQ);
    const __m256 d = _mm256_maskz_div_ps(some, amax, most);
    const __m512 inv = _mm512_castps256_ps512(_mm256_maskz_div_ps(some, most, amax));
    __m512 invs[16];
    __m512i halves;
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        invs[2 * j] = invs[2 * j + 1] = _mm512_permutexvar_ps(_mm512_set1_epi32(j), inv);
    const __m256i sum = quantise_chunk(x, invs, c, &halves);
    _mm256_storeu_ps(c->d, d);
    _mm256_storeu_ps(c->s, _mm256_mul_ps(d, _mm256_cvtepi32_ps(sum)));
}

/* EA_FORM_Q8, block j alone. */
static void quantise_block(const float *x, struct ea_q8_chunk *c, int j)
{
    float inv;
    const float d = scale_of(_mm512_reduce_max_ps(magnitudes(x, EA_Q8_K)), &inv);
    int sum[2];
    for (int h = 0; h < 2; h++) {
        __m512i codes =
            _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * h), _mm512_set1_ps(inv)));
        codes = _mm512_max_epi32(codes, _mm512_set1_epi32(-127));
        _mm_storeu_si128((__m128i *)(void *)(c->q + 32 * j + 16 * h), _mm512_cvtepi32_epi8(codes));
        sum[h] = _mm512_reduce_add_epi32(codes);
        c->sum16[2 * j + h] = (int16_t)sum[h];
    }
    c->d[j] = d;
    c->s[j] = d * (float)(sum[0] + sum[1]);
}

void ea_acts_quantise_cols__avx512(const ea_acts *a, int row, int col0, int n)
{
    const float *x = ea_acts_row(a, row);
    const int end = (col0 + n + EA_Q8_K - 1) / EA_Q8_K;
    for (int b = col0 / EA_Q8_K; a->q8[EA_FORM_Q8] && b < end;) {
        struct ea_q8_chunk *c =
            ea_acts_q8(a, EA_FORM_Q8, row) + b / EA_CHUNK_BLOCKS * EA_ACTS_GROUP;
        const bool whole = b % EA_CHUNK_BLOCKS == 0 && b + EA_CHUNK_BLOCKS <= end;
        if (whole)
            quantise_blocks(x + b * EA_Q8_K, c);
        else
            quantise_block(x + b * EA_Q8_K, c, b % EA_CHUNK_BLOCKS);
        b += whole ? EA_CHUNK_BLOCKS : 1;
    }
    for (int i = col0 / EA_Q8_CHUNK; a->q8[EA_FORM_Q8K] && i < (col0 + n) / EA_Q8_CHUNK; i++)
        quantise_k(x + i * EA_Q8_CHUNK, ea_acts_q8(a, EA_FORM_Q8K, row) + i * EA_ACTS_GROUP);
}
