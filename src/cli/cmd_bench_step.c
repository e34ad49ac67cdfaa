/* cmd_bench_step.c: T(n), the time of an engine step in which n sequences generate one token each.
 *
 * All n sequences start from prompts of their own; once the last has its first token, the times
 * between the tokens of one of them are those of whole steps of n rows. The prompts of a sequence
 * are the same at every n, so that all but the new sequence's are found in the cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/plot.h"

/* Sequences admitted one step after another have this many tokens to wait for the others. */
enum { SLACK = 64, MAX_POINTS = 1000 };

typedef struct point {
    int n, n_threads, depth, n_steps;
    double ms, least_ms; /* median and shortest */
    double ratio;        /* to the first point */
    double speed, gb_s;  /* tokens a second; bytes of the model's tensors a second */
    const ea_bench *bench;
} point;

typedef struct run {
    ea_bench *b;
    int depth, n_steps;
    int32_t *tokens; /* the sequences' prompts, depth + 1 tokens each */
    ea_bench_request *requests;
    uint64_t *stamps;
    double *ms;
} run;

static void fill(ea_record *f, const void *arg)
{
    const point *p = arg;
    ea_record_text(f, "build_version", ea_version());
    ea_record_text(f, "cpu_info", ea_cpu_name());
    ea_record_text(f, "model_filename", p->bench->info.path);
    ea_record_text(f, "model_type", p->bench->info.type);
    ea_record_number(f, "model_size", (double)p->bench->info.n_bytes, 0);
    ea_record_number(f, "n_threads", p->n_threads, 0);
    ea_record_number(f, "n_depth", p->depth, 0);
    ea_record_number(f, "n_steps", p->n_steps, 0);
    ea_record_number(f, "rows", p->n, 0);
    ea_record_number(f, "ms", p->ms, 4);
    ea_record_number(f, "least_ms", p->least_ms, 4);
    ea_record_number(f, "ratio", p->ratio, 4);
    ea_record_number(f, "tokens_s", p->speed, 3);
    ea_record_number(f, "gb_s", p->gb_s, 3);
}

static const char head[] = "| rows |    T(n) ms |   least ms |  ratio |        t/s |    GB/s |\n"
                           "| ---: | ---------: | ---------: | -----: | ---------: | ------: |\n";

static void put_point(ea_bench *b, const point *p)
{
    char line[160];
    snprintf(line, sizeof line, "| %4d | %10.3f | %10.3f | %6.2f | %10.2f | %7.2f |", p->n, p->ms,
             p->least_ms, p->ratio, p->speed, p->gb_s);
    ea_records_put(&b->records, fill, p, line);
}

/* n_steps steps of n rows. */
static int measure(run *r, int n, point *out)
{
    ea_bench *b = r->b;
    ea_bench_window window = {.n_waiting = n, .stamps = r->stamps, .n_steps = r->n_steps};
    size_t stride = (size_t)r->depth + 1;
    int result = EA_CLI_DONE, submitted = 0;
    for (; submitted < n && result == EA_CLI_DONE; submitted++) {
        r->requests[submitted] = (ea_bench_request){.window = &window};
        result = ea_bench_submit(b, &r->requests[submitted], r->tokens + (size_t)submitted * stride,
                                 stride, r->n_steps + SLACK);
    }
    int waited = ea_bench_wait(b, r->requests, submitted);
    if (result != EA_CLI_DONE || waited != EA_CLI_DONE)
        return result != EA_CLI_DONE ? result : waited;
    if (window.n_stamps <= r->n_steps)
        return ea_cli_error(b->o, EA_CLI_FAILED,
                            "the %d sequences did not all generate at the same time", n);
    for (int i = 0; i < r->n_steps; i++)
        r->ms[i] = (double)(r->stamps[i + 1] - r->stamps[i]) / 1e6;
    double ms = ea_median(r->ms, r->n_steps); /* sorts */
    *out = (point){.n = n,
                   .n_threads = b->n_threads,
                   .depth = r->depth,
                   .n_steps = r->n_steps,
                   .ms = ms,
                   .least_ms = r->ms[0],
                   .speed = n / ms * 1e3,
                   .gb_s = (double)b->info.n_bytes / ms * 1e-6,
                   .bench = b};
    return EA_CLI_DONE;
}

