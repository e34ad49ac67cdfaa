/* device.h: what the engine asks of a device: run one ragged step over paged KV. Implementations:
 * cpu/ (now), vulkan/ and split/ (later), and the fake one of tests/engine. A device belongs to the
 * engine thread. */
#ifndef EA_DEVICE_DEVICE_H
#define EA_DEVICE_DEVICE_H

#include "base/error.h"

/* What a row must give back. */
typedef enum ea_want { EA_WANT_NONE, EA_WANT_ARGMAX, EA_WANT_LOGITS, EA_WANT_HIDDEN } ea_want;

/* One token of one sequence at one position. Rows of a sequence are contiguous in the batch and
 * ascend in position by one; a row sees the sequence's KV at all positions up to its own, rows of
 * this step included. */
typedef struct ea_row {
    int32_t token;     /* id, or -1: the input embedding is given */
    const float *embd; /* n_embd floats where token is -1 (images, later) */
    int32_t pos[3];    /* rotary position; all the same for text (M-RoPE, later) */
    int32_t seq;       /* index into ea_batch.seqs */
    int32_t parent;    /* row index of the parent in a draft tree; -1: the row before it (chains) */
    int32_t adapter;   /* LoRA id, 0 = none */
    ea_want want;
    /* ARGMAX, LOGITS: tokens that may follow, bit t % 32 of word t / 32, (n_vocab + 31) / 32 words;
     * NULL: all. Logits of the others are -INFINITY, and the argmax is one of these. */
    const uint32_t *allowed;
    /* Results, valid until the next step on this device. */
    int32_t argmax;      /* want ARGMAX or LOGITS; -1: no token is allowed */
    const float *logits; /* want LOGITS: n_vocab floats */
} ea_row;

/* The page table of one sequence: pages[i] holds positions i*page_tokens .. of every layer group
 * (one group now). The step writes K and V at the rows' positions; those pages must be owned by
 * this sequence alone. */
typedef struct ea_seq {
    const int32_t *pages;
    int n_pages;
} ea_seq;

typedef struct ea_batch {
    ea_row *rows;
    int n_rows;
    const ea_seq *seqs;
    int n_seqs;
} ea_batch;

typedef struct ea_device_info {
    const char *name; /* "cpu" */
    int n_vocab, n_embd;
    int page_tokens;
    int n_pages;
    size_t page_bytes;  /* all layers */
    int max_rows;       /* of a step */
    int max_logit_rows; /* rows of a step that may want ARGMAX or LOGITS */
    int n_threads;
} ea_device_info;

typedef struct ea_device ea_device;

typedef struct ea_device_ops {
    /* Run the batch. A failure leaves the KV of the batch's sequences at the rows' positions
     * undefined. Allocates nothing. */
    ea_status (*step)(ea_device *dev, ea_batch *batch, ea_error *err);
    /* Copy the first n_pos positions of page src to page dst (all layers). */
    void (*copy_page)(ea_device *dev, int32_t dst, int32_t src, int n_pos);
    void (*destroy)(ea_device *dev);
} ea_device_ops;

/* Implementations embed this as their first member. */
struct ea_device {
    const ea_device_ops *ops;
    ea_device_info info;
};

static inline void ea_device_destroy(ea_device *dev)
{
    if (dev)
        dev->ops->destroy(dev);
}

#endif
