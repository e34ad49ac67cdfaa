/* bench_print.c: what stands in the results of llama-bench's and llama-batched-bench's tests, and
 * how their tables look. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "cli/bench.h"

/* ---- llama-bench's ---- */

typedef struct row_of {
    const ea_bench *b;
    const ea_bench_row *row;
} row_of;

static const char *kv_type(const ea_bench *b)
{
    return ea_opt_text(b->o, EA_OPT_KV_TYPE);
}

static void fill_row(ea_record *f, const void *arg)
{
    const ea_bench *b = ((const row_of *)arg)->b;
    const ea_bench_row *row = ((const row_of *)arg)->row;
    char when[32] = "";
    time_t seconds = (time_t)row->time;
    struct tm utc;
    if (gmtime_r(&seconds, &utc))
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    ea_record_text(f, "build_version", ea_version());
    ea_record_text(f, "cpu_info", ea_cpu_name());
    ea_record_text(f, "backends", "CPU");
    ea_record_text(f, "model_filename", b->info.path);
    ea_record_text(f, "model_type", b->info.type);
    ea_record_number(f, "model_size", (double)b->info.n_bytes, 0);
    ea_record_number(f, "model_n_params", (double)b->info.n_params, 0);
    ea_record_number(f, "n_batch", row->n_batch, 0);
    ea_record_number(f, "n_threads", row->n_threads, 0);
    ea_record_text(f, "type_k", kv_type(b));
    ea_record_text(f, "type_v", kv_type(b));
    ea_record_number(f, "n_prompt", row->n_prompt, 0);
    ea_record_number(f, "n_gen", row->n_gen, 0);
    ea_record_number(f, "n_depth", row->n_depth, 0);
    ea_record_text(f, "test_time", when);
    ea_record_number(f, "avg_ns", ea_mean(row->ns, row->n_samples), 0);
    ea_record_number(f, "stddev_ns", ea_deviation(row->ns, row->n_samples), 0);
    ea_record_number(f, "avg_ts", ea_mean(row->ts, row->n_samples), 6);
    ea_record_number(f, "stddev_ts", ea_deviation(row->ts, row->n_samples), 6);
    ea_record_list(f, "samples_ns", row->ns, row->n_samples, 0);
    ea_record_list(f, "samples_ts", row->ts, row->n_samples, 3);
}

static void put_table_row(const ea_bench *b, const ea_bench_row *row, char *line, size_t n_line)
{
    char size[32], params[32], test[64], rate[64];
    double gib = (double)b->info.n_bytes / (1 << 30), weights = (double)b->info.n_params;
    snprintf(size, sizeof size, gib >= 1 ? "%.2f GiB" : "%.2f MiB", gib >= 1 ? gib : gib * 1024);
    snprintf(params, sizeof params, weights >= 1e9 ? "%.2f B" : "%.2f M",
             weights / (weights >= 1e9 ? 1e9 : 1e6));
    int n = 0;
    if (row->n_prompt && row->n_gen)
        n = snprintf(test, sizeof test, "pp%d+tg%d", row->n_prompt, row->n_gen);
    else
        n = snprintf(test, sizeof test, row->n_prompt ? "pp%d" : "tg%d",
                     row->n_prompt ? row->n_prompt : row->n_gen);
    if (row->n_depth)
        snprintf(test + n, sizeof test - (size_t)n, " @ d%d", row->n_depth);
    snprintf(rate, sizeof rate, "%.2f ± %.2f", ea_mean(row->ts, row->n_samples),
             ea_deviation(row->ts, row->n_samples));
    /* The plus-minus sign is two bytes and one column. */
    snprintf(line, n_line, "| %-30s | %10s | %10s | %-10s | %7d | %15s | %21s |", b->info.type,
             size, params, "CPU", row->n_threads, test, rate);
}

void ea_bench_print_head(ea_bench *b)
{
    ea_records_open(&b->records, b->o,
                    "| model                          |       size |     params | backend    "
                    "| threads |            test |                  t/s |\n"
                    "| ------------------------------ | ---------: | ---------: | ---------- "
                    "| ------: | --------------: | -------------------: |\n");
}

