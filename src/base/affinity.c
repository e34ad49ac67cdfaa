/* affinity.c: see affinity.h. */
#include "base/affinity.h"

#include <hwloc.h>

/* Append the cores of a kind (NULL: all). */
static int add_cores(hwloc_topology_t topo, hwloc_const_bitmap_t kind, hwloc_const_bitmap_t mine,
                     hwloc_bitmap_t of, int *cpus, int n, int count)
{
    int n_cores = hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_CORE);
    for (int i = 0; i < n_cores; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(topo, HWLOC_OBJ_CORE, (unsigned)i);
        if (!core || !core->cpuset)
            continue;
        hwloc_bitmap_and(of, core->cpuset, mine);
        if (kind)
            hwloc_bitmap_and(of, of, kind);
        int cpu = hwloc_bitmap_first(of);
        if (cpu < 0)
            continue;
        if (count < n)
            cpus[count] = cpu;
        count++;
    }
    return count;
}

int ea_affinity_cores(int *cpus, int n, int *n_fast)
{
    hwloc_topology_t topo;
    int count = 0, fast = 0;
    if (hwloc_topology_init(&topo) != 0)
        return 0;
    hwloc_bitmap_t mine = hwloc_bitmap_alloc(), kind = hwloc_bitmap_alloc(),
                   of = hwloc_bitmap_alloc();
    if (mine && kind && of && hwloc_topology_load(topo) == 0 &&
        hwloc_get_cpubind(topo, mine, HWLOC_CPUBIND_PROCESS) == 0) {
        int n_kinds = hwloc_cpukinds_get_nr(topo, 0), rank = 0; /* slowest first */
        for (int i = n_kinds - 1; i >= 0; i--) {
            if (hwloc_cpukinds_get_info(topo, (unsigned)i, kind, &rank, NULL, NULL, 0) != 0)
                continue;
            count = add_cores(topo, kind, mine, of, cpus, n, count);
            if (fast < 2 || rank < 0)
                fast = count;
        }
        if (n_kinds <= 0)
            fast = count = add_cores(topo, NULL, mine, of, cpus, n, count);
    }
    hwloc_bitmap_free(mine);
    hwloc_bitmap_free(kind);
    hwloc_bitmap_free(of);
    hwloc_topology_destroy(topo);
    if (n_fast)
        *n_fast = fast;
    return count;
}

bool ea_affinity_bind(int cpu, cpu_set_t *old)
{
    cpu_set_t set, before;
    if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getaffinity(0, sizeof before, &before) != 0)
        return false;
    CPU_ZERO(&set);
    CPU_SET((unsigned)cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        return false;
    if (old)
        *old = before;
    return true;
}

void ea_affinity_restore(const cpu_set_t *old)
{
    (void)sched_setaffinity(0, sizeof *old, old);
}
