/* generate.c: one generation call from its body to submitted requests, from events to the pieces
 * that all answers share, to its end. Runs on the connection's thread.
 *
 * A call has prompts * n choices, each a request of its own in the engine: choice i belongs to
 * prompt i / n. Either all of them are submitted or the call is refused; when one fails, all do. */
#include "server/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

static ea_status no_memory(ea_http_error *e)
{
    return ea_server_refuse_status(e, EA_ENOMEM, NULL);
}

/* 24 letters and digits after the prefix, as OpenAI's ids look. */
static void make_id(char out[static 40], const char *prefix)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    size_t n = (size_t)snprintf(out, 40, "%.12s", prefix);
    uint64_t bits = 0;
    for (size_t i = 0; i < 24; i++) {
        if (i % 8 == 0)
            bits = ea_random_u64();
        out[n++] = letters[bits % (sizeof letters - 1)];
        bits /= sizeof letters - 1;
    }
    out[n] = '\0';
}

void ea_gen_want_logprobs(ea_gen *gen, int n_top)
{
    gen->logprobs = true;
    gen->n_top = n_top;
    gen->request.n_top_logprobs = n_top;
}

ea_status ea_generate_alloc(ea_call *call, size_t n_prompts, ea_http_error *e)
{
    size_t n = n_prompts * (size_t)call->gen.n;
    if (n_prompts > EA_MAX_CHOICES || n > EA_MAX_CHOICES)
        return ea_server_refuse(e, 400, n_prompts > 1 ? "prompt" : "n", NULL,
                                "%zu prompts times n = %d answers; the limit is %d", n_prompts,
                                call->gen.n, EA_MAX_CHOICES);
    call->prompts = ea_calloc(n_prompts, sizeof *call->prompts);
    call->choices = ea_calloc(n, sizeof *call->choices);
    if (!call->prompts || !call->choices)
        return no_memory(e);
    call->n_prompts = n_prompts;
    call->n_choices = (int)n;
    return EA_OK;
}

/* The engine's text names both lengths; clients that read fields get them too. */
static ea_status refuse_submit(ea_call *call, const ea_prompt *prompt, ea_status status,
                               const ea_error *err, ea_http_error *e)
{
    ea_server_refuse_status(e, status, err->text);
    if (status == EA_ETOOLONG) {
        ea_engine_stats stats;
        ea_engine_stats_get(call->server->params.engine, &stats);
        e->n_prompt = (int)prompt->n_tokens;
        e->n_ctx = stats.n_ctx_agent;
    }
    return EA_EINVAL;
}

/* The slot is counted before the submit: the engine may answer before the call returns. */
static ea_status submit_choice(ea_call *call, int i, ea_http_error *e)
{
    ea_request_params params = call->gen.request;
    int nth = i % call->gen.n;
    const ea_prompt *prompt = &call->prompts[i / call->gen.n];
    params.tokens = prompt->tokens;
    params.n_tokens = prompt->n_tokens;
    params.sampling.seed += (uint64_t)nth;
    params.on_event = ea_inbox_on_event;
    params.user = &call->inbox->slots[i];
    if (i > 0) /* further answers are timelines of their own, which nobody will return to */
        params.agent = params.role = NULL;
    ea_error err = {0};
    ea_inbox_ref(call->inbox);
    ea_status status =
        ea_request_submit(call->server->params.engine, &params, &call->choices[i].request, &err);
    if (status == EA_OK)
        return EA_OK;
    ea_inbox_forget(call->inbox);
    return refuse_submit(call, prompt, status, &err, e);
}

/* Listed last: the watcher may cancel requests of a listed call at any moment, so all of them must
 * be there. A client that went away meanwhile is reported as soon as the call is listed. */
static ea_status submit_all(ea_call *call, ea_http_error *e)
{
    bool keep_empty = call->gen.logprobs;
    call->inbox = ea_inbox_create(call->conn, call->n_choices, call->gen.stream, keep_empty);
    if (!call->inbox)
        return no_memory(e);
    for (int i = 0; i < call->n_choices; i++)
        EA_TRY(submit_choice(call, i, e));
    if (!ea_watcher_add(call))
        return ea_server_refuse_status(e, EA_ECLOSED, "the server is shutting down");
    return EA_OK;
}

