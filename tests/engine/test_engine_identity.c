/* test_engine_identity.c: the real CPU device under the engine: logits are the same bits whether
 * 2,000 tokens were a prompt, were generated and then reused, or were evicted and computed again;
 * and a text is the same alone and among eight others, on one thread and two, and on five that take
 * turns on one busy core; with every type of stored KV.
 *
 * A device in front of the real one records the logits of every row that wants them, by position.
 * Only the request under test wants logits; its companions are greedy and want the argmax. */
#include "support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "engine/hooks.h"
#include "golden/model_run.h"
#include "model/synthetic.h"

enum { N_TOKENS = 2000, N_PROMPT = 40, N_MORE = 30, N_NEW = 10, N_POS = N_TOKENS + N_NEW + N_MORE };
enum { N_PARALLEL = 9, N_PAGES = 96 }; /* 96 * 32: one long timeline and some short ones */

typedef struct recorder {
    ea_device base;
    ea_device *inner;
    float *logits; /* [N_POS][n_vocab] */
    bool seen[N_POS];
} recorder;

static ea_status recorder_step(ea_device *dev, ea_batch *batch, ea_error *err)
{
    recorder *r = (recorder *)dev;
    size_t n_vocab = (size_t)dev->info.n_vocab;
    ea_status status = r->inner->ops->step(r->inner, batch, err);
    for (int i = 0; i < batch->n_rows && status == EA_OK; i++) {
        const ea_row *row = &batch->rows[i];
        if (row->want != EA_WANT_LOGITS || row->pos[0] >= N_POS)
            continue;
        memcpy(r->logits + (size_t)row->pos[0] * n_vocab, row->logits, n_vocab * sizeof(float));
        r->seen[row->pos[0]] = true;
    }
    return status;
}

static void recorder_copy(ea_device *dev, int32_t dst, int32_t src, int n_pos)
{
    recorder *r = (recorder *)dev;
    r->inner->ops->copy_page(r->inner, dst, src, n_pos);
}

static void recorder_destroy(ea_device *dev)
{
    recorder *r = (recorder *)dev;
    ea_device_destroy(r->inner);
    ea_free(r->logits);
    ea_free(r);
}

static const ea_device_ops RECORDER = {recorder_step, recorder_copy, recorder_destroy};

typedef struct fixture {
    void *bytes;
    size_t n_bytes;
    test_model m;
    ea_kv_type kv_type;
    ea_engine *engine;
    recorder *rec;
    float *kept; /* what was recorded before */
    bool kept_seen[N_POS];
} fixture;

static void start_engine(fixture *f, int n_threads)
{
    ea_error err = {0};
    recorder *r = ea_calloc(1, sizeof *r);
    assert_non_null(r);
    r->inner = test_device_kv(&f->m, n_threads, N_PAGES, 256, N_PARALLEL + 60, f->kv_type);
    r->base = (ea_device){&RECORDER, r->inner->info};
    r->logits = ea_calloc((size_t)N_POS * (size_t)r->base.info.n_vocab, sizeof *r->logits);
    assert_non_null(r->logits);
    f->rec = r;
    ea_engine_params params;
    ea_engine_params_default(&params);
    params.n_parallel = N_PARALLEL;
    ea_engine_vocab vocab = {0};
    ea_engine_hooks hooks = {.guard_allocs = true}; /* the real device's steps too */
    assert_ok(ea_engine_create_hooked(&vocab, 0, &r->base, &params, &hooks, &f->engine, &err),
              &err);
}

static int set_up(void **state, const char *spec, ea_kv_type kv_type)
{
    fixture *f = calloc(1, sizeof *f);
    ea_error err = {0};
    assert_non_null(f);
    f->kv_type = kv_type;
    assert_ok(ea_synthetic_model(spec, 3, 2, &f->bytes, &f->n_bytes, &err), &err);
    test_model_open_memory(&f->m, f->bytes, f->n_bytes);
    f->kept = calloc((size_t)N_POS * 300, sizeof *f->kept);
    assert_non_null(f->kept);
    *state = f;
    return 0;
}

static int set_up_f16(void **state)
{
    return set_up(state, "layers=2,embd=64,ff=96,heads=4,kv=2,vocab=300,arch=qwen2:Q4_1",
                  EA_KV_F16);
}

static int set_up_q8_0(void **state)
{
    return set_up(state, "layers=2,embd=128,ff=96,heads=4,kv=2,vocab=300,arch=qwen2:Q4_1",
                  EA_KV_Q8_0);
}

