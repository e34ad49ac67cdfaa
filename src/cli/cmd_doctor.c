/* cmd_doctor.c: what the machine offers and what we make of it, as text for bug reports. */
#include <stdio.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "cli/cli.h"

static void put_limit(ea_buf *out, const char *name, int resource)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0)
        return;
    if (limit.rlim_cur == RLIM_INFINITY)
        ea_buf_printf(out, "  %-22s unlimited\n", name);
    else
        ea_buf_printf(out, "  %-22s %llu\n", name, (unsigned long long)limit.rlim_cur);
}

static void put_mib(ea_buf *out, const char *name, uint64_t bytes)
{
    if (bytes)
        ea_buf_printf(out, "  %-22s %.0f MiB\n", name, (double)bytes / (1 << 20));
    else
        ea_buf_printf(out, "  %-22s unknown\n", name);
}

int ea_cli_doctor(const ea_options *o)
{
    ea_buf out = EA_BUF_INIT;
    struct utsname name;
    ea_buf_printf(&out, "edgeagent %s, interface version %d\n", ea_version(), EA_API_VERSION);
    if (uname(&name) == 0)
        ea_buf_printf(&out, "%s %s %s\n", name.sysname, name.release, name.machine);
    ea_buf_printf(&out, "\nprocessor\n  %-22s %s\n  %-22s %ld\n  %-22s %d\n", "name", ea_cpu_name(),
                  "logical processors", sysconf(_SC_NPROCESSORS_ONLN), "threads by default",
                  ea_cpu_default_threads());
    ea_buf_puts(&out, "  levels usable         ");
    for (int level = 0; level < EA_CPU_N_LEVELS; level++)
        if (ea_cpu_has((ea_cpu_level)level))
            ea_buf_printf(&out, " %s", ea_cpu_level_name((ea_cpu_level)level));
    ea_buf_puts(&out, "\n\nmemory\n");
    put_mib(&out, "total", ea_memory_total());
    put_mib(&out, "available", ea_memory_available());
    ea_buf_printf(&out, "  %-22s %ld bytes\n", "page", sysconf(_SC_PAGESIZE));
    ea_buf_puts(&out, "\nlimits of the process\n");
    put_limit(&out, "open files", RLIMIT_NOFILE);
    put_limit(&out, "address space, bytes", RLIMIT_AS);
    put_limit(&out, "locked memory, bytes", RLIMIT_MEMLOCK);
    ea_buf_puts(&out, "\nkernels\n");
    char *report = ea_system_report();
    if (report)
        ea_buf_puts(&out, report);
    else
        out.failed = true;
    ea_free(report);
    return ea_cli_print(o, &out);
}
