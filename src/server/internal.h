/* internal.h: the objects that the files of server/ share.
 *
 * Threads. libmicrohttpd's threads each run their own connections; everything in a call belongs to
 * the thread of its connection. The engine thread reaches only a call's inbox, under the inbox's
 * lock. The watcher thread finds calls through the server's list, under the server's lock.
 * Lock order: server -> inbox -> (libmicrohttpd's own). No engine function is called with an
 * inbox's lock held, since the engine may hold its own while it calls us back. */
#ifndef EA_SERVER_INTERNAL_H
#define EA_SERVER_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/limits.h"
#include "server/history.h"
#include "server/json_scan.h"
#include "server/server.h"

typedef struct ea_call ea_call;

/* ---- errors for clients (errors.c) ---- */

typedef struct ea_http_error {
    int http;            /* 400 ... 503; 0 while there is none */
    const char *type;    /* OpenAI's: invalid_request_error, server_error, ... */
    const char *code;    /* or NULL */
    char param[48];      /* field at fault, or "" */
    int n_prompt, n_ctx; /* context_length_exceeded: both lengths; else 0 */
    int retry_after_s;   /* 0: no header */
    char text[EA_ERROR_TEXT];
} ea_http_error;

/* Fill *e unless it holds an error already; returns EA_EINVAL. param may be NULL. */
ea_status ea_server_refuse(ea_http_error *e, int http, const char *param, const char *code,
                           const char *fmt, ...) EA_PRINTF(5, 6);
/* A status of the engine or the text side as an answer for the client. */
ea_status ea_server_refuse_status(ea_http_error *e, ea_status status, const char *text);
/* {"error":{...}} as OpenAI writes it. */
void ea_server_error_json(ea_buf *out, const ea_http_error *e);

/* ---- inbox: what the engine has said about a call's requests (inbox.c) ---- */

typedef enum ea_gone {
    EA_GONE_NOT = 0,
    EA_GONE_CLIENT, /* the connection was closed by the other side */
    EA_GONE_STOP,   /* the server stops */
} ea_gone;

typedef struct ea_inbox ea_inbox;

typedef struct ea_inbox_slot { /* `user` of one engine request */
    ea_inbox *inbox;
    int choice;
} ea_inbox_slot;

/* Shared by the connection's thread, the engine thread and the watcher; freed with the last
 * reference: one of the connection, one of each submitted request until its DONE. */
struct ea_inbox {
    pthread_mutex_t lock;
    atomic_int refs;
    bool wake_each;  /* streams: wake at every event; else only when all are done */
    bool keep_empty; /* tokens without text matter (log-probabilities are asked for) */
    /* All below under the lock. */
    ea_buf records;     /* events not taken yet, see inbox.c */
    int n_live;         /* requests whose DONE has not come */
    bool closed;        /* the connection is done with us: conn is dangling */
    bool suspended;     /* the connection sleeps; whoever clears this resumes it */
    bool keepalive;     /* the watcher asks for a comment line */
    uint64_t asleep_ns; /* when it was suspended */
    ea_gone gone;
    struct MHD_Connection *conn;
    ea_inbox_slot slots[];
};

ea_inbox *ea_inbox_create(struct MHD_Connection *conn, int n_choices, bool wake_each,
                          bool keep_empty);
void ea_inbox_ref(ea_inbox *inbox);
void ea_inbox_unref(ea_inbox *inbox);
/* ea_event_fn; user is a slot. Never blocks. */
bool ea_inbox_on_event(void *user, const ea_event *event);
/* A submit failed after the slot was counted: take it back. */
void ea_inbox_forget(ea_inbox *inbox);

typedef enum ea_inbox_state {
    EA_INBOX_RECORDS, /* moved into *records */
    EA_INBOX_ASLEEP,  /* nothing there; the connection is suspended now */
    EA_INBOX_KEEPALIVE,
    EA_INBOX_GONE, /* *gone says why */
} ea_inbox_state;

/* On the connection's thread: take what is there, or suspend the connection until there is more
 * (or, without wake_each, until all requests are done). */
ea_inbox_state ea_inbox_take(ea_inbox *inbox, ea_buf *records, ea_gone *gone);
/* Decode the record at *at and move on; false at the end. Pointers lead into records. */
bool ea_inbox_next(const ea_buf *records, size_t *at, ea_event *event, int *choice);
/* Mark and resume; first reason wins. Any thread that can be sure of the inbox. */
void ea_inbox_set_gone(ea_inbox *inbox, ea_gone gone);
/* Ask for a comment line if the connection sleeps since before then_ns. */
void ea_inbox_keepalive(ea_inbox *inbox, uint64_t then_ns);
/* The connection goes away: no resume after this; later events are dropped, their requests
 * cancelled. */
void ea_inbox_close(ea_inbox *inbox);

/* ---- what a generation request asks for (request_parse.c) ---- */

