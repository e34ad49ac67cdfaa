/* peak.c: see kernel/peak.h. */
#include "kernel/peak.h"

#include <immintrin.h>

enum { SUMS = 12 };

double ea_peak_int8__avx2vnni(int rounds)
{
    __m256i sum[SUMS], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-5);
    for (int i = 0; i < SUMS; i++)
        sum[i] = _mm256_set1_epi32(i);
    for (int r = 0; r < rounds; r++)
        _Pragma("GCC unroll 16") for (int i = 0; i < SUMS; i++) sum[i] =
            _mm256_dpbusd_avx_epi32(sum[i], a, b);
    for (int i = 0; i < SUMS; i++)
        __asm__ volatile("" : : "x"(sum[i]));
    return (double)rounds * SUMS * 32;
}
