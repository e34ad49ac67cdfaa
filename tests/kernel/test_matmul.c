/* test_matmul.c: every weight format at every level against the scalar reference (the same bits),
 * and the reference against a plain double-precision product (a tolerance from the number of
 * roundings and the magnitudes). Formats come from kernel_slots.def, so a new one is tested by
 * being listed. */
#include "kernel_support.h"

enum { MAX_ROWS = 140, MAX_N = 48, OUT_PAD = 5 };
static const uint32_t CANARY = 0x7fc0dead; /* a NaN that no kernel makes */

/* A packed matrix, its file rows and activations. */
typedef struct problem {
    ea_dtype type;
    int n, k, rows;
    uint8_t *file;
    ea_matrix w; /* packed for the reference */
    size_t w_bytes;
    ea_acts x;
    void *x_mem;
    size_t x_bytes;
    float *bias;
} problem;

static void quantise_ref(problem *p)
{
    for (int r = 0; r < p->rows; r++)
        ea_kernel_ref.acts_quantise_cols(&p->x, r, 0, p->k);
}

static void problem_init(problem *p, rng *r, ea_dtype type, int n, int k, int rows,
                         weight_mode mode)
{
    *p = (problem){.type = type, .n = n, .k = k, .rows = rows};
    size_t row_bytes = ea_dtype_row_bytes(type, k);
    p->file = checked(ea_malloc((size_t)n * row_bytes));
    for (int i = 0; i < n; i++)
        fill_weights(r, type, mode, k, p->file + (size_t)i * row_bytes);
    ea_matrix_init_impl(&p->w, ea_kernel_matmul(&ea_kernel_ref, type), n, k, &p->w_bytes);
    p->w.data = checked(ea_pages_alloc(p->w_bytes));
    for (int t = 0; t < p->w.n_tiles; t++)
        ea_matrix_pack_tile(&p->w, t, p->file);
    unsigned forms = 1u << ea_matrix_form(&p->w);
    p->x_bytes = ea_acts_bytes(rows, k, forms);
    p->x_mem = checked(ea_pages_alloc(p->x_bytes));
    ea_acts_init(&p->x, rows, k, forms, p->x_mem);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < k; j++) /* rows of different kinds: small, large, all alike, zero */
            ea_acts_row(&p->x, i)[j] = i % 5 == 4   ? 0
                                       : i % 5 == 3 ? (j % 3 ? 7.5f : -7.5f)
                                                    : rng_float(r) * (i % 5 == 2 ? 1000 : 1);
    quantise_ref(p);
    p->bias = checked(ea_malloc((size_t)n * sizeof *p->bias));
    for (int i = 0; i < n; i++)
        p->bias[i] = rng_float(r);
}

static void problem_done(problem *p)
{
    ea_free(p->file);
    ea_pages_free(p->w.data, p->w_bytes);
    ea_pages_free(p->x_mem, p->x_bytes);
    ea_free(p->bias);
}

/* out of `rows` rows from row0 over tiles tile0..tile1-1; a guarded buffer, see check_canaries. */
typedef struct output {
    float v[MAX_ROWS + 2][MAX_N + OUT_PAD];
} output;

/* Rows that a product of n_rows may write, and one on each side. */
static void fill_canaries(output *out, int n_rows)
{
    for (size_t i = 0; i < (size_t)(n_rows + 2) * sizeof out->v[0] / 4; i++)
        memcpy((uint8_t *)out + 4 * i, &CANARY, 4);
}

static void run(const problem *p, const ea_matrix *w, int row0, int rows, int tile0, int tile1,
                bool bias, bool accumulate, output *out)
{
    ea_matmul_args args = {.w = w,
                           .x = &p->x,
                           .row0 = row0,
                           .n_rows = rows,
                           .tile0 = tile0,
                           .tile1 = tile1,
                           .bias = bias ? p->bias : NULL,
                           .accumulate = accumulate,
                           .out = out->v[1],
                           .ld = MAX_N + OUT_PAD};
    ea_matmul(&args);
}

