/* test_engine_cancel.c: requests that are given up, in every state, and engines that are. */
#include "support.h"

#include <string.h>
#include <time.h>

#include "harness.h"

static void test_cancel_while_queued(void **state)
{
    (void)state;
    harness h;
    int32_t prompt[3][30];
    collector *c[3];
    harness_init(&h);
    h.params.n_parallel = 1;
    harness_start(&h);
    harness_hold(&h);
    for (int i = 0; i < 3; i++) {
        fill_tokens(prompt[i], 0, 30, (uint64_t)i);
        c[i] = collector_new(&h);
        start(c[i], prompt[i], 30, 50);
    }
    ea_request_cancel(c[1]->request);
    harness_release(&h);
    wait_done(c[1]);
    assert_int_equal(c[1]->finish, EA_FINISH_CANCELLED);
    assert_int_equal(c[1]->n_started, 0);
    assert_int_equal(c[1]->n, 0);
    wait_done(c[0]);
    wait_done(c[2]);
    expect_greedy(c[0], prompt[0], 30, 50);
    expect_greedy(c[2], prompt[2], 30, 50);
    assert_int_equal(harness_stats(&h).n_requests_cancelled, 1);
    assert_int_equal(atomic_load(&h.world.n_rows), 2 * (30 + 49));
    for (int i = 0; i < 3; i++)
        collector_free(c[i]);
    harness_done(&h);
}

static void test_cancel_in_prefill(void **state)
{
    (void)state;
    harness h;
    int32_t prompt[2000];
    harness_init(&h);
    h.world.n_pages = 500;
    h.world.real_ns = 5000000; /* so that it is caught in the act */
    h.params.n_batch = 20;
    harness_start(&h);
    fill_tokens(prompt, 0, 2000, 1);
    collector *c = collector_new(&h), *d = collector_new(&h);
    harness_hold(&h);
    start(c, prompt, 2000, 50);
    harness_release(&h);
    while (atomic_load(&h.world.n_steps) < 5)
        ;
    harness_hold(&h);
    h.world.real_ns = 0;
    uint64_t n_steps = atomic_load(&h.world.n_steps), n_rows = atomic_load(&h.world.n_rows);
    assert_true(n_rows < 2000);
    ea_request_cancel(c->request);
    harness_release(&h);
    wait_done(c);
    assert_int_equal(c->finish, EA_FINISH_CANCELLED);
    assert_int_equal(atomic_load(&h.world.n_steps), n_steps); /* not one step more */
    assert_int_equal(harness_stats(&h).n_running, 0);
    /* What it had computed is not lost. */
    start(d, prompt, 2000, 1);
    wait_done(d);
    expect_greedy(d, prompt, 2000, 1);
    assert_int_equal(d->usage.n_cached, n_rows);
    collector_free(c);
    collector_free(d);
    harness_done(&h);
}

static void test_cancel_while_running(void **state)
{
    (void)state;
    harness h;
    int32_t a[30], b[30];
    harness_init(&h);
    h.world.real_ns = 5000000; /* so that it is caught in the act */
    harness_start(&h);
    fill_tokens(a, 0, 30, 1);
    fill_tokens(b, 0, 30, 2);
    collector *c = collector_new(&h), *d = collector_new(&h);
    harness_hold(&h);
    start(c, a, 30, 200);
    start(d, b, 30, 100);
    harness_release(&h);
    while (atomic_load(&c->n_seen) < 10)
        ;
    harness_hold(&h);
    h.world.real_ns = 0;
    int n_seen = atomic_load(&c->n_seen);
    ea_request_cancel(c->request);
    harness_release(&h);
    wait_done(c);
    assert_int_equal(c->finish, EA_FINISH_CANCELLED);
    assert_int_equal(c->n, n_seen);
    wait_done(d);
    expect_greedy(d, b, 30, 100);  /* the other one did not notice */
    ea_request_cancel(d->request); /* too late: nothing happens */
    collector_free(c);
    collector_free(d);
    harness_done(&h);
}

static void test_callback_cancels(void **state)
{
    (void)state;
    harness h;
    int32_t prompt[30];
    harness_init(&h);
    harness_start(&h);
    fill_tokens(prompt, 0, 30, 1);
    collector *c = collector_new(&h);
    c->cancel_after = 7;
    start(c, prompt, 30, 200);
    wait_done(c);
    assert_int_equal(c->finish, EA_FINISH_CANCELLED);
    assert_int_equal(c->n, 7);
    expect_greedy(c, prompt, 30, 7);
    collector_free(c);
    harness_done(&h);
}

static void test_destroy_while_busy(void **state)
{
    (void)state;
    enum { N = 10 };
    harness h;
    int32_t prompt[N][30];
    collector *c[N];
    harness_init(&h);
    h.world.real_ns = 1000000;
    h.params.n_parallel = 3;
    harness_start(&h);
    for (int i = 0; i < N; i++) {
        fill_tokens(prompt[i], 0, 30, (uint64_t)i);
        c[i] = collector_new(&h);
        start(c[i], prompt[i], 30, 400);
    }
    while (atomic_load(&c[0]->n_seen) < 3)
        ;
    uint64_t before = atomic_load(&h.world.n_steps);
    harness_stop(&h);
    assert_true(atomic_load(&h.world.n_steps) <= before + 2);
    for (int i = 0; i < N; i++) {
        wait_done(c[i]); /* a request outlives its engine */
        assert_int_equal(c[i]->finish, EA_FINISH_CANCELLED);
        ea_request_cancel(c[i]->request);
        collector_free(c[i]);
    }
    harness_done(&h);
}

static void test_idle_engine_sleeps_and_beats(void **state)
{
    (void)state;
    harness h;
    ea_engine_stats stats;
    harness_init(&h);
    h.hooks.now_ns = NULL; /* the real clock */
    harness_start(&h);
    clock_t cpu = clock();
    usleep(1300000);
    assert_true((double)(clock() - cpu) / CLOCKS_PER_SEC < 0.2);
    ea_engine_stats_get(h.engine, &stats);
    assert_true(stats.since_progress_ms < 1200);
    harness_done(&h);
}

static void test_fire_and_forget(void **state)
{
    (void)state;
    harness h;
    int32_t prompt[30];
    harness_init(&h);
    harness_start(&h);
    fill_tokens(prompt, 0, 30, 1);
    ea_request_params params;
    ea_request_params_default(&params);
    params.tokens = prompt;
    params.n_tokens = 30;
    params.max_tokens = 5; /* no callback, no reference */
    ea_error err = {0};
    assert_ok(ea_request_submit(h.engine, &params, NULL, &err), &err);
    while (harness_stats(&h).n_requests_done == 0)
        usleep(1000);
    harness_done(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancel_while_queued),
        cmocka_unit_test(test_cancel_in_prefill),
        cmocka_unit_test(test_cancel_while_running),
        cmocka_unit_test(test_callback_cancels),
        cmocka_unit_test(test_destroy_while_busy),
        cmocka_unit_test(test_idle_engine_sleeps_and_beats),
        cmocka_unit_test(test_fire_and_forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
