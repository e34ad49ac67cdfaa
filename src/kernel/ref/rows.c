/* rows.c: the small row operators, scalar: the definition of every bit that the vector forms give.
 * Pure functions. */
#include "kernel/ref/slots.h"

#include "kernel/exp.h"

float ea_exp(float x)
{
    return ea_exp_scalar(x);
}

void ea_rms_norm__ref(float *out, const float *x, const float *w, int n, float eps)
{
    float lane[16] = {0};
    for (int i = 0; i < n; i++)
        lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    float inv = 1.0f / sqrtf(lane[0] / (float)n + eps);
    for (int i = 0; i < n; i++)
        out[i] = x[i] * inv * w[i];
}

void ea_rope__ref(float *x, int n_heads, int head_dim, int n_rot, const float *cs, bool neox)
{
    int half = n_rot / 2, step = neox ? half : 1, stride = neox ? 1 : 2;
    for (int h = 0; h < n_heads; h++, x += head_dim)
        for (int i = 0; i < half; i++) {
            float *a = x + (ptrdiff_t)i * stride, *b = a + step;
            float c = cs[2 * i], s = cs[2 * i + 1];
            float turned_a = fmaf(*a, c, -(*b * s)), turned_b = fmaf(*b, c, *a * s);
            *a = turned_a;
            *b = turned_b;
        }
}

void ea_silu_mul__ref(float *out, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = gate[i] / (1.0f + ea_exp_scalar(-gate[i])) * up[i];
}

int ea_argmax__ref(const float *x, int n)
{
    int best = 0;
    float largest = -INFINITY;
    for (int i = 0; i < n; i++)
        if (x[i] > largest) {
            largest = x[i];
            best = i;
        }
    return best;
}