typedef struct ea_gen {
    ea_request_params request; /* the parts common to all choices */
    ea_logit_bias *bias;
    char **stops;
    char *agent, *role; /* or NULL */
    bool stream, include_usage;
    int n;
    bool logprobs;
    int n_top; /* 0..20 shown */
} ea_gen;

/* Read the fields that both endpoints share. Every failure names field and value. */
ea_status ea_gen_parse(ea_call *call, ea_gen *gen, ea_http_error *e);
void ea_gen_done(ea_gen *gen);

/* Readers of single fields: absent or null leaves *out alone. */
ea_status ea_field_number(const ea_json_object *o, const char *name, double min, double max,
                          double *out, ea_http_error *e);
ea_status ea_field_int(const ea_json_object *o, const char *name, int64_t min, int64_t max,
                       int64_t *out, ea_http_error *e);
ea_status ea_field_bool(const ea_json_object *o, const char *name, bool *out, ea_http_error *e);
/* *out is the caller's, freed by ea_free; NUL bytes are refused. */
ea_status ea_field_string(const ea_json_object *o, const char *name, char **out, ea_http_error *e);
/* The value as the client wrote it, of the given type ('{' or '['), NUL-terminated copy. */
ea_status ea_field_raw(const ea_json_object *o, const char *name, char type, char **out,
                       ea_http_error *e);
/* Refuse with "field 'x': must be <want>, got <value>". */
ea_status ea_field_wrong(const ea_json_member *m, const char *want, ea_http_error *e);

/* ---- one HTTP request (server.c, routes.c, generate.c) ---- */

typedef enum ea_route_id {
    EA_ROUTE_CHAT,
    EA_ROUTE_COMPLETIONS,
    EA_ROUTE_MODELS,
    EA_ROUTE_MODEL,
    EA_ROUTE_HEALTH,
    EA_ROUTE_METRICS,
    EA_ROUTE_AGENTS,
    EA_ROUTE_PROPS,
    EA_ROUTE_NONE, /* unknown path */
    EA_N_ROUTES,
} ea_route_id;

/* One choice of the answer. */
typedef struct ea_choice {
    ea_request *request;
    ea_chat_parser *parser;        /* chat */
    ea_buf text, reasoning, calls; /* not streamed: collected answer */
    ea_buf raw;                    /* chat: all that the model wrote */
    ea_buf logprobs;               /* entries "{..},{..}": of the answer, or not sent yet */
    ea_buf lp_tokens, lp_values, lp_top, lp_offsets; /* completions form, the same */
    size_t n_chars; /* completions: characters before the next token */
    int n_calls;
    bool cut; /* ended by us after its only allowed call */
    bool done;
    const char *finish; /* finish_reason, static */
    ea_usage usage;
} ea_choice;

typedef struct ea_prompt {
    int32_t *tokens; /* ea_free */
    size_t n_tokens;
    char *text;   /* chat: as the template rendered it (ea_free), or NULL */
    ea_buf echo;  /* completions with echo: its text */
    bool has_bos; /* tokens[0] was added by us */
} ea_prompt;

typedef enum ea_phase {
    EA_PHASE_BODY,     /* headers seen, body coming */
    EA_PHASE_WAITING,  /* generating, answer not begun */
    EA_PHASE_ANSWERED, /* a response is queued */
} ea_phase;

/* What an endpoint does with events; both write into call->out. */
typedef struct ea_endpoint {
    /* Before the first event of a stream. */
    void (*begin)(ea_call *call);
    void (*event)(ea_call *call, int choice, const ea_event *event);
    /* The body of an answer that is not streamed. */
    void (*body)(ea_call *call);
    const char *stream_object, *object, *id_prefix;
} ea_endpoint;

/* Owned by the thread of its connection; next/prev, watch_id, requests under the server's lock
 * while it is listed. */
struct ea_call {
    ea_server *server;
    struct MHD_Connection *conn;
    ea_route_id route;
    const char *method; /* libmicrohttpd's, valid during the request */
    char *tail;         /* what follows the prefix in /v1/models/{id} */
    ea_phase phase;
    ea_buf body;
    uint64_t body_seen;
    ea_http_error refusal; /* decided before the body was read */
    uint64_t start_ns;
    int http; /* status sent */

    /* Generation. */
    ea_json_object fields;
    ea_gen gen;
    const ea_endpoint *endpoint;
    ea_prompt *prompts;
    size_t n_prompts;
    ea_choice *choices; /* prompts * n */
    int n_choices, n_done;
    bool echo;     /* completions: the prompt is part of the answer */
    bool one_call; /* chat: parallel_tool_calls is false */
    char id[40];
    int64_t created;
    ea_inbox *inbox;
    ea_buf out; /* SSE bytes from out_at on are not sent yet; or the body */
    size_t out_at;
    bool ended, failed;  /* everything is in out; with an error */
    ea_http_error error; /* of a failed one */

    int fd;
    bool entered;      /* counted in n_entered */
    uint64_t watch_id; /* 0: not listed */
    ea_call *next, *prev;
};

/* ---- the server ---- */

enum { EA_N_CODES = 13, EA_N_TTFT = 12 };

