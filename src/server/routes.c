/* routes.c: the table of paths, who may use them, and the answers of the small GET routes. These
 * read a snapshot of the engine's state and never wait for it, so that they answer also while it is
 * stuck. Any HTTP thread. */
#include "server/internal.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

enum { GET = 1, POST = 2 };

typedef struct route {
    const char *path;
    ea_route_id id;
    int methods;
    bool prefix; /* anything may follow */
} route;

/* Paths without /v1 are spelled so by llama.cpp's clients. */
static const route ROUTES[] = {
    {"/v1/chat/completions", EA_ROUTE_CHAT, POST, false},
    {"/chat/completions", EA_ROUTE_CHAT, POST, false},
    {"/v1/completions", EA_ROUTE_COMPLETIONS, POST, false},
    {"/completions", EA_ROUTE_COMPLETIONS, POST, false},
    {"/v1/models", EA_ROUTE_MODELS, GET, false},
    {"/models", EA_ROUTE_MODELS, GET, false},
    {"/v1/models/", EA_ROUTE_MODEL, GET, true},
    {"/health", EA_ROUTE_HEALTH, GET, false},
    {"/v1/health", EA_ROUTE_HEALTH, GET, false},
    {"/metrics", EA_ROUTE_METRICS, GET, false},
    {"/v1/agents", EA_ROUTE_AGENTS, GET, false},
    {"/props", EA_ROUTE_PROPS, GET, false},
};

ea_route_id ea_route_find(const char *url, const char **tail)
{
    *tail = "";
    for (size_t i = 0; i < EA_ARRAY_LEN(ROUTES); i++) {
        const route *r = &ROUTES[i];
        size_t n = strlen(r->path);
        if (r->prefix ? strncmp(url, r->path, n) == 0 && url[n] : strcmp(url, r->path) == 0) {
            *tail = url + n;
            return r->id;
        }
    }
    return EA_ROUTE_NONE;
}

static const route *first_of(ea_route_id id)
{
    for (size_t i = 0; i < EA_ARRAY_LEN(ROUTES); i++)
        if (ROUTES[i].id == id)
            return &ROUTES[i];
    return NULL;
}

const char *ea_route_name(ea_route_id id)
{
    const route *r = first_of(id);
    if (!r)
        return "other";
    return r->prefix ? "/v1/models/{id}" : r->path;
}

const char *ea_route_allow(ea_route_id id)
{
    const route *r = first_of(id);
    return r && r->methods == POST ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
}

bool ea_route_allows(ea_route_id id, const char *method)
{
    const route *r = first_of(id);
    if (!r)
        return false;
    if (r->methods == POST)
        return strcmp(method, "POST") == 0;
    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

/* Load balancers and container runtimes ask for health without a key. */
bool ea_route_is_open(ea_route_id id)
{
    return id == EA_ROUTE_HEALTH;
}

/* ---- keys ---- */

/* Takes the same time wherever the first difference is. */
static bool same_key(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    unsigned diff = na == nb ? 0 : 1;
    for (size_t i = 0; i < na; i++)
        diff |= (unsigned)(unsigned char)a[i] ^ (unsigned)(unsigned char)(nb ? b[i % nb] : 0);
    return diff == 0;
}

bool ea_server_key_ok(const ea_server *s, struct MHD_Connection *conn)
{
    if (s->n_keys == 0)
        return true;
    const char *auth = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "Authorization");
    const char *key = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "X-Api-Key");
    if (auth && strncasecmp(auth, "Bearer ", 7) == 0)
        key = auth + 7 + strspn(auth + 7, " ");
    bool ok = false;
    for (size_t i = 0; key && i < s->n_keys; i++)
        ok |= same_key(key, s->keys[i]);
    return ok;
}

/* ---- models ---- */

static void add_model(const ea_server *s, ea_buf *out)
{
    ea_model_info info;
    ea_engine_stats stats;
    ea_model_info_get(s->params.model, &info);
    ea_engine_stats_get(s->params.engine, &stats);
    ea_buf_puts(out, "{\"id\":");
    ea_buf_json_string(out, s->model_id, strlen(s->model_id));
    ea_buf_printf(out,
                  ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"edgeagent\",\"meta\":{"
                  "\"n_vocab\":%d,\"n_ctx_train\":%d,\"n_ctx\":%d,\"n_embd\":%d,\"n_params\":%llu,"
                  "\"size\":%llu,\"type\":",
                  (long long)s->created, info.n_vocab, info.n_ctx_train, stats.n_ctx_agent,
                  info.n_embd, (unsigned long long)info.n_params, (unsigned long long)info.n_bytes);
    ea_buf_json_string(out, info.type, strlen(info.type));
    ea_buf_puts(out, "}}");
}

static ea_status get_models(ea_call *call)
{
    ea_buf_puts(&call->out, "{\"object\":\"list\",\"data\":[");
    add_model(call->server, &call->out);
    ea_buf_puts(&call->out, "]}");
    return EA_OK;
}

/* The one strict place for names: clients look here whether a model exists. */
static ea_status get_model(ea_call *call, ea_http_error *e)
{
    const ea_server *s = call->server;
    if (strcmp(call->tail, s->model_id) != 0 && strcmp(call->tail, s->path_id) != 0)
        return ea_server_refuse(e, 404, "model", "model_not_found",
                                "the model '%.100s' does not exist; this server has '%.100s'",
                                call->tail, s->model_id);
    add_model(s, &call->out);
    return EA_OK;
}