/* The written part equals rows row0.. of `want`, and nothing else was touched. */
static void check_output(const problem *p, const output *got, const output *want, int row0,
                         int rows, int tile0, int tile1, const char *level)
{
    for (int r = -1; r <= rows; r++)
        for (int c = 0; c < MAX_N + OUT_PAD; c++) {
            bool inside =
                r >= 0 && r < rows && c >= tile0 * EA_TILE_N && c < tile1 * EA_TILE_N && c < p->n;
            uint32_t g = ea_f32_bits(got->v[r + 1][c]);
            uint32_t w = inside ? ea_f32_bits(want->v[row0 + r + 1][c]) : CANARY;
            if (g != w)
                fail_msg(
                    "%s %s n=%d k=%d row0=%d rows=%d tiles %d..%d: [%d][%d] is %a (%08x), not %a",
                    level, ea_dtype_find((uint32_t)p->type)->name, p->n, p->k, row0, rows, tile0,
                    tile1, r, c, (double)ea_f32_from_bits(g), g, (double)ea_f32_from_bits(w));
        }
}

/* k values: odd and even numbers of blocks; for floats any number, around a strip of 128. */
static int sizes_of(ea_dtype type, int k[4])
{
    int block = ea_dtype_find((uint32_t)type)->block;
    if (block == 1) {
        memcpy(k, (int[]){1, 7, 128, 141}, 4 * sizeof *k);
        return 4;
    }
    k[0] = block, k[1] = 3 * block, k[2] = block == 32 ? 8 * block : 2 * block;
    return 3;
}

static const int n_sizes[] = {1, 15, 16, 17, 40};

/* ---- the reference against doubles ---- */

/* Input i of row r as the product sees it. */
static double quantised(const problem *p, int r, int i)
{
    ea_acts_form form = ea_matrix_form(&p->w);
    const struct ea_q8_chunk *c = ea_acts_q8(&p->x, form, r) + i / 256 * EA_ACTS_GROUP;
    return (double)c->q[i % 256] * (double)c->d[form == EA_FORM_Q8K ? 0 : i % 256 / 32];
}

/* Rounding of one output: each of the m steps of the sum rounds a partial sum, and each term has a
 * few roundings of its own (scales, dequantised value). Partial sums and terms are bounded by the
 * sum of magnitudes, minima counted apart since they cancel. */
static void check_against_doubles(const problem *p, const output *out, int *n_nonzero)
{
    const ea_dtype_info *info = ea_dtype_find((uint32_t)p->type);
    const block_fields *f = fields_of(p->type);
    size_t row_bytes = ea_dtype_row_bytes(p->type, p->k);
    float *w = checked(ea_malloc((size_t)p->k * sizeof *w)),
          *w0 = checked(ea_calloc((size_t)p->k, 4));
    uint8_t *codeless = checked(ea_malloc(row_bytes));
    for (int c = 0; c < p->n; c++) {
        const uint8_t *file = p->file + (size_t)c * row_bytes;
        info->dequantise(file, w, p->k);
        if (f) { /* the same scales with all codes zero: what the minima contribute */
            memcpy(codeless, file, row_bytes);
            for (int b = 0; b < p->k / info->block; b++) {
                uint8_t *block = codeless + (size_t)b * (size_t)info->block_bytes;
                memset(block + f->codes, 0, (size_t)f->n_codes);
                memset(block + f->codes2, 0, (size_t)f->n_codes2);
            }
            info->dequantise(codeless, w0, p->k);
        }
        for (int r = 0; r < p->rows; r++) {
            double sum = 0, magnitude = 0;
            for (int i = 0; i < p->k; i++) {
                double x = f ? quantised(p, r, i) : (double)ea_acts_row(&p->x, r)[i];
                sum += (double)w[i] * x;
                magnitude += (fabs((double)w[i]) + 2 * fabs((double)w0[i])) * fabs(x);
            }
            int steps = f ? 3 * p->k / 32 : p->k;
            double tolerance = (steps + 6) * 0x1p-24 * magnitude;
            double got = (double)out->v[r + 1][c];
            *n_nonzero += got != 0;
            if (!(fabs(got - sum) <= tolerance))
                fail_msg("%s n=%d k=%d: [%d][%d] is %.9g, not %.9g +- %.3g", info->name, p->n, p->k,
                         r, c, got, sum, tolerance);
        }
    }
    ea_free(w);
    ea_free(w0);
    ea_free(codeless);
}

