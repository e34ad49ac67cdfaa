/* attn_plan.h: how a step's attention is cut into pieces of work. Made by the engine thread before
 * the workers start, once a step and KV group, for all its layers. No cut changes a bit (kernel.h).
 *
 * A run is the rows of one sequence that go together (ea_cpu_span). A unit is one or several runs,
 * to be done for one KV head (or a part of its query heads):
 *  - a run alone over all that it sees, or
 *  - a few spans of positions, of all runs that have the same pages there: agents with a common
 *    prefix read its KV once. Results stay apart in `parts`; whoever finishes the last unit of a
 * run merges that run's spans in ascending order. */
#ifndef EA_DEVICE_CPU_ATTN_PLAN_H
#define EA_DEVICE_CPU_ATTN_PLAN_H

#include <stdatomic.h>

#include "base/error.h"

/* Most results of one row and one span that a step keeps apart. A run that finds no room is not
 * cut; 1024 is a timeline of 256 Ki tokens, or 32 of 8 Ki. */
enum { EA_CPU_ATTN_PARTS = 1024 };

typedef struct ea_cpu_attn_unit {
    int run0, n_runs;   /* members[run0 ..] */
    int span0, n_spans; /* n_spans 0: all that its one run sees */
} ea_cpu_attn_unit;

typedef struct ea_cpu_attn_run {
    int span0, span1; /* spans that its rows see into */
    int part0;        /* of its first row and span: row-major, span1 - span0 a row; -1: not cut */
    int n_units;      /* that it is in, where it is cut */
    int cut;          /* number among the runs that are cut */
} ea_cpu_attn_run;

typedef struct ea_cpu_attn_plan {
    ea_cpu_attn_unit *units;
    int n_units;
    int32_t *members;      /* indices of runs */
    ea_cpu_attn_run *runs; /* one for each of the device's spans */
    /* Units that have not finished yet, for each run that is cut and each item of it (KV head and
     * part). Who takes the last one away puts n_units back: the next layer begins so. */
    atomic_int *left;
    /* For making it: runs by equal pages, where groups of them begin, and the groups' open units.
     */
    int32_t *order;
    int32_t *open;
    uint8_t *begins;
} ea_cpu_attn_plan;

struct ea_cpu_device;

/* Take the memory for a group's plan; take(user, n) gives n bytes, zeroed, or NULL when it only
 * counts. */
void ea_cpu_attn_carve(struct ea_cpu_device *d, int group, void *(*take)(void *user, size_t n),
                       void *user);
/* For the step's spans. */
void ea_cpu_attn_plan_step(struct ea_cpu_device *d, int group);

#endif
