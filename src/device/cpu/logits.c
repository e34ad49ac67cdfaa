/* logits.c: the vocabulary product: logits of the rows that want them, the best token of the
 * others. Rows may allow only some tokens: tiles of 16 that no row of the product needs are left
 * out, which for a few allowed tokens is nearly all of the vocabulary. See exec.c. */
#include <math.h>

#include "device/cpu/exec.h"

/* The tokens of a tile that a row allows, bit i = token EA_TILE_N * tile + i. */
static unsigned allowed_of_tile(const uint32_t *allowed, int tile)
{
    _Static_assert(EA_TILE_N == 16, "a tile is half a word");
    return allowed ? allowed[tile / 2] >> (tile % 2 * EA_TILE_N) & 0xffff : 0xffff;
}

static const ea_row *slot_row(const ea_cpu_step *r, int slot)
{
    return &r->d->rows[r->d->slot_row[slot]];
}

static bool tile_is_needed(const ea_cpu_step *r, int tile, int slot0, int slot1)
{
    for (int slot = slot0; slot < slot1; slot++)
        if (allowed_of_tile(slot_row(r, slot)->allowed, tile))
            return true;
    return false;
}

int32_t ea_cpu_first_allowed(const ea_cpu_device *d, const ea_row *row)
{
    for (int32_t t = 0; t < d->plan->n_vocab; t++)
        if (!row->allowed || row->allowed[t / 32] >> (t % 32) & 1)
            return t;
    return -1;
}

/* -INFINITY for those of n logits from `tile` on that are not allowed. */
static void mask_logits(const uint32_t *allowed, int tile, float *logits, int n)
{
    for (int i = 0; i < n; i += EA_TILE_N, tile++) {
        const unsigned may = allowed_of_tile(allowed, tile);
        for (int j = 0; j < EA_MIN(EA_TILE_N, n - i) && may != 0xffff; j++)
            if (!(may >> j & 1))
                logits[i + j] = -INFINITY;
    }
}

/* What is not above -INFINITY, as tokens that are not allowed, is never the best. */
static void update_best(ea_cpu_best *best, const float *logits, int token0, int n)
{
    int i = ea_argmax(logits, n);
    int32_t token = token0 + i;
    if (logits[i] > best->value ||
        (logits[i] == best->value && logits[i] > -INFINITY && token < best->token))
        *best = (ea_cpu_best){logits[i], token};
}

/* Tiles tile0 .. tile1-1 of the vocabulary for the slots slot0 .. slot1-1: their logits to out
 * (column of tile0 first), best per slot. */
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
    for (int slot = slot0; slot < slot1; slot++) {
        float *logits = out + (size_t)(slot - slot0) * ld;
        const uint32_t *allowed = slot_row(r, slot)->allowed;
        if (allowed)
            mask_logits(allowed, tile0, logits, part.n);
        update_best(&r->own->best[slot], logits, token0, part.n);
    }
}

/* Nobody allows tiles tile0 .. tile1-1. */
static void forbid(const ea_matrix *m, int tile0, int tile1, int n_rows, float *out, size_t ld)
{
    int n = EA_MIN(tile1 * EA_TILE_N, m->n) - tile0 * EA_TILE_N;
    for (int i = 0; i < n_rows; i++)
        for (int j = 0; j < n; j++)
            out[(size_t)i * ld + (size_t)j] = -INFINITY;
}

/* One piece for slots that want the same: `keep` says that all of `out` is read. */
static void multiply_needed(const ea_cpu_step *r, const ea_op *op, int tile0, int tile1, int slot0,
                            int slot1, bool keep, float *out, size_t ld)
{
    const ea_matrix *m = &r->d->weights->tensors[op->u.logits.weight].matrix;
    for (int end, tile = tile0; tile < tile1; tile = end) {
        bool needed = tile_is_needed(r, tile, slot0, slot1);
        for (end = tile + 1; end < tile1; end++)
            if (tile_is_needed(r, end, slot0, slot1) != needed)
                break;
        float *to = out + (size_t)(tile - tile0) * EA_TILE_N;
        if (needed)
            multiply(r, op, tile, end, slot0, slot1, to, ld);
        else if (keep)
            forbid(m, tile, end, slot1 - slot0, to, ld);
    }
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
        multiply_needed(r, op, tile0, tile1, 0, d->n_logit_rows, true,
                        d->logits + (size_t)tile0 * EA_TILE_N, (size_t)m->n);
    if (d->n_slots > d->argmax_slot0)
        multiply_needed(r, op, tile0, tile1, d->argmax_slot0, d->n_slots, false, r->own->logits,
                        EA_CPU_LOGIT_COLS);
}
