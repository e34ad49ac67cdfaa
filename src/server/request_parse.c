/* request_parse.c: from the members of a request body to engine parameters. Values are decoded one
 * member at a time by jansson; what is out of range, of a wrong type or not supported is refused by
 * name with the value that was sent, never ignored. Pure, but for allocation. */
#include "server/internal.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

/* The value as sent, cut for a message at a character's end. */
static void excerpt(const ea_json_member *m, char out[static 64])
{
    size_t n = EA_MIN(m->n_bytes, (size_t)48);
    memcpy(out, m->value, n);
    if (n < m->n_bytes) {
        n -= ea_utf8_incomplete_tail(out, n);
        memcpy(out + n, "...", 3);
        n += 3;
    }
    out[n] = '\0';
}

ea_status ea_field_wrong(const ea_json_member *m, const char *want, ea_http_error *e)
{
    char got[64];
    excerpt(m, got);
    return ea_server_refuse(e, 400, m->key, NULL, "field '%s': must be %s, got %s", m->key, want,
                            got);
}

/* One value as a tree; NULL if jansson cannot represent it (see json_scan.c), which callers report
 * as a wrong value. The span was scanned, so it is never malformed. */
static json_t *decode(const ea_json_member *m)
{
    return json_loadb(m->value, m->n_bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
}

/* strtod and not jansson: a number too large for a double is a range error with its field's name,
 * not a parse error. The scan has checked the grammar; the C library is not asked for a locale. */
static double number_of(const ea_json_member *m)
{
    char text[64];
    if (m->n_bytes >= sizeof text)
        return NAN; /* no legitimate parameter has 64 digits */
    memcpy(text, m->value, m->n_bytes);
    text[m->n_bytes] = '\0';
    return strtod(text, NULL);
}

ea_status ea_field_number(const ea_json_object *o, const char *name, double min, double max,
                          double *out, ea_http_error *e)
{
    const ea_json_member *m = ea_server_json_find(o, name);
    if (!m)
        return EA_OK;
    double v = m->type == '0' ? number_of(m) : NAN;
    if (!(v >= min && v <= max)) {
        char want[64];
        snprintf(want, sizeof want, "a number from %g to %g", min, max);
        return ea_field_wrong(m, want, e);
    }
    *out = v;
    return EA_OK;
}

ea_status ea_field_int(const ea_json_object *o, const char *name, int64_t min, int64_t max,
                       int64_t *out, ea_http_error *e)
{
    const ea_json_member *m = ea_server_json_find(o, name);
    if (!m)
        return EA_OK;
    if (m->type == '0') {
        json_t *v = decode(m); /* exact for 64 bits, which a double is not */
        bool whole = json_is_integer(v);
        int64_t i = whole ? json_integer_value(v) : 0;
        json_decref(v);
        double d = number_of(m);
        if (!whole && d == floor(d) && fabs(d) < 0x1p53) { /* 5.0, from clients without integers */
            whole = true;
            i = (int64_t)d;
        }
        if (whole && i >= min && i <= max) {
            *out = i;
            return EA_OK;
        }
    }
    char want[96];
    if (max == INT64_MAX && min == INT64_MIN)
        snprintf(want, sizeof want, "an integer of 64 bits");
    else
        snprintf(want, sizeof want, "an integer from %lld to %lld", (long long)min, (long long)max);
    return ea_field_wrong(m, want, e);
}

ea_status ea_field_bool(const ea_json_object *o, const char *name, bool *out, ea_http_error *e)
{
    const ea_json_member *m = ea_server_json_find(o, name);
    if (!m)
        return EA_OK;
    if (m->type != 't' && m->type != 'f')
        return ea_field_wrong(m, "true or false", e);
    *out = m->type == 't';
    return EA_OK;
}

static ea_status no_memory(ea_http_error *e)
{
    return ea_server_refuse_status(e, EA_ENOMEM, NULL);
}

ea_status ea_field_string(const ea_json_object *o, const char *name, char **out, ea_http_error *e)
{
    const ea_json_member *m = ea_server_json_find(o, name);
    if (!m)
        return EA_OK;
    json_t *v = m->type == '"' ? decode(m) : NULL;
    const char *s = json_string_value(v);
    if (!s || strlen(s) != json_string_length(v)) {
        json_decref(v);
        return ea_field_wrong(m, "a string", e);
    }
    *out = ea_strdup(s);
    json_decref(v);
    return *out ? EA_OK : no_memory(e);
}

ea_status ea_field_raw(const ea_json_object *o, const char *name, char type, char **out,
                       ea_http_error *e)
{
    const ea_json_member *m = ea_server_json_find(o, name);
    if (!m)
        return EA_OK;
    if (m->type != type)
        return ea_field_wrong(m, type == '[' ? "an array" : "an object", e);
    *out = ea_strndup(m->value, m->n_bytes);
    return *out ? EA_OK : no_memory(e);
}

/* ---- stop strings ---- */

static ea_status add_stop(ea_gen *gen, const ea_json_member *m, const json_t *v, ea_http_error *e)
{
    const char *s = json_string_value(v);
    size_t n = s ? json_string_length(v) : 0;
    if (!s || strlen(s) != n)
        return ea_field_wrong(m, "a string or an array of strings", e);
    if (n == 0)
        return EA_OK; /* some clients send "" for none */
    if (n > EA_MAX_STOP_BYTES)
        return ea_server_refuse(e, 400, "stop", NULL,
                                "field 'stop': a string of %zu bytes; the limit is %d", n,
                                EA_MAX_STOP_BYTES);
    if (gen->request.n_stop >= EA_MAX_STOPS)
        return ea_server_refuse(e, 400, "stop", NULL, "field 'stop': more than %d strings",
                                EA_MAX_STOPS);
    if (!(gen->stops[gen->request.n_stop] = ea_strndup(s, n)))
        return no_memory(e);
    gen->request.n_stop++;
    return EA_OK;
}

/* A missing, null or empty list is no stop string; duplicates do no harm. */
static ea_status parse_stop(const ea_json_object *o, ea_gen *gen, ea_http_error *e)
{
    const ea_json_member *m = ea_server_json_find(o, "stop");
    if (!m)
        return EA_OK;
    json_t *v = decode(m);
    ea_status status = EA_OK;
    if (!(gen->stops = ea_calloc(EA_MAX_STOPS, sizeof *gen->stops)))
        status = no_memory(e);
    else if (json_is_array(v))
        for (size_t i = 0; i < json_array_size(v) && status == EA_OK; i++)
            status = add_stop(gen, m, json_array_get(v, i), e);
    else
        status = add_stop(gen, m, v, e);
    json_decref(v);
    gen->request.stop = (const char *const *)gen->stops;
    return status;
}

/* ---- logit_bias: {"id": bias} (OpenAI) or [[id, bias], ...] (llama.cpp); false forbids ---- */

static ea_status add_bias(ea_gen *gen, const ea_json_member *m, int n_vocab, int64_t token,
                          const json_t *bias, ea_http_error *e)
{
    double b = json_is_false(bias) ? -(double)INFINITY : json_number_value(bias);
    if (!(json_is_false(bias) || (json_is_number(bias) && fabs(b) <= 1e6)))
        return ea_field_wrong(m, "an object of token id: number or false", e);
    if (token < 0 || token >= n_vocab)
        return ea_server_refuse(e, 400, "logit_bias", NULL,
                                "field 'logit_bias': token %lld is not in the vocabulary (0 to %d)",
                                (long long)token, n_vocab - 1);
    gen->bias[gen->request.sampling.n_logit_bias++] = (ea_logit_bias){(int32_t)token, (float)b};
    return EA_OK;
}

/* v is an object or an array; the loop over the other kind does nothing. */
static ea_status fill_bias(ea_gen *gen, const ea_json_member *m, int n_vocab, const json_t *v,
                           ea_http_error *e)
{
    const char *key;
    json_t *each;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)v, key, each)
    {
        char *end;
        long long token = strtoll(key, &end, 10);
        if (*key == '\0' || *end != '\0')
            return ea_field_wrong(m, "an object whose keys are token ids", e);
        EA_TRY(add_bias(gen, m, n_vocab, token, each, e));
    }
    json_array_foreach(v, i, each)
    {
        if (json_array_size(each) != 2 || !json_is_integer(json_array_get(each, 0)))
            return ea_field_wrong(m, "an array of [token id, bias]", e);
        EA_TRY(add_bias(gen, m, n_vocab, json_integer_value(json_array_get(each, 0)),
                        json_array_get(each, 1), e));
    }
    return EA_OK;
}

