/* attention.c: KV pages and attention over them, scalar: the definition of every bit that the
 * vector forms give. One query at a time, one span of absolute positions at a time. Pure; any
 * thread. */
#include "kernel/ref/slots.h"

#include <float.h>

#include "kernel/exp.h"

/* Enough for every folder: the vector forms pack the queries (quantised ones take less than f32),
 * keep the running outputs, one block's scores (at most 16 queries) and the weights of V in two
 * blocks of components (attention_vec.h). The scalar form needs three times head_dim floats.
 */
size_t ea_attn_scratch_bytes(int head_dim)
{
    size_t dim16 = ((size_t)head_dim + 15) / 16 * 16;
    return sizeof(float) * (2 * EA_ATTN_QUERIES * dim16 + 3 * 16 * (EA_ATTN_SPAN + 16));
}

/* ---- writing ---- */

static void write_f16(uint8_t *k_block, uint8_t *v_block, int slot, int head_dim, const float *k,
                      const float *v)
{
    ea_f16 *k_out = (ea_f16 *)k_block + (ptrdiff_t)(slot / 16) * head_dim * 16 + slot % 16;
    ea_f16 *v_out = (ea_f16 *)v_block + (ptrdiff_t)slot * head_dim;
    for (int d = 0; d < head_dim; d++) {
        k_out[d * 16] = ea_f32_to_f16(k[d]);
        v_out[d] = ea_f32_to_f16(v[d]);
    }
}

/* Codes of 32 numbers, and their scale. */
static ea_f16 quantise_block(ea_kv_type type, const float *x, int *code)
{
    float high = -INFINITY, low = INFINITY, not_finite = 0;
    for (int i = 0; i < EA_KV_BLOCK; i++) {
        high = x[i] > high ? x[i] : high;
        low = x[i] < low ? x[i] : low;
        not_finite = fmaf(x[i], 0.0f, not_finite);
    }
    bool up = high >= -low;
    float d = type == EA_KV_Q8_0 ? (up ? high : -low) / 127.0f : (up ? high : low) / -8.0f;
    ea_f16 scale = ea_f32_to_f16(not_finite == 0 ? d : NAN);
    float e = ea_f16_to_f32(scale);
    if (e == 0)
        scale = (ea_f16){0};
    int least = type == EA_KV_Q8_0 ? -128 : -8, most = -least - 1;
    for (int i = 0; i < EA_KV_BLOCK; i++)
        code[i] = fabsf(e) > 0
                      ? (int)rintf(fmaxf(fminf(x[i] * (1.0f / e), (float)most), (float)least))
                      : 0;
    return scale;
}

static void write_quant(ea_kv_type type, uint8_t *k_block, uint8_t *v_block, int slot, int head_dim,
                        const float *k, const float *v)
{
    size_t codes = ea_kv_codes_bytes(type, head_dim);
    ea_f16 *k_scale = (ea_f16 *)(k_block + codes), *v_scale = (ea_f16 *)(v_block + codes);
    bool q8 = type == EA_KV_Q8_0;
    k_block += codes / 2 * (size_t)(slot / 16) + (size_t)(slot % 16) * 4;
    v_block += codes / EA_PAGE_TOKENS * (size_t)slot;
    for (int b = 0; b < head_dim / EA_KV_BLOCK; b++) {
        int c[EA_KV_BLOCK];
        k_scale[b * EA_PAGE_TOKENS + slot] = quantise_block(type, k + b * EA_KV_BLOCK, c);
        for (int i = 0; i < (q8 ? 32 : 16); i += 4, k_block += 64)
            for (int j = i; j < i + 4; j++)
                k_block[j - i] = (uint8_t)(q8 ? c[j] + 128 : c[j] + 8 + (c[j + 16] + 8) * 16);
        v_scale[b * EA_PAGE_TOKENS + slot] = quantise_block(type, v + b * EA_KV_BLOCK, c);
        for (int i = 0; i < (q8 ? 32 : 16); i++)
            *v_block++ = (uint8_t)(q8 ? c[i] : c[i] + 8 + (c[i + 16] + 8) * 16);
    }
}

