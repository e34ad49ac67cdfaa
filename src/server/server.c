/* server.c: the server's life, and the way of one HTTP request through libmicrohttpd: headers ->
 * body -> dispatch -> answer. Each connection belongs to one of libmicrohttpd's threads, which also
 * renders prompts and parses answers; a long prompt there delays only that thread's connections. */
#include "server/internal.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"

/* Request line and headers must fit with the buffers of one connection. */
enum { CONNECTION_MEMORY = 64 * 1024 };
/* Clients that stream a large answer to a slow reader may pause this much longer than others. */
enum { STREAM_PATIENCE = 5 };
/* A body that is too large is still read, so that the client sees the 413, up to this many times
 * the limit. */
enum { DISCARD_FACTOR = 4 };
/* How long stopping waits for error events to go out. */
enum { STOP_GRACE_MS = 300 };

static const char JSON_TYPE[] = "application/json; charset=utf-8";

void ea_server_log(const ea_server *s, ea_log_level level, const char *fmt, ...)
{
    if (!s->params.log)
        return;
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    s->params.log(s->params.log_user, level, line);
}

/* ---- answers ---- */

void ea_server_common_headers(struct MHD_Response *response)
{
    MHD_add_response_header(response, MHD_HTTP_HEADER_SERVER, "edgeagent/" EA_VERSION);
    /* Any page may talk to us: who may use the server is a matter of its address and key. */
    MHD_add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_ORIGIN, "*");
}

static enum MHD_Result queue(ea_call *call, int http, struct MHD_Response *response)
{
    call->phase = EA_PHASE_ANSWERED;
    call->http = http;
    enum MHD_Result result = MHD_queue_response(call->conn, (unsigned)http, response);
    MHD_destroy_response(response);
    return result;
}

/* Takes the bytes of *body. NULL: out of memory; the connection is then closed unanswered. */
static struct MHD_Response *make_response(const char *type, ea_buf *body)
{
    size_t n = body->n;
    char *data = ea_buf_take(body);
    if (!data)
        return NULL;
    struct MHD_Response *response =
        MHD_create_response_from_buffer_with_free_callback(n, data, ea_free);
    if (!response) {
        ea_free(data);
        return NULL;
    }
    ea_server_common_headers(response);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    return response;
}

enum MHD_Result ea_server_reply(ea_call *call, int http, const char *type, ea_buf *body)
{
    struct MHD_Response *response = make_response(type, body);
    return response ? queue(call, http, response) : MHD_NO;
}

enum MHD_Result ea_server_reply_error(ea_call *call, const ea_http_error *e)
{
    ea_buf body = EA_BUF_INIT;
    ea_server_error_json(&body, e);
    struct MHD_Response *response = make_response(JSON_TYPE, &body);
    if (!response)
        return MHD_NO;
    char number[16];
    if (e->retry_after_s) {
        snprintf(number, sizeof number, "%d", e->retry_after_s);
        MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, number);
    }
    if (e->http == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (e->http == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, ea_route_allow(call->route));
    return queue(call, e->http, response);
}

static enum MHD_Result reply_options(ea_call *call)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!response)
        return MHD_NO;
    const char *wanted =
        MHD_lookup_connection_value(call->conn, MHD_HEADER_KIND, "Access-Control-Request-Headers");
    const char *allow =
        call->route == EA_ROUTE_NONE ? "GET, HEAD, POST, OPTIONS" : ea_route_allow(call->route);
    ea_server_common_headers(response);
    MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, allow);
    MHD_add_response_header(response, "Access-Control-Allow-Methods", allow);
    MHD_add_response_header(response, "Access-Control-Allow-Headers",
                            wanted ? wanted : "Authorization, Content-Type");
    MHD_add_response_header(response, "Access-Control-Max-Age", "86400");
    return queue(call, MHD_HTTP_NO_CONTENT, response);
}

/* ---- one request ---- */

