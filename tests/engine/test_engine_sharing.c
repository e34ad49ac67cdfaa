/* test_engine_sharing.c: no token is computed twice: shared prefixes, simultaneous starts,
 * returning and forked agents. The measure is the number of rows that the device was given. */
#include "support.h"

#include <string.h>

#include "harness.h"

static uint64_t rows(const harness *h)
{
    return atomic_load(&h->world.n_rows);
}

static void test_partly_shared_pages(void **state)
{
    (void)state;
    harness h;
    int32_t a[100], b[100];
    harness_init(&h);
    harness_start(&h);
    fill_tokens(a, 0, 100, 1);
    fill_tokens(b, 0, 61, 1); /* 61 in common: seven pages and five positions */
    fill_tokens(b, 61, 100, 2);
    collector *c = collector_new(&h), *d = collector_new(&h);
    start(c, a, 100, 1);
    wait_done(c);
    assert_int_equal(rows(&h), 100);
    start(d, b, 100, 1);
    wait_done(d);
    expect_greedy(d, b, 100, 1);
    assert_int_equal(d->usage.n_cached, 61);
    assert_int_equal(rows(&h), 100 + 39);
    assert_int_equal(atomic_load(&h.world.n_copies), 1);
    ea_engine_stats stats = harness_stats(&h);
    assert_int_equal(stats.n_prompt_tokens, 200);
    assert_int_equal(stats.n_cached_tokens, 61);
    collector_free(c);
    collector_free(d);
    harness_done(&h);
}

/* Five agents with one system prompt start at once; then n = 4 requests with one prompt. */
static void test_simultaneous_starts(void **state)
{
    (void)state;
    enum { N = 5, SYSTEM = 203, ALL = 260 };
    harness h;
    int32_t prompt[N][ALL];
    collector *c[N];
    harness_init(&h);
    h.world.n_pages = 400;
    h.params.n_parallel = N;
    harness_start(&h);
    harness_hold(&h);
    for (int i = 0; i < N; i++) {
        fill_tokens(prompt[i], 0, SYSTEM, 1);
        fill_tokens(prompt[i], SYSTEM, ALL, 10 + (uint64_t)i);
        prompt[i][SYSTEM] = i + 1; /* they differ from here on, for sure */
        c[i] = collector_new(&h);
        start(c[i], prompt[i], ALL, 1);
    }
    harness_release(&h);
    uint64_t n_cached = 0;
    for (int i = 0; i < N; i++) {
        wait_done(c[i]);
        expect_greedy(c[i], prompt[i], ALL, 1);
        n_cached += (uint64_t)c[i]->usage.n_cached;
        collector_free(c[i]);
    }
    assert_int_equal(rows(&h), SYSTEM + N * (ALL - SYSTEM));
    assert_int_equal(n_cached, (N - 1) * SYSTEM);
    harness_done(&h);
}

static void test_same_prompt_four_times(void **state)
{
    (void)state;
    enum { N = 4, ALL = 150 };
    harness h;
    int32_t prompt[ALL];
    collector *c[N];
    harness_init(&h);
    harness_start(&h);
    fill_tokens(prompt, 0, ALL, 1);
    harness_hold(&h);
    for (int i = 0; i < N; i++) {
        c[i] = collector_new(&h);
        start(c[i], prompt, ALL, 1);
    }
    harness_release(&h);
    for (int i = 0; i < N; i++) {
        wait_done(c[i]);
        expect_greedy(c[i], prompt, ALL, 1);
        collector_free(c[i]);
    }
    /* Each needs the logits of the last token for itself. */
    assert_int_equal(rows(&h), ALL + N - 1);
    harness_done(&h);
}

/* The prefix of the second becomes visible while the first still runs, and it is found although the
 * second had begun to wait. */
static void test_join_in_the_middle_of_a_prefill(void **state)
{
    (void)state;
    enum { ALL = 400 };
    harness h;
    int32_t a[ALL], b[ALL];
    harness_init(&h);
    h.world.n_pages = 200;
    h.params.n_batch = 32;
    harness_start(&h);
    fill_tokens(a, 0, ALL, 1);
    fill_tokens(b, 0, 350, 1);
    fill_tokens(b, 350, ALL, 2);
    b[350] = a[350] % 90 + 1;
    collector *c = collector_new(&h), *d = collector_new(&h);
    start(c, a, ALL, 20);
    while (rows(&h) < 100)
        ;
    start(d, b, ALL, 20);
    wait_done(c);
    wait_done(d);
    expect_greedy(c, a, ALL, 20);
    expect_greedy(d, b, ALL, 20);
    assert_int_equal(rows(&h), ALL + 19 + (ALL - 350) + 19);
    collector_free(c);
    collector_free(d);
    harness_done(&h);
}

/* A shorter request overtakes a longer one in prefill and computes what both need: the longer one
 * takes it from the tree in mid-prefill, and its count of cached tokens grows by that. */
static void test_overtaken_in_the_middle_of_a_prefill(void **state)
{
    (void)state;
    enum { LONG = 800, SHORT = 250, COMMON = 240 };
    harness h;
    int32_t a[LONG], b[SHORT];
    harness_init(&h);
    h.world.n_pages = 400;
    h.params.n_batch = 32;
    harness_start(&h);
    fill_tokens(a, 0, LONG, 1);
    fill_tokens(b, 0, COMMON, 1);
    fill_tokens(b, COMMON, SHORT, 2);
    b[COMMON] = a[COMMON] % 90 + 1;
    collector *c = collector_new(&h), *d = collector_new(&h);
    start(c, a, LONG, 1);
    while (rows(&h) < 64)
        ;
    start(d, b, SHORT, 1);
    wait_done(c);
    wait_done(d);
    assert_int_equal(rows(&h), LONG + SHORT - COMMON);
    assert_int_equal(c->usage.n_cached + d->usage.n_cached, COMMON);
    assert_int_equal(harness_stats(&h).n_cached_tokens, COMMON);
    collector_free(c);
    collector_free(d);
    harness_done(&h);
}

