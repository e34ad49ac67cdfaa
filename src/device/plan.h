/* plan.h: the static operator plan that a model compiles to and a device runs: weight tensors,
 * activation buffers, KV layer groups and a flat list of operators. Built once by model/ at load,
 * immutable after; shared by all devices of a model. Tensors point into the GGUF, which must stay
 * open as long as the plan.
 *
 * A plan says what is computed, never how: devices may fuse neighbouring operators, keep buffers
 * private to a worker, or skip rows whose result nobody wants, as long as every value that is used
 * is the same (kernel.h, "Numerics").
 *
 * Operators with `exchange` set end a stretch that several parts (CPU and GPU, later hosts) can
 * compute side by side on their own columns or heads: there, and only there, a part needs what the
 * others wrote. A layer has four: after attention, after its output projection, after gate * up,
 * after the down projection. */
#ifndef EA_DEVICE_PLAN_H
#define EA_DEVICE_PLAN_H

#include "base/error.h"
#include "gguf/gguf.h"

/* ---- tensors ---- */

typedef enum ea_tensor_role {
    EA_ROLE_MATRIX, /* a linear projection: n outputs by k inputs */
    EA_ROLE_ROWS,   /* n rows of k, looked up one at a time (token embedding) */
    EA_ROLE_VECTOR, /* k floats (norm weights, biases); n = 1 */
} ea_tensor_role;

typedef struct ea_plan_tensor {
    const ea_gguf_tensor *src;
    ea_tensor_role role;
    int n, k;
} ea_plan_tensor;

/* ---- activation buffers: one row of `width` floats for each row of the step ---- */

typedef struct ea_plan_buffer {
    const char *name; /* static text */
    int width;
    bool acts;   /* input of a matmul: devices keep it in the form their kernels read */
    bool wanted; /* has rows only for those rows of the step that want logits or an argmax */
} ea_plan_buffer;

/* ---- KV layer groups: layers with the same need share one page table ---- */

typedef struct ea_kv_group {
    int n_layers;
    int n_head, n_head_kv, head_dim; /* n_head is a multiple of n_head_kv */
    int window;                      /* positions seen; 0 = all */
    float scale;                     /* of the scores */
    /* Rotary embedding: the first n_rot components turn, by pos * freq[i] radians for pair i of
     * n_rot / 2. neox: pairs (i, i + n_rot/2), else (2i, 2i + 1). Owned by the plan. */
    int n_rot;
    bool neox;
    double *freq;
} ea_kv_group;

/* ---- operators ---- */

typedef enum ea_op_kind {
    EA_OP_EMBED,     /* out = embedding row of the token, or the row's own input embedding */
    EA_OP_NORM,      /* out = rms_norm(in) * weight; gathers the wanted rows where out has only
                        those */
    EA_OP_MATMUL,    /* out[i] = w[i] * in + bias[i], 1..3 weights over one input; or += */
    EA_OP_ROPE_KV,   /* turn q and k in place, write k and v to the KV pages */
    EA_OP_ATTENTION, /* out = attention of q over the KV of the row's sequence */
    EA_OP_SILU_MUL,  /* out = silu(gate) * up */
    EA_OP_LOGITS,    /* vocabulary product of the wanted rows: logits and argmax */
} ea_op_kind;

enum { EA_PLAN_MAX_FAN = 3 };

/* Buffers and tensors are indices; -1 = none. */
typedef struct ea_op {
    ea_op_kind kind;
    int layer; /* of the model, -1 outside the layers: for messages and profiles */
    bool exchange;
    union {
        struct {
            int out, rows; /* rows: tensor of role ROWS */
        } embed;
        struct {
            int out, in, weight;
            float eps;
        } norm;
        struct {
            int n; /* weights */
            int in;
            int out[EA_PLAN_MAX_FAN], weight[EA_PLAN_MAX_FAN], bias[EA_PLAN_MAX_FAN];
            bool accumulate;
        } matmul;
        struct {
            int q, k, v, group, slot; /* slot: layer within the group */
        } rope_kv;
        struct {
            int out, q, group, slot;
        } attention;
        struct {
            int out, gate, up;
        } silu_mul;
        struct {
            int in, weight;
        } logits;
    } u;
} ea_op;

typedef struct ea_plan {
    const ea_gguf *gguf; /* for releasing pages of the file that were copied */
    int n_vocab, n_embd, n_ctx_train;
    int n_tensors, n_buffers, n_groups, n_ops;
    ea_plan_tensor *tensors;
    ea_plan_buffer *buffers;
    ea_kv_group *groups;
    ea_op *ops;
} ea_plan;

/* Free what a plan owns (not the plan struct itself); zeroes it. */
void ea_plan_done(ea_plan *plan);

/* Our own bugs, found early: indices in range, shapes of operators and tensors fit, buffers are
 * written before they are read. EA_EINTERNAL names the operator. Devices call it once. */
ea_status ea_plan_check(const ea_plan *plan, ea_error *err) EA_MUST_CHECK;

#endif
