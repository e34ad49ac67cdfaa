/* pool.c: see pool.h.
 *
 * The open stretch is one 64-bit word: a generation, which grows with each stretch, above the
 * number of pieces that nobody has claimed yet. A claim is a compare-and-swap that lowers that
 * number. Whoever holds a piece keeps the stretch, and with it the run, from ending, so only a
 * holder reads the rest of the pool and the run's data; all others look at the word alone. The
 * holder that completes the last piece opens the next stretch. Between runs no piece is open. */
#include "base/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/affinity.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"

/* Time to spin before sleeping. Whoever spins long beside a neighbour is preempted in the middle of
 * its work; whoever sleeps is woken in time.
 *
 * Tried and left out: to let a worker that was preempted with a piece come to the core of one that
 * is about to sleep (its affinity set for that time); decode of a 135M model beside a busy
 * neighbour on one of two cores was no faster than without, 160 to 230 tokens/s both. */
enum { SPIN_NS = 15000, SPINS_PER_CLOCK = 64 };

/* Bit of the word: no run is going on. */
static const uint64_t CLOSED = 1u << 31;

/* Whom a wake-up is for. */
enum { FOR_CALLER = 1, FOR_WORKERS = 2 };

typedef union ea_open_word {
    _Atomic uint64_t all; /* generation << 32 | unclaimed */
    uint32_t half[2];     /* for the futex: Linux compares 32 bits */
} ea_open_word;

struct ea_pool {
    int n;
    pthread_t *threads; /* n - 1 of them */
    struct ea_pool_thread *workers;
    _Alignas(64) ea_open_word open;
    atomic_int n_sleepers;
    atomic_bool stop;
    _Alignas(64) atomic_int n_done; /* pieces of the open stretch */
    /* Written while no piece is open, read by holders of pieces. */
    _Alignas(64) ea_pool_work work;
    int stretch, n_pieces;
    int bind_caller; /* processor for whoever calls next, or -1 */
};

