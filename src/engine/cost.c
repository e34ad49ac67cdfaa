/* cost.c: see cost.h. */
#include "engine/cost.h"

#include <math.h>
#include <string.h>

#include "base/error.h"

/* Where the filter starts: about a 1B model on two cores. Wrong by 10x elsewhere, which the wide
 * initial covariance and the doubling rule take care of. Attention is counted in thousands. */
static const double START[EA_COST_N] = {5, 5, 0.5, 1};
static const double START_SIGMA[EA_COST_N] = {50, 20, 5, 5};
static const double ATTN_UNIT = 1000;
/* Share of START_SIGMA by which a weight may drift in one step. */
static const double DRIFT = 0.002;
/* So many clipped steps in a row are no accident: the machine has changed, and the weights may
 * drift by more until they fit again. */
enum { BELIEVE = 3 };
static const double SURPRISE = 0.1;
/* Chunk before anything was measured; the doubling rule starts from it. */
enum { FIRST_ROWS = 16 };

void ea_cost_init(ea_cost *cost)
{
    memset(cost, 0, sizeof *cost);
    memcpy(cost->w, START, sizeof START);
    for (int i = 0; i < EA_COST_N; i++)
        cost->p[i][i] = START_SIGMA[i] * START_SIGMA[i];
    cost->caution = 1;
}

static void features(const ea_cost_load *load, double x[EA_COST_N])
{
    x[0] = 1;
    x[1] = load->n_rows;
    x[2] = (double)load->n_attn / ATTN_UNIT;
    x[3] = load->n_out;
}

static double estimate(const ea_cost *cost, const ea_cost_load *load)
{
    double x[EA_COST_N], ms = 0;
    features(load, x);
    for (int i = 0; i < EA_COST_N; i++)
        ms += cost->w[i] * x[i];
    return fmax(ms, 0.001);
}

double ea_cost_ms(const ea_cost *cost, const ea_cost_load *load)
{
    return estimate(cost, load) * cost->caution;
}

void ea_cost_update(ea_cost *cost, const ea_cost_load *load, double ms)
{
    double x[EA_COST_N], px[EA_COST_N], s = 0, predicted = estimate(cost, load);
    features(load, x);
    double drift = cost->n_clipped >= BELIEVE ? SURPRISE : DRIFT;
    for (int i = 0; i < EA_COST_N; i++) {
        double limit = START_SIGMA[i] * START_SIGMA[i];
        cost->p[i][i] = fmin(cost->p[i][i] + limit * drift * drift, limit);
    }
    for (int i = 0; i < EA_COST_N; i++) {
        px[i] = 0;
        for (int j = 0; j < EA_COST_N; j++)
            px[i] += cost->p[i][j] * x[j];
        s += x[i] * px[i];
    }
    /* Noise of one measurement: a tenth of it, and the timer's and scheduler's grain. */
    double noise = 0.1 * ms + 0.2, error = ms - predicted;
    s += noise * noise;
    /* The first steps may be far off for good reason; later three sigmas are enough. */
    double most = cost->n_updates >= 8 ? 3 * sqrt(s) : INFINITY;
    cost->n_clipped = fabs(error) > most ? cost->n_clipped + 1 : 0;
    error = fmax(-most, fmin(most, error));
    for (int i = 0; i < EA_COST_N; i++)
        cost->w[i] = fmax(cost->w[i] + px[i] / s * error, 0);
    for (int i = 0; i < EA_COST_N; i++)
        for (int j = 0; j < EA_COST_N; j++)
            cost->p[i][j] -= px[i] * px[j] / s;
    cost->caution = 1 + (cost->caution - 1) * 0.9;
    if (cost->n_updates >= 8)
        cost->caution = fmax(cost->caution, fmin(ms / predicted, 2));
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
