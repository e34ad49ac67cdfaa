/* records.h: results as rows of named values, in the format that --output names: a JSON list, JSON
 * lines, CSV, or lines of a Markdown table. Rows are written as they come. Main thread. */
#ifndef EA_CLI_RECORDS_H
#define EA_CLI_RECORDS_H

#include "cli/cli.h"

typedef enum ea_record_format {
    EA_RECORDS_MD,
    EA_RECORDS_JSON,
    EA_RECORDS_JSONL,
    EA_RECORDS_CSV,
} ea_record_format;

typedef struct ea_records {
    ea_record_format format;
    int n_rows;
} ea_records;

/* One row while it is filled. */
typedef struct ea_record {
    ea_buf *out;
    ea_record_format format;
    int n;
    bool names; /* CSV: write the names, not the values */
} ea_record;

/* Tells a row's fields, the same ones in the same order each time. */
typedef void (*ea_record_fn)(ea_record *f, const void *row);

/* The command of `o` has --output. md_head: what stands above the rows in the Markdown format. */
void ea_records_open(ea_records *r, const ea_options *o, const char *md_head);
/* md_line: the row in the Markdown format, without its newline. */
void ea_records_put(ea_records *r, ea_record_fn fill, const void *row, const char *md_line);
/* A line of text, in the Markdown format only: what holds for the rows before it. */
void ea_records_note(ea_records *r, const char *line);
void ea_records_close(ea_records *r);

void ea_record_text(ea_record *f, const char *name, const char *value);
void ea_record_number(ea_record *f, const char *name, double value, int digits);
/* Left out in CSV. */
void ea_record_list(ea_record *f, const char *name, const double *values, int n, int digits);

/* Figures of a sample; the deviation is that of a sample, n - 1, and 0 for a single value. */
double ea_mean(const double *values, int n);
double ea_deviation(const double *values, int n);
double ea_median(double *values, int n); /* n >= 1; sorts them */

#endif
