/* attention_vec.h: attention over paged KV, included by attention.c of each vector folder after its
 * vec16.h, with EA_ATTN_NAME(slot), the shape of its register blocks, and EA_ATTN_F16 (f16 pages
 * and merging too, or quantised ones only). The bits are those of ref/attention.c; kernel.h has the
 * order of operations. Scores: attention_scores.h.
 *
 * Queries are worked on in blocks of at most BLOCK_QUERIES. Both products have one inner loop: load
 * and convert vectors (K: 16 positions of one d, or of four of them; V: 16 d of one position),
 * multiply each by one number of each query, and add into accumulators that stay in registers.
 * Spans are the outer loop, so that KV comes from memory once whatever the number of queries. While
 * the scores of a span are computed its V is fetched, and while its V is used K of the next span
 * is.
 *
 * What a query does not see is never multiplied: K is computed for 16 positions at a time, and
 * lanes past the query's own are dropped before the maximum; V runs over the positions that all
 * queries of the block see, with a checked step for each other position. */
#include "kernel/kernel.h"

#include <float.h>
#include <limits.h>

/* head_dim rounded up to whole vectors */
#define EA_ATTN_DIM16(head_dim) (((head_dim) + 15) / 16 * 16)

#define UNROLL _Pragma("GCC unroll 16")

enum {
    SPAN_PAGES = EA_ATTN_SPAN / EA_PAGE_TOKENS,
    PAGE_GROUPS = EA_PAGE_TOKENS / 16,
    SPAN_GROUPS = EA_ATTN_SPAN / 16,
    /* floats of one query's row of scores; no power of two, else rows would share cache sets */
    SCORE_STRIDE = EA_ATTN_SPAN + 16,
    WEIGHT_BLOCK = BLOCK_QUERIES * SCORE_STRIDE,
    MAX_BLOCKS = (EA_ATTN_QUERIES + BLOCK_QUERIES - 1) / BLOCK_QUERIES,
};

/* One block of queries over the whole call. */
typedef struct query_block {
    int first, n;
    float *q;                            /* packed, see attention_scores.h */
    float *o;                            /* [n][dim16], running outputs */
    _Alignas(64) float max[16], sum[16]; /* running, a lane each */
} query_block;

/* One block of queries in one span; positions are relative to the span's first. */
typedef struct span_block {
    int lo[BLOCK_QUERIES], hi[BLOCK_QUERIES]; /* what each query sees; lo > hi: nothing */
    int first, last;                          /* what any of them sees */
    int all_first, all_last;                  /* what all that see anything see */
    unsigned pages;                           /* bit i: some query sees into page i */
    bool part; /* results stay apart, in o; else they merge into it */
    float *o[BLOCK_QUERIES];
    _Alignas(64) float max[16], sum[16], keep[16], add[16];
} span_block;

/* One span's pages in memory. */
typedef struct span_pages {
    const uint8_t *k[SPAN_PAGES], *v[SPAN_PAGES];
    const uint8_t *next_k[SPAN_PAGES]; /* of the next span, or of this one where there is none */
} span_pages;

/* M(number of queries, ...) for every size of block. */
// clang-format off
#define EACH_NQ6(M, ...)                                             \
    M(1, __VA_ARGS__) M(2, __VA_ARGS__) M(3, __VA_ARGS__)            \
    M(4, __VA_ARGS__) M(5, __VA_ARGS__) M(6, __VA_ARGS__)
#if EA_ATTN_BLOCK == 12
#define EACH_NQ(M, ...) EACH_NQ6(M, __VA_ARGS__)                     \
    M(7, __VA_ARGS__) M(8, __VA_ARGS__) M(9, __VA_ARGS__)            \
    M(10, __VA_ARGS__) M(11, __VA_ARGS__) M(12, __VA_ARGS__)
#elif EA_ATTN_BLOCK == 6
#define EACH_NQ EACH_NQ6
#endif
// clang-format on

#include "kernel/attention_scores.h"

