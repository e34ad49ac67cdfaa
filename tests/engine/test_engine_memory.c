/* test_engine_memory.c: more text than the pool holds: eviction, preemption, and that nobody is
 * ever stuck. */
#include "support.h"

#include <string.h>

#include "harness.h"

static void test_ten_thousand_one_shots(void **state)
{
    (void)state;
    enum { AT_ONCE = 20, N = 10000 };
    harness h;
    int32_t prompt[30];
    collector *c[AT_ONCE];
    harness_init(&h);
    h.world.n_pages = 20;
    h.params.n_parallel = 4;
    h.check_each_step = false; /* the soak test does; here it would take most of the time */
    harness_start(&h);
    for (int i = 0; i < AT_ONCE; i++)
        c[i] = NULL;
    for (int i = 0; i < N + AT_ONCE; i++) {
        collector **slot = &c[i % AT_ONCE];
        if (*slot) {
            int32_t expected[4];
            wait_done(*slot);
            assert_int_equal((*slot)->n, 4);
            fill_tokens(prompt, 0, 10, 5);
            fill_tokens(prompt, 10, 30, 1000 + (uint64_t)(i - AT_ONCE));
            fake_expect(&h.world, prompt, 30, 4, expected);
            assert_memory_equal((*slot)->tokens, expected, sizeof expected);
            collector_free(*slot);
            *slot = NULL;
        }
        if (i < N) {
            fill_tokens(prompt, 0, 10, 5);
            fill_tokens(prompt, 10, 30, 1000 + (uint64_t)i);
            *slot = collector_new(&h);
            start(*slot, prompt, 30, 4);
        }
    }
    ea_engine_stats stats = harness_stats(&h);
    assert_int_equal(stats.n_requests_done, N);
    assert_true(stats.n_evicted_pages > N);
    harness_done(&h);
}

/* Agents that each may fill the whole pool, all at once. */
static void test_all_hit_the_bound_together(void **state)
{
    (void)state;
    enum { N = 4 };
    harness h;
    int32_t prompt[N][20];
    collector *c[N];
    harness_init(&h);
    h.world.n_pages = 20; /* 160 positions */
    h.params.n_parallel = N;
    harness_start(&h);
    harness_hold(&h);
    for (int i = 0; i < N; i++) {
        fill_tokens(prompt[i], 0, 20, (uint64_t)i);
        c[i] = collector_new(&h);
        start(c[i], prompt[i], 20, -1);
    }
    harness_release(&h);
    for (int i = 0; i < N; i++) {
        wait_done(c[i]);
        assert_int_equal(c[i]->finish, EA_FINISH_LENGTH);
        expect_greedy(c[i], prompt[i], 20, 140);
        assert_int_equal(c[i]->n_started, 1);
        assert_int_equal(c[i]->usage.n_cached, 0); /* coming back is not a cached prompt */
        collector_free(c[i]);
    }
    ea_engine_stats stats = harness_stats(&h);
    assert_true(stats.n_preemptions >= N - 1);
    /* Who was preempted stays out until there is room, or they would take turns at losing it. */
    assert_true(stats.n_preemptions <= 3 * N);
    assert_true(atomic_load(&h.world.n_rows) < 2 * N * 160);
    assert_int_equal(stats.n_running, 0);
    harness_done(&h);
}

/* Long prompts that do not fit beside each other. */
static void test_prefills_larger_than_the_pool(void **state)
{
    (void)state;
    enum { N = 6 };
    harness h;
    int32_t prompt[N][140];
    collector *c[N];
    harness_init(&h);
    h.world.n_pages = 20;
    h.params.n_parallel = N;
    h.params.n_batch = 16;
    harness_start(&h);
    harness_hold(&h);
    for (int i = 0; i < N; i++) {
        fill_tokens(prompt[i], 0, 140, (uint64_t)i);
        c[i] = collector_new(&h);
        start(c[i], prompt[i], 140, 15);
    }
    harness_release(&h);
    for (int i = 0; i < N; i++) {
        wait_done(c[i]);
        expect_greedy(c[i], prompt[i], 140, 15);
        collector_free(c[i]);
    }
    harness_done(&h);
}

/* What an evicted timeline says is what it would have said. */
static void test_evicted_and_computed_again(void **state)
{
    (void)state;
    harness h;
    int32_t a[100], b[100];
    harness_init(&h);
    h.world.n_pages = 16;
    harness_start(&h);
    fill_tokens(a, 0, 100, 1);
    fill_tokens(b, 0, 100, 2);
    for (int round = 0; round < 3; round++) {
        collector *c = collector_new(&h), *d = collector_new(&h);
        start(c, a, 100, 20);
        wait_done(c);
        expect_greedy(c, a, 100, 20);
        assert_true(c->usage.n_cached < 50);
        start(d, b, 100, 20);
        wait_done(d);
        expect_greedy(d, b, 100, 20);
        collector_free(c);
        collector_free(d);
    }
    assert_int_equal(harness_stats(&h).n_preemptions, 0);
    assert_true(harness_stats(&h).n_evicted_pages > 30);
    harness_done(&h);
}

/* Shared pages are not paid for twice: five agents whose prompts would not fit side by side do, as
 * they share most of it. */
static void test_sharing_saves_memory(void **state)
{
    (void)state;
    enum { N = 5, ALL = 96 };
    harness h;
    int32_t prompt[N][ALL];
    collector *c[N];
    harness_init(&h);
    h.world.n_pages = 40;
    h.params.n_parallel = N;
    harness_start(&h);
    harness_hold(&h);
    for (int i = 0; i < N; i++) {
        fill_tokens(prompt[i], 0, ALL, 1);
        prompt[i][ALL - 1] = i + 1;
        c[i] = collector_new(&h);
        start(c[i], prompt[i], ALL, 25);
    }
    harness_release(&h);
    for (int i = 0; i < N; i++) {
        wait_done(c[i]);
        expect_greedy(c[i], prompt[i], ALL, 25);
        collector_free(c[i]);
    }
    assert_int_equal(harness_stats(&h).n_preemptions, 0);
    assert_int_equal(atomic_load(&h.world.n_rows), ALL - 1 + N + N * 24);
    harness_done(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ten_thousand_one_shots),
        cmocka_unit_test(test_all_hit_the_bound_together),
        cmocka_unit_test(test_prefills_larger_than_the_pool),
        cmocka_unit_test(test_evicted_and_computed_again),
        cmocka_unit_test(test_sharing_saves_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
