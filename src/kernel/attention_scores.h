/* attention_scores.h: products of queries and K; a part of attention_vec.h, which includes it.
 *
 * Packed queries of one block of n: f16 pages [head_dim][n] floats. Quantised pages, for each 32
 * components: QUERY_INTS words a query, [QUERY_INTS][n], each four codes of neighbouring components
 * (without VNNI, Q8_0: two codes, as int16; first components 0 and 2 of each four, then 1 and 3);
 * then their scales [n] and what the codes' offset adds to the dot product [n].
 * With VNNI: v16i_dot4(acc, u8, i8) adds four products to each lane, exactly. */

enum { QUERY_INTS = 16 };

#if EA_ATTN_F16
/* Unscaled scores of nq queries at nv groups of 16 positions: group i is at k[i] and its scores go
 * to p + at[i]. The same number of bytes from fetch[i] on is fetched on the way. */
VEC_INLINE void scores_f16(const int nv, const int nq, const uint8_t *const *k, const int *at,
                           int head_dim, const float *q, float *p, const uint8_t *const *fetch)
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
            kd[j] = v16_load_f16((const ea_f16 *)k[j] + d * 16);
            if (j % 2 == 0) /* two groups are one page's, which is fetched as a whole */
                _mm_prefetch((const char *)fetch[j] + (ptrdiff_t)d * (nv > 1 ? 64 : 32), _MM_HINT_T1);
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
#endif

/* One word of codes of each of nv groups, at k[j] + off (Q4_0: its low or high halves), times one
 * word of each query, into sums. */
VEC_INLINE void dot_step(const bool q8, const bool high, const int nv, const int nq,
                         const uint8_t *const *k, ptrdiff_t off, const int32_t *q, v16i acc[][WIDE])
{
    // clang-format off
    v16i kd[WIDE];
    UNROLL
    for (int j = 0; j < nv; j++) {
        kd[j] = v16i_load(k[j] + off);
        if (!q8)
            kd[j] = v16i_and(high ? v16i_srl16(kd[j], 4) : kd[j], v16i_set1(0x0f0f0f0f));
    }
#if EA_ATTN_VNNI
    UNROLL
    for (int i = 0; i < nq; i++)
        UNROLL
        for (int j = 0; j < nv; j++)
            acc[i][j] = v16i_dot4(acc[i][j], kd[j], v16i_set1(q[i]));
#else
    if (!q8) { /* int16 sums: at most 8 * 2 * 15 * 127 */
        UNROLL
        for (int i = 0; i < nq; i++)
            UNROLL
            for (int j = 0; j < nv; j++)
                acc[i][j] = v16i_add16(acc[i][j], v16i_madd8(kd[j], v16i_set1(q[i])));
        return;
    }
    UNROLL
    for (int j = 0; j < nv; j++) {
        v16i even = v16i_and(kd[j], v16i_set1(0x00ff00ff)), odd = v16i_srl16(kd[j], 8);
        UNROLL
        for (int i = 0; i < nq; i++) {
            acc[i][j] = v16i_add(acc[i][j], v16i_madd16(even, v16i_set1(q[i])));
            acc[i][j] = v16i_add(acc[i][j], v16i_madd16(odd, v16i_set1(q[8 * nq + i])));
        }
    }
#endif
    // clang-format on
}

/* The same as scores_f16 over quantised K. scale[j]: f16 scales of group j, those of the next block
 * of components EA_PAGE_TOKENS further. Sums over blocks are kept in p. */
