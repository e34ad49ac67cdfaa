/* chat.c: /v1/chat/completions: its own fields, and its two forms of answer.
 *
 * Messages, tools and template variables go to the template as the client's own bytes. What the
 * model says goes through one parser a choice, whose deltas are either streamed at once or
 * collected. Log-probabilities belong to tokens, deltas to text that may be held back: entries wait
 * in choice->logprobs for the next chunk of their choice. */
#include "server/internal.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

/* ---- request ---- */

/* Forcing a call needs constraints; to ignore the wish would leave a client waiting for a call. */
static ea_status parse_tool_choice(const ea_json_object *o, bool *none, ea_http_error *e)
{
    const ea_json_member *m = ea_server_json_find(o, "tool_choice");
    *none = false;
    if (!m)
        return EA_OK;
    if (m->type == '{')
        return ea_server_refuse(e, 400, m->key, "unsupported",
                                "field 'tool_choice': naming a function is not yet supported, "
                                "only \"auto\" and \"none\" are");
    char *word = NULL;
    EA_TRY(ea_field_string(o, "tool_choice", &word, e));
    *none = strcmp(word, "none") == 0;
    bool automatic = strcmp(word, "auto") == 0, required = strcmp(word, "required") == 0;
    ea_free(word);
    if (required)
        return ea_server_refuse(e, 400, m->key, "unsupported",
                                "field 'tool_choice': \"required\" is not yet supported, only "
                                "\"auto\" and \"none\" are");
    return *none || automatic ? EA_OK : ea_field_wrong(m, "\"auto\" or \"none\"", e);
}

static ea_status parse_logprobs(const ea_json_object *o, ea_gen *gen, ea_http_error *e)
{
    bool on = false;
    int64_t n_top = 0;
    EA_TRY(ea_field_bool(o, "logprobs", &on, e));
    EA_TRY(ea_field_int(o, "top_logprobs", 0, EA_MAX_TOP_LOGPROBS, &n_top, e));
    if (n_top > 0 && !on)
        return ea_server_refuse(e, 400, "top_logprobs", NULL,
                                "field 'top_logprobs': needs \"logprobs\": true");
    if (on)
        ea_gen_want_logprobs(gen, (int)n_top);
    return EA_OK;
}

typedef struct chat_json { /* the client's own JSON, copies */
    char *messages, *tools, *kwargs;
} chat_json;

static bool is_empty_array(const char *json)
{
    return strspn(json, "[] \t\r\n") == strlen(json);
}

/* What is filled is freed by the caller, also on failure. */
static ea_status parse_json_parts(const ea_json_object *o, chat_json *j, ea_http_error *e)
{
    EA_TRY(ea_field_raw(o, "messages", '[', &j->messages, e));
    if (!j->messages)
        return ea_server_refuse(e, 400, "messages", "missing_required_parameter",
                                "field 'messages': missing; expected an array of messages");
    if (is_empty_array(j->messages)) /* templates may make a prompt of nothing */
        return ea_server_refuse(e, 400, "messages", NULL,
                                "field 'messages': must not be empty, got []");
    EA_TRY(ea_field_raw(o, "tools", '[', &j->tools, e));
    if (j->tools && is_empty_array(j->tools)) { /* no tools at all */
        ea_free(j->tools);
        j->tools = NULL;
    }
    return ea_field_raw(o, "chat_template_kwargs", '{', &j->kwargs, e);
}

/* On an HTTP thread, since templates and tokenizers take their time with long histories. */
static ea_status render(ea_call *call, const ea_chat_params *params, ea_http_error *e)
{
    ea_error err = {0};
    ea_prompt *prompt = &call->prompts[0];
    ea_status status = ea_chat_render(call->server->params.model, params, &prompt->text,
                                      &prompt->tokens, &prompt->n_tokens, &err);
    if (status == EA_OK && prompt->text)
        status = ea_history_apply(call->server->history, prompt->text, strlen(prompt->text),
                                  &prompt->tokens, &prompt->n_tokens, &err);
    if (status == EA_OK && prompt->n_tokens == 0)
        return ea_server_refuse(e, 400, "messages", NULL,
                                "field 'messages': they render to an empty prompt");
    if (status == EA_OK)
        return EA_OK;
    ea_server_refuse_status(e, status, err.text);
    if (e->http == 400)
        snprintf(e->param, sizeof e->param, "messages");
    return status;
}

