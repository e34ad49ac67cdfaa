/* cmd_bench_kernels.c: the matrix products of one or all levels, beside what the machine was
 * measured to allow, through ea_probe of the public interface. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/cpu.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cli/records.h"

enum { MAX_LEVELS = EA_CPU_N_LEVELS, MAX_KERNELS = 1024 };

typedef struct shape {
    int n, k;
} shape;

/* What is measured now. */
typedef struct state {
    const ea_options *o;
    ea_probe *probe;
    ea_records records;
    ea_kernel_info *kernels;
    size_t n_kernels;
    shape *shapes;
    size_t n_shapes;
    /* limits with the threads of now: bytes a second; multiply-adds a second, 0 = not measured */
    double bandwidth, peaks[MAX_LEVELS][2];
    ea_buf notes; /* the limits with each number of threads */
} state;

typedef struct row {
    const ea_kernel_info *kernel;
    ea_product product;
    ea_product_time time;
    int n_threads;
    double bandwidth, peak;
} row;

/* ---- results ---- */

static double memory_time(const row *r)
{
    return r->time.n_bytes / r->bandwidth;
}

static double arithmetic_time(const row *r)
{
    return r->time.n_macs / r->peak;
}

/* Of the least time that the measured limits allow, in percent. */
static double share(const row *r)
{
    return 100 * EA_MAX(memory_time(r), arithmetic_time(r)) / r->time.seconds;
}

static const char *bound(const row *r)
{
    return memory_time(r) > arithmetic_time(r) ? "memory" : "arithmetic";
}

static void fill(ea_record *f, const void *arg)
{
    const row *r = arg;
    ea_record_text(f, "build_version", ea_version());
    ea_record_text(f, "cpu_info", ea_cpu_name());
    ea_record_number(f, "n_threads", r->n_threads, 0);
    ea_record_text(f, "format", r->kernel->format);
    ea_record_text(f, "level", r->kernel->level);
    ea_record_number(f, "n", r->product.n, 0);
    ea_record_number(f, "k", r->product.k, 0);
    ea_record_number(f, "rows", r->product.n_rows, 0);
    ea_record_number(f, "ms", r->time.seconds * 1e3, 6);
    ea_record_number(f, "gb_s", r->time.n_bytes / r->time.seconds * 1e-9, 3);
    ea_record_number(f, "gmac_s", r->time.n_macs / r->time.seconds * 1e-9, 3);
    ea_record_text(f, "bound", bound(r));
    ea_record_number(f, "share", share(r), 1);
    ea_record_number(f, "machine_gb_s", r->bandwidth * 1e-9, 3);
    ea_record_number(f, "machine_gmac_s", r->peak * 1e-9, 3);
}

static const char head[] =
    "| threads | format | level      |         shape | rows |        ms |    GB/s |  GMAC/s | "
    "bound "
    "     | share |\n"
    "| ------: | ------ | ---------- | ------------: | ---: | --------: | ------: | ------: | "
    "---------- | ----: |\n";

static void put_row(state *s, const row *r)
{
    char line[256], shape_text[32];
    snprintf(shape_text, sizeof shape_text, "%dx%d", r->product.n, r->product.k);
    snprintf(line, sizeof line,
             "| %7d | %-6s | %-10s | %13s | %4d | %9.4f | %7.2f | %7.1f | %-10s | %3.0f %% |",
             r->n_threads, r->kernel->format, r->kernel->level, shape_text, r->product.n_rows,
             r->time.seconds * 1e3, r->time.n_bytes / r->time.seconds * 1e-9,
             r->time.n_macs / r->time.seconds * 1e-9, bound(r), share(r));
    ea_records_put(&s->records, fill, r, line);
}

/* ---- what to measure ---- */

/* Is `name` among the words, separated by commas, that were given for the option? */
static bool listed(const ea_option_value *v, const char *name)
{
    for (size_t i = 0; i < v->n; i++)
        for (const char *word = v->texts[i];; word++) {
            size_t n = strcspn(word, ",");
            if (n == strlen(name) && strncasecmp(word, name, n) == 0)
                return true;
            word += n;
            if (!*word)
                break;
        }
    return false;
}

