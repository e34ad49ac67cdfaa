/* exec.c: one step as every worker runs it. All workers walk the same list of operators; inside an
 * operator they claim pieces, and a barrier separates stretches where one reads what others wrote.
 * At most one loop of claims lies between two barriers (the barrier resets the counter). Which
 * worker computes a piece, and how large pieces are, never changes a value.
 *
 * To keep barriers few: norms of small steps are computed by every worker for itself; rotation, KV
 * write and attention of short spans are one piece; silu * up, and the quantisation of what follows
 * it and attention, belong to the piece that wrote the columns. A layer of a decode step then has
 * five barriers: after QKV, attention, O, gate and up, down. */
#include <math.h>
#include <string.h>

#include "device/cpu/internal.h"

/* One worker's view of the running step. */
typedef struct run {
    ea_cpu_device *d;
    const ea_worker *worker;
    ea_cpu_worker *own;
    int row0, row1; /* rows that operators work on: all, or after the last KV write those that are
                       still needed; row0 is a multiple of 4 */
} run;

/* ---- helpers ---- */

/* First row and number of rows to work on in a buffer. */
static int buffer_row0(const run *r, int buffer)
{
    return r->d->buffers[buffer].wanted ? 0 : r->row0;
}

static int buffer_rows(const run *r, int buffer)
{
    return r->d->buffers[buffer].wanted ? r->d->n_slots : r->row1 - r->row0;
}

/* A matmul's input, and where in it those rows begin: small steps keep it per worker, where a norm
 * writes it. */
static const ea_acts *input_acts(const run *r, int buffer, int *row0)
{
    const ea_cpu_buffer *b = &r->d->buffers[buffer];
    bool own = b->private && buffer_rows(r, buffer) <= EA_CPU_PRIVATE_ROWS;
    *row0 = own ? 0 : buffer_row0(r, buffer);
    return own ? &r->own->acts[buffer] : &b->acts;
}

static const float *vector(const run *r, int tensor)
{
    return tensor < 0 ? NULL : r->d->weights->tensors[tensor].vec;
}

/* How a matmul's tiles are handed out: large pieces first (long runs through memory, activations
 * read once for many tiles), then smaller ones, so that all workers end together. */
typedef struct pieces {
    int n_tiles;
    int unit;         /* pieces are multiples of it: 2 where columns are used by whole 32-blocks */
    int least, most;  /* tiles of a piece */
    int index, first; /* the walk so far: piece `index` begins at tile `first` */
} pieces;

/* The smallest piece is about 5 us of work, so that claims cost nothing; 10 bytes of weights and 60
 * multiply-adds a nanosecond are the right order of magnitude on any machine. */
static pieces cut_pieces(const ea_matrix *m, int n_rows, int n_tiles, int unit, int most)
{
    double read_ns = (double)m->tile_bytes / 10.0;
    double compute_ns = (double)n_rows * EA_TILE_N * m->k / 60.0;
    double least = 5000.0 / EA_MAX(read_ns, compute_ns);
    int units = (int)fmin(fmax(least, 1.0), n_tiles) / unit;
    return (pieces){
        .n_tiles = n_tiles, .unit = unit, .least = EA_MAX(units, 1) * unit, .most = most};
}

static int piece_size(const run *r, const pieces *p)
{
    int fair = (p->n_tiles - p->first) / (2 * r->worker->n * p->unit) * p->unit;
    return EA_MIN(EA_MAX(fair, p->least), p->most);
}

/* Claim the next piece: tiles *tile0 .. *tile1 - 1. Pieces are the same for all workers, since each
 * walks the same sequence up to the index that it claimed. */
static bool claim_piece(const run *r, pieces *p, int *tile0, int *tile1)
{
    int index = ea_pool_claim(r->worker, 1);
    for (; p->index < index && p->first < p->n_tiles; p->index++)
        p->first += piece_size(r, p);
    if (p->first >= p->n_tiles)
        return false;
    *tile0 = p->first;
    *tile1 = EA_MIN(p->first + piece_size(r, p), p->n_tiles);
    return true;
}

/* ---- operators ---- */