static void test_reference(void **state)
{
    (void)state;
    rng r = {1};
    static output out;
    int n_cases = 0;
    for (size_t t = 0; t < EA_ARRAY_LEN(matmul_types); t++) {
        int k[4], n_k = sizes_of(matmul_types[t], k), n_nonzero = 0;
        for (int i = 0; i < n_k; i++)
            for (int mode = 0; mode < N_WEIGHT_MODES; mode++) {
                problem p;
                problem_init(&p, &r, matmul_types[t], 17, k[i], 9, (weight_mode)mode);
                fill_canaries(&out, p.rows);
                run(&p, &p.w, 0, p.rows, 0, p.w.n_tiles, false, false, &out);
                check_against_doubles(&p, &out, &n_nonzero);
                problem_done(&p);
                n_cases++;
            }
        assert_true(n_nonzero > 100);
    }
    assert_true(n_cases > 0);
}

/* ---- every level against the reference ---- */

/* All row counts 1..40, up to 33 from every row of a group of four; whole and split tile ranges;
 * bias and accumulation. */
static void compare_level(const problem *p, const ea_matrix *w, const output *want,
                          const char *level)
{
    static output got;
    int t1 = w->n_tiles;
    /* The reference has one row loop and is slow: fewer counts for it. */
    bool slow = strcmp(level, "ref") == 0;
    for (int rows = 1; rows <= 40; rows += slow && rows > 1 ? 15 : 1) {
        for (int row0 = 0; row0 < (rows > 33 ? 1 : 4); row0++) { /* 37 rows: past a group of 16 */
            fill_canaries(&got, rows);
            run(p, w, row0, rows, 0, t1, true, false, &got);
            check_output(p, &got, want, row0, rows, 0, t1, level);
        }
        for (int t = 0; t < t1; t += 2) {
            fill_canaries(&got, rows);
            run(p, w, 0, rows, t, EA_MIN(t + 2, t1), true, false, &got);
            check_output(p, &got, want, 0, rows, t, EA_MIN(t + 2, t1), level);
        }
    }
    fill_canaries(&got, 3); /* an empty range writes nothing */
    run(p, w, 0, 3, 0, 0, true, false, &got);
    check_output(p, &got, want, 0, 0, 0, 0, level);
}

static void compare_accumulate(const problem *p, const ea_matrix *w, const char *level)
{
    static output got, want, plain;
    fill_canaries(&plain, p->rows);
    run(p, &p->w, 0, p->rows, 0, w->n_tiles, false, false, &plain);
    fill_canaries(&got, p->rows);
    fill_canaries(&want, p->rows);
    for (int r = 1; r <= p->rows; r++)
        for (int c = 0; c < p->n; c++) {
            got.v[r][c] = (float)(r * 100 + c) / 7;
            float dot = plain.v[r][c] + p->bias[c]; /* the contract's order */
            want.v[r][c] = got.v[r][c] + dot;
        }
    run(p, w, 0, p->rows, 0, w->n_tiles, true, true, &got);
    check_output(p, &got, &want, 0, p->rows, 0, w->n_tiles, level);
}

/* The problem's weights for another implementation; free w.data, n_bytes of pages. */
static ea_matrix pack_for(const problem *p, const ea_matmul_impl *impl, size_t *n_bytes)
{
    ea_matrix w;
    ea_matrix_init_impl(&w, impl, p->n, p->k, n_bytes);
    w.data = checked(ea_pages_alloc(*n_bytes));
    for (int tile = 0; tile < w.n_tiles; tile++)
        ea_matrix_pack_tile(&w, tile, p->file);
    return w;
}

static int n_level_cases;