static ea_status parse_bias(const ea_json_object *o, int n_vocab, ea_gen *gen, ea_http_error *e)
{
    const ea_json_member *m = ea_server_json_find(o, "logit_bias");
    if (!m)
        return EA_OK;
    if (m->type != '{' && m->type != '[')
        return ea_field_wrong(m, "an object of token id: bias", e);
    json_t *v = decode(m);
    if (!v)
        return ea_field_wrong(m, "an object of token id: bias", e);
    size_t n = m->type == '{' ? json_object_size(v) : json_array_size(v);
    ea_status status;
    if (n > EA_MAX_LOGIT_BIAS)
        status = ea_server_refuse(e, 400, "logit_bias", NULL,
                                  "field 'logit_bias': %zu entries; the limit is %d", n,
                                  EA_MAX_LOGIT_BIAS);
    else if (!(gen->bias = ea_calloc(n + 1, sizeof *gen->bias)))
        status = no_memory(e);
    else
        status = fill_bias(gen, m, n_vocab, v, e);
    json_decref(v);
    gen->request.sampling.logit_bias = gen->bias;
    return status;
}

/* ---- fields that we know but do not have ---- */

typedef struct neutral {
    const char *name;
    double value; /* the value at which the field changes nothing */
} neutral;

/* Samplers of other engines: harmless when off, refused when they would change the text. */
static const neutral NEUTRAL[] = {
    {"typical_p", 1},       {"tfs_z", 1},
    {"mirostat", 0},        {"dynatemp_range", 0},
    {"dry_multiplier", 0},  {"top_n_sigma", -1},
    {"best_of", 1},         {"length_penalty", 1},
    {"xtc_probability", 0}, {"n_keep", 0},
    {"n_discard", 0},       {"min_tokens", 0},
    {"n_probs", 0},         {"t_max_predict_ms", 0},
    {"n_indent", 0},        {"top_a", 0},
};

