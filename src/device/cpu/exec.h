/* exec.h: what the files that run a step share: one worker's view of it, and how tiles of a matrix
 * are handed out. See exec.c. */
#ifndef EA_DEVICE_CPU_EXEC_H
#define EA_DEVICE_CPU_EXEC_H

#include <math.h>

#include "device/cpu/internal.h"

/* One worker's view of the running step. */
typedef struct ea_cpu_step {
    ea_cpu_device *d;
    const ea_worker *worker;
    ea_cpu_worker *own;
    int row0, row1; /* rows that operators work on: all, or after the last KV write those that are
                       still needed; row0 is a multiple of 4 */
} ea_cpu_step;

/* First row and number of rows to work on in a buffer. */
static inline int ea_cpu_buffer_row0(const ea_cpu_step *r, int buffer)
{
    return r->d->buffers[buffer].wanted ? 0 : r->row0;
}

static inline int ea_cpu_buffer_rows(const ea_cpu_step *r, int buffer)
{
    return r->d->buffers[buffer].wanted ? r->d->n_slots : r->row1 - r->row0;
}

/* A matmul's input, and where in it those rows begin: small steps keep it per worker, where a norm
 * writes it. */
static inline const ea_acts *ea_cpu_input_acts(const ea_cpu_step *r, int buffer, int *row0)
{
    const ea_cpu_buffer *b = &r->d->buffers[buffer];
    bool own = b->private && ea_cpu_buffer_rows(r, buffer) <= EA_CPU_PRIVATE_ROWS;
    *row0 = own ? 0 : ea_cpu_buffer_row0(r, buffer);
    return own ? &r->own->acts[buffer] : &b->acts;
}

static inline const float *ea_cpu_vector(const ea_cpu_step *r, int tensor)
{
    return tensor < 0 ? NULL : r->d->weights->tensors[tensor].vec;
}

/* How a matmul's tiles are handed out: large pieces first (long runs through memory, activations
 * read once for many tiles), then smaller ones, so that all workers end together. */
typedef struct ea_cpu_pieces {
    int n_tiles;
    int unit;         /* pieces are multiples of it: 2 where columns are used by whole 32-blocks */
    int least, most;  /* tiles of a piece */
    int index, first; /* the walk so far: piece `index` begins at tile `first` */
} ea_cpu_pieces;

/* The smallest piece is about 5 us of work, so that claims cost nothing; 10 bytes of weights and 60
 * multiply-adds a nanosecond are the right order of magnitude on any machine. */
static inline ea_cpu_pieces ea_cpu_cut_pieces(const ea_matrix *m, int n_rows, int n_tiles, int unit,
                                              int most)
{
    double read_ns = (double)m->tile_bytes / 10.0;
    double compute_ns = (double)n_rows * EA_TILE_N * m->k / 60.0;
    double least = 5000.0 / EA_MAX(read_ns, compute_ns);
    int units = (int)fmin(fmax(least, 1.0), n_tiles) / unit;
    return (ea_cpu_pieces){
        .n_tiles = n_tiles, .unit = unit, .least = EA_MAX(units, 1) * unit, .most = most};
}

static inline int ea_cpu_piece_size(const ea_cpu_step *r, const ea_cpu_pieces *p)
{
    int fair = (p->n_tiles - p->first) / (2 * r->worker->n * p->unit) * p->unit;
    return EA_MIN(EA_MAX(fair, p->least), p->most);
}

/* Claim the next piece: tiles *tile0 .. *tile1 - 1. Pieces are the same for all workers, since each
 * walks the same sequence up to the index that it claimed. */
static inline bool ea_cpu_claim_piece(const ea_cpu_step *r, ea_cpu_pieces *p, int *tile0,
                                      int *tile1)
{
    int index = ea_pool_claim(r->worker, 1);
    for (; p->index < index && p->first < p->n_tiles; p->index++)
        p->first += ea_cpu_piece_size(r, p);
    if (p->first >= p->n_tiles)
        return false;
    *tile0 = p->first;
    *tile1 = EA_MIN(p->first + ea_cpu_piece_size(r, p), p->n_tiles);
    return true;
}

/* attention.c */
void ea_cpu_op_rope_kv(const ea_cpu_step *r, const ea_op *op);
void ea_cpu_op_attention(const ea_cpu_step *r, const ea_op *op, const ea_op *rope);
/* logits.c */
void ea_cpu_op_logits(const ea_cpu_step *r, const ea_op *op);

#endif
