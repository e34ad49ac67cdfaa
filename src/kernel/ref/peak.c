/* peak.c: plain C, as the compiler makes it for the baseline; see kernel/peak.h. */
#include "kernel/peak.h"

#include <math.h>
#include <stdint.h>

enum { N = 64 };

double ea_peak_int8__ref(int rounds)
{
    int8_t a[N], b[N];
    int32_t sum = 0;
    for (int i = 0; i < N; i++)
        a[i] = b[i] = (int8_t)(i - N / 2);
    for (int r = 0; r < rounds; r++) {
        __asm__ volatile("" : : "r"(a), "r"(b) : "memory"); /* nothing is known of them */
        for (int i = 0; i < N; i++)
            sum += a[i] * b[i];
    }
    __asm__ volatile("" : : "r"(sum));
    return (double)rounds * N;
}

double ea_peak_f32__ref(int rounds)
{
    float a = 0.5f, b = 1, sum[8];
    for (int i = 0; i < 8; i++)
        sum[i] = (float)i;
    __asm__ volatile("" : "+m"(a), "+m"(b));
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < 8; i++)
            sum[i] = fmaf(sum[i], a, b);
    __asm__ volatile("" : : "r"(sum) : "memory");
    return (double)rounds * 8;
}

void ea_peak_read__ref(const uint8_t *p, size_t n_bytes)
{
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < n_bytes; i += 64)
        for (size_t j = 0; j < 8; j++)
            sum[j] ^= *(const uint64_t *)(const void *)(p + i + 8 * j);
    __asm__ volatile("" : : "r"(sum) : "memory");
}