/* The answer of a call that is not streamed: when all is there, else sleep. */
static enum MHD_Result wait_for_answer(ea_call *call)
{
    ea_buf *records = &call->body; /* free since the request was parsed */
    for (;;) {
        ea_gone gone = EA_GONE_NOT;
        switch (ea_inbox_take(call->inbox, records, &gone)) {
        case EA_INBOX_ASLEEP: return MHD_YES;
        case EA_INBOX_KEEPALIVE: continue; /* there is no place for a comment in JSON */
        case EA_INBOX_GONE:
            if (gone == EA_GONE_CLIENT)
                return MHD_NO;
            ea_server_refuse_status(&call->error, EA_ECLOSED, "the server is shutting down");
            return ea_server_reply_error(call, &call->error);
        case EA_INBOX_RECORDS: break;
        }
        ea_generate_feed(call, records);
        records->failed = false;
        ea_buf_clear(records);
        if (call->failed)
            return ea_server_reply_error(call, &call->error);
        if (call->n_done == call->n_choices) {
            call->endpoint->body(call);
            return ea_server_reply(call, MHD_HTTP_OK, JSON_TYPE, &call->out);
        }
    }
}

/* A refusal before anything was generated is a plain HTTP error, for streams too. */
static enum MHD_Result dispatch_post(ea_call *call)
{
    ea_http_error e = {0};
    if (ea_generate_start(call, &e) != EA_OK)
        return ea_server_reply_error(call, &e);
    if (call->gen.stream) {
        MHD_set_connection_option(
            call->conn, MHD_CONNECTION_OPTION_TIMEOUT,
            (unsigned)(call->server->params.idle_timeout_s * STREAM_PATIENCE));
        return ea_sse_start(call);
    }
    call->phase = EA_PHASE_WAITING;
    return wait_for_answer(call);
}

static enum MHD_Result dispatch(ea_call *call)
{
    ea_http_error e = {0};
    const char *type = JSON_TYPE;
    if (call->refusal.http)
        return ea_server_reply_error(call, &call->refusal);
    if (strcmp(call->method, "OPTIONS") == 0)
        return reply_options(call);
    if (call->route == EA_ROUTE_CHAT || call->route == EA_ROUTE_COMPLETIONS)
        return dispatch_post(call);
    if (ea_route_get(call, &type, &e) != EA_OK)
        return ea_server_reply_error(call, &e);
    return ea_server_reply(call, MHD_HTTP_OK, type, &call->out);
}

static const char *header(ea_call *call, const char *name)
{
    return MHD_lookup_connection_value(call->conn, MHD_HEADER_KIND, name);
}

/* JSON, or what curl sends when nobody says; a form or a file upload is a mistake. */
static bool type_is_fine(const char *type)
{
    static const char *const fine[] = {"application/json", "text/", "application/x-www-form",
                                       "application/octet-stream"};
    if (!type || strstr(type, "+json"))
        return true;
    for (size_t i = 0; i < EA_ARRAY_LEN(fine); i++)
        if (strncasecmp(type, fine[i], strlen(fine[i])) == 0)
            return true;
    return false;
}

static void refuse_too_large(ea_call *call)
{
    ea_server_refuse(&call->refusal, 413, NULL, "request_too_large",
                     "the request body is larger than %zu bytes",
                     call->server->params.max_body_bytes);
}

/* What can be told from the request line and the headers alone. */
static void check_headers(ea_call *call, const char *url, uint64_t length)
{
    ea_http_error *e = &call->refusal;
    if (strcmp(call->method, "OPTIONS") == 0)
        return; /* a browser's question before the question carries no key */
    if (!ea_route_is_open(call->route) && !ea_server_key_ok(call->server, call->conn)) {
        ea_server_refuse(e, 401, NULL, "invalid_api_key",
                         header(call, "Authorization") || header(call, "X-Api-Key")
                             ? "incorrect API key"
                             : "no API key; send it as 'Authorization: Bearer KEY'");
    } else if (call->route == EA_ROUTE_NONE) {
        ea_server_refuse(e, 404, NULL, "unknown_url", "unknown request: %.20s %.200s", call->method,
                         url);
    } else if (!ea_route_allows(call->route, call->method)) {
        ea_server_refuse(e, 405, NULL, "method_not_allowed", "%.20s is not allowed here; use %s",
                         call->method, ea_route_allow(call->route));
    } else if (strcmp(call->method, "POST") == 0) {
        const char *type = header(call, "Content-Type"), *coding = header(call, "Content-Encoding");
        if (!type_is_fine(type))
            ea_server_refuse(e, 415, NULL, "unsupported_media_type",
                             "content type '%.80s': expected application/json", type);
        else if (coding && strcasecmp(coding, "identity") != 0)
            ea_server_refuse(e, 415, NULL, "unsupported_media_type",
                             "content encoding '%.40s' is not supported", coding);
        else if (length > call->server->params.max_body_bytes)
            refuse_too_large(call);
    }
}

