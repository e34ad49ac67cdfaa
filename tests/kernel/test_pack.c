/* test_pack.c: packed matrices as a place to keep weights: every row comes back as the file had it,
 * and a matrix is hardly larger than in the file. The layouts themselves are tested by the products
 * (test_matmul.c). */
#include "kernel_support.h"

#include "kernel/unpack.h"

static int n_checked;

static void check_rows(const ea_matmul_impl *impl, int n, int k, uint64_t seed)
{
    rng r = {seed};
    ea_dtype type = impl->layout->type;
    const ea_dtype_info *info = ea_dtype_find((uint32_t)type);
    size_t row_bytes = ea_dtype_row_bytes(type, k), n_bytes = 0;
    ea_matrix m;
    ea_matrix_init_impl(&m, impl, n, k, &n_bytes);
    m.data = checked(ea_pages_alloc(n_bytes));
    uint8_t *rows = checked(malloc((size_t)n * row_bytes));
    float *want = checked(malloc((size_t)k * sizeof *want)),
          *got = checked(malloc((size_t)k * sizeof *got));
    for (int i = 0; i < n; i++)
        fill_weights(&r, type, (weight_mode)(i % N_WEIGHT_MODES), k, rows + (size_t)i * row_bytes);
    /* Packing leaves nothing of what was there. */
    uint8_t *over_zeros = checked(malloc(n_bytes));
    for (int tile = 0; tile < m.n_tiles; tile++)
        ea_matrix_pack_tile(&m, tile, rows);
    memcpy(over_zeros, m.data, n_bytes);
    memset(m.data, 0xa5, n_bytes);
    for (int tile = 0; tile < m.n_tiles; tile++)
        ea_matrix_pack_tile(&m, tile, rows);
    assert_memory_equal(m.data, over_zeros, n_bytes);
    free(over_zeros);
    for (int i = 0; i < n; i++) {
        info->dequantise(rows + (size_t)i * row_bytes, want, k);
        ea_matrix_row(&m, i, got);
        if (memcmp(want, got, (size_t)k * sizeof *want) != 0)
            fail_msg("%s: row %d of %d x %d is another", info->name, i, n, k);
        n_checked++;
    }
    free(got);
    free(want);
    free(rows);
    ea_pages_free(m.data, n_bytes);
}

static void rows_of_level(const ea_kernel_level *level)
{
    for (size_t i = 0; i < EA_ARRAY_LEN(matmul_types); i++) {
        const ea_matmul_impl *impl = ea_kernel_matmul(level->table, matmul_types[i]);
        if (!impl)
            continue;
        int block = ea_dtype_find((uint32_t)matmul_types[i])->block;
        for (int blocks = 1; blocks <= 4; blocks++) {
            check_rows(impl, 16, blocks * block, 1 + (uint64_t)blocks);
            check_rows(impl, 37, blocks * block, 9 + (uint64_t)blocks);
        }
        check_rows(impl, 3, 768, 77);
        if (block == 1)
            check_rows(impl, 16, 77, 78); /* a tile that does not end at a cache line */
    }
}

static void rows_come_back(void **state)
{
    (void)state;
    n_checked = 0;
    assert_true(for_each_level(rows_of_level) > 0);
    assert_true(n_checked > 1000);
}

/* Inputs and outputs of matrices of models from 135M to 70B. */
static const struct {
    int n, k;
} shapes[] = {{576, 576},   {192, 576},    {1536, 576},   {576, 1536},   {49152, 576},
              {896, 896},   {128, 896},    {4864, 896},   {896, 4864},   {151936, 896},
              {1536, 1536}, {256, 1536},   {8960, 1536},  {1536, 8960},  {151936, 1536},
              {2048, 2048}, {512, 2048},   {8192, 2048},  {2048, 8192},  {128256, 2048},
              {4096, 4096}, {1024, 4096},  {14336, 4096}, {4096, 14336}, {32000, 4096},
              {8192, 8192}, {28672, 8192}, {8192, 28672}, {18944, 3584}, {3584, 18944}};

static void bytes_of_level(const ea_kernel_level *level)
{
    for (size_t i = 0; i < EA_ARRAY_LEN(matmul_types); i++) {
        const ea_matmul_impl *impl = ea_kernel_matmul(level->table, matmul_types[i]);
        const ea_dtype_info *info = ea_dtype_find((uint32_t)matmul_types[i]);
        for (size_t s = 0; impl && s < EA_ARRAY_LEN(shapes); s++) {
            if (shapes[s].k % info->block)
                continue; /* a file has another format there */
            ea_matrix m;
            size_t packed, file = (size_t)shapes[s].n * ea_dtype_row_bytes(info->type, shapes[s].k);
            ea_matrix_init_impl(&m, impl, shapes[s].n, shapes[s].k, &packed);
            if (packed * 100 > file * 105)
                fail_msg("%s, %d x %d: %zu bytes packed, %zu in the file, level %s", info->name,
                         shapes[s].n, shapes[s].k, packed, file, ea_cpu_level_name(level->level));
            n_checked++;
        }
    }
}

/* A step reads each weight once: packed bytes are its traffic. */
static void packed_is_hardly_larger(void **state)
{
    (void)state;
    n_checked = 0;
    assert_true(for_each_level(bytes_of_level) > 0);
    assert_true(n_checked > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_back),
        cmocka_unit_test(packed_is_hardly_larger),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
