/* bench_batched.c: llama-batched-bench's tests. First all sequences compute their prompts at once
 * (t_pp: from the first one started to the last one done). Then all continue; decoding is measured
 * from the moment when the last of them has its first token, so that every counted step has all
 * rows, until each has generated its number of tokens more. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cli/bench.h"

/* Sequences admitted one step after another have this many tokens to wait for the others. */
enum { SLACK = 64 };

static int run_prompts(ea_bench *b, const ea_batched_row *row, const int32_t *tokens, size_t stride,
                       ea_bench_request *requests, double *seconds)
{
    int result = EA_CLI_DONE, n = 0;
    for (; n < row->pl && result == EA_CLI_DONE; n++)
        result = ea_bench_submit(b, &requests[n], tokens + (size_t)n * stride, (size_t)row->pp, 0);
    int waited = ea_bench_wait(b, requests, n);
    if (result != EA_CLI_DONE || waited != EA_CLI_DONE)
        return result != EA_CLI_DONE ? result : waited;
    uint64_t start = UINT64_MAX, end = 0;
    for (int i = 0; i < n; i++) {
        start = EA_MIN(start, requests[i].started);
        end = EA_MAX(end, requests[i].done);
    }
    *seconds = (double)(end - start) / 1e9;
    return EA_CLI_DONE;
}

static int run_decode(ea_bench *b, const ea_batched_row *row, const int32_t *tokens, size_t stride,
                      ea_bench_request *requests, double *seconds, double *speed)
{
    ea_bench_window window = {.n_waiting = row->pl, .n_each = row->tg};
    int result = EA_CLI_DONE, n = 0;
    for (; n < row->pl && result == EA_CLI_DONE; n++) {
        requests[n] = (ea_bench_request){.window = &window};
        result =
            ea_bench_submit(b, &requests[n], tokens + (size_t)n * stride, stride, row->tg + SLACK);
    }
    int waited = ea_bench_wait(b, requests, n);
    if (result != EA_CLI_DONE || waited != EA_CLI_DONE)
        return result != EA_CLI_DONE ? result : waited;
    int64_t counted = 0;
    for (int i = 0; i < n; i++) {
        counted += requests[i].n_counted;
        if (requests[i].usage.n_cached < row->pp - 1)
            return ea_cli_error(b->o, EA_CLI_FAILED,
                                "sequence %d of %d: only %d of %d prompt tokens were still cached",
                                i + 1, row->pl, requests[i].usage.n_cached, row->pp);
    }
    if (counted < (int64_t)row->pl * row->tg)
        return ea_cli_error(b->o, EA_CLI_FAILED,
                            "the %d sequences did not all generate at the same time", row->pl);
    *seconds = (double)(window.end - window.start) / 1e9;
    *speed = *seconds > 0 ? (double)counted / *seconds : 0;
    return EA_CLI_DONE;
}

/* Fill sample i. */
static int run_test(ea_bench *b, ea_batched_row *row, int i)
{
    size_t stride = (size_t)row->pp + 1; /* the prompt and one new token to start decoding from */
    int32_t *tokens = ea_calloc((size_t)row->pl * stride, sizeof *tokens);
    ea_bench_request *requests = ea_calloc((size_t)row->pl, sizeof *requests);
    int result = EA_CLI_FAILED;
    if (!tokens || !requests) {
        ea_cli_error(b->o, EA_CLI_FAILED, "out of memory");
        goto done;
    }
    ea_bench_fill(b, tokens, (size_t)row->pl * stride);
    result = run_prompts(b, row, tokens, stride, requests, &row->t_pp[i]);
    if (result == EA_CLI_DONE)
        result = run_decode(b, row, tokens, stride, requests, &row->t_tg[i], &row->speed_tg[i]);
    row->speed_pp[i] = row->t_pp[i] > 0 ? (double)row->pl * row->pp / row->t_pp[i] : 0;
    row->t[i] = row->t_pp[i] + row->t_tg[i];
    row->speed[i] = row->t[i] > 0 ? (double)row->pl * (row->pp + row->tg) / row->t[i] : 0;
done:
    ea_free(tokens);
    ea_free(requests);
    return result;
}

static int largest(const ea_option_value *list)
{
    int max = 0;
    for (size_t i = 0; i < list->n; i++)
        max = EA_MAX(max, list->ints[i]);
    return max;
}