/* ---- state ---- */

/* The engine thread's progress, not ours: answering here proves nothing. */
static ea_status get_health(ea_call *call, ea_http_error *e)
{
    const ea_server *s = call->server;
    ea_engine_stats stats;
    ea_engine_stats_get(s->params.engine, &stats);
    if (stats.n_running + stats.n_queued > 0 && stats.since_progress_ms > s->params.stall_ms)
        return ea_server_refuse(e, 503, NULL, "no_progress",
                                "the engine has %d requests and has made no progress for %.0f ms",
                                stats.n_running + stats.n_queued, stats.since_progress_ms);
    ea_buf_puts(&call->out, "{\"status\":\"ok\"}");
    return EA_OK;
}

/* A name that may have been cut in the middle of a character. */
static void add_cut(ea_buf *out, const char *s, size_t size)
{
    size_t n = strnlen(s, size);
    ea_buf_json_string(out, s, n - ea_utf8_incomplete_tail(s, n));
}

static void add_agent(ea_buf *out, const ea_agent_info *a)
{
    ea_buf_puts(out, "{\"id\":");
    add_cut(out, a->id, sizeof a->id);
    ea_buf_puts(out, ",\"role\":");
    add_cut(out, a->role, sizeof a->role);
    ea_buf_printf(out,
                  ",\"state\":\"%s\",\"n_ctx\":%d,\"requests\":%d,\"prompt_tokens\":%llu,"
                  "\"cached_tokens\":%llu,\"generated_tokens\":%llu,\"tokens_per_second\":%.2f,"
                  "\"idle_seconds\":%.3f}",
                  ea_agent_state_name(a->state), a->n_ctx, a->n_requests,
                  (unsigned long long)a->n_prompt, (unsigned long long)a->n_cached,
                  (unsigned long long)a->n_generated, a->tokens_per_s, a->idle_s);
}

static ea_status get_agents(ea_call *call, ea_http_error *e)
{
    ea_engine *engine = call->server->params.engine;
    enum { MAX_SHOWN = 1000 }; /* most recently active first: more is no use on a screen */
    size_t total = ea_engine_agents(engine, NULL, 0), n = EA_MIN(total, (size_t)MAX_SHOWN);
    ea_agent_info *agents = ea_calloc(n + 1, sizeof *agents);
    if (!agents)
        return ea_server_refuse_status(e, EA_ENOMEM, NULL);
    total = n ? ea_engine_agents(engine, agents, n) : 0;
    ea_buf_puts(&call->out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < EA_MIN(n, total); i++) {
        if (i)
            ea_buf_putc(&call->out, ',');
        add_agent(&call->out, &agents[i]);
    }
    ea_buf_printf(&call->out, "],\"total\":%zu}", total);
    ea_free(agents);
    return EA_OK;
}

static void add_number(ea_buf *out, const char *name, float value)
{
    ea_buf_printf(out, "\"%s\":", name);
    ea_server_put_float(out, value);
    ea_buf_putc(out, ',');
}

/* The part of llama-server's answer that its clients look at. */
static ea_status get_props(ea_call *call)
{
    const ea_server *s = call->server;
    const ea_sampling *d = &s->params.sampling;
    ea_buf *out = &call->out;
    ea_model_info info;
    ea_engine_stats stats;
    ea_model_info_get(s->params.model, &info);
    ea_engine_stats_get(s->params.engine, &stats);
    ea_buf_printf(out, "{\"default_generation_settings\":{\"n_ctx\":%d,\"params\":{",
                  stats.n_ctx_agent);
    add_number(out, "temperature", d->temperature);
    add_number(out, "top_p", d->top_p);
    add_number(out, "min_p", d->min_p);
    add_number(out, "repeat_penalty", d->repeat_penalty);
    add_number(out, "presence_penalty", d->presence_penalty);
    add_number(out, "frequency_penalty", d->frequency_penalty);
    ea_buf_printf(out,
                  "\"top_k\":%d,\"repeat_last_n\":%d,\"max_tokens\":%d}},\"total_slots\":%d,"
                  "\"n_ctx\":%d,\"n_threads\":%d,\"model_alias\":",
                  d->top_k, d->repeat_last_n, s->params.max_tokens, stats.n_parallel, stats.n_ctx,
                  stats.n_threads);
    ea_buf_json_string(out, s->model_id, strlen(s->model_id));
    ea_buf_puts(out, ",\"model_path\":");
    ea_buf_json_string(out, info.path, strlen(info.path));
    ea_buf_printf(out, ",\"has_chat_template\":%s,\"build_info\":\"edgeagent-%s\"}",
                  info.has_chat_template ? "true" : "false", ea_version());
    return EA_OK;
}

ea_status ea_route_get(ea_call *call, const char **type, ea_http_error *e)
{
    *type = "application/json; charset=utf-8";
    switch (call->route) {
    case EA_ROUTE_MODELS: return get_models(call);
    case EA_ROUTE_MODEL: return get_model(call, e);
    case EA_ROUTE_HEALTH: return get_health(call, e);
    case EA_ROUTE_AGENTS: return get_agents(call, e);
    case EA_ROUTE_PROPS: return get_props(call);
    case EA_ROUTE_METRICS:
        *type = "text/plain; version=0.0.4; charset=utf-8";
        ea_server_metrics(call->server, &call->out);
        return EA_OK;
    default: return ea_server_refuse(e, 404, NULL, "not_found", "no such path");
    }
}
