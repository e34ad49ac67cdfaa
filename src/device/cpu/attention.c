/* attention.c: rotation, KV write and attention of a step. See exec.c; the pieces: attn_plan.h. */
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
        float *wide = r->own->attn_wide;
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
    ea_kv_write(d->kv_type, block, block + cg->block_bytes, pos % EA_PAGE_TOKENS, cg->head_dim, k,
                v);
}

static void rope_queries(const ea_cpu_step *r, const ea_op *op, int row, int head0, int n_heads)
{
    int gi = op->u.rope_kv.group;
    const ea_kv_group *g = &r->d->plan->groups[gi];
    const ea_cpu_buffer *q = &r->d->buffers[op->u.rope_kv.q];
    ea_rope(q->f32 + (size_t)row * q->ld + (size_t)head0 * (size_t)g->head_dim, n_heads,
            g->head_dim, g->n_rot, r->d->groups[gi].cs + (size_t)row * (size_t)g->n_rot, g->neox);
}

/* Rows of a piece: neighbouring rows write into the same lines of K. */
static int rope_step(const ea_cpu_step *r)
{
    return r->d->n_rows >= 64 ? 16 : 1;
}

int ea_cpu_rope_pieces(const ea_cpu_step *r, const ea_op *op)
{
    (void)op;
    if (r->d->fused_rope)
        return 0; /* the attention items do it */
    return (r->d->n_rows + rope_step(r) - 1) / rope_step(r);
}

void ea_cpu_rope_piece(const ea_cpu_step *r, const ea_op *op, int piece)
{
    const ea_kv_group *g = &r->d->plan->groups[op->u.rope_kv.group];
    int row0 = piece * rope_step(r), row1 = EA_MIN(row0 + rope_step(r), r->d->n_rows);
    for (int row = row0; row < row1; row++) {
        rope_queries(r, op, row, 0, g->n_head);
        for (int head = 0; head < g->n_head_kv; head++)
            rope_and_write(r, op, row, head);
    }
}

/* One piece: a unit and some query heads of one KV head. */
typedef struct piece {
    const ea_cpu_attn_unit *unit;
    int kv_head, item; /* item: which of a unit's pieces */
    int head0, n_heads;
} piece;

/* Is there a row among them whose result somebody wants? Behind the last KV write not all are. */
static bool is_needed(const ea_cpu_step *r, const ea_cpu_span *rows)
{
    return rows->row0 < r->row1 && rows->row0 + rows->n_rows > r->row0;
}

/* Where the result of a row, span and head of a run that is cut is kept. */
static float *part_of(const ea_cpu_step *r, int group, const ea_cpu_attn_run *run, int row_in_run,
                      int span, int head)
{
    const ea_kv_group *g = &r->d->plan->groups[group];
    size_t part = (size_t)(run->part0 + row_in_run * (run->span1 - run->span0) + span - run->span0);
    return r->d->attn_parts +
           (part * (size_t)g->n_head + (size_t)head) * ea_attn_part_floats(g->head_dim);
}

/* The piece's own share of the operator before it: K and V of the rows that lie in its positions.
 */
static void write_own_kv(const ea_cpu_step *r, const ea_op *rope, const piece *p)
{
    const ea_cpu_attn_plan *plan = &r->d->groups[rope->u.rope_kv.group].attn;
    for (int i = 0; i < p->unit->n_runs; i++) {
        const ea_cpu_span *rows = &r->d->spans[plan->members[p->unit->run0 + i]];
        for (int row = rows->row0; row < rows->row0 + rows->n_rows; row++) {
            int span = r->d->rows[row].pos[0] / EA_ATTN_SPAN - p->unit->span0;
            if (p->unit->n_spans == 0 || (span >= 0 && span < p->unit->n_spans))
                rope_and_write(r, rope, row, p->kv_head);
        }
    }
}

/* Query heads of a row as the kernels take them, in `wide`: turned where this piece does that, and
 * zeros behind where they are stored wider. */
