/* cost.h: an online estimate of step time, from which the size of a prefill chunk follows.
 *
 * Model: T = w0 + w1 * rows + w2 * attention tokens + w3 * rows that want logits, in milliseconds;
 * w by a Kalman filter whose state drifts slowly (so it follows a machine that gets busy) with
 * clipped innovations (so one stolen time slice does not spoil it; several in a row are believed).
 * Before there is data, and wherever the model would have to extrapolate, the number of rows may at
 * most double from one step to the next. A recent under-estimate raises all estimates for a while.
 * Pure state, no clock of its own. */
#ifndef EA_ENGINE_COST_H
#define EA_ENGINE_COST_H

#include <stdbool.h>
#include <stdint.h>

enum { EA_COST_N = 4 };

/* What a step costs by. */
typedef struct ea_cost_load {
    int n_rows, n_out;
    int64_t n_attn; /* sum over rows of the positions they see */
} ea_cost_load;

typedef struct ea_cost {
    double w[EA_COST_N];
    double p[EA_COST_N][EA_COST_N]; /* covariance of w */
    double caution;                 /* >= 1: factor on estimates */
    int max_rows_seen;
    int n_updates, n_clipped; /* n_clipped: in a row */
} ea_cost;

void ea_cost_init(ea_cost *cost);
void ea_cost_update(ea_cost *cost, const ea_cost_load *load, double ms);
double ea_cost_ms(const ea_cost *cost, const ea_cost_load *load);

/* Most rows in 0..n that a sequence, which holds n_before positions, can add to `load` so that the
 * step stays within target_ms. all_out: each of them wants logits, else none. */
int ea_cost_rows(const ea_cost *cost, const ea_cost_load *load, int n_before, int n, bool all_out,
                 double target_ms);

/* Add n rows of a sequence that holds n_before positions. */
void ea_cost_add(ea_cost_load *load, int n_before, int n, int n_out);

#endif