ea_status ea_generate_start(ea_call *call, ea_http_error *e)
{
    ea_error err = {0};
    if (!ea_watcher_enter(call))
        return ea_server_refuse_status(e, EA_ECLOSED, "the server is shutting down");
    if (call->body.failed)
        return no_memory(e);
    if (ea_server_json_scan(call->body.data ? call->body.data : "", call->body.n, &call->fields,
                            &err) != EA_OK)
        return ea_server_refuse_status(e, err.code, err.text);
    ea_status status = call->route == EA_ROUTE_CHAT ? ea_server_parse_chat(call, e)
                                                    : ea_server_parse_completions(call, e);
    /* From here on only decoded things are needed; a body may be large and the answer long. */
    ea_server_json_done(&call->fields);
    ea_buf_done(&call->body);
    EA_TRY(status);
    make_id(call->id, call->endpoint->id_prefix);
    call->created = ea_unix_seconds();
    status = submit_all(call, e);
    if (status != EA_OK)
        ea_generate_cancel(call);
    for (size_t i = 0; i < call->n_prompts; i++) { /* the engine has its copy */
        ea_free(call->prompts[i].tokens);
        call->prompts[i].tokens = NULL;
    }
    return status;
}

void ea_generate_cancel(ea_call *call)
{
    for (int i = 0; i < call->n_choices; i++)
        if (call->choices[i].request)
            ea_request_cancel(call->choices[i].request);
}

/* The first failure counts; the other choices are of no use any more. */
static void fail_call(ea_call *call, ea_status status, const char *text)
{
    if (!call->failed)
        ea_server_refuse_status(&call->error, status, text);
    call->failed = true;
    ea_generate_cancel(call);
}

bool ea_generate_finish(ea_call *call, int i, const ea_event *ev)
{
    ea_choice *c = &call->choices[i];
    if (c->done)
        return true;
    c->done = true;
    c->usage = ev->usage;
    call->n_done++;
    ea_server_count_usage(call->server, &ev->usage);
    switch (ev->finish) {
    case EA_FINISH_LENGTH: c->finish = "length"; break;
    case EA_FINISH_ERROR:
        fail_call(call, ev->status == EA_OK ? EA_EINTERNAL : ev->status, ev->error);
        return false;
    case EA_FINISH_CANCELLED:
        if (!c->cut) {
            fail_call(call, EA_ECANCELLED, "the request was cancelled");
            return false;
        }
        c->finish = "stop";
        break;
    default: c->finish = "stop"; break;
    }
    if (c->n_calls > 0) { /* whatever ended the text: the client has calls to make */
        c->finish = "tool_calls";
        if (i == 0 && call->gen.agent)
            ea_agent_suspend(call->server->params.engine, call->gen.agent);
    }
    return true;
}

/* Stops at the first failure: what the other choices still said is not shown. */
void ea_generate_feed(ea_call *call, const ea_buf *records)
{
    if (records->failed || call->out.failed) {
        fail_call(call, EA_ENOMEM, "out of memory while answering");
        return;
    }
    ea_event event;
    size_t at = 0;
    int i;
    while (!call->failed && ea_inbox_next(records, &at, &event, &i))
        call->endpoint->event(call, i, &event);
}

/* In this order: off the watcher's list, so that nobody else touches the requests; inbox closed, so
 * that no event can wake the connection; then cancel, and let go. The engine may deliver to the
 * closed inbox for another step; it keeps the inbox alive, nothing else of us. */
