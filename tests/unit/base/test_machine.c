/* test_machine.c: control groups and the files of /proc and /sys, read from made-up trees. */
#include "support.h"

#include <hwloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/affinity.h"
#include "base/cgroup.h"
#include "base/machine.h"

static char root[64];

/* Write root/name, with its folders. */
static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *c = path + strlen(root) + 1; *c; c++)
        if (*c == '/') {
            *c = '\0';
            if (mkdir(path, 0700) != 0)
                assert_int_equal(access(path, F_OK), 0);
            *c = '/';
        }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/ea-machine-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int drop_root(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    return system(command);
}

#define GROUPS "sys/fs/cgroup/"

static void no_groups_no_limits(void **state)
{
    (void)state;
    ea_cgroup group;
    ea_cgroup_read(&group, root);
    assert_true(group.cpus == 0);
    assert_true(group.memory_max == UINT64_MAX);
    assert_true(group.memory_left == UINT64_MAX);
}

static void the_word_max_is_no_limit(void **state)
{
    (void)state;
    ea_cgroup group;
    put("proc/self/cgroup", "0::/\n");
    put(GROUPS "cpu.max", "max 100000\n");
    put(GROUPS "memory.max", "max\n");
    put(GROUPS "memory.current", "12345\n");
    ea_cgroup_read(&group, root);
    assert_true(group.cpus == 0);
    assert_true(group.memory_max == UINT64_MAX);
    assert_true(group.memory_left == UINT64_MAX);
}

static void own_limits_count(void **state)
{
    (void)state;
    ea_cgroup group;
    put("proc/self/cgroup", "0::/user.slice/app.scope\n");
    put(GROUPS "user.slice/app.scope/cpu.max", "150000 100000\n");
    put(GROUPS "user.slice/app.scope/memory.max", "1000000\n");
    put(GROUPS "user.slice/app.scope/memory.current", "300000\n");
    ea_cgroup_read(&group, root);
    assert_true(group.cpus == 1.5);
    assert_true(group.memory_max == 1000000);
    assert_true(group.memory_left == 700000);
}

static void the_least_limit_of_the_way_up_counts(void **state)
{
    (void)state;
    ea_cgroup group;
    put("proc/self/cgroup", "1:name=systemd:/other\n0::/a/b/c\n");
    put(GROUPS "a/b/c/cpu.max", "300000 100000\n");
    put(GROUPS "a/b/cpu.max", "50000 200000\n");
    put(GROUPS "a/cpu.max", "200000 100000\n");
    put(GROUPS "cpu.max", "max 100000\n");
    put(GROUPS "a/b/c/memory.max", "5000\n");
    put(GROUPS "a/b/c/memory.current", "1000\n");
    put(GROUPS "a/memory.max", "8000\n");
    put(GROUPS "a/memory.current", "7900\n");
    put(GROUPS "other/cpu.max", "1000 100000\n");
    put(GROUPS "a/b/c/d/cpu.max", "1000 100000\n");
    ea_cgroup_read(&group, root);
    assert_true(group.cpus == 0.25);
    assert_true(group.memory_max == 5000);
    assert_true(group.memory_left == 100); /* the parent's, not the one of the least limit */
}

static void a_path_of_the_host_leaves_the_roots_limits(void **state)
{
    (void)state;
    ea_cgroup group;
    put("proc/self/cgroup", "0::/docker/0123456789abcdef\n");
    put(GROUPS "cpu.max", "200000 100000\n");
    put(GROUPS "memory.max", "4096\n");
    put(GROUPS "memory.current", "8192\n");
    ea_cgroup_read(&group, root);
    assert_true(group.cpus == 2);
    assert_true(group.memory_max == 4096);
    assert_true(group.memory_left == 0); /* over the limit already */
}