static void rotary_table(const run *r, int row)
{
    int pos = r->d->rows[row].pos[0];
    for (int g = 0; g < r->d->plan->n_groups; g++) {
        const ea_kv_group *group = &r->d->plan->groups[g];
        float *cs = r->d->groups[g].cs + (size_t)row * (size_t)group->n_rot;
        for (int i = 0; i < group->n_rot / 2; i++) {
            double s, c;
            sincos(pos * group->freq[i], &s, &c);
            cs[2 * i] = (float)c;
            cs[2 * i + 1] = (float)s;
        }
    }
}

static void op_embed(const run *r, const ea_op *op)
{
    const ea_cpu_device *d = r->d;
    const ea_cpu_buffer *out = &d->buffers[op->u.embed.out];
    const ea_cpu_tensor *t = &d->weights->tensors[op->u.embed.rows];
    const uint8_t *table = d->plan->tensors[op->u.embed.rows].src->data;
    int n_embd = d->plan->n_embd, row;
    while ((row = ea_pool_claim(r->worker, 1)) < d->n_rows) {
        const ea_row *in = &d->rows[row];
        float *x = out->f32 + (size_t)row * out->ld;
        if (in->token < 0)
            memcpy(x, in->embd, (size_t)n_embd * sizeof *x);
        else
            t->type->dequantise(table + (size_t)in->token * t->row_bytes, x, n_embd);
        rotary_table(r, row);
    }
    ea_pool_barrier(r->worker);
}

/* Row `row` of the output buffer to row `to` of out. */
static void norm_row(const run *r, const ea_op *op, const ea_acts *out, int to, int row)
{
    const ea_cpu_buffer *out_buffer = &r->d->buffers[op->u.norm.out];
    const ea_cpu_buffer *from = &r->d->buffers[op->u.norm.in];
    if (out_buffer->wanted && !from->wanted)
        row = r->d->slot_row[row];
    if (row < 0)
        return; /* the gap between the slots */
    ea_rms_norm(ea_acts_row(out, to), from->f32 + (size_t)row * from->ld,
                vector(r, op->u.norm.weight), out->k, op->u.norm.eps);
    if (out_buffer->q8)
        ea_acts_quantise(out, to);
}

static void op_norm(const run *r, const ea_op *op)
{
    int n = buffer_rows(r, op->u.norm.out), row0 = buffer_row0(r, op->u.norm.out), to0, i;
    const ea_acts *out = input_acts(r, op->u.norm.out, &to0);
    if (n <= EA_CPU_PRIVATE_ROWS) {
        for (i = 0; i < n; i++)
            norm_row(r, op, out, to0 + i, row0 + i);
        return;
    }
    while ((i = ea_pool_claim(r->worker, 1)) < n)
        norm_row(r, op, out, to0 + i, row0 + i);
    ea_pool_barrier(r->worker);
}

/* The tiles of all weights form one sequence. */
static void op_matmul(const run *r, const ea_op *op)
{
    const ea_cpu_device *d = r->d;
    const ea_cpu_tensor *tensors = d->weights->tensors;
    int n_rows = buffer_rows(r, op->u.matmul.in), row0, n_tiles = 0, tile0, tile1;
    const ea_acts *x = input_acts(r, op->u.matmul.in, &row0);
    for (int i = 0; i < op->u.matmul.n; i++)
        n_tiles += tensors[op->u.matmul.weight[i]].matrix.n_tiles;
    size_t out_row0 = (size_t)buffer_row0(r, op->u.matmul.in);
    pieces p = cut_pieces(&tensors[op->u.matmul.weight[0]].matrix, n_rows, n_tiles, 1, n_tiles);
    while (claim_piece(r, &p, &tile0, &tile1)) {
        for (int i = 0, base = 0; i < op->u.matmul.n; i++) {
            const ea_matrix *m = &tensors[op->u.matmul.weight[i]].matrix;
            const ea_cpu_buffer *out = &d->buffers[op->u.matmul.out[i]];
            int from = EA_MAX(tile0 - base, 0), to = EA_MIN(tile1 - base, m->n_tiles);
            base += m->n_tiles;
            if (from >= to)
                continue;
            ea_matmul(&(ea_matmul_args){.w = m,
                                        .x = x,
                                        .row0 = row0,
                                        .n_rows = n_rows,
                                        .tile0 = from,
                                        .tile1 = to,
                                        .bias = vector(r, op->u.matmul.bias[i]),
                                        .accumulate = op->u.matmul.accumulate,
                                        .out = out->f32 + out_row0 * out->ld,
                                        .ld = out->ld});
        }
    }
    ea_pool_barrier(r->worker);
}

