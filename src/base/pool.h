/* pool.h: the worker pool. A fixed set of threads runs one function in lockstep; the caller is
 * worker 0. Tiles of an operator are claimed from one atomic counter (lock-free work stealing),
 * operators are separated by a barrier that spins for a bounded time and then sleeps on a futex, so
 * a busy neighbour on the same cores costs a wake-up, not a time slice. Nothing here allocates
 * after creation. */
#ifndef EA_BASE_POOL_H
#define EA_BASE_POOL_H

#include "base/error.h"

typedef struct ea_pool ea_pool;

/* Worker view during a run: which worker am I, of how many. */
typedef struct ea_worker {
    ea_pool *pool;
    int index, n;
} ea_worker;

typedef void (*ea_worker_fn)(const ea_worker *worker, void *arg);

/* n_threads >= 1, the caller included. */
ea_status ea_pool_create(int n_threads, ea_pool **out, ea_error *err) EA_MUST_CHECK;
void ea_pool_destroy(ea_pool *pool); /* NULL is fine; not while running */
int ea_pool_size(const ea_pool *pool);

/* Run fn on every worker; returns when all are done. One caller thread at a time. */
void ea_pool_run(ea_pool *pool, ea_worker_fn fn, void *arg);

/* Inside fn: wait for all workers of this run. Writes made before it are seen by all after it. The
 * tile counter is reset to 0 for the next stretch. */
void ea_pool_barrier(const ea_worker *worker);

/* Inside fn: claim `step` tiles; returns the first, which is >= the number of tiles when none are
 * left. */
int ea_pool_claim(const ea_worker *worker, int step);

/* ea_pool_run over n independent items, `step` claimed at a time. */
typedef void (*ea_item_fn)(int item, void *arg);
void ea_pool_for(ea_pool *pool, int n, int step, ea_item_fn fn, void *arg);

#endif