void ea_bench_print_row(ea_bench *b, const ea_bench_row *row)
{
    char line[512];
    row_of arg = {b, row};
    put_table_row(b, row, line, sizeof line);
    ea_records_put(&b->records, fill_row, &arg, line);
}

/* ---- llama-batched-bench's ---- */

static void fill_batched(ea_record *f, const void *arg)
{
    const ea_batched_row *row = arg;
    int n = row->n_samples;
    ea_record_number(f, "n_kv_max", row->n_kv_max, 0);
    ea_record_number(f, "n_batch", row->n_batch, 0);
    ea_record_number(f, "is_pp_shared", 0, 0);
    ea_record_number(f, "n_threads", row->n_threads, 0);
    ea_record_number(f, "pp", row->pp, 0);
    ea_record_number(f, "tg", row->tg, 0);
    ea_record_number(f, "pl", row->pl, 0);
    ea_record_number(f, "n_kv", row->pl * (row->pp + row->tg), 0);
    ea_record_number(f, "t_pp", ea_mean(row->t_pp, n), 6);
    ea_record_number(f, "speed_pp", ea_mean(row->speed_pp, n), 6);
    ea_record_number(f, "t_tg", ea_mean(row->t_tg, n), 6);
    ea_record_number(f, "speed_tg", ea_mean(row->speed_tg, n), 6);
    ea_record_number(f, "t", ea_mean(row->t, n), 6);
    ea_record_number(f, "speed", ea_mean(row->speed, n), 6);
    ea_record_number(f, "n_samples", n, 0);
    ea_record_number(f, "stddev_speed_pp", ea_deviation(row->speed_pp, n), 6);
    ea_record_number(f, "stddev_speed_tg", ea_deviation(row->speed_tg, n), 6);
    ea_record_number(f, "stddev_speed", ea_deviation(row->speed, n), 6);
    ea_record_list(f, "samples_speed_pp", row->speed_pp, n, 3);
    ea_record_list(f, "samples_speed_tg", row->speed_tg, n, 3);
}

static const char batched_head[] =
    "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    "
    "S t/s |\n"
    "|-------|--------|------|--------|----------|----------|----------|----------|----------|-----"
    "-"
    "----|\n";
static const char repeated_head[] = "|    PP |     TG |    B |   N_KV |   T_PP s |          S_PP "
                                    "t/s |   T_TG s |          S_TG t/s "
                                    "|      T s |             S t/s |\n"
                                    "|-------|--------|------|--------|----------|-----------------"
                                    "--|----------|-------------------"
                                    "|----------|-------------------|\n";

void ea_bench_print_batched_head(ea_bench *b, int n_samples)
{
    ea_records_open(&b->records, b->o, n_samples > 1 ? repeated_head : batched_head);
}

/* "12.34", or with more samples "12.34 ± 0.56". */
static void put_rate(char *buf, size_t size, const double *values, int n)
{
    double m = ea_mean(values, n);
    if (n > 1)
        snprintf(buf, size, "%8.2f ± %6.2f", m, ea_deviation(values, n));
    else
        snprintf(buf, size, "%8.2f", m);
}

void ea_bench_print_batched(ea_bench *b, const ea_batched_row *row)
{
    char line[512], pp[48], tg[48], both[48];
    int n = row->n_samples;
    put_rate(pp, sizeof pp, row->speed_pp, n);
    put_rate(tg, sizeof tg, row->speed_tg, n);
    put_rate(both, sizeof both, row->speed, n);
    snprintf(line, sizeof line, "|%6d | %6d | %4d | %6d | %8.3f | %s | %8.3f | %s | %8.3f | %s |",
             row->pp, row->tg, row->pl, row->pl * (row->pp + row->tg), ea_mean(row->t_pp, n), pp,
             ea_mean(row->t_tg, n), tg, ea_mean(row->t, n), both);
    ea_records_put(&b->records, fill_batched, row, line);
}

void ea_bench_print_tail(ea_bench *b)
{
    ea_records_close(&b->records);
}