/* Constraints and other things that would be wrong to ignore; absent or null is fine. */
static const char *const NOT_YET[] = {
    "grammar",
    "json_schema",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "functions",
    "function_call",
    "audio",
    "prediction",
    "lora",
    "web_search_options",
    "samplers",
    "prompt_embeds",
    "bad_words",
};

/* Switches that would change the answer when on. */
static const char *const FALSE_ONLY[] = {"use_beam_search", "continue_final_message"};

static ea_status parse_response_format(const ea_json_object *o, ea_http_error *e)
{
    const ea_json_member *m = ea_server_json_find(o, "response_format");
    if (!m)
        return EA_OK;
    json_t *v = decode(m);
    const char *type = json_string_value(json_object_get(v, "type"));
    ea_status status = EA_OK;
    if (!type)
        status = ea_field_wrong(m, "an object with a string 'type'", e);
    else if (strcmp(type, "text") != 0)
        status = ea_server_refuse(e, 400, m->key, "unsupported",
                                  "field 'response_format': type '%.40s' is not yet supported, "
                                  "only 'text' is",
                                  type);
    json_decref(v);
    return status;
}

/* Run before the fields that we do support: a request that asks for a constraint must not start
 * without it. */
static ea_status refuse_unsupported(const ea_json_object *o, int n, ea_http_error *e)
{
    for (size_t i = 0; i < EA_ARRAY_LEN(NEUTRAL); i++) {
        const ea_json_member *m = ea_server_json_find(o, NEUTRAL[i].name);
        if (!m || (m->type == '0' && number_of(m) == NEUTRAL[i].value))
            continue;
        if (strcmp(m->key, "best_of") == 0 && m->type == '0' && number_of(m) == n)
            continue; /* as many as are returned: nothing to choose */
        char got[64];
        excerpt(m, got);
        return ea_server_refuse(e, 400, m->key, "unsupported",
                                "field '%s': not supported (only %g, which turns it off), got %s",
                                m->key, NEUTRAL[i].value, got);
    }
    for (size_t i = 0; i < EA_ARRAY_LEN(NOT_YET); i++) {
        const ea_json_member *m = ea_server_json_find(o, NOT_YET[i]);
        bool empty = m && m->n_bytes == 2 && (m->type == '[' || m->type == '"' || m->type == '{');
        if (m && !empty)
            return ea_server_refuse(e, 400, m->key, "unsupported",
                                    "field '%s': not yet supported by this server", m->key);
    }
    for (size_t i = 0; i < EA_ARRAY_LEN(FALSE_ONLY); i++) {
        bool on = false;
        EA_TRY(ea_field_bool(o, FALSE_ONLY[i], &on, e));
        if (on)
            return ea_server_refuse(e, 400, FALSE_ONLY[i], "unsupported",
                                    "field '%s': not supported", FALSE_ONLY[i]);
    }
    return parse_response_format(o, e);
}