/* One parser an answer. With tool_choice "none" the tools stay in the prompt, so that it shares its
 * beginning with the turns around it, but nothing is taken for a call. */
static ea_status make_parsers(ea_call *call, ea_chat_params *params, bool none, ea_http_error *e)
{
    if (none)
        params->tools_json = NULL;
    for (int i = 0; i < call->n_choices; i++) {
        ea_error err = {0};
        ea_status status = ea_chat_parser_create(call->server->params.model, params,
                                                 &call->choices[i].parser, &err);
        if (status != EA_OK)
            return ea_server_refuse_status(e, status, err.text);
    }
    return EA_OK;
}

static ea_status parse_rest(ea_call *call, chat_json *json, ea_http_error *e)
{
    const ea_json_object *o = &call->fields;
    bool none, parallel = true;
    ea_chat_params params;
    ea_chat_params_default(&params);
    EA_TRY(parse_logprobs(o, &call->gen, e));
    EA_TRY(parse_tool_choice(o, &none, e));
    EA_TRY(ea_field_bool(o, "parallel_tool_calls", &parallel, e));
    EA_TRY(ea_field_bool(o, "add_generation_prompt", &params.add_generation_prompt, e));
    call->one_call = !parallel;
    EA_TRY(parse_json_parts(o, json, e));
    params.messages_json = json->messages;
    params.tools_json = json->tools;
    params.template_kwargs = json->kwargs;
    params.template_override = call->server->params.chat_template;
    params.strict_tools = call->server->params.strict_tools;
    EA_TRY(ea_generate_alloc(call, 1, e));
    EA_TRY(render(call, &params, e));
    return make_parsers(call, &params, none, e);
}

static const ea_endpoint CHAT;

ea_status ea_server_parse_chat(ea_call *call, ea_http_error *e)
{
    chat_json json = {0};
    call->endpoint = &CHAT;
    EA_TRY(ea_gen_parse(call, &call->gen, e));
    ea_status status = parse_rest(call, &json, e);
    ea_free(json.messages);
    ea_free(json.tools);
    ea_free(json.kwargs);
    return status;
}

/* ---- log-probabilities: {"token","logprob","bytes"} ---- */

static void add_token_fields(const ea_call *call, ea_buf *out, ea_buf *text, ea_token_prob p)
{
    ea_server_token_text(call, p.token, text);
    ea_buf_puts(out, "{\"token\":");
    ea_buf_json_string(out, text->data ? text->data : "", text->n);
    ea_buf_puts(out, ",\"logprob\":");
    ea_server_put_float(out, p.logprob);
    ea_buf_puts(out, ",\"bytes\":["); /* exact, also where the token is part of a character */
    for (size_t i = 0; i < text->n; i++)
        ea_buf_printf(out, "%s%u", i ? "," : "", (unsigned)(unsigned char)text->data[i]);
    ea_buf_putc(out, ']');
}

static void add_logprob(ea_call *call, ea_choice *c, const ea_event *ev)
{
    ea_buf text = EA_BUF_INIT;
    if (c->logprobs.n)
        ea_buf_putc(&c->logprobs, ',');
    add_token_fields(call, &c->logprobs, &text, (ea_token_prob){ev->token, ev->logprob});
    ea_buf_puts(&c->logprobs, ",\"top_logprobs\":[");
    for (int i = 0; i < ev->n_top && i < call->gen.n_top; i++) {
        if (i)
            ea_buf_putc(&c->logprobs, ',');
        add_token_fields(call, &c->logprobs, &text, ev->top[i]);
        ea_buf_putc(&c->logprobs, '}');
    }
    ea_buf_puts(&c->logprobs, "]}");
    ea_buf_done(&text);
}

/* "logprobs":... and forget what was written. */
static void put_logprobs(ea_call *call, ea_choice *c, ea_buf *out)
{
    if (!call->gen.logprobs || (call->gen.stream && !c->logprobs.n)) {
        ea_buf_puts(out, "\"logprobs\":null");
        return;
    }
    ea_buf_puts(out, "\"logprobs\":{\"content\":[");
    ea_buf_add(out, c->logprobs.data, c->logprobs.n);
    ea_buf_puts(out, "],\"refusal\":null}");
    ea_buf_clear(&c->logprobs);
}

