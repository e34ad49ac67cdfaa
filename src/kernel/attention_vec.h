/* attention_vec.h: attention over paged KV, included by attention.c of each vector folder after its
 * vec16.h, with EA_ATTN_NAME and the shape of its register blocks. The bits are those of
 * ref/attention.c; kernel.h has the order of operations.
 *
 * Queries are worked on in blocks of at most BLOCK_QUERIES. Both products have one inner loop: load
 * and convert vectors of f16 (K: 16 positions of one d; V: 16 d of one position), multiply each by
 * one number of each query, and add into accumulators that stay in registers. Spans are the outer
 * loop, so that KV comes from memory once whatever the number of queries. While the scores of a
 * span are computed its V is fetched, and while its V is used K of the next span is.
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
    MAX_BLOCKS = (EA_ATTN_QUERIES + BLOCK_QUERIES - 1) / BLOCK_QUERIES,
};

/* One block of queries over the whole call. */
typedef struct query_block {
    int first, n;
    const float *q;                      /* packed [head_dim][n] */
    float *o;                            /* [n][dim16], running outputs */
    _Alignas(64) float max[16], sum[16]; /* running, a lane each */
} query_block;

/* One block of queries in one span; positions are relative to the span's first. */
typedef struct span_block {
    int lo[BLOCK_QUERIES], hi[BLOCK_QUERIES]; /* what each query sees; lo > hi: nothing */
    int first, last;                          /* what any of them sees */
    int all_first, all_last;                  /* what all that see anything see */
    unsigned pages;                           /* bit i: some query sees into page i */
    _Alignas(64) float max[16], sum[16], keep[16], add[16];
} span_block;

/* One span's pages in memory. */
typedef struct span_pages {
    const ea_f16 *k[SPAN_PAGES], *v[SPAN_PAGES];
    const char *next_k[SPAN_PAGES]; /* of the next span, or of this one where there is none */
} span_pages;

/* ---- scores ---- */

/* Unscaled scores of nq queries at nv groups of 16 positions: group i is at k[i] and its scores go
 * to p + at[i]. nv * head_dim * 32 bytes from `fetch` on are fetched on the way. */
VEC_INLINE void scores(const int nv, const int nq, const ea_f16 *const *k, const int *at,
                       int head_dim, const float *q, float *p, const char *const *fetch)
{
    // clang-format off
    v16 acc[BLOCK_QUERIES][WIDE];
    UNROLL
    for (int i = 0; i < nq; i++)
        UNROLL
        for (int j = 0; j < nv; j++)
            acc[i][j] = v16_set1(0);
    for (int d = 0; d < head_dim; d++, q += nq) {
        v16 kd[WIDE];
        UNROLL
        for (int j = 0; j < nv; j++) {
            kd[j] = v16_load_f16(k[j] + d * 16);
            if (j % 2 == 0)
                _mm_prefetch(fetch[j / 2] + (ptrdiff_t)d * 64, _MM_HINT_T1);
        }
        UNROLL
        for (int i = 0; i < nq; i++)
            UNROLL
            for (int j = 0; j < nv; j++)
                acc[i][j] = v16_fma(kd[j], v16_set1(q[i]), acc[i][j]);
    }
    UNROLL
    for (int i = 0; i < nq; i++)
        UNROLL
        for (int j = 0; j < nv; j++)
            v16_store(p + i * SCORE_STRIDE + at[j], acc[i][j]);
    // clang-format on
}

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

/* The same with the number of queries made a constant: one function for each number of groups. */
#define SCORES(name, nv, limit)                                                               \
    static __attribute__((noinline)) void name(int nq, const ea_f16 *const *k, const int *at, \
                                               int head_dim, const float *q, float *p,        \
                                               const char *const *fetch)                      \
    {                                                                                         \
        switch (nq) {                                                                         \
            EACH_NQ(SCORES_CASE, nv, limit)                                                   \
        }                                                                                     \
    }
#define SCORES_CASE(n, nv, limit)                        \
    case n:                                              \
        if (n <= limit)                                  \
            scores(nv, n, k, at, head_dim, q, p, fetch); \
        break;

SCORES(scores_wide, WIDE, WIDE_QUERIES)
SCORES(scores_narrow, NARROW, BLOCK_QUERIES)