/* ---- weights ---- */

/* Scores lo..hi of one query to p = exp(scale * score - max) in place; max and the sum of p. Lanes
 * of the first and last vector that lie outside become 0. */
VEC_INLINE void weights(float *p, int lo, int hi, float scale, float *max, float *sum)
{
    int g0 = lo / 16 * 16, g1 = hi / 16 * 16;
    v16 m = v16_set1(-FLT_MAX), l = v16_set1(0);
    for (int g = g0; g <= g1; g += 16) {
        v16 s = v16_mul(v16_load(p + g), v16_set1(scale));
        if (g == g0 || g == g1)
            s = v16_keep(s, lo - g, hi - g, -INFINITY);
        v16_store(p + g, s);
        m = v16_max(s, m);
    }
    *max = v16_hmax(m);
    m = v16_set1(*max);
    for (int g = g0; g <= g1; g += 16) {
        v16 e = v16_exp_neg(v16_sub(v16_load(p + g), m));
        v16_store(p + g, e);
        l = v16_add(l, e);
    }
    *sum = v16_hsum(l);
}

/* Weights of all queries of a block, and how this span's results merge with the running ones. */
static void block_weights(query_block *b, span_block *s, float scale, int dim16, float *p)
{
    for (int i = 0; i < 16; i++) { /* lanes without a query, and queries that see nothing */
        s->max[i] = -FLT_MAX;
        s->sum[i] = 0;
    }
    for (int i = 0; i < b->n; i++)
        if (s->lo[i] <= s->hi[i])
            weights(p + i * SCORE_STRIDE, s->lo[i], s->hi[i], scale, &s->max[i], &s->sum[i]);
    if (s->part) {
        for (int i = 0; i < b->n; i++)
            if (s->lo[i] <= s->hi[i]) {
                s->o[i][dim16] = s->max[i];
                s->o[i][dim16 + 1] = s->sum[i];
            }
        return;
    }
    v16 before = v16_load(b->max), here = v16_load(s->max), both = v16_max(here, before);
    v16 keep = v16_exp_neg(v16_sub(before, both)), add = v16_exp_neg(v16_sub(here, both));
    v16_store(b->max, both);
    v16_store(b->sum, v16_fma(v16_load(b->sum), keep, v16_mul(v16_load(s->sum), add)));
    v16_store(s->keep, keep);
    v16_store(s->add, add);
}

/* ---- values ---- */

/* Vector j of V from v on; `half`: of f16, and it has eight elements. */
VEC_INLINE v16 load_v(const ea_kv_type type, bool half, const uint8_t *v, const int j)
{
    if (type == EA_KV_Q8_0)
        return v16_load_i8(v + 16 * j);
    if (type == EA_KV_Q4_0)
        return v16_load_i4(v + j / 2 * 16, j % 2);
    const ea_f16 *x = (const ea_f16 *)v + 16 * j;
    return half ? v16_load_f16_half(x) : v16_load_f16(x);
}

/* One position for nq queries; `checked`: for those of them that see it. w: their weights; of
 * quantised V there is one for each 32 components, WEIGHT_BLOCK floats apart. */
VEC_INLINE void value_step(const ea_kv_type type, const int j0, const int nv, const int nq,
                           const bool checked, bool half, int t, const uint8_t *v,
                           const uint8_t *fetch, const span_block *s, const float *w,
                           v16 acc[][WIDE])
{
    const int w_step = type == EA_KV_F16 ? 0 : WEIGHT_BLOCK;
    const int fetch_every = type == EA_KV_F16 ? 2 : type == EA_KV_Q8_0 ? 4 : 8; /* a cache line */
    // clang-format off
    v16 vd[WIDE];
    UNROLL
    for (int j = 0; j < nv; j++) {
        vd[j] = load_v(type, half, v, j0 + j);
        if (j % fetch_every == 0)
            _mm_prefetch((const char *)fetch + j * 32, _MM_HINT_T1);
    }
    UNROLL
    for (int i = 0; i < nq; i++) {
        if (checked && (t < s->lo[i] || t > s->hi[i]))
            continue;
        v16 wi[(WIDE + 1) / 2];
        UNROLL
        for (int j = 0; j < nv; j += 2)
            wi[j / 2] = v16_set1(w[j / 2 * w_step + i * SCORE_STRIDE + t]);
        UNROLL
        for (int j = 0; j < nv; j++)
            acc[i][j] = v16_fma(vd[j], wi[j / 2], acc[i][j]);
    }
    // clang-format on
}