/* Gate, up, silu * up and its quantised form, by pieces of whole 32-blocks of columns. */
static void op_gate_up_silu(const run *r, const ea_op *op, const ea_op *silu)
{
    const ea_cpu_device *d = r->d;
    const ea_cpu_buffer *gate = &d->buffers[silu->u.silu_mul.gate];
    const ea_cpu_buffer *up = &d->buffers[silu->u.silu_mul.up];
    const ea_cpu_buffer *out = &d->buffers[silu->u.silu_mul.out];
    const ea_matrix *first = &d->weights->tensors[op->u.matmul.weight[0]].matrix;
    int n_rows = buffer_rows(r, op->u.matmul.in), x_row0, tile0, tile1;
    const ea_acts *x = input_acts(r, op->u.matmul.in, &x_row0);
    size_t row0 = (size_t)buffer_row0(r, op->u.matmul.in);
    pieces p = cut_pieces(first, n_rows, first->n_tiles, 2, first->n_tiles + 1);
    while (claim_piece(r, &p, &tile0, &tile1)) {
        for (int i = 0; i < 2; i++) {
            const ea_cpu_buffer *to = i == 0 ? gate : up;
            ea_matmul(&(ea_matmul_args){.w = &d->weights->tensors[op->u.matmul.weight[i]].matrix,
                                        .x = x,
                                        .row0 = x_row0,
                                        .n_rows = n_rows,
                                        .tile0 = tile0,
                                        .tile1 = tile1,
                                        .bias = vector(r, op->u.matmul.bias[i]),
                                        .out = to->f32 + row0 * to->ld,
                                        .ld = to->ld});
        }
        int col0 = tile0 * EA_TILE_N, n_cols = EA_MIN(tile1 * EA_TILE_N, first->n) - col0;
        for (size_t row = row0; row < row0 + (size_t)n_rows; row++) {
            ea_silu_mul(out->f32 + row * out->ld + col0, gate->f32 + row * gate->ld + col0,
                        up->f32 + row * up->ld + col0, n_cols);
            if (out->q8)
                ea_acts_quantise_cols(&out->acts, (int)row, col0, n_cols);
        }
    }
    ea_pool_barrier(r->worker);
}

/* ---- attention ---- */

/* Where the K block of a KV head of this operator's layer begins in a page; V follows it. */
static size_t kv_offset(const run *r, int group, int slot, int head)
{
    const ea_cpu_group *g = &r->d->groups[group];
    int n_head_kv = r->d->plan->groups[group].n_head_kv;
    return g->offset + (size_t)(slot * n_head_kv + head) * 2 * g->block_bytes;
}

/* Turn K of one row and KV head and write it, with V, to the row's page. */
static void rope_and_write(const run *r, const ea_op *op, int row, int head)
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
    ea_kv_write((ea_f16 *)block, (ea_f16 *)(block + cg->block_bytes), pos % EA_PAGE_TOKENS,
                cg->head_dim, k, v);
}

static void rope_queries(const run *r, const ea_op *op, int row, int head0, int n_heads)
{
    int gi = op->u.rope_kv.group;
    const ea_kv_group *g = &r->d->plan->groups[gi];
    const ea_cpu_buffer *q = &r->d->buffers[op->u.rope_kv.q];
    ea_rope(q->f32 + (size_t)row * q->ld + (size_t)head0 * (size_t)g->head_dim, n_heads,
            g->head_dim, g->n_rot, r->d->groups[gi].cs + (size_t)row * (size_t)g->n_rot, g->neox);
}