static void test_returning_agent_computes_new_tokens_only(void **state)
{
    (void)state;
    harness h;
    int32_t history[500];
    int n = 70;
    harness_init(&h);
    harness_start(&h);
    fill_tokens(history, 0, n, 1);
    for (int turn = 0; turn < 5; turn++) {
        uint64_t before = rows(&h);
        collector *c = collector_new(&h);
        ea_request_params params = plain_request(c, history, n, 23);
        params.agent = "orchestrator";
        submit(c, &params);
        wait_done(c);
        expect_greedy(c, history, n, 23);
        /* The last token of an answer is in nobody's KV: it was never fed. So a turn computes it,
         * the 11 new ones and 22 of the 23 it generates. */
        assert_int_equal(c->usage.n_cached, turn ? n - 12 : 0);
        assert_int_equal(rows(&h) - before, turn ? 12 + 22 : 70 + 22);
        memcpy(history + n, c->tokens, 23 * sizeof *history);
        n += 23;
        fill_tokens(history, n, n + 11, 100 + (uint64_t)turn);
        n += 11;
        collector_free(c);
    }
    assert_int_equal(harness_stats(&h).n_evicted_pages, 0);
    ea_agent_info info;
    assert_int_equal(ea_engine_agents(h.engine, &info, 1), 1);
    assert_string_equal(info.id, "orchestrator");
    assert_int_equal(info.state, EA_AGENT_IDLE);
    assert_int_equal(info.n_requests, 5);
    assert_int_equal(info.n_generated, 5 * 23);
    ea_agent_suspend(h.engine, "orchestrator");
    ea_agent_suspend(h.engine, "unknown");
    assert_int_equal(ea_engine_agents(h.engine, &info, 1), 1);
    assert_int_equal(info.state, EA_AGENT_SUSPENDED);
    harness_done(&h);
}

static void test_fork_of_one_agent(void **state)
{
    (void)state;
    harness h;
    int32_t a[120], b[120];
    harness_init(&h);
    harness_start(&h);
    fill_tokens(a, 0, 120, 1);
    fill_tokens(b, 0, 101, 1);
    fill_tokens(b, 101, 120, 2);
    b[101] = a[101] % 90 + 1;
    collector *c = collector_new(&h), *d = collector_new(&h);
    ea_request_params params = plain_request(c, a, 120, 50);
    params.agent = "x";
    harness_hold(&h);
    submit(c, &params);
    params = plain_request(d, b, 120, 50);
    params.agent = "x";
    submit(d, &params);
    harness_release(&h);
    wait_done(c);
    wait_done(d);
    expect_greedy(c, a, 120, 50);
    expect_greedy(d, b, 120, 50);
    assert_int_equal(rows(&h), 101 + 2 * 19 + 2 * 49);
    ea_agent_info info[2];
    assert_int_equal(ea_engine_agents(h.engine, info, 2), 1);
    assert_int_equal(info[0].n_requests, 2);
    assert_int_equal(info[0].n_generated, 100);
    collector_free(c);
    collector_free(d);
    harness_done(&h);
}

/* A text is the same alone, among eight others, and with long prefills beside it. */
static void test_same_text_in_company(void **state)
{
    (void)state;
    enum { N = 9, LEN = 120 };
    harness h;
    int32_t prompt[N][1000];
    collector *alone = NULL, *c[N];
    for (int company = 0; company < 2; company++) {
        harness_init(&h);
        h.world.n_pages = 800;
        h.params.n_parallel = N;
        harness_start(&h);
        harness_hold(&h);
        for (int i = 0; i < (company ? N : 1); i++) {
            int n = i % 2 ? 1000 : 40 + i;
            fill_tokens(prompt[i], 0, n, (uint64_t)i);
            c[i] = collector_new(&h);
            ea_request_params params = plain_request(c[i], prompt[i], n, LEN);
            params.sampling.temperature = 3;
            params.sampling.seed = 5;
            params.sampling.seed_set = true;
            submit(c[i], &params);
        }
        harness_release(&h);
        for (int i = 0; i < (company ? N : 1); i++)
            wait_done(c[i]);
        if (company) {
            assert_int_equal(c[0]->n, LEN);
            assert_memory_equal(alone->tokens, c[0]->tokens, LEN * sizeof(int32_t));
            for (int i = 0; i < N; i++)
                collector_free(c[i]);
        }
        harness_stop(&h);
        if (!company) {
            alone = c[0];
            ea_request_unref(alone->request);
            alone->request = NULL;
        }
        harness_done(&h);
    }
    collector_free(alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_partly_shared_pages),
        cmocka_unit_test(test_simultaneous_starts),
        cmocka_unit_test(test_same_prompt_four_times),
        cmocka_unit_test(test_join_in_the_middle_of_a_prefill),
        cmocka_unit_test(test_overtaken_in_the_middle_of_a_prefill),
        cmocka_unit_test(test_returning_agent_computes_new_tokens_only),
        cmocka_unit_test(test_fork_of_one_agent),
        cmocka_unit_test(test_same_text_in_company),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
