/* rows_vec.h: the small row operators over sixteen lanes, included by rows.c of each vector folder
 * after its vec16.h, with EA_ROWS_NAME(op) naming the functions. The bits are those of
 * ref/rows.c: sixteen lanes are its sixteen sums, and everything else is element by element. */
#include "kernel/kernel.h"

void EA_ROWS_NAME(rms_norm)(float *out, const float *x, const float *w, int n, float eps)
{
    v16 sum = v16_set1(0);
    int i = 0;
    for (; i + 16 <= n; i += 16)
        sum = v16_fma(v16_load(x + i), v16_load(x + i), sum);
    if (i < n) { /* the zeros of the other lanes add nothing */
        v16 tail = v16_load_part(x + i, n - i);
        sum = v16_fma(tail, tail, sum);
    }
    float inv = 1.0f / sqrtf(v16_hsum(sum) / (float)n + eps);
    for (i = 0; i + 16 <= n; i += 16)
        v16_store(out + i, v16_mul(v16_mul(v16_load(x + i), v16_set1(inv)), v16_load(w + i)));
    if (i < n)
        v16_store_part(out + i,
                       v16_mul(v16_mul(v16_load_part(x + i, n - i), v16_set1(inv)),
                               v16_load_part(w + i, n - i)),
                       n - i);
}

VEC_INLINE void turn(float *a, float *b, float c, float s)
{
    float turned_a = fmaf(*a, c, -(*b * s)), turned_b = fmaf(*b, c, *a * s);
    *a = turned_a;
    *b = turned_b;
}

static void rope_neox(float *x, int half, const float *cs)
{
    int i = 0;
    for (; i + 16 <= half; i += 16) {
        v16 c, s, a = v16_load(x + i), b = v16_load(x + half + i);
        v16_load_pairs(cs + 2 * i, &c, &s);
        v16_store(x + i, v16_fms(a, c, v16_mul(b, s)));
        v16_store(x + half + i, v16_fma(b, c, v16_mul(a, s)));
    }
    for (; i < half; i++)
        turn(x + i, x + half + i, cs[2 * i], cs[2 * i + 1]);
}

static void rope_pairs(float *x, int n_rot, const float *cs)
{
    int i = 0;
    for (; i + 16 <= n_rot; i += 16) {
        v16 pair = v16_load(x + i), turn16 = v16_load(cs + i);
        v16 cross = v16_mul(v16_swap_pairs(pair), v16_dup_odd(turn16));
        v16_store(x + i, v16_fmaddsub(pair, v16_dup_even(turn16), cross));
    }
    for (; i < n_rot; i += 2)
        turn(x + i, x + i + 1, cs[i], cs[i + 1]);
}

void EA_ROWS_NAME(rope)(float *x, int n_heads, int head_dim, int n_rot, const float *cs, bool neox)
{
    for (int h = 0; h < n_heads; h++, x += head_dim) {
        if (neox)
            rope_neox(x, n_rot / 2, cs);
        else
            rope_pairs(x, n_rot / 2 * 2, cs);
    }
}

VEC_INLINE v16 silu_mul(v16 gate, v16 up)
{
    v16 e = v16_exp(v16_sub(v16_set1(0), gate));
    return v16_mul(v16_div(gate, v16_add(v16_set1(1.0f), e)), up);
}

void EA_ROWS_NAME(silu_mul)(float *out, const float *gate, const float *up, int n)
{
    int i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store(out + i, silu_mul(v16_load(gate + i), v16_load(up + i)));
    if (i < n)
        v16_store_part(
            out + i, silu_mul(v16_load_part(gate + i, n - i), v16_load_part(up + i, n - i)), n - i);
}

/* Two passes, the second to the first place that equals the maximum: it stops there, and what it
 * reads is still in the cache. A vector of best indices beside the maxima costs more. */
int EA_ROWS_NAME(argmax)(const float *x, int n)
{
    v16 lane[4];
    for (int j = 0; j < 4; j++)
        lane[j] = v16_set1(-INFINITY);
    int i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 4; j++)
            lane[j] = v16_max(v16_load(x + i + 16 * j), lane[j]);
    float largest = v16_hmax(v16_max(v16_max(lane[0], lane[1]), v16_max(lane[2], lane[3])));
    for (; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    if (largest == -INFINITY) /* nothing but minus infinity and NaN */
        return 0;
    for (i = 0; i + 16 <= n; i += 16) {
        unsigned equal = v16_equal(v16_load(x + i), v16_set1(largest));
        if (equal)
            return i + __builtin_ctz(equal);
    }
    while (x[i] != largest)
        i++;
    return i;
}