static void op_rope_kv(const run *r, const ea_op *op)
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
static void attention_item(const run *r, const ea_op *op, const ea_cpu_span *span, int kv_head,
                           int head0, int n_heads)
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
static void op_attention(const run *r, const ea_op *op, const ea_op *rope)
{
    const ea_cpu_device *d = r->d;
    const ea_kv_group *g = &d->plan->groups[op->u.attention.group];
    const ea_cpu_group *cg = &d->groups[op->u.attention.group];
    const ea_cpu_buffer *out = &d->buffers[op->u.attention.out];
    int group = g->n_head / g->n_head_kv, per_span = g->n_head_kv * cg->parts, item;
    /* Whole 32-blocks of columns are quantised by the item that wrote them. */
    int cols = cg->heads * g->head_dim;
    bool quantise = out->q8 && cols % 32 == 0 && group % cg->heads == 0;
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

/* ---- vocabulary product ---- */

static void update_best(ea_cpu_best *best, const float *logits, int token0, int n)
{
    int i = ea_argmax(logits, n);
    int32_t token = token0 + i;
    if (logits[i] > best->value || (logits[i] == best->value && token < best->token))
        *best = (ea_cpu_best){logits[i], token};
}

/* One piece of the vocabulary for the slots slot0 .. slot1-1: its logits to out (column token0
 * first), best per slot. */
static void logits_piece(const run *r, const ea_op *op, int tile0, int tile1, int slot0, int slot1,
                         float *out, size_t ld)
{
    const ea_matrix *m = &r->d->weights->tensors[op->u.logits.weight].matrix;
    int token0 = tile0 * EA_TILE_N;
    ea_matrix part = *m; /* as a matrix of its own, so that out can be a piece's scratch */
    part.data += (size_t)tile0 * m->tile_bytes;
    part.n_tiles = tile1 - tile0;
    part.n = EA_MIN(tile1 * EA_TILE_N, m->n) - token0;
    int row0;
    const ea_acts *x = input_acts(r, op->u.logits.in, &row0);
    ea_matmul(&(ea_matmul_args){.w = &part,
                                .x = x,
                                .row0 = row0 + slot0,
                                .n_rows = slot1 - slot0,
                                .tile1 = part.n_tiles,
                                .out = out,
                                .ld = ld});
    for (int slot = slot0; slot < slot1; slot++)
        update_best(&r->own->best[slot], out + (size_t)(slot - slot0) * ld, token0, part.n);
}

static void op_logits(const run *r, const ea_op *op)
{
    const ea_cpu_device *d = r->d;
    const ea_matrix *m = &d->weights->tensors[op->u.logits.weight].matrix;
    int tile0, tile1;
    pieces p = cut_pieces(m, d->n_slots, m->n_tiles, 1, EA_CPU_LOGIT_COLS / EA_TILE_N);
    while (claim_piece(r, &p, &tile0, &tile1)) {
        if (d->n_logit_rows > 0)
            logits_piece(r, op, tile0, tile1, 0, d->n_logit_rows,
                         d->logits + (size_t)tile0 * EA_TILE_N, (size_t)m->n);
        if (d->n_slots > d->argmax_slot0)
            logits_piece(r, op, tile0, tile1, d->argmax_slot0, d->n_slots, r->own->logits,
                         EA_CPU_LOGIT_COLS);
    }
    ea_pool_barrier(r->worker);
}

void ea_cpu_run(const ea_worker *worker, void *arg)
{
    ea_cpu_device *d = arg;
    const ea_plan *plan = d->plan;
    run r = {d, worker, &d->workers[worker->index], 0, d->n_rows};
    for (int i = 0; i < plan->n_ops; i++) {
        const ea_op *op = &plan->ops[i];
        if (i == d->last_kv_op + 1) {
            r.row0 = d->needed_row0;
            r.row1 = d->needed_row1;
        }
        switch (op->kind) {
        case EA_OP_EMBED: op_embed(&r, op); break;
        case EA_OP_NORM: op_norm(&r, op); break;
        case EA_OP_MATMUL:
            if (ea_cpu_fuses_silu(plan, i + 1))
                op_gate_up_silu(&r, op, &plan->ops[++i]);
            else
                op_matmul(&r, op);
            break;
        case EA_OP_ROPE_KV: op_rope_kv(&r, op); break;
        case EA_OP_ATTENTION: op_attention(&r, op, &plan->ops[i - 1]); break;
        case EA_OP_SILU_MUL: break; /* fused, see scan_ops */
        case EA_OP_LOGITS: op_logits(&r, op); break;
        }
        if (i > d->last_kv_op && d->n_slots == 0)
            return; /* its attention wrote K and V: nobody wants more */
    }
}
