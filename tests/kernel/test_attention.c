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
    ea_kv_type type;
    int head_dim, n_pos;
    size_t page_bytes, k_offset, v_offset;
    int32_t *table; /* no longer than the pages, so that sanitizers see a read past them */
    uint8_t *kv;
    size_t kv_bytes;
    void *scratch;
} sequence;

static void sequence_init_as(sequence *s, ea_kv_type type, int head_dim, int n_pos, float k_size,
                             float v_size, uint64_t seed)
{
    int n_pages = (n_pos + EA_PAGE_TOKENS - 1) / EA_PAGE_TOKENS, n_slots = n_pages + 3;
    size_t block = ea_kv_block_bytes(type, head_dim);
    *s = (sequence){.type = type, .head_dim = head_dim, .n_pos = n_pos};
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
        ea_kernel_ref.kv_write(type, page + s->k_offset, page + s->v_offset, pos % EA_PAGE_TOKENS,
                               head_dim, k, v);
    }
}

static void sequence_init(sequence *s, int head_dim, int n_pos, float k_size, float v_size,
                          uint64_t seed)
{
    sequence_init_as(s, EA_KV_F16, head_dim, n_pos, k_size, v_size, seed);
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

/* The slot that reads pages of this type. */
static void (*attention_of(const ea_kernel_table *table, ea_kv_type type))(const ea_attn_args *)
{
    return type == EA_KV_F16 ? table->attention_f16 : table->attention_quant;
}

static ea_attn_args arguments(const sequence *s, const queries *qs)
{
    return (ea_attn_args){.type = s->type,
                          .n_queries = qs->n,
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
                          .scratch = s->scratch};
}

static void attend(const ea_kernel_table *table, const sequence *s, const queries *qs)
{
    for (int i = 0; i < qs->n; i++)
        for (int d = 0; d < qs->head_dim + CANARY; d++)
            qs->out[i][d] = 1234.5f;
    ea_attn_args args = arguments(s, qs);
    attention_of(table, s->type)(&args);
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
        if (!ea_cpu_has(levels[l].level) || !attention_of(levels[l].table, s->type))
            continue;
        attend(levels[l].table, s, qs);
        for (size_t i = 0; i < n; i++)
            if (!same_bits(want[i], qs->out_store[i]))
                fail_msg("%s: type %d, head_dim %d, %d queries, window %d: query %zu (position %d) "
                         "[%zu] is %a, not %a",
                         ea_cpu_level_name(levels[l].level), (int)s->type, qs->head_dim, qs->n,
                         qs->window, i / row, qs->pos[i / row], i % row, (double)qs->out_store[i],
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

static void check_random(ea_kv_type type)
{
    static const int dims[] = {8, 16, 24, 32, 64, 80, 96, 128, 256};
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 24, 25, 64};
    static const int windows[] = {0, 1, 40, 300};
    int n_checked = 0;
    for (size_t i = 0; i < EA_ARRAY_LEN(dims); i++) {
        if (!ea_kv_type_fits(type, dims[i]))
            continue;
        sequence s;
        sequence_init_as(&s, type, dims[i], 600, 3, 2, i);
        for (size_t j = 0; j < EA_ARRAY_LEN(counts); j++) {
            if (dims[i] * counts[j] > 64 * 64) /* the scalar form's time */
                continue;
            queries qs;
            queries_init(&qs, counts[j], dims[i], 3, 100 + j);
            place_chunk(&qs, 599 - 37 * (int)j, 1 + (int)j % 3);
            qs.window = windows[(i + j) % EA_ARRAY_LEN(windows)];
            check_levels(&s, &qs);
            queries_done(&qs);
            n_checked++;
        }
        sequence_done(&s);
    }
    assert_true(n_checked > 40);
}

static void test_levels_random_f16(void **state)
{
    (void)state;
    check_random(EA_KV_F16);
}

static void test_levels_random_q8_0(void **state)
{
    (void)state;
    check_random(EA_KV_Q8_0);
}

static void test_levels_random_q4_0(void **state)
{
    (void)state;
    check_random(EA_KV_Q4_0);
}

static void check_borders(ea_kv_type type)
{
    static const int lengths[] = {1,  2,   15,  16,  17,  31,  32,  33,  63,  64,
                                  65, 255, 256, 257, 287, 288, 289, 511, 512, 513};
    static const int windows[] = {0, 1, 16, 17, 255, 256, 257};
    int head_dim = type == EA_KV_F16 ? 16 : 32;
    for (size_t i = 0; i < EA_ARRAY_LEN(lengths); i++) {
        sequence s;
        sequence_init_as(&s, type, head_dim, lengths[i], 4, 1, i);
        for (size_t j = 0; j < EA_ARRAY_LEN(windows); j++)
            for (int n = 1; n <= 9; n += 4) {
                queries qs;
                queries_init(&qs, n, head_dim, 4, 7 * i + j);
                place_chunk(&qs, lengths[i] - 1, 2);
                qs.window = windows[j];
                check_levels(&s, &qs);
                queries_done(&qs);
            }
        sequence_done(&s);
    }
}

static void test_levels_at_borders(void **state)
{
    (void)state;
    for (int type = EA_KV_F16; type <= EA_KV_Q4_0; type++)
        check_borders((ea_kv_type)type);
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
            sequence_init_as(&s, (ea_kv_type)((i + j) % 3), 64, 270,
                             (i + j) % 3 ? sizes[j] : EA_MIN(sizes[j], 60000.0f), 65000, i);
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
    static const int dims[] = {8, 64, 128, 96, 128};
    static const ea_kv_type types[] = {EA_KV_F16, EA_KV_F16, EA_KV_F16, EA_KV_Q8_0, EA_KV_Q4_0};
    size_t n_levels;
    const ea_kernel_level *levels = ea_kernel_levels(&n_levels);
    for (size_t i = 0; i < EA_ARRAY_LEN(dims); i++) {
        sequence s;
        sequence_init_as(&s, types[i], dims[i], 300, 3, 2, i);
        queries all, one;
        queries_init(&all, EA_ATTN_QUERIES, dims[i], 3, i);
        queries_init(&one, 1, dims[i], 3, i);
        place_chunk(&all, 290, 3);
        for (size_t l = 0; l < n_levels; l++) {
            if (!ea_cpu_has(levels[l].level) || !attention_of(levels[l].table, s.type))
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

/* Spans computed apart, in other pieces and with other neighbours, then merged, have the bits of
 * one call; what lies behind a part is not written. */
static void check_parts(const ea_kernel_level *level, const sequence *s, const queries *qs,
                        int n_spans)
{
    size_t part = ea_attn_part_floats(qs->head_dim), stride = part + CANARY;
    size_t row = stride * (size_t)n_spans;
    float *parts = malloc((size_t)qs->n * row * sizeof *parts), *to[EA_ATTN_QUERIES], merged[512];
    assert_non_null(parts);
    for (int step = 1; step <= 3; step++) {
        for (size_t i = 0; i < (size_t)qs->n * row; i++)
            parts[i] = 1234.5f;
        for (int span = 0; span < n_spans; span += step)
            for (int i = 0; i < qs->n; i += 7) {
                ea_attn_args args = arguments(s, qs);
                args.n_queries = EA_MIN(7, qs->n - i);
                args.q += i;
                args.pos += i;
                for (int k = 0; k < args.n_queries; k++)
                    to[k] = parts + (size_t)(i + k) * row + (size_t)span * stride;
                args.out = to;
                args.span0 = span;
                args.n_spans = EA_MIN(step, n_spans - span);
                args.part_stride = stride;
                attention_of(level->table, s->type)(&args);
            }
        for (int i = 0; i < qs->n; i++) {
            int first = qs->window && qs->pos[i] >= qs->window ? qs->pos[i] - qs->window + 1 : 0;
            int span0 = first / EA_ATTN_SPAN, n = qs->pos[i] / EA_ATTN_SPAN - span0 + 1;
            const float *from = parts + (size_t)i * row + (size_t)span0 * stride;
            for (size_t l = 0; l < 2; l++) { /* the level's own merge, and the scalar one */
                const ea_kernel_table *by = l ? &ea_kernel_ref : level->table;
                if (!by->attention_merge)
                    continue;
                by->attention_merge(merged, qs->head_dim, from, n, stride);
                assert_memory_equal(merged, qs->out[i], (size_t)qs->head_dim * sizeof(float));
            }
            for (int span = 0; span < n_spans; span++)
                for (int c = 0; c < CANARY; c++)
                    assert_true(parts[(size_t)i * row + (size_t)span * stride + part + (size_t)c] ==
                                1234.5f);
        }
    }
    free(parts);
}

static void test_parts_merge_to_the_same(void **state)
{
    (void)state;
    static const int dims[] = {24, 64, 128};
    static const int windows[] = {0, 200, 300};
    size_t n_levels;
    const ea_kernel_level *levels = ea_kernel_levels(&n_levels);
    for (int type = EA_KV_F16; type <= EA_KV_Q4_0; type++)
        for (size_t i = 0; i < EA_ARRAY_LEN(dims); i++) {
            if (!ea_kv_type_fits((ea_kv_type)type, dims[i]))
                continue;
            sequence s;
            queries qs;
            sequence_init_as(&s, (ea_kv_type)type, dims[i], MAX_POS, 3, 2, i);
            queries_init(&qs, 12, dims[i], 3, i);
            place_chunk(&qs, 1026, 2); /* some see into the last span, some do not */
            for (size_t w = 0; w < EA_ARRAY_LEN(windows); w++) {
                qs.window = windows[w];
                check_levels(&s, &qs);
                for (size_t l = 0; l < n_levels; l++)
                    if (ea_cpu_has(levels[l].level) && attention_of(levels[l].table, s.type))
                        check_parts(&levels[l], &s, &qs, 1026 / EA_ATTN_SPAN + 1);
            }
            queries_done(&qs);
            sequence_done(&s);
        }
}

/* The numbers that a page stands for, from its layout as kernel.h tells it. */
static double k_number(const sequence *s, int pos, int d)
{
    if (s->type == EA_KV_F16)
        return (double)ea_f16_to_f32(*k_at(s, pos, d));
    const uint8_t *block =
        s->kv + (size_t)s->table[pos / EA_PAGE_TOKENS] * s->page_bytes + s->k_offset;
    size_t slot = (size_t)pos % EA_PAGE_TOKENS, dim = (size_t)s->head_dim, c = (size_t)d;
    size_t scales = s->type == EA_KV_Q8_0 ? 32 * dim : 16 * dim;
    ea_f16 scale;
    memcpy(&scale, block + scales + 2 * (c / 32 * 32 + slot), sizeof scale);
    if (s->type == EA_KV_Q8_0)
        return (double)ea_f16_to_f32(scale) *
               (block[((slot / 16 * (dim / 4) + c / 4) * 16 + slot % 16) * 4 + c % 4] - 128);
    size_t byte =
        (((slot / 16 * (dim / 32) + c / 32) * 4 + c % 16 / 4) * 16 + slot % 16) * 4 + c % 4;
    return (double)ea_f16_to_f32(scale) * ((block[byte] >> c % 32 / 16 * 4 & 15) - 8);
}

static double v_number(const sequence *s, int pos, int d)
{
    if (s->type == EA_KV_F16)
        return (double)ea_f16_to_f32(*v_at(s, pos, d));
    const uint8_t *block =
        s->kv + (size_t)s->table[pos / EA_PAGE_TOKENS] * s->page_bytes + s->v_offset;
    size_t slot = (size_t)pos % EA_PAGE_TOKENS, dim = (size_t)s->head_dim, c = (size_t)d;
    size_t scales = s->type == EA_KV_Q8_0 ? 32 * dim : 16 * dim;
    ea_f16 scale;
    memcpy(&scale, block + scales + 2 * (c / 32 * 32 + slot), sizeof scale);
    if (s->type == EA_KV_Q8_0)
        return (double)ea_f16_to_f32(scale) * (int8_t)block[slot * dim + c];
    uint8_t byte = block[(slot * (dim / 32) + c / 32) * 16 + c % 16];
    return (double)ea_f16_to_f32(scale) * ((byte >> c % 32 / 16 * 4 & 15) - 8);
}

/* Softmax attention of one query in double precision over the stored numbers, against the scalar
 * form's result. u = 2^-24. A score of head_dim terms is off by at most
 * delta = (head_dim + 2) u sum|k q| scale, and where the query is quantised by half a step of its
 * blocks, max|q| / 254, times |k|; a weight is off by the factor exp(2 delta) and a few u; summing
 * at most 256 terms, then merging spans, adds 256 u and 4 u a span. So the result is off by at most
 * (exp(2 delta) - 1 + (300 + 4 spans) u) sum w|v|. */
static void check_against_double(const sequence *s, const queries *qs, int i)
{
    int last = qs->pos[i], first = qs->window && last >= qs->window ? last - qs->window + 1 : 0;
    static double weight[MAX_POS];
    double max = -INFINITY, sum = 0, delta = 0, u = 0x1p-24, step = 0;
    for (int d = 0; d < s->head_dim && s->type != EA_KV_F16; d++)
        step = fmax(step, fabs((double)qs->q[i][d]) / 254 * (1 + 4 * u));
    for (int pos = first; pos <= last; pos++) {
        double dot = 0, off = 0;
        for (int d = 0; d < s->head_dim; d++) {
            double k = k_number(s, pos, d), term = k * (double)qs->q[i][d];
            dot += term;
            off += (s->head_dim + 2) * u * fabs(term) + step * fabs(k);
        }
        weight[pos] = dot * (double)qs->scale;
        max = fmax(max, weight[pos]);
        delta = fmax(delta, off * (double)qs->scale);
    }
    for (int pos = first; pos <= last; pos++)
        sum += weight[pos] = exp(weight[pos] - max);
    int spans = last / EA_ATTN_SPAN + 1;
    for (int d = 0; d < s->head_dim; d++) {
        double want = 0, size = 0;
        for (int pos = first; pos <= last; pos++) {
            double v = v_number(s, pos, d);
            want += weight[pos] / sum * v;
            size += weight[pos] / sum * fabs(v);
        }
        double bound = (expm1(2 * delta) + (300 + 4 * spans) * u) * size;
        if (!(fabs((double)qs->out[i][d] - want) <= bound))
            fail_msg("position %d [%d]: %.9g, not %.9g +- %.3g", last, d, (double)qs->out[i][d],
                     want, bound);
    }
}

static void test_scalar_against_double(void **state)
{
    (void)state;
    static const int dims[] = {8, 64, 128, 96, 64};
    static const ea_kv_type types[] = {EA_KV_F16, EA_KV_F16, EA_KV_F16, EA_KV_Q8_0, EA_KV_Q4_0};
    static const int ends[] = {0, 1, 31, 255, 256, 700, MAX_POS - 1};
    static const int windows[] = {0, 1, 100, 300};
    for (size_t i = 0; i < EA_ARRAY_LEN(dims); i++) {
        sequence s;
        sequence_init_as(&s, types[i], dims[i], MAX_POS, 2, 1, i);
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

/* The functions that everybody calls are the chosen level's. */
static void test_public_function(void **state)
{
    (void)state;
    for (int type = EA_KV_F16; type <= EA_KV_Q4_0; type++) {
        sequence s;
        sequence_init_as(&s, (ea_kv_type)type, 64, 40, 1, 1, 3);
        queries qs;
        queries_init(&qs, 2, 64, 1, 3);
        place_chunk(&qs, 39, 1);
        check_levels(&s, &qs);
        float want[64];
        memcpy(want, qs.out[1], sizeof want);
        ea_kernel_table through = {.attention_f16 = ea_attention, .attention_quant = ea_attention};
        attend(&through, &s, &qs);
        assert_memory_equal(want, qs.out[1], sizeof want);
        queries_done(&qs);
        sequence_done(&s);
    }
}

/* ---- writing ---- */

enum { MAX_DIM = 512, GUARD = 64 };

/* Numbers to write: of all magnitudes with NaN and infinities, large, small, zero. */
static void fill_numbers(float *x, int n, int kind, uint64_t *seed)
{
    for (int d = 0; d < n; d++) {
        x[d] = ea_f32_from_bits((uint32_t)next_random(seed));
        if (kind % 6 == 1)
            x[d] = 70000 * random_float(seed);
        else if (kind % 6 == 2)
            x[d] = 1e-4f * random_float(seed);
        else if (kind % 6 == 3)
            x[d] = d % 7 ? random_float(seed) : -0.0f;
        else if (kind % 6 == 4)
            x[d] = d % 64 < 32 ? 0 : ldexpf(random_float(seed), -20);
        else if (kind % 6 == 5)
            x[d] = d == 5 ? -INFINITY : random_float(seed);
    }
}

/* The place of each f16 element by its formula, the rest of the blocks untouched, the rounding of
 * f16.h. */
static void test_write_f16(void **state)
{
    (void)state;
    static const int dims[] = {8, 16, 24, 64, 80, 128, MAX_DIM};
    static float k[MAX_DIM], v[MAX_DIM];
    static ea_f16 k_block[EA_PAGE_TOKENS * MAX_DIM + 16], v_block[EA_PAGE_TOKENS * MAX_DIM + 16];
    uint64_t seed = 9;
    size_t n_levels;
    const ea_kernel_level *levels = ea_kernel_levels(&n_levels);
    for (size_t c = 0; c < EA_ARRAY_LEN(dims); c++)
        for (int slot = 0; slot < EA_PAGE_TOKENS; slot++) {
            int dim = dims[c], n = EA_PAGE_TOKENS * dim + 16;
            fill_numbers(k, dim, 0, &seed);
            fill_numbers(v, dim, 1 + slot % 2, &seed);
            for (size_t l = 0; l < n_levels; l++) {
                if (!ea_cpu_has(levels[l].level) || !levels[l].table->kv_write)
                    continue;
                for (int i = 0; i < n; i++)
                    k_block[i].bits = v_block[i].bits = 0x5555;
                levels[l].table->kv_write(EA_KV_F16, (uint8_t *)k_block, (uint8_t *)v_block, slot,
                                          dim, k, v);
                for (int d = 0; d < dim; d++) {
                    ea_f16 *at_k = &k_block[(slot / 16 * dim + d) * 16 + slot % 16];
                    ea_f16 *at_v = &v_block[slot * dim + d];
                    if (at_k->bits != ea_f32_to_f16(k[d]).bits ||
                        at_v->bits != ea_f32_to_f16(v[d]).bits)
                        fail_msg("%s, head_dim %d, slot %d: [%d]",
                                 ea_cpu_level_name(levels[l].level), dim, slot, d);
                    at_k->bits = at_v->bits = 0x5555;
                }
                for (int i = 0; i < n; i++)
                    assert_true(k_block[i].bits == 0x5555 && v_block[i].bits == 0x5555);
            }
        }
}

/* A quantised page is as near to the numbers as its scales allow, zeros stay zero, and what is not
 * finite shows. */
static void check_numbers(const sequence *s, int pos, const float *k, const float *v)
{
    double steps = s->type == EA_KV_Q8_0 ? 127 : 8;
    for (int d = 0; d < s->head_dim; d++)
        for (int which = 0; which < 2; which++) {
            const float *x = (which ? v : k) + d / 32 * 32;
            double most = 0, got = which ? v_number(s, pos, d) : k_number(s, pos, d);
            bool finite = true;
            for (int i = 0; i < 32; i++) {
                most = fmax(most, fabs((double)x[i]));
                finite = finite && isfinite(x[i]);
            }
            if (!finite || most / steps >= 65520) {
                assert_true(isnan(got) || isinf(got));
                continue;
            }
            /* Half a step, or in Q4_0 a whole one: there is no +8; the scale's own rounding. */
            double bound = most / steps * (s->type == EA_KV_Q8_0 ? 0.51 : 1.02) + 127 * 0x1p-25;
            if (!(fabs(got - (double)x[d % 32]) <= bound))
                fail_msg("type %d, %c[%d]: %g, not %g +- %g", (int)s->type, which ? 'v' : 'k', d,
                         got, (double)x[d % 32], bound);
        }
}

static void test_write_quantised(void **state)
{
    (void)state;
    static const int dims[] = {32, 64, 96, MAX_DIM};
    static float k[MAX_DIM], v[MAX_DIM];
    static uint8_t block[2][2 * EA_PAGE_TOKENS * MAX_DIM], want[2][2 * EA_PAGE_TOKENS * MAX_DIM];
    uint64_t seed = 3;
    size_t n_levels;
    const ea_kernel_level *levels = ea_kernel_levels(&n_levels);
    int32_t first_page = 0;
    for (int type = EA_KV_Q8_0; type <= EA_KV_Q4_0; type++)
        for (size_t c = 0; c < EA_ARRAY_LEN(dims); c++)
            for (int slot = 0; slot < EA_PAGE_TOKENS; slot++) {
                size_t n = ea_kv_block_bytes((ea_kv_type)type, dims[c]);
                fill_numbers(k, dims[c], slot, &seed);
                fill_numbers(v, dims[c], slot + 1, &seed);
                for (size_t l = 0; l < n_levels; l++) {
                    if (!ea_cpu_has(levels[l].level) || !levels[l].table->kv_write)
                        continue;
                    memset(block, 0x55, sizeof block);
                    levels[l].table->kv_write((ea_kv_type)type, block[0], block[1], slot, dims[c],
                                              k, v);
                    if (levels[l].level == EA_CPU_REF)
                        memcpy(want, block, sizeof want);
                    for (int which = 0; which < 2; which++)
                        assert_memory_equal(block[which], want[which], n + GUARD);
                }
                assert_int_equal(want[0][n], 0x55);
                assert_int_equal(want[1][n], 0x55);
                memcpy(block[0] + n, want[1], n); /* V behind K, as a page */
                sequence s = {.type = (ea_kv_type)type,
                              .head_dim = dims[c],
                              .v_offset = n,
                              .table = &first_page,
                              .kv = block[0]};
                check_numbers(&s, slot, k, v);
            }
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
        cmocka_unit_test(test_write_f16),
        cmocka_unit_test(test_write_quantised),
        cmocka_unit_test(test_levels_random_f16),
        cmocka_unit_test(test_levels_random_q8_0),
        cmocka_unit_test(test_levels_random_q4_0),
        cmocka_unit_test(test_levels_at_borders),
        cmocka_unit_test(test_levels_scattered),
        cmocka_unit_test(test_levels_extreme),
        cmocka_unit_test(test_all_scores_minus_infinity),
        cmocka_unit_test(test_seen_nan_shows),
        cmocka_unit_test(test_unseen_does_not_leak),
        cmocka_unit_test(test_queries_are_independent),
        cmocka_unit_test(test_parts_merge_to_the_same),
        cmocka_unit_test(test_scalar_against_double),
        cmocka_unit_test(test_public_function),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
