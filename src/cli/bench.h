/* bench.h: what the files of the bench command share. Times are taken in the engine's callbacks
 * (one thread, in order) and read by the main thread once the requests are done. */
#ifndef EA_CLI_BENCH_H
#define EA_CLI_BENCH_H

#include "cli/cli.h"

typedef struct ea_bench {
    const ea_options *o;
    const ea_model *model;
    ea_model_info info;
    ea_engine *engine; /* of the current configuration */
    int n_batch, n_threads;
    uint64_t random; /* state of the prompt generator */
    ea_waiter waiter;
    int n_open; /* requests not done; guarded by the waiter */
} ea_bench;

/* The part of a batched test in which all sequences are decoding. Engine thread only, until all
 * requests are done. */
typedef struct ea_bench_window {
    int n_waiting; /* sequences without a token yet */
    int n_each;    /* tokens that each is to generate inside */
    uint64_t start, end;
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

/* A result of the llama-batched-bench kind. */
typedef struct ea_batched_row {
    int pp, tg, pl, n_kv_max, n_batch, n_threads;
    double t_pp, speed_pp, t_tg, speed_tg; /* seconds, tokens per second */
} ea_batched_row;

void ea_bench_print_head(const ea_bench *b, bool batched);
void ea_bench_print_row(const ea_bench *b, const ea_bench_row *row, bool is_first);
void ea_bench_print_batched(const ea_bench *b, const ea_batched_row *row, bool is_first);
void ea_bench_print_tail(const ea_bench *b);

/* bench_batched.c: all tests of --npp, --ntg, --npl. An exit status. */
int ea_bench_batched(ea_bench *b);

#endif
