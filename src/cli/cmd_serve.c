/* cmd_serve.c: model, engine and HTTP server until a signal. The main thread only waits; the
 * server and the engine have their own. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/cli.h"
#include "server/server.h"

enum { NAP_NS = 50 * 1000 * 1000 }; /* a signal interrupts it; this bounds the race before it */

static void fill_params(const ea_options *o, const ea_model *model, ea_engine *engine,
                        const char *jinja, ea_server_params *p)
{
    ea_server_params_default(p);
    p->model = model;
    p->engine = engine;
    p->host = ea_opt_text(o, EA_OPT_HOST);
    p->port = (int)ea_opt_int(o, EA_OPT_PORT);
    p->alias = ea_opt_text(o, EA_OPT_ALIAS);
    p->api_key = ea_opt_text(o, EA_OPT_API_KEY);
    p->chat_template = jinja;
    p->strict_tools = strcmp(ea_opt_text(o, EA_OPT_TOOL_PARSE), "strict") == 0;
    ea_cli_sampling(o, &p->sampling);
    p->max_tokens = (int)ea_opt_int(o, EA_OPT_N_PREDICT);
    p->n_threads = (int)ea_opt_int(o, EA_OPT_THREADS_HTTP);
    p->log = ea_cli_log;
    p->log_user = (void *)o;
}

/* Serve until a signal; an exit status. */
static int serve(const ea_options *o, ea_server *server)
{
    ea_error err = {0};
    int port;
    if (ea_server_start(server, &port, &err) != EA_OK)
        return ea_cli_error(o, EA_CLI_FAILED, "%s", err.text);
    const char *host = ea_opt_text(o, EA_OPT_HOST);
    bool v6 = strchr(host, ':') != NULL;
    printf("listening on http://%s%s%s:%d\n", v6 ? "[" : "", host, v6 ? "]" : "", port);
    fflush(stdout);
    while (!ea_cli_signal())
        ea_sleep_ns(NAP_NS);
    ea_server_stop(server);
    return EA_CLI_DONE;
}

int ea_cli_serve(const ea_options *o)
{
    ea_model *model = NULL;
    ea_engine *engine = NULL;
    ea_server *server = NULL;
    ea_error err = {0};
    ea_engine_params params;
    ea_server_params server_params;
    char *jinja;
    int result = ea_cli_chat_template(o, &jinja);
    if (result != EA_CLI_DONE)
        return result;
    ea_cli_signals_catch();
    result = ea_cli_load(o, false, &model);
    if (result != EA_CLI_DONE) {
        if (ea_cli_signal())
            result = EA_CLI_DONE; /* asked to end before it began: the usual end of a server */
        goto done;
    }
    ea_cli_engine_params(o, &params);
    params.n_parallel = (int)ea_opt_int(o, EA_OPT_PARALLEL);
    params.n_ctx_agent = (int)ea_opt_int(o, EA_OPT_CTX_AGENT);
    params.n_queue = (int)ea_opt_int(o, EA_OPT_QUEUE);
    if (ea_engine_create(model, &params, &engine, &err) != EA_OK) {
        result = ea_cli_error(o, EA_CLI_FAILED, "%s", err.text);
        goto done;
    }
    fill_params(o, model, engine, jinja, &server_params);
    ea_status status = ea_server_create(&server_params, &server, &err);
    if (status != EA_OK)
        result =
            ea_cli_error(o, status == EA_EINVAL ? EA_CLI_USAGE : EA_CLI_FAILED, "%s", err.text);
    else
        result = serve(o, server);
done:
    ea_server_destroy(server);
    ea_engine_destroy(engine);
    ea_model_destroy(model);
    ea_free(jinja);
    return result;
}
