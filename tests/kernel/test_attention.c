/* test_attention.c: paged attention. Every level that this machine has must give the bits of the
 * scalar form; the scalar form is held against softmax attention in double precision. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "kernel/table.h"

enum { MAX_POS = 1100, CANARY = 8 };

/* ---- numbers ---- */

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [-1, 1). */
static float random_float(uint64_t *state)
{
    return (float)(int32_t)(next_random(state) >> 32) * 0x1p-31f;
}

static bool same_bits(float a, float b)
{
    return ea_f32_bits(a) == ea_f32_bits(b) || (isnan(a) && isnan(b));
}

/* ---- one sequence ---- */

/* K and V of one head for n_pos positions, on scrambled pages among others. Everything that was not
 * written holds NaN bits. */
typedef struct sequence {
    int head_dim, n_pos;
    size_t page_bytes, k_offset, v_offset;
    int32_t *table; /* no longer than the pages, so that sanitizers see a read past them */
    uint8_t *kv;
    size_t kv_bytes;
    void *scratch;
} sequence;

static void sequence_init(sequence *s, int head_dim, int n_pos, float k_size, float v_size,
                          uint64_t seed)
{
    int n_pages = (n_pos + EA_PAGE_TOKENS - 1) / EA_PAGE_TOKENS, n_slots = n_pages + 3;
    size_t block = ea_kv_block_elems(head_dim) * sizeof(ea_f16);
    *s = (sequence){.head_dim = head_dim, .n_pos = n_pos};
    /* Another head's blocks lie before, between and behind. */
    s->k_offset = block;
    s->v_offset = 3 * block;
    s->page_bytes = 5 * block;
    s->kv_bytes = (size_t)n_slots * s->page_bytes;
    s->kv = aligned_alloc(64, s->kv_bytes);
    s->scratch = aligned_alloc(64, (ea_attn_scratch_bytes(head_dim) + 63) / 64 * 64);
    s->table = malloc((size_t)n_pages * sizeof *s->table);
    assert_non_null(s->kv);
    assert_non_null(s->table);
    assert_non_null(s->scratch);
    memset(s->kv, 0xff, s->kv_bytes);
    memset(s->scratch, 0xff, ea_attn_scratch_bytes(head_dim));
    /* A permutation of the slots: multiplication by a number prime to n_slots, found by trying. */
    int step = 3;
    while (n_slots % step == 0)
        step += 2;
    for (int i = 0; i < n_pages; i++)
        s->table[i] = (i * step + 1) % n_slots;

    float k[EA_PAGE_TOKENS * 16], v[EA_PAGE_TOKENS * 16];
    for (int pos = 0; pos < n_pos; pos++) {
        for (int d = 0; d < head_dim; d++) {
            k[d] = k_size * random_float(&seed);
            v[d] = v_size * random_float(&seed);
        }
        uint8_t *page = s->kv + (size_t)s->table[pos / EA_PAGE_TOKENS] * s->page_bytes;
        ea_kernel_ref.kv_write((ea_f16 *)(page + s->k_offset), (ea_f16 *)(page + s->v_offset),
                               pos % EA_PAGE_TOKENS, head_dim, k, v);
    }
}

static void sequence_done(sequence *s)
{
    free(s->kv);
    free(s->table);
    free(s->scratch);
}

static ea_f16 *k_at(const sequence *s, int pos, int d)
{
    uint8_t *page = s->kv + (size_t)s->table[pos / EA_PAGE_TOKENS] * s->page_bytes;
    int slot = pos % EA_PAGE_TOKENS;
    return (ea_f16 *)(page + s->k_offset) + (slot / 16 * s->head_dim + d) * 16 + slot % 16;
}

static ea_f16 *v_at(const sequence *s, int pos, int d)
{
    uint8_t *page = s->kv + (size_t)s->table[pos / EA_PAGE_TOKENS] * s->page_bytes;
    return (ea_f16 *)(page + s->v_offset) + pos % EA_PAGE_TOKENS * s->head_dim + d;
}

/* ---- queries ---- */