static int set_up_q4_0(void **state)
{
    return set_up(state, "layers=2,embd=128,ff=96,heads=4,kv=2,vocab=300:Q8_0", EA_KV_Q4_0);
}

static int teardown(void **state)
{
    fixture *f = *state;
    test_model_close(&f->m);
    ea_pages_free(f->bytes, f->n_bytes);
    free(f->kept);
    free(f);
    return 0;
}

/* ---- requests ---- */

typedef struct answer {
    int32_t tokens[N_TOKENS];
    int n, n_cached;
    ea_finish finish;
} answer;

static bool on_event(void *user, const ea_event *event)
{
    answer *a = user;
    if (event->kind == EA_EVENT_TOKEN)
        a->tokens[a->n++] = event->token;
    a->n_cached = event->usage.n_cached;
    a->finish = event->finish;
    return true;
}

static ea_request *ask(fixture *f, answer *a, const int32_t *prompt, int n, int max_tokens,
                       bool logits, bool prompt_logits)
{
    ea_request_params params;
    ea_error err = {0};
    ea_request *request = NULL;
    memset(a, 0, sizeof *a);
    ea_request_params_default(&params);
    params.tokens = prompt;
    params.n_tokens = (size_t)n;
    params.max_tokens = max_tokens;
    params.sampling.temperature = logits ? 1 : 0;
    params.sampling.seed = 11;
    params.sampling.seed_set = true;
    params.n_top_logprobs = logits ? 0 : -1;
    params.prompt_logprobs = prompt_logits;
    params.on_event = on_event;
    params.user = a;
    assert_ok(ea_request_submit(f->engine, &params, &request, &err), &err);
    return request;
}

static void finish(ea_request *request)
{
    ea_request_wait(request);
    ea_request_unref(request);
}

static void fill(int32_t *tokens, int n, uint32_t seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = 3 + (int32_t)((seed >> 8) % 290);
    }
}

/* Eight greedy talkers, to run beside. */
static void start_company(fixture *f, answer *answers, ea_request **requests, int max_tokens)
{
    int32_t prompt[120];
    for (int i = 0; i < N_PARALLEL - 1; i++) {
        fill(prompt, 20 + 12 * i, 100 + (uint32_t)i);
        requests[i] = ask(f, &answers[i], prompt, 20 + 12 * i, max_tokens, false, false);
    }
}

/* Remember what was recorded since the last call. */
static void keep(fixture *f)
{
    for (int pos = 0; pos < N_POS; pos++)
        if (f->rec->seen[pos]) {
            memcpy(f->kept + pos * 300, f->rec->logits + pos * 300, 300 * sizeof(float));
            f->kept_seen[pos] = true;
            f->rec->seen[pos] = false;
        }
}

/* Positions from..to-1 were recorded both times, with the same bits. */
static void expect_same(const fixture *f, int from, int to)
{
    for (int pos = from; pos < to; pos++) {
        assert_true(f->rec->seen[pos] && f->kept_seen[pos]);
        if (memcmp(f->rec->logits + pos * 300, f->kept + pos * 300, 300 * sizeof(float)) != 0)
            fail_msg("logits at position %d differ", pos);
    }
}

static void test_prompt_generated_evicted(void **state)
{
    fixture *f = *state;
    int32_t tokens[N_POS], other[1500];
    answer *a = calloc(1 + N_PARALLEL, sizeof *a);
    ea_request *company[N_PARALLEL - 1];
    assert_non_null(a);
    start_engine(f, 1);
    fill(tokens, N_PROMPT, 1);
    /* Generated, with others beside for the first part of it. */
    start_company(f, a + 1, company, 60);
    finish(ask(f, a, tokens, N_PROMPT, N_TOKENS - N_PROMPT, true, false));
    for (int i = 0; i < N_PARALLEL - 1; i++)
        finish(company[i]);
    assert_int_equal(a->n, N_TOKENS - N_PROMPT);
    memcpy(tokens + N_PROMPT, a->tokens, (size_t)a->n * sizeof *tokens);
    keep(f);
    /* Reused, with new tokens behind. */
    fill(tokens + N_TOKENS, N_NEW, 2);
    finish(ask(f, a, tokens, N_TOKENS + N_NEW, N_MORE, true, false));
    assert_int_equal(a->n_cached, N_TOKENS - 1); /* all but the token that was never fed */
    keep(f);
    /* The same as a prompt: computed afresh, in chunks. */
    finish(ask(f, a, tokens, N_TOKENS, 0, true, true));
    expect_same(f, N_PROMPT - 1, N_TOKENS - 1);
    /* Evicted by others, and computed again; first beside company, then on two threads.
     */
    for (uint32_t i = 0; i < 3; i++) {
        fill(other, 1500, 50 + i);
        finish(ask(f, a, other, 1500, 1, false, false));
    }
    start_company(f, a + 1, company, 20);
    finish(ask(f, a, tokens, N_TOKENS + N_NEW, N_MORE, true, false));
    for (int i = 0; i < N_PARALLEL - 1; i++)
        finish(company[i]);
    assert_true(a->n_cached < N_TOKENS / 2);
    expect_same(f, N_TOKENS + N_NEW - 1, N_TOKENS + N_NEW + N_MORE - 1);
    ea_engine_destroy(f->engine);
    start_engine(f, 2);
    finish(ask(f, a, tokens, N_TOKENS + N_NEW, N_MORE, true, false));
    expect_same(f, N_TOKENS + N_NEW - 1, N_TOKENS + N_NEW + N_MORE - 1);
    ea_engine_destroy(f->engine);
    free(a);
}