/* ---- streamed form ---- */

static void chunk_begin(ea_call *call, int i)
{
    ea_sse_chunk_begin(call);
    ea_server_put_head(call, &call->out, CHAT.stream_object);
    ea_buf_printf(&call->out, "\"choices\":[{\"index\":%d,\"delta\":{", i);
}

static void chunk_end(ea_call *call, int i, const char *finish)
{
    ea_buf_puts(&call->out, "},");
    put_logprobs(call, &call->choices[i], &call->out);
    if (finish)
        ea_buf_printf(&call->out, ",\"finish_reason\":\"%s\"}]", finish);
    else
        ea_buf_puts(&call->out, ",\"finish_reason\":null}]");
    if (call->gen.include_usage) {
        ea_buf_puts(&call->out, ",\"usage\":null");
    } else if (finish && call->n_done == call->n_choices) {
        ea_buf_puts(&call->out, ",\"timings\":"); /* in the very last chunk */
        ea_server_put_timings(call, &call->out);
    }
    ea_buf_putc(&call->out, '}');
    ea_sse_chunk_end(call);
}

/* The role comes first and alone, before the engine has started: clients show that they wait. */
static void begin(ea_call *call)
{
    for (int i = 0; i < call->n_choices; i++) {
        chunk_begin(call, i);
        ea_buf_puts(&call->out, "\"role\":\"assistant\",\"content\":\"\"");
        chunk_end(call, i, NULL);
    }
}

/* ---- deltas from the parser ---- */

typedef struct delta_to {
    ea_call *call;
    int choice;
} delta_to;

/* "call_" and 24 characters, never the same twice. */
static void call_id(char out[static 40])
{
    snprintf(out, 40, "call_%016llx%08x", (unsigned long long)ea_random_u64(),
             (unsigned)ea_random_u64());
}

/* Content or reasoning, streamed or collected in *whole. */
static void put_text(ea_call *call, int i, const char *field, ea_buf *whole, const ea_chat_delta *d)
{
    if (!call->gen.stream) {
        ea_buf_add(whole, d->text, d->n_bytes);
        return;
    }
    chunk_begin(call, i);
    ea_buf_printf(&call->out, "\"%s\":", field);
    ea_buf_json_string(&call->out, d->text, d->n_bytes);
    chunk_end(call, i, NULL);
}