VEC_INLINE void scores_quant(const bool q8, const int nv, const int nq, const uint8_t *const *k,
                             const int *at, int head_dim, size_t codes, const float *packed,
                             float *p, const uint8_t *const *fetch)
{
    const bool short_sums = !EA_ATTN_VNNI && !q8;
    const int lines = q8 ? 8 : 4; /* of codes a group and block of components */
    ptrdiff_t off = 0;
    for (int b = 0; b < head_dim / EA_KV_BLOCK; b++, packed += (QUERY_INTS + 2) * nq) {
        const int32_t *q = (const int32_t *)(const void *)packed;
        const float *dq = packed + QUERY_INTS * nq;
        const int32_t *offset = q + (QUERY_INTS + 1) * nq;
        v16i acc[BLOCK_QUERIES][WIDE];
        // clang-format off
        UNROLL
        for (int i = 0; i < nq; i++)
            UNROLL
            for (int j = 0; j < nv; j++)
                acc[i][j] = v16i_set1(short_sums ? 0 : offset[i]);
        for (int w = 0; w < lines; w++, off += 64, q += nq) {
            UNROLL
            for (int j = 0; j < nv; j++)
                _mm_prefetch((const char *)fetch[j] + off, _MM_HINT_T1);
            dot_step(q8, false, nv, nq, k, off, q, acc);
            if (!q8)
                dot_step(q8, true, nv, nq, k, off, q + 4 * nq, acc);
        }
        UNROLL
        for (int j = 0; j < nv; j++) {
            int group = at[j] / 16 % PAGE_GROUPS; /* k[j] - group * codes / 2: the block */
            const uint8_t *scales = k[j] + codes - (size_t)group * (codes / 2);
            v16 dk = v16_load_f16((const ea_f16 *)scales + b * EA_PAGE_TOKENS + group * 16);
            UNROLL
            for (int i = 0; i < nq; i++) {
                v16i dot = acc[i][j];
#if !EA_ATTN_VNNI
                if (short_sums)
                    dot = v16i_add(v16i_madd16(dot, v16i_set1(0x00010001)), v16i_set1(offset[i]));
#endif
                float *to = p + i * SCORE_STRIDE + at[j];
                v16 before = b ? v16_load(to) : v16_set1(0);
                v16_store(to, v16_fma(v16_from_i32(dot), v16_mul(dk, v16_set1(dq[i])), before));
            }
        }
        // clang-format on
    }
}

/* With the number of queries made a constant: one function for each number of groups. */
#define SCORES(name, nv, limit, call)                                                          \
    static __attribute__((noinline)) void name(int nq, const uint8_t *const *k, const int *at, \
                                               int head_dim, size_t codes, const float *q,     \
                                               float *p, const uint8_t *const *fetch)          \
    {                                                                                          \
        (void)codes;                                                                           \
        switch (nq) {                                                                          \
            EACH_NQ(call, nv, limit)                                                           \
        }                                                                                      \
    }
#define F16_CASE(n, nv, limit)                               \
    case n:                                                  \
        if (n <= limit)                                      \
            scores_f16(nv, n, k, at, head_dim, q, p, fetch); \
        break;
#define QUANT_CASE(n, nv, limit, q8)                                      \
    case n:                                                               \
        if (n <= limit)                                                   \
            scores_quant(q8, nv, n, k, at, head_dim, codes, q, p, fetch); \
        break;
#define Q8_CASE(n, nv, limit) QUANT_CASE(n, nv, limit, true)
#define Q4_CASE(n, nv, limit) QUANT_CASE(n, nv, limit, false)

#if EA_ATTN_F16
SCORES(scores_f16_wide, WIDE, WIDE_QUERIES, F16_CASE)
SCORES(scores_f16_narrow, NARROW, BLOCK_QUERIES, F16_CASE)
#endif
SCORES(scores_q8_wide, WIDE, WIDE_QUERIES, Q8_CASE)
SCORES(scores_q8_narrow, NARROW, BLOCK_QUERIES, Q8_CASE)
SCORES(scores_q4_wide, WIDE, WIDE_QUERIES, Q4_CASE)
SCORES(scores_q4_narrow, NARROW, BLOCK_QUERIES, Q4_CASE)

typedef void (*scores_fn)(int nq, const uint8_t *const *k, const int *at, int head_dim,
                          size_t codes, const float *q, float *p, const uint8_t *const *fetch);