/* Queries and their results, each result followed by canaries. */
typedef struct queries {
    int n, head_dim, window;
    float scale;
    int32_t pos[EA_ATTN_QUERIES];
    float *q_store, *out_store;
    const float *q[EA_ATTN_QUERIES];
    float *out[EA_ATTN_QUERIES];
} queries;

static void queries_init(queries *qs, int n, int head_dim, float size, uint64_t seed)
{
    *qs = (queries){.n = n, .head_dim = head_dim, .scale = 1.0f / sqrtf((float)head_dim)};
    size_t row = (size_t)head_dim + CANARY;
    qs->q_store = calloc((size_t)n * row, sizeof(float));
    qs->out_store = calloc((size_t)n * row, sizeof(float));
    assert_non_null(qs->q_store);
    assert_non_null(qs->out_store);
    for (int i = 0; i < n; i++) {
        float *q = qs->q_store + (size_t)i * row;
        for (int d = 0; d < head_dim; d++)
            q[d] = size * random_float(&seed);
        qs->q[i] = q;
        qs->out[i] = qs->out_store + (size_t)i * row;
    }
}

static void queries_done(queries *qs)
{
    free(qs->q_store);
    free(qs->out_store);
}

static void attend(const ea_kernel_table *table, const sequence *s, const queries *qs)
{
    for (int i = 0; i < qs->n; i++)
        for (int d = 0; d < qs->head_dim + CANARY; d++)
            qs->out[i][d] = 1234.5f;
    table->attention(&(ea_attn_args){.n_queries = qs->n,
                                     .head_dim = qs->head_dim,
                                     .q = qs->q,
                                     .out = qs->out,
                                     .pos = qs->pos,
                                     .scale = qs->scale,
                                     .window = qs->window,
                                     .kv = s->kv,
                                     .page_bytes = s->page_bytes,
                                     .k_offset = s->k_offset,
                                     .v_offset = s->v_offset,
                                     .pages = s->table,
                                     .scratch = s->scratch});
    for (int i = 0; i < qs->n; i++)
        for (int d = qs->head_dim; d < qs->head_dim + CANARY; d++)
            assert_true(qs->out[i][d] == 1234.5f);
}

/* Every level of the machine against the scalar form. The scalar results are left in qs. */
static void check_levels(const sequence *s, queries *qs)
{
    size_t n_levels, row = (size_t)qs->head_dim + CANARY, n = (size_t)qs->n * row;
    const ea_kernel_level *levels = ea_kernel_levels(&n_levels);
    attend(&ea_kernel_ref, s, qs);
    float *want = malloc(n * sizeof *want);
    assert_non_null(want);
    memcpy(want, qs->out_store, n * sizeof *want);
    for (size_t l = 0; l < n_levels; l++) {
        if (!ea_cpu_has(levels[l].level) || !levels[l].table->attention)
            continue;
        attend(levels[l].table, s, qs);
        for (size_t i = 0; i < n; i++)
            if (!same_bits(want[i], qs->out_store[i]))
                fail_msg("%s: head_dim %d, %d queries, window %d: query %zu (position %d) [%zu] is "
                         "%a, not %a",
                         ea_cpu_level_name(levels[l].level), qs->head_dim, qs->n, qs->window,
                         i / row, qs->pos[i / row], i % row, (double)qs->out_store[i],
                         (double)want[i]);
    }
    memcpy(qs->out_store, want, n * sizeof *want);
    free(want);
}

/* Positions of a prefill chunk that ends at `last`, `group` heads a row. */
static void place_chunk(queries *qs, int last, int group)
{
    int rows = (qs->n + group - 1) / group;
    for (int i = 0; i < qs->n; i++)
        qs->pos[i] = EA_MAX(0, last - rows + 1 + i / group);
}