static uint64_t content_length(ea_call *call)
{
    const char *text = header(call, MHD_HTTP_HEADER_CONTENT_LENGTH);
    uint64_t n = 0;
    for (; text && *text >= '0' && *text <= '9' && n < UINT64_MAX / 16; text++)
        n = n * 10 + (uint64_t)(*text - '0');
    return n;
}

/* First sight of a request: headers only. Refusals are decided here and usually sent after the body
 * was read and thrown away: a client that is still sending would not see an earlier answer. */
static enum MHD_Result begin_call(ea_server *s, struct MHD_Connection *conn, const char *url,
                                  const char *method, void **con_cls)
{
    ea_call *call = ea_calloc(1, sizeof *call);
    if (!call)
        return MHD_NO;
    *con_cls = call;
    const char *tail;
    call->server = s;
    call->conn = conn;
    call->method = method;
    call->start_ns = ea_now_ns();
    call->route = ea_route_find(url, &tail);
    if (!(call->tail = ea_strdup(tail)))
        return MHD_NO;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    call->fd = info ? info->connect_fd : -1;
    uint64_t length = content_length(call);
    check_headers(call, url, length);
    /* Answer at once where reading the body first would be a waste: the client asked whether to
     * send it, or it is absurdly long. */
    bool asks = header(call, MHD_HTTP_HEADER_EXPECT) != NULL;
    if (call->refusal.http && (asks || length / DISCARD_FACTOR > s->params.max_body_bytes))
        return ea_server_reply_error(call, &call->refusal);
    return MHD_YES;
}

/* Returning MHD_NO closes the connection: for clients that do not stop sending. */
static enum MHD_Result take_body(ea_call *call, const char *data, size_t *n)
{
    size_t max = call->server->params.max_body_bytes, got = *n;
    *n = 0;
    call->body_seen += got;
    if (call->refusal.http || strcmp(call->method, "POST") != 0)
        return call->body_seen / DISCARD_FACTOR > max ? MHD_NO : MHD_YES;
    if (call->body_seen > max) {
        ea_buf_done(&call->body);
        refuse_too_large(call);
        return MHD_YES;
    }
    ea_buf_add(&call->body, data, got);
    return MHD_YES;
}

/* libmicrohttpd's handler: called once with the headers, then with each piece of the body, once
 * without any at its end, and again each time that a suspended connection is resumed. */
static enum MHD_Result on_request(void *cls, struct MHD_Connection *conn, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n, void **con_cls)
{
    (void)version;
    ea_call *call = *con_cls;
    if (!call)
        return begin_call(cls, conn, url, method, con_cls);
    if (*n > 0)
        return take_body(call, data, n);
    if (call->phase == EA_PHASE_WAITING)
        return wait_for_answer(call);
    return dispatch(call);
}

/* A client's name for a log line: whole characters, nothing that could forge a line or drive a
 * terminal. */
