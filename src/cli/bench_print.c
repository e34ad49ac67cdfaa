/* bench_print.c: results as llama-bench and llama-batched-bench print them: a Markdown table, a
 * JSON list, JSON lines, CSV. Rows are written as they come. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "cli/bench.h"

typedef enum format { MD, JSON, JSONL, CSV } format;

static format get_format(const ea_bench *b)
{
    const char *name = ea_opt_text(b->o, EA_OPT_OUTPUT);
    return strcmp(name, "json") == 0    ? JSON
           : strcmp(name, "jsonl") == 0 ? JSONL
           : strcmp(name, "csv") == 0   ? CSV
                                        : MD;
}

static double mean(const double *v, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += v[i];
    return n ? sum / n : 0;
}

/* Of the sample, as llama-bench has it: n - 1, and 0 for a single value. */
static double deviation(const double *v, int n)
{
    double m = mean(v, n), sum = 0;
    for (int i = 0; i < n; i++)
        sum += (v[i] - m) * (v[i] - m);
    return n > 1 ? sqrt(sum / (n - 1)) : 0;
}

static void write_out(ea_buf *out)
{
    /* A vanished reader shows at the next signal or the end; there is nothing to save. */
    if (!out->failed)
        (void)ea_cli_write(1, out->data, out->n);
    ea_buf_done(out);
}

/* ---- one value of a JSON object or a CSV line ---- */

typedef struct fields {
    ea_buf *out;
    format format;
    int n;
    bool names; /* CSV: write the names, not the values */
} fields;

static void begin_field(fields *f, const char *name)
{
    if (f->format == CSV)
        ea_buf_puts(f->out, f->n ? "," : "");
    else
        ea_buf_printf(f->out, "%s%s\"%s\": ", f->n ? "," : "",
                      f->format == JSON ? "\n    "
                      : f->n            ? " "
                                        : "",
                      name);
    f->n++;
    if (f->names)
        ea_buf_puts(f->out, name);
}

static void text_field(fields *f, const char *name, const char *value)
{
    begin_field(f, name);
    if (f->names)
        return;
    if (f->format != CSV) {
        ea_buf_json_string(f->out, value, strlen(value));
        return;
    }
    ea_buf_putc(f->out, '"');
    for (const char *c = value; *c; c++)
        ea_buf_puts(f->out, *c == '"' ? "\"\"" : (char[]){*c, 0});
    ea_buf_putc(f->out, '"');
}

static void number_field(fields *f, const char *name, double value, int digits)
{
    begin_field(f, name);
    if (f->names)
        return;
    ea_buf_printf(f->out, f->format == CSV ? "\"%.*f\"" : "%.*f", digits, value);
}

static void list_field(fields *f, const char *name, const double *values, int n, int digits)
{
    if (f->format == CSV)
        return; /* llama-bench leaves lists out there */
    begin_field(f, name);
    ea_buf_puts(f->out, "[");
    for (int i = 0; i < n; i++)
        ea_buf_printf(f->out, "%s%.*f", i ? ", " : " ", digits, values[i]);
    ea_buf_puts(f->out, " ]");
}

static void put_fields(const ea_bench *b, const ea_bench_row *row, fields *f)
{
    char when[32] = "";
    time_t seconds = (time_t)row->time;
    struct tm utc;
    if (gmtime_r(&seconds, &utc))
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    text_field(f, "build_version", ea_version());
    text_field(f, "cpu_info", ea_cpu_name());
    text_field(f, "backends", "CPU");
    text_field(f, "model_filename", b->info.path);
    text_field(f, "model_type", b->info.type);
    number_field(f, "model_size", (double)b->info.n_bytes, 0);
    number_field(f, "model_n_params", (double)b->info.n_params, 0);
    number_field(f, "n_batch", row->n_batch, 0);
    number_field(f, "n_threads", row->n_threads, 0);
    text_field(f, "type_k", "f16");
    text_field(f, "type_v", "f16");
    number_field(f, "n_prompt", row->n_prompt, 0);
    number_field(f, "n_gen", row->n_gen, 0);
    number_field(f, "n_depth", row->n_depth, 0);
    text_field(f, "test_time", when);
    number_field(f, "avg_ns", mean(row->ns, row->n_samples), 0);
    number_field(f, "stddev_ns", deviation(row->ns, row->n_samples), 0);
    number_field(f, "avg_ts", mean(row->ts, row->n_samples), 6);
    number_field(f, "stddev_ts", deviation(row->ts, row->n_samples), 6);
    list_field(f, "samples_ns", row->ns, row->n_samples, 0);
    list_field(f, "samples_ts", row->ts, row->n_samples, 3);
}

