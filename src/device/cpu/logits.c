/* logits.c: the vocabulary product: logits of the rows that want them, the best token of the
 * others. See exec.c. */
#include "device/cpu/exec.h"

static void update_best(ea_cpu_best *best, const float *logits, int token0, int n)
{
    int i = ea_argmax(logits, n);
    int32_t token = token0 + i;
    if (logits[i] > best->value || (logits[i] == best->value && token < best->token))
        *best = (ea_cpu_best){logits[i], token};
}

/* One piece of the vocabulary for the slots slot0 .. slot1-1: its logits to out (column token0
 * first), best per slot. */
static void multiply(const ea_cpu_step *r, const ea_op *op, int tile0, int tile1, int slot0,
                     int slot1, float *out, size_t ld)
{
    const ea_matrix *m = &r->d->weights->tensors[op->u.logits.weight].matrix;
    int token0 = tile0 * EA_TILE_N;
    ea_matrix part = *m; /* as a matrix of its own, so that out can be a piece's scratch */
    part.data += (size_t)tile0 * m->tile_bytes;
    part.n_tiles = tile1 - tile0;
    part.n = EA_MIN(tile1 * EA_TILE_N, m->n) - token0;
    int row0;
    const ea_acts *x = ea_cpu_input_acts(r, op->u.logits.in, &row0);
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

int ea_cpu_logits_pieces(const ea_cpu_step *r, const ea_op *op)
{
    const ea_matrix *m = &r->d->weights->tensors[op->u.logits.weight].matrix;
    return ea_cpu_cut_pieces(r->d, m, r->d->n_slots, m->n_tiles, 1, EA_CPU_LOGIT_COLS / EA_TILE_N);
}

void ea_cpu_logits_piece(const ea_cpu_step *r, const ea_op *op, int piece)
{
    const ea_cpu_device *d = r->d;
    const ea_matrix *m = &d->weights->tensors[op->u.logits.weight].matrix;
    int tile0 = d->cut[piece], tile1 = d->cut[piece + 1];
    if (d->n_logit_rows > 0)
        multiply(r, op, tile0, tile1, 0, d->n_logit_rows, d->logits + (size_t)tile0 * EA_TILE_N,
                 (size_t)m->n);
    if (d->n_slots > d->argmax_slot0)
        multiply(r, op, tile0, tile1, d->argmax_slot0, d->n_slots, r->own->logits,
                 EA_CPU_LOGIT_COLS);
}