static void printable(const char *name, char out[static 64])
{
    size_t n = strnlen(name, 63);
    memcpy(out, name, n);
    n -= ea_utf8_incomplete_tail(out, n);
    out[n] = '\0';
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

static void log_call(const ea_call *call)
{
    const ea_server *s = call->server;
    double ms = (double)(ea_now_ns() - call->start_ns) / 1e6;
    if (!s->params.log)
        return;
    if (!call->inbox) {
        ea_log_level level = call->http >= 400 ? EA_LOG_INFO : EA_LOG_DEBUG;
        ea_server_log(s, level, "%.10s %s %d %.1f ms", call->method, ea_route_name(call->route),
                      call->http, ms);
        return;
    }
    long long prompt = 0, cached = 0, generated = 0;
    for (int i = 0; i < call->n_choices; i++) {
        prompt += call->choices[i].usage.n_prompt;
        cached += call->choices[i].usage.n_cached;
        generated += call->choices[i].usage.n_generated;
    }
    bool whole = call->n_done == call->n_choices && !call->failed;
    char agent[64];
    printable(call->gen.agent ? call->gen.agent : "", agent);
    ea_server_log(s, call->failed ? EA_LOG_WARN : EA_LOG_INFO,
                  "POST %s %d %.1f ms, agent '%s', prompt %lld (cached %lld), generated %lld%s%s",
                  ea_route_name(call->route), call->http, ms, agent, prompt, cached, generated,
                  whole ? "" : ", incomplete: ",
                  whole ? "" : (call->failed ? call->error.text : "client gone"));
}

/* The last that libmicrohttpd tells of a request, also of one that never got its answer. The socket
 * is still ours here, so that the watcher never looks at somebody else's. */
static void on_completed(void *cls, struct MHD_Connection *conn, void **con_cls,
                         enum MHD_RequestTerminationCode why)
{
    (void)conn;
    (void)why;
    ea_server *s = cls;
    ea_call *call = *con_cls;
    if (!call)
        return;
    *con_cls = NULL;
    log_call(call);
    if (call->inbox && call->n_done < call->n_choices && !call->failed)
        EA_COUNT(s->counters.vanished, 1);
    ea_server_count_answer(s, call->route, call->http);
    ea_generate_end(call);
    ea_buf_done(&call->body);
    ea_buf_done(&call->out);
    ea_free(call->tail);
    ea_free(call);
}

static void on_connection(void *cls, struct MHD_Connection *conn, void **socket_context,
                          enum MHD_ConnectionNotificationCode what)
{
    (void)socket_context;
    ea_server *s = cls;
    bool opened = what == MHD_CONNECTION_NOTIFY_STARTED;
    atomic_fetch_add_explicit(&s->counters.connections, opened ? 1 : -1, memory_order_relaxed);
    const union MHD_ConnectionInfo *info =
        opened ? MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD) : NULL;
    int on = 1; /* a token must not wait for the next one */
    if (info)
        setsockopt(info->connect_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void log_mhd(void *cls, const char *fmt, va_list ap) EA_PRINTF(2, 0);
static void log_mhd(void *cls, const char *fmt, va_list ap)
{
    char line[256];
    vsnprintf(line, sizeof line, fmt, ap);
    line[strcspn(line, "\n")] = '\0';
    ea_server_log(cls, EA_LOG_DEBUG, "http: %s", line);
}

/* ---- life ---- */

void ea_server_params_default(ea_server_params *p)
{
    ea_request_params r;
    ea_request_params_default(&r);
    *p = (ea_server_params){.host = "127.0.0.1",
                            .port = 8080,
                            .sampling = r.sampling,
                            .max_tokens = r.max_tokens,
                            .n_threads = 4,
                            .max_connections = EA_MAX_CONNECTIONS,
                            .max_body_bytes = EA_MAX_BODY_BYTES,
                            .idle_timeout_s = 120,
                            .keepalive_ms = 5000,
                            .stall_ms = 10000};
}

/* Empty ones between commas are dropped: they would let everybody in. */
static ea_status split_keys(ea_server *s, ea_error *err)
{
    const char *at = s->params.api_key ? s->params.api_key : "";
    while (*at) {
        size_t n = strcspn(at, ",");
        if (n) {
            char **keys = ea_realloc(s->keys, (s->n_keys + 1) * sizeof *keys);
            if (keys)
                s->keys = keys;
            if (!keys || !(keys[s->n_keys] = ea_strndup(at, n)))
                return ea_fail(err, EA_ENOMEM, "out of memory");
            s->n_keys++;
        }
        at += n + (at[n] == ',');
    }
    return EA_OK;
}

/* The file's name without folder and ".gguf"; models made in memory have only a name. */
static char *id_from_path(const ea_model_info *info)
{
    const char *path = info->path && *info->path ? info->path : info->name;
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t n = strlen(base);
    if (n > 5 && strcasecmp(base + n - 5, ".gguf") == 0)
        n -= 5;
    return n ? ea_strndup(base, n) : ea_strdup("default");
}

static ea_status check_params(const ea_server_params *p, ea_error *err)
{
    if (!p->model || !p->engine || !p->host)
        return ea_fail(err, EA_EINVAL, "model, engine and host must be given");
    if (p->port < 0 || p->port > 65535)
        return ea_fail(err, EA_EINVAL, "port: must be 0 to 65535, got %d", p->port);
    if (p->n_threads < 1 || p->n_threads > 64)
        return ea_fail(err, EA_EINVAL, "HTTP threads: must be 1 to 64, got %d", p->n_threads);
    if (p->max_connections < 1 || p->idle_timeout_s < 1 || p->keepalive_ms < 1 || p->stall_ms < 1 ||
        p->max_body_bytes < 1)
        return ea_fail(err, EA_EINVAL, "limits and times of the server must be positive");
    return EA_OK;
}

ea_status ea_server_create(const ea_server_params *params, ea_server **out, ea_error *err)
{
    EA_TRY(check_params(params, err));
    ea_server *s = ea_calloc(1, sizeof *s);
    if (!s)
        return ea_fail(err, EA_ENOMEM, "out of memory");
    ea_status status;
    ea_model_info info;
    pthread_condattr_t attr;
    s->params = *params;
    s->watch_epoll = s->watch_wake = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->drained, &attr);
    pthread_condattr_destroy(&attr);
    ea_model_info_get(params->model, &info);
    s->n_vocab = info.n_vocab;
    s->created = ea_unix_seconds();
    s->path_id = id_from_path(&info);
    s->model_id = params->alias && *params->alias ? ea_strdup(params->alias) : id_from_path(&info);
    if (!s->path_id || !s->model_id)
        EA_TRY_GOTO(ea_fail(err, EA_ENOMEM, "out of memory"));
    EA_TRY_GOTO(split_keys(s, err));
    EA_TRY_GOTO(ea_history_create(params->model, &s->history, err));
    *out = s;
    return EA_OK;
fail:
    ea_server_destroy(s);
    return status;
}

/* Each connection needs a descriptor; leave some for everything else. */
static unsigned connection_limit(const ea_server *s)
{
    struct rlimit files;
    unsigned want = (unsigned)s->params.max_connections;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < want + 64ull)
        want = files.rlim_cur > 128 ? (unsigned)files.rlim_cur - 64 : 64;
    return EA_MAX(want, (unsigned)s->params.n_threads); /* it is shared out among the threads */
}