/* Once, unless asked for more: what llama-batched-bench does. */
static int repetitions(const ea_bench *b)
{
    bool given = b->o->values[EA_OPT_REPETITIONS].source > EA_FROM_DEFAULT;
    return given ? (int)ea_opt_int(b->o, EA_OPT_REPETITIONS) : 1;
}

/* All repetitions of one test; row's samples have room for them. */
static int run_repeated(ea_bench *b, ea_batched_row *row)
{
    int result = EA_CLI_DONE;
    for (int i = 0; i < row->n_samples && result == EA_CLI_DONE; i++)
        result = run_test(b, row, i);
    return result;
}

/* All tests on the engine that is open. samples: room for six times the repetitions. */
static int run_tests(ea_bench *b, int n_kv_max, double *samples)
{
    const ea_option_value *npp = ea_opt_list(b->o, EA_OPT_NPP),
                          *ntg = ea_opt_list(b->o, EA_OPT_NTG),
                          *npl = ea_opt_list(b->o, EA_OPT_NPL);
    int n = repetitions(b);
    const ea_batched_row base = {.n_kv_max = n_kv_max,
                                 .n_batch = b->n_batch,
                                 .n_threads = b->n_threads,
                                 .n_samples = n,
                                 .t_pp = samples,
                                 .speed_pp = samples + n,
                                 .t_tg = samples + 2 * n,
                                 .speed_tg = samples + 3 * n,
                                 .t = samples + 4 * n,
                                 .speed = samples + 5 * n};
    ea_batched_row warmup = base;
    warmup.pp = 16, warmup.tg = 4, warmup.pl = 1;
    int result = ea_opt_flag(b->o, EA_OPT_NO_WARMUP) ? EA_CLI_DONE : run_test(b, &warmup, 0);
    for (size_t i = 0; i < npp->n; i++)
        for (size_t j = 0; j < ntg->n; j++)
            for (size_t k = 0; k < npl->n && result == EA_CLI_DONE; k++) {
                ea_batched_row row = base;
                row.pp = npp->ints[i], row.tg = ntg->ints[j], row.pl = npl->ints[k];
                result = run_repeated(b, &row);
                if (result == EA_CLI_DONE)
                    ea_bench_print_batched(b, &row);
            }
    return result;
}

int ea_bench_batched(ea_bench *b)
{
    const ea_option_value *npp = ea_opt_list(b->o, EA_OPT_NPP),
                          *ntg = ea_opt_list(b->o, EA_OPT_NTG),
                          *npl = ea_opt_list(b->o, EA_OPT_NPL),
                          *threads = ea_opt_list(b->o, EA_OPT_THREADS_LIST),
                          *batches = ea_opt_list(b->o, EA_OPT_BATCH_LIST);
    if (!npp->n || !ntg->n || !npl->n)
        return ea_cli_error(b->o, EA_CLI_USAGE,
                            "a batched test needs all of --npp, --ntg and --npl");
    int need = EA_MAX(largest(npp), 16) + EA_MAX(largest(ntg), 4) + SLACK + 1, pl = largest(npl);
    /* Twice what one test fills: the sequences of the one before are dropped as this one grows. */
    int64_t n_pool = 2 * (int64_t)pl * (need + 128) + 1024;
    if (n_pool > EA_MAX_CTX)
        return ea_cli_error(b->o, EA_CLI_USAGE,
                            "--npl %d sequences of %d tokens are more than %d tokens", pl, need,
                            EA_MAX_CTX);
    int result = EA_CLI_DONE;
    double *samples = ea_calloc((size_t)repetitions(b), 6 * sizeof *samples);
    if (!samples)
        return ea_cli_error(b->o, EA_CLI_FAILED, "out of memory");
    ea_bench_print_batched_head(b, repetitions(b));
    for (size_t i = 0; i < threads->n; i++)
        for (size_t j = 0; j < batches->n && result == EA_CLI_DONE; j++) {
            result = ea_bench_open(b, threads->ints[i], batches->ints[j], pl, need, (int)n_pool);
            if (result == EA_CLI_DONE)
                result = run_tests(b, (int)n_pool, samples);
            ea_bench_close(b);
        }
    ea_bench_print_tail(b);
    ea_free(samples);
    return result;
}
