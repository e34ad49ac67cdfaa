/* cost.c: see cost.h. */
#include "engine/cost.h"

#include <math.h>
#include <string.h>

#include "base/error.h"

/* Where the fit starts: about a 1B model on two cores. Its pull is that of PRIOR steps: gone after
 * the first few real ones, but enough to keep a feature defined that no step had yet. */
static const double START[EA_COST_N] = {5, 5, 0.5, 1};
static const double PRIOR = 0.01;
static const double ATTN_UNIT = 1000; /* attention tokens are counted in thousands */
/* Memory of a size class: about ten steps of it. */
static const double FADE = 0.9;
/* How fast `scale` follows the ratio of measured to fitted time, the most that one step may tell,
 * and its bounds. */
static const double SCALE_GAIN = 0.2, SCALE_STEP = 2, SCALE_MIN = 0.7, SCALE_MAX = 5;
/* Chunk before anything was measured; the doubling rule starts from it. */
enum { FIRST_ROWS = 16 };

void ea_cost_init(ea_cost *cost)
{
    memset(cost, 0, sizeof *cost);
    memcpy(cost->w, START, sizeof START);
    cost->scale = 1;
}

static void features(const ea_cost_load *load, double x[EA_COST_N])
{
    x[0] = 1;
    x[1] = load->n_rows;
    x[2] = (double)load->n_attn / ATTN_UNIT;
    x[3] = load->n_out;
}

static double fitted(const ea_cost *cost, const ea_cost_load *load)
{
    double x[EA_COST_N], ms = 0;
    features(load, x);
    for (int i = 0; i < EA_COST_N; i++)
        ms += cost->w[i] * x[i];
    return fmax(ms, 0.001);
}

double ea_cost_ms(const ea_cost *cost, const ea_cost_load *load)
{
    return fitted(cost, load) * cost->scale;
}

/* Solve a w = b for the features in `set`, the others zero, by elimination; false if singular or a
 * weight is negative. *gain: by how much this w lowers the sum of squares (w . b, at the minimum).
 */
static bool solve(ea_cost_class sum, unsigned set, double w[EA_COST_N], double *gain)
{
    double b[EA_COST_N];
    memcpy(b, sum.b, sizeof b);
    for (int i = 0; i < EA_COST_N; i++) {
        if (!(set >> i & 1))
            continue;
        if (!(sum.a[i][i] > 1e-12))
            return false;
        for (int r = 0; r < EA_COST_N; r++) {
            if (r == i || !(set >> r & 1))
                continue;
            double f = sum.a[r][i] / sum.a[i][i];
            for (int c = 0; c < EA_COST_N; c++)
                sum.a[r][c] -= f * sum.a[i][c];
            sum.b[r] -= f * sum.b[i];
        }
    }
    *gain = 0;
    for (int i = 0; i < EA_COST_N; i++) {
        w[i] = set >> i & 1 ? sum.b[i] / sum.a[i][i] : 0;
        if (!(w[i] >= 0))
            return false;
        *gain += w[i] * b[i];
    }
    return true;
}

/* Non-negative least squares: four features have fifteen subsets, and the best feasible one is the
 * answer. */
static void fit(ea_cost *cost)
{
    ea_cost_class sum = {0};
    for (int k = 0; k < EA_COST_CLASSES; k++)
        for (int i = 0; i < EA_COST_N; i++) {
            sum.b[i] += cost->classes[k].b[i];
            for (int j = 0; j < EA_COST_N; j++)
                sum.a[i][j] += cost->classes[k].a[i][j];
        }
    for (int i = 0; i < EA_COST_N; i++) {
        sum.a[i][i] += PRIOR / (START[i] * START[i]);
        sum.b[i] += PRIOR / START[i];
    }
    double best = -1;
    for (unsigned set = 1; set < 1u << EA_COST_N; set++) {
        double w[EA_COST_N], gain;
        if (solve(sum, set, w, &gain) && gain > best) {
            best = gain;
            memcpy(cost->w, w, sizeof w);
        }
    }
}

void ea_cost_update(ea_cost *cost, const ea_cost_load *load, double ms)
{
    double x[EA_COST_N];
    ms = fmax(ms, 0.001);
    if (cost->n_updates >= 4) {
        double ratio = fmax(1 / SCALE_STEP, fmin(SCALE_STEP, ms / ea_cost_ms(cost, load)));
        cost->scale = fmax(SCALE_MIN, fmin(SCALE_MAX, cost->scale * pow(ratio, SCALE_GAIN)));
    }
    int k = 0;
    while (k + 1 < EA_COST_CLASSES && load->n_rows >> (k + 1))
        k++;
    ea_cost_class *class = &cost->classes[k];
    features(load, x);
    for (int i = 0; i < EA_COST_N; i++) {
        class->b[i] = FADE * class->b[i] + x[i] / ms;
        for (int j = 0; j < EA_COST_N; j++)
            class->a[i][j] = FADE * class->a[i][j] + x[i] * x[j] / (ms * ms);
    }
    fit(cost);
    cost->max_rows_seen = EA_MAX(cost->max_rows_seen, load->n_rows);
    cost->n_updates++;
}

void ea_cost_add(ea_cost_load *load, int n_before, int n, int n_out)
{
    load->n_rows += n;
    load->n_out += n_out;
    load->n_attn += (int64_t)n * n_before + (int64_t)n * (n + 1) / 2;
}

int ea_cost_rows(const ea_cost *cost, const ea_cost_load *load, int n_before, int n, bool all_out,
                 double target_ms)
{
    int most = EA_MAX(FIRST_ROWS, 2 * cost->max_rows_seen) - load->n_rows;
    int lo = 0, hi = EA_MAX(0, EA_MIN(n, most)); /* lo rows fit */
    while (lo < hi) {
        int mid = lo + (hi - lo + 1) / 2;
        ea_cost_load with = *load;
        ea_cost_add(&with, n_before, mid, all_out ? mid : 0);
        if (ea_cost_ms(cost, &with) <= target_ms)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}