static void level_cases(const ea_kernel_level *level)
{
    const char *name = ea_cpu_level_name(level->level);
    rng r = {2};
    static output want;
    for (size_t t = 0; t < EA_ARRAY_LEN(matmul_types); t++) {
        const ea_matmul_impl *impl = ea_kernel_matmul(level->table, matmul_types[t]);
        if (!impl)
            continue;
        int k[4], n_k = sizes_of(matmul_types[t], k);
        for (int i = 0; i < n_k; i++)
            for (size_t j = 0; j < EA_ARRAY_LEN(n_sizes); j++) {
                int mode = (i + (int)j) % 2 ? (int)(rng_u32(&r) % N_WEIGHT_MODES) : W_RANDOM;
                problem p;
                problem_init(&p, &r, matmul_types[t], n_sizes[j], k[i], 40, (weight_mode)mode);
                fill_canaries(&want, p.rows);
                run(&p, &p.w, 0, p.rows, 0, p.w.n_tiles, true, false, &want);
                size_t n_bytes;
                ea_matrix w = pack_for(&p, impl, &n_bytes);
                compare_level(&p, &w, &want, name);
                compare_accumulate(&p, &w, name);
                ea_pages_free(w.data, n_bytes);
                problem_done(&p);
                n_level_cases++;
            }
    }
}

static void test_levels(void **state)
{
    (void)state;
    assert_true(for_each_level(level_cases) > 0);
    int n_formats = (int)EA_ARRAY_LEN(matmul_types);
#ifdef EA_TEST_AMX_EMULATED
    n_formats -= 3; /* the float formats are not the unit's */
#endif
    assert_true(n_level_cases >= n_formats * 3 * (int)EA_ARRAY_LEN(n_sizes));
}

/* Prompts: more rows than any block, from aligned and unaligned rows, k with a partial chunk;
 * floats with so many inputs that their rows go in several groups. */
static void many_row_cases(const ea_kernel_level *level)
{
    static const struct {
        int row0, rows;
    } parts[] = {{0, 137}, {0, 48}, {2, 49}, {0, 96}, {1, 121}, {4, 100}, {15, 34}, {13, 124}};
    rng r = {6};
    static output want, got;
    for (size_t t = 0; t < EA_ARRAY_LEN(matmul_types); t++) {
        const ea_matmul_impl *impl = ea_kernel_matmul(level->table, matmul_types[t]);
        if (!impl || level->level == EA_CPU_REF)
            continue;
        int block = ea_dtype_find((uint32_t)matmul_types[t])->block;
        int k = block == 256 ? 768 : matmul_types[t] == EA_DTYPE_F16 ? 2741 : 544;
        problem p;
        problem_init(&p, &r, matmul_types[t], 17, k, 137, W_RANDOM);
        fill_canaries(&want, p.rows);
        run(&p, &p.w, 0, p.rows, 0, p.w.n_tiles, true, false, &want);
        size_t n_bytes;
        ea_matrix w = pack_for(&p, impl, &n_bytes);
        for (size_t i = 0; i < EA_ARRAY_LEN(parts); i++) {
            if (k > 1000 && i % 2 != 0) /* enough of the long ones */
                continue;
            fill_canaries(&got, parts[i].rows);
            run(&p, &w, parts[i].row0, parts[i].rows, 0, w.n_tiles, true, false, &got);
            check_output(&p, &got, &want, parts[i].row0, parts[i].rows, 0, w.n_tiles,
                         ea_cpu_level_name(level->level));
        }
        ea_pages_free(w.data, n_bytes);
        problem_done(&p);
    }
}

static void test_many_rows(void **state)
{
    (void)state;
    assert_true(for_each_level(many_row_cases) > 0);
}

/* Every combination of extreme codes and extreme activations: sums at their bounds must not
 * saturate. */
static void extreme_cases(const ea_kernel_level *level)
{
    rng r = {3};
    static output want;
    for (size_t t = 0; t < EA_ARRAY_LEN(matmul_types); t++) {
        const ea_matmul_impl *impl = ea_kernel_matmul(level->table, matmul_types[t]);
        for (int mode = 0; impl && mode < N_WEIGHT_MODES; mode++) {
            problem p;
            problem_init(&p, &r, matmul_types[t], 16, 512, 40, (weight_mode)mode);
            for (int i = 0; i < p.rows; i++)
                for (int j = 0; j < p.k; j++) {
                    bool negative = i % 3 == 1 || (i % 3 == 2 && j % 2);
                    ea_acts_row(&p.x, i)[j] = negative ? -3.0f : 3.0f;
                }
            quantise_ref(&p);
            fill_canaries(&want, p.rows);
            run(&p, &p.w, 0, p.rows, 0, 1, true, false, &want);
            ea_matrix w = p.w;
            w.impl = impl;
            assert_ptr_equal(impl->layout, p.w.impl->layout);
            static output got;
            fill_canaries(&got, p.rows);
            run(&p, &w, 0, p.rows, 0, 1, true, false, &got);
            check_output(&p, &got, &want, 0, p.rows, 0, 1, ea_cpu_level_name(level->level));
            problem_done(&p);
        }
    }
}

