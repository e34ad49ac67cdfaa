/* completions.c: /v1/completions: prompts as text or token ids, echo, and its older form of
 * log-probabilities: four arrays side by side, kept as four buffers that grow in step. Text is
 * passed on as the engine gives it: nothing is parsed out of it here. */
#include "server/internal.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

static const char WANT_PROMPT[] =
    "a string, an array of strings, or an array of token ids (or of such arrays)";

/* ---- request ---- */

/* Control tokens may be spelled out: completions are for those who write the template themselves.
 */
static ea_status text_prompt(ea_call *call, const json_t *v, ea_prompt *p, ea_http_error *e)
{
    const ea_model *model = call->server->params.model;
    const char *text = json_string_value(v);
    size_t n = json_string_length(v);
    ea_error err = {0};
    ea_status status = ea_tokenize(model, text, n, EA_TOKENIZE_SPECIAL | EA_TOKENIZE_ADD_BOS,
                                   &p->tokens, &p->n_tokens, &err);
    if (status != EA_OK)
        return ea_server_refuse_status(e, status, err.text);
    ea_model_info info;
    ea_model_info_get(model, &info);
    p->has_bos = info.add_bos && p->n_tokens > 0 && p->tokens[0] == info.bos;
    if (call->echo)
        ea_buf_add(&p->echo, text, n);
    return EA_OK;
}

/* Ids are taken as they are, without BOS: whoever counts tokens wants no other ones. */
static ea_status ids_prompt(ea_call *call, const json_t *v, ea_prompt *p, ea_http_error *e)
{
    size_t n = json_array_size(v);
    ea_buf text = EA_BUF_INIT;
    if (!(p->tokens = ea_malloc((n + 1) * sizeof *p->tokens)))
        return ea_server_refuse_status(e, EA_ENOMEM, NULL);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(v, i);
        json_int_t token = json_is_integer(id) ? json_integer_value(id) : -1;
        if (token < 0 || token >= call->server->n_vocab) {
            ea_buf_done(&text);
            return ea_server_refuse(e, 400, "prompt", NULL,
                                    "field 'prompt': element %zu is not a token id (0 to %d)", i,
                                    call->server->n_vocab - 1);
        }
        p->tokens[i] = (int32_t)token;
        if (call->echo) {
            ea_server_token_text(call, p->tokens[i], &text);
            ea_buf_add(&p->echo, text.data, text.n);
        }
    }
    p->n_tokens = n;
    ea_buf_done(&text);
    return EA_OK;
}

static ea_status one_prompt(ea_call *call, const ea_json_member *m, const json_t *v, ea_prompt *p,
                            ea_http_error *e)
{
    if (json_is_string(v))
        EA_TRY(text_prompt(call, v, p, e));
    else if (json_is_array(v))
        EA_TRY(ids_prompt(call, v, p, e));
    else
        return ea_field_wrong(m, WANT_PROMPT, e);
    if (p->n_tokens == 0)
        return ea_server_refuse(e, 400, "prompt", NULL, "field 'prompt': is empty");
    return EA_OK;
}

/* The first element decides between one prompt of ids and several prompts. */
static ea_status parse_prompts(ea_call *call, const ea_json_member *m, const json_t *v,
                               ea_http_error *e)
{
    const json_t *first = json_array_get(v, 0);
    bool many = json_is_array(v) && (json_is_string(first) || json_is_array(first));
    EA_TRY(ea_generate_alloc(call, many ? json_array_size(v) : 1, e));
    if (!many)
        return one_prompt(call, m, v, &call->prompts[0], e);
    for (size_t i = 0; i < json_array_size(v); i++)
        EA_TRY(one_prompt(call, m, json_array_get(v, i), &call->prompts[i], e));
    return EA_OK;
}

static ea_status parse_own_fields(ea_call *call, ea_http_error *e)
{
    const ea_json_object *o = &call->fields;
    const ea_json_member *logprobs = ea_server_json_find(o, "logprobs");
    char *suffix = NULL;
    int64_t n_top = 0;
    EA_TRY(ea_field_string(o, "suffix", &suffix, e));
    bool has_suffix = suffix && *suffix;
    ea_free(suffix);
    if (has_suffix)
        return ea_server_refuse(e, 400, "suffix", "unsupported",
                                "field 'suffix': filling in the middle is not supported");
    EA_TRY(ea_field_bool(o, "echo", &call->echo, e));
    if (logprobs && logprobs->type == 'f') /* some clients send false for none */
        return EA_OK;
    if (logprobs) {
        EA_TRY(ea_field_int(o, "logprobs", 0, EA_MAX_TOP_LOGPROBS, &n_top, e));
        ea_gen_want_logprobs(&call->gen, (int)n_top);
        call->gen.request.prompt_logprobs = call->echo;
    }
    return EA_OK;
}

