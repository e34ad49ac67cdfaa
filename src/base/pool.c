/* pool.c: see pool.h.
 *
 * Both the start of a run and the barrier are a 32-bit word that only grows: waiters spin on it for
 * a bounded time, then FUTEX_WAIT. The barrier's last arriver resets the tile counter and advances
 * the word. A worker claims only between two barriers, so nobody can claim from the next stretch's
 * tiles early. */
#include "base/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"

/* Time to spin before sleeping. Measured on 2 cores, decode of a 135M model (2.2 ms a step, 150
 * barriers), tokens/s alone / beside a half-core neighbour / beside a busy one on one of the cores:
 * 50 us 446 / 135 / 75, 15 us 443 / 203 / 98, 4 us 418 / 205 / 131. Whoever spins long is preempted
 * in the middle of its work; whoever sleeps is woken in time. */
enum { SPIN_NS = 15000, SPINS_PER_CLOCK = 64 };

typedef struct ea_waitword {
    _Alignas(64) atomic_uint value;
    atomic_int n_sleepers;
} ea_waitword;

struct ea_pool {
    int n;
    pthread_t *threads; /* n - 1 of them */
    ea_worker *workers;
    ea_worker_fn fn;
    void *arg;
    ea_waitword start;   /* advanced once a run */
    ea_waitword barrier; /* advanced once a barrier */
    _Alignas(64) atomic_int n_arrived;
    _Alignas(64) atomic_int tiles;
    atomic_bool stop;
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Wait until the word differs from `seen`. Acquire: pairs with the release in wake_all. */
static void wait_change(ea_waitword *word, unsigned seen)
{
    uint64_t until = 0;
    for (unsigned i = 1;; i++) {
        if (atomic_load_explicit(&word->value, memory_order_acquire) != seen)
            return;
        relax();
        if (i % SPINS_PER_CLOCK == 0) {
            uint64_t now = ea_now_ns();
            if (!until)
                until = now + SPIN_NS;
            else if (now >= until)
                break;
        }
    }
    /* seq_cst with the load of n_sleepers in wake_all: either the waker sees us, or we see its new
     * value. */
    atomic_fetch_add_explicit(&word->n_sleepers, 1, memory_order_seq_cst);
    while (atomic_load_explicit(&word->value, memory_order_seq_cst) == seen)
        syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub_explicit(&word->n_sleepers, 1, memory_order_relaxed);
}

static void wake_all(ea_waitword *word)
{
    atomic_fetch_add_explicit(&word->value, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&word->n_sleepers, memory_order_seq_cst) > 0)
        syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void ea_pool_barrier(const ea_worker *worker)
{
    ea_pool *pool = worker->pool;
    unsigned seen = atomic_load_explicit(&pool->barrier.value, memory_order_relaxed);
    /* acq_rel: the last arriver has seen all writes made before the others' arrivals. */
    if (atomic_fetch_add_explicit(&pool->n_arrived, 1, memory_order_acq_rel) == pool->n - 1) {
        atomic_store_explicit(&pool->n_arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->tiles, 0, memory_order_relaxed);
        wake_all(&pool->barrier);
    } else {
        wait_change(&pool->barrier, seen);
    }
}

int ea_pool_claim(const ea_worker *worker, int step)
{
    return atomic_fetch_add_explicit(&worker->pool->tiles, step, memory_order_relaxed);
}

static void *worker_main(void *arg)
{
    ea_worker *worker = arg;
    ea_pool *pool = worker->pool;
    for (unsigned seen = 0;; seen++) {
        wait_change(&pool->start, seen);
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed))
            return NULL;
        pool->fn(worker, pool->arg);
        ea_pool_barrier(worker);
    }
}

ea_status ea_pool_create(int n_threads, ea_pool **out, ea_error *err)
{
    if (n_threads < 1 || n_threads > EA_MAX_THREADS)
        return ea_fail(err, EA_EINVAL, "threads: %d is not in 1..%d", n_threads, EA_MAX_THREADS);
    ea_pool *pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);
    if (!pool)
        return ea_fail(err, EA_ENOMEM, "out of memory: worker pool");
    memset(pool, 0, sizeof *pool);
    pool->n = n_threads;
    pool->threads = ea_calloc((size_t)n_threads, sizeof *pool->threads);
    pool->workers = ea_calloc((size_t)n_threads, sizeof *pool->workers);
    if (!pool->threads || !pool->workers) {
        pool->n = 1;
        ea_pool_destroy(pool);
        return ea_fail(err, EA_ENOMEM, "out of memory: worker pool");
    }
    for (int i = 0; i < n_threads; i++)
        pool->workers[i] = (ea_worker){pool, i, n_threads};
    for (int i = 1; i < n_threads; i++) {
        int r = pthread_create(&pool->threads[i - 1], NULL, worker_main, &pool->workers[i]);
        if (r != 0) {
            pool->n = i; /* those that exist are idle and can be joined */
            ea_pool_destroy(pool);
            return ea_fail(err, EA_EIO, "cannot start worker thread %d of %d: %s", i, n_threads,
                           strerror(r));
        }
    }
    *out = pool;
    return EA_OK;
}

void ea_pool_destroy(ea_pool *pool)
{
    if (!pool)
        return;
    atomic_store_explicit(&pool->stop, true, memory_order_relaxed);
    wake_all(&pool->start);
    for (int i = 1; i < pool->n; i++)
        pthread_join(pool->threads[i - 1], NULL);
    ea_free(pool->threads);
    ea_free(pool->workers);
    free(pool);
}

int ea_pool_size(const ea_pool *pool)
{
    return pool->n;
}

void ea_pool_run(ea_pool *pool, ea_worker_fn fn, void *arg)
{
    pool->fn = fn;
    pool->arg = arg;
    wake_all(&pool->start);
    fn(&pool->workers[0], arg);
    ea_pool_barrier(&pool->workers[0]);
}

struct for_arg {
    int n, step;
    ea_item_fn fn;
    void *arg;
};

static void for_worker(const ea_worker *worker, void *arg)
{
    const struct for_arg *job = arg;
    int first;
    while ((first = ea_pool_claim(worker, job->step)) < job->n)
        for (int i = first; i < EA_MIN(first + job->step, job->n); i++)
            job->fn(i, job->arg);
}

void ea_pool_for(ea_pool *pool, int n, int step, ea_item_fn fn, void *arg)
{
    struct for_arg job = {n, step, fn, arg};
    ea_pool_run(pool, for_worker, &job);
}
