/* internal.h: the CPU device's structures, shared by the files of cpu/. */
#ifndef EA_DEVICE_CPU_INTERNAL_H
#define EA_DEVICE_CPU_INTERNAL_H

#include "base/huge.h"
#include "base/pool.h"
#include "device/cpu/attn_plan.h"
#include "device/cpu/cpu.h"
#include "kernel/kernel.h"

/* ---- weights.c ---- */

/* One tensor of the plan; which members are set depends on its role. */
typedef struct ea_cpu_tensor {
    ea_matrix matrix;          /* MATRIX */
    const float *vec;          /* VECTOR */
    const ea_dtype_info *type; /* ROWS: as in the file */
    size_t row_bytes;
    const uint8_t *rows;      /* ROWS: a copy */
    const ea_matrix *rows_of; /* or the matrix that the same tensor is packed as; one is set */
} ea_cpu_tensor;

struct ea_cpu_weights {
    const ea_plan *plan;
    ea_cpu_tensor *tensors;
    uint8_t *data; /* of all tensors, in the plan's order; one allocation */
    size_t n_bytes;
    ea_huge_join *join; /* makes huge pages of it, where loading went without; or NULL */
};

/* Row i (0 <= i < n) of a tensor of role ROWS as k floats. */
void ea_cpu_tensor_row(const ea_cpu_tensor *t, int i, int k, float *out);

/* ---- device.c: the step's state ---- */

/* Steps of at most this many rows normalise them in every worker, each for itself. A row of 576
 * floats takes 0.45 us to normalise and quantise (AVX-512), a stretch of its own 0.2 us at its
 * best, but many times that beside a busy neighbour. */
enum { EA_CPU_PRIVATE_ROWS = 4 };

/* Most columns of the vocabulary that a worker takes at once. */
enum { EA_CPU_LOGIT_COLS = 1024 };

/* A buffer of the plan. */
typedef struct ea_cpu_buffer {
    ea_acts acts; /* acts buffers */
    float *f32;   /* row r at f32 + r * ld */
    size_t ld;
    bool is_acts, wanted;
    unsigned forms; /* that matmuls read, bits of ea_acts_form */
    bool q8;        /* one of them is quantised */
    bool private;   /* written by a norm: small steps keep it per worker */
} ea_cpu_buffer;

/* Largest logit of a row that one worker has seen in this step. */
typedef struct ea_cpu_best {
    float value;
    int32_t token;
} ea_cpu_best;

/* What belongs to one worker; only that worker touches it inside a run. */
typedef struct ea_cpu_worker {
    ea_acts *acts;     /* [n_buffers], those with `private` */
    uint64_t *norm_of; /* [n_buffers]: which norm of which step they hold, see exec.c */
    void *attn_scratch;
    float *attn_wide;  /* a piece's queries, turned and padded, and outputs of padded heads */
    float *logits;     /* logits of one chunk of the vocabulary, rows that want only the argmax */
    ea_cpu_best *best; /* [max_slots] */
} ea_cpu_worker;

/* Query rows of one sequence that attention handles as one item (times KV head, times part of the
 * head group). */
typedef struct ea_cpu_span {
    int row0, n_rows;
    const int32_t *pages;
} ea_cpu_span;

/* How one KV group lies in a page, and the rotary tables of the step's rows. */
typedef struct ea_cpu_group {
    size_t offset;      /* of its first block in a page */
    size_t block_bytes; /* of one K or V block */
    int head_dim;       /* as stored: rounded up to 8 */
    int heads;          /* query heads of one attention item (part of a KV head's group) */
    int parts;          /* items a KV head: ceil(group / heads) */
    int span_rows;      /* most rows of an item */
    float *cs;          /* [max_rows][n_rot]: cos, sin pairs */
    ea_cpu_attn_plan attn;
} ea_cpu_group;

/* What the pool calls a stretch: an operator, or a part of one. */
typedef struct ea_cpu_stretch {
    const struct ea_cpu_stretch_kind *kind; /* exec.c */
    int op;                                 /* of the plan */
    int norm; /* operator that writes its input, where workers may do that for themselves; or -1 */
} ea_cpu_stretch;

typedef struct ea_cpu_device {
    ea_device base;
    const ea_cpu_weights *weights;
    const ea_plan *plan;
    ea_pool *pool;
    ea_cpu_buffer *buffers;
    ea_cpu_group *groups;
    ea_cpu_worker *workers;
    int n_workers;
    ea_cpu_stretch *stretches;
    int n_stretches;

    uint8_t *memory; /* everything that a step writes but KV and logits */
    size_t memory_bytes;
    uint8_t *kv;
    size_t kv_bytes;
    ea_kv_type kv_type;
    float
        *attn_parts; /* [EA_CPU_ATTN_PARTS][n_head][ea_attn_part_floats] of the running operator */
    float *logits;   /* [max_logit_rows][n_vocab] */
    size_t logits_bytes;

    /* The running step: written by the engine thread before the workers start. */
    uint64_t n_steps; /* so far, this one included */
    ea_row *rows;
    const ea_seq *seqs;
    int n_rows;
    ea_cpu_span *spans; /* [max_rows], of the first KV group's span_rows */
    int n_spans;
    bool fused_rope; /* every sequence is one span: attention items write their own K and V */
    /* After the last layer's K and V only rows that want something matter: work goes on with the
     * rows from the first of them (down to a multiple of 4) to the last. */
    int last_kv_op, needed_row0, needed_row1;
    /* Rows that want something, by slot: those that want logits first, then (from a multiple of 4,
     * as matmul likes it) those that want the argmax only; -1 in the gap. */
    int32_t *slot_row; /* [max_slots] */
    int n_slots, n_logit_rows, argmax_slot0;

    int32_t *cut; /* the open stretch's product: its pieces' first tiles, and the end of the last */
} ea_cpu_device;

/* exec.c */
/* The device's stretches, from its plan and buffers; false if out of memory. */
bool ea_cpu_list_stretches(ea_cpu_device *d);
/* Run the step that the device holds. */
void ea_cpu_run(ea_cpu_device *d);

/* logits.c */
/* The argmax where no logit is a number above -INFINITY: the first token that may follow, or -1. */
int32_t ea_cpu_first_allowed(const ea_cpu_device *d, const ea_row *row);

/* Is operator i the SILU_MUL over the outputs of operator i - 1? They run as one. */
bool ea_cpu_fuses_silu(const ea_plan *plan, int i);

#endif