static void add_entry(ea_call *call, ea_choice *c, int32_t token, const float *logprob,
                      const ea_token_prob *top, int n_top);

/* The engine tells nothing about a prompt's first token: nothing stands before it. A BOS that we
 * added is not part of what the client sent. */
static void add_first_tokens(ea_call *call)
{
    if (!call->gen.request.prompt_logprobs)
        return;
    for (int i = 0; i < call->n_choices; i++) {
        const ea_prompt *p = &call->prompts[i / call->gen.n];
        if (!p->has_bos)
            add_entry(call, &call->choices[i], p->tokens[0], NULL, NULL, 0);
    }
}

static const ea_endpoint COMPLETIONS;

ea_status ea_server_parse_completions(ea_call *call, ea_http_error *e)
{
    call->endpoint = &COMPLETIONS;
    EA_TRY(ea_gen_parse(call, &call->gen, e));
    EA_TRY(parse_own_fields(call, e));
    const ea_json_member *m = ea_server_json_find(&call->fields, "prompt");
    if (!m)
        return ea_server_refuse(e, 400, "prompt", "missing_required_parameter",
                                "field 'prompt': missing; expected %s", WANT_PROMPT);
    json_t *v = json_loadb(m->value, m->n_bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    ea_status status = json_is_string(v) || json_array_size(v) > 0
                           ? parse_prompts(call, m, v, e)
                           : ea_field_wrong(m, WANT_PROMPT, e);
    json_decref(v);
    if (status == EA_OK)
        add_first_tokens(call);
    return status;
}

/* ---- log-probabilities: four parallel arrays ---- */

/* A token's text; one that is only a part of a character is spelled "bytes:\xe2\x82", as OpenAI
 * does, so that the keys of top_logprobs differ. */
static void put_token(ea_call *call, ea_buf *out, int32_t token)
{
    ea_buf text = EA_BUF_INIT;
    ea_server_token_text(call, token, &text);
    bool valid = true;
    for (size_t i = 0; i < text.n && valid;) {
        size_t len = ea_utf8_valid_len(text.data + i, text.n - i);
        valid = len > 0;
        i += len;
    }
    if (!valid) {
        ea_buf bytes = EA_BUF_INIT;
        ea_buf_puts(&bytes, "bytes:");
        for (size_t i = 0; i < text.n; i++)
            ea_buf_printf(&bytes, "\\x%02x", (unsigned)(unsigned char)text.data[i]);
        ea_buf_done(&text);
        text = bytes;
    }
    ea_buf_json_string(out, text.data ? text.data : "", text.n);
    ea_buf_done(&text);
}

static void add_entry(ea_call *call, ea_choice *c, int32_t token, const float *logprob,
                      const ea_token_prob *top, int n_top)
{
    const char *comma = c->lp_tokens.n ? "," : "";
    ea_buf text = EA_BUF_INIT;
    ea_buf_puts(&c->lp_tokens, comma);
    put_token(call, &c->lp_tokens, token);
    ea_buf_puts(&c->lp_values, comma);
    if (logprob)
        ea_server_put_float(&c->lp_values, *logprob);
    else
        ea_buf_puts(&c->lp_values, "null");
    ea_buf_printf(&c->lp_top, "%s%s", comma, logprob ? "{" : "null");
    for (int i = 0; i < n_top && i < call->gen.n_top; i++) {
        if (i)
            ea_buf_putc(&c->lp_top, ',');
        put_token(call, &c->lp_top, top[i].token);
        ea_buf_putc(&c->lp_top, ':');
        ea_server_put_float(&c->lp_top, top[i].logprob);
    }
    if (logprob)
        ea_buf_putc(&c->lp_top, '}');
    ea_buf_printf(&c->lp_offsets, "%s%zu", comma, c->n_chars);
    ea_server_token_text(call, token, &text);
    for (size_t i = 0; i < text.n; i++) /* characters begin where a byte continues none */
        c->n_chars += ((unsigned char)text.data[i] & 0xc0) != 0x80;
    ea_buf_done(&text);
}

static void put_logprobs(ea_call *call, ea_choice *c, ea_buf *out)
{
    if (!call->gen.logprobs || (call->gen.stream && !c->lp_tokens.n)) {
        ea_buf_puts(out, "\"logprobs\":null");
        return;
    }
    struct {
        const char *name;
        ea_buf *buf;
    } parts[] = {{"{\"tokens\":[", &c->lp_tokens},
                 {"],\"token_logprobs\":[", &c->lp_values},
                 {"],\"top_logprobs\":[", &c->lp_top},
                 {"],\"text_offset\":[", &c->lp_offsets}};
    ea_buf_puts(out, "\"logprobs\":");
    for (size_t i = 0; i < EA_ARRAY_LEN(parts); i++) {
        ea_buf_puts(out, parts[i].name);
        ea_buf_add(out, parts[i].buf->data, parts[i].buf->n);
        ea_buf_clear(parts[i].buf);
    }
    ea_buf_puts(out, "]}");
}

/* ---- answers ---- */

/* One element of "choices", in both forms. */
static void put_choice(ea_call *call, int i, const char *text, size_t n, const char *finish)
{
    ea_buf_printf(&call->out, "{\"index\":%d,\"text\":", i);
    ea_buf_json_string(&call->out, n ? text : "", n);
    ea_buf_putc(&call->out, ',');
    put_logprobs(call, &call->choices[i], &call->out);
    if (finish)
        ea_buf_printf(&call->out, ",\"finish_reason\":\"%s\"}", finish);
    else
        ea_buf_puts(&call->out, ",\"finish_reason\":null}");
}

static void chunk(ea_call *call, int i, const char *text, size_t n, const char *finish)
{
    ea_sse_chunk_begin(call);
    ea_server_put_head(call, &call->out, COMPLETIONS.stream_object);
    ea_buf_puts(&call->out, "\"choices\":[");
    put_choice(call, i, text, n, finish);
    ea_buf_putc(&call->out, ']');
    if (call->gen.include_usage) {
        ea_buf_puts(&call->out, ",\"usage\":null");
    } else if (finish && call->n_done == call->n_choices) {
        ea_buf_puts(&call->out, ",\"timings\":");
        ea_server_put_timings(call, &call->out);
    }
    ea_buf_putc(&call->out, '}');
    ea_sse_chunk_end(call);
}

static void begin(ea_call *call)
{
    for (int i = 0; i < call->n_choices && call->echo; i++) {
        const ea_buf *echo = &call->prompts[i / call->gen.n].echo;
        chunk(call, i, echo->data, echo->n, NULL);
    }
}

static void on_event(ea_call *call, int i, const ea_event *ev)
{
    ea_choice *c = &call->choices[i];
    bool is_token = ev->kind == EA_EVENT_TOKEN || ev->kind == EA_EVENT_PROMPT_LOGPROB;
    if (is_token && call->gen.logprobs)
        add_entry(call, c, ev->token, &ev->logprob, ev->top, ev->n_top);
    if (!call->gen.stream)
        ea_buf_add(&c->text, ev->text, ev->n_bytes);
    if (ev->kind == EA_EVENT_DONE) {
        if (ea_generate_finish(call, i, ev) && call->gen.stream)
            chunk(call, i, ev->text, ev->n_bytes, c->finish);
    } else if (ev->n_bytes && call->gen.stream) {
        chunk(call, i, ev->text, ev->n_bytes, NULL);
    }
}

static void body(ea_call *call)
{
    ea_server_put_head(call, &call->out, COMPLETIONS.object);
    ea_buf_puts(&call->out, "\"choices\":[");
    for (int i = 0; i < call->n_choices; i++) {
        ea_choice *c = &call->choices[i];
        ea_buf whole = EA_BUF_INIT;
        const ea_buf *echo = &call->prompts[i / call->gen.n].echo;
        ea_buf_add(&whole, echo->data, echo->n);
        ea_buf_add(&whole, c->text.data, c->text.n);
        if (i)
            ea_buf_putc(&call->out, ',');
        put_choice(call, i, whole.data, whole.n, c->finish);
        call->out.failed |= whole.failed;
        ea_buf_done(&whole);
    }
    ea_buf_puts(&call->out, "],\"usage\":");
    ea_server_put_usage(call, &call->out);
    ea_buf_puts(&call->out, ",\"timings\":");
    ea_server_put_timings(call, &call->out);
    ea_buf_putc(&call->out, '}');
}

static const ea_endpoint COMPLETIONS = {
    .begin = begin,
    .event = on_event,
    .body = body,
    .stream_object = "text_completion",
    .object = "text_completion",
    .id_prefix = "cmpl-",
};
