/* peak.c: see kernel/peak.h. */
#include "kernel/peak.h"

#include <immintrin.h>

enum { SUMS = 16 };

double ea_peak_int8__avx512vnni(int rounds)
{
    __m512i sum[SUMS], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-5);
    for (int i = 0; i < SUMS; i++)
        sum[i] = _mm512_set1_epi32(i);
    for (int r = 0; r < rounds; r++)
        _Pragma("GCC unroll 16") for (int i = 0; i < SUMS; i++) sum[i] =
            _mm512_dpbusd_epi32(sum[i], a, b);
    for (int i = 0; i < SUMS; i++)
        __asm__ volatile("" : : "v"(sum[i]));
    return (double)rounds * SUMS * 64;
}