/* Scores of one block at every page that one of its queries sees into. */
static void block_scores(const query_block *b, const span_block *s, const span_pages *pages,
                         int head_dim, float *p)
{
    const ea_f16 *k[SPAN_GROUPS];
    const char *fetch[SPAN_PAGES];
    int at[SPAN_GROUPS], n = 0;
    for (int page = 0; page < SPAN_PAGES; page++) {
        if (!(s->pages >> page & 1))
            continue;
        fetch[n / PAGE_GROUPS] = (const char *)pages->v[page];
        for (int g = 0; g < PAGE_GROUPS; g++, n++) {
            k[n] = pages->k[page] + (ptrdiff_t)g * head_dim * 16;
            at[n] = page * EA_PAGE_TOKENS + g * 16;
        }
    }
    int g = 0;
    if (b->n <= WIDE_QUERIES)
        for (; g + WIDE <= n; g += WIDE)
            scores_wide(b->n, k + g, at + g, head_dim, b->q, p, fetch + g / PAGE_GROUPS);
    for (; g + NARROW <= n; g += NARROW)
        scores_narrow(b->n, k + g, at + g, head_dim, b->q, p, fetch + g / PAGE_GROUPS);
}

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
static void block_weights(query_block *b, span_block *s, float scale, float *p)
{
    for (int i = 0; i < 16; i++) { /* lanes without a query, and queries that see nothing */
        s->max[i] = -FLT_MAX;
        s->sum[i] = 0;
    }
    for (int i = 0; i < b->n; i++)
        if (s->lo[i] <= s->hi[i])
            weights(p + i * SCORE_STRIDE, s->lo[i], s->hi[i], scale, &s->max[i], &s->sum[i]);
    v16 before = v16_load(b->max), here = v16_load(s->max), both = v16_max(here, before);
    v16 keep = v16_exp_neg(v16_sub(before, both)), add = v16_exp_neg(v16_sub(here, both));
    v16_store(b->max, both);
    v16_store(b->sum, v16_fma(v16_load(b->sum), keep, v16_mul(v16_load(s->sum), add)));
    v16_store(s->keep, keep);
    v16_store(s->add, add);
}

/* ---- values ---- */

/* One position for nq queries; `checked`: for those of them that see it. */
VEC_INLINE void value_step(const int nv, const int nq, const bool checked, bool half, int t,
                           const ea_f16 *v, const char *fetch, const span_block *s, const float *p,
                           v16 acc[][WIDE])
{
    // clang-format off
    v16 vd[WIDE];
    UNROLL
    for (int j = 0; j < nv; j++) {
        vd[j] = half ? v16_load_f16_half(v + 16 * j) : v16_load_f16(v + 16 * j);
        if (j % 2 == 0)
            _mm_prefetch(fetch + j * 32, _MM_HINT_T1);
    }
    UNROLL
    for (int i = 0; i < nq; i++) {
        if (checked && (t < s->lo[i] || t > s->hi[i]))
            continue;
        v16 w = v16_set1(p[i * SCORE_STRIDE + t]);
        UNROLL
        for (int j = 0; j < nv; j++)
            acc[i][j] = v16_fma(vd[j], w, acc[i][j]);
    }
    // clang-format on
}

/* nv vectors of the output from d on, for nq queries: this span's weighted sum of V, merged into
 * the running output. `half` (nv is 1 then): the vector has eight elements. */
VEC_INLINE void values(const int nv, const int nq, bool half, const query_block *b,
                       const span_block *s, const span_pages *pages, int head_dim, int d,
                       const float *p)
{
    v16 acc[BLOCK_QUERIES][WIDE];
    // clang-format off
    UNROLL
    for (int i = 0; i < nq; i++)
        UNROLL
        for (int j = 0; j < nv; j++)
            acc[i][j] = v16_set1(0);
    // clang-format on
    for (int page = s->first / EA_PAGE_TOKENS; page <= s->last / EA_PAGE_TOKENS; page++) {
        if (!(s->pages >> page & 1))
            continue;
        int begin = page * EA_PAGE_TOKENS, end = EA_MIN(s->last + 1, begin + EA_PAGE_TOKENS);
        int t = EA_MAX(s->first, begin);
        ptrdiff_t row_bytes = head_dim * (ptrdiff_t)sizeof(ea_f16);
        const ea_f16 *v = pages->v[page] + (ptrdiff_t)(t - begin) * head_dim + d;
        const char *fetch = pages->next_k[page] + (t - begin) * row_bytes + 2 * d;
        while (t < end) {
            if (t >= s->all_first && t <= s->all_last) {
                int stop = EA_MIN(end, s->all_last + 1);
                for (; t < stop; t++, v += head_dim, fetch += row_bytes)
                    value_step(nv, nq, false, half, t, v, fetch, s, p, acc);
            } else {
                int stop = t < s->all_first ? EA_MIN(end, s->all_first) : end;
                for (; t < stop; t++, v += head_dim, fetch += row_bytes)
                    value_step(nv, nq, true, half, t, v, fetch, s, p, acc);
            }
        }
    }
    ptrdiff_t dim16 = EA_ATTN_DIM16(head_dim);
    // clang-format off
    UNROLL
    for (int i = 0; i < nq; i++) {
        if (s->lo[i] > s->hi[i])
            continue;
        float *o = b->o + i * dim16 + d;
        v16 keep = v16_set1(s->keep[i]), add = v16_set1(s->add[i]);
        UNROLL
        for (int j = 0; j < nv; j++)
            v16_store(o + 16 * j, v16_fma(v16_load(o + 16 * j), keep, v16_mul(acc[i][j], add)));
    }
    // clang-format on
}

