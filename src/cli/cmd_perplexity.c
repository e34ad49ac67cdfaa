/* cmd_perplexity.c: perplexity of a text, by llama-perplexity's method: chunks of n_ctx tokens, BOS
 * in the place of a chunk's first token where the model adds one, and the tokens of the second half
 * but its first one scored. The error is that of the mean of the scores, carried to the
 * exponential.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* Sums of one run. The engine thread adds to them while the main thread waits for the request. */
typedef struct score {
    ea_waiter waiter;
    int first; /* positions from here on count */
    double nll, nll2;
    size_t n;
    bool done;
    ea_finish finish;
    char error[EA_ERROR_TEXT];
} score;

static bool on_event(void *user, const ea_event *event)
{
    score *s = user;
    if (event->kind == EA_EVENT_PROMPT_LOGPROB && event->pos >= s->first) {
        double nll = -(double)event->logprob;
        s->nll += nll;
        s->nll2 += nll * nll;
        s->n++;
    } else if (event->kind == EA_EVENT_DONE) {
        ea_waiter_lock(&s->waiter);
        s->done = true;
        s->finish = event->finish;
        snprintf(s->error, sizeof s->error, "%s", event->error ? event->error : "");
        ea_waiter_notify(&s->waiter);
        ea_waiter_unlock(&s->waiter);
    }
    return true;
}

/* Score one chunk of n tokens; an exit status. */
static int score_chunk(const ea_options *o, ea_engine *engine, const int32_t *tokens, int n,
                       score *s)
{
    ea_request_params params;
    ea_request *request;
    ea_error err = {0};
    ea_request_params_default(&params);
    params.tokens = tokens;
    params.n_tokens = (size_t)n;
    params.max_tokens = 0;
    params.prompt_logprobs = true;
    params.on_event = on_event;
    params.user = s;
    s->done = false;
    s->first = n / 2 + 1;
    size_t before = s->n;
    if (ea_request_submit(engine, &params, &request, &err) != EA_OK)
        return ea_cli_error(o, EA_CLI_FAILED, "%s", err.text);
    bool cancelled = false;
    ea_waiter_lock(&s->waiter);
    while (!s->done) {
        if (ea_cli_signal() && !cancelled) {
            cancelled = true;
            ea_request_cancel(request);
        }
        ea_waiter_sleep(&s->waiter);
    }
    ea_waiter_unlock(&s->waiter);
    ea_request_wait(request);
    ea_request_unref(request);
    if (ea_cli_signal())
        return 128 + ea_cli_signal();
    if (s->finish == EA_FINISH_ERROR)
        return ea_cli_error(o, EA_CLI_FAILED, "%s", s->error);
    if (s->n - before != (size_t)(n - s->first))
        return ea_cli_error(o, EA_CLI_FAILED, "%zu of %d tokens were scored", s->n - before,
                            n - s->first);
    return EA_CLI_DONE;
}

static int score_all(const ea_options *o, const ea_model *model, ea_engine *engine, int32_t *tokens,
                     size_t n_tokens)
{
    int n_ctx = (int)ea_opt_int(o, EA_OPT_CTX_CHUNK), result = EA_CLI_DONE;
    int64_t n_chunks = (int64_t)(n_tokens / (size_t)n_ctx), limit = ea_opt_int(o, EA_OPT_CHUNKS);
    ea_model_info info;
    ea_model_info_get(model, &info);
    score s = {0};
    if (!ea_waiter_init(&s.waiter))
        return ea_cli_error(o, EA_CLI_FAILED, "out of memory");
    if (limit >= 0)
        n_chunks = EA_MIN(n_chunks, limit);
    fprintf(stderr, "calculating perplexity over %lld chunks, n_ctx=%d\n", (long long)n_chunks,
            n_ctx);
    for (int64_t i = 0; i < n_chunks && result == EA_CLI_DONE; i++) {
        int32_t *chunk = tokens + (size_t)i * (size_t)n_ctx;
        if (info.add_bos && info.bos >= 0)
            chunk[0] = info.bos;
        result = score_chunk(o, engine, chunk, n_ctx, &s);
        if (result == EA_CLI_DONE) {
            printf("[%lld]%.4f,", (long long)i + 1, exp(s.nll / (double)s.n));
            fflush(stdout);
        }
    }
    if (s.n > 0)
        putchar('\n');
    if (result == EA_CLI_DONE && s.n > 1) {
        double n = (double)s.n, mean = s.nll / n, variance = s.nll2 / n - mean * mean;
        double ppl = exp(mean), error = sqrt(fmax(variance, 0) / (n - 1)) * ppl;
        printf("Final estimate: PPL = %.4f +/- %.5f\n", ppl, error);
    }
    ea_waiter_done(&s.waiter);
    return result;
}

int ea_cli_perplexity(const ea_options *o)
{
    char *text;
    size_t n_bytes, n_tokens = 0;
    int result = ea_cli_read_text(o, EA_OPT_FILE, &text, &n_bytes);
    if (result != EA_CLI_DONE)
        return result;
    int n_ctx = (int)ea_opt_int(o, EA_OPT_CTX_CHUNK);
    ea_model *model = NULL;
    ea_engine *engine = NULL;
    int32_t *tokens = NULL;
    ea_error err = {0};
    ea_engine_params params;
    ea_cli_signals_catch();
    result = ea_cli_load(o, false, &model);
    if (result != EA_CLI_DONE)
        goto done;
    if (ea_tokenize(model, text, n_bytes, EA_TOKENIZE_ADD_BOS, &tokens, &n_tokens, &err) != EA_OK) {
        result = ea_cli_error(o, EA_CLI_FAILED, "%s", err.text);
        goto done;
    }
    /* The peer asks for two chunks too: fewer scores say nothing. */
    if (n_tokens < 2 * (size_t)n_ctx) {
        result = ea_cli_error(o, EA_CLI_FAILED,
                              "the text has %zu tokens; at least %d are needed for -c %d", n_tokens,
                              2 * n_ctx, n_ctx);
        goto done;
    }
    ea_cli_engine_params(o, &params);
    params.n_parallel = 1;
    params.n_ctx = 2 * n_ctx + 1024; /* one chunk at a time, and room for pages not yet dropped */
    params.n_ctx_agent = n_ctx;
    if (ea_engine_create(model, &params, &engine, &err) != EA_OK)
        result = ea_cli_error(o, EA_CLI_FAILED, "%s", err.text);
    else
        result = score_all(o, model, engine, tokens, n_tokens);
done:
    ea_engine_destroy(engine);
    ea_free(tokens);
    ea_model_destroy(model);
    ea_free(text);
    return result;
}