static const float *own_query(const ea_cpu_step *r, int group, const float *q, int row, bool turn,
                              float *wide)
{
    const ea_kv_group *g = &r->d->plan->groups[group];
    const ea_cpu_group *cg = &r->d->groups[group];
    memcpy(wide, q, (size_t)g->head_dim * sizeof *wide);
    for (int d = g->head_dim; d < cg->head_dim; d++)
        wide[d] = 0;
    if (turn)
        ea_rope(wide, 1, g->head_dim, g->n_rot, cg->cs + (size_t)row * (size_t)g->n_rot, g->neox);
    return wide;
}

/* rope: the operator that this piece does in passing, or NULL. */
static void attend(const ea_cpu_step *r, const ea_op *op, const ea_op *rope, const piece *p)
{
    ea_cpu_device *d = r->d;
    int gi = op->u.attention.group, n = 0;
    const ea_kv_group *g = &d->plan->groups[gi];
    const ea_cpu_group *cg = &d->groups[gi];
    const ea_cpu_buffer *qb = &d->buffers[op->u.attention.q];
    const ea_cpu_buffer *ob = &d->buffers[op->u.attention.out];
    bool pad = cg->head_dim != g->head_dim, cut = p->unit->n_spans > 0;
    const float *q[EA_ATTN_QUERIES];
    float *real[EA_ATTN_QUERIES], *out[EA_ATTN_QUERIES]; /* differ for padded heads */
    int32_t pos[EA_ATTN_QUERIES];
    const int32_t *pages = NULL;
    for (int i = 0; i < p->unit->n_runs; i++) {
        int index = cg->attn.members[p->unit->run0 + i];
        const ea_cpu_span *rows = &d->spans[index];
        if (!is_needed(r, rows))
            continue;
        pages = rows->pages;
        for (int k = 0; k < rows->n_rows; k++)
            for (int h = p->head0; h < p->head0 + p->n_heads; h++, n++) {
                int row = rows->row0 + k;
                float *wide = r->own->attn_wide + (size_t)n * 2 * (size_t)cg->head_dim;
                q[n] = qb->f32 + (size_t)row * qb->ld + (size_t)h * (size_t)g->head_dim;
                if (pad || rope)
                    q[n] = own_query(r, gi, q[n], row, rope != NULL, wide);
                real[n] = ob->f32 + (size_t)row * ob->ld + (size_t)h * (size_t)g->head_dim;
                out[n] = pad ? wide + cg->head_dim : real[n];
                if (cut)
                    out[n] = part_of(r, gi, &cg->attn.runs[index], k, p->unit->span0, h);
                pos[n] = d->rows[row].pos[0];
            }
    }
    if (n == 0)
        return; /* only K and V were wanted */
    size_t offset = kv_offset(r, gi, op->u.attention.slot, p->kv_head);
    ea_attention(
        &(ea_attn_args){.type = d->kv_type,
                        .n_queries = n,
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
                        .pages = pages,
                        .span0 = p->unit->span0,
                        .n_spans = p->unit->n_spans,
                        .part_stride = (size_t)g->n_head * ea_attn_part_floats(cg->head_dim),
                        .scratch = r->own->attn_scratch});
    for (int i = 0; i < n && pad && !cut; i++)
        memcpy(real[i], out[i], (size_t)g->head_dim * sizeof **real);
}

/* Put the spans of a run together. */
static void merge_run(const ea_cpu_step *r, const ea_op *op, const piece *p, int index)
{
    int gi = op->u.attention.group;
    const ea_kv_group *g = &r->d->plan->groups[gi];
    const ea_cpu_span *rows = &r->d->spans[index];
    const ea_cpu_attn_run *run = &r->d->groups[gi].attn.runs[index];
    const ea_cpu_buffer *ob = &r->d->buffers[op->u.attention.out];
    size_t stride = (size_t)g->n_head * ea_attn_part_floats(g->head_dim);
    for (int k = 0; k < rows->n_rows; k++) {
        int row = rows->row0 + k, pos = r->d->rows[row].pos[0];
        int first = g->window > 0 && pos >= g->window ? pos - g->window + 1 : 0;
        int span0 = first / EA_ATTN_SPAN, n = pos / EA_ATTN_SPAN - span0 + 1;
        for (int h = p->head0; h < p->head0 + p->n_heads; h++)
            ea_attention_merge(ob->f32 + (size_t)row * ob->ld + (size_t)h * (size_t)g->head_dim,
                               g->head_dim, part_of(r, gi, run, k, span0, h), n, stride);
    }
}