static void test_extremes(void **state)
{
    (void)state;
    assert_true(for_each_level(extreme_cases) > 0);
}

/* ---- the activation quantiser ---- */

/* Rows of odd values; k = 72 so that the padding is seen too. */
static void fill_odd(ea_acts *a, rng *r)
{
    for (int i = 0; i < a->max_rows; i++)
        for (int j = 0; j < a->k; j++) {
            float x = rng_float(r);
            float *dst = &ea_acts_row(a, i)[j];
            switch (i) {
            case 1: *dst = x * 1e30f; break;
            case 2: *dst = x * 1e-38f; break; /* below the smallest block */
            case 3: *dst = 0; break;
            case 4: *dst = j == 3 ? NAN : x; break;
            case 5: *dst = j == 40 ? -INFINITY : x; break;
            case 6: *dst = j % 32 ? 0 : -x; break;
            case 7: *dst = (float)(j - 36) / 2; break; /* ties */
            case 8: *dst = j % 2 ? NAN : INFINITY; break;
            default: *dst = x; break;
            }
        }
}

/* NaN scales: one NaN is as good as another. */
static void unify_nans(ea_acts *a)
{
    for (int row = 0; row < a->max_rows && a->q8[EA_FORM_Q8]; row++)
        for (int b = 0; b < a->k_pad / 32; b++) {
            struct ea_q8_chunk *c = ea_acts_q8(a, EA_FORM_Q8, row) + b / 8 * EA_ACTS_GROUP;
            if (isnan(c->s[b % 8]))
                c->s[b % 8] = 0;
        }
}

static void compare_quantised(const ea_kernel_level *level, int k, unsigned forms)
{
    enum { ROWS = 20 };
    size_t n_bytes = ea_acts_bytes(ROWS, k, forms);
    void *mem[2] = {checked(ea_pages_alloc(n_bytes)), checked(ea_pages_alloc(n_bytes))};
    ea_acts a, b;
    rng r = {4}, again = {4};
    ea_acts_init(&a, ROWS, k, forms, mem[0]);
    ea_acts_init(&b, ROWS, k, forms, mem[1]);
    fill_odd(&a, &r);
    fill_odd(&b, &again);
    for (int i = 0; i < ROWS; i++) {
        ea_kernel_ref.acts_quantise_cols(&a, i, 0, k);
        /* in parts, as far as there are several units */
        int unit = ea_acts_unit(&b), first = EA_MIN(unit, k);
        level->table->acts_quantise_cols(&b, i, 0, first);
        if (first < k)
            level->table->acts_quantise_cols(&b, i, first, k - first);
    }
    unify_nans(&a);
    unify_nans(&b);
    if (memcmp(mem[0], mem[1], n_bytes) != 0)
        fail_msg("%s: quantised rows differ, k = %d, forms %#x", ea_cpu_level_name(level->level), k,
                 forms);
    ea_pages_free(mem[0], n_bytes);
    ea_pages_free(mem[1], n_bytes);
}

static void quantise_cases(const ea_kernel_level *level)
{
    const unsigned q8 = 1u << EA_FORM_Q8, q8k = 1u << EA_FORM_Q8K;
    if (!level->table->acts_quantise_cols)
        return;
    compare_quantised(level, 72, q8);
    compare_quantised(level, 32, q8);
    compare_quantised(level, 320, q8);
    compare_quantised(level, 512, q8k);
    compare_quantised(level, 768, q8 | q8k);
}

static void test_quantise_levels(void **state)
{
    (void)state;
    assert_true(for_each_level(quantise_cases) > 0);
}