static void test_levels_random(void **state)
{
    (void)state;
    static const int dims[] = {8, 16, 24, 64, 80, 128, 256};
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 24, 25, 64};
    static const int windows[] = {0, 1, 40, 300};
    for (size_t i = 0; i < EA_ARRAY_LEN(dims); i++) {
        sequence s;
        sequence_init(&s, dims[i], 600, 3, 2, i);
        for (size_t j = 0; j < EA_ARRAY_LEN(counts); j++) {
            if (dims[i] * counts[j] > 64 * 64) /* the scalar form's time */
                continue;
            queries qs;
            queries_init(&qs, counts[j], dims[i], 3, 100 + j);
            place_chunk(&qs, 599 - 37 * (int)j, 1 + (int)j % 3);
            qs.window = windows[(i + j) % EA_ARRAY_LEN(windows)];
            check_levels(&s, &qs);
            queries_done(&qs);
        }
        sequence_done(&s);
    }
}

static void test_levels_at_borders(void **state)
{
    (void)state;
    static const int lengths[] = {1,  2,   15,  16,  17,  31,  32,  33,  63,  64,
                                  65, 255, 256, 257, 287, 288, 289, 511, 512, 513};
    static const int windows[] = {0, 1, 16, 17, 255, 256, 257};
    for (size_t i = 0; i < EA_ARRAY_LEN(lengths); i++) {
        sequence s;
        sequence_init(&s, 16, lengths[i], 4, 1, i);
        for (size_t j = 0; j < EA_ARRAY_LEN(windows); j++)
            for (int n = 1; n <= 9; n += 4) {
                queries qs;
                queries_init(&qs, n, 16, 4, 7 * i + j);
                place_chunk(&qs, lengths[i] - 1, 2);
                qs.window = windows[j];
                check_levels(&s, &qs);
                queries_done(&qs);
            }
        sequence_done(&s);
    }
}

/* Queries in any order, far apart, some with the same position. */
static void test_levels_scattered(void **state)
{
    (void)state;
    uint64_t seed = 5;
    sequence s;
    sequence_init(&s, 64, MAX_POS, 3, 2, 11);
    for (int window = 0; window <= 600; window += 300)
        for (int n = 5; n <= EA_ATTN_QUERIES; n += 59) {
            queries qs;
            queries_init(&qs, n, 64, 3, (uint64_t)n);
            for (int i = 0; i < n; i++)
                qs.pos[i] = (int32_t)(next_random(&seed) % MAX_POS);
            qs.window = window;
            check_levels(&s, &qs);
            queries_done(&qs);
        }
    sequence_done(&s);
}

/* Scores from all equal to far beyond what exp can tell apart, up to overflow in both directions.
 */
static void test_levels_extreme(void **state)
{
    (void)state;
    static const float sizes[] = {0, 1e-30f, 1e-3f, 30, 1e3f, 1e6f, 1e30f, 2e38f};
    for (size_t i = 0; i < EA_ARRAY_LEN(sizes); i++)
        for (size_t j = 0; j < EA_ARRAY_LEN(sizes); j++) {
            sequence s;
            sequence_init(&s, 64, 270, EA_MIN(sizes[j], 60000.0f), 65000, i);
            queries qs;
            queries_init(&qs, 3, 64, sizes[i], j);
            place_chunk(&qs, 269, 1);
            check_levels(&s, &qs);
            queries_done(&qs);
            sequence_done(&s);
        }
}

/* Every score overflows downwards: no weights, and zero rather than NaN. */
static void test_all_scores_minus_infinity(void **state)
{
    (void)state;
    sequence s;
    sequence_init(&s, 16, 300, 0, 1, 1);
    for (int pos = 0; pos < 300; pos++)
        for (int d = 0; d < 16; d++)
            *k_at(&s, pos, d) = ea_f32_to_f16(60000);
    queries qs;
    queries_init(&qs, 3, 16, 0, 1);
    for (int i = 0; i < 3 * (16 + CANARY); i++)
        qs.q_store[i] = -3e38f;
    place_chunk(&qs, 299, 1);
    check_levels(&s, &qs);
    for (int i = 0; i < 3; i++)
        for (int d = 0; d < 16; d++)
            assert_true(qs.out[i][d] == 0);
    queries_done(&qs);
    sequence_done(&s);
}