/* After a piece: merge those of its runs that are complete now, and quantise the columns of rows
 * that are. */
static void finish_piece(const ea_cpu_step *r, const ea_op *op, const piece *p, bool quantise)
{
    int gi = op->u.attention.group;
    const ea_kv_group *g = &r->d->plan->groups[gi];
    const ea_cpu_group *cg = &r->d->groups[gi];
    const ea_cpu_attn_plan *plan = &cg->attn;
    const ea_cpu_buffer *out = &r->d->buffers[op->u.attention.out];
    for (int i = 0; i < p->unit->n_runs; i++) {
        int index = plan->members[p->unit->run0 + i];
        const ea_cpu_attn_run *run = &plan->runs[index];
        const ea_cpu_span *rows = &r->d->spans[index];
        if (!is_needed(r, rows))
            continue;
        if (p->unit->n_spans > 0) {
            atomic_int *left = &plan->left[run->cut * g->n_head_kv * cg->parts + p->item];
            /* Release what this piece wrote to whoever comes last; acquire it as that one. */
            if (atomic_fetch_sub_explicit(left, 1, memory_order_acq_rel) > 1)
                continue;
            atomic_store_explicit(left, run->n_units, memory_order_relaxed);
            merge_run(r, op, p, index);
        }
        for (int k = 0; k < rows->n_rows && quantise; k++)
            ea_acts_quantise_cols(&out->acts, rows->row0 + k, p->head0 * g->head_dim,
                                  cg->heads * g->head_dim);
    }
}

/* Are columns of the output quantised by the piece that wrote them? If they are whole units. */
static bool quantises_columns(const ea_cpu_step *r, const ea_op *op)
{
    const ea_kv_group *g = &r->d->plan->groups[op->u.attention.group];
    const ea_cpu_group *cg = &r->d->groups[op->u.attention.group];
    const ea_cpu_buffer *out = &r->d->buffers[op->u.attention.out];
    return out->q8 && cg->heads * g->head_dim % ea_acts_unit(&out->acts) == 0 &&
           g->n_head / g->n_head_kv % cg->heads == 0;
}

int ea_cpu_attention_pieces(const ea_cpu_step *r, const ea_op *op)
{
    const ea_cpu_group *cg = &r->d->groups[op->u.attention.group];
    return cg->attn.n_units * r->d->plan->groups[op->u.attention.group].n_head_kv * cg->parts;
}

void ea_cpu_attention_piece(const ea_cpu_step *r, const ea_op *op, int index)
{
    const ea_kv_group *g = &r->d->plan->groups[op->u.attention.group];
    const ea_cpu_group *cg = &r->d->groups[op->u.attention.group];
    int group = g->n_head / g->n_head_kv, per_unit = g->n_head_kv * cg->parts;
    /* The ROPE_KV operator before this one is done here where every sequence is one run. */
    const ea_op *rope = r->d->fused_rope ? op - 1 : NULL;
    piece p = {.unit = &cg->attn.units[index / per_unit], .item = index % per_unit};
    p.kv_head = p.item / cg->parts;
    p.head0 = p.kv_head * group + p.item % cg->parts * cg->heads;
    p.n_heads = EA_MIN(cg->heads, (p.kv_head + 1) * group - p.head0);
    if (rope)
        write_own_kv(r, rope, &p);
    attend(r, op, rope, &p);
    finish_piece(r, op, &p, quantises_columns(r, op));
}

int ea_cpu_attention_quantise_pieces(const ea_cpu_step *r, const ea_op *op)
{
    return r->d->buffers[op->u.attention.out].q8 && !quantises_columns(r, op) ? r->row1 - r->row0
                                                                              : 0;
}

void ea_cpu_attention_quantise_piece(const ea_cpu_step *r, const ea_op *op, int row)
{
    ea_acts_quantise(&r->d->buffers[op->u.attention.out].acts, r->row0 + row);
}