/* nv vectors of the output from d + 16 j0 on, for nq queries: this span's weighted sum of V, merged
 * into the running output, or apart. `half` (nv is 1 then): the vector has eight elements. */
VEC_INLINE void values(const ea_kv_type type, const int j0, const int nv, const int nq, bool half,
                       const span_block *s, const span_pages *pages, int head_dim, int d,
                       const float *w)
{
    v16 acc[BLOCK_QUERIES][WIDE];
    // clang-format off
    UNROLL
    for (int i = 0; i < nq; i++)
        UNROLL
        for (int j = 0; j < nv; j++)
            acc[i][j] = v16_set1(0);
    // clang-format on
    const ptrdiff_t row = (ptrdiff_t)ea_kv_codes_bytes(type, head_dim) / EA_PAGE_TOKENS;
    const ptrdiff_t column = (ptrdiff_t)ea_kv_codes_bytes(type, d) / EA_PAGE_TOKENS;
    for (int page = s->first / EA_PAGE_TOKENS; page <= s->last / EA_PAGE_TOKENS; page++) {
        if (!(s->pages >> page & 1))
            continue;
        int begin = page * EA_PAGE_TOKENS, end = EA_MIN(s->last + 1, begin + EA_PAGE_TOKENS);
        int t = EA_MAX(s->first, begin);
        const uint8_t *v = pages->v[page] + (t - begin) * row + column;
        const uint8_t *fetch = pages->next_k[page] + (t - begin) * row + column;
        while (t < end) {
            if (t >= s->all_first && t <= s->all_last) {
                int stop = EA_MIN(end, s->all_last + 1);
                for (; t < stop; t++, v += row, fetch += row)
                    value_step(type, j0, nv, nq, false, half, t, v, fetch, s, w, acc);
            } else {
                int stop = t < s->all_first ? EA_MIN(end, s->all_first) : end;
                for (; t < stop; t++, v += row, fetch += row)
                    value_step(type, j0, nv, nq, true, half, t, v, fetch, s, w, acc);
            }
        }
    }
    // clang-format off
    UNROLL
    for (int i = 0; i < nq; i++) {
        if (s->lo[i] > s->hi[i])
            continue;
        float *o = s->o[i] + d + 16 * j0;
        if (s->part) {
            UNROLL
            for (int j = 0; j < nv; j++)
                v16_store(o + 16 * j, acc[i][j]);
            continue;
        }
        v16 keep = v16_set1(s->keep[i]), add = v16_set1(s->add[i]);
        UNROLL
        for (int j = 0; j < nv; j++)
            v16_store(o + 16 * j, v16_fma(v16_load(o + 16 * j), keep, v16_mul(acc[i][j], add)));
    }
    // clang-format on
}

/* One function for each number of vectors, which picks the number of queries. */
#define VALUES(name, type, j0, nv, limit)                                                          \
    static __attribute__((noinline)) void name(                                                    \
        int nq, const span_block *s, const span_pages *pages, int head_dim, int d, const float *w) \
    {                                                                                              \
        bool half = (type) == EA_KV_F16 && (nv) == 1 && d + 16 > head_dim;                         \
        switch (nq) {                                                                              \
            EACH_NQ(VALUES_CASE, type, j0, nv, limit)                                              \
        }                                                                                          \
    }
#define VALUES_CASE(n, type, j0, nv, limit)                          \
    case n:                                                          \
        if (n <= limit)                                              \
            values(type, j0, nv, n, half, s, pages, head_dim, d, w); \
        break;