/* One function for each number of vectors, which picks the number of queries. */
#define VALUES(name, nv, limit)                                                              \
    static __attribute__((noinline)) void name(const query_block *b, const span_block *s,    \
                                               const span_pages *pages, int head_dim, int d, \
                                               const float *p)                               \
    {                                                                                        \
        bool half = (nv) == 1 && d + 16 > head_dim;                                          \
        switch (b->n) {                                                                      \
            EACH_NQ(VALUES_CASE, nv, limit)                                                  \
        }                                                                                    \
    }
#define VALUES_CASE(n, nv, limit)                             \
    case n:                                                   \
        if (n <= limit)                                       \
            values(nv, n, half, b, s, pages, head_dim, d, p); \
        break;

VALUES(values_wide, WIDE, WIDE_QUERIES)
VALUES(values_narrow, NARROW, BLOCK_QUERIES)
#if EA_ATTN_SINGLE
VALUES(values_single, 1, BLOCK_QUERIES)
#else
#define values_single values_narrow
#endif

static void block_values(const query_block *b, const span_block *s, const span_pages *pages,
                         int head_dim, const float *p)
{
    int d = 0;
    if (b->n <= WIDE_QUERIES)
        for (; d + 16 * WIDE <= head_dim; d += 16 * WIDE)
            values_wide(b, s, pages, head_dim, d, p);
    for (; d + 16 * NARROW <= head_dim; d += 16 * NARROW)
        values_narrow(b, s, pages, head_dim, d, p);
    for (; d < head_dim; d += 16)
        values_single(b, s, pages, head_dim, d, p);
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

/* Cut the queries into blocks of even size and pack them, the numbers of one d side by side. */
static int make_blocks(const ea_attn_args *a, query_block *blocks, float *q, float *o)
{
    int n = (a->n_queries + BLOCK_QUERIES - 1) / BLOCK_QUERIES, dim16 = EA_ATTN_DIM16(a->head_dim);
    for (int i = 0, first = 0; i < n; i++) {
        query_block *b = &blocks[i];
        *b = (query_block){.first = first,
                           .n = a->n_queries / n + (i < a->n_queries % n),
                           .q = q + (ptrdiff_t)first * dim16,
                           .o = o + (ptrdiff_t)first * dim16};
        float *packed = q + (ptrdiff_t)first * dim16;
        for (int d = 0; d < a->head_dim; d++)
            for (int j = 0; j < b->n; j++)
                *packed++ = a->q[first + j][d];
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
        pages->k[i] = (const ea_f16 *)(page + a->k_offset);
        pages->v[i] = (const ea_f16 *)(page + a->v_offset);
        int next = i + SPAN_PAGES;
        if (base + next * EA_PAGE_TOKENS <= last && table[next] >= 0)
            page = a->kv + (size_t)table[next] * a->page_bytes;
        pages->next_k[i] = (const char *)(page + a->k_offset);
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

void EA_ATTN_NAME(const ea_attn_args *a)
{
    query_block blocks[MAX_BLOCKS];
    span_block seen[MAX_BLOCKS];
    span_pages pages = {0};
    size_t dim16 = (size_t)EA_ATTN_DIM16(a->head_dim);
    float *q = a->scratch, *o = q + EA_ATTN_QUERIES * dim16, *p = o + EA_ATTN_QUERIES * dim16;
    int n_blocks = make_blocks(a, blocks, q, o), first = INT_MAX, last = 0;
    for (int i = 0; i < a->n_queries; i++) {
        first = EA_MIN(first, first_seen(a, i));
        last = EA_MAX(last, a->pos[i]);
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
            block_scores(&blocks[i], &seen[i], &pages, a->head_dim, p);
            block_weights(&blocks[i], &seen[i], a->scale, p);
            block_values(&blocks[i], &seen[i], &pages, a->head_dim, p);
        }
    }
    for (int i = 0; i < n_blocks; i++)
        finish(a, &blocks[i]);
}