/* ---- who asks: the agent's label ---- */

/* Names are labels for people: cut, not refused, when they come from somewhere that is not ours. */
static char *header_copy(ea_call *call, const char *name)
{
    const char *v = MHD_lookup_connection_value(call->conn, MHD_HEADER_KIND, name);
    return v && *v ? ea_strndup(v, 255) : NULL;
}

/* Our own field, so it is strict: what it says is used or refused. */
static ea_status parse_agent_object(const ea_json_object *o, ea_gen *gen, ea_http_error *e)
{
    const ea_json_member *m = ea_server_json_find(o, "agent");
    if (!m)
        return EA_OK;
    json_t *v = m->type == '{' || m->type == '"' ? decode(m) : NULL;
    const json_t *id = m->type == '"' ? v : json_object_get(v, "id");
    const json_t *role = json_object_get(v, "role");
    ea_status status = EA_OK;
    if (!v || (id && !json_is_string(id)) || (role && !json_is_string(role)))
        status = ea_field_wrong(m, "an object {\"id\": string, \"role\": string}", e);
    else if (json_string_length(id) > 255 || json_string_length(role) > 255)
        status = ea_field_wrong(m, "an object whose strings have at most 255 bytes", e);
    else if ((id && !(gen->agent = ea_strdup(json_string_value(id)))) ||
             (role && !(gen->role = ea_strdup(json_string_value(role)))))
        status = no_memory(e);
    json_decref(v);
    return status;
}

/* An explicit id wins; else the most specific of what clients send about themselves. */
static ea_status parse_agent(ea_call *call, ea_gen *gen, ea_http_error *e)
{
    static const char *const headers[] = {"X-Agent-Id", "X-Session-Id", "X-Session-Affinity",
                                          "X-Conversation-Id"};
    static const char *const fields[] = {"prompt_cache_key", "session_id", "user",
                                         "safety_identifier"};
    EA_TRY(parse_agent_object(&call->fields, gen, e));
    if (!gen->agent)
        gen->agent = header_copy(call, headers[0]);
    for (size_t i = 0; i < EA_ARRAY_LEN(fields); i++) {
        char *label = NULL;
        EA_TRY(ea_field_string(&call->fields, fields[i], &label, e));
        if (!gen->agent && label && *label)
            gen->agent = ea_strndup(label, 255);
        ea_free(label);
        for (size_t k = 1; i == 1 && k < EA_ARRAY_LEN(headers) && !gen->agent; k++)
            gen->agent = header_copy(call, headers[k]); /* before `user`, which many may share */
    }
    if (!gen->role)
        gen->role = header_copy(call, "X-Agent-Role");
    gen->request.agent = gen->agent;
    gen->request.role = gen->role;
    return EA_OK;
}

/* ---- all shared fields ---- */

static ea_status field_float(const ea_json_object *o, const char *name, double min, double max,
                             float *out, ea_http_error *e)
{
    double v = (double)*out;
    EA_TRY(ea_field_number(o, name, min, max, &v, e));
    *out = (float)v;
    return EA_OK;
}

/* *s holds the server's defaults. Ranges are those in which the sampler is defined, wider than
 * OpenAI's where llama.cpp's users go beyond them. */
