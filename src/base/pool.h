/* pool.h: the worker pool. A fixed set of threads, the caller among them as worker 0, works through
 * a list of stretches; a stretch is a number of pieces that do not depend on each other, and a
 * stretch begins when every piece of those before it is complete.
 *
 * Pieces are claimed from one atomic word (lock-free work stealing), and what is waited for is
 * pieces, never threads: a worker that is late, or has lost its core to a neighbour between two
 * pieces, misses stretches and joins the one that is open when it comes back. A worker without a
 * piece spins for a bounded time and then sleeps on a futex. Nothing here allocates after creation.
 */
#ifndef EA_BASE_POOL_H
#define EA_BASE_POOL_H

#include "base/error.h"

typedef struct ea_pool ea_pool;

/* Who runs a piece: worker `index` of `n`. One worker runs one piece at a time. */
typedef struct ea_worker {
    int index, n;
} ea_worker;

/* What a run does. Each piece sees all that was written in the stretches before its own. */
typedef struct ea_pool_work {
    int n_stretches;
    /* Pieces of this stretch, 0 or more. Asked once for each stretch of a run, in order, when all
     * before it are complete and none of its own has begun: it may prepare what they share. */
    int (*n_pieces)(void *arg, int stretch);
    void (*run)(const ea_worker *worker, void *arg, int stretch, int piece);
    void *arg;
} ea_pool_work;

/* n_threads >= 1, the caller included. */
ea_status ea_pool_create(int n_threads, ea_pool **out, ea_error *err) EA_MUST_CHECK;
void ea_pool_destroy(ea_pool *pool); /* NULL is fine; not while running */
int ea_pool_size(const ea_pool *pool);

/* Bind each worker but the caller, worker i, to processor cpus[i]. False where the system refuses
 * one; the others are bound all the same. */
bool ea_pool_bind_workers(ea_pool *pool, const int *cpus);

/* Bind each worker to a core of its own, the caller of the next run (for good) to another, if the
 * pool has exactly as many workers as there are (fast) cores allowed to us; otherwise, and where
 * the system refuses, nothing happens: with cores to spare the scheduler knows better. A scheduler
 * may leave two unbound workers on one core while a neighbour has the other to itself. */
void ea_pool_bind(ea_pool *pool);

/* Returns when all pieces are complete; their writes are seen by the caller. Other workers touch
 * nothing of the run after that. One caller thread at a time. */
void ea_pool_run(ea_pool *pool, const ea_pool_work *work);

/* A run of n independent items, `step` to a piece. */
typedef void (*ea_item_fn)(int item, void *arg);
void ea_pool_for(ea_pool *pool, int n, int step, ea_item_fn fn, void *arg);

#endif