void ea_kv_write__ref(ea_kv_type type, uint8_t *k_block, uint8_t *v_block, int slot, int head_dim,
                      const float *k, const float *v)
{
    if (type == EA_KV_F16)
        write_f16(k_block, v_block, slot, head_dim, k, v);
    else
        write_quant(type, k_block, v_block, slot, head_dim, k, v);
}

/* ---- reading ---- */

/* One position of a K or V block. */
typedef struct place {
    const uint8_t *block;
    int slot;
} place;

static place find(const ea_attn_args *a, int pos, size_t offset)
{
    size_t page = (size_t)a->pages[pos / EA_PAGE_TOKENS];
    return (place){a->kv + page * a->page_bytes + offset, pos % EA_PAGE_TOKENS};
}

static float scale_at(const ea_attn_args *a, place p, int b)
{
    const ea_f16 *scales = (const ea_f16 *)(p.block + ea_kv_codes_bytes(a->type, a->head_dim));
    return ea_f16_to_f32(scales[b * EA_PAGE_TOKENS + p.slot]);
}

/* Code of component i of block b in K. */
static int k_code(const ea_attn_args *a, place p, int b, int i)
{
    const uint8_t *group = p.block +
                           ea_kv_codes_bytes(a->type, a->head_dim) / 2 * (size_t)(p.slot / 16) +
                           (ptrdiff_t)(p.slot % 16) * 4 + i % 4;
    if (a->type == EA_KV_Q8_0)
        return group[(ptrdiff_t)(b * 8 + i / 4) * 64] - 128;
    return (group[(ptrdiff_t)(b * 4 + i % 16 / 4) * 64] >> i / 16 * 4 & 15) - 8;
}

static float v_at(const ea_attn_args *a, place p, int d)
{
    ptrdiff_t row = p.slot * (ptrdiff_t)a->head_dim;
    if (a->type == EA_KV_F16)
        return ea_f16_to_f32(((const ea_f16 *)p.block)[row + d]);
    if (a->type == EA_KV_Q8_0)
        return (float)(int8_t)p.block[row + d];
    return (float)((p.block[row / 2 + d / 32 * 16 + d % 16] >> d % 32 / 16 * 4 & 15) - 8);
}

/* A query by blocks of 32 components. */
typedef struct query_quant {
    int8_t code[512];
    float scale[512 / EA_KV_BLOCK];
} query_quant;

static void quantise_query(const float *q, int head_dim, query_quant *out)
{
    for (int b = 0; b < head_dim / EA_KV_BLOCK; b++, q += EA_KV_BLOCK) {
        float most = 0, not_finite = 0;
        for (int i = 0; i < EA_KV_BLOCK; i++) {
            most = fabsf(q[i]) > most ? fabsf(q[i]) : most;
            not_finite = fmaf(q[i], 0.0f, not_finite);
        }
        float d = not_finite == 0 ? most / 127.0f : NAN;
        out->scale[b] = d;
        for (int i = 0; i < EA_KV_BLOCK; i++)
            out->code[b * EA_KV_BLOCK + i] =
                d >= 0x1p-100f ? (int8_t)rintf(q[i] * (1.0f / d)) : (int8_t)0;
    }
}

static float score(const ea_attn_args *a, const float *q, const query_quant *qq, int pos)
{
    place p = find(a, pos, a->k_offset);
    float acc = 0;
    if (a->type == EA_KV_F16) {
        const ea_f16 *k =
            (const ea_f16 *)p.block + (ptrdiff_t)(p.slot / 16) * a->head_dim * 16 + p.slot % 16;
        for (int d = 0; d < a->head_dim; d++)
            acc = fmaf(ea_f16_to_f32(k[d * 16]), q[d], acc);
        return acc * a->scale;
    }
    for (int b = 0; b < a->head_dim / EA_KV_BLOCK; b++) {
        int dot = 0;
        for (int i = 0; i < EA_KV_BLOCK; i++)
            dot += k_code(a, p, b, i) * qq->code[b * EA_KV_BLOCK + i];
        acc = fmaf((float)dot, scale_at(a, p, b) * qq->scale[b], acc);
    }
    return acc * a->scale;
}

/* ---- spans ---- */

/* Positions lo..hi, all of the span that begins at `base`: o, then m and l, in the form of a
 * partial result. The largest score starts at the lowest finite value, not at minus infinity:
 * scores that overflowed downwards then weigh nothing, and NaN shows. */
