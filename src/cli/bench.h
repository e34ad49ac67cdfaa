/* bench.h: what the files of the bench command share. Times are taken in the engine's callbacks
 * (one thread, in order) and read by the main thread once the requests are done. */
#ifndef EA_CLI_BENCH_H
#define EA_CLI_BENCH_H

#include "cli/records.h"

typedef struct ea_bench {
    const ea_options *o;
    const ea_model *model;
    ea_model_info info;
    ea_engine *engine; /* of the current configuration */
    int n_batch, n_threads;
    uint64_t random; /* state of the prompt generator */
    ea_waiter waiter;
    int n_open; /* requests not done; guarded by the waiter */
    ea_records records;
} ea_bench;

struct ea_bench_request;

/* The part of a batched test in which all sequences are decoding: until each has generated n_each
 * tokens, or, where stamps is given, until n_steps + 1 steps have ended. Engine thread only, until
 * all requests are done. */
typedef struct ea_bench_window {
    int n_waiting; /* sequences without a token yet */
    int n_each;    /* tokens that each is to generate inside */
    uint64_t start, end;
    uint64_t *stamps; /* room for n_steps + 1: when the marker got its tokens; or NULL */
    int n_steps, n_stamps;
    const struct ea_bench_request *marker; /* the last sequence to begin */
} ea_bench_window;

/* One request's clock; nanoseconds of ea_now_ns, 0 while unknown. */
typedef struct ea_bench_request {
    ea_bench *bench;
    ea_request *request;
    uint64_t started, first, last, done; /* left the queue, first and last token, end */
    ea_finish finish;
    char error[EA_ERROR_TEXT];
    ea_usage usage;
    ea_bench_window *window; /* of a batched test's second half, else NULL */
    int n_counted;           /* tokens inside the window */
} ea_bench_request;

/* A configuration's engine: need = longest timeline, n_pool = KV tokens in all. An exit status. */
int ea_bench_open(ea_bench *b, int n_threads, int n_batch, int n_parallel, int need, int n_pool);
void ea_bench_close(ea_bench *b);
/* n random tokens (end tokens excepted), unlike all before them. */
void ea_bench_fill(ea_bench *b, int32_t *tokens, size_t n);
/* Submit; max_tokens as in ea_request_params. An exit status. */
int ea_bench_submit(ea_bench *b, ea_bench_request *r, const int32_t *tokens, size_t n,
                    int max_tokens);
/* Wait for all requests submitted; an exit status (a signal cancels them, an error is printed). */
int ea_bench_wait(ea_bench *b, ea_bench_request *requests, int n);

/* A result of the llama-bench kind. */
typedef struct ea_bench_row {
    int n_prompt, n_gen, n_depth, n_batch, n_threads, n_samples;
    int64_t time; /* Unix seconds at its start */
    double *ns;   /* n_samples, owned */
    double *ts;   /* tokens per second of each, owned */
} ea_bench_row;

/* A result of the llama-batched-bench kind: n_samples of each, in seconds and tokens a second. */
typedef struct ea_batched_row {
    int pp, tg, pl, n_kv_max, n_batch, n_threads, n_samples;
    double *t_pp, *speed_pp, *t_tg, *speed_tg, *t, *speed;
} ea_batched_row;

void ea_bench_print_head(ea_bench *b);
void ea_bench_print_row(ea_bench *b, const ea_bench_row *row);
void ea_bench_print_batched_head(ea_bench *b, int n_samples);
void ea_bench_print_batched(ea_bench *b, const ea_batched_row *row);
void ea_bench_print_tail(ea_bench *b);

/* What all commands that measure a model do first and last: load it, run `run`, free it. */
int ea_bench_main(const ea_options *o, int (*run)(ea_bench *b));

/* bench_batched.c: all tests of --npp, --ntg, --npl. An exit status. */
int ea_bench_batched(ea_bench *b);

#endif
