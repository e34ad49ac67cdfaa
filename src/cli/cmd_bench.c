/* cmd_bench.c: tokens per second through the public interface, as any program would get them.
 *
 * A prompt test is one request of random tokens with max_tokens 0, timed from leaving the queue to
 * its end. A generation test is a request with one new prompt token and n + 1 tokens to generate,
 * timed from the first to the last: n steps of one row, as in llama-bench. At a depth d an earlier
 * request puts d tokens into the cache, and every measured request must report them as cached. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cli/bench.h"

/* ---- requests ---- */

/* A token inside a window; false once this sequence is to generate no more. */
static bool count_token(ea_bench_request *r, uint64_t now)
{
    ea_bench_window *w = r->window;
    bool is_first = !r->first;
    if (is_first && --w->n_waiting == 0) {
        w->start = now;
        w->marker = r;
    }
    if (w->stamps) {
        if (r == w->marker && w->n_stamps <= w->n_steps)
            w->stamps[w->n_stamps++] = now;
        return w->n_stamps <= w->n_steps;
    }
    if (!is_first && w->n_waiting == 0) {
        r->n_counted++;
        w->end = now;
    }
    return r->n_counted < w->n_each;
}

static bool on_event(void *user, const ea_event *event)
{
    ea_bench_request *r = user;
    uint64_t now = ea_now_ns();
    bool go_on = true;
    switch (event->kind) {
    case EA_EVENT_STARTED: r->started = now; break;
    case EA_EVENT_TOKEN:
        if (r->window)
            go_on = count_token(r, now);
        r->first = r->first ? r->first : now;
        r->last = now;
        break;
    case EA_EVENT_DONE:
        ea_waiter_lock(&r->bench->waiter);
        r->done = now;
        r->finish = event->finish;
        r->usage = event->usage;
        snprintf(r->error, sizeof r->error, "%s", event->error ? event->error : "");
        r->bench->n_open--;
        ea_waiter_notify(&r->bench->waiter);
        ea_waiter_unlock(&r->bench->waiter);
        break;
    default: break;
    }
    return go_on;
}

int ea_bench_submit(ea_bench *b, ea_bench_request *r, const int32_t *tokens, size_t n,
                    int max_tokens)
{
    ea_request_params params;
    ea_error err = {0};
    *r = (ea_bench_request){.bench = b, .window = r->window};
    ea_request_params_default(&params);
    params.tokens = tokens;
    params.n_tokens = n;
    params.max_tokens = max_tokens;
    params.sampling.temperature = 0;
    params.ignore_eos = true;
    params.on_event = on_event;
    params.user = r;
    ea_waiter_lock(&b->waiter);
    b->n_open++;
    ea_waiter_unlock(&b->waiter);
    if (ea_request_submit(b->engine, &params, &r->request, &err) == EA_OK)
        return EA_CLI_DONE;
    ea_waiter_lock(&b->waiter);
    b->n_open--;
    ea_waiter_unlock(&b->waiter);
    return ea_cli_error(b->o, EA_CLI_FAILED, "%s", err.text);
}

int ea_bench_wait(ea_bench *b, ea_bench_request *requests, int n)
{
    bool cancelled = false;
    ea_waiter_lock(&b->waiter);
    while (b->n_open > 0) {
        if (ea_cli_signal() && !cancelled) {
            cancelled = true;
            for (int i = 0; i < n; i++)
                if (requests[i].request)
                    ea_request_cancel(requests[i].request);
        }
        ea_waiter_sleep(&b->waiter);
    }
    ea_waiter_unlock(&b->waiter);
    int result = EA_CLI_DONE;
    for (int i = 0; i < n; i++) {
        if (!requests[i].request)
            continue;
        ea_request_wait(requests[i].request);
        ea_request_unref(requests[i].request);
        requests[i].request = NULL;
        if (requests[i].finish == EA_FINISH_ERROR && result == EA_CLI_DONE)
            result = ea_cli_error(b->o, EA_CLI_FAILED, "%s", requests[i].error);
    }
    return ea_cli_signal() ? 128 + ea_cli_signal() : result;
}

/* One request on its own. */
static int run_one(ea_bench *b, ea_bench_request *r, const int32_t *tokens, size_t n,
                   int max_tokens)
{
    *r = (ea_bench_request){0};
    int result = ea_bench_submit(b, r, tokens, n, max_tokens);
    return result == EA_CLI_DONE ? ea_bench_wait(b, r, 1) : result;
}

/* ---- engine and tokens ---- */

int ea_bench_open(ea_bench *b, int n_threads, int n_batch, int n_parallel, int need, int n_pool)
{
    ea_engine_params params;
    ea_engine_stats stats;
    ea_error err = {0};
    ea_cli_engine_params(b->o, &params);
    params.n_threads = n_threads;
    params.n_batch = n_batch;
    params.n_parallel = n_parallel;
    params.n_ctx = n_pool;
    params.n_ctx_agent = need > b->info.n_ctx_train ? need : 0;
    if (ea_engine_create(b->model, &params, &b->engine, &err) != EA_OK)
        return ea_cli_error(b->o, EA_CLI_FAILED, "%s", err.text);
    ea_engine_stats_get(b->engine, &stats);
    b->n_batch = n_batch;
    b->n_threads = stats.n_threads;
    return EA_CLI_DONE;
}