/* Codes, scales and sums of one form: every value within half a step, the largest code 127. */
static void check_quantised(const ea_acts *a, ea_acts_form form, int row)
{
    const int step = form == EA_FORM_Q8K ? 256 : 32;
    for (int i0 = 0; i0 < a->k; i0 += step) {
        const struct ea_q8_chunk *c = ea_acts_q8(a, form, row) + i0 / 256 * EA_ACTS_GROUP;
        const int n = EA_MIN(step, a->k - i0), at = i0 % 256;
        const float d = c->d[at / 32];
        int sum[16] = {0}, largest = 0;
        for (int i = 0; i < n; i++) {
            double x = (double)ea_acts_row(a, row)[i0 + i];
            assert_true(fabs(x - (double)c->q[at + i] * (double)d) <= (double)d * 0.50001);
            sum[(at + i) / 16] += c->q[at + i];
            largest = EA_MAX(largest, abs(c->q[at + i]));
        }
        assert_int_equal(largest, row == 1 ? 0 : 127);
        for (int h = at / 16; h < (at + n) / 16; h++)
            assert_int_equal(sum[h], c->sum16[h]);
        for (int b = at / 32; b < (at + n) / 32; b++) {
            int both = sum[2 * b] + sum[2 * b + 1];
            if (form == EA_FORM_Q8K)
                assert_int_equal(both, c->sum32[b]);
            else
                assert_true(c->s[b] == c->d[b] * (float)both);
        }
    }
}

static void test_quantise_values(void **state)
{
    (void)state;
    enum { ROWS = 3, K = 768 };
    const unsigned forms = 1u << EA_FORM_Q8 | 1u << EA_FORM_Q8K;
    size_t n_bytes = ea_acts_bytes(ROWS, K, forms);
    void *mem = checked(ea_pages_alloc(n_bytes));
    ea_acts a;
    rng r = {5};
    ea_acts_init(&a, ROWS, K, forms, mem);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < K; j++)
            ea_acts_row(&a, i)[j] = i == 1 ? 0 : rng_float(&r) * 50;
    for (int i = 0; i < ROWS; i++) {
        ea_kernel_ref.acts_quantise_cols(&a, i, 0, K);
        check_quantised(&a, EA_FORM_Q8, i);
        check_quantised(&a, EA_FORM_Q8K, i);
    }
    ea_pages_free(mem, n_bytes);
}

/* ---- geometry ---- */

static void test_init_refuses(void **state)
{
    (void)state;
    static const struct {
        ea_dtype type;
        int n, k;
        const char *text;
    } bad[] = {{EA_DTYPE_Q4_K, 16, 128, "block of 256"},   {EA_DTYPE_Q4_0, 16, 33, "block of 32"},
               {EA_DTYPE_I32, 16, 32, "no matrix kernel"}, {EA_DTYPE_F32, 0, 32, "not in 1.."},
               {EA_DTYPE_F32, 4, 0, "not in 1.."},         {EA_DTYPE_F32, 4, -1, "not in 1.."},
               {(ea_dtype)99, 4, 4, "no matrix kernel"}};
    for (size_t i = 0; i < EA_ARRAY_LEN(bad); i++) {
        ea_matrix m;
        size_t n_bytes = 77;
        ea_error err = {0};
        assert_int_equal(ea_matrix_init(&m, bad[i].type, bad[i].n, bad[i].k, &n_bytes, &err),
                         EA_EUNSUPPORTED);
        assert_non_null(strstr(err.text, bad[i].text));
        assert_int_equal(n_bytes, 77);
    }
}

/* Packed weights are read once a token, so they may not be larger than the file's. */
static void test_packed_size(void **state)
{
    (void)state;
    for (size_t i = 0; i < EA_ARRAY_LEN(matmul_types); i++) {
        ea_matrix m;
        size_t n_bytes;
        ea_error err = {0};
        assert_ok(ea_matrix_init(&m, matmul_types[i], 256, 1536, &n_bytes, &err), &err);
        assert_int_equal(m.tile_bytes % 64, 0);
        double ratio =
            (double)n_bytes / (256.0 * (double)ea_dtype_row_bytes(matmul_types[i], 1536));
        assert_true(ratio <= (matmul_types[i] == EA_DTYPE_Q3_K ? 1.06 : 1.05));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init_refuses),    cmocka_unit_test(test_packed_size),
        cmocka_unit_test(test_quantise_values), cmocka_unit_test(test_quantise_levels),
        cmocka_unit_test(test_reference),       cmocka_unit_test(test_levels),
        cmocka_unit_test(test_many_rows),       cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