#if EA_ATTN_F16
VALUES(values_wide, EA_KV_F16, 0, WIDE, WIDE_QUERIES)
VALUES(values_narrow, EA_KV_F16, 0, NARROW, BLOCK_QUERIES)
#if EA_ATTN_SINGLE
VALUES(values_single, EA_KV_F16, 0, 1, BLOCK_QUERIES)
#else
#define values_single values_narrow
#endif

static void block_values_f16(const query_block *b, const span_block *s, const span_pages *pages,
                             int head_dim, const float *p)
{
    int d = 0;
    if (b->n <= WIDE_QUERIES)
        for (; d + 16 * WIDE <= head_dim; d += 16 * WIDE)
            values_wide(b->n, s, pages, head_dim, d, p);
    for (; d + 16 * NARROW <= head_dim; d += 16 * NARROW)
        values_narrow(b->n, s, pages, head_dim, d, p);
    for (; d < head_dim; d += 16)
        values_single(b->n, s, pages, head_dim, d, p);
}
#endif

/* Weights of V in the 32 components from d on: p * scale. */
static void scale_weights(const query_block *b, const span_block *s, const span_pages *pages,
                          size_t codes, int d, const float *p, float *w)
{
    for (int page = s->first / EA_PAGE_TOKENS; page <= s->last / EA_PAGE_TOKENS; page++) {
        if (!(s->pages >> page & 1))
            continue;
        const ea_f16 *scales = (const ea_f16 *)(pages->v[page] + codes) + d;
        _mm_prefetch((const char *)(pages->next_k[page] + codes) + 2 * d, _MM_HINT_T1);
        for (int g = 0; g < EA_PAGE_TOKENS; g += 16) {
            v16 scale = v16_load_f16(scales + g);
            int t = page * EA_PAGE_TOKENS + g;
            for (int i = 0; i < b->n; i++, t += SCORE_STRIDE)
                v16_store(w + t, v16_mul(v16_load(p + t), scale));
        }
    }
}

VALUES(values_q8_wide, EA_KV_Q8_0, 0, WIDE, WIDE_QUERIES)
VALUES(values_q8, EA_KV_Q8_0, 0, NARROW, BLOCK_QUERIES)
VALUES(values_q4_wide, EA_KV_Q4_0, 0, WIDE, WIDE_QUERIES)
VALUES(values_q4, EA_KV_Q4_0, 0, NARROW, BLOCK_QUERIES)
#if EA_ATTN_SINGLE /* NARROW is a whole block of 32 components */
#define values_q8_high(...)
#define values_q4_high(...)
#else
VALUES(values_q8_high, EA_KV_Q8_0, 1, NARROW, BLOCK_QUERIES)
VALUES(values_q4_high, EA_KV_Q4_0, 1, NARROW, BLOCK_QUERIES)
#endif

/* w: room for the weights of as many blocks of components as WIDE vectors cover. */
static void block_values_quant(ea_kv_type type, const query_block *b, const span_block *s,
                               const span_pages *pages, int head_dim, const float *p, float *w)
{
    size_t codes = ea_kv_codes_bytes(type, head_dim);
    for (int d = 0; d < head_dim;) {
        bool wide = b->n <= WIDE_QUERIES && d + 16 * WIDE <= head_dim;
        int end = d + (wide ? EA_MAX(16 * WIDE, EA_KV_BLOCK) : EA_KV_BLOCK);
        for (int i = 0; d + i * EA_KV_BLOCK < end; i++)
            scale_weights(b, s, pages, codes, d + i * EA_KV_BLOCK, p, w + i * WEIGHT_BLOCK);
        if (wide && type == EA_KV_Q8_0) {
            values_q8_wide(b->n, s, pages, head_dim, d, w);
        } else if (wide) {
            values_q4_wide(b->n, s, pages, head_dim, d, w);
        } else if (type == EA_KV_Q8_0) {
            values_q8(b->n, s, pages, head_dim, d, w);
            values_q8_high(b->n, s, pages, head_dim, d, w);
        } else {
            values_q4(b->n, s, pages, head_dim, d, w);
            values_q4_high(b->n, s, pages, head_dim, d, w);
        }
        d = end;
    }
}