/* Scores of one block at every page that one of its queries sees into. */
static void block_scores(ea_kv_type type, const query_block *b, const span_block *s,
                         const span_pages *pages, int head_dim, float *p)
{
    const uint8_t *k[SPAN_GROUPS], *fetch[SPAN_GROUPS];
    int at[SPAN_GROUPS], n = 0;
    size_t codes = ea_kv_codes_bytes(type, head_dim);
    scores_fn wide = type == EA_KV_Q8_0 ? scores_q8_wide : scores_q4_wide;
    scores_fn narrow = type == EA_KV_Q8_0 ? scores_q8_narrow : scores_q4_narrow;
#if EA_ATTN_F16
    if (type == EA_KV_F16) {
        wide = scores_f16_wide;
        narrow = scores_f16_narrow;
    }
#endif
    for (int page = 0; page < SPAN_PAGES; page++) {
        if (!(s->pages >> page & 1))
            continue;
        for (int g = 0; g < PAGE_GROUPS; g++, n++) {
            k[n] = pages->k[page] + codes / PAGE_GROUPS * (size_t)g;
            fetch[n] = pages->v[page] + codes / PAGE_GROUPS * (size_t)g;
            at[n] = page * EA_PAGE_TOKENS + g * 16;
        }
        if (type != EA_KV_F16)
            for (int d = 0; d < head_dim; d += EA_KV_BLOCK)
                _mm_prefetch((const char *)(pages->v[page] + codes) + 2 * d, _MM_HINT_T1);
    }
    int g = 0;
    if (b->n <= WIDE_QUERIES)
        for (; g + WIDE <= n; g += WIDE)
            wide(b->n, k + g, at + g, head_dim, codes, b->q, p, fetch + g);
    for (; g + NARROW <= n; g += NARROW)
        narrow(b->n, k + g, at + g, head_dim, codes, b->q, p, fetch + g);
}

/* ---- packing ---- */

/* 32 components of query i of n. */
static void pack_quant(bool q8, const float *q, int n, int i, float *packed)
{
    const v16 zero = v16_set1(0);
    v16 x0 = v16_load(q), x1 = v16_load(q + 16);
    v16 most = v16_max(v16_max(x0, v16_sub(zero, x0)), zero);
    most = v16_max(v16_max(x1, v16_sub(zero, x1)), most);
    float not_finite = v16_hsum(v16_fma(x0, zero, v16_mul(x1, zero)));
    float d = not_finite == 0 ? v16_hmax(most) / 127.0f : NAN;
    int8_t code[EA_KV_BLOCK] = {0};
    if (d >= 0x1p-100f) {
        v16 inv = v16_set1(1.0f / d);
        v16_store_i8(code, v16_mul(x0, inv));
        v16_store_i8(code + 16, v16_mul(x1, inv));
    }
    int32_t *to = (int32_t *)(void *)packed + i, sum = 0;
    for (int j = 0; j < EA_KV_BLOCK; j++)
        sum += code[j];
    for (int j = 0; j < 8; j++) {
        const int8_t *c = code + 4 * j;
        if (q8 && !EA_ATTN_VNNI) {
            to[j * n] = (int32_t)((uint32_t)(uint16_t)c[0] | (uint32_t)(uint16_t)c[2] << 16);
            to[(8 + j) * n] = (int32_t)((uint32_t)(uint16_t)c[1] | (uint32_t)(uint16_t)c[3] << 16);
        } else {
            memcpy(&to[j * n], c, sizeof *to);
        }
    }
    packed[QUERY_INTS * n + i] = d;
    to[(QUERY_INTS + 1) * n] = -sum * (q8 ? 128 : 8);
}

static void pack_queries(const ea_attn_args *a, const query_block *b)
{
    float *packed = b->q;
    if (a->type == EA_KV_F16) {
        for (int d = 0; d < a->head_dim; d++)
            for (int i = 0; i < b->n; i++)
                *packed++ = a->q[b->first + i][d];
        return;
    }
    for (int d = 0; d < a->head_dim; d += EA_KV_BLOCK, packed += (QUERY_INTS + 2) * b->n)
        for (int i = 0; i < b->n; i++)
            pack_quant(a->type == EA_KV_Q8_0, a->q[b->first + i] + d, b->n, i, packed);
}
