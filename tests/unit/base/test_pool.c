/* test_pool.c: the worker pool: every piece once, stretches in order, sleepers that wake. */
#include "support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/affinity.h"
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

/* Stretch s adds s to every cell, having checked what the stretches before it left there. Their
 * numbers of pieces differ, and some have none. */
enum { CELLS = 37, STRETCHES = 300 };
struct stretch_arg {
    unsigned cells[CELLS];
    int next; /* stretch whose pieces must be counted next */
    atomic_int n_wrong, n_pieces[STRETCHES];
};

static int cells_each(int stretch)
{
    return stretch % 7 == 3 ? 0 : 1 + stretch % 5;
}

static int count_stretch(void *arg, int stretch)
{
    struct stretch_arg *a = arg;
    if (a->next++ != stretch)
        atomic_fetch_add(&a->n_wrong, 1);
    return cells_each(stretch) ? (CELLS - 1) / cells_each(stretch) + 1 : 0;
}

static void add_to_cells(const ea_worker *worker, void *arg, int stretch, int piece)
{
    struct stretch_arg *a = arg;
    unsigned before = 0;
    (void)worker;
    for (int s = 0; s < stretch; s++)
        before += cells_each(s) ? (unsigned)s : 0;
    for (int c = piece * cells_each(stretch); c < (piece + 1) * cells_each(stretch) && c < CELLS;
         c++) {
        if (a->cells[c] != before)
            atomic_fetch_add(&a->n_wrong, 1);
        a->cells[c] += (unsigned)stretch;
    }
    atomic_fetch_add(&a->n_pieces[stretch], 1);
}

static void stretches_follow_each_other(void **state)
{
    (void)state;
    for (int n_threads = 1; n_threads <= 4; n_threads++) { /* sleepers too, on few cores */
        ea_pool *pool = make_pool(n_threads);
        struct stretch_arg arg = {0};
        ea_pool_run(pool, &(ea_pool_work){STRETCHES, count_stretch, add_to_cells, &arg});
        assert_int_equal(atomic_load(&arg.n_wrong), 0);
        assert_int_equal(arg.next, STRETCHES);
        for (int s = 0; s < STRETCHES; s++)
            assert_int_equal(arg.n_pieces[s], cells_each(s) ? (CELLS - 1) / cells_each(s) + 1 : 0);
        ea_pool_destroy(pool);
    }
}

/* The first piece holds its worker until all others of the stretch are done, and may see nothing of
 * the next. */
enum { PIECES = 64 };
struct held_arg {
    atomic_int n_done, waited;
};

static int pieces_64(void *arg, int stretch)
{
    (void)arg;
    (void)stretch;
    return PIECES;
}

static void hold_first(const ea_worker *worker, void *arg, int stretch, int piece)
{
    struct held_arg *a = arg;
    (void)worker;
    if (stretch == 0 && piece == 0) {
        while (atomic_load(&a->n_done) < PIECES - 1)
            ea_sleep_ns(100000);
        atomic_store(&a->waited, 1);
    } else if (stretch == 1 && !atomic_load(&a->waited)) {
        atomic_store(&a->waited, -1); /* the first stretch was not complete */
    }
    atomic_fetch_add(&a->n_done, 1);
}

static void others_finish_what_a_held_worker_does_not(void **state)
{
    (void)state;
    ea_pool *pool = make_pool(2);
    struct held_arg arg = {0};
    ea_pool_run(pool, &(ea_pool_work){2, pieces_64, hold_first, &arg});
    assert_int_equal(atomic_load(&arg.waited), 1);
    assert_int_equal(atomic_load(&arg.n_done), 2 * PIECES);
    ea_pool_destroy(pool);
}

static int piece_each(void *arg, int stretch)
{
    (void)arg;
    (void)stretch;
    return 2;
}