/* ---- the call ---- */

static int first_seen(const ea_attn_args *a, int query)
{
    int pos = a->pos[query];
    return a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
}

/* What the block's queries see of the span at `base`; false: nothing. */
static bool look(const ea_attn_args *a, const query_block *b, int base, span_block *s)
{
    ptrdiff_t dim16 = EA_ATTN_DIM16(a->head_dim);
    s->part = a->n_spans > 0;
    s->pages = 0;
    s->first = s->all_first = EA_ATTN_SPAN;
    s->last = s->all_last = -1;
    int common_lo = 0, common_hi = EA_ATTN_SPAN - 1;
    for (int i = 0; i < b->n; i++) {
        int lo = EA_MAX(first_seen(a, b->first + i) - base, 0);
        int hi = EA_MIN(a->pos[b->first + i] - base, EA_ATTN_SPAN - 1);
        s->lo[i] = lo;
        s->hi[i] = hi;
        if (lo > hi)
            continue;
        s->o[i] = s->part ? a->out[b->first + i] +
                                (size_t)(base / EA_ATTN_SPAN - a->span0) * a->part_stride
                          : b->o + i * dim16;
        s->first = EA_MIN(s->first, lo);
        s->last = EA_MAX(s->last, hi);
        common_lo = EA_MAX(common_lo, lo);
        common_hi = EA_MIN(common_hi, hi);
        s->pages |= (2u << hi / EA_PAGE_TOKENS) - (1u << lo / EA_PAGE_TOKENS);
    }
    if (common_lo <= common_hi) {
        s->all_first = common_lo;
        s->all_last = common_hi;
    }
    return s->pages != 0;
}

/* Cut the queries into blocks of even size and pack them. */
static int make_blocks(const ea_attn_args *a, query_block *blocks, float *q, float *o)
{
    int n = (a->n_queries + BLOCK_QUERIES - 1) / BLOCK_QUERIES, dim16 = EA_ATTN_DIM16(a->head_dim);
    for (int i = 0, first = 0; i < n; i++) {
        query_block *b = &blocks[i];
        *b = (query_block){.first = first,
                           .n = a->n_queries / n + (i < a->n_queries % n),
                           .q = q + (ptrdiff_t)first * dim16,
                           .o = o + (ptrdiff_t)first * dim16};
        pack_queries(a, b);
        if (a->n_spans == 0)
            memset(b->o, 0, (size_t)b->n * (size_t)dim16 * sizeof *b->o);
        v16_store(b->max, v16_set1(-FLT_MAX));
        first += b->n;
    }
    return n;
}

/* Pages of the span at `base` that lie in `used` (bit i: page i), and what to fetch beside them. */
static void find_pages(const ea_attn_args *a, int base, int last, unsigned used, span_pages *pages)
{
    const int32_t *table = a->pages + base / EA_PAGE_TOKENS;
    for (int i = 0; i < SPAN_PAGES; i++) {
        if (!(used >> i & 1))
            continue;
        const uint8_t *page = a->kv + (size_t)table[i] * a->page_bytes;
        pages->k[i] = page + a->k_offset;
        pages->v[i] = page + a->v_offset;
        int next = i + SPAN_PAGES;
        if (base + next * EA_PAGE_TOKENS <= last && table[next] >= 0)
            page = a->kv + (size_t)table[next] * a->page_bytes;
        pages->next_k[i] = page + a->k_offset;
    }
}