/* NaN that a query does see shows in its result, in that of no other query. */
static void test_seen_nan_shows(void **state)
{
    (void)state;
    sequence s;
    sequence_init(&s, 64, 300, 1, 1, 1);
    *k_at(&s, 299, 5) = (ea_f16){0x7e00};
    *v_at(&s, 298, 7) = (ea_f16){0x7e00};
    queries qs;
    queries_init(&qs, 3, 64, 1, 1);
    place_chunk(&qs, 299, 1);
    check_levels(&s, &qs);
    for (int d = 0; d < 64; d++) {
        assert_false(isnan(qs.out[0][d]));
        assert_true(isnan(qs.out[1][d]) == (d == 7));
        assert_true(isnan(qs.out[2][d]));
    }
    queries_done(&qs);
    sequence_done(&s);
}

/* What lies in slots and pages that nobody sees is not looked at: the same bits whether it is NaN,
 * zero or large, and pages outside the window may be missing. */
static void test_unseen_does_not_leak(void **state)
{
    (void)state;
    static const int windows[] = {0, 70, 290};
    for (size_t w = 0; w < EA_ARRAY_LEN(windows); w++) {
        sequence s;
        sequence_init(&s, 64, 600, 2, 2, w);
        queries qs;
        queries_init(&qs, 20, 64, 2, w);
        place_chunk(&qs, 530, 3);
        qs.window = windows[w];
        check_levels(&s, &qs);
        float want[20][64];
        for (int i = 0; i < 20; i++)
            memcpy(want[i], qs.out[i], sizeof want[i]);
        int first = qs.window ? qs.pos[0] - qs.window + 1 : 0;
        static const uint16_t fill[] = {0xffff, 0x7c00, 0, 0x7bff};
        for (size_t f = 0; f < EA_ARRAY_LEN(fill); f++) {
            for (int pos = 0; pos < 600; pos++)
                for (int d = 0; d < 64 && (pos < first || pos > 530); d++)
                    k_at(&s, pos, d)->bits = v_at(&s, pos, d)->bits = fill[f];
            check_levels(&s, &qs);
            for (int i = 0; i < 20; i++)
                assert_memory_equal(want[i], qs.out[i], sizeof want[i]);
        }
        for (int page = 0; page < 600 / EA_PAGE_TOKENS; page++)
            if ((page + 1) * EA_PAGE_TOKENS <= first || page * EA_PAGE_TOKENS > 530)
                s.table[page] = -1;
        check_levels(&s, &qs);
        for (int i = 0; i < 20; i++)
            assert_memory_equal(want[i], qs.out[i], sizeof want[i]);
        queries_done(&qs);
        sequence_done(&s);
    }
}

/* A query alone has the bits that it has among 64, in any order of them. */
static void test_queries_are_independent(void **state)
{
    (void)state;
    static const int dims[] = {8, 64, 128};
    size_t n_levels;
    const ea_kernel_level *levels = ea_kernel_levels(&n_levels);
    for (size_t i = 0; i < EA_ARRAY_LEN(dims); i++) {
        sequence s;
        sequence_init(&s, dims[i], 300, 3, 2, i);
        queries all, one;
        queries_init(&all, EA_ATTN_QUERIES, dims[i], 3, i);
        queries_init(&one, 1, dims[i], 3, i);
        place_chunk(&all, 290, 3);
        for (size_t l = 0; l < n_levels; l++) {
            if (!ea_cpu_has(levels[l].level) || !levels[l].table->attention)
                continue;
            attend(levels[l].table, &s, &all);
            for (int k = 0; k < EA_ATTN_QUERIES; k++) {
                one.q[0] = all.q[k];
                one.pos[0] = all.pos[k];
                attend(levels[l].table, &s, &one);
                assert_memory_equal(one.out[0], all.out[k], (size_t)dims[i] * sizeof(float));
            }
        }
        queries_done(&all);
        queries_done(&one);
        sequence_done(&s);
    }
}

/* Softmax attention of one query in double precision over the stored f16 numbers, against the
 * scalar form's result. u = 2^-24. A score of head_dim terms is off by at most
 * delta = (head_dim + 2) u sum|k q| scale, a weight by the factor exp(2 delta) and a few u; summing
 * at most 256 terms, then merging spans, adds 256 u and 4 u a span. So the result is off by
 * at most (2 delta + (300 + 4 spans) u) sum w|v|. */