/* Every word must name a format or a level that some kernel has; 0 or an exit status. */
static int check_words(const state *s, ea_option_id id, const char *option, bool is_level)
{
    const ea_option_value *v = ea_opt_list(s->o, id);
    for (size_t i = 0; i < v->n; i++)
        for (const char *word = v->texts[i];; word++) {
            size_t n = strcspn(word, ",");
            bool known = is_level && n == 3 && strncasecmp(word, "all", 3) == 0;
            for (size_t k = 0; k < s->n_kernels && !known; k++) {
                const char *name = is_level ? s->kernels[k].level : s->kernels[k].format;
                known = n > 0 && n == strlen(name) && strncasecmp(word, name, n) == 0;
            }
            if (!known)
                return ea_cli_error(s->o, EA_CLI_USAGE, "%s: '%.*s' is no %s of any product",
                                    option, (int)EA_MIN(n, (size_t)40), word,
                                    is_level ? "level" : "format");
            word += n;
            if (!*word)
                break;
        }
    return EA_CLI_DONE;
}

static bool wanted(const state *s, const ea_kernel_info *kernel)
{
    const ea_option_value *formats = ea_opt_list(s->o, EA_OPT_FORMATS),
                          *levels = ea_opt_list(s->o, EA_OPT_LEVELS);
    if (!kernel->usable || (formats->n && !listed(formats, kernel->format)))
        return false;
    return levels->n ? listed(levels, "all") || listed(levels, kernel->level) : kernel->used;
}

/* "NxK,NxK"; 0 or an exit status. */
static int read_shapes(state *s)
{
    const ea_option_value *v = ea_opt_list(s->o, EA_OPT_SHAPES);
    size_t cap = 0;
    for (size_t i = 0; i < v->n; i++)
        for (const char *word = v->texts[i];; word++) {
            int n, k, end = 0;
            void *shapes = s->shapes;
            size_t length = strcspn(word, ",");
            if (sscanf(word, "%9dx%9d%n", &n, &k, &end) != 2 || (size_t)end != length || n < 1 ||
                n > EA_MAX_VOCAB || k < 1 || k > EA_MAX_EMBD)
                return ea_cli_error(s->o, EA_CLI_USAGE,
                                    "--shape: '%.*s' is not of the form NxK with N up to %d and K "
                                    "up to %d",
                                    (int)EA_MIN(length, (size_t)40), word, EA_MAX_VOCAB,
                                    EA_MAX_EMBD);
            if (ea_grow(&shapes, &cap, s->n_shapes + 1, sizeof *s->shapes, NULL) != EA_OK)
                return ea_cli_error(s->o, EA_CLI_FAILED, "out of memory");
            s->shapes = shapes;
            s->shapes[s->n_shapes++] = (shape){n, k};
            word += length;
            if (!*word)
                break;
        }
    return EA_CLI_DONE;
}

/* The products, in the order of the format's list. */
static int list_kernels(state *s)
{
    s->kernels = ea_calloc(MAX_KERNELS, sizeof *s->kernels);
    if (!s->kernels)
        return ea_cli_error(s->o, EA_CLI_FAILED, "out of memory");
    size_t n = EA_MIN(ea_kernels(s->kernels, MAX_KERNELS), (size_t)MAX_KERNELS);
    for (size_t i = 0; i < n; i++)
        if (strcmp(s->kernels[i].op, "matmul") == 0)
            s->kernels[s->n_kernels++] = s->kernels[i];
    return EA_CLI_DONE;
}

/* ---- measuring ---- */

static int fail(const state *s, ea_status status, const ea_error *err)
{
    return ea_cli_error(s->o, status == EA_EINVAL ? EA_CLI_USAGE : EA_CLI_FAILED, "%s", err->text);
}

/* The peak of a level, measured when it is first asked for. */
static ea_status find_peak(state *s, const char *level, ea_peak_kind kind, double *out,
                           ea_error *err)
{
    int i = 0;
    while (strcmp(ea_cpu_level_name((ea_cpu_level)i), level) != 0)
        i++;
    if (s->peaks[i][kind] == 0)
        EA_TRY(ea_probe_peak(s->probe, kind, level, &s->peaks[i][kind], err));
    *out = s->peaks[i][kind];
    return EA_OK;
}

