/* fake_server.c: the real HTTP server over the fake engine, as a program for the Python tests.
 * Prints "listening PORT"; on SIGTERM it stops and prints how long that took and what still ran. */
#include "fake.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "server/server.h"

static void log_line(void *user, ea_log_level level, const char *line)
{
    (void)user;
    fprintf(stderr, "%d %s\n", (int)level, line);
}

static void parse_options(int argc, char **argv, ea_server_params *p, ea_engine_params *e)
{
    struct {
        const char *name;
        int *value;
    } numbers[] = {
        {"--parallel", &e->n_parallel}, {"--queue", &e->n_queue},
        {"--ctx", &e->n_ctx},           {"--idle", &p->idle_timeout_s},
        {"--stall", &p->stall_ms},      {"--keepalive", &p->keepalive_ms},
        {"--threads", &p->n_threads},   {"--connections", &p->max_connections},
        {"--port", &p->port},
    };
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--api-key") == 0)
            p->api_key = value;
        else if (strcmp(name, "--alias") == 0)
            p->alias = value;
        else if (strcmp(name, "--host") == 0)
            p->host = value;
        else if (strcmp(name, "--max-body") == 0)
            p->max_body_bytes = strtoul(value, NULL, 10);
        for (size_t k = 0; k < EA_ARRAY_LEN(numbers); k++)
            if (strcmp(name, numbers[k].name) == 0)
                *numbers[k].value = (int)strtol(value, NULL, 10);
    }
}

int main(int argc, char **argv)
{
    ea_server_params p;
    ea_engine_params e = {.n_parallel = 4, .n_queue = 1000, .n_ctx = 200000};
    ea_server *server;
    ea_error err = {0};
    sigset_t set;
    int port, signal_number;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    ea_server_params_default(&p);
    p.port = 0;
    p.log = log_line;
    parse_options(argc, argv, &p, &e);
    p.engine = fake_engine_create(&e);
    p.model = (const ea_model *)&e; /* only passed around */
    if (ea_server_create(&p, &server, &err) != EA_OK ||
        ea_server_start(server, &port, &err) != EA_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("listening %d\n", port);
    fflush(stdout);
    sigwait(&set, &signal_number);
    uint64_t start = ea_now_ns();
    ea_server_stop(server);
    double ms = (double)(ea_now_ns() - start) / 1e6;
    ea_server_destroy(server);
    ea_engine_destroy(p.engine);
    printf("stopped %.0f\n", ms);
    return 0;
}
