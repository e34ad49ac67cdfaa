/* test_engine.c: one request at a time: what it is answered, how it ends, what is refused. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "harness.h"

static void test_greedy_text(void **state)
{
    (void)state;
    harness h;
    int32_t prompt[50];
    harness_init(&h);
    harness_start(&h);
    collector *c = collector_new(&h);
    fill_tokens(prompt, 0, 50, 1);
    start(c, prompt, 50, 40);
    wait_done(c);
    expect_greedy(c, prompt, 50, 40);
    assert_int_equal(c->finish, EA_FINISH_LENGTH);
    assert_int_equal(c->n_started, 1);
    assert_int_equal(c->usage.n_prompt, 50);
    assert_int_equal(c->usage.n_cached, 0);
    assert_int_equal(c->usage.n_generated, 40);
    assert_int_equal(c->n_text, 40);
    assert_int_equal(c->text[0], 'a' + c->tokens[0] % 26);
    assert_true(c->usage.prompt_ms > 0 && c->usage.generate_ms > 0);
    /* 50 prompt rows, and one for each token but the last. */
    assert_int_equal(atomic_load(&h.world.n_rows), 50 + 39);
    ea_engine_stats stats = harness_stats(&h);
    assert_int_equal(stats.n_requests_done, 1);
    assert_int_equal(stats.n_generated_tokens, 40);
    assert_int_equal(stats.n_running, 0);
    assert_int_equal(stats.n_queued, 0);
    collector_free(c);
    harness_done(&h);
}

static void test_end_token(void **state)
{
    (void)state;
    harness h;
    int32_t prompt[10], expected[100];
    harness_init(&h);
    h.world.eog_every = 20;
    harness_start(&h);
    collector *c = collector_new(&h), *d = collector_new(&h);
    uint64_t seed = 0;
    int n;
    do /* a prompt whose answer ends after a while */
        fill_tokens(prompt, 0, 10, ++seed);
    while ((n = fake_expect(&h.world, prompt, 10, 100, expected)) < 5 || n == 100);
    start(c, prompt, 10, 100);
    wait_done(c);
    expect_greedy(c, prompt, 10, 100);
    assert_int_equal(c->finish, EA_FINISH_STOP);
    assert_string_equal(c->stop, "");
    assert_int_equal(c->usage.n_generated, n); /* the end token counts */
    assert_int_equal(c->n, n - 1);
    ea_request_params params = plain_request(d, prompt, 10, 100);
    params.ignore_eos = true;
    submit(d, &params);
    wait_done(d);
    assert_int_equal(d->finish, EA_FINISH_LENGTH);
    assert_int_equal(d->n, 100);
    for (int i = 0; i < 100; i++)
        assert_int_not_equal(d->tokens[i], FAKE_EOG);
    collector_free(c);
    collector_free(d);
    harness_done(&h);
}

static void test_full_timeline_ends_with_length(void **state)
{
    (void)state;
    harness h;
    int32_t prompt[64];
    harness_init(&h);
    h.params.n_ctx_agent = 64;
    harness_start(&h);
    collector *c = collector_new(&h), *d = collector_new(&h), *e = collector_new(&h);
    fill_tokens(prompt, 0, 64, 1);
    start(c, prompt, 20, -1);
    wait_done(c);
    expect_greedy(c, prompt, 20, 44);
    assert_int_equal(c->finish, EA_FINISH_LENGTH);
    start(d, prompt, 63, -1);
    wait_done(d);
    assert_int_equal(d->n, 1);
    assert_int_equal(d->finish, EA_FINISH_LENGTH);
    ea_request_params params = plain_request(e, prompt, 64, -1);
    ea_error err = {0};
    assert_int_equal(ea_request_submit(h.engine, &params, NULL, &err), EA_ETOOLONG);
    assert_non_null(strstr(err.text, "64 tokens"));
    assert_non_null(strstr(err.text, "63 that fit"));
    params.max_tokens = 0; /* but the prompt alone fits */
    submit(e, &params);
    wait_done(e);
    assert_int_equal(e->n, 0);
    assert_int_equal(e->finish, EA_FINISH_LENGTH);
    collector_free(c);
    collector_free(d);
    collector_free(e);
    harness_done(&h);
}

static void test_prompt_only(void **state)
{
    (void)state;
    harness h;
    int32_t prompt[30];
    harness_init(&h);
    harness_start(&h);
    fill_tokens(prompt, 0, 30, 1);
    for (int round = 0; round < 2; round++) {
        collector *c = collector_new(&h);
        start(c, prompt, 30, 0);
        wait_done(c);
        assert_int_equal(c->n_started, 1);
        assert_int_equal(c->n, 0);
        assert_int_equal(c->finish, EA_FINISH_LENGTH);
        assert_int_equal(c->usage.n_cached, round ? 30 : 0); /* no logits: nothing again */
        collector_free(c);
    }
    assert_int_equal(atomic_load(&h.world.n_rows), 30);
    assert_int_equal(atomic_load(&h.world.n_out_rows), 0);
    harness_done(&h);
}