ea_status ea_server_start(ea_server *s, int *port, ea_error *err)
{
    int fd = -1, bound = 0;
    if (s->daemon)
        return ea_fail(err, EA_EINVAL, "the server is started already");
    EA_TRY(ea_server_listen(s->params.host, s->params.port, &fd, &bound, err));
    s->stopping = false;
    ea_status status = ea_watcher_start(s, err);
    if (status != EA_OK) {
        close(fd);
        return status;
    }
    /* poll and not epoll: in epoll mode (edge-triggered) libmicrohttpd 0.9.75 now and then misses
     * an end of input that arrives together with the last bytes, and keeps the connection until its
     * idle time is over. Sleeping connections are not in the polled set. */
    unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    unsigned n_threads = (unsigned)s->params.n_threads;
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, log_mhd, s,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_CONNECTION_LIMIT,
        connection_limit(s), MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->params.idle_timeout_s,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
        n_threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, n_threads, MHD_OPTION_END);
    if (!s->daemon) {
        close(fd);
        ea_watcher_stop(s);
        return ea_fail(err, EA_EIO, "cannot start the HTTP threads");
    }
    *port = bound;
    return EA_OK;
}

void ea_server_stop(ea_server *s)
{
    if (!s->daemon)
        return;
    int fd = MHD_quiesce_daemon(s->daemon); /* new clients are refused from here on */
    ea_watcher_cancel_all(s, STOP_GRACE_MS);
    /* Every suspended connection was resumed, and none sleeps any more once `gone` is set:
     * libmicrohttpd would abort the process otherwise. */
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
    if (fd != MHD_INVALID_SOCKET)
        close(fd);
    ea_watcher_stop(s);
}

void ea_server_destroy(ea_server *s)
{
    if (!s)
        return;
    ea_server_stop(s);
    ea_history_destroy(s->history);
    for (size_t i = 0; i < s->n_keys; i++)
        ea_free(s->keys[i]);
    ea_free(s->keys);
    ea_free(s->model_id);
    ea_free(s->path_id);
    pthread_cond_destroy(&s->drained);
    pthread_mutex_destroy(&s->lock);
    ea_free(s);
}