static int measure_kernel(state *s, const ea_kernel_info *kernel)
{
    const ea_option_value *rows = ea_opt_list(s->o, EA_OPT_KERNEL_ROWS);
    for (size_t i = 0; i < s->n_shapes; i++)
        for (size_t j = 0; j < rows->n; j++) {
            ea_error err = {0};
            row r = {.kernel = kernel,
                     .product = {.format = kernel->format,
                                 .level = kernel->level,
                                 .n = s->shapes[i].n,
                                 .k = s->shapes[i].k,
                                 .n_rows = rows->ints[j]},
                     .n_threads = ea_probe_threads(s->probe),
                     .bandwidth = s->bandwidth};
            if (ea_cli_signal())
                return 128 + ea_cli_signal();
            ea_status status = ea_probe_product(s->probe, &r.product, &r.time, &err);
            if (status == EA_OK)
                status = find_peak(s, kernel->level, r.time.peak, &r.peak, &err);
            if (status != EA_OK)
                return fail(s, status, &err);
            put_row(s, &r);
        }
    return EA_CLI_DONE;
}

/* Lines of the limits that were measured with the threads of now. */
static void note_limits(state *s)
{
    static const char *const kinds[] = {"int8", "f32"};
    int n = ea_probe_threads(s->probe);
    ea_buf_printf(&s->notes, "\nMeasured with %d thread%s: memory %.1f GB/s", n, n == 1 ? "" : "s",
                  s->bandwidth * 1e-9);
    for (int level = 0; level < MAX_LEVELS; level++)
        for (int kind = 0; kind < 2; kind++)
            if (s->peaks[level][kind] > 0)
                ea_buf_printf(&s->notes, ", %s %s %.1f GMAC/s",
                              ea_cpu_level_name((ea_cpu_level)level), kinds[kind],
                              s->peaks[level][kind] * 1e-9);
}

static int measure_all(state *s)
{
    const ea_option_value *threads = ea_opt_list(s->o, EA_OPT_THREADS_LIST);
    int result = EA_CLI_DONE;
    for (size_t t = 0; t < threads->n && result == EA_CLI_DONE; t++) {
        ea_error err = {0};
        ea_status status = ea_probe_set_threads(s->probe, threads->ints[t], &err);
        if (status != EA_OK)
            return fail(s, status, &err);
        memset(s->peaks, 0, sizeof s->peaks);
        s->bandwidth = ea_probe_bandwidth(s->probe);
        for (size_t i = 0; i < s->n_kernels && result == EA_CLI_DONE; i++)
            if (wanted(s, &s->kernels[i]))
                result = measure_kernel(s, &s->kernels[i]);
        note_limits(s);
    }
    return result;
}

int ea_cli_bench_kernels(const ea_options *o)
{
    state s = {.o = o};
    ea_probe_params params;
    ea_error err = {0};
    ea_probe_params_default(&params);
    params.n_threads = 1;
    params.seconds = ea_opt_num(o, EA_OPT_SECONDS);
    params.n_bytes = (size_t)ea_opt_int(o, EA_OPT_MEMORY_MIB) << 20;
    params.small_pages = ea_opt_flag(o, EA_OPT_SMALL_PAGES);
    ea_cli_signals_catch();
    int result = list_kernels(&s);
    if (result == EA_CLI_DONE)
        result = check_words(&s, EA_OPT_FORMATS, "-f", false);
    if (result == EA_CLI_DONE)
        result = check_words(&s, EA_OPT_LEVELS, "-l", true);
    if (result == EA_CLI_DONE)
        result = read_shapes(&s);
    if (result == EA_CLI_DONE) {
        ea_status status = ea_probe_create(&params, &s.probe, &err);
        if (status != EA_OK)
            result = fail(&s, status, &err);
    }
    if (result == EA_CLI_DONE) {
        ea_records_open(&s.records, o, head);
        result = measure_all(&s);
        if (s.records.n_rows > 0 && !s.notes.failed)
            ea_records_note(&s.records, s.notes.data);
        ea_records_close(&s.records);
        if (result == EA_CLI_DONE && s.records.n_rows == 0)
            result = ea_cli_error(o, EA_CLI_FAILED, "this machine has none of these kernels");
    }
    ea_probe_destroy(s.probe);
    ea_free(s.kernels);
    ea_free(s.shapes);
    ea_buf_done(&s.notes);
    return result;
}
