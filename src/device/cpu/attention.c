/* attention.c: rotation, KV write and attention of a step. See exec.c. */
#include <string.h>

#include "device/cpu/exec.h"

/* Where the K block of a KV head of this operator's layer begins in a page; V follows it. */
static size_t kv_offset(const ea_cpu_step *r, int group, int slot, int head)
{
    const ea_cpu_group *g = &r->d->groups[group];
    int n_head_kv = r->d->plan->groups[group].n_head_kv;
    return g->offset + (size_t)(slot * n_head_kv + head) * 2 * g->block_bytes;
}

/* Turn K of one row and KV head and write it, with V, to the row's page. */
static void rope_and_write(const ea_cpu_step *r, const ea_op *op, int row, int head)
{
    ea_cpu_device *d = r->d;
    int gi = op->u.rope_kv.group;
    const ea_kv_group *g = &d->plan->groups[gi];
    const ea_cpu_group *cg = &d->groups[gi];
    const ea_cpu_buffer *kb = &d->buffers[op->u.rope_kv.k], *vb = &d->buffers[op->u.rope_kv.v];
    float *k = kb->f32 + (size_t)row * kb->ld + (size_t)head * (size_t)g->head_dim;
    const float *v = vb->f32 + (size_t)row * vb->ld + (size_t)head * (size_t)g->head_dim;
    ea_rope(k, 1, g->head_dim, g->n_rot, cg->cs + (size_t)row * (size_t)g->n_rot, g->neox);

    if (cg->head_dim != g->head_dim) { /* zeros behind change neither scores nor outputs */
        float *wide = r->own->attn_padded;
        memset(wide, 0, 2 * (size_t)cg->head_dim * sizeof *wide);
        memcpy(wide, k, (size_t)g->head_dim * sizeof *wide);
        memcpy(wide + cg->head_dim, v, (size_t)g->head_dim * sizeof *wide);
        k = wide;
        v = wide + cg->head_dim;
    }
    const ea_row *in = &d->rows[row];
    int pos = in->pos[0];
    int32_t page = d->seqs[in->seq].pages[pos / EA_PAGE_TOKENS];
    uint8_t *block =
        d->kv + (size_t)page * d->base.info.page_bytes + kv_offset(r, gi, op->u.rope_kv.slot, head);
    ea_kv_write(EA_KV_F16, block, block + cg->block_bytes, pos % EA_PAGE_TOKENS, cg->head_dim, k, v);
}

static void rope_queries(const ea_cpu_step *r, const ea_op *op, int row, int head0, int n_heads)
{
    int gi = op->u.rope_kv.group;
    const ea_kv_group *g = &r->d->plan->groups[gi];
    const ea_cpu_buffer *q = &r->d->buffers[op->u.rope_kv.q];
    ea_rope(q->f32 + (size_t)row * q->ld + (size_t)head0 * (size_t)g->head_dim, n_heads,
            g->head_dim, g->n_rot, r->d->groups[gi].cs + (size_t)row * (size_t)g->n_rot, g->neox);
}

void ea_cpu_op_rope_kv(const ea_cpu_step *r, const ea_op *op)
{
    const ea_kv_group *g = &r->d->plan->groups[op->u.rope_kv.group];
    if (r->d->fused_rope)
        return; /* the attention items do it */
    /* Neighbouring rows write into the same lines of K. */
    int step = r->d->n_rows >= 64 ? 16 : 1, row0;
    while ((row0 = ea_pool_claim(r->worker, step)) < r->d->n_rows)
        for (int row = row0; row < EA_MIN(row0 + step, r->d->n_rows); row++) {
            rope_queries(r, op, row, 0, g->n_head);
            for (int head = 0; head < g->n_head_kv; head++)
                rope_and_write(r, op, row, head);
        }
    ea_pool_barrier(r->worker);
}