static void count_run(const ea_worker *worker, void *arg, int stretch, int piece)
{
    (void)stretch;
    (void)piece;
    (void)worker;
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void runs_end_without_late_workers(void **state)
{
    (void)state;
    /* Far more workers than pieces or cores: most get none of any run. */
    ea_pool *pool = make_pool(16);
    atomic_int n = 0;
    for (int i = 0; i < 200; i++)
        ea_pool_run(pool, &(ea_pool_work){1, piece_each, count_run, &n});
    assert_int_equal(n, 400);
    ea_pool_destroy(pool);
}

static int one_piece(void *arg, int stretch)
{
    (void)arg;
    return stretch == 0 ? 2 : 1;
}

static void slow_piece(const ea_worker *worker, void *arg, int stretch, int piece)
{
    (void)worker;
    (void)stretch;
    if (piece == 0)
        ea_sleep_ns(3000000); /* far beyond the spinning time */
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void the_last_piece_wakes_the_sleepers(void **state)
{
    (void)state;
    ea_pool *pool = make_pool(3);
    atomic_int n = 0;
    for (int i = 0; i < 5; i++)
        ea_pool_run(pool, &(ea_pool_work){3, one_piece, slow_piece, &n});
    assert_int_equal(n, 20);
    ea_pool_destroy(pool);
}

static void empty_runs_return(void **state)
{
    (void)state;
    ea_pool *pool = make_pool(2);
    atomic_int n = 0;
    ea_pool_run(pool, &(ea_pool_work){0, one_piece, slow_piece, &n});
    ea_pool_for(pool, 0, 3, count_item, &n);
    assert_int_equal(n, 0);
    ea_pool_destroy(pool);
}

/* Each worker that ran a piece says how many processors it may use. */
struct bound_arg {
    atomic_int n_seen, n_bound;
};

static int many_pieces(void *arg, int stretch)
{
    (void)arg;
    (void)stretch;
    return 200;
}

static void note_binding(const ea_worker *worker, void *arg, int stretch, int piece)
{
    struct bound_arg *a = arg;
    cpu_set_t set;
    (void)worker;
    (void)stretch;
    (void)piece;
    atomic_fetch_add(&a->n_seen, 1);
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == 1)
        atomic_fetch_add(&a->n_bound, 1);
}

/* In a thread of its own, since the caller of a bound pool stays bound. */
static void *run_bound(void *arg)
{
    ea_pool *pool = make_pool(*(int *)arg);
    struct bound_arg *a = calloc(1, sizeof *a);
    ea_pool_bind(pool);
    ea_pool_run(pool, &(ea_pool_work){1, many_pieces, note_binding, a});
    ea_pool_destroy(pool);
    return a;
}

static void workers_are_bound_where_each_has_a_core(void **state)
{
    (void)state;
    int cpus[4], n_cores = ea_affinity_cores(cpus, 4, NULL);
    cpu_set_t mask;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    for (int n = EA_MAX(n_cores - 1, 1); n <= n_cores + 1; n++) {
        pthread_t thread;
        void *result;
        assert_int_equal(pthread_create(&thread, NULL, run_bound, &n), 0);
        assert_int_equal(pthread_join(thread, &result), 0);
        struct bound_arg *a = result;
        assert_int_equal(a->n_seen, 200);
        /* With one processor in all, everybody is bound anyway. */
        if (n == n_cores || CPU_COUNT(&mask) > 1)
            assert_int_equal(a->n_bound, n == n_cores ? 200 : 0);
        free(a);
    }
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
        cmocka_unit_test(stretches_follow_each_other),
        cmocka_unit_test(others_finish_what_a_held_worker_does_not),
        cmocka_unit_test(runs_end_without_late_workers),
        cmocka_unit_test(the_last_piece_wakes_the_sleepers),
        cmocka_unit_test(empty_runs_return),
        cmocka_unit_test(workers_are_bound_where_each_has_a_core),
        cmocka_unit_test(running_does_not_allocate),
        cmocka_unit_test(bad_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