static void finish(const ea_attn_args *a, const query_block *b)
{
    int head_dim = a->head_dim, dim16 = EA_ATTN_DIM16(head_dim);
    for (int i = 0; i < b->n; i++) {
        v16 inv = v16_set1(b->sum[i] != 0 ? 1.0f / b->sum[i] : 0.0f);
        float *out = a->out[b->first + i];
        const float *o = b->o + i * dim16;
        for (int d = 0; d < head_dim; d += 16)
            v16_store_part(out + d, v16_mul(v16_load(o + d), inv), EA_MIN(16, head_dim - d));
    }
}

static void attention(const ea_attn_args *a)
{
    query_block blocks[MAX_BLOCKS];
    span_block seen[MAX_BLOCKS];
    span_pages pages = {0};
    int dim16 = EA_ATTN_DIM16(a->head_dim);
    float *q = a->scratch, *o = q + EA_ATTN_QUERIES * (ptrdiff_t)dim16,
          *p = o + EA_ATTN_QUERIES * (ptrdiff_t)dim16;
    int n_blocks = make_blocks(a, blocks, q, o), first = INT_MAX, last = 0;
    for (int i = 0; i < a->n_queries; i++) {
        first = EA_MIN(first, first_seen(a, i));
        last = EA_MAX(last, a->pos[i]);
    }
    if (a->n_spans > 0) {
        first = EA_MAX(first, a->span0 * EA_ATTN_SPAN);
        last = EA_MIN(last, (a->span0 + a->n_spans) * EA_ATTN_SPAN - 1);
    }
    for (int base = first / EA_ATTN_SPAN * EA_ATTN_SPAN; base <= last; base += EA_ATTN_SPAN) {
        unsigned used = 0;
        for (int i = 0; i < n_blocks; i++)
            if (look(a, &blocks[i], base, &seen[i]))
                used |= seen[i].pages;
        find_pages(a, base, last, used, &pages);
        for (int i = 0; i < n_blocks; i++) {
            if (!seen[i].pages)
                continue;
            block_scores(a->type, &blocks[i], &seen[i], &pages, a->head_dim, p);
            block_weights(&blocks[i], &seen[i], a->scale, dim16, p);
#if EA_ATTN_F16
            if (a->type == EA_KV_F16) {
                block_values_f16(&blocks[i], &seen[i], &pages, a->head_dim, p);
                continue;
            }
#endif
            block_values_quant(a->type, &blocks[i], &seen[i], &pages, a->head_dim, p,
                               p + WEIGHT_BLOCK);
        }
    }
    for (int i = 0; i < n_blocks && a->n_spans == 0; i++)
        finish(a, &blocks[i]);
}

void EA_ATTN_NAME(attention_quant)(const ea_attn_args *a)
{
    attention(a);
}

#if EA_ATTN_F16
void EA_ATTN_NAME(attention_f16)(const ea_attn_args *a)
{
    attention(a);
}

void EA_ATTN_NAME(attention_merge)(float *out, int head_dim, const float *parts, int n_parts,
                                   size_t part_stride)
{
    const int dim16 = EA_ATTN_DIM16(head_dim);
    float max = -FLT_MAX, sum = 0;
    _Alignas(64) float o[512];
    memset(o, 0, (size_t)dim16 * sizeof *o);
    for (int i = 0; i < n_parts; i++, parts += part_stride) {
        v16 before = v16_set1(max), here = v16_set1(parts[dim16]), both = v16_max(here, before);
        v16 keep = v16_exp_neg(v16_sub(before, both)), add = v16_exp_neg(v16_sub(here, both));
        v16 total = v16_fma(v16_set1(sum), keep, v16_mul(v16_set1(parts[dim16 + 1]), add));
        max = v16_first(both);
        sum = v16_first(total);
        for (int d = 0; d < dim16; d += 16)
            v16_store(o + d, v16_fma(v16_load(o + d), keep, v16_mul(v16_load(parts + d), add)));
    }
    v16 inv = v16_set1(sum != 0 ? 1.0f / sum : 0.0f);
    for (int d = 0; d < head_dim; d += 16)
        v16_store_part(out + d, v16_mul(v16_load(o + d), inv), EA_MIN(16, head_dim - d));
}
#endif
