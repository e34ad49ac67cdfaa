/* exec.c: one step as the pool runs it. An operator of the plan is one stretch, or a few; how many
 * pieces a stretch has is known when it opens, and a piece finds everything else in the device's
 * state of the step. A stretch ends where one reads what others wrote. Which worker computes a
 * piece, and how large pieces are, never changes a value.
 *
 * To keep stretches few: norms of small steps are computed by every worker that takes a piece of
 * the product behind them, for itself; rotation, KV write and attention of short spans are one
 * piece; silu * up, and the quantisation of what follows it and attention, belong to the piece that
 * wrote the columns. A layer of a decode step then has five: QKV, attention, O, gate and up, down.
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "device/cpu/exec.h"

int ea_cpu_cut_pieces(ea_cpu_device *d, const ea_matrix *m, int n_rows, int n_tiles, int unit,
                      int most)
{
    /* The smallest piece is about 5 us of work, so that claims cost nothing. */
    int kernel_unit;
    double fit = 5000.0 / ea_matrix_cut(m, n_rows, &kernel_unit);
    unit = EA_MAX(unit, kernel_unit); /* both are powers of two */
    int least = EA_MAX((int)fmin(fmax(fit, 1.0), n_tiles) / unit, 1) * unit, n = 0;
    for (int first = 0; first < n_tiles; n++) {
        int fair = (n_tiles - first) / (2 * d->n_workers * unit) * unit;
        d->cut[n] = first;
        first += EA_MIN(EA_MAX(fair, least), most);
    }
    d->cut[n] = n_tiles;
    return n;
}

/* ---- embedding and norms ---- */

static void rotary_table(const ea_cpu_step *r, int row)
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

static int embed_pieces(const ea_cpu_step *r, const ea_op *op)
{
    (void)op;
    return r->d->n_rows;
}

static void embed_piece(const ea_cpu_step *r, const ea_op *op, int row)
{
    const ea_cpu_device *d = r->d;
    const ea_cpu_buffer *out = &d->buffers[op->u.embed.out];
    const ea_cpu_tensor *t = &d->weights->tensors[op->u.embed.rows];
    const ea_row *in = &d->rows[row];
    float *x = out->f32 + (size_t)row * out->ld;
    if (in->token < 0)
        memcpy(x, in->embd, (size_t)d->plan->n_embd * sizeof *x);
    else
        ea_cpu_tensor_row(t, in->token, d->plan->n_embd, x);
    rotary_table(r, row);
}

/* Row `row` of the output buffer to row `to` of out. */
static void norm_row(const ea_cpu_step *r, const ea_op *op, const ea_acts *out, int to, int row)
{
    const ea_cpu_buffer *out_buffer = &r->d->buffers[op->u.norm.out];
    const ea_cpu_buffer *from = &r->d->buffers[op->u.norm.in];
    if (out_buffer->wanted && !from->wanted)
        row = r->d->slot_row[row];
    if (row < 0)
        return; /* the gap between the slots */
    ea_rms_norm(ea_acts_row(out, to), from->f32 + (size_t)row * from->ld,
                ea_cpu_vector(r, op->u.norm.weight), out->k, op->u.norm.eps);
    if (out_buffer->q8)
        ea_acts_quantise(out, to);
}

static int norm_pieces(const ea_cpu_step *r, const ea_op *op)
{
    int n = ea_cpu_buffer_rows(r, op->u.norm.out);
    return n <= EA_CPU_PRIVATE_ROWS ? 0 : n; /* see own_norm */
}

static void norm_piece(const ea_cpu_step *r, const ea_op *op, int piece)
{
    int to0;
    const ea_acts *out = ea_cpu_input_acts(r, op->u.norm.out, &to0);
    norm_row(r, op, out, to0 + piece, ea_cpu_buffer_row0(r, op->u.norm.out) + piece);
}

/* The norm before a product, of a small step, into this worker's own rows, unless it has them from
 * an earlier piece. */
static void own_norm(const ea_cpu_step *r, int norm)
{
    const ea_plan *plan = r->d->plan;
    const ea_op *op = &plan->ops[norm];
    int buffer = op->u.norm.out, n = ea_cpu_buffer_rows(r, buffer);
    uint64_t id = r->d->n_steps * (uint64_t)plan->n_ops + (uint64_t)norm;
    if (n > EA_CPU_PRIVATE_ROWS || r->own->norm_of[buffer] == id)
        return;
    for (int i = 0; i < n; i++)
        norm_row(r, op, &r->own->acts[buffer], i, ea_cpu_buffer_row0(r, buffer) + i);
    r->own->norm_of[buffer] = id;
}

