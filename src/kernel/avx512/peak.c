/* peak.c: see kernel/peak.h. */
#include "kernel/peak.h"

#include <immintrin.h>

#include "kernel/matmul.h"

enum { SUMS = 16 };

/* The compiler must not move it out of the loop, though its operands are always the same. */
static inline __m512i pair_products(__m512i a, __m512i b)
{
    __m512i out;
    __asm__ volatile("vpmaddubsw %2, %1, %0" : "=v"(out) : "v"(a), "v"(b));
    return out;
}

/* Two instructions for 64 products, summed in int16: what small codes allow for a while
 * (matmul_vec.h, span_groups). */
double ea_peak_int8__avx512(int rounds)
{
    __m512i sum[SUMS], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-5);
    for (int i = 0; i < SUMS; i++)
        sum[i] = _mm512_set1_epi16((short)i);
    for (int r = 0; r < rounds; r++)
        _Pragma("GCC unroll 16") for (int i = 0; i < SUMS; i++) sum[i] =
            _mm512_add_epi16(sum[i], pair_products(a, b));
    for (int i = 0; i < SUMS; i++)
        __asm__ volatile("" : : "v"(sum[i]));
    return (double)rounds * SUMS * 64;
}

double ea_peak_f32__avx512(int rounds)
{
    __m512 sum[SUMS], a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(1);
    for (int i = 0; i < SUMS; i++)
        sum[i] = _mm512_set1_ps((float)i);
    for (int r = 0; r < rounds; r++)
        _Pragma("GCC unroll 16") for (int i = 0; i < SUMS; i++) sum[i] =
            _mm512_fmadd_ps(sum[i], a, b);
    for (int i = 0; i < SUMS; i++)
        __asm__ volatile("" : : "v"(sum[i]));
    return (double)rounds * SUMS * 16;
}

/* As the products of few rows read weights: asked for 4 KiB ahead. */
void ea_peak_read__avx512(const uint8_t *p, size_t n_bytes)
{
    __m512i sum[4] = {0};
    for (size_t i = 0; i < n_bytes; i += 256) {
        _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++)
            _mm_prefetch((const char *)p + i + EA_PREFETCH_BYTES + 64 * j, _MM_HINT_T1);
        _Pragma("GCC unroll 8") for (int j = 0; j < 4; j++) sum[j % 4] = _mm512_xor_si512(
            sum[j % 4], _mm512_load_si512((const __m512i *)(const void *)(p + i + 64 * j)));
    }
    for (int j = 0; j < 4; j++)
        __asm__ volatile("" : : "v"(sum[j]));
}