void ea_bench_close(ea_bench *b)
{
    ea_engine_destroy(b->engine);
    b->engine = NULL;
}

static uint64_t next_random(ea_bench *b)
{
    /* splitmix64 (Steele, Lea, Flood 2014). */
    uint64_t z = b->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void ea_bench_fill(ea_bench *b, int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n;) {
        int32_t token = (int32_t)(next_random(b) % (uint64_t)b->info.n_vocab);
        if (!ea_token_is_eog(b->model, token))
            tokens[i++] = token;
    }
}

/* ---- llama-bench's tests ---- */

typedef struct test {
    int n_prompt, n_gen;
} test;

typedef struct test_list {
    test *items;
    size_t n, cap;
} test_list;

static int add_test(const ea_bench *b, test_list *list, int n_prompt, int n_gen)
{
    void *items = list->items;
    if (n_prompt == 0 && n_gen == 0)
        return EA_CLI_DONE;
    if (ea_grow(&items, &list->cap, list->n + 1, sizeof *list->items, NULL) != EA_OK)
        return ea_cli_error(b->o, EA_CLI_FAILED, "out of memory");
    list->items = items;
    list->items[list->n++] = (test){n_prompt, n_gen};
    return EA_CLI_DONE;
}

/* Tests in llama-bench's order: prompts, generations, pairs. */
static int list_tests(const ea_bench *b, test_list *list)
{
    const ea_option_value *prompts = ea_opt_list(b->o, EA_OPT_N_PROMPT),
                          *gens = ea_opt_list(b->o, EA_OPT_N_GEN),
                          *pairs = ea_opt_list(b->o, EA_OPT_PROMPT_GEN);
    int result = EA_CLI_DONE;
    for (size_t i = 0; i < prompts->n && result == EA_CLI_DONE; i++)
        result = add_test(b, list, prompts->ints[i], 0);
    for (size_t i = 0; i < gens->n && result == EA_CLI_DONE; i++)
        result = add_test(b, list, 0, gens->ints[i]);
    for (size_t i = 0; i < pairs->n && result == EA_CLI_DONE; i++) {
        int p, g, end = 0;
        if (sscanf(pairs->texts[i], "%9d,%9d%n", &p, &g, &end) != 2 || pairs->texts[i][end] ||
            p < 0 || g < 0 || p > EA_MAX_CTX || g > EA_MAX_CTX)
            return ea_cli_error(b->o, EA_CLI_USAGE,
                                "-pg: '%.100s' is not of the form P,G with numbers up to %d",
                                pairs->texts[i], EA_MAX_CTX);
        result = add_test(b, list, p, g);
    }
    return result;
}

/* One repetition. tokens: room for depth + n_prompt + 1; the first `depth` are in the cache.
 * *ns and *ts are its time and rate. */
static int measure(ea_bench *b, const test *t, int depth, int32_t *tokens, double *ns, double *ts)
{
    /* A pure generation starts from one new token, which is not measured. */
    int n_new = t->n_prompt ? t->n_prompt : 1, n = depth + n_new;
    ea_bench_request r;
    ea_bench_fill(b, tokens + depth, (size_t)n_new);
    int result = run_one(b, &r, tokens, (size_t)n, t->n_gen ? t->n_gen + 1 : 0);
    if (result != EA_CLI_DONE)
        return result;
    /* A few random tokens more may be found by chance, where the vocabulary is tiny. */
    if (r.usage.n_cached < depth || r.usage.n_cached > depth + 8)
        return ea_cli_error(b->o, EA_CLI_FAILED,
                            "at depth %d %d tokens were cached; the figure would be wrong", depth,
                            r.usage.n_cached);
    if (t->n_gen && r.usage.n_generated != t->n_gen + 1)
        return ea_cli_error(b->o, EA_CLI_FAILED, "%d tokens were generated instead of %d",
                            r.usage.n_generated, t->n_gen + 1);
    uint64_t from = t->n_prompt ? r.started : r.first, to = t->n_gen ? r.last : r.done;
    int counted = t->n_gen + (t->n_prompt ? n - r.usage.n_cached : 0);
    *ns = (double)(to - from);
    *ts = *ns > 0 ? counted * 1e9 / *ns : 0;
    return EA_CLI_DONE;
}