static void test_stop_string_over_token_borders(void **state)
{
    (void)state;
    harness h;
    int32_t prompt[20], expected[200];
    char text[201], stop[5] = "";
    harness_init(&h);
    harness_start(&h);
    fill_tokens(prompt, 0, 20, 3);
    fake_expect(&h.world, prompt, 20, 200, expected);
    for (int i = 0; i < 200; i++)
        text[i] = (char)('a' + expected[i] % 26);
    text[200] = '\0';
    memcpy(stop, text + 100, 4); /* four tokens make it */
    const char *stops[] = {"NEVER", stop};
    collector *c = collector_new(&h);
    ea_request_params params = plain_request(c, prompt, 20, 200);
    params.stop = stops;
    params.n_stop = 2;
    submit(c, &params);
    wait_done(c);
    size_t at = (size_t)(strstr(text, stop) - text);
    assert_int_equal(c->finish, EA_FINISH_STOP);
    assert_string_equal(c->stop, stop);
    assert_int_equal(c->n, at + 4);
    assert_int_equal(c->n_text, at);
    assert_memory_equal(c->text, text, at);
    collector_free(c);
    /* Cut off by the length where a stop string has begun: that text is shown after all. */
    c = collector_new(&h);
    params = plain_request(c, prompt, 20, (int)at + 2);
    params.stop = stops;
    params.n_stop = 2;
    submit(c, &params);
    wait_done(c);
    assert_int_equal(c->finish, EA_FINISH_LENGTH);
    assert_int_equal(c->n_text, at + 2);
    assert_memory_equal(c->text, text, at + 2);
    collector_free(c);
    harness_done(&h);
}

/* ---- log-probabilities ---- */

typedef struct logprobs {
    ea_request *request;
    int n_prompt, n_tokens, n_done;
    int32_t prompt[64];
    const int32_t *expected_prompt;
} logprobs;

static bool on_logprobs(void *user, const ea_event *event)
{
    logprobs *l = user;
    if (event->kind == EA_EVENT_PROMPT_LOGPROB) {
        EA_ASSERT(event->pos == l->n_prompt + 1);
        EA_ASSERT(event->token == l->expected_prompt[event->pos]);
        EA_ASSERT(event->logprob < 0 && event->n_top == 3);
        EA_ASSERT(event->top[0].logprob >= event->top[1].logprob);
        l->n_prompt++;
    } else if (event->kind == EA_EVENT_TOKEN) {
        EA_ASSERT(event->n_top == 3);
        EA_ASSERT(event->top[0].token == event->token); /* greedy */
        EA_ASSERT(event->top[0].logprob == event->logprob);
        l->n_tokens++;
    } else if (event->kind == EA_EVENT_DONE) {
        l->n_done++;
    }
    return true;
}

static void test_logprobs(void **state)
{
    (void)state;
    harness h;
    int32_t prompt[60];
    harness_init(&h);
    h.world.max_logit_rows = 7; /* far fewer than the prompt has */
    harness_start(&h);
    fill_tokens(prompt, 0, 60, 1);
    for (int round = 0; round < 2; round++) { /* the second finds the prompt in the tree, and must
                                                 not use it */
        uint64_t before = atomic_load(&h.world.n_rows);
        logprobs l = {.expected_prompt = prompt};
        ea_request_params params;
        ea_request_params_default(&params);
        params.tokens = prompt;
        params.n_tokens = 60;
        params.max_tokens = 5;
        params.sampling.temperature = 0;
        params.n_top_logprobs = 3;
        params.prompt_logprobs = true;
        params.on_event = on_logprobs;
        params.user = &l;
        ea_error err = {0};
        assert_ok(ea_request_submit(h.engine, &params, &l.request, &err), &err);
        ea_request_wait(l.request);
        ea_request_unref(l.request);
        assert_int_equal(l.n_prompt, 59);
        assert_int_equal(l.n_tokens, 5);
        assert_int_equal(atomic_load(&h.world.n_rows) - before, 60 + 4);
    }
    harness_done(&h);
}

/* ---- sampling ---- */

static void test_seed_decides_sampled_text(void **state)
{
    (void)state;
    harness h;
    int32_t prompt[20];
    collector *c[3];
    harness_init(&h);
    harness_start(&h);
    fill_tokens(prompt, 0, 20, 1);
    for (int i = 0; i < 3; i++) {
        c[i] = collector_new(&h);
        ea_request_params params = plain_request(c[i], prompt, 20, 60);
        params.sampling.temperature = 5;
        params.sampling.top_k = 0;
        params.sampling.top_p = 1;
        params.sampling.min_p = 0;
        params.sampling.seed = i == 2 ? 8 : 7;
        params.sampling.seed_set = true;
        submit(c[i], &params);
        wait_done(c[i]);
        assert_int_equal(c[i]->usage.seed, i == 2 ? 8 : 7);
    }
    assert_memory_equal(c[0]->tokens, c[1]->tokens, 60 * sizeof(int32_t));
    assert_memory_not_equal(c[0]->tokens, c[2]->tokens, 60 * sizeof(int32_t));
    for (int i = 0; i < 3; i++)
        collector_free(c[i]);
    harness_done(&h);
}