static void put_batched_fields(const ea_batched_row *row, fields *f)
{
    int n_kv = row->pl * (row->pp + row->tg);
    double t = row->t_pp + row->t_tg;
    number_field(f, "n_kv_max", row->n_kv_max, 0);
    number_field(f, "n_batch", row->n_batch, 0);
    number_field(f, "is_pp_shared", 0, 0);
    number_field(f, "n_threads", row->n_threads, 0);
    number_field(f, "pp", row->pp, 0);
    number_field(f, "tg", row->tg, 0);
    number_field(f, "pl", row->pl, 0);
    number_field(f, "n_kv", n_kv, 0);
    number_field(f, "t_pp", row->t_pp, 6);
    number_field(f, "speed_pp", row->speed_pp, 6);
    number_field(f, "t_tg", row->t_tg, 6);
    number_field(f, "speed_tg", row->speed_tg, 6);
    number_field(f, "t", t, 6);
    number_field(f, "speed", t > 0 ? n_kv / t : 0, 6);
}

/* ---- tables ---- */

static void put_table_row(const ea_bench *b, const ea_bench_row *row, ea_buf *out)
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
    snprintf(rate, sizeof rate, "%.2f ± %.2f", mean(row->ts, row->n_samples),
             deviation(row->ts, row->n_samples));
    /* The plus-minus sign is two bytes and one column. */
    ea_buf_printf(out, "| %-30s | %10s | %10s | %-10s | %7d | %15s | %21s |\n", b->info.type, size,
                  params, "CPU", row->n_threads, test, rate);
}

void ea_bench_print_head(const ea_bench *b, bool batched)
{
    ea_buf out = EA_BUF_INIT;
    format kind = get_format(b);
    fields f = {.out = &out, .format = kind, .names = true};
    ea_bench_row none = {0};
    ea_batched_row none_batched = {0};
    if (kind == JSON) {
        ea_buf_puts(&out, "[\n");
    } else if (kind == CSV) {
        if (batched)
            put_batched_fields(&none_batched, &f);
        else
            put_fields(b, &none, &f);
        ea_buf_puts(&out, "\n");
    } else if (kind == MD && batched) {
        ea_buf_puts(&out, "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | "
                          "S_TG t/s |      T s |    S t/s |\n"
                          "|-------|--------|------|--------|----------|----------|----------|"
                          "----------|----------|----------|\n");
    } else if (kind == MD) {
        ea_buf_puts(&out, "| model                          |       size |     params | backend    "
                          "| threads |            test |                  t/s |\n"
                          "| ------------------------------ | ---------: | ---------: | ---------- "
                          "| ------: | --------------: | -------------------: |\n");
    }
    write_out(&out);
}

void ea_bench_print_row(const ea_bench *b, const ea_bench_row *row, bool is_first)
{
    ea_buf out = EA_BUF_INIT;
    format kind = get_format(b);
    fields f = {.out = &out, .format = kind};
    if (kind == MD) {
        put_table_row(b, row, &out);
    } else {
        ea_buf_puts(&out, kind == JSON ? (is_first ? "  {" : ",\n  {") : kind == JSONL ? "{" : "");
        put_fields(b, row, &f);
        ea_buf_puts(&out, kind == JSON ? "\n  }" : kind == JSONL ? "}\n" : "\n");
    }
    write_out(&out);
}

void ea_bench_print_batched(const ea_bench *b, const ea_batched_row *row, bool is_first)
{
    ea_buf out = EA_BUF_INIT;
    format kind = get_format(b);
    fields f = {.out = &out, .format = kind};
    double t = row->t_pp + row->t_tg;
    int n_kv = row->pl * (row->pp + row->tg);
    if (kind == MD) {
        ea_buf_printf(&out,
                      "|%6d | %6d | %4d | %6d | %8.3f | %8.2f | %8.3f | %8.2f | %8.3f | %8.2f |\n",
                      row->pp, row->tg, row->pl, n_kv, row->t_pp, row->speed_pp, row->t_tg,
                      row->speed_tg, t, t > 0 ? n_kv / t : 0);
    } else {
        ea_buf_puts(&out, kind == JSON ? (is_first ? "  {" : ",\n  {") : kind == JSONL ? "{" : "");
        put_batched_fields(row, &f);
        ea_buf_puts(&out, kind == JSON ? "\n  }" : kind == JSONL ? "}\n" : "\n");
    }
    write_out(&out);
}

void ea_bench_print_tail(const ea_bench *b)
{
    ea_buf out = EA_BUF_INIT;
    if (get_format(b) == JSON)
        ea_buf_puts(&out, "\n]\n");
    write_out(&out);
}
