/* exec.h: what the files that run a step share: the view of it that one piece has, and how tiles of
 * a matrix are handed out. See exec.c. */
#ifndef EA_DEVICE_CPU_EXEC_H
#define EA_DEVICE_CPU_EXEC_H

#include "device/cpu/internal.h"

/* The running step as one piece sees it; `own` is NULL while pieces are being counted. */
typedef struct ea_cpu_step {
    ea_cpu_device *d;
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

/* Cut a product's tiles into pieces, in d->cut; returns how many. Large ones come first (long runs
 * through memory, activations read once for many tiles), then smaller ones, so that all workers end
 * together. Pieces are multiples of `unit` tiles, of at most `most`. */
int ea_cpu_cut_pieces(ea_cpu_device *d, const ea_matrix *m, int n_rows, int n_tiles, int unit,
                      int most);

/* attention.c */
int ea_cpu_rope_pieces(const ea_cpu_step *r, const ea_op *op);
void ea_cpu_rope_piece(const ea_cpu_step *r, const ea_op *op, int piece);
int ea_cpu_attention_pieces(const ea_cpu_step *r, const ea_op *op);
void ea_cpu_attention_piece(const ea_cpu_step *r, const ea_op *op, int piece);
/* The quantisation of its output, where pieces could not do it. */
int ea_cpu_attention_quantise_pieces(const ea_cpu_step *r, const ea_op *op);
void ea_cpu_attention_quantise_piece(const ea_cpu_step *r, const ea_op *op, int piece);
/* logits.c */
int ea_cpu_logits_pieces(const ea_cpu_step *r, const ea_op *op);
void ea_cpu_logits_piece(const ea_cpu_step *r, const ea_op *op, int piece);

#endif
