/* server.h: the HTTP server: OpenAI-compatible routes over one engine. It reaches the engine only
 * through the public header, starts its own threads and knows nothing of the command line, of
 * signals or of the process.
 *
 * Life: create -> start (listens, returns at once) -> stop -> destroy, all from one thread. */
#ifndef EA_SERVER_SERVER_H
#define EA_SERVER_SERVER_H

#include "base/error.h"

typedef struct ea_server ea_server;

/* Strings and objects are borrowed until ea_server_destroy; model and engine must outlive it. */
typedef struct ea_server_params {
    const ea_model *model;
    ea_engine *engine;
    const char *host;  /* name or address to listen on; default "127.0.0.1" */
    int port;          /* 0 = any free one; default 8080 */
    const char *alias; /* model id shown to clients; NULL: the file's name without ".gguf" */
    /* NULL or "": no key is asked for. Else one or more keys, separated by commas; a client sends
     * one of them as "Authorization: Bearer KEY" or "X-Api-Key: KEY". */
    const char *api_key;
    const char *chat_template; /* Jinja source instead of the model's own, or NULL */
    bool strict_tools;         /* only the template's own call format is a call */
    ea_sampling sampling;      /* for what a request leaves out; logit_bias is not looked at */
    int max_tokens;            /* the same; -1 = until the timeline is full */
    int n_threads;             /* HTTP threads, 1..64; default 4 */
    int max_connections;       /* open at once; default EA_MAX_CONNECTIONS */
    size_t max_body_bytes;     /* larger bodies get 413; default EA_MAX_BODY_BYTES */
    int idle_timeout_s;        /* connections with no traffic are closed; default 120 */
    int keepalive_ms;          /* silence after which a stream gets a comment line; default 5000 */
    int stall_ms;              /* engine without progress for this long: /health 503; 10000 */
    ea_log_fn log;             /* one line a request (info), trouble (warn); or NULL */
    void *log_user;
} ea_server_params;

void ea_server_params_default(ea_server_params *params);

/* Errors: EA_EINVAL names the parameter, EA_ENOMEM. Nothing listens yet. */
ea_status ea_server_create(const ea_server_params *params, ea_server **out,
                           ea_error *err) EA_MUST_CHECK;

/* Listen and serve on the server's own threads; *port is the one bound. EA_EIO: address in use or
 * not ours, the text says which. */
ea_status ea_server_start(ea_server *server, int *port, ea_error *err) EA_MUST_CHECK;

/* Stop listening, cancel what runs (streams get an error event, waiting clients 503), close every
 * connection. Returns in well under a second, whatever clients and engine do. May be called when
 * not started, and again. */
void ea_server_stop(ea_server *server);

void ea_server_destroy(ea_server *server); /* stops first; NULL is fine */

#endif
