/* test_engine_timing.c: time on the fake clock: the bound on gaps, the order of the queue and of
 * prefills, the estimate of step time. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "engine/cost.h"
#include "harness.h"

/* Cost models of very different machines: {base, row, attention, logits} in ns. */
static const uint64_t MACHINES[][4] = {
    {5000000, 1000000, 500, 100000},     /* 1 ms a row: a small model on a small machine */
    {60000000, 12000000, 3000, 4000000}, /* 12 ms a row: the large one */
    {1000000, 20000, 100, 5000},         /* a server */
};

static void run_gap(const uint64_t machine[4], int gap_ms)
{
    enum { N = 3, LONG = 6000, TALK = 2500 };
    harness h;
    int32_t *prompt = malloc(LONG * sizeof *prompt), short_prompt[N][30];
    collector *c[N], *d;
    assert_non_null(prompt);
    harness_init(&h);
    h.world.n_pages = 3000;
    h.world.base_ns = machine[0];
    h.world.row_ns = machine[1];
    h.world.attn_ns = machine[2];
    h.world.out_ns = machine[3];
    h.check_each_step = false;
    h.world.check_every = 16;
    h.params.max_gap_ms = gap_ms;
    harness_start(&h);
    harness_hold(&h);
    for (int i = 0; i < N; i++) {
        fill_tokens(short_prompt[i], 0, 30, (uint64_t)i);
        c[i] = collector_new(&h);
        start(c[i], short_prompt[i], 30, TALK);
    }
    /* Its prefill comes last, so they talk by then. */
    fill_tokens(prompt, 0, LONG, 77);
    d = collector_new(&h);
    start(d, prompt, LONG, 10);
    harness_release(&h);
    wait_done(d);
    for (int i = 0; i < N; i++) {
        wait_done(c[i]);
        assert_true(c[i]->done_at > d->done_at); /* it went in beside them, not after them */
        if (c[i]->max_gap_ns > (uint64_t)gap_ms * 1000000)
            fail_msg("gap of %.1f ms", (double)c[i]->max_gap_ns * 1e-6);
        expect_greedy(c[i], short_prompt[i], 30, TALK);
        collector_free(c[i]);
    }
    expect_greedy(d, prompt, LONG, 10);
    assert_true(harness_stats(&h).max_step_ms <= gap_ms);
    collector_free(d);
    harness_done(&h);
    free(prompt);
}

static void test_gap_under_a_long_prefill(void **state)
{
    (void)state;
    for (size_t i = 0; i < EA_ARRAY_LEN(MACHINES); i++)
        run_gap(MACHINES[i], 400);
    run_gap(MACHINES[0], 100);
}

/* Nobody decodes: steps stay short all the same, for cancellation has to wait for one. */
static void test_steps_are_short_without_decoders(void **state)
{
    (void)state;
    for (size_t i = 0; i < EA_ARRAY_LEN(MACHINES); i++) {
        harness h;
        int32_t prompt[3000];
        harness_init(&h);
        h.world.n_pages = 500;
        h.world.base_ns = MACHINES[i][0];
        h.world.row_ns = MACHINES[i][1];
        h.world.attn_ns = MACHINES[i][2];
        h.world.out_ns = MACHINES[i][3];
        harness_start(&h);
        collector *c = collector_new(&h);
        fill_tokens(prompt, 0, 3000, 1);
        start(c, prompt, 3000, 1);
        wait_done(c);
        assert_true(harness_stats(&h).max_step_ms < 350);
        /* And not needlessly so: rows that fit into 250 ms are used. */
        uint64_t n = atomic_load(&h.world.n_steps);
        assert_true(n < 3000 * MACHINES[i][1] / 60000000 + 40);
        collector_free(c);
        harness_done(&h);
    }
}

static void test_queue_is_served_in_order(void **state)
{
    (void)state;
    enum { N = 12 };
    harness h;
    int32_t prompt[N][30];
    collector *c[N];
    atomic_int next_order = 0;
    harness_init(&h);
    h.params.n_parallel = 2;
    h.params.n_queue = N - 2;
    harness_start(&h);
    harness_hold(&h);
    for (int i = 0; i < N; i++) {
        fill_tokens(prompt[i], 0, 30, (uint64_t)i);
        c[i] = collector_new(&h);
        c[i]->next_order = &next_order;
        start(c[i], prompt[i], 30, 20);
    }
    ea_request_params params = plain_request(c[0], prompt[0], 30, 1);
    ea_error err = {0};
    assert_int_equal(ea_request_submit(h.engine, &params, NULL, &err), EA_EBUSY);
    assert_non_null(strstr(err.text, "12 requests"));
    assert_int_equal(harness_stats(&h).n_queued, N);
    harness_release(&h);
    for (int i = 0; i < N; i++) {
        wait_done(c[i]);
        if (i > 1) { /* two start in one step, the shorter rest first */
            assert_true(c[i]->order > c[i - 2]->order);
            assert_true(c[i]->usage.queue_ms > 0);
        }
    }
    for (int i = 0; i < N; i++)
        collector_free(c[i]);
    harness_done(&h);
}

/* A short return does not wait behind a long document, and a stream of short ones does not keep the
 * document out. */
