/* test_rows.c: the small row operators and ea_exp. Every level that this machine has must give the
 * bits of the scalar form; the scalar forms are held against double precision. */
#include "support.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernel/table.h"

enum { MAX_N = 5000, CANARY = 20 };
static const float canary = 1234.5f;

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static float random_float(uint64_t *state)
{
    return (float)(int32_t)(next_random(state) >> 32) * 0x1p-31f;
}

static void fill(float *x, int n, float size, uint64_t seed)
{
    for (int i = 0; i < n; i++)
        x[i] = size * random_float(&seed);
}

/* n results and then canaries: equal bits, or both NaN. */
static void check_same(const char *what, const char *level, const float *got, const float *want,
                       int n)
{
    for (int i = 0; i < n; i++)
        if (ea_f32_bits(got[i]) != ea_f32_bits(want[i]) && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s, %s, n %d: [%d] is %a, not %a", what, level, n, i, (double)got[i],
                     (double)want[i]);
    for (int i = n; i < n + CANARY; i++)
        assert_true(got[i] == canary);
}

static void set_canaries(float *x, int n)
{
    for (int i = 0; i < n + CANARY; i++)
        x[i] = canary;
}

/* The levels of this machine that fill a slot: `table`, `level` in the block that follows. */
#define EACH_LEVEL(slot)                                                             \
    size_t n_levels_;                                                                \
    const ea_kernel_level *levels_ = ea_kernel_levels(&n_levels_);                   \
    const char *level;                                                               \
    const ea_kernel_table *table;                                                    \
    for (size_t l_ = 0; l_ < n_levels_; l_++)                                        \
        if (level = ea_cpu_level_name(levels_[l_].level), table = levels_[l_].table, \
            ea_cpu_has(levels_[l_].level) && table->slot)

static const int sizes[] = {1,  2,  7,  8,  9,  15,  16,  17,   31,
                            32, 33, 63, 64, 65, 100, 576, 1536, 4099};

/* ---- exp ---- */

static void test_exp_error(void **state)
{
    (void)state;
    double worst = 0;
    int n = 0;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 4093) {
        float x = ea_f32_from_bits((uint32_t)bits);
        if (!(x >= -87.3f && x <= 88.722f))
            continue;
        double want = exp((double)x);
        int e;
        frexp(want, &e);
        worst = fmax(worst, fabs((double)ea_exp(x) - want) / ldexp(1, e - 24));
        n++;
    }
    assert_true(n > 100000);
    if (!(worst < 2))
        fail_msg("ea_exp is off by %.3f units in the last place", worst);
}

static void test_exp_special(void **state)
{
    (void)state;
    assert_true(ea_exp(0) == 1);
    assert_true(ea_exp(-0.0f) == 1);
    assert_true(ea_exp(-87.31f) == 0);
    assert_true(ea_exp(-1e30f) == 0);
    assert_true(ea_exp(-INFINITY) == 0);
    assert_true(ea_exp(-87.3f) >= FLT_MIN);
    assert_true(ea_exp(88.72283f) < INFINITY && ea_exp(88.72283f) > 3.4e38f);
    assert_true(ea_exp(88.73f) == INFINITY);
    assert_true(ea_exp(INFINITY) == INFINITY);
    assert_true(isnan(ea_exp(NAN)));
}

/* ---- rms_norm ---- */

static void test_rms_norm_levels(void **state)
{
    (void)state;
    static const float magnitudes[] = {0, 1e-30f, 1, 100, 1e19f, 1e30f};
    static float x[MAX_N], w[MAX_N], want[MAX_N], got[MAX_N];
    for (size_t s = 0; s < EA_ARRAY_LEN(sizes); s++)
        for (size_t m = 0; m < EA_ARRAY_LEN(magnitudes); m++) {
            int n = sizes[s];
            fill(x, n, magnitudes[m], s);
            fill(w, n, 2, m);
            ea_kernel_ref.rms_norm(want, x, w, n, 1e-5f);
            EACH_LEVEL(rms_norm)
            {
                set_canaries(got, n);
                table->rms_norm(got, x, w, n, 1e-5f);
                check_same("rms_norm", level, got, want, n);
                memcpy(got, x, (size_t)n * sizeof *x);
                table->rms_norm(got, got, w, n, 1e-5f);
                check_same("rms_norm in place", level, got, want, n);
            }
        }
}

