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

#include "device/cpu/exec.h"

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

static void op_embed(const ea_cpu_step *r, const ea_op *op)
{
    const ea_cpu_device *d = r->d;
    const ea_cpu_buffer *out = &d->buffers[op->u.embed.out];
    const ea_cpu_tensor *t = &d->weights->tensors[op->u.embed.rows];
    int n_embd = d->plan->n_embd, row;
    while ((row = ea_pool_claim(r->worker, 1)) < d->n_rows) {
        const ea_row *in = &d->rows[row];
        float *x = out->f32 + (size_t)row * out->ld;
        if (in->token < 0)
            memcpy(x, in->embd, (size_t)n_embd * sizeof *x);
        else
            ea_cpu_tensor_row(t, in->token, n_embd, x);
        rotary_table(r, row);
    }
    ea_pool_barrier(r->worker);
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

static void op_norm(const ea_cpu_step *r, const ea_op *op)
{
    int n = ea_cpu_buffer_rows(r, op->u.norm.out), row0 = ea_cpu_buffer_row0(r, op->u.norm.out),
        to0, i;
    const ea_acts *out = ea_cpu_input_acts(r, op->u.norm.out, &to0);
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
static void op_matmul(const ea_cpu_step *r, const ea_op *op)
{
    const ea_cpu_device *d = r->d;
    const ea_cpu_tensor *tensors = d->weights->tensors;
    int n_rows = ea_cpu_buffer_rows(r, op->u.matmul.in), row0, n_tiles = 0, tile0, tile1;
    const ea_acts *x = ea_cpu_input_acts(r, op->u.matmul.in, &row0);
    for (int i = 0; i < op->u.matmul.n; i++)
        n_tiles += tensors[op->u.matmul.weight[i]].matrix.n_tiles;
    size_t out_row0 = (size_t)ea_cpu_buffer_row0(r, op->u.matmul.in);
    ea_cpu_pieces p =
        ea_cpu_cut_pieces(&tensors[op->u.matmul.weight[0]].matrix, n_rows, n_tiles, 1, n_tiles);
    while (ea_cpu_claim_piece(r, &p, &tile0, &tile1)) {
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
                                        .bias = ea_cpu_vector(r, op->u.matmul.bias[i]),
                                        .accumulate = op->u.matmul.accumulate,
                                        .out = out->f32 + out_row0 * out->ld,
                                        .ld = out->ld});
        }
    }
    ea_pool_barrier(r->worker);
}

/* Gate, up, silu * up and its quantised form, by pieces of whole units of columns. */
static void op_gate_up_silu(const ea_cpu_step *r, const ea_op *op, const ea_op *silu)
{
    const ea_cpu_device *d = r->d;
    const ea_cpu_buffer *gate = &d->buffers[silu->u.silu_mul.gate];
    const ea_cpu_buffer *up = &d->buffers[silu->u.silu_mul.up];
    const ea_cpu_buffer *out = &d->buffers[silu->u.silu_mul.out];
    const ea_matrix *first = &d->weights->tensors[op->u.matmul.weight[0]].matrix;
    int n_rows = ea_cpu_buffer_rows(r, op->u.matmul.in), x_row0, tile0, tile1;
    const ea_acts *x = ea_cpu_input_acts(r, op->u.matmul.in, &x_row0);
    size_t row0 = (size_t)ea_cpu_buffer_row0(r, op->u.matmul.in);
    int unit = ea_acts_unit(&out->acts) / EA_TILE_N;
    ea_cpu_pieces p = ea_cpu_cut_pieces(first, n_rows, first->n_tiles, unit, first->n_tiles + unit);
    while (ea_cpu_claim_piece(r, &p, &tile0, &tile1)) {
        for (int i = 0; i < 2; i++) {
            const ea_cpu_buffer *to = i == 0 ? gate : up;
            ea_matmul(&(ea_matmul_args){.w = &d->weights->tensors[op->u.matmul.weight[i]].matrix,
                                        .x = x,
                                        .row0 = x_row0,
                                        .n_rows = n_rows,
                                        .tile0 = tile0,
                                        .tile1 = tile1,
                                        .bias = ea_cpu_vector(r, op->u.matmul.bias[i]),
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

void ea_cpu_run(const ea_worker *worker, void *arg)
{
    ea_cpu_device *d = arg;
    const ea_plan *plan = d->plan;
    ea_cpu_step r = {d, worker, &d->workers[worker->index], 0, d->n_rows};
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
        case EA_OP_ROPE_KV: ea_cpu_op_rope_kv(&r, op); break;
        case EA_OP_ATTENTION: ea_cpu_op_attention(&r, op, &plan->ops[i - 1]); break;
        case EA_OP_SILU_MUL: break; /* fused, see scan_ops */
        case EA_OP_LOGITS: ea_cpu_op_logits(&r, op); break;
        }
        if (i > d->last_kv_op && d->n_slots == 0)
            return; /* its attention wrote K and V: nobody wants more */
    }
}
