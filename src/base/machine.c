/* machine.c: see machine.h. Files of /proc and /sys: Linux, Documentation/filesystems/proc.rst,
 * admin-guide/mm/transhuge.rst. */
#include "base/machine.h"

#include <hwloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/mem.h"

/* ---- small files ---- */

/* First line of a file without its end; "" if it cannot be read. */
static void read_line(const char *root, const char *name, char *buf, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s%s", root, name);
    FILE *f = fopen(path, "re");
    if (!f || !fgets(buf, (int)size, f))
        buf[0] = '\0';
    buf[strcspn(buf, "\n")] = '\0';
    if (f)
        fclose(f);
}

/* The word in brackets: "always [madvise] never". */
static void read_choice(const char *root, const char *name, char *buf, size_t size)
{
    char line[128];
    read_line(root, name, line, sizeof line);
    const char *open = strchr(line, '[');
    size_t n = open ? strcspn(open + 1, "]") : 0;
    snprintf(buf, size, "%.*s", (int)n, open ? open + 1 : "");
}

static void read_meminfo(ea_machine *m, const char *root)
{
    char path[4096], line[128], name[64];
    unsigned long long value, swap_free = 0;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%63[^:]: %llu", name, &value) != 2)
            continue;
        if (strcmp(name, "SwapTotal") == 0)
            m->swap_total = value * 1024;
        else if (strcmp(name, "SwapFree") == 0)
            swap_free = value * 1024;
        else if (strcmp(name, "HugePages_Total") == 0)
            m->huge_total = value;
        else if (strcmp(name, "HugePages_Free") == 0)
            m->huge_free = value;
        else if (strcmp(name, "Hugepagesize") == 0)
            m->huge_bytes = value * 1024;
    }
    fclose(f);
    m->swap_used = m->swap_total - EA_MIN(m->swap_total, (uint64_t)swap_free);
}

/* ---- topology ---- */

static void count_cores(hwloc_topology_t topo, hwloc_const_bitmap_t of, hwloc_const_bitmap_t mine,
                        int *n_cores, int *n_allowed)
{
    int n = hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_CORE);
    for (int i = 0; i < n; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(topo, HWLOC_OBJ_CORE, (unsigned)i);
        if (!core || !core->cpuset || (of && !hwloc_bitmap_intersects(core->cpuset, of)))
            continue;
        ++*n_cores;
        *n_allowed += hwloc_bitmap_intersects(core->cpuset, mine) != 0;
    }
}

static void read_kinds(ea_machine *m, hwloc_topology_t topo, hwloc_const_bitmap_t mine)
{
    int n = hwloc_cpukinds_get_nr(topo, 0);
    hwloc_bitmap_t of = hwloc_bitmap_alloc();
    for (int i = EA_MAX(0, n - EA_MACHINE_KINDS); of && i < n; i++) {
        unsigned n_infos = 0;
        struct hwloc_info_s *infos = NULL;
        ea_core_kind *kind = &m->kinds[m->n_kinds];
        if (hwloc_cpukinds_get_info(topo, (unsigned)i, of, NULL, &n_infos, &infos, 0) != 0)
            continue;
        count_cores(topo, of, mine, &kind->n_cores, &kind->n_allowed);
        for (unsigned j = 0; j < n_infos; j++)
            if (strcmp(infos[j].name, "FrequencyMaxMHz") == 0)
                kind->mhz = atoi(infos[j].value);
        m->n_kinds++;
    }
    hwloc_bitmap_free(of);
}

static void read_topology(ea_machine *m)
{
    static const hwloc_obj_type_t caches[] = {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE,
                                              HWLOC_OBJ_L3CACHE};
    hwloc_topology_t topo;
    if (hwloc_topology_init(&topo) != 0)
        return;
    hwloc_bitmap_t mine = hwloc_bitmap_alloc();
    if (mine && hwloc_topology_load(topo) == 0 &&
        hwloc_get_cpubind(topo, mine, HWLOC_CPUBIND_PROCESS) == 0) {
        count_cores(topo, NULL, mine, &m->n_cores, &m->n_cores_allowed);
        m->n_numa = hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_NUMANODE);
        for (size_t i = 0; i < EA_ARRAY_LEN(caches); i++) {
            hwloc_obj_t cache = hwloc_get_obj_by_type(topo, caches[i], 0);
            if (cache && cache->attr)
                m->cache_bytes[i] = cache->attr->cache.size;
        }
        read_kinds(m, topo, mine);
    }
    hwloc_bitmap_free(mine);
    hwloc_topology_destroy(topo);
}

/* ---- the rest ---- */

static uint64_t process_limit(int resource)
{
    struct rlimit limit;
    return getrlimit((__rlimit_resource_t)resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY
               ? UINT64_MAX
               : (uint64_t)limit.rlim_cur;
}

static void read_mask(ea_machine *m)
{
    const char *mask = getenv("EA_CPU");
    m->mask = mask ? mask : "";
    for (int i = 0; i < EA_CPU_N_LEVELS; i++)
        m->mask_known |= strcmp(m->mask, ea_cpu_level_name((ea_cpu_level)i)) == 0;
}

/* How this library was compiled. */
static bool is_optimised(void)
{
#ifdef __OPTIMIZE__
    return true;
#else
    return false;
#endif
}

#ifndef __has_feature
#define __has_feature(x) 0
#endif

static const char *sanitizer(void)
{
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
    return "AddressSanitizer";
#elif defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
    return "ThreadSanitizer";
#else
    return "";
#endif
}

static void read_files(ea_machine *m, const char *root)
{
    static const char thp[] = "/sys/kernel/mm/transparent_hugepage/",
                      cpufreq[] = "/sys/devices/system/cpu/cpu0/cpufreq/";
    char line[64], name[96];
    read_line(root, "/proc/loadavg", line, sizeof line);
    if (sscanf(line, "%lf", &m->load) != 1)
        m->load = -1;
    snprintf(name, sizeof name, "%sscaling_governor", cpufreq);
    read_line(root, name, m->governor, sizeof m->governor);
    snprintf(name, sizeof name, "%sscaling_driver", cpufreq);
    read_line(root, name, m->driver, sizeof m->driver);
    read_meminfo(m, root);
    snprintf(name, sizeof name, "%senabled", thp);
    read_choice(root, name, m->thp_enabled, sizeof m->thp_enabled);
    snprintf(name, sizeof name, "%sdefrag", thp);
    read_choice(root, name, m->thp_defrag, sizeof m->thp_defrag);
    ea_cgroup_read(&m->group, root);
}

void ea_machine_read(ea_machine *m, const char *root)
{
    cpu_set_t set;
    *m = (ea_machine){.load = -1};
    m->n_cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
    m->n_cpus_allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : m->n_cpus;
    read_topology(m);
    ea_machine_read_registers(m);
    read_mask(m);
    read_files(m, root);
    m->memory_total = ea_memory_total();
    m->memory_available = ea_memory_available();
    m->page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    m->open_files = process_limit(RLIMIT_NOFILE);
    m->locked_bytes = process_limit(RLIMIT_MEMLOCK);
    m->address_bytes = process_limit(RLIMIT_AS);
    m->optimised = is_optimised();
    m->sanitizer = sanitizer();
}