/* ---- products ---- */

/* The tiles of all weights form one sequence. */
static int matmul_pieces(const ea_cpu_step *r, const ea_op *op)
{
    const ea_cpu_tensor *tensors = r->d->weights->tensors;
    int n_tiles = 0;
    for (int i = 0; i < op->u.matmul.n; i++)
        n_tiles += tensors[op->u.matmul.weight[i]].matrix.n_tiles;
    return ea_cpu_cut_pieces(r->d, &tensors[op->u.matmul.weight[0]].matrix,
                             ea_cpu_buffer_rows(r, op->u.matmul.in), n_tiles, 1, n_tiles);
}

/* Tiles tile0 .. tile1 - 1 of weight i of the operator. */
static void multiply(const ea_cpu_step *r, const ea_op *op, int i, int tile0, int tile1)
{
    int n_rows = ea_cpu_buffer_rows(r, op->u.matmul.in), row0;
    size_t out_row0 = (size_t)ea_cpu_buffer_row0(r, op->u.matmul.in);
    const ea_acts *x = ea_cpu_input_acts(r, op->u.matmul.in, &row0);
    const ea_cpu_buffer *out = &r->d->buffers[op->u.matmul.out[i]];
    ea_matmul(&(ea_matmul_args){.w = &r->d->weights->tensors[op->u.matmul.weight[i]].matrix,
                                .x = x,
                                .row0 = row0,
                                .n_rows = n_rows,
                                .tile0 = tile0,
                                .tile1 = tile1,
                                .bias = ea_cpu_vector(r, op->u.matmul.bias[i]),
                                .accumulate = op->u.matmul.accumulate,
                                .out = out->f32 + out_row0 * out->ld,
                                .ld = out->ld});
}

static void matmul_piece(const ea_cpu_step *r, const ea_op *op, int piece)
{
    const ea_cpu_device *d = r->d;
    int tile0 = d->cut[piece], tile1 = d->cut[piece + 1];
    for (int i = 0, base = 0; i < op->u.matmul.n; i++) {
        int n_tiles = d->weights->tensors[op->u.matmul.weight[i]].matrix.n_tiles;
        int from = EA_MAX(tile0 - base, 0), to = EA_MIN(tile1 - base, n_tiles);
        base += n_tiles;
        if (from < to)
            multiply(r, op, i, from, to);
    }
}

/* Gate, up, silu * up and its quantised form, by pieces of whole units of columns. op: the product,
 * which SILU_MUL follows. */
static int gate_up_pieces(const ea_cpu_step *r, const ea_op *op)
{
    const ea_matrix *m = &r->d->weights->tensors[op->u.matmul.weight[0]].matrix;
    int unit = ea_acts_unit(&r->d->buffers[op[1].u.silu_mul.out].acts) / EA_TILE_N;
    return ea_cpu_cut_pieces(r->d, m, ea_cpu_buffer_rows(r, op->u.matmul.in), m->n_tiles, unit,
                             m->n_tiles + unit);
}

static void gate_up_piece(const ea_cpu_step *r, const ea_op *op, int piece)
{
    const ea_cpu_device *d = r->d;
    const ea_cpu_buffer *gate = &d->buffers[op[1].u.silu_mul.gate];
    const ea_cpu_buffer *up = &d->buffers[op[1].u.silu_mul.up];
    const ea_cpu_buffer *out = &d->buffers[op[1].u.silu_mul.out];
    int tile0 = d->cut[piece], tile1 = d->cut[piece + 1];
    multiply(r, op, 0, tile0, tile1);
    multiply(r, op, 1, tile0, tile1);
    int n = d->weights->tensors[op->u.matmul.weight[0]].matrix.n;
    int col0 = tile0 * EA_TILE_N, n_cols = EA_MIN(tile1 * EA_TILE_N, n) - col0;
    size_t row0 = (size_t)ea_cpu_buffer_row0(r, op->u.matmul.in);
    size_t row1 = row0 + (size_t)ea_cpu_buffer_rows(r, op->u.matmul.in);
    for (size_t row = row0; row < row1; row++) {
        ea_silu_mul(out->f32 + row * out->ld + col0, gate->f32 + row * gate->ld + col0,
                    up->f32 + row * up->ld + col0, n_cols);
        if (out->q8)
            ea_acts_quantise_cols(&out->acts, (int)row, col0, n_cols);
    }
}