static void machine_reads_the_systems_files(void **state)
{
    (void)state;
    ea_machine m;
    put("proc/loadavg", "3.25 1.00 0.50 2/345 6789\n");
    put("proc/meminfo",
        "MemTotal:       16384 kB\nSwapTotal:        2000 kB\nSwapFree:         500 kB\n"
        "HugePages_Total:       7\nHugePages_Free:        5\nHugepagesize:       2048 kB\n");
    put("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    put("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n");
    put("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    put("sys/kernel/mm/transparent_hugepage/defrag",
        "always defer defer+madvise [madvise] never\n");
    put("proc/self/cgroup", "0::/\n");
    put(GROUPS "cpu.max", "50000 100000\n");
    ea_machine_read(&m, root);
    assert_true(m.load == 3.25);
    assert_true(m.swap_total == 2000 * 1024 && m.swap_used == 1500 * 1024);
    assert_true(m.huge_total == 7 && m.huge_free == 5 && m.huge_bytes == 2048 * 1024);
    assert_string_equal(m.governor, "powersave");
    assert_string_equal(m.driver, "intel_pstate");
    assert_string_equal(m.thp_enabled, "never");
    assert_string_equal(m.thp_defrag, "madvise");
    assert_true(m.group.cpus == 0.5);
    assert_true(m.n_cpus >= m.n_cpus_allowed && m.n_cpus_allowed >= 1);
    assert_true(m.n_cores_allowed <= m.n_cores);
}

static void what_is_missing_is_unknown(void **state)
{
    (void)state;
    ea_machine m;
    put("sys/kernel/mm/transparent_hugepage/enabled", "nothing in brackets\n");
    ea_machine_read(&m, root);
    assert_true(m.load == -1);
    assert_string_equal(m.governor, "");
    assert_string_equal(m.thp_enabled, "");
    assert_string_equal(m.thp_defrag, "");
    assert_true(m.huge_bytes == 0 && m.swap_total == 0);
}

static void features_are_listed_once(void **state)
{
    (void)state;
    ea_cpu_feature features[64];
    size_t n = ea_cpu_features(features, EA_ARRAY_LEN(features));
    assert_true(n <= EA_ARRAY_LEN(features));
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(features[i].name, features[j].name);
    assert_int_equal(ea_cpu_features(NULL, 0), n);
}

static void cores_are_ours_and_threads_come_home(void **state)
{
    (void)state;
    int cpus[1024];
    cpu_set_t before, bound, after, old;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int n = ea_affinity_cores(cpus, EA_ARRAY_LEN(cpus), NULL);
    assert_in_range(n, 1, CPU_COUNT(&before));
    assert_int_equal(ea_affinity_cores(NULL, 0, NULL), n);
    for (int i = 0; i < n; i++) {
        assert_true(CPU_ISSET((unsigned)cpus[i], &before));
        for (int j = 0; j < i; j++)
            assert_int_not_equal(cpus[i], cpus[j]);
        assert_true(ea_affinity_bind(cpus[i], &old));
        assert_int_equal(sched_getaffinity(0, sizeof bound, &bound), 0);
        assert_true(CPU_COUNT(&bound) == 1 && CPU_ISSET((unsigned)cpus[i], &bound));
        ea_affinity_restore(&old);
        assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
        assert_true(CPU_EQUAL(&before, &after));
    }
    assert_false(ea_affinity_bind(-1, &old));
    assert_false(ea_affinity_bind(CPU_SETSIZE, &old));
}

/* A machine of 16 cores with two threads each, and its kinds of cores: the first `sizes[0]` cores
 * are the fastest, and so on; ranked or not. hwloc takes the file for the machine. */
static void pretend(const int *sizes, int n_kinds, bool ranked)
{
    hwloc_topology_t topo;
    char path[128];
    snprintf(path, sizeof path, "%s/machine.xml", root);
    assert_int_equal(hwloc_topology_init(&topo), 0);
    assert_int_equal(hwloc_topology_set_synthetic(topo, "pack:2 core:8 pu:2"), 0);
    assert_int_equal(hwloc_topology_load(topo), 0);
    for (int k = 0, core = 0; k < n_kinds; core += sizes[k++]) {
        hwloc_bitmap_t cpus = hwloc_bitmap_alloc();
        for (int i = core; i < core + sizes[k]; i++)
            hwloc_bitmap_or(cpus, cpus,
                            hwloc_get_obj_by_type(topo, HWLOC_OBJ_CORE, (unsigned)i)->cpuset);
        char name[] = "CoreType", value[16];
        snprintf(value, sizeof value, "%d", k);
        struct hwloc_info_s info = {name, value};
        assert_int_equal(hwloc_cpukinds_register(topo, cpus, ranked ? 9 - k : -1, 1, &info, 0), 0);
        hwloc_bitmap_free(cpus);
    }
    assert_int_equal(hwloc_topology_export_xml(topo, path, 0), 0);
    hwloc_topology_destroy(topo);
    assert_int_equal(setenv("HWLOC_XMLFILE", path, 1), 0);
}

static int drop_pretended(void **state)
{
    unsetenv("HWLOC_XMLFILE");
    return drop_root(state);
}

static void threads_are_the_fast_cores(void **state)
{
    (void)state;
    int cpus[32], n_fast;
    pretend(NULL, 0, false);
    assert_int_equal(ea_affinity_cores(cpus, 32, &n_fast), 16);
    assert_int_equal(n_fast, 16);
    assert_int_equal(cpus[1], 2); /* one processor of each core */
    pretend((int[]){6, 10}, 2, true);
    assert_int_equal(ea_affinity_cores(cpus, 32, &n_fast), 16);
    assert_int_equal(n_fast, 6);
    assert_int_equal(cpus[0], 0);
    assert_int_equal(cpus[6], 12);
    assert_int_equal(ea_affinity_cores(NULL, 0, NULL), 16);
    pretend((int[]){6, 10}, 2, false);
    assert_int_equal(ea_affinity_cores(cpus, 32, &n_fast), 16);
    assert_int_equal(n_fast, 16);
    /* One core that is faster than all others is no machine of its own. */
    pretend((int[]){1, 3, 12}, 3, true);
    assert_int_equal(ea_affinity_cores(cpus, 32, &n_fast), 16);
    assert_int_equal(n_fast, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_groups_no_limits, make_root, drop_root),
        cmocka_unit_test_setup_teardown(the_word_max_is_no_limit, make_root, drop_root),
        cmocka_unit_test_setup_teardown(own_limits_count, make_root, drop_root),
        cmocka_unit_test_setup_teardown(the_least_limit_of_the_way_up_counts, make_root, drop_root),
        cmocka_unit_test_setup_teardown(a_path_of_the_host_leaves_the_roots_limits, make_root,
                                        drop_root),
        cmocka_unit_test_setup_teardown(machine_reads_the_systems_files, make_root, drop_root),
        cmocka_unit_test_setup_teardown(what_is_missing_is_unknown, make_root, drop_root),
        cmocka_unit_test_setup_teardown(threads_are_the_fast_cores, make_root, drop_pretended),
        cmocka_unit_test(features_are_listed_once),
        cmocka_unit_test(cores_are_ours_and_threads_come_home),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