static void test_prefill_order(void **state)
{
    (void)state;
    harness h;
    int32_t large[2000], small[60][50];
    collector *doc, *c[60];
    harness_init(&h);
    h.world.n_pages = 1000;
    h.params.n_parallel = 3;
    h.params.n_batch = 50;
    harness_start(&h);
    fill_tokens(large, 0, 2000, 500);
    doc = collector_new(&h);
    harness_hold(&h);
    start(doc, large, 2000, 1);
    for (int i = 0; i < 60; i++) {
        fill_tokens(small[i], 0, 50, (uint64_t)i);
        c[i] = collector_new(&h);
        start(c[i], small[i], 50, 1);
    }
    harness_release(&h);
    for (int i = 0; i < 60; i++)
        wait_done(c[i]);
    wait_done(doc);
    assert_true(c[0]->done_at < doc->done_at / 4);
    assert_true(c[20]->done_at < doc->done_at);
    /* 60 * 50 rows of others are more than its 2,000: it comes before the last of them. */
    assert_true(doc->done_at < c[59]->done_at);
    for (int i = 0; i < 60; i++)
        collector_free(c[i]);
    collector_free(doc);
    harness_done(&h);
}

static double true_ms(const ea_cost_load *load, double slow)
{
    return slow * (20 + 3.0 * load->n_rows + 0.004 * (double)load->n_attn + 1.5 * load->n_out);
}

static void test_cost_learns_and_bears_outliers(void **state)
{
    (void)state;
    ea_cost cost;
    uint64_t rng = 1;
    ea_cost_init(&cost);
    for (int i = 0; i < 400; i++) {
        ea_cost_load load = {0};
        rng = rng * 6364136223846793005u + 1;
        ea_cost_add(&load, (int)(rng >> 52) % 2000, 1 + (int)(rng >> 40) % 60,
                    (int)(rng >> 33) % 4);
        double ms = true_ms(&load, 1);
        ea_cost_update(&cost, &load, i % 37 == 36 ? 10 * ms : ms * (0.95 + 0.1 * (double)(i % 2)));
    }
    ea_cost_load probe = {0};
    ea_cost_add(&probe, 1000, 40, 3);
    double got = ea_cost_ms(&cost, &probe), want = true_ms(&probe, 1);
    if (fabs(got - want) > 0.25 * want)
        fail_msg("estimate %.1f ms, in truth %.1f ms", got, want);
    /* The machine becomes three times slower. */
    for (int i = 0; i < 60; i++)
        ea_cost_update(&cost, &probe, true_ms(&probe, 3));
    got = ea_cost_ms(&cost, &probe);
    want = true_ms(&probe, 3);
    if (fabs(got - want) > 0.25 * want)
        fail_msg("estimate %.1f ms, in truth %.1f ms after the change", got, want);
    int n = ea_cost_rows(&cost, &(ea_cost_load){0}, 0, 500, false, 200);
    assert_true(n >= 1 && n < 30);
    assert_true(ea_cost_rows(&cost, &(ea_cost_load){0}, 0, 500, true, 200) < n);
}

/* The many small steps of a long decode leave what large steps cost as it was learnt. */
static void test_decoding_does_not_drown_prefill(void **state)
{
    (void)state;
    ea_cost cost;
    ea_cost_init(&cost);
    ea_cost_load large = {0};
    ea_cost_add(&large, 1000, 256, 1);
    for (int rows = 16; rows <= 256; rows *= 2) {
        ea_cost_load load = {0};
        ea_cost_add(&load, 1000, rows, 1);
        ea_cost_update(&cost, &load, true_ms(&load, 1));
    }
    for (int i = 0; i < 3000; i++) {
        ea_cost_load load = {0};
        for (int k = 0; k < 1 + i % 20; k++)
            ea_cost_add(&load, 500 + i, 1, 1);
        double ms = true_ms(&load, 1);
        ea_cost_update(&cost, &load, i % 11 ? ms : 1.5 * ms);
    }
    double got = ea_cost_ms(&cost, &large), want = true_ms(&large, 1);
    if (fabs(got - want) > 0.25 * want)
        fail_msg("estimate %.1f ms, in truth %.1f ms", got, want);
}

static void test_first_chunks_are_bounded(void **state)
{
    (void)state;
    ea_cost cost;
    ea_cost_init(&cost);
    ea_cost_load none = {0}, load = {0};
    assert_int_equal(ea_cost_rows(&cost, &none, 0, 5000, false, 1e9), 16);
    assert_int_equal(ea_cost_rows(&cost, &none, 0, 5, false, 1e9), 5);
    ea_cost_add(&load, 0, 16, 0);
    ea_cost_update(&cost, &load, 0.1);
    assert_int_equal(ea_cost_rows(&cost, &none, 0, 5000, false, 1e9), 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gap_under_a_long_prefill),
        cmocka_unit_test(test_steps_are_short_without_decoders),
        cmocka_unit_test(test_queue_is_served_in_order),
        cmocka_unit_test(test_prefill_order),
        cmocka_unit_test(test_cost_learns_and_bears_outliers),
        cmocka_unit_test(test_decoding_does_not_drown_prefill),
        cmocka_unit_test(test_first_chunks_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