/* Counters behind /metrics; relaxed, each stands alone. */
typedef struct ea_server_counters {
    atomic_uint_least64_t answers[EA_N_ROUTES][EA_N_CODES];
    atomic_uint_least64_t prompt_us, generate_us, queue_us, prompt_tokens, generate_tokens;
    atomic_uint_least64_t ttft[EA_N_TTFT + 1], ttft_us;
    atomic_uint_least64_t vanished; /* clients gone before their answer */
    atomic_int connections;
} ea_server_counters;

struct ea_server {
    ea_server_params params;
    char *model_id, *path_id; /* alias or file name; file name */
    char **keys;
    size_t n_keys;
    int64_t created;
    int n_vocab;
    struct MHD_Daemon *daemon; /* NULL while stopped */
    pthread_t watcher;
    bool watching;
    int watch_epoll, watch_wake;
    ea_server_counters counters;

    ea_history *history;

    pthread_mutex_t lock; /* the list below */
    pthread_cond_t drained;
    ea_call *calls;
    int n_entered; /* calls between their body and their end, listed or not */
    uint64_t next_watch_id;
    bool stopping;
};

#define EA_COUNT(counter, n) atomic_fetch_add_explicit(&(counter), (n), memory_order_relaxed)

void ea_server_log(const ea_server *s, ea_log_level level, const char *fmt, ...) EA_PRINTF(3, 4);

/* routes.c */
ea_route_id ea_route_find(const char *url, const char **tail);
const char *ea_route_name(ea_route_id route);
const char *ea_route_allow(ea_route_id route);
bool ea_route_allows(ea_route_id route, const char *method);
bool ea_route_is_open(ea_route_id route); /* no key needed */
/* Answers of the GET routes into call->out; *type is the content type. */
ea_status ea_route_get(ea_call *call, const char **type, ea_http_error *e);
bool ea_server_key_ok(const ea_server *s, struct MHD_Connection *conn);

/* listen.c */
ea_status ea_server_listen(const char *host, int port, int *fd, int *bound, ea_error *err);

/* metrics.c */
void ea_server_metrics(ea_server *s, ea_buf *out);
void ea_server_count_answer(ea_server *s, ea_route_id route, int http);
void ea_server_count_usage(ea_server *s, const ea_usage *usage);

/* watcher.c */
ea_status ea_watcher_start(ea_server *s, ea_error *err);
void ea_watcher_stop(ea_server *s);
/* A call begins to generate: stopping waits for it to end. False: the server stops already. */
bool ea_watcher_enter(ea_call *call);
/* List a call whose requests are submitted; false: the server stops. */
bool ea_watcher_add(ea_call *call);
void ea_watcher_leave(ea_call *call); /* unlists; fine for calls that never entered */
/* Cancel and wake every listed call, and wait up to timeout_ms for all that entered to end. */
void ea_watcher_cancel_all(ea_server *s, int timeout_ms);

/* chat.c, completions.c: read the body (call->fields is filled) and set gen, endpoint, prompts. */
ea_status ea_server_parse_chat(ea_call *call, ea_http_error *e);
ea_status ea_server_parse_completions(ea_call *call, ea_http_error *e);
void ea_server_put_float(ea_buf *out, float value);
void ea_server_token_text(const ea_call *call, int32_t token, ea_buf *out);

/* Field "logprobs" and its like were read: set what the engine is asked for. */
void ea_gen_want_logprobs(ea_gen *gen, int n_top);

/* generate.c: from the body to submitted requests; then the answers. */
ea_status ea_generate_start(ea_call *call, ea_http_error *e);
/* Room for n_prompts prompts and their choices. */
ea_status ea_generate_alloc(ea_call *call, size_t n_prompts, ea_http_error *e);
/* Cancel what still runs; the answer is an error or cut. */
void ea_generate_cancel(ea_call *call);
/* Hand records to the endpoint; sets call->failed / ended. */
void ea_generate_feed(ea_call *call, const ea_buf *records);
void ea_generate_end(ea_call *call); /* cancels what still runs; frees everything */
/* Shared pieces of the answers. */
void ea_server_put_head(ea_call *call, ea_buf *out, const char *object);
void ea_server_put_usage(const ea_call *call, ea_buf *out);
void ea_server_put_timings(const ea_call *call, ea_buf *out);
/* Mark a choice as finished by a DONE event; false: the call failed (call->error). */
bool ea_generate_finish(ea_call *call, int choice, const ea_event *event);

/* stream.c */
enum MHD_Result ea_sse_start(ea_call *call);
/* "data: " + the rest that the caller adds + ea_sse_chunk_end. */
void ea_sse_chunk_begin(ea_call *call);
void ea_sse_chunk_end(ea_call *call);

/* server.c */
enum MHD_Result ea_server_reply(ea_call *call, int http, const char *type, ea_buf *body);
enum MHD_Result ea_server_reply_error(ea_call *call, const ea_http_error *e);
void ea_server_common_headers(struct MHD_Response *response);

#endif