static void span_part(const ea_attn_args *a, int query, const query_quant *qq, int base, int lo,
                      int hi, float *part)
{
    float p[EA_ATTN_SPAN], lane[16] = {0}, max = -FLT_MAX;
    for (int pos = lo; pos <= hi; pos++) {
        p[pos - base] = score(a, a->q[query], qq, pos);
        max = p[pos - base] > max ? p[pos - base] : max;
    }
    for (int pos = lo; pos <= hi; pos++) {
        p[pos - base] = ea_exp_scalar(p[pos - base] - max);
        lane[pos % 16] += p[pos - base];
    }
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    memset(part, 0, ea_attn_part_floats(a->head_dim) * sizeof *part);
    float *tail = part + ea_attn_part_floats(a->head_dim) - 16;
    tail[0] = max;
    tail[1] = lane[0];
    for (int pos = lo; pos <= hi; pos++) {
        place v = find(a, pos, a->v_offset);
        for (int d = 0; d < a->head_dim; d++) {
            float weight = p[pos - base];
            if (a->type != EA_KV_F16)
                weight *= scale_at(a, v, d / EA_KV_BLOCK);
            part[d] = fmaf(v_at(a, v, d), weight, part[d]);
        }
    }
}

/* What one query has gathered over the spans so far: largest score, sum of exponentials, and the
 * weighted sum of V in o, the last two relative to the first. */
typedef struct running {
    float max, sum;
    float *o;
} running;

static void merge_part(const float *part, int head_dim, running *r)
{
    const float *tail = part + ea_attn_part_floats(head_dim) - 16;
    float both = tail[0] > r->max ? tail[0] : r->max;
    float keep = ea_exp_scalar(r->max - both), add = ea_exp_scalar(tail[0] - both);
    r->max = both;
    r->sum = fmaf(r->sum, keep, tail[1] * add);
    for (int d = 0; d < head_dim; d++)
        r->o[d] = fmaf(r->o[d], keep, part[d] * add);
}

static void finish(const running *r, int head_dim, float *out)
{
    /* Every score overflowed downwards: no weights, so zero. */
    float inv = r->sum != 0 ? 1.0f / r->sum : 0.0f;
    for (int d = 0; d < head_dim; d++)
        out[d] = r->o[d] * inv;
}

static void attention(const ea_attn_args *a)
{
    float *part = a->scratch, *o = part + ea_attn_part_floats(a->head_dim);
    for (int query = 0; query < a->n_queries; query++) {
        query_quant qq;
        if (a->type != EA_KV_F16)
            quantise_query(a->q[query], a->head_dim, &qq);
        int last = a->pos[query], first = 0;
        if (a->window > 0 && last >= a->window)
            first = last - a->window + 1;
        int span0 = first / EA_ATTN_SPAN, span1 = last / EA_ATTN_SPAN + 1;
        if (a->n_spans) {
            span0 = EA_MAX(span0, a->span0);
            span1 = EA_MIN(span1, a->span0 + a->n_spans);
        }
        running r = {-FLT_MAX, 0, o};
        memset(o, 0, (size_t)a->head_dim * sizeof *o);
        for (int span = span0; span < span1; span++) {
            int base = span * EA_ATTN_SPAN;
            float *to =
                a->n_spans ? a->out[query] + (size_t)(span - a->span0) * a->part_stride : part;
            span_part(a, query, &qq, base, EA_MAX(first, base),
                      EA_MIN(last, base + EA_ATTN_SPAN - 1), to);
            if (!a->n_spans)
                merge_part(part, a->head_dim, &r);
        }
        if (!a->n_spans)
            finish(&r, a->head_dim, a->out[query]);
    }
}

void ea_attention_f16__ref(const ea_attn_args *a)
{
    attention(a);
}

void ea_attention_quant__ref(const ea_attn_args *a)
{
    attention(a);
}

void ea_attention_merge__ref(float *out, int head_dim, const float *parts, int n_parts,
                             size_t part_stride)
{
    running r = {-FLT_MAX, 0, out};
    memset(out, 0, (size_t)head_dim * sizeof *out);
    for (int i = 0; i < n_parts; i++)
        merge_part(parts + (size_t)i * part_stride, head_dim, &r);
    finish(&r, head_dim, out);
}