struct ea_pool_thread {
    ea_pool *pool;
    ea_worker worker;
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static uint32_t generation_of(uint64_t open)
{
    return (uint32_t)(open >> 32);
}

static uint32_t unclaimed_of(uint64_t open)
{
    return (uint32_t)(open & ~CLOSED);
}

static uint32_t *futex_of(ea_pool *pool)
{
    return &pool->open.half[__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 1 : 0];
}

/* ---- waiting ---- */

/* Spin until the generation is another one; false if that took too long. */
static bool spin(ea_pool *pool, uint32_t seen)
{
    uint64_t until = 0;
    for (unsigned i = 1;; i++) {
        uint64_t open = atomic_load_explicit(&pool->open.all, memory_order_acquire);
        if (generation_of(open) != seen)
            return true;
        relax();
        if (i % SPINS_PER_CLOCK == 0) {
            uint64_t now = ea_now_ns();
            if (!until)
                until = now + SPIN_NS;
            else if (now >= until)
                return false;
        }
    }
}

/* Wait until the generation is another one than `seen`. */
static void wait_change(ea_pool *pool, uint32_t seen, int who)
{
    if (spin(pool, seen))
        return;
    /* seq_cst with the load of n_sleepers in open_pieces: either the waker sees us, or we see its
     * new generation. */
    atomic_fetch_add_explicit(&pool->n_sleepers, 1, memory_order_seq_cst);
    while (generation_of(atomic_load_explicit(&pool->open.all, memory_order_seq_cst)) == seen)
        syscall(SYS_futex, futex_of(pool), FUTEX_WAIT_BITSET_PRIVATE, seen, NULL, NULL, who);
    atomic_fetch_sub_explicit(&pool->n_sleepers, 1, memory_order_relaxed);
}

/* A new generation with n pieces; 0: the run is over, which only its caller waits for. */
static void open_pieces(ea_pool *pool, int n)
{
    /* Nobody else writes the word while no piece is unclaimed. */
    uint64_t open = atomic_load_explicit(&pool->open.all, memory_order_relaxed);
    uint64_t next = (uint64_t)(generation_of(open) + 1) << 32 | (n ? (uint64_t)n : CLOSED);
    atomic_store_explicit(&pool->open.all, next, memory_order_seq_cst);
    if (atomic_load_explicit(&pool->n_sleepers, memory_order_seq_cst) > 0 && n != 1)
        syscall(SYS_futex, futex_of(pool), FUTEX_WAKE_BITSET_PRIVATE, n ? n - 1 : INT_MAX, NULL,
                NULL, n ? FOR_CALLER | FOR_WORKERS : FOR_CALLER);
}

/* ---- work ---- */

/* Go on to the next stretch that has pieces, from stretch `from`. */
static void open_stretch(ea_pool *pool, int from)
{
    int n = 0;
    for (pool->stretch = from; pool->stretch < pool->work.n_stretches; pool->stretch++) {
        n = pool->work.n_pieces(pool->work.arg, pool->stretch);
        EA_ASSERT(n >= 0);
        if (n > 0)
            break;
    }
    pool->n_pieces = n;
    atomic_store_explicit(&pool->n_done, 0, memory_order_relaxed);
    open_pieces(pool, n);
}

/* Claim a piece of the open stretch and run it. Returns the word as it was before: with none
 * unclaimed nothing was done. */
static uint64_t run_piece(struct ea_pool_thread *self)
{
    ea_pool *pool = self->pool;
    uint64_t open = atomic_load_explicit(&pool->open.all, memory_order_acquire);
    do {
        if (unclaimed_of(open) == 0)
            return open;
    } while (!atomic_compare_exchange_weak_explicit(&pool->open.all, &open, open - 1,
                                                    memory_order_acquire, memory_order_acquire));
    int n = pool->n_pieces, stretch = pool->stretch;
    pool->work.run(&self->worker, pool->work.arg, stretch, n - (int)unclaimed_of(open));
    /* acq_rel: the last one has seen what all others wrote. Before it the stretch cannot end. */
    if (atomic_fetch_add_explicit(&pool->n_done, 1, memory_order_acq_rel) == n - 1)
        open_stretch(pool, stretch + 1);
    return open;
}

static void *worker_main(void *arg)
{
    struct ea_pool_thread *self = arg;
    ea_pool *pool = self->pool;
    while (!atomic_load_explicit(&pool->stop, memory_order_relaxed)) {
        uint64_t open = run_piece(self);
        if (unclaimed_of(open) == 0)
            wait_change(pool, generation_of(open), FOR_WORKERS);
    }
    return NULL;
}

void ea_pool_run(ea_pool *pool, const ea_pool_work *work)
{
    struct ea_pool_thread *self = &pool->workers[0];
    uint64_t open;
    if (pool->bind_caller >= 0)
        (void)ea_affinity_bind(pool->bind_caller, NULL);
    pool->bind_caller = -1;
    pool->work = *work;
    open_stretch(pool, 0);
    while (!((open = run_piece(self)) & CLOSED))
        if (unclaimed_of(open) == 0)
            wait_change(pool, generation_of(open), FOR_CALLER);
}

ea_status ea_pool_create(int n_threads, ea_pool **out, ea_error *err)
{
    if (n_threads < 1 || n_threads > EA_MAX_THREADS)
        return ea_fail(err, EA_EINVAL, "threads: %d is not in 1..%d", n_threads, EA_MAX_THREADS);
    ea_pool *pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);
    if (!pool)
        return ea_fail(err, EA_ENOMEM, "out of memory: worker pool");
    memset(pool, 0, sizeof *pool);
    atomic_init(&pool->open.all, CLOSED);
    pool->bind_caller = -1;
    pool->n = n_threads;
    pool->threads = ea_calloc((size_t)n_threads, sizeof *pool->threads);
    pool->workers = ea_calloc((size_t)n_threads, sizeof *pool->workers);
    if (!pool->threads || !pool->workers) {
        pool->n = 1;
        ea_pool_destroy(pool);
        return ea_fail(err, EA_ENOMEM, "out of memory: worker pool");
    }
    for (int i = 0; i < n_threads; i++)
        pool->workers[i] = (struct ea_pool_thread){.pool = pool, .worker = {i, n_threads}};
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
    open_pieces(pool, 0);
    syscall(SYS_futex, futex_of(pool), FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    for (int i = 1; i < pool->n; i++)
        pthread_join(pool->threads[i - 1], NULL);
    ea_free(pool->threads);
    ea_free(pool->workers);
    free(pool);
}

bool ea_pool_bind_workers(ea_pool *pool, const int *cpus)
{
    bool good = true;
    for (int i = 1; i < pool->n; i++) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((unsigned)cpus[i], &set);
        good &= pthread_setaffinity_np(pool->threads[i - 1], sizeof set, &set) == 0;
    }
    return good;
}

void ea_pool_bind(ea_pool *pool)
{
    int cpus[EA_MAX_THREADS];
    int n_fast = 0, n_cores = ea_affinity_cores(cpus, EA_MAX_THREADS, &n_fast);
    if (pool->n != n_cores && pool->n != n_fast)
        return;
    (void)ea_pool_bind_workers(pool, cpus);
    pool->bind_caller = cpus[0];
}

int ea_pool_size(const ea_pool *pool)
{
    return pool->n;
}

/* ---- items ---- */

struct for_arg {
    int n, step;
    ea_item_fn fn;
    void *arg;
};

static int for_pieces(void *arg, int stretch)
{
    const struct for_arg *job = arg;
    (void)stretch;
    return (job->n + job->step - 1) / job->step;
}

static void for_run(const ea_worker *worker, void *arg, int stretch, int piece)
{
    const struct for_arg *job = arg;
    (void)worker;
    (void)stretch;
    int first = piece * job->step, end = EA_MIN(first + job->step, job->n);
    for (int i = first; i < end; i++)
        job->fn(i, job->arg);
}

void ea_pool_for(ea_pool *pool, int n, int step, ea_item_fn fn, void *arg)
{
    struct for_arg job = {n, step, fn, arg};
    ea_pool_run(pool, &(ea_pool_work){1, for_pieces, for_run, &job});
}