/* ---- stretches ---- */

typedef struct ea_cpu_stretch_kind {
    int (*n_pieces)(const ea_cpu_step *r, const ea_op *op);
    void (*piece)(const ea_cpu_step *r, const ea_op *op, int piece);
} stretch_kind;

static const stretch_kind embed = {embed_pieces, embed_piece}, norm = {norm_pieces, norm_piece},
                          matmul = {matmul_pieces, matmul_piece},
                          gate_up = {gate_up_pieces, gate_up_piece},
                          rope = {ea_cpu_rope_pieces, ea_cpu_rope_piece},
                          attention = {ea_cpu_attention_pieces, ea_cpu_attention_piece},
                          attention_quantise = {ea_cpu_attention_quantise_pieces,
                                                ea_cpu_attention_quantise_piece},
                          logits = {ea_cpu_logits_pieces, ea_cpu_logits_piece};

/* The norm that wrote an operator's input, if workers do small ones for themselves. */
static int norm_before(const ea_cpu_device *d, int op, int buffer)
{
    const ea_op *ops = d->plan->ops;
    if (!d->buffers[buffer].private)
        return -1;
    while (ops[op].kind != EA_OP_NORM || ops[op].u.norm.out != buffer)
        op--; /* it has been written: ea_plan_check */
    return op;
}

bool ea_cpu_list_stretches(ea_cpu_device *d)
{
    const ea_plan *plan = d->plan;
    d->stretches = ea_calloc(2 * (size_t)plan->n_ops, sizeof *d->stretches);
    if (!d->stretches)
        return false;
    ea_cpu_stretch *s = d->stretches;
    for (int i = 0; i < plan->n_ops; i++) {
        const ea_op *op = &plan->ops[i];
        switch (op->kind) {
        case EA_OP_EMBED: *s++ = (ea_cpu_stretch){&embed, i, -1}; break;
        case EA_OP_NORM: *s++ = (ea_cpu_stretch){&norm, i, -1}; break;
        case EA_OP_MATMUL:
            *s++ = (ea_cpu_stretch){ea_cpu_fuses_silu(plan, i + 1) ? &gate_up : &matmul, i,
                                    norm_before(d, i, op->u.matmul.in)};
            break;
        case EA_OP_ROPE_KV: *s++ = (ea_cpu_stretch){&rope, i, -1}; break;
        case EA_OP_ATTENTION:
            *s++ = (ea_cpu_stretch){&attention, i, -1};
            *s++ = (ea_cpu_stretch){&attention_quantise, i, -1};
            break;
        case EA_OP_SILU_MUL: break; /* in gate_up */
        case EA_OP_LOGITS:
            *s++ = (ea_cpu_stretch){&logits, i, norm_before(d, i, op->u.logits.in)};
            break;
        }
    }
    d->n_stretches = (int)(s - d->stretches);
    return true;
}

static ea_cpu_step view(ea_cpu_device *d, int op, ea_cpu_worker *own)
{
    if (op > d->last_kv_op)
        return (ea_cpu_step){d, own, d->needed_row0, d->needed_row1};
    return (ea_cpu_step){d, own, 0, d->n_rows};
}

static int count_pieces(void *arg, int stretch)
{
    ea_cpu_device *d = arg;
    const ea_cpu_stretch *s = &d->stretches[stretch];
    ea_cpu_step r = view(d, s->op, NULL);
    /* The last attention may still write K and V; if nobody wants more, nothing follows it. */
    if (s->op > d->last_kv_op + 1 && d->n_slots == 0)
        return 0;
    return s->kind->n_pieces(&r, &d->plan->ops[s->op]);
}

static void run_piece(const ea_worker *worker, void *arg, int stretch, int piece)
{
    ea_cpu_device *d = arg;
    const ea_cpu_stretch *s = &d->stretches[stretch];
    ea_cpu_step r = view(d, s->op, &d->workers[worker->index]);
    if (s->norm >= 0)
        own_norm(&r, s->norm);
    s->kind->piece(&r, &d->plan->ops[s->op], piece);
}

void ea_cpu_run(ea_cpu_device *d)
{
    ea_pool_run(d->pool, &(ea_pool_work){d->n_stretches, count_pieces, run_piece, d});
}
