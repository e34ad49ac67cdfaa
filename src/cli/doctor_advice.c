/* doctor_advice.c: see doctor.h. Each rule speaks only where it costs something, and says what to
 * do. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "cli/doctor.h"

static const double gib = 1024.0 * 1024 * 1024;

EA_PRINTF(2, 3) static void say(ea_advice *out, const char *fmt, ...)
{
    va_list args;
    if (out->n == EA_ADVICE_LINES)
        return;
    va_start(args, fmt);
    vsnprintf(out->lines[out->n++], EA_ADVICE_BYTES, fmt, args);
    va_end(args);
}

static void advise_build(const ea_machine *m, ea_advice *out)
{
    if (m->sanitizer[0])
        say(out,
            "this program is built with %s, which makes it several times slower: use a "
            "release build",
            m->sanitizer);
    if (!m->optimised)
        say(out, "this program is built without optimisation: configure it with "
                 "-DCMAKE_BUILD_TYPE=Release");
}

static void advise_instructions(const ea_machine *m, ea_advice *out)
{
    static const char *const names[] = {"AVX", "AVX-512", "AMX"};
    const ea_permission given[] = {m->avx, m->avx512, m->amx};
    const char *top = ea_cpu_level_name(EA_CPU_N_LEVELS - 1);
    if (m->mask[0] && !m->mask_known)
        say(out,
            "EA_CPU=%.40s names no level and is ignored; levels are ref, avx2, avx2vnni, "
            "avx512, avx512vnni, avx512bf16, amx",
            m->mask);
    else if (m->mask[0] && strcmp(m->mask, top) != 0)
        say(out, "EA_CPU=%.40s masks every instruction-set level above that one: unset it",
            m->mask);
    for (size_t i = 0; i < EA_ARRAY_LEN(names); i++)
        if (given[i] == EA_PERMISSION_REFUSED)
            say(out,
                "the processor has %s, but the system does not let this process use it: look "
                "for a kernel option (clearcpuid, noxsave), an old kernel (AMX needs Linux "
                "5.16) or a hypervisor that hides it",
                names[i]);
}

static void advise_cores(const ea_machine *m, ea_advice *out)
{
    int allowed = m->n_cores_allowed ? m->n_cores_allowed : m->n_cpus_allowed;
    if (m->n_cores_allowed && m->n_cores_allowed < m->n_cores)
        say(out,
            "the affinity mask allows %d of %d cores: start the program without taskset, or "
            "give the container more processors",
            m->n_cores_allowed, m->n_cores);
    if (m->group.cpus > 0 && m->group.cpus < allowed)
        say(out,
            "the control group's quota is %.4g processors for %d cores: threads beyond it are "
            "stopped again and again; raise cpu.max, or keep -t at %d",
            m->group.cpus, allowed, m->group.cpus < 1 ? 1 : (int)m->group.cpus);
    /* intel_pstate and amd-pstate in active mode go up to full speed under this name as well. */
    if (strcmp(m->governor, "powersave") == 0 && !strstr(m->driver, "pstate"))
        say(out, "the frequency governor is powersave, which keeps the lowest frequency: cpupower "
                 "frequency-set -g performance");
    if (m->n_numa > 1)
        say(out,
            "memory is in %d nodes, and weights would lie in one of them: run under numactl "
            "--interleave=all",
            m->n_numa);
    if (m->load >= 0.5)
        say(out,
            "other programs kept %.1f processors busy in the last minute: figures are lower, "
            "and so is speed, while they run",
            m->load);
}

static void advise_memory(const ea_machine *m, ea_advice *out)
{
    if (strcmp(m->thp_enabled, "never") == 0)
        say(out, "transparent huge pages are off, which makes reading weights slower: echo madvise "
                 "> /sys/kernel/mm/transparent_hugepage/enabled");
    if (m->group.memory_max != UINT64_MAX && (double)m->group.memory_max < 2 * gib)
        say(out,
            "the control group's memory limit is %.2f GiB, too little for most models: raise "
            "memory.max",
            (double)m->group.memory_max / gib);
    else if (m->memory_available && (double)m->memory_available < gib)
        say(out,
            "only %.2f GiB of memory are available: stop other programs, or use a smaller "
            "model",
            (double)m->memory_available / gib);
    if ((double)m->swap_used > gib)
        say(out,
            "%.1f GiB are swapped out: memory is short, and what is read back from swap stalls "
            "the step",
            (double)m->swap_used / gib);
    if (m->address_bytes != UINT64_MAX)
        say(out,
            "the address space is limited to %.1f GiB, and model files are mapped into it: "
            "ulimit -v unlimited",
            (double)m->address_bytes / gib);
    if (m->open_files < 1024)
        say(out,
            "only %llu files may be open, and each client of the server takes one: ulimit -n "
            "4096",
            (unsigned long long)m->open_files);
}

static void advise_limits(const ea_doctor_limits *limits, ea_advice *out)
{
    int n = limits->n_threads;
    double reached = limits->int8[0] > 0 ? limits->int8[1] / limits->int8[0] : 0;
    if (limits->measured && n > 1 && reached < 0.75 * n)
        say(out,
            "%d threads together compute only %.1f times as much as one: other programs or "
            "other virtual machines use these cores, or the cores are halves of one",
            n, reached);
}

void ea_doctor_advise(const ea_machine *m, const ea_doctor_limits *limits, ea_advice *out)
{
    out->n = 0;
    advise_build(m, out);
    advise_instructions(m, out);
    advise_cores(m, out);
    advise_memory(m, out);
    advise_limits(limits, out);
}
