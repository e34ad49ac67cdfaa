/* cmd_doctor.c: what the machine offers, what is used of it, what it was measured to do, and what
 * to fix; as text or JSON. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "cli/doctor.h"

enum { MAX_KERNELS = 1024, MAX_FEATURES = 64 };

typedef struct report {
    const ea_options *o;
    ea_machine machine;
    struct utsname system;
    ea_cpu_feature features[MAX_FEATURES];
    size_t n_features;
    ea_kernel_info kernels[MAX_KERNELS];
    size_t n_kernels;
    ea_doctor_limits limits;
    ea_advice advice;
} report;

static const char *const permissions[] = {"absent", "refused", "granted"};

/* ---- measuring ---- */

static ea_status measure_with(ea_probe *probe, int n_threads, int at, ea_doctor_limits *out,
                              ea_error *err)
{
    EA_TRY(ea_probe_set_threads(probe, n_threads, err));
    out->read[at] = ea_probe_bandwidth(probe);
    EA_TRY(ea_probe_peak(probe, EA_PEAK_INT8, NULL, &out->int8[at], err));
    return ea_probe_peak(probe, EA_PEAK_F32, NULL, &out->f32[at], err);
}

static int measure(report *r)
{
    ea_probe_params params;
    ea_probe *probe = NULL;
    ea_error err = {0};
    ea_probe_params_default(&params);
    params.seconds = 0.1;
    ea_status status = ea_probe_create(&params, &probe, &err);
    if (status == EA_OK) {
        r->limits.n_threads = ea_probe_threads(probe);
        status = measure_with(probe, 1, 0, &r->limits, &err);
    }
    if (status == EA_OK)
        status = measure_with(probe, r->limits.n_threads, 1, &r->limits, &err);
    ea_probe_destroy(probe);
    r->limits.measured = status == EA_OK;
    return status == EA_OK ? EA_CLI_DONE : ea_cli_error(r->o, EA_CLI_FAILED, "%s", err.text);
}

/* ---- text ---- */

enum { NAME_COLUMNS = 22 };

EA_PRINTF(3, 4) static void put(ea_buf *out, const char *name, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    ea_buf_printf(out, "  %-*s %s\n", NAME_COLUMNS, name, text);
}

/* "24.0 GiB", "512 KiB"; `none` for what is no limit. */
static const char *bytes(char buf[32], uint64_t n, const char *none)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)n;
    size_t unit = 0;
    if (n == UINT64_MAX)
        return none;
    for (; value >= 1024 && unit + 1 < EA_ARRAY_LEN(units); unit++)
        value /= 1024;
    snprintf(buf, 32, "%.4g %s", value, units[unit]);
    return buf;
}

/* Features that are there or are not, broken into lines. */
static void put_features(ea_buf *out, const report *r, const char *label, bool present)
{
    size_t column = 0;
    bool any = false;
    for (size_t i = 0; i < r->n_features; i++) {
        if (r->features[i].present != present)
            continue;
        size_t n = strlen(r->features[i].name) + 1;
        if (!any || column + n > 66) {
            ea_buf_printf(out, "%s  %-*s", any ? "\n" : "", NAME_COLUMNS, any ? "" : label);
            column = 0;
        }
        ea_buf_printf(out, " %s", r->features[i].name);
        column += n;
        any = true;
    }
    if (any)
        ea_buf_putc(out, '\n');
}

static void put_levels(ea_buf *out)
{
    ea_buf_printf(out, "  %-*s", NAME_COLUMNS, "levels usable");
    for (int level = 0; level < EA_CPU_N_LEVELS; level++)
        if (ea_cpu_has((ea_cpu_level)level))
            ea_buf_printf(out, " %s", ea_cpu_level_name((ea_cpu_level)level));
    ea_buf_putc(out, '\n');
}