static int run_test(ea_bench *b, const test *t, int depth, ea_bench_row *row)
{
    int32_t *tokens = ea_calloc((size_t)depth + (size_t)t->n_prompt + 1, sizeof *tokens);
    ea_bench_request fill;
    int result = EA_CLI_DONE, first = ea_opt_flag(b->o, EA_OPT_NO_WARMUP) ? 0 : -1;
    if (!tokens)
        return ea_cli_error(b->o, EA_CLI_FAILED, "out of memory");
    row->time = ea_unix_seconds();
    if (depth > 0) {
        ea_bench_fill(b, tokens, (size_t)depth);
        result = run_one(b, &fill, tokens, (size_t)depth, 0);
    }
    for (int i = first; i < row->n_samples && result == EA_CLI_DONE; i++) {
        double ns = 0, ts = 0;
        result = measure(b, t, depth, tokens, &ns, &ts);
        if (i >= 0 && result == EA_CLI_DONE) {
            row->ns[i] = ns;
            row->ts[i] = ts;
        }
    }
    ea_free(tokens);
    return result;
}

static int run_tests(ea_bench *b, const test_list *list)
{
    const ea_option_value *depths = ea_opt_list(b->o, EA_OPT_N_DEPTH);
    int n = (int)ea_opt_int(b->o, EA_OPT_REPETITIONS), result = EA_CLI_DONE;
    double *ns = ea_calloc((size_t)n, sizeof *ns), *ts = ea_calloc((size_t)n, sizeof *ts);
    if (!ns || !ts)
        result = ea_cli_error(b->o, EA_CLI_FAILED, "out of memory");
    for (size_t i = 0; i < depths->n; i++)
        for (size_t j = 0; j < list->n && result == EA_CLI_DONE; j++) {
            ea_bench_row row = {.n_prompt = list->items[j].n_prompt,
                                .n_gen = list->items[j].n_gen,
                                .n_depth = depths->ints[i],
                                .n_batch = b->n_batch,
                                .n_threads = b->n_threads,
                                .n_samples = n,
                                .ns = ns,
                                .ts = ts};
            result = run_test(b, &list->items[j], depths->ints[i], &row);
            if (result == EA_CLI_DONE)
                ea_bench_print_row(b, &row);
        }
    ea_free(ns);
    ea_free(ts);
    return result;
}

/* Every combination of threads, batch size, depth and test. */
static int run_all(ea_bench *b)
{
    const ea_option_value *threads = ea_opt_list(b->o, EA_OPT_THREADS_LIST),
                          *batches = ea_opt_list(b->o, EA_OPT_BATCH_LIST),
                          *depths = ea_opt_list(b->o, EA_OPT_N_DEPTH);
    test_list list = {0};
    int64_t need = 0;
    int result = list_tests(b, &list);
    for (size_t i = 0; i < depths->n; i++)
        for (size_t j = 0; j < list.n; j++)
            need = EA_MAX(need, (int64_t)depths->ints[i] + list.items[j].n_prompt +
                                    list.items[j].n_gen + (list.items[j].n_gen ? 2 : 0));
    /* The branch being measured, the cached beginning, and pages of earlier ones not yet dropped.
     */
    int64_t n_pool = 2 * need + 1024;
    if (result == EA_CLI_DONE && n_pool > EA_MAX_CTX)
        result = ea_cli_error(b->o, EA_CLI_USAGE, "tests of %lld tokens are longer than %d",
                              (long long)need, EA_MAX_CTX / 2);
    if (result == EA_CLI_DONE)
        ea_bench_print_head(b);
    for (size_t i = 0; i < threads->n; i++)
        for (size_t j = 0; j < batches->n && result == EA_CLI_DONE; j++) {
            result =
                ea_bench_open(b, threads->ints[i], batches->ints[j], 1, (int)need, (int)n_pool);
            if (result == EA_CLI_DONE)
                result = run_tests(b, &list);
            ea_bench_close(b);
        }
    if (result == EA_CLI_DONE)
        ea_bench_print_tail(b);
    ea_free(list.items);
    return result;
}

int ea_bench_main(const ea_options *o, int (*run)(ea_bench *b))
{
    ea_model *model = NULL;
    ea_bench b = {.o = o};
    int64_t seed = ea_opt_int(o, EA_OPT_SEED);
    ea_cli_signals_catch();
    int result = ea_cli_load(o, false, &model);
    if (result != EA_CLI_DONE)
        return result;
    ea_model_settle(model); /* figures are of the steady state */
    b.model = model;
    b.random = seed >= 0 ? (uint64_t)seed : ea_random_u64();
    ea_model_info_get(model, &b.info);
    if (!ea_waiter_init(&b.waiter)) {
        result = ea_cli_error(o, EA_CLI_FAILED, "out of memory");
    } else {
        result = run(&b);
        ea_waiter_done(&b.waiter);
    }
    ea_model_destroy(model);
    return result;
}

int ea_cli_bench(const ea_options *o)
{
    bool batched = ea_opt_list(o, EA_OPT_NPP)->n || ea_opt_list(o, EA_OPT_NTG)->n ||
                   ea_opt_list(o, EA_OPT_NPL)->n;
    return ea_bench_main(o, batched ? ea_bench_batched : run_all);
}
