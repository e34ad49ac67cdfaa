/* test_engine_soak.c: thousands of random submissions and cancellations from a fixed seed, all made
 * between steps on the engine thread, so that a run can be repeated exactly. After every step all
 * invariants of the engine and its KV are recomputed, and every text is compared with what it has
 * to be. */
#include "support.h"

#include <string.h>

#include "harness.h"

enum { N_LIVE = 24, N_REQUESTS = 3000, MAX_PROMPT = 200 };

typedef struct soak soak;

typedef struct talk {
    soak *s;
    ea_request *request; /* NULL: free */
    int32_t prompt[MAX_PROMPT];
    int n_prompt, max_tokens;
    int32_t tokens[MAX_PROMPT];
    int n;
    bool done, cancelled, sampled, all_prompt;
} talk;

struct soak {
    harness h;
    uint64_t rng;
    talk talks[N_LIVE];
    int n_submitted, n_finished, n_cancelled, n_failed;
    int32_t last[MAX_PROMPT]; /* a timeline to come back with */
    int n_last;
    atomic_bool over;
};

static uint64_t next_random(soak *s, uint64_t n)
{
    s->rng = s->rng * 6364136223846793005u + 1442695040888963407u;
    return (s->rng >> 33) % n;
}

static void check_text(talk *t)
{
    int32_t expected[MAX_PROMPT];
    int n = fake_expect(&t->s->h.world, t->prompt, t->n_prompt, t->n, expected);
    EA_ASSERT(n == t->n);
    EA_ASSERT(memcmp(expected, t->tokens, sizeof(int32_t) * (size_t)n) == 0);
}

static bool on_event(void *user, const ea_event *event)
{
    talk *t = user;
    soak *s = t->s;
    EA_ASSERT(!t->done);
    if (event->kind == EA_EVENT_TOKEN)
        t->tokens[t->n++] = event->token;
    if (event->kind != EA_EVENT_DONE)
        return true;
    t->done = true;
    s->n_cancelled += event->finish == EA_FINISH_CANCELLED;
    s->n_failed += event->finish == EA_FINISH_ERROR;
    EA_ASSERT(event->finish != EA_FINISH_CANCELLED || t->cancelled);
    if (!t->sampled)
        check_text(t);
    if (event->finish == EA_FINISH_LENGTH) {
        EA_ASSERT(t->n == t->max_tokens || t->n_prompt + t->n == 160);
        s->n_last = t->n_prompt;
        memcpy(s->last, t->prompt, sizeof(int32_t) * (size_t)t->n_prompt);
        memcpy(s->last + s->n_last, t->tokens, sizeof(int32_t) * (size_t)t->n);
        s->n_last += t->n;
    }
    return true;
}

/* A prompt that shares something with others: one of few beginnings, or the timeline that was
 * finished last. */
static void make_prompt(soak *s, talk *t)
{
    int n = 1 + (int)next_random(s, 110), shared = (int)next_random(s, 100);
    if (next_random(s, 3) == 0 && s->n_last > 0) {
        shared = EA_MIN(s->n_last - (int)next_random(s, 3), 140);
        n = shared + 1 + (int)next_random(s, 15);
        memcpy(t->prompt, s->last, sizeof(int32_t) * (size_t)EA_MAX(shared, 0));
    } else {
        fill_tokens(t->prompt, 0, EA_MIN(shared, n), next_random(s, 4));
    }
    fill_tokens(t->prompt, EA_MAX(EA_MIN(shared, n), 0), n, next_random(s, 1000));
    t->n_prompt = EA_MIN(n, 158);
}

static void submit_one(soak *s, talk *t)
{
    ea_request_params params;
    ea_error err = {0};
    memset(t, 0, sizeof *t);
    t->s = s;
    make_prompt(s, t);
    t->max_tokens = (int)next_random(s, 12) == 0 ? 0 : (int)next_random(s, 60);
    ea_request_params_default(&params);
    params.tokens = t->prompt;
    params.n_tokens = (size_t)t->n_prompt;
    params.max_tokens = t->max_tokens;
    t->sampled = next_random(s, 4) == 0;
    params.sampling.temperature = t->sampled ? 1 : 0;
    params.prompt_logprobs = next_random(s, 15) == 0;
    params.n_top_logprobs = params.prompt_logprobs ? 2 : -1;
    params.agent = next_random(s, 2) ? "one" : NULL;
    params.on_event = on_event;
    params.user = t;
    EA_ASSERT(ea_request_submit(s->h.engine, &params, &t->request, &err) == EA_OK);
    s->n_submitted++;
}

static bool on_loop(void *user, ea_engine *engine)
{
    soak *s = user;
    s->h.engine = engine; /* its creation may not have returned yet */
    for (int i = 0; i < N_LIVE; i++) {
        talk *t = &s->talks[i];
        if (t->request && t->done) {
            ea_request_unref(t->request);
            t->request = NULL;
            s->n_finished++;
        }
        if (!t->request && s->n_submitted < N_REQUESTS && next_random(s, 6) == 0)
            submit_one(s, t);
        else if (t->request && next_random(s, 400) == 0) {
            t->cancelled = true;
            ea_request_cancel(t->request);
        }
    }
    if (next_random(s, 500) == 0)
        atomic_store(&s->h.world.fail_step, (long long)atomic_load(&s->h.world.n_steps) + 1);
    bool over = s->n_finished == N_REQUESTS;
    if (over)
        atomic_store(&s->over, true);
    return !over;
}

static uint64_t fake_now(void *user)
{
    return 1 + atomic_load(&((soak *)user)->h.world.now_ns);
}

static void after_step(void *user, ea_engine *engine)
{
    (void)user;
    ea_engine_check(engine);
}

static void test_soak(void **state)
{
    (void)state;
    soak *s = calloc(1, sizeof *s);
    assert_non_null(s);
    harness_init(&s->h);
    s->rng = 20240607;
    s->h.world.n_pages = 22;
    s->h.params.n_ctx_agent = 160;
    s->h.params.n_parallel = 5;
    s->h.params.n_batch = 24;
    s->h.hooks.user = s;
    s->h.hooks.now_ns = fake_now;
    s->h.hooks.on_loop = on_loop;
    s->h.hooks.after_step = after_step;
    ea_engine *engine = NULL;
    ea_error err = {0};
    assert_ok(ea_engine_create_hooked(&s->h.vocab, 0, fake_device_create(&s->h.world), &s->h.params,
                                      &s->h.hooks, &engine, &err),
              &err);
    while (!atomic_load(&s->over))
        usleep(1000);
    ea_engine_stats stats;
    ea_engine_stats_get(engine, &stats);
    ea_engine_destroy(engine);
    /* Everything that was to be tried did happen. */
    assert_int_equal(s->n_finished, N_REQUESTS);
    assert_true(s->n_cancelled > 100);
    assert_true(s->n_failed > 20);
    assert_true(stats.n_preemptions > 100);
    assert_true(stats.n_evicted_pages > 1000);
    assert_true(stats.n_cached_tokens > 10000);
    s->h.engine = NULL;
    harness_done(&s->h);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_soak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