static void put_processor(ea_buf *out, const report *r)
{
    const ea_machine *m = &r->machine;
    ea_buf_puts(out, "\nprocessor\n");
    put(out, "name", "%s%s", ea_cpu_name(), m->is_virtual ? " (of a virtual machine)" : "");
    put_features(out, r, "features", true);
    put_features(out, r, "absent", false);
    put(out, "registers", "AVX %s, AVX-512 %s, AMX %s", permissions[m->avx], permissions[m->avx512],
        permissions[m->amx]);
    put_levels(out);
    put(out, "EA_CPU", "%.100s%s", m->mask[0] ? m->mask : "not set",
        m->mask[0] && !m->mask_known ? " (names no level)" : "");
    if (m->n_cores)
        put(out, "cores", "%d, of which %d are allowed to us", m->n_cores, m->n_cores_allowed);
    for (int i = 0; m->n_kinds > 1 && i < m->n_kinds; i++)
        put(out, i ? "" : "kinds, slowest first", "%d cores, %d allowed, %d MHz",
            m->kinds[i].n_cores, m->kinds[i].n_allowed, m->kinds[i].mhz);
    put(out, "logical processors", "%d, of which %d are allowed to us", m->n_cpus,
        m->n_cpus_allowed);
    char l1[32], l2[32], l3[32];
    put(out, "caches", "L1 %s, L2 %s, L3 %s", bytes(l1, m->cache_bytes[0], ""),
        bytes(l2, m->cache_bytes[1], ""), bytes(l3, m->cache_bytes[2], ""));
    if (m->group.cpus > 0)
        put(out, "quota", "%.4g processors", m->group.cpus);
    else
        put(out, "quota", "none");
    put(out, "frequency governor", "%s%s%s", m->governor[0] ? m->governor : "none",
        m->driver[0] ? ", driver " : "", m->driver);
    put(out, "load", m->load >= 0 ? "%.2f" : "unknown", m->load);
    put(out, "threads by default", "%d", ea_cpu_default_threads());
}

static void put_memory(ea_buf *out, const report *r)
{
    const ea_machine *m = &r->machine;
    char a[32], b[32], c[32];
    ea_buf_puts(out, "\nmemory\n");
    put(out, "total", "%s, %s available", bytes(a, m->memory_total, ""),
        bytes(b, m->memory_available, ""));
    put(out, "control group's limit", "%s", bytes(a, m->group.memory_max, "none"));
    put(out, "swap", "%s, %s used", bytes(a, m->swap_total, ""), bytes(b, m->swap_used, ""));
    put(out, "nodes", "%d", m->n_numa);
    put(out, "page", "%s", bytes(a, m->page_bytes, ""));
    put(out, "huge pages", "transparent: %s, defrag: %s",
        m->thp_enabled[0] ? m->thp_enabled : "unknown",
        m->thp_defrag[0] ? m->thp_defrag : "unknown");
    put(out, "", "explicit: %llu of %s, %llu free", (unsigned long long)m->huge_total,
        bytes(c, m->huge_bytes, ""), (unsigned long long)m->huge_free);
    ea_buf_puts(out, "\nlimits of the process\n");
    if (m->open_files == UINT64_MAX)
        put(out, "open files", "none");
    else
        put(out, "open files", "%llu", (unsigned long long)m->open_files);
    put(out, "address space", "%s", bytes(a, m->address_bytes, "none"));
    put(out, "locked memory", "%s", bytes(a, m->locked_bytes, "none"));
}

static void put_kernels(ea_buf *out, const report *r)
{
    char name[48];
    ea_buf_puts(out, "\nkernels\n");
    for (size_t i = 0; i < r->n_kernels; i++) {
        const ea_kernel_info *kernel = &r->kernels[i];
        if (!kernel->used)
            continue;
        snprintf(name, sizeof name, "%s%s%s", kernel->op, kernel->format[0] ? " " : "",
                 kernel->format);
        put(out, name, "%s", kernel->level);
    }
}

static void put_limits(ea_buf *out, const report *r)
{
    const ea_doctor_limits *l = &r->limits;
    ea_buf_puts(out, "\nmeasured\n");
    if (!l->measured) {
        ea_buf_puts(out, "  nothing\n");
        return;
    }
    put(out, "", "%10s  %7d thread%s", "1 thread", l->n_threads, l->n_threads == 1 ? "" : "s");
    put(out, "memory read", "%10.1f  %15.1f  GB/s", l->read[0] * 1e-9, l->read[1] * 1e-9);
    put(out, "int8 products", "%10.0f  %15.0f  GMAC/s", l->int8[0] * 1e-9, l->int8[1] * 1e-9);
    put(out, "f32 products", "%10.0f  %15.0f  GMAC/s", l->f32[0] * 1e-9, l->f32[1] * 1e-9);
}

