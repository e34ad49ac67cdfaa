/* harness.c: see harness.h. */
#include "support.h"

#include "harness.h"

#include <string.h>

#include "engine/state.h"

static uint64_t fake_now(void *user)
{
    return 1 + atomic_load(&((harness *)user)->world.now_ns);
}

static bool on_loop(void *user, ea_engine *engine)
{
    harness *h = user;
    (void)engine;
    atomic_store(&h->at_gate, true);
    pthread_mutex_lock(&h->gate);
    atomic_store(&h->at_gate, false);
    pthread_mutex_unlock(&h->gate);
    return false;
}

static void after_step(void *user, ea_engine *engine)
{
    if (((harness *)user)->check_each_step)
        ea_engine_check(engine);
}

static size_t letter(const void *ctx, int32_t token, char *buf, size_t size)
{
    (void)ctx;
    if (size > 0)
        buf[0] = (char)('a' + token % 26);
    return token == FAKE_EOG ? 0 : 1;
}

static bool is_eog(const void *ctx, int32_t token)
{
    (void)ctx;
    return token == FAKE_EOG;
}

void harness_init(harness *h)
{
    memset(h, 0, sizeof *h);
    h->world = fake_world_default();
    ea_engine_params_default(&h->params);
    h->hooks = (ea_engine_hooks){.user = h,
                                 .now_ns = fake_now,
                                 .on_loop = on_loop,
                                 .after_step = after_step,
                                 .guard_allocs = true};
    h->vocab = (ea_engine_vocab){h, letter, is_eog};
    h->check_each_step = true;
    pthread_mutex_init(&h->gate, NULL);
}

void harness_start(harness *h)
{
    ea_error err = {0};
    assert_ok(ea_engine_create_hooked(&h->vocab, 0, fake_device_create(&h->world), &h->params,
                                      &h->hooks, &h->engine, &err),
              &err);
}

void harness_stop(harness *h)
{
    ea_engine_destroy(h->engine);
    h->engine = NULL;
}

void harness_done(harness *h)
{
    harness_stop(h);
    pthread_mutex_destroy(&h->gate);
}

void harness_hold(harness *h)
{
    ea_mailbox *mail = h->engine->mail;
    pthread_mutex_lock(&h->gate);
    pthread_mutex_lock(&mail->lock);
    mail->cancels = true; /* wakes it, to no effect */
    pthread_cond_signal(&mail->wake);
    pthread_mutex_unlock(&mail->lock);
    while (!atomic_load(&h->at_gate))
        ea_sleep_ns(20000);
}

void harness_release(harness *h)
{
    pthread_mutex_unlock(&h->gate);
}

ea_engine_stats harness_stats(harness *h)
{
    ea_engine_stats stats;
    ea_engine_stats_get(h->engine, &stats);
    return stats;
}

static void on_token(collector *c, const ea_event *event)
{
    uint64_t now = atomic_load(&c->h->world.now_ns);
    EA_ASSERT(c->n < MAX_OUT);
    c->tokens[c->n++] = event->token;
    if (c->n > 1 && now - c->last_ns > c->max_gap_ns)
        c->max_gap_ns = now - c->last_ns;
    c->last_ns = now;
    atomic_store(&c->n_seen, c->n);
}

static bool on_event(void *user, const ea_event *event)
{
    collector *c = user;
    EA_ASSERT(!c->n_done); /* DONE is the last */
    switch (event->kind) {
    case EA_EVENT_STARTED:
        c->n_started++;
        c->order = c->next_order ? atomic_fetch_add(c->next_order, 1) : 0;
        atomic_store(&c->started, true);
        break;
    case EA_EVENT_PROMPT_LOGPROB: c->n_prompt_logprobs++; break;
    case EA_EVENT_TOKEN: on_token(c, event); break;
    case EA_EVENT_DONE:
        c->n_done++;
        c->finish = event->finish;
        c->status = event->status;
        c->done_at = atomic_load(&c->h->world.now_ns);
        snprintf(c->stop, sizeof c->stop, "%s", event->stop ? event->stop : "");
        snprintf(c->error, sizeof c->error, "%s", event->error ? event->error : "");
        break;
    }
    EA_ASSERT(c->n_text + event->n_bytes < MAX_TEXT);
    memcpy(c->text + c->n_text, event->text, event->n_bytes);
    c->n_text += event->n_bytes;
    c->usage = event->usage;
    return !(c->cancel_after && c->n >= c->cancel_after);
}

collector *collector_new(harness *h)
{
    collector *c = calloc(1, sizeof *c);
    assert_non_null(c);
    c->h = h;
    return c;
}

void collector_free(collector *c)
{
    ea_request_unref(c->request);
    free(c);
}

ea_request_params plain_request(collector *c, const int32_t *tokens, int n, int max_tokens)
{
    ea_request_params params;
    ea_request_params_default(&params);
    params.tokens = tokens;
    params.n_tokens = (size_t)n;
    params.max_tokens = max_tokens;
    params.sampling.temperature = 0;
    params.on_event = on_event;
    params.user = c;
    return params;
}

void submit(collector *c, const ea_request_params *params)
{
    ea_error err = {0};
    assert_ok(ea_request_submit(c->h->engine, params, &c->request, &err), &err);
}

void wait_done(collector *c)
{
    ea_request_wait(c->request);
    assert_int_equal(c->n_done, 1);
}

void start(collector *c, const int32_t *tokens, int n, int max_tokens)
{
    ea_request_params params = plain_request(c, tokens, n, max_tokens);
    submit(c, &params);
}

void fill_tokens(int32_t *tokens, int from, int n, uint64_t seed)
{
    for (int i = from; i < n; i++) {
        uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xbf58476d1ce4e5b9u;
        tokens[i] = 1 + (int32_t)((x >> 33) % 90);
    }
}

void expect_greedy(const collector *c, const int32_t *prompt, int n_prompt, int n)
{
    int32_t expected[MAX_OUT];
    int n_expected = fake_expect(&c->h->world, prompt, n_prompt, n, expected);
    if (n_expected > 0 && expected[n_expected - 1] == FAKE_EOG)
        n_expected--; /* the end token is not shown */
    assert_int_equal(c->n, n_expected);
    assert_memory_equal(c->tokens, expected, (size_t)n_expected * sizeof *expected);
}