static void check_against_double(const sequence *s, const queries *qs, int i)
{
    int last = qs->pos[i], first = qs->window && last >= qs->window ? last - qs->window + 1 : 0;
    static double weight[MAX_POS];
    double max = -INFINITY, sum = 0, delta = 0, u = 0x1p-24;
    for (int pos = first; pos <= last; pos++) {
        double dot = 0, size = 0;
        for (int d = 0; d < s->head_dim; d++) {
            double term = (double)ea_f16_to_f32(*k_at(s, pos, d)) * (double)qs->q[i][d];
            dot += term;
            size += fabs(term);
        }
        weight[pos] = dot * (double)qs->scale;
        max = fmax(max, weight[pos]);
        delta = fmax(delta, (s->head_dim + 2) * u * size * (double)qs->scale);
    }
    for (int pos = first; pos <= last; pos++)
        sum += weight[pos] = exp(weight[pos] - max);
    int spans = last / EA_ATTN_SPAN + 1;
    for (int d = 0; d < s->head_dim; d++) {
        double want = 0, size = 0;
        for (int pos = first; pos <= last; pos++) {
            double v = (double)ea_f16_to_f32(*v_at(s, pos, d));
            want += weight[pos] / sum * v;
            size += weight[pos] / sum * fabs(v);
        }
        double bound = (2 * delta + (300 + 4 * spans) * u) * size;
        if (!(fabs((double)qs->out[i][d] - want) <= bound))
            fail_msg("position %d [%d]: %.9g, not %.9g +- %.3g", last, d, (double)qs->out[i][d],
                     want, bound);
    }
}

static void test_scalar_against_double(void **state)
{
    (void)state;
    static const int dims[] = {8, 64, 128};
    static const int ends[] = {0, 1, 31, 255, 256, 700, MAX_POS - 1};
    static const int windows[] = {0, 1, 100, 300};
    for (size_t i = 0; i < EA_ARRAY_LEN(dims); i++) {
        sequence s;
        sequence_init(&s, dims[i], MAX_POS, 2, 1, i);
        for (size_t j = 0; j < EA_ARRAY_LEN(ends); j++)
            for (size_t w = 0; w < EA_ARRAY_LEN(windows); w++) {
                queries qs;
                queries_init(&qs, 2, dims[i], 4, j);
                place_chunk(&qs, ends[j], 1);
                qs.window = windows[w];
                attend(&ea_kernel_ref, &s, &qs);
                check_against_double(&s, &qs, 0);
                check_against_double(&s, &qs, 1);
                queries_done(&qs);
            }
        sequence_done(&s);
    }
}

/* The function that everybody calls is the chosen level's. */
static void test_public_function(void **state)
{
    (void)state;
    sequence s;
    sequence_init(&s, 64, 40, 1, 1, 3);
    queries qs;
    queries_init(&qs, 2, 64, 1, 3);
    place_chunk(&qs, 39, 1);
    check_levels(&s, &qs);
    float want[64];
    memcpy(want, qs.out[1], sizeof want);
    ea_kernel_table through = {.attention = ea_attention};
    attend(&through, &s, &qs);
    assert_memory_equal(want, qs.out[1], sizeof want);
    queries_done(&qs);
    sequence_done(&s);
}

int main(void)
{
    size_t n_levels;
    const ea_kernel_level *levels = ea_kernel_levels(&n_levels);
    for (size_t i = 0; i < n_levels; i++)
        if (!ea_cpu_has(levels[i].level))
            printf("SKIPPED: level %s, which this machine lacks\n",
                   ea_cpu_level_name(levels[i].level));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels_random),
        cmocka_unit_test(test_levels_at_borders),
        cmocka_unit_test(test_levels_scattered),
        cmocka_unit_test(test_levels_extreme),
        cmocka_unit_test(test_all_scores_minus_infinity),
        cmocka_unit_test(test_seen_nan_shows),
        cmocka_unit_test(test_unseen_does_not_leak),
        cmocka_unit_test(test_queries_are_independent),
        cmocka_unit_test(test_scalar_against_double),
        cmocka_unit_test(test_public_function),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