/* ---- refusals ---- */

static void expect_refused(harness *h, const ea_request_params *params, const char *field)
{
    ea_error err = {0};
    assert_int_equal(ea_request_submit(h->engine, params, NULL, &err), EA_EINVAL);
    if (!strstr(err.text, field))
        fail_msg("\"%s\" does not name %s", err.text, field);
}

static void test_bad_requests_are_refused(void **state)
{
    (void)state;
    harness h;
    int32_t prompt[4] = {1, 2, 3, 4};
    const char *empty[] = {"x", ""};
    char *huge = malloc(5001);
    assert_non_null(huge);
    memset(huge, 'x', 5000);
    huge[5000] = '\0';
    const char *long_stop[] = {huge};
    harness_init(&h);
    harness_start(&h);
    ea_request_params good, p;
    ea_request_params_default(&good);
    good.tokens = prompt;
    good.n_tokens = 4;
    p = good, p.size = 1;
    expect_refused(&h, &p, "size");
    p = good, p.n_tokens = 0;
    expect_refused(&h, &p, "tokens");
    p = good, prompt[2] = 97;
    expect_refused(&h, &p, "97 at position 2");
    prompt[2] = -1;
    expect_refused(&h, &p, "tokens");
    prompt[2] = 3;
    p = good, p.max_tokens = -2;
    expect_refused(&h, &p, "max_tokens");
    p = good, p.n_top_logprobs = 21;
    expect_refused(&h, &p, "n_top_logprobs");
    p = good, p.stop = empty, p.n_stop = 2;
    expect_refused(&h, &p, "stop");
    p = good, p.stop = long_stop, p.n_stop = 1;
    expect_refused(&h, &p, "stop");
    p = good, p.agent = huge;
    expect_refused(&h, &p, "agent");
    p = good, p.sampling.top_p = 2;
    expect_refused(&h, &p, "top_p");
    p = good, p.sampling.temperature = NAN;
    expect_refused(&h, &p, "temperature");
    assert_int_equal(harness_stats(&h).n_queued, 0);
    free(huge);
    harness_done(&h);
}

static void test_bad_engines_are_refused(void **state)
{
    (void)state;
    harness h;
    ea_error err = {0};
    ea_engine *engine = NULL;
    harness_init(&h);
    ea_engine_params p = h.params;
    p.n_ctx_agent = 64 * 8 + 1;
    assert_int_equal(
        ea_engine_create_hooked(&h.vocab, 0, fake_device_create(&h.world), &p, NULL, &engine, &err),
        EA_EINVAL);
    assert_non_null(strstr(err.text, "513"));
    assert_non_null(strstr(err.text, "512"));
    p = h.params;
    p.n_parallel = 33; /* more than the device has logit rows */
    err = (ea_error){0};
    assert_int_equal(
        ea_engine_create_hooked(&h.vocab, 0, fake_device_create(&h.world), &p, NULL, &engine, &err),
        EA_EINVAL);
    assert_non_null(strstr(err.text, "n_parallel"));
    p = h.params;
    p.max_gap_ms = -1;
    assert_int_equal(
        ea_engine_create_hooked(&h.vocab, 0, fake_device_create(&h.world), &p, NULL, &engine, NULL),
        EA_EINVAL);
    assert_null(engine);
    harness_done(&h);
}

static void test_failed_step_ends_its_requests(void **state)
{
    (void)state;
    harness h;
    int32_t a[30], b[30];
    harness_init(&h);
    harness_start(&h);
    fill_tokens(a, 0, 30, 1);
    fill_tokens(b, 0, 30, 2);
    collector *c = collector_new(&h), *d = collector_new(&h);
    atomic_store(&h.world.fail_step, 5);
    start(c, a, 30, 40);
    wait_done(c);
    assert_int_equal(c->finish, EA_FINISH_ERROR);
    assert_int_equal(c->status, EA_EIO);
    assert_non_null(strstr(c->error, "step 5 fails"));
    assert_int_equal(harness_stats(&h).n_requests_failed, 1);
    start(d, a, 30, 40); /* what was computed before is still good */
    wait_done(d);
    expect_greedy(d, a, 30, 40);
    assert_int_equal(d->usage.n_cached, 29);
    collector_free(c);
    collector_free(d);
    harness_done(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_text),
        cmocka_unit_test(test_end_token),
        cmocka_unit_test(test_full_timeline_ends_with_length),
        cmocka_unit_test(test_prompt_only),
        cmocka_unit_test(test_stop_string_over_token_borders),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_seed_decides_sampled_text),
        cmocka_unit_test(test_bad_requests_are_refused),
        cmocka_unit_test(test_bad_engines_are_refused),
        cmocka_unit_test(test_failed_step_ends_its_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
