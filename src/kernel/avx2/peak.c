/* peak.c: see kernel/peak.h. Sums are independent, more of them than a multiplier's
 * latency times its rate. */
#include "kernel/peak.h"

#include <immintrin.h>

#include "kernel/matmul.h"

enum { SUMS = 10 };

/* The compiler must not move it out of the loop, though its operands are always the same. */
static inline __m256i pair_products(__m256i a, __m256i b)
{
    __m256i out;
    __asm__ volatile("vpmaddubsw %2, %1, %0" : "=x"(out) : "x"(a), "x"(b));
    return out;
}

/* Two instructions for 32 products, summed in int16: what small codes allow for a while
 * (matmul_vec.h, span_groups). */
double ea_peak_int8__avx2(int rounds)
{
    __m256i sum[SUMS], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-5);
    for (int i = 0; i < SUMS; i++)
        sum[i] = _mm256_set1_epi16((short)i);
    for (int r = 0; r < rounds; r++)
        _Pragma("GCC unroll 16") for (int i = 0; i < SUMS; i++) sum[i] =
            _mm256_add_epi16(sum[i], pair_products(a, b));
    for (int i = 0; i < SUMS; i++)
        __asm__ volatile("" : : "x"(sum[i]));
    return (double)rounds * SUMS * 32;
}

double ea_peak_f32__avx2(int rounds)
{
    __m256 sum[SUMS], a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1);
    for (int i = 0; i < SUMS; i++)
        sum[i] = _mm256_set1_ps((float)i);
    for (int r = 0; r < rounds; r++)
        _Pragma("GCC unroll 16") for (int i = 0; i < SUMS; i++) sum[i] =
            _mm256_fmadd_ps(sum[i], a, b);
    for (int i = 0; i < SUMS; i++)
        __asm__ volatile("" : : "x"(sum[i]));
    return (double)rounds * SUMS * 8;
}

/* As the products of few rows read weights: asked for 4 KiB ahead. */
void ea_peak_read__avx2(const uint8_t *p, size_t n_bytes)
{
    __m256i sum[4] = {0};
    for (size_t i = 0; i < n_bytes; i += 256) {
        _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++)
            _mm_prefetch((const char *)p + i + EA_PREFETCH_BYTES + 64 * j, _MM_HINT_T1);
        _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) sum[j % 4] = _mm256_xor_si256(
            sum[j % 4], _mm256_load_si256((const __m256i *)(const void *)(p + i + 32 * j)));
    }
    for (int j = 0; j < 4; j++)
        __asm__ volatile("" : : "x"(sum[j]));
}