static int write_svg(const ea_bench *b, const point *points, int n, const char *path)
{
    char title[256], subtitle[512];
    double x[MAX_POINTS], ms[MAX_POINTS], speed[MAX_POINTS], alone[2];
    ea_buf svg = EA_BUF_INIT;
    ea_file_out file;
    ea_error err = {0};
    for (int i = 0; i < n; i++)
        x[i] = points[i].n, ms[i] = points[i].ms, speed[i] = points[i].speed;
    double ends[2] = {0, x[n - 1]};
    alone[0] = 0, alone[1] = x[n - 1] * ms[0] / x[0];
    const ea_plot_series times[] = {
        {"T(n)", x, ms, n, false},
        {points[0].n == 1 ? "n T(1): one after the other" : "in proportion to the first", ends,
         alone, 2, true}};
    const ea_plot_series speeds[] = {{"n / T(n)", x, speed, n, false}};
    const ea_plot_panel panels[] = {
        {"sequences in the step, n", "milliseconds of a step", times, 2},
        {"sequences in the step, n", "tokens a second, all sequences", speeds, 1}};
    snprintf(title, sizeof title, "%s: one step of n sequences", b->info.type);
    snprintf(subtitle, sizeof subtitle,
             "%s, %d thread%s; %d tokens before; median of %d steps; EdgeAgent %s", ea_cpu_name(),
             b->n_threads, b->n_threads == 1 ? "" : "s", points[0].depth, points[0].n_steps,
             ea_version());
    ea_plot_svg(&(ea_plot){title, subtitle, panels, 2}, &svg);
    ea_status status =
        svg.failed ? ea_fail(&err, EA_ENOMEM, "out of memory") : ea_file_create(path, &file, &err);
    if (status == EA_OK) {
        ea_file_write(&file, svg.data, svg.n, &err);
        status = ea_file_commit(&file, &err);
    }
    ea_buf_done(&svg);
    return status == EA_OK ? EA_CLI_DONE : ea_cli_error(b->o, EA_CLI_FAILED, "--svg: %s", err.text);
}

static int compare(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* The row counts, ascending and each once. */
static int sorted_rows(const ea_bench *b, int rows[MAX_POINTS])
{
    const ea_option_value *v = ea_opt_list(b->o, EA_OPT_STEP_ROWS);
    int given = (int)EA_MIN(v->n, (size_t)MAX_POINTS), n = 0;
    memcpy(rows, v->ints, (size_t)given * sizeof *rows);
    qsort(rows, (size_t)given, sizeof *rows, compare);
    for (int i = 0; i < given; i++)
        if (i == 0 || rows[i] != rows[i - 1])
            rows[n++] = rows[i];
    return n;
}

static int measure_all(run *r, const int *rows, int n, point *points)
{
    point warm;
    int result = measure(r, 1, &warm);
    ea_records_open(&r->b->records, r->b->o, head);
    for (int i = 0; i < n && result == EA_CLI_DONE; i++) {
        result = measure(r, rows[i], &points[i]);
        if (result != EA_CLI_DONE)
            break;
        points[i].ratio = points[i].ms / points[0].ms;
        put_point(r->b, &points[i]);
    }
    ea_records_close(&r->b->records);
    return result;
}

static int run_steps(ea_bench *b)
{
    int rows[MAX_POINTS], n = sorted_rows(b, rows), most = rows[n - 1], result;
    run r = {.b = b,
             .depth = (int)ea_opt_int(b->o, EA_OPT_STEP_DEPTH),
             .n_steps = (int)ea_opt_int(b->o, EA_OPT_STEPS)};
    int64_t need = (int64_t)r.depth + 1 + r.n_steps + SLACK;
    /* Every sequence whole, pages that are begun, and some that earlier ones have left. */
    int64_t n_pool = (int64_t)most * (need + 64) + 1024;
    const char *svg = ea_opt_text(b->o, EA_OPT_SVG);
    if (n_pool > EA_MAX_CTX)
        return ea_cli_error(b->o, EA_CLI_USAGE, "%d sequences of %lld tokens are more than %d",
                            most, (long long)need, EA_MAX_CTX);
    size_t n_tokens = (size_t)most * ((size_t)r.depth + 1);
    point *points = ea_calloc((size_t)n, sizeof *points);
    r.tokens = ea_calloc(n_tokens, sizeof *r.tokens);
    r.requests = ea_calloc((size_t)most, sizeof *r.requests);
    r.stamps = ea_calloc((size_t)r.n_steps + 1, sizeof *r.stamps);
    r.ms = ea_calloc((size_t)r.n_steps, sizeof *r.ms);
    if (points && r.tokens && r.requests && r.stamps && r.ms) {
        ea_bench_fill(b, r.tokens, n_tokens);
        result = ea_bench_open(b, (int)ea_opt_int(b->o, EA_OPT_THREADS), 512, most, (int)need,
                               (int)n_pool);
        if (result == EA_CLI_DONE)
            result = measure_all(&r, rows, n, points);
        if (result == EA_CLI_DONE && svg)
            result = write_svg(b, points, n, svg);
        ea_bench_close(b);
    } else {
        result = ea_cli_error(b->o, EA_CLI_FAILED, "out of memory");
    }
    ea_free(points);
    ea_free(r.tokens);
    ea_free(r.requests);
    ea_free(r.stamps);
    ea_free(r.ms);
    return result;
}

int ea_cli_bench_step(const ea_options *o)
{
    return ea_bench_main(o, run_steps);
}