static void put_text(ea_buf *out, const report *r)
{
    ea_buf_printf(out, "edgeagent %s, interface version %d%s%s%s\n%s %s %s\n", ea_version(),
                  EA_API_VERSION, r->machine.optimised ? "" : ", not optimised",
                  r->machine.sanitizer[0] ? ", with " : "", r->machine.sanitizer, r->system.sysname,
                  r->system.release, r->system.machine);
    put_processor(out, r);
    put_memory(out, r);
    put_kernels(out, r);
    put_limits(out, r);
    ea_buf_puts(out, "\nwhat to fix\n");
    for (int i = 0; i < r->advice.n; i++)
        ea_buf_printf(out, "  - %s\n", r->advice.lines[i]);
    if (r->advice.n == 0)
        ea_buf_puts(out, "  nothing was found\n");
}

/* ---- JSON ---- */

/* One object: begins with '{', then a comma before all members but the first. */
static void key(ea_buf *out, const char *name)
{
    if (out->n && out->data[out->n - 1] != '{')
        ea_buf_putc(out, ',');
    ea_buf_printf(out, "\"%s\":", name);
}

static void put_string(ea_buf *out, const char *name, const char *value)
{
    key(out, name);
    ea_buf_json_string(out, value, strlen(value));
}

static void put_bool(ea_buf *out, const char *name, bool value)
{
    key(out, name);
    ea_buf_puts(out, value ? "true" : "false");
}

static void put_number(ea_buf *out, const char *name, double value)
{
    key(out, name);
    ea_buf_json_double(out, value);
}

/* null where there is no limit. */
static void put_limit(ea_buf *out, const char *name, uint64_t value)
{
    key(out, name);
    if (value == UINT64_MAX)
        ea_buf_puts(out, "null");
    else
        ea_buf_printf(out, "%llu", (unsigned long long)value);
}

static void put_pair(ea_buf *out, const char *name, const double values[2])
{
    key(out, name);
    ea_buf_printf(out, "[%.0f,%.0f]", values[0], values[1]);
}

static void put_json_processor(ea_buf *out, const report *r)
{
    const ea_machine *m = &r->machine;
    key(out, "processor");
    ea_buf_puts(out, "{");
    put_string(out, "name", ea_cpu_name());
    put_bool(out, "virtual", m->is_virtual);
    key(out, "features");
    ea_buf_puts(out, "{");
    for (size_t i = 0; i < r->n_features; i++)
        put_bool(out, r->features[i].name, r->features[i].present);
    ea_buf_puts(out, "}");
    key(out, "registers");
    ea_buf_puts(out, "{");
    put_string(out, "avx", permissions[m->avx]);
    put_string(out, "avx512", permissions[m->avx512]);
    put_string(out, "amx", permissions[m->amx]);
    ea_buf_puts(out, "}");
    key(out, "levels");
    ea_buf_puts(out, "{");
    for (int level = 0; level < EA_CPU_N_LEVELS; level++)
        put_bool(out, ea_cpu_level_name((ea_cpu_level)level), ea_cpu_has((ea_cpu_level)level));
    ea_buf_puts(out, "}");
    put_string(out, "mask", m->mask);
    put_number(out, "cores", m->n_cores);
    put_number(out, "cores_allowed", m->n_cores_allowed);
    put_number(out, "logical", m->n_cpus);
    put_number(out, "logical_allowed", m->n_cpus_allowed);
    key(out, "kinds");
    ea_buf_puts(out, "[");
    for (int i = 0; i < m->n_kinds; i++)
        ea_buf_printf(out, "%s{\"cores\":%d,\"allowed\":%d,\"mhz\":%d}", i ? "," : "",
                      m->kinds[i].n_cores, m->kinds[i].n_allowed, m->kinds[i].mhz);
    ea_buf_printf(out, "],\"cache_bytes\":[%llu,%llu,%llu]", (unsigned long long)m->cache_bytes[0],
                  (unsigned long long)m->cache_bytes[1], (unsigned long long)m->cache_bytes[2]);
    put_number(out, "quota", m->group.cpus);
    put_string(out, "governor", m->governor);
    put_string(out, "driver", m->driver);
    put_number(out, "load", m->load);
    put_number(out, "default_threads", ea_cpu_default_threads());
    ea_buf_puts(out, "}");
}

