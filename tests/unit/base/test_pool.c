/* test_pool.c: the worker pool: every item once, barriers that order writes, sleepers that wake. */
#include "support.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"

static ea_pool *make_pool(int n)
{
    ea_pool *pool = NULL;
    ea_error err = {0};
    assert_ok(ea_pool_create(n, &pool, &err), &err);
    assert_int_equal(ea_pool_size(pool), n);
    return pool;
}

static void count_item(int item, void *arg)
{
    atomic_fetch_add((atomic_int *)arg + item, 1);
}

static void each_item_runs_once(void **state)
{
    (void)state;
    for (int n_threads = 1; n_threads <= 5; n_threads++) {
        ea_pool *pool = make_pool(n_threads);
        for (int n = 0; n < 60; n += 7)
            for (int step = 1; step <= 8; step += 3) {
                atomic_int seen[64] = {0};
                ea_pool_for(pool, n, step, count_item, seen);
                for (int i = 0; i < 64; i++)
                    assert_int_equal(seen[i], i < n);
            }
        ea_pool_destroy(pool);
    }
}

/* Each stretch doubles every cell by claims, then checks (after the barrier) what all workers
 * wrote. */
enum { CELLS = 37, STRETCHES = 300 };
struct stretch_arg {
    unsigned cells[CELLS];
    atomic_int n_wrong;
};

static void stretches(const ea_worker *worker, void *arg)
{
    struct stretch_arg *a = arg;
    for (int s = 0; s < STRETCHES; s++) {
        int i;
        while ((i = ea_pool_claim(worker, 1)) < CELLS)
            a->cells[i] += (unsigned)s;
        ea_pool_barrier(worker);
        for (int c = 0; c < CELLS; c++)
            if (a->cells[c] != (unsigned)(s * (s + 1) / 2))
                atomic_fetch_add(&a->n_wrong, 1);
        ea_pool_barrier(worker);
    }
}

static void barriers_order_writes_and_reset_claims(void **state)
{
    (void)state;
    ea_pool *pool = make_pool(4); /* more than this machine may have cores: sleepers too */
    struct stretch_arg arg = {0};
    ea_pool_run(pool, stretches, &arg);
    assert_int_equal(atomic_load(&arg.n_wrong), 0);
    ea_pool_destroy(pool);
}

static void slow_start(const ea_worker *worker, void *arg)
{
    if (worker->index == worker->n - 1)
        ea_sleep_ns(3000000); /* far beyond the spinning time */
    ea_pool_barrier(worker);
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void a_late_worker_wakes_the_sleepers(void **state)
{
    (void)state;
    ea_pool *pool = make_pool(3);
    atomic_int n = 0;
    for (int i = 0; i < 5; i++)
        ea_pool_run(pool, slow_start, &n);
    assert_int_equal(n, 15);
    ea_pool_destroy(pool);
}

static void running_does_not_allocate(void **state)
{
    (void)state;
    ea_pool *pool = make_pool(2);
    atomic_int seen[8] = {0};
    ea_alloc_guard_begin(false);
    ea_pool_for(pool, 8, 1, count_item, seen);
    assert_int_equal(ea_alloc_guard_end(), 0);
    ea_pool_destroy(pool);
}

static void bad_sizes_are_refused(void **state)
{
    (void)state;
    ea_pool *pool = NULL;
    ea_error err = {0};
    assert_int_equal(ea_pool_create(0, &pool, &err), EA_EINVAL);
    assert_int_equal(ea_pool_create(1 << 20, &pool, NULL), EA_EINVAL);
    assert_null(pool);
    ea_pool_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_item_runs_once),
        cmocka_unit_test(barriers_order_writes_and_reset_claims),
        cmocka_unit_test(a_late_worker_wakes_the_sleepers),
        cmocka_unit_test(running_does_not_allocate),
        cmocka_unit_test(bad_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