void ea_generate_end(ea_call *call)
{
    ea_watcher_leave(call);
    if (call->inbox)
        ea_inbox_close(call->inbox);
    ea_generate_cancel(call);
    for (int i = 0; i < call->n_choices; i++) {
        ea_choice *c = &call->choices[i];
        if (c->request)
            ea_request_unref(c->request);
        if (c->parser)
            ea_chat_parser_destroy(c->parser);
        ea_buf *bufs[] = {&c->text,      &c->reasoning, &c->calls,  &c->raw,       &c->logprobs,
                          &c->lp_tokens, &c->lp_values, &c->lp_top, &c->lp_offsets};
        for (size_t k = 0; k < EA_ARRAY_LEN(bufs); k++)
            ea_buf_done(bufs[k]);
    }
    ea_free(call->choices);
    for (size_t i = 0; i < call->n_prompts; i++) {
        ea_free(call->prompts[i].tokens);
        ea_free(call->prompts[i].text);
        ea_buf_done(&call->prompts[i].echo);
    }
    ea_free(call->prompts);
    ea_gen_done(&call->gen);
    ea_server_json_done(&call->fields);
    if (call->inbox)
        ea_inbox_unref(call->inbox);
}

/* ---- pieces of answers ---- */

void ea_server_put_head(ea_call *call, ea_buf *out, const char *object)
{
    ea_buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", call->id,
                  object, (long long)call->created);
    ea_buf_json_string(out, call->server->model_id, strlen(call->server->model_id));
    ea_buf_puts(out, ",\"system_fingerprint\":\"edgeagent-" EA_VERSION "\",");
}

/* Prompts are counted once however many answers they got; what the first answer of each found in
 * the cache is what the client's history saved. */
void ea_server_put_usage(const ea_call *call, ea_buf *out)
{
    long long prompt = 0, cached = 0, generated = 0;
    for (int i = 0; i < call->n_choices; i++) {
        const ea_usage *u = &call->choices[i].usage;
        if (i % call->gen.n == 0) {
            prompt += u->n_prompt;
            cached += u->n_cached;
        }
        generated += u->n_generated;
    }
    ea_buf_printf(out,
                  "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":%lld}}",
                  prompt, generated, prompt + generated, cached);
}

static void add_rate(ea_buf *out, const char *name, double a, double b)
{
    ea_buf_printf(out, ",\"%s\":", name);
    ea_buf_json_double(out, b > 0 ? round(a / b * 1e6) / 1e6 : 0.0);
}

/* llama.cpp's keys; summed over the answers. */
void ea_server_put_timings(const ea_call *call, ea_buf *out)
{
    double cached = 0, prompt = 0, generated = 0, prompt_ms = 0, generate_ms = 0;
    for (int i = 0; i < call->n_choices; i++) {
        const ea_usage *u = &call->choices[i].usage;
        cached += u->n_cached;
        prompt += u->n_prompt - u->n_cached;
        generated += u->n_generated;
        prompt_ms += u->prompt_ms;
        generate_ms += u->generate_ms;
    }
    ea_buf_printf(out, "{\"cache_n\":%.0f,\"prompt_n\":%.0f", cached, prompt);
    add_rate(out, "prompt_ms", prompt_ms, 1);
    add_rate(out, "prompt_per_token_ms", prompt_ms, prompt);
    add_rate(out, "prompt_per_second", prompt * 1e3, prompt_ms);
    ea_buf_printf(out, ",\"predicted_n\":%.0f", generated);
    add_rate(out, "predicted_ms", generate_ms, 1);
    add_rate(out, "predicted_per_token_ms", generate_ms, generated);
    add_rate(out, "predicted_per_second", generated * 1e3, generate_ms);
    ea_buf_putc(out, '}');
}

/* Shortest decimal that reads back as the same float; JSON has no infinity, and a token that a bias
 * forbids has one. -9999 is what OpenAI writes for "not among the likely". */
void ea_server_put_float(ea_buf *out, float value)
{
    if (!isfinite(value)) {
        ea_buf_puts(out, "-9999.0");
        return;
    }
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    ea_buf_puts(out, text);
}

void ea_server_token_text(const ea_call *call, int32_t token, ea_buf *out)
{
    const ea_model *model = call->server->params.model;
    char small[256];
    ea_buf_clear(out);
    size_t n = ea_token_bytes(model, token, true, small, sizeof small);
    if (n <= sizeof small)
        ea_buf_add(out, small, n);
    else if (ea_buf_reserve(out, n))
        out->n = ea_token_bytes(model, token, true, out->data, n);
}