/* One piece: the rows of a span and some query heads of one KV head. */
static void attention_item(const ea_cpu_step *r, const ea_op *op, const ea_cpu_span *span,
                           int kv_head, int head0, int n_heads)
{
    ea_cpu_device *d = r->d;
    int gi = op->u.attention.group, n = 0;
    const ea_kv_group *g = &d->plan->groups[gi];
    const ea_cpu_group *cg = &d->groups[gi];
    const ea_cpu_buffer *qb = &d->buffers[op->u.attention.q];
    const ea_cpu_buffer *ob = &d->buffers[op->u.attention.out];
    bool pad = cg->head_dim != g->head_dim;
    const float *q[EA_ATTN_QUERIES];
    float *real[EA_ATTN_QUERIES], *out[EA_ATTN_QUERIES]; /* differ for padded heads */
    int32_t pos[EA_ATTN_QUERIES];
    for (int row = span->row0; row < span->row0 + span->n_rows; row++)
        for (int h = head0; h < head0 + n_heads; h++, n++) {
            q[n] = qb->f32 + (size_t)row * qb->ld + (size_t)h * (size_t)g->head_dim;
            real[n] = ob->f32 + (size_t)row * ob->ld + (size_t)h * (size_t)g->head_dim;
            out[n] = real[n];
            pos[n] = d->rows[row].pos[0];
            if (pad) {
                float *wide = r->own->attn_padded + (size_t)n * 2 * (size_t)cg->head_dim;
                memset(wide, 0, (size_t)cg->head_dim * sizeof *wide);
                q[n] = memcpy(wide, q[n], (size_t)g->head_dim * sizeof *wide);
                out[n] = wide + cg->head_dim;
            }
        }
    size_t offset = kv_offset(r, gi, op->u.attention.slot, kv_head);
    ea_attention(&(ea_attn_args){.n_queries = n,
                                 .head_dim = cg->head_dim,
                                 .q = q,
                                 .out = out,
                                 .pos = pos,
                                 .scale = g->scale,
                                 .window = g->window,
                                 .kv = d->kv,
                                 .page_bytes = d->base.info.page_bytes,
                                 .k_offset = offset,
                                 .v_offset = offset + cg->block_bytes,
                                 .pages = span->pages,
                                 .scratch = r->own->attn_scratch});
    for (int i = 0; i < n && pad; i++)
        memcpy(real[i], out[i], (size_t)g->head_dim * sizeof **real);
}

/* rope: the ROPE_KV operator before this one, done here where spans are short. */
void ea_cpu_op_attention(const ea_cpu_step *r, const ea_op *op, const ea_op *rope)
{
    const ea_cpu_device *d = r->d;
    const ea_kv_group *g = &d->plan->groups[op->u.attention.group];
    const ea_cpu_group *cg = &d->groups[op->u.attention.group];
    const ea_cpu_buffer *out = &d->buffers[op->u.attention.out];
    int group = g->n_head / g->n_head_kv, per_span = g->n_head_kv * cg->parts, item;
    /* Whole units of columns are quantised by the item that wrote them. */
    int cols = cg->heads * g->head_dim;
    bool quantise = out->q8 && cols % ea_acts_unit(&out->acts) == 0 && group % cg->heads == 0;
    while ((item = ea_pool_claim(r->worker, 1)) < d->n_spans * per_span) {
        /* Last spans first: of a prompt they see most, so the short ones fill up the end. */
        const ea_cpu_span *span = &d->spans[d->n_spans - 1 - item / per_span];
        int kv_head = item % per_span / cg->parts;
        int head0 = kv_head * group + item % cg->parts * cg->heads;
        int n_heads = EA_MIN(cg->heads, (kv_head + 1) * group - head0);
        for (int i = 0; i < span->n_rows && d->fused_rope; i++) {
            rope_queries(r, rope, span->row0 + i, head0, n_heads);
            rope_and_write(r, rope, span->row0 + i, kv_head);
        }
        if (span->row0 >= r->row1 || span->row0 + span->n_rows <= r->row0)
            continue; /* only its K and V were needed */
        attention_item(r, op, span, kv_head, head0, n_heads);
        for (int i = 0; i < span->n_rows && quantise; i++)
            ea_acts_quantise_cols(&out->acts, span->row0 + i, head0 * g->head_dim, cols);
    }
    ea_pool_barrier(r->worker);
    if (!out->q8 || quantise)
        return;
    int i;
    while ((i = ea_pool_claim(r->worker, 1)) < r->row1 - r->row0)
        ea_acts_quantise(&out->acts, r->row0 + i);
    ea_pool_barrier(r->worker);
}