static void test_greedy_alone_and_among_others(void **state)
{
    fixture *f = *state;
    int32_t prompt[70], large[1200];
    answer *a = calloc(3 + N_PARALLEL, sizeof *a), *alone = a + N_PARALLEL, *beside = alone + 1;
    ea_request *company[N_PARALLEL - 1];
    assert_non_null(a);
    fill(prompt, 70, 7);
    fill(large, 1200, 8);
    for (int n_threads = 1; n_threads <= 2; n_threads++) {
        start_engine(f, n_threads);
        finish(ask(f, n_threads == 1 ? alone : a, prompt, 70, 150, false, false));
        if (n_threads == 2)
            assert_memory_equal(alone->tokens, a->tokens, 150 * sizeof(int32_t));
        ea_engine_destroy(f->engine);
        start_engine(f, n_threads); /* nothing cached */
        start_company(f, a + 1, company, 100);
        ea_request *r = ask(f, a, prompt, 70, 150, false, false);
        finish(company[0]);
        finish(ask(f, beside, large, 1200, 5, false, false)); /* prefill chunks beside it */
        finish(r);
        for (int i = 1; i < N_PARALLEL - 1; i++)
            finish(company[i]);
        assert_int_equal(a->n, 150);
        assert_memory_equal(alone->tokens, a->tokens, 150 * sizeof(int32_t));
        ea_engine_destroy(f->engine);
    }
    free(a);
}

static void *spin(void *stop)
{
    while (!atomic_load((atomic_bool *)stop))
        ;
    return NULL;
}

/* Five workers that take turns on one core, which a neighbour keeps busy too: pieces are taken over
 * by whoever runs, and any worker may be late at any time. */
static void test_workers_that_are_disturbed(void **state)
{
    fixture *f = *state;
    int32_t prompt[70];
    answer *alone = calloc(2, sizeof *alone), *disturbed = alone + 1;
    cpu_set_t all, one;
    pthread_t neighbour;
    atomic_bool stop = false;
    assert_non_null(alone);
    fill(prompt, 70, 9);
    start_engine(f, 1);
    finish(ask(f, alone, prompt, 70, 40, false, false));
    ea_engine_destroy(f->engine);

    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0); /* threads made here inherit it */
    assert_int_equal(pthread_create(&neighbour, NULL, spin, &stop), 0);
    start_engine(f, 5);
    finish(ask(f, disturbed, prompt, 70, 40, false, false));
    ea_engine_destroy(f->engine);
    atomic_store(&stop, true);
    pthread_join(neighbour, NULL);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(disturbed->n, 40);
    assert_memory_equal(alone->tokens, disturbed->tokens, 40 * sizeof(int32_t));
    free(alone);
}

int main(void)
{
#define WITH(test, type)                                      \
    {                                                         \
#test ", " #type, test, set_up_##type, teardown, NULL \
    }
    const struct CMUnitTest tests[] = {
        WITH(test_prompt_generated_evicted, f16),
        WITH(test_prompt_generated_evicted, q8_0),
        WITH(test_prompt_generated_evicted, q4_0),
        WITH(test_greedy_alone_and_among_others, f16),
        WITH(test_greedy_alone_and_among_others, q8_0),
        WITH(test_greedy_alone_and_among_others, q4_0),
        WITH(test_workers_that_are_disturbed, f16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