/* Name first, arguments in a second delta, as clients know it from OpenAI. */
static void stream_call(ea_call *call, int i, int index, const char *id, const ea_chat_delta *d)
{
    ea_buf *out = &call->out;
    chunk_begin(call, i);
    ea_buf_printf(out, "\"tool_calls\":[{\"index\":%d,\"id\":\"%s\",\"type\":\"function\",", index,
                  id);
    ea_buf_puts(out, "\"function\":{\"name\":");
    ea_buf_json_string(out, d->name, strlen(d->name));
    ea_buf_puts(out, ",\"arguments\":\"\"}}]");
    chunk_end(call, i, NULL);
    chunk_begin(call, i);
    ea_buf_printf(out, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", index);
    ea_buf_json_string(out, d->arguments, strlen(d->arguments));
    ea_buf_puts(out, "}}]");
    chunk_end(call, i, NULL);
}

/* Ids are ours: clients hand them back with the result. */
static void put_call(ea_call *call, int i, const ea_chat_delta *d)
{
    ea_choice *c = &call->choices[i];
    char id[40];
    call_id(id);
    int index = c->n_calls++;
    if (call->gen.stream) {
        stream_call(call, i, index, id, d);
    } else {
        ea_buf_printf(&c->calls, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":",
                      index ? "," : "", id);
        ea_buf_json_string(&c->calls, d->name, strlen(d->name));
        ea_buf_puts(&c->calls, ",\"arguments\":");
        ea_buf_json_string(&c->calls, d->arguments, strlen(d->arguments));
        ea_buf_puts(&c->calls, "}}");
    }
    if (call->one_call) { /* a second call is not wanted: stop here */
        c->cut = true;
        ea_request_cancel(c->request);
    }
}

static void on_delta(void *user, const ea_chat_delta *d)
{
    delta_to *to = user;
    ea_choice *c = &to->call->choices[to->choice];
    if (c->cut)
        return;
    switch (d->kind) {
    case EA_CHAT_TOOL_CALL: put_call(to->call, to->choice, d); return;
    case EA_CHAT_REASONING:
        if (d->n_bytes)
            put_text(to->call, to->choice, "reasoning_content", &c->reasoning, d);
        return;
    case EA_CHAT_CONTENT:
        if (d->n_bytes)
            put_text(to->call, to->choice, "content", &c->text, d);
        return;
    }
}

/* The turn will come back as part of a longer prompt: keep the tokens in which it was said. An
 * answer that a stop string cut has tokens beyond its text. */
static void remember(ea_call *call, int i, const ea_event *ev)
{
    ea_choice *c = &call->choices[i];
    const ea_prompt *prompt = &call->prompts[i / call->gen.n];
    bool whole = ev->finish == EA_FINISH_LENGTH || (ev->finish == EA_FINISH_STOP && !ev->stop);
    if (!whole || !prompt->text || !c->request)
        return;
    size_t n_tokens;
    const int32_t *tokens = ea_request_tokens(c->request, &n_tokens);
    ea_buf text = EA_BUF_INIT;
    ea_buf_puts(&text, prompt->text);
    ea_buf_add(&text, c->raw.data, c->raw.n);
    if (!text.failed && !c->raw.failed)
        ea_history_add(call->server->history, text.data, text.n, tokens, n_tokens);
    ea_buf_done(&text);
}

static void on_event(ea_call *call, int i, const ea_event *ev)
{
    ea_choice *c = &call->choices[i];
    delta_to to = {call, i};
    if (ev->kind == EA_EVENT_TOKEN && call->gen.logprobs && !c->cut)
        add_logprob(call, c, ev);
    if (ev->n_bytes) {
        ea_buf_add(&c->raw, ev->text, ev->n_bytes);
        ea_chat_parser_feed(c->parser, ev->text, ev->n_bytes, on_delta, &to);
    }
    if (ev->kind != EA_EVENT_DONE)
        return;
    remember(call, i, ev);
    ea_chat_parser_finish(c->parser, on_delta, &to);
    if (ea_generate_finish(call, i, ev) && call->gen.stream) {
        chunk_begin(call, i);
        chunk_end(call, i, c->finish);
    }
}

/* ---- whole form ---- */

/* content is null beside calls without text, as OpenAI has it; templates look at that when the
 * message comes back. */
static void put_message(ea_call *call, int i)
{
    ea_choice *c = &call->choices[i];
    ea_buf *out = &call->out;
    ea_buf_printf(
        out, "%s{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", i ? "," : "", i);
    if (c->n_calls && !c->text.n)
        ea_buf_puts(out, "null");
    else
        ea_buf_json_string(out, c->text.data ? c->text.data : "", c->text.n);
    if (c->reasoning.n) {
        ea_buf_puts(out, ",\"reasoning_content\":");
        ea_buf_json_string(out, c->reasoning.data, c->reasoning.n);
    }
    if (c->n_calls) {
        ea_buf_puts(out, ",\"tool_calls\":[");
        ea_buf_add(out, c->calls.data, c->calls.n);
        ea_buf_putc(out, ']');
    }
    ea_buf_puts(out, ",\"refusal\":null},");
    put_logprobs(call, c, out);
    ea_buf_printf(out, ",\"finish_reason\":\"%s\"}", c->finish);
}

static void body(ea_call *call)
{
    ea_server_put_head(call, &call->out, CHAT.object);
    ea_buf_puts(&call->out, "\"choices\":[");
    for (int i = 0; i < call->n_choices; i++)
        put_message(call, i);
    ea_buf_puts(&call->out, "],\"usage\":");
    ea_server_put_usage(call, &call->out);
    ea_buf_puts(&call->out, ",\"timings\":");
    ea_server_put_timings(call, &call->out);
    ea_buf_putc(&call->out, '}');
}

static const ea_endpoint CHAT = {
    .begin = begin,
    .event = on_event,
    .body = body,
    .stream_object = "chat.completion.chunk",
    .object = "chat.completion",
    .id_prefix = "chatcmpl-",
};