/* Relative error at most: sum of squares (n / 16 + 5 roundings, halved by the root), mean, eps,
 * root, reciprocal and two products: (n / 32 + 9) 2^-24. */
static void test_rms_norm_value(void **state)
{
    (void)state;
    static float x[MAX_N], w[MAX_N], out[MAX_N];
    for (size_t s = 0; s < EA_ARRAY_LEN(sizes); s++) {
        int n = sizes[s];
        double sum = 0;
        fill(x, n, 3, s);
        fill(w, n, 2, s + 50);
        ea_kernel_ref.rms_norm(out, x, w, n, 1e-6f);
        for (int i = 0; i < n; i++)
            sum += (double)x[i] * (double)x[i];
        for (int i = 0; i < n; i++) {
            double want = (double)x[i] / sqrt(sum / n + (double)1e-6f) * (double)w[i];
            double error = fabs((double)out[i] - want);
            assert_true(error <= (n / 32.0 + 9) * 0x1p-24 * fabs(want));
        }
    }
}

/* ---- rope ---- */

typedef struct rope_case {
    int n_heads, head_dim, n_rot;
    bool neox;
} rope_case;

static const rope_case rope_cases[] = {
    {1, 8, 8, false},     {3, 8, 8, true},    {8, 16, 16, false}, {2, 24, 24, false},
    {2, 24, 24, true},    {9, 64, 64, false}, {9, 64, 64, true},  {12, 128, 128, true},
    {2, 128, 128, false}, {3, 64, 16, true},  {3, 64, 16, false}, {3, 80, 20, true},
    {3, 80, 20, false},   {2, 96, 72, true},  {1, 32, 2, false},  {1, 32, 0, true},
};

static void fill_cs(float *cs, int n_rot, int pos)
{
    for (int i = 0; i < n_rot / 2; i++) {
        double angle = pos * pow(10000, -2.0 * i / n_rot);
        cs[2 * i] = (float)cos(angle);
        cs[2 * i + 1] = (float)sin(angle);
    }
}

static void test_rope_levels(void **state)
{
    (void)state;
    static float x[MAX_N], want[MAX_N], got[MAX_N], cs[512];
    for (size_t c = 0; c < EA_ARRAY_LEN(rope_cases); c++)
        for (int pos = 0; pos < 3000; pos += 997) {
            const rope_case *r = &rope_cases[c];
            int n = r->n_heads * r->head_dim;
            fill(x, n, 5, c);
            fill_cs(cs, r->n_rot, pos);
            memcpy(want, x, sizeof want);
            ea_kernel_ref.rope(want, r->n_heads, r->head_dim, r->n_rot, cs, r->neox);
            EACH_LEVEL(rope)
            {
                set_canaries(got, n);
                memcpy(got, x, (size_t)n * sizeof *x);
                table->rope(got, r->n_heads, r->head_dim, r->n_rot, cs, r->neox);
                check_same("rope", level, got, want, n);
            }
        }
}

static void test_rope_value(void **state)
{
    (void)state;
    static float x[MAX_N], out[MAX_N], cs[512];
    for (size_t c = 0; c < EA_ARRAY_LEN(rope_cases); c++) {
        const rope_case *r = &rope_cases[c];
        int n = r->n_heads * r->head_dim, half = r->n_rot / 2;
        fill(x, n, 5, c);
        fill_cs(cs, r->n_rot, 1234);
        memcpy(out, x, sizeof out);
        ea_kernel_ref.rope(out, r->n_heads, r->head_dim, r->n_rot, cs, r->neox);
        for (int i = 0; i < n; i++) {
            int h = i / r->head_dim * r->head_dim, d = i - h;
            double want = (double)x[i], bound = 0;
            if (d < 2 * half) {
                int pair = r->neox ? d % half : d / 2;
                bool second = r->neox ? d >= half : d % 2;
                int other = h + (r->neox ? (d + half) % (2 * half) : d ^ 1);
                double co = (double)cs[2 * pair], si = (double)cs[2 * pair + 1];
                want = (double)x[i] * co + (second ? 1 : -1) * (double)x[other] * si;
                /* Two roundings, of the product and of the result. */
                bound = 2 * 0x1p-24 * (fabs((double)x[i]) + fabs((double)x[other]));
            }
            assert_true(fabs((double)out[i] - want) <= bound);
        }
    }
}

/* ---- silu_mul ---- */

