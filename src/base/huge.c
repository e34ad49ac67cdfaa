/* huge.c: see huge.h. */
#include "base/huge.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "base/mem.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

/* Ten times what clearing 2 MiB takes at 10 GB/s. */
enum { DEAR_NS = 2000000 };

/* Giving way: for so long after being asked, and resting so many times as long as working. A page
 * took 3 ms to join in a virtual machine; a 1.5B model decodes at 13 tokens/s beside joining that
 * rests as long as it works, at 22 with small pages, at 25 with huge ones. */
enum { WAY_NS = 200000000, WAY_RESTS = 9 };

struct ea_huge_join {
    pthread_t thread;
    uint8_t *from, *to; /* borders of huge pages */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop, done;       /* under lock */
    _Atomic uint64_t busy; /* when somebody asked for way */
};

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The thread's own time: others that are given the core meanwhile do not count, a host that fetches
 * memory does. */
bool ea_huge_touch_is_dear(uint8_t *at)
{
    uint64_t start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    *(volatile uint8_t *)at = 0;
    return clock_ns(CLOCK_THREAD_CPUTIME_ID) - start > DEAR_NS;
}

void ea_huge_refuse(void *ptr, size_t n_bytes)
{
    (void)madvise(ptr, n_bytes, MADV_NOHUGEPAGE);
}

/* Wait for ns, or until told to stop; true in that case. */
static bool rest(ea_huge_join *join, uint64_t ns)
{
    uint64_t until = clock_ns(CLOCK_MONOTONIC) + ns;
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    pthread_mutex_lock(&join->lock);
    while (!join->stop && pthread_cond_timedwait(&join->wake, &join->lock, &t) == 0)
        ;
    bool stop = join->stop;
    pthread_mutex_unlock(&join->lock);
    return stop;
}

static void *join_main(void *arg)
{
    ea_huge_join *join = arg;
    for (uint8_t *at = join->from; at < join->to; at += EA_HUGE_BYTES) {
        uint64_t start = clock_ns(CLOCK_MONOTONIC);
        /* A page that cannot be had now stays small; the others are tried all the same. */
        (void)madvise(at, EA_HUGE_BYTES, MADV_COLLAPSE);
        uint64_t now = clock_ns(CLOCK_MONOTONIC);
        bool way = now - atomic_load_explicit(&join->busy, memory_order_relaxed) < WAY_NS;
        if (rest(join, way ? WAY_RESTS * (now - start) : 0))
            break;
    }
    pthread_mutex_lock(&join->lock);
    join->done = true;
    pthread_cond_broadcast(&join->wake);
    pthread_mutex_unlock(&join->lock);
    return NULL;
}

ea_huge_join *ea_huge_join_begin(void *ptr, size_t n_bytes)
{
    uint8_t *from = ptr, *to = from + n_bytes;
    from += (EA_HUGE_BYTES - (uintptr_t)from % EA_HUGE_BYTES) % EA_HUGE_BYTES;
    to -= (uintptr_t)to % EA_HUGE_BYTES;
    /* Undo _refuse; and learn from the first page whether the system knows how. */
    if (from >= to || madvise(ptr, n_bytes, MADV_HUGEPAGE) != 0 ||
        (madvise(from, EA_HUGE_BYTES, MADV_COLLAPSE) != 0 && errno == EINVAL))
        return NULL;
    ea_huge_join *join = ea_calloc(1, sizeof *join);
    if (!join)
        return NULL;
    join->from = from;
    join->to = to;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&join->lock, NULL);
    pthread_cond_init(&join->wake, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&join->thread, NULL, join_main, join) != 0) {
        pthread_cond_destroy(&join->wake);
        pthread_mutex_destroy(&join->lock);
        ea_free(join);
        return NULL;
    }
    return join;
}

void ea_huge_join_give_way(ea_huge_join *join)
{
    if (join)
        atomic_store_explicit(&join->busy, clock_ns(CLOCK_MONOTONIC), memory_order_relaxed);
}

void ea_huge_join_wait(ea_huge_join *join)
{
    if (!join)
        return;
    pthread_mutex_lock(&join->lock);
    while (!join->done)
        pthread_cond_wait(&join->wake, &join->lock);
    pthread_mutex_unlock(&join->lock);
}

void ea_huge_join_end(ea_huge_join *join)
{
    if (!join)
        return;
    pthread_mutex_lock(&join->lock);
    join->stop = true;
    pthread_cond_broadcast(&join->wake);
    pthread_mutex_unlock(&join->lock);
    pthread_join(join->thread, NULL);
    pthread_cond_destroy(&join->wake);
    pthread_mutex_destroy(&join->lock);
    ea_free(join);
}
