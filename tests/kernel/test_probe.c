/* test_probe.c: the list of kernels, and that every one of them can be measured. How fast they are
 * is nobody's business here. */
#include "support.h"

#include <math.h>
#include <sched.h>
#include <string.h>

#include "base/cpu.h"
#include "base/error.h"

enum { MAX_KERNELS = 512 };

static ea_kernel_info kernels[MAX_KERNELS];
static size_t n_kernels;
static ea_probe *probe;

static int open_probe(void **state)
{
    (void)state;
    ea_probe_params params;
    ea_error err = {0};
    n_kernels = ea_kernels(kernels, MAX_KERNELS);
    ea_probe_params_default(&params);
    params.n_threads = 2;
    params.n_bytes = 8 << 20;
    params.seconds = 1e-9;
    return ea_probe_create(&params, &probe, &err) == EA_OK ? 0 : -1;
}

static int close_probe(void **state)
{
    (void)state;
    ea_probe_destroy(probe);
    return 0;
}

static bool same_slot(const ea_kernel_info *a, const ea_kernel_info *b)
{
    return strcmp(a->op, b->op) == 0 && strcmp(a->format, b->format) == 0;
}

static void the_list_names_one_kernel_in_use_for_each_slot(void **state)
{
    (void)state;
    assert_in_range(n_kernels, 1, MAX_KERNELS);
    assert_int_equal(ea_kernels(NULL, 0), n_kernels);
    for (size_t i = 0; i < n_kernels; i++) {
        int n_used = 0, last_usable = -1;
        for (size_t j = 0; j < n_kernels; j++)
            if (same_slot(&kernels[i], &kernels[j])) {
                n_used += kernels[j].used;
                last_usable = kernels[j].usable ? (int)j : last_usable;
                assert_true(j == i || strcmp(kernels[i].level, kernels[j].level) != 0);
            }
        assert_int_equal(n_used, 1);
        assert_true(kernels[last_usable].used);
        assert_int_equal(strcmp(kernels[i].op, "matmul") == 0, kernels[i].format[0] != '\0');
    }
}

static void every_product_can_be_measured(void **state)
{
    (void)state;
    int n_measured = 0;
    for (size_t i = 0; i < n_kernels; i++) {
        const ea_kernel_info *kernel = &kernels[i];
        if (strcmp(kernel->op, "matmul") != 0)
            continue;
        for (int n_rows = 1; n_rows <= 5; n_rows += 4) {
            ea_product product = {kernel->format, kernel->level, 40, 512, n_rows};
            ea_product_time time;
            ea_error err = {0};
            ea_status status = ea_probe_product(probe, &product, &time, &err);
            if (!kernel->usable) {
                assert_int_equal(status, EA_EUNSUPPORTED);
                continue;
            }
            assert_ok(status, &err);
            assert_string_equal(time.level, kernel->level);
            assert_true(time.seconds > 0 && isfinite(time.seconds));
            assert_true(time.n_macs == 40.0 * 512 * n_rows);
            assert_true(time.n_bytes >= 48 * 512 * 2.0 / 8); /* no format has fewer bits than 2 */
            assert_true(time.n_bytes <= 48 * 512 * 4.0);
            product.level = NULL;
            assert_ok(ea_probe_product(probe, &product, &time, &err), &err);
            if (kernel->used)
                assert_string_equal(time.level, kernel->level);
            n_measured++;
        }
    }
    assert_true(n_measured > 0);
}

static void limits_are_figures(void **state)
{
    (void)state;
    ea_error err = {0};
    assert_true(ea_probe_bandwidth(probe) > 0);
    for (int kind = EA_PEAK_INT8; kind <= EA_PEAK_F32; kind++) {
        double peak = 0;
        assert_ok(ea_probe_peak(probe, (ea_peak_kind)kind, NULL, &peak, &err), &err);
        assert_true(peak > 0 && isfinite(peak));
        for (int level = 0; level < EA_CPU_N_LEVELS; level++) {
            ea_error why = {0};
            ea_status status = ea_probe_peak(probe, (ea_peak_kind)kind,
                                             ea_cpu_level_name((ea_cpu_level)level), &peak, &why);
            assert_int_equal(status, ea_cpu_has((ea_cpu_level)level) ? EA_OK : EA_EUNSUPPORTED);
        }
    }
}

static void threads_can_be_changed(void **state)
{
    (void)state;
    ea_error err = {0};
    cpu_set_t before, after;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(ea_probe_threads(probe), 2);
    assert_ok(ea_probe_set_threads(probe, 1, &err), &err);
    assert_int_equal(ea_probe_threads(probe), 1);
    assert_true(ea_probe_bandwidth(probe) > 0);
    assert_ok(ea_probe_set_threads(probe, 0, &err), &err);
    assert_int_equal(ea_probe_threads(probe), ea_cpu_default_threads());
    assert_int_equal(ea_probe_set_threads(probe, -1, NULL), EA_EINVAL);
    assert_ok(ea_probe_set_threads(probe, 7, &err), &err); /* here or there more than cores */
    assert_true(ea_probe_bandwidth(probe) > 0);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

static void wrong_values_are_named(void **state)
{
    (void)state;
    const struct {
        ea_product product;
        ea_status status;
        const char *text;
    } cases[] = {
        {{"Q9_9", NULL, 16, 256, 1}, EA_EINVAL, "Q9_9"},
        {{NULL, NULL, 16, 256, 1}, EA_EINVAL, "format"},
        {{"Q4_K", "sse9", 16, 256, 1}, EA_EINVAL, "sse9"},
        {{"Q4_K", NULL, 0, 256, 1}, EA_EINVAL, "n: 0"},
        {{"Q4_K", NULL, 16, 128, 1}, EA_EINVAL, "k: 128"},
        {{"Q4_K", NULL, 16, 256, 0}, EA_EINVAL, "n_rows: 0"},
        {{"Q4_K", NULL, 16, 256, 513}, EA_EINVAL, "n_rows: 513"},
        {{"I32", NULL, 16, 256, 1}, EA_EUNSUPPORTED, "I32"},
        {{"F32", NULL, 1 << 20, 1 << 16, 1}, EA_ENOMEM, "bytes"},
    };
    for (size_t i = 0; i < EA_ARRAY_LEN(cases); i++) {
        ea_error err = {0};
        ea_product_time time;
        assert_int_equal(ea_probe_product(probe, &cases[i].product, &time, &err), cases[i].status);
        assert_non_null(strstr(err.text, cases[i].text));
    }
}

static void wrong_parameters_are_named(void **state)
{
    (void)state;
    const ea_probe_params cases[] = {
        {.size = 1},
        {.size = sizeof(ea_probe_params), .n_threads = 1 << 20},
        {.size = sizeof(ea_probe_params), .n_bytes = 4096},
        {.size = sizeof(ea_probe_params), .seconds = NAN},
    };
    for (size_t i = 0; i < EA_ARRAY_LEN(cases); i++) {
        ea_probe *none = NULL;
        assert_int_equal(ea_probe_create(&cases[i], &none, NULL), EA_EINVAL);
        assert_null(none);
    }
    ea_probe_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_list_names_one_kernel_in_use_for_each_slot),
        cmocka_unit_test(every_product_can_be_measured),
        cmocka_unit_test(limits_are_figures),
        cmocka_unit_test(threads_can_be_changed),
        cmocka_unit_test(wrong_values_are_named),
        cmocka_unit_test(wrong_parameters_are_named),
    };
    return cmocka_run_group_tests(tests, open_probe, close_probe);
}