static ea_status parse_sampling(const ea_json_object *o, ea_sampling *s, ea_http_error *e)
{
    int64_t top_k = s->top_k, last_n = s->repeat_last_n, seed = -1;
    EA_TRY(field_float(o, "temperature", 0, 100, &s->temperature, e));
    EA_TRY(field_float(o, "top_p", 0, 1, &s->top_p, e));
    EA_TRY(field_float(o, "min_p", 0, 1, &s->min_p, e));
    EA_TRY(field_float(o, "repetition_penalty", 0.01, 100, &s->repeat_penalty, e));
    EA_TRY(field_float(o, "repeat_penalty", 0.01, 100, &s->repeat_penalty, e));
    EA_TRY(field_float(o, "presence_penalty", -100, 100, &s->presence_penalty, e));
    EA_TRY(field_float(o, "frequency_penalty", -100, 100, &s->frequency_penalty, e));
    EA_TRY(ea_field_int(o, "top_k", -1, INT32_MAX, &top_k, e));
    EA_TRY(ea_field_int(o, "repeat_last_n", -1, INT32_MAX, &last_n, e));
    s->top_k = top_k < 0 ? 0 : (int)top_k;
    s->repeat_last_n = (int)last_n;
    if (ea_server_json_find(o, "seed")) {
        EA_TRY(ea_field_int(o, "seed", INT64_MIN, INT64_MAX, &seed, e));
        s->seed_set = seed != -1; /* llama.cpp's "any" */
        s->seed = (uint64_t)seed;
    }
    return EA_OK;
}

static ea_status parse_lengths(const ea_json_object *o, ea_gen *gen, ea_http_error *e)
{
    /* Later names win: OpenAI's newer one over its older one over llama.cpp's. */
    static const char *const names[] = {"n_predict", "max_tokens", "max_completion_tokens"};
    int64_t max = gen->request.max_tokens, n = 1;
    for (size_t i = 0; i < EA_ARRAY_LEN(names); i++)
        EA_TRY(ea_field_int(o, names[i], -1, INT32_MAX, &max, e));
    gen->request.max_tokens = (int)max;
    EA_TRY(ea_field_int(o, "n", 1, EA_MAX_CHOICES, &n, e));
    gen->n = (int)n;
    return EA_OK;
}

/* stream_options without stream is refused as OpenAI does: somebody expects a usage chunk that
 * would never come. */
static ea_status parse_streaming(const ea_json_object *o, ea_gen *gen, ea_http_error *e)
{
    EA_TRY(ea_field_bool(o, "stream", &gen->stream, e));
    const ea_json_member *m = ea_server_json_find(o, "stream_options");
    if (!m)
        return EA_OK;
    if (!gen->stream)
        return ea_server_refuse(e, 400, m->key, NULL,
                                "field 'stream_options': only allowed with \"stream\": true");
    json_t *v = m->type == '{' ? decode(m) : NULL;
    const json_t *usage = json_object_get(v, "include_usage");
    bool ok = json_is_object(v) && (!usage || json_is_boolean(usage) || json_is_null(usage));
    gen->include_usage = json_is_true(usage);
    json_decref(v);
    return ok ? EA_OK : ea_field_wrong(m, "an object {\"include_usage\": true or false}", e);
}

ea_status ea_gen_parse(ea_call *call, ea_gen *gen, ea_http_error *e)
{
    const ea_server *s = call->server;
    const ea_json_object *o = &call->fields;
    char *ignored = NULL;
    ea_request_params_default(&gen->request);
    gen->request.sampling = s->params.sampling;
    gen->request.sampling.logit_bias = NULL;
    gen->request.sampling.n_logit_bias = 0;
    gen->request.max_tokens = s->params.max_tokens;
    gen->request.n_top_logprobs = -1;
    EA_TRY(ea_field_string(o, "model", &ignored, e)); /* any name is served by our one model */
    ea_free(ignored);
    EA_TRY(parse_sampling(o, &gen->request.sampling, e));
    EA_TRY(parse_lengths(o, gen, e));
    EA_TRY(parse_streaming(o, gen, e));
    EA_TRY(ea_field_bool(o, "ignore_eos", &gen->request.ignore_eos, e));
    bool cache_prompt = true; /* results do not depend on it: accepted, changes nothing */
    EA_TRY(ea_field_bool(o, "cache_prompt", &cache_prompt, e));
    EA_TRY(refuse_unsupported(o, gen->n, e));
    EA_TRY(parse_stop(o, gen, e));
    EA_TRY(parse_bias(o, s->n_vocab, gen, e));
    return parse_agent(call, gen, e);
}

void ea_gen_done(ea_gen *gen)
{
    for (size_t i = 0; i < gen->request.n_stop; i++)
        ea_free(gen->stops[i]);
    ea_free(gen->stops);
    ea_free(gen->bias);
    ea_free(gen->agent);
    ea_free(gen->role);
    *gen = (ea_gen){0};
}
