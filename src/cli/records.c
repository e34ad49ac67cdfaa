/* records.c: see records.h. */
#include "cli/records.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void write_out(ea_buf *out)
{
    /* A vanished reader shows at the next signal or the end; there is nothing to save. */
    if (!out->failed)
        (void)ea_cli_write(1, out->data, out->n);
    ea_buf_done(out);
}

void ea_records_open(ea_records *r, const ea_options *o, const char *md_head)
{
    const char *name = ea_opt_text(o, EA_OPT_OUTPUT);
    ea_buf out = EA_BUF_INIT;
    *r = (ea_records){.format = strcmp(name, "json") == 0    ? EA_RECORDS_JSON
                                : strcmp(name, "jsonl") == 0 ? EA_RECORDS_JSONL
                                : strcmp(name, "csv") == 0   ? EA_RECORDS_CSV
                                                             : EA_RECORDS_MD};
    if (r->format == EA_RECORDS_JSON)
        ea_buf_puts(&out, "[\n");
    else if (r->format == EA_RECORDS_MD)
        ea_buf_puts(&out, md_head);
    write_out(&out);
}

void ea_records_put(ea_records *r, ea_record_fn fill, const void *row, const char *md_line)
{
    ea_buf out = EA_BUF_INIT;
    bool json = r->format == EA_RECORDS_JSON, lines = r->format == EA_RECORDS_JSONL;
    ea_record f = {.out = &out, .format = r->format};
    if (r->format == EA_RECORDS_MD) {
        ea_buf_printf(&out, "%s\n", md_line);
    } else {
        if (r->format == EA_RECORDS_CSV && r->n_rows == 0) {
            ea_record names = {.out = &out, .format = r->format, .names = true};
            fill(&names, row);
            ea_buf_puts(&out, "\n");
        }
        ea_buf_puts(&out, json ? (r->n_rows ? ",\n  {" : "  {") : lines ? "{" : "");
        fill(&f, row);
        ea_buf_puts(&out, json ? "\n  }" : lines ? "}\n" : "\n");
    }
    r->n_rows++;
    write_out(&out);
}

void ea_records_note(ea_records *r, const char *line)
{
    ea_buf out = EA_BUF_INIT;
    if (r->format == EA_RECORDS_MD)
        ea_buf_printf(&out, "%s\n", line);
    write_out(&out);
}

void ea_records_close(ea_records *r)
{
    ea_buf out = EA_BUF_INIT;
    if (r->format == EA_RECORDS_JSON)
        ea_buf_puts(&out, "\n]\n");
    write_out(&out);
}

/* ---- fields ---- */

static void begin_field(ea_record *f, const char *name)
{
    if (f->format == EA_RECORDS_CSV)
        ea_buf_puts(f->out, f->n ? "," : "");
    else
        ea_buf_printf(f->out, "%s%s\"%s\": ", f->n ? "," : "",
                      f->format == EA_RECORDS_JSON ? "\n    "
                      : f->n                       ? " "
                                                   : "",
                      name);
    f->n++;
    if (f->names)
        ea_buf_puts(f->out, name);
}

void ea_record_text(ea_record *f, const char *name, const char *value)
{
    begin_field(f, name);
    if (f->names)
        return;
    if (f->format != EA_RECORDS_CSV) {
        ea_buf_json_string(f->out, value, strlen(value));
        return;
    }
    ea_buf_putc(f->out, '"');
    for (const char *c = value; *c; c++)
        ea_buf_puts(f->out, *c == '"' ? "\"\"" : (char[]){*c, 0});
    ea_buf_putc(f->out, '"');
}

void ea_record_number(ea_record *f, const char *name, double value, int digits)
{
    begin_field(f, name);
    if (f->names)
        return;
    ea_buf_printf(f->out, f->format == EA_RECORDS_CSV ? "\"%.*f\"" : "%.*f", digits, value);
}

void ea_record_list(ea_record *f, const char *name, const double *values, int n, int digits)
{
    if (f->format == EA_RECORDS_CSV)
        return; /* llama-bench leaves lists out there */
    begin_field(f, name);
    ea_buf_puts(f->out, "[");
    for (int i = 0; i < n; i++)
        ea_buf_printf(f->out, "%s%.*f", i ? ", " : " ", digits, values[i]);
    ea_buf_puts(f->out, " ]");
}

/* ---- samples ---- */

double ea_mean(const double *values, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += values[i];
    return n ? sum / n : 0;
}

double ea_deviation(const double *values, int n)
{
    double m = ea_mean(values, n), sum = 0;
    for (int i = 0; i < n; i++)
        sum += (values[i] - m) * (values[i] - m);
    return n > 1 ? sqrt(sum / (n - 1)) : 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double ea_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}
