/* test_table.c: the overlay of kernel tables: nothing is missing, every slot comes from the highest
 * level that the machine has and EA_CPU does not mask, and the public functions work through it.
 * ctest runs this program once as it is and once per mask. */
#include "kernel_support.h"

#include "base/buf.h"

/* The slot of table `t` that the overlay must have taken: the last of the levels in force. */
#define CHECK_SLOT(slot)                                                \
    do {                                                                \
        const char *name = NULL;                                        \
        for (size_t i = 0; i < n; i++)                                  \
            if (ea_cpu_has(levels[i].level) && levels[i].table->slot) { \
                expect.slot = levels[i].table->slot;                    \
                name = ea_cpu_level_name(levels[i].level);              \
            }                                                           \
        assert_non_null(ea_kernel()->slot);                             \
        assert_true(ea_kernel()->slot == expect.slot);                  \
        assert_non_null(name);                                          \
        n_slots++;                                                      \
    } while (0);

static void test_overlay(void **state)
{
    (void)state;
    size_t n;
    int n_slots = 0;
    const ea_kernel_level *levels = ea_kernel_levels(&n);
    static ea_kernel_table expect;
#define EA_SLOT(name, ret, args, names) CHECK_SLOT(name)
#define EA_MATMUL(name, dtype) CHECK_SLOT(matmul_##name)
#include "kernel/kernel_slots.def"
#undef EA_SLOT
#undef EA_MATMUL
    assert_int_equal(n_slots, sizeof(ea_kernel_table) / sizeof(void *));
}

/* The reference has every slot, so that every machine runs and every test has an oracle. */
static void test_reference_is_whole(void **state)
{
    (void)state;
#define EA_SLOT(name, ret, args, names) assert_non_null(ea_kernel_ref.name);
#define EA_MATMUL(name, dtype) assert_non_null(ea_kernel_ref.matmul_##name);
#include "kernel/kernel_slots.def"
#undef EA_SLOT
#undef EA_MATMUL
}

/* EA_CPU names the highest level in force. */
static void test_mask(void **state)
{
    (void)state;
    const char *mask = getenv("EA_CPU");
    size_t n;
    bool above = false;
    const ea_kernel_level *levels = ea_kernel_levels(&n);
    for (size_t i = 0; mask && i < n; i++) {
        if (above)
            assert_false(ea_cpu_has(levels[i].level));
        above = above || strcmp(mask, ea_cpu_level_name(levels[i].level)) == 0;
    }
    assert_true(!mask || above);
    assert_true(ea_cpu_has(EA_CPU_REF));
}

static void test_report(void **state)
{
    (void)state;
    ea_buf buf = EA_BUF_INIT;
    ea_kernel_report(&buf);
    assert_false(buf.failed);
    assert_non_null(buf.data);
    assert_null(strstr(buf.data, "missing"));
#define EA_SLOT(name, ret, args, names) assert_non_null(strstr(buf.data, #name));
#define EA_MATMUL(name, dtype) assert_non_null(strstr(buf.data, "matmul " #dtype));
#include "kernel/kernel_slots.def"
#undef EA_SLOT
#undef EA_MATMUL
    ea_buf_done(&buf);
}

/* A small product through the public functions gives the reference's bits under any mask. */
static void test_public(void **state)
{
    (void)state;
    enum { N = 20, K = 256, ROWS = 5 };
    for (size_t t = 0; t < EA_ARRAY_LEN(matmul_types); t++) {
        rng r = {7};
        ea_matrix m;
        size_t n_bytes, row_bytes = ea_dtype_row_bytes(matmul_types[t], K);
        ea_error err = {0};
        assert_ok(ea_matrix_init(&m, matmul_types[t], N, K, &n_bytes, &err), &err);
        uint8_t *file = checked(ea_malloc(N * row_bytes));
        for (int i = 0; i < N; i++)
            fill_weights(&r, matmul_types[t], W_RANDOM, K, file + (size_t)i * row_bytes);
        m.data = checked(ea_pages_alloc(n_bytes));
        for (int i = 0; i < m.n_tiles; i++)
            ea_matrix_pack_tile(&m, i, file);
        size_t x_bytes = ea_acts_bytes(ROWS, K, 1u << ea_matrix_form(&m));
        void *x_mem = checked(ea_pages_alloc(x_bytes));
        ea_acts x;
        ea_acts_init(&x, ROWS, K, 1u << ea_matrix_form(&m), x_mem);
        for (int i = 0; i < ROWS; i++) {
            for (int j = 0; j < K; j++)
                ea_acts_row(&x, i)[j] = rng_float(&r);
            if (ea_matrix_form(&m) != EA_FORM_F32)
                ea_acts_quantise(&x, i);
        }
        float got[ROWS][N], want[ROWS][N];
        ea_matmul_args args = {
            .w = &m, .x = &x, .n_rows = ROWS, .tile1 = m.n_tiles, .out = got[0], .ld = N};
        ea_matmul(&args);
        args.out = want[0];
        ea_kernel_matmul(&ea_kernel_ref, matmul_types[t])->run(&args);
        assert_memory_equal(got, want, sizeof got);
        ea_free(file);
        ea_pages_free(m.data, n_bytes);
        ea_pages_free(x_mem, x_bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overlay), cmocka_unit_test(test_reference_is_whole),
        cmocka_unit_test(test_mask),    cmocka_unit_test(test_report),
        cmocka_unit_test(test_public),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
