/* cost.h: an online estimate of step time, from which the size of a prefill chunk follows.
 *
 * Model: T = scale * (w0 + w1 * rows + w2 * attention tokens + w3 * rows that want logits), w >= 0,
 * in milliseconds. w is a least-squares fit of relative errors over fading memories, one for each
 * size class of steps (powers of two of rows): so a thousand decode steps do not drown the few
 * large ones that the estimate is for, and a stolen time slice weighs little. `scale` follows what
 * the fit cannot: a machine that gets busy or free. Before there is data, and wherever the model
 * would have to extrapolate, the number of rows may at most double from one step to the next. Pure
 * state, no clock of its own. */
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

enum { EA_COST_CLASSES = 13 }; /* 1, 2..3, 4..7, ... rows */

/* Normal equations of one size class, fading. */
typedef struct ea_cost_class {
    double a[EA_COST_N][EA_COST_N], b[EA_COST_N];
} ea_cost_class;

typedef struct ea_cost {
    double w[EA_COST_N];
    double scale;
    int max_rows_seen;
    int n_updates;
    ea_cost_class classes[EA_COST_CLASSES];
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