static void put_json_memory(ea_buf *out, const ea_machine *m)
{
    key(out, "memory");
    ea_buf_puts(out, "{");
    put_limit(out, "total", m->memory_total);
    put_limit(out, "available", m->memory_available);
    put_limit(out, "group_limit", m->group.memory_max);
    put_limit(out, "swap_total", m->swap_total);
    put_limit(out, "swap_used", m->swap_used);
    put_number(out, "nodes", m->n_numa);
    put_limit(out, "page", m->page_bytes);
    put_string(out, "transparent_huge_pages", m->thp_enabled);
    put_string(out, "transparent_huge_pages_defrag", m->thp_defrag);
    put_limit(out, "huge_page", m->huge_bytes);
    put_limit(out, "huge_pages", m->huge_total);
    put_limit(out, "huge_pages_free", m->huge_free);
    ea_buf_puts(out, "}");
    key(out, "limits");
    ea_buf_puts(out, "{");
    put_limit(out, "open_files", m->open_files);
    put_limit(out, "address_space", m->address_bytes);
    put_limit(out, "locked_memory", m->locked_bytes);
    ea_buf_puts(out, "}");
}

static void put_json_kernels(ea_buf *out, const report *r)
{
    key(out, "kernels");
    ea_buf_puts(out, "[");
    for (size_t i = 0, n = 0; i < r->n_kernels; i++) {
        if (!r->kernels[i].used)
            continue;
        ea_buf_puts(out, n++ ? ",{" : "{");
        put_string(out, "op", r->kernels[i].op);
        put_string(out, "format", r->kernels[i].format);
        put_string(out, "level", r->kernels[i].level);
        ea_buf_puts(out, "}");
    }
    ea_buf_puts(out, "]");
}

static void put_json(ea_buf *out, const report *r)
{
    const ea_machine *m = &r->machine;
    ea_buf_puts(out, "{");
    put_string(out, "version", ea_version());
    put_number(out, "interface", EA_API_VERSION);
    put_bool(out, "optimised", m->optimised);
    put_string(out, "sanitizer", m->sanitizer);
    put_string(out, "system", r->system.sysname);
    put_string(out, "release", r->system.release);
    put_string(out, "machine", r->system.machine);
    put_json_processor(out, r);
    put_json_memory(out, m);
    put_json_kernels(out, r);
    key(out, "measured");
    if (r->limits.measured) {
        ea_buf_printf(out, "{\"threads\":[1,%d]", r->limits.n_threads);
        put_pair(out, "read_bytes_s", r->limits.read);
        put_pair(out, "int8_macs_s", r->limits.int8);
        put_pair(out, "f32_macs_s", r->limits.f32);
        ea_buf_puts(out, "}");
    } else {
        ea_buf_puts(out, "null");
    }
    key(out, "fix");
    ea_buf_puts(out, "[");
    for (int i = 0; i < r->advice.n; i++) {
        ea_buf_puts(out, i ? "," : "");
        ea_buf_json_string(out, r->advice.lines[i], strlen(r->advice.lines[i]));
    }
    ea_buf_puts(out, "]}\n");
}

int ea_cli_doctor(const ea_options *o)
{
    report *r = ea_calloc(1, sizeof *r);
    ea_buf out = EA_BUF_INIT;
    int result = EA_CLI_DONE;
    if (!r)
        return ea_cli_error(o, EA_CLI_FAILED, "out of memory");
    r->o = o;
    ea_machine_read(&r->machine, ""); /* first, so that the load is that of others */
    if (uname(&r->system) != 0)
        r->system = (struct utsname){0};
    r->n_features = EA_MIN(ea_cpu_features(r->features, MAX_FEATURES), (size_t)MAX_FEATURES);
    r->n_kernels = EA_MIN(ea_kernels(r->kernels, MAX_KERNELS), (size_t)MAX_KERNELS);
    if (!ea_opt_flag(o, EA_OPT_NO_MEASURE))
        result = measure(r);
    ea_doctor_advise(&r->machine, &r->limits, &r->advice);
    if (ea_opt_flag(o, EA_OPT_JSON))
        put_json(&out, r);
    else
        put_text(&out, r);
    ea_free(r);
    int printed = ea_cli_print(o, &out);
    return result != EA_CLI_DONE ? result : printed;
}