static void test_silu_mul_levels(void **state)
{
    (void)state;
    static float gate[MAX_N], up[MAX_N], want[MAX_N], got[MAX_N];
    uint64_t bits = 0;
    /* First of all magnitudes and signs, NaN and infinities included, then of usual size. */
    for (int round = 0; round < 400; round++) {
        int n = sizes[round % (int)EA_ARRAY_LEN(sizes)];
        if (round < 300)
            for (int i = 0; i < n; i++, bits += 0x10a3d7)
                gate[i] = ea_f32_from_bits((uint32_t)bits);
        else
            fill(gate, n, 100, (uint64_t)round);
        fill(up, n, 4, (uint64_t)round);
        ea_kernel_ref.silu_mul(want, gate, up, n);
        EACH_LEVEL(silu_mul)
        {
            set_canaries(got, n);
            table->silu_mul(got, gate, up, n);
            check_same("silu_mul", level, got, want, n);
            memcpy(got, gate, (size_t)n * sizeof *gate);
            table->silu_mul(got, got, up, n);
            check_same("silu_mul in place", level, got, want, n);
        }
    }
}

/* exp is off by less than 2 units in the last place (at most 4 * 2^-24), and four more roundings.
 */
static void test_silu_mul_value(void **state)
{
    (void)state;
    static float gate[MAX_N], up[MAX_N], out[MAX_N];
    fill(gate, MAX_N, 60, 1);
    fill(up, MAX_N, 3, 2);
    ea_kernel_ref.silu_mul(out, gate, up, MAX_N);
    for (int i = 0; i < MAX_N; i++) {
        double want = (double)gate[i] / (1 + exp(-(double)gate[i])) * (double)up[i];
        assert_true(fabs((double)out[i] - want) <= 8 * 0x1p-24 * fabs(want) + 1e-44);
    }
}

/* ---- argmax ---- */

static void check_argmax(const float *x, int n, int want)
{
    EACH_LEVEL(argmax)
    {
        int got = table->argmax(x, n);
        if (got != want)
            fail_msg("argmax, %s, n %d: %d, not %d", level, n, got, want);
    }
}

static void test_argmax(void **state)
{
    (void)state;
    static float x[MAX_N];
    for (size_t s = 0; s < EA_ARRAY_LEN(sizes); s++) {
        int n = sizes[s];
        for (int at = 0; at < n; at += 1 + n / 67) {
            fill(x, n, 1, s);
            x[at] = 2;
            check_argmax(x, n, at);
            x[n - 1] = 2; /* equals: the lowest index */
            check_argmax(x, n, at);
            x[n - 1] = NAN; /* NaN never wins */
            check_argmax(x, n, at == n - 1 ? ea_kernel_ref.argmax(x, n) : at);
            for (int i = 0; i < n; i++)
                x[i] = NAN;
            x[at] = -3e38f;
            check_argmax(x, n, at);
            for (int i = 0; i < n; i++)
                x[i] = -INFINITY;
            check_argmax(x, n, 0);
            x[at] = NAN;
            check_argmax(x, n, 0);
            x[at] = INFINITY;
            check_argmax(x, n, at);
            for (int i = 0; i < n; i++)
                x[i] = i % 3 ? 0.0f : -0.0f; /* zeros of both signs are equal */
            check_argmax(x, n, 0);
        }
    }
}

static void test_argmax_scalar(void **state)
{
    (void)state;
    const float x[] = {1, NAN, 3, 3, -INFINITY, 2};
    assert_int_equal(ea_kernel_ref.argmax(x, 6), 2);
    assert_int_equal(ea_kernel_ref.argmax(x + 1, 1), 0);
    assert_int_equal(ea_kernel_ref.argmax(x + 3, 3), 0);
}

int main(void)
{
    size_t n_levels;
    const ea_kernel_level *levels = ea_kernel_levels(&n_levels);
    for (size_t i = 0; i < n_levels; i++)
        if (!ea_cpu_has(levels[i].level))
            printf("SKIPPED: level %s, which this machine lacks\n",
                   ea_cpu_level_name(levels[i].level));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_error),       cmocka_unit_test(test_exp_special),
        cmocka_unit_test(test_rms_norm_levels), cmocka_unit_test(test_rms_norm_value),
        cmocka_unit_test(test_rope_levels),     cmocka_unit_test(test_rope_value),
        cmocka_unit_test(test_silu_mul_levels), cmocka_unit_test(test_silu_mul_value),
        cmocka_unit_test(test_argmax),          cmocka_unit_test(test_argmax_scalar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
