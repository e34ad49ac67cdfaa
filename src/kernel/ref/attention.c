/* attention.c: attention over paged KV, scalar: the definition of every bit that the vector forms
 * give. One query at a time, one span of absolute positions at a time. Pure; any thread. */
#include "kernel/ref/slots.h"

#include <float.h>

#include "kernel/exp.h"

/* Enough for every folder: the vector forms pack the queries, keep the running outputs, and keep
 * one block's scores (at most 16 queries; attention_vec.h). The scalar form needs twice head_dim
 * floats.
 */
size_t ea_attn_scratch_bytes(int head_dim)
{
    size_t dim16 = ((size_t)head_dim + 15) / 16 * 16;
    return sizeof(float) * (2 * EA_ATTN_QUERIES * dim16 + 16 * (EA_ATTN_SPAN + 16));
}

/* What one query has gathered over the spans so far: largest score, sum of exponentials, and (in
 * scratch) the weighted sum of V, the last two relative to the first. The score starts at the
 * lowest finite value, not at minus infinity: scores that overflowed downwards then weigh nothing,
 * and NaN shows. */
typedef struct running {
    float max, sum;
} running;

static const ea_f16 *block(const ea_attn_args *a, int pos, size_t offset)
{
    int32_t page = a->pages[pos / EA_PAGE_TOKENS];
    return (const ea_f16 *)(a->kv + (size_t)page * a->page_bytes + offset);
}

static float score(const ea_attn_args *a, const float *q, int pos)
{
    int slot = pos % EA_PAGE_TOKENS;
    const ea_f16 *k = block(a, pos, a->k_offset) + (ptrdiff_t)(slot / 16) * a->head_dim * 16;
    float acc = 0;
    for (int d = 0; d < a->head_dim; d++)
        acc = fmaf(ea_f16_to_f32(k[d * 16 + slot % 16]), q[d], acc);
    return acc * a->scale;
}

/* Add positions lo..hi, all of the span that begins at `base`, to the running values. */
static void add_span(const ea_attn_args *a, int query, int base, int lo, int hi, running *r)
{
    float p[EA_ATTN_SPAN], lane[16] = {0}, max = -FLT_MAX;
    for (int pos = lo; pos <= hi; pos++) {
        p[pos - base] = score(a, a->q[query], pos);
        max = p[pos - base] > max ? p[pos - base] : max;
    }
    for (int pos = lo; pos <= hi; pos++) {
        p[pos - base] = ea_exp_scalar(p[pos - base] - max);
        lane[pos % 16] += p[pos - base];
    }
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];

    float both = max > r->max ? max : r->max;
    float keep = ea_exp_scalar(r->max - both), add = ea_exp_scalar(max - both);
    r->max = both;
    r->sum = fmaf(r->sum, keep, lane[0] * add);
    float *o = (float *)a->scratch, *acc = o + a->head_dim;
    memset(acc, 0, (size_t)a->head_dim * sizeof *acc);
    for (int pos = lo; pos <= hi; pos++) {
        const ea_f16 *v =
            block(a, pos, a->v_offset) + (ptrdiff_t)(pos % EA_PAGE_TOKENS) * a->head_dim;
        for (int d = 0; d < a->head_dim; d++)
            acc[d] = fmaf(ea_f16_to_f32(v[d]), p[pos - base], acc[d]);
    }
    for (int d = 0; d < a->head_dim; d++)
        o[d] = fmaf(o[d], keep, acc[d] * add);
}

void ea_attention__ref(const ea_attn_args *a)
{
    for (int query = 0; query < a->n_queries; query++) {
        int last = a->pos[query], first = 0;
        if (a->window > 0 && last >= a->window)
            first = last - a->window + 1;
        running r = {-FLT_MAX, 0};
        float *o = (float *)a->scratch, *out = a->out[query];
        memset(o, 0, (size_t)a->head_dim * sizeof *o);
        for (int base = first / EA_ATTN_SPAN * EA_ATTN_SPAN; base <= last; base += EA_ATTN_SPAN)
            add_span(a, query, base, EA_MAX(first, base), EA_MIN(last, base + EA_ATTN_SPAN - 1),
                     &r);
        /* Every score overflowed downwards: no weights, so zero. */
        float inv = r.sum != 0 ? 1.0f / r.sum : 0.0f;
        for (int d = 0; d < a->head_dim; d++)
            out[d] = o[d] * inv;
    }
}
