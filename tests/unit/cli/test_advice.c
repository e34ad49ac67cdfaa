/* test_advice.c: what doctor tells to fix: nothing on a good machine, and one line for each fault
 * that a machine is given here. */
#include "support.h"

#include <string.h>

#include "cli/doctor.h"

/* A machine on which nothing is wrong. */
static ea_machine good_machine(void)
{
    return (ea_machine){.n_cpus = 16,
                        .n_cpus_allowed = 16,
                        .n_cores = 8,
                        .n_cores_allowed = 8,
                        .n_numa = 1,
                        .group = {.memory_max = UINT64_MAX, .memory_left = UINT64_MAX},
                        .load = 0.1,
                        .governor = "powersave",
                        .driver = "intel_pstate",
                        .avx = EA_PERMISSION_GRANTED,
                        .avx512 = EA_PERMISSION_GRANTED,
                        .amx = EA_PERMISSION_ABSENT,
                        .mask = "",
                        .memory_total = (uint64_t)32 << 30,
                        .memory_available = (uint64_t)28 << 30,
                        .thp_enabled = "madvise",
                        .thp_defrag = "madvise",
                        .open_files = 20000,
                        .locked_bytes = 8 << 20,
                        .address_bytes = UINT64_MAX,
                        .optimised = true,
                        .sanitizer = ""};
}

static const ea_doctor_limits good_limits = {.measured = true,
                                             .n_threads = 8,
                                             .read = {15e9, 60e9},
                                             .int8 = {300e9, 2300e9},
                                             .f32 = {80e9, 600e9}};

static ea_advice advice;

static void expect(const ea_machine *m, const ea_doctor_limits *limits, const char *part)
{
    ea_doctor_advise(m, limits, &advice);
    if (advice.n != 1)
        fail_msg("%d lines instead of one with '%s': %s", advice.n, part,
                 advice.n ? advice.lines[1] : "none");
    if (!strstr(advice.lines[0], part))
        fail_msg("'%s' is not in: %s", part, advice.lines[0]);
}

static void nothing_is_said_of_a_good_machine(void **state)
{
    (void)state;
    ea_machine m = good_machine();
    ea_doctor_advise(&m, &good_limits, &advice);
    assert_int_equal(advice.n, 0);
    ea_doctor_advise(&m, &(ea_doctor_limits){0}, &advice); /* not measured */
    assert_int_equal(advice.n, 0);
    m.mask = "amx", m.mask_known = true; /* masks nothing */
    m.group.cpus = 8;                    /* just enough */
    ea_doctor_advise(&m, &good_limits, &advice);
    assert_int_equal(advice.n, 0);
}

#define EXPECT(change, part)            \
    do {                                \
        ea_machine m = good_machine();  \
        change;                         \
        expect(&m, &good_limits, part); \
    } while (0)

static void each_fault_has_its_line(void **state)
{
    (void)state;
    EXPECT((m.mask = "avx2", m.mask_known = true), "EA_CPU=avx2 masks");
    EXPECT(m.mask = "sse9", "EA_CPU=sse9 names no level");
    EXPECT(m.sanitizer = "AddressSanitizer", "AddressSanitizer");
    EXPECT(m.optimised = false, "without optimisation");
    EXPECT(m.avx = EA_PERMISSION_REFUSED, "has AVX, but");
    EXPECT(m.avx512 = EA_PERMISSION_REFUSED, "has AVX-512, but");
    EXPECT(m.amx = EA_PERMISSION_REFUSED, "has AMX, but");
    EXPECT(m.n_cores_allowed = 3, "allows 3 of 8 cores");
    EXPECT(m.group.cpus = 2.5,
           "2.5 processors for 8 cores: threads beyond it are stopped again and "
           "again; raise cpu.max, or keep -t at 2");
    EXPECT(m.group.cpus = 0.5, "-t at 1");
    EXPECT(strcpy(m.driver, "acpi-cpufreq"), "governor is powersave");
    EXPECT(m.n_numa = 2, "2 nodes");
    EXPECT(m.load = 3.21, "3.2 processors busy");
    EXPECT(strcpy(m.thp_enabled, "never"), "huge pages are off");
    EXPECT(m.group.memory_max = 1 << 30, "1.00 GiB");
    EXPECT(m.memory_available = 512 << 20, "only 0.50 GiB");
    EXPECT(m.swap_used = (uint64_t)3 << 30, "3.0 GiB are swapped out");
    EXPECT(m.address_bytes = (uint64_t)4 << 30, "limited to 4.0 GiB");
    EXPECT(m.open_files = 256, "only 256 files");
}

static void cores_that_do_not_add_up_are_told(void **state)
{
    (void)state;
    ea_machine m = good_machine();
    ea_doctor_limits limits = good_limits;
    limits.int8[1] = 3.3 * limits.int8[0];
    expect(&m, &limits, "8 threads together compute only 3.3 times");
    limits.measured = false;
    ea_doctor_advise(&m, &limits, &advice);
    assert_int_equal(advice.n, 0);
}

static void all_faults_at_once_fit(void **state)
{
    (void)state;
    char mask[400];
    memset(mask, 'x', sizeof mask);
    mask[sizeof mask - 1] = '\0';
    ea_machine m = {.n_cores = 8,
                    .n_cores_allowed = 1,
                    .n_numa = 2,
                    .load = 9,
                    .mask = mask,
                    .avx = EA_PERMISSION_REFUSED,
                    .avx512 = EA_PERMISSION_REFUSED,
                    .amx = EA_PERMISSION_REFUSED,
                    .sanitizer = "ThreadSanitizer",
                    .governor = "powersave",
                    .thp_enabled = "never",
                    .memory_available = 1,
                    .swap_used = UINT64_MAX};
    m.group.cpus = 0.1;
    ea_doctor_limits limits = {.measured = true, .n_threads = 4, .int8 = {1, 1}};
    ea_doctor_advise(&m, &limits, &advice);
    assert_in_range(advice.n, 15, EA_ADVICE_LINES - 1); /* none was cut off */
    for (int i = 0; i < advice.n; i++)
        assert_in_range(strlen(advice.lines[i]), 1, EA_ADVICE_BYTES - 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_said_of_a_good_machine),
        cmocka_unit_test(each_fault_has_its_line),
        cmocka_unit_test(cores_that_do_not_add_up_are_told),
        cmocka_unit_test(all_faults_at_once_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
