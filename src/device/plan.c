/* plan.c: see plan.h. */
#include "device/plan.h"

#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

void ea_plan_done(ea_plan *plan)
{
    for (int i = 0; i < plan->n_groups; i++)
        ea_free(plan->groups[i].freq);
    ea_free(plan->tensors);
    ea_free(plan->buffers);
    ea_free(plan->groups);
    ea_free(plan->ops);
    memset(plan, 0, sizeof *plan);
}

/* State of one check: which buffers were written so far, and the first thing that is wrong. */
typedef struct ea_plan_checker {
    const ea_plan *plan;
    uint64_t written; /* bit a buffer */
    const char *wrong;
} ea_plan_checker;

static void wrong(ea_plan_checker *c, const char *what)
{
    if (!c->wrong)
        c->wrong = what;
}

/* A buffer that must have `width` floats a row; returns it, or NULL. */
static const ea_plan_buffer *buffer(ea_plan_checker *c, int i, int width)
{
    if (i < 0 || i >= c->plan->n_buffers) {
        wrong(c, "buffer index out of range");
        return NULL;
    }
    if (c->plan->buffers[i].width != width)
        wrong(c, "buffer has another width than the operator needs");
    return &c->plan->buffers[i];
}

static const ea_plan_buffer *reads(ea_plan_checker *c, int i, int width)
{
    const ea_plan_buffer *b = buffer(c, i, width);
    if (b && !(c->written >> i & 1))
        wrong(c, "buffer is read before it is written");
    return b;
}

static void writes(ea_plan_checker *c, int i, int width)
{
    if (buffer(c, i, width))
        c->written |= 1ull << i;
}

/* A tensor of the given role; NULL (and the check fails) if it is none. */
static const ea_plan_tensor *tensor(ea_plan_checker *c, int i, ea_tensor_role role)
{
    if (i < 0 || i >= c->plan->n_tensors) {
        wrong(c, "tensor index out of range");
        return NULL;
    }
    if (c->plan->tensors[i].role != role) {
        wrong(c, "tensor has another role");
        return NULL;
    }
    return &c->plan->tensors[i];
}

static void vector(ea_plan_checker *c, int i, int k)
{
    const ea_plan_tensor *t = tensor(c, i, EA_ROLE_VECTOR);
    if (t && (t->n != 1 || t->k != k))
        wrong(c, "vector has another length than the operator needs");
}

static const ea_kv_group *group(ea_plan_checker *c, int i, int slot)
{
    if (i < 0 || i >= c->plan->n_groups || slot < 0 || slot >= c->plan->groups[i].n_layers) {
        wrong(c, "KV group or slot out of range");
        return NULL;
    }
    return &c->plan->groups[i];
}

static void check_matmul(ea_plan_checker *c, const ea_op *op)
{
    if (op->u.matmul.n < 1 || op->u.matmul.n > EA_PLAN_MAX_FAN) {
        wrong(c, "number of weights out of range");
        return;
    }
    for (int i = 0; i < op->u.matmul.n; i++) {
        const ea_plan_tensor *w = tensor(c, op->u.matmul.weight[i], EA_ROLE_MATRIX);
        if (!w)
            return;
        const ea_plan_buffer *in = reads(c, op->u.matmul.in, w->k);
        if (in && !in->acts)
            wrong(c, "matmul input is no acts buffer");
        if (op->u.matmul.accumulate)
            reads(c, op->u.matmul.out[i], w->n);
        writes(c, op->u.matmul.out[i], w->n);
        if (op->u.matmul.bias[i] >= 0)
            vector(c, op->u.matmul.bias[i], w->n);
    }
}

static void check_attention_op(ea_plan_checker *c, const ea_op *op)
{
    bool rope = op->kind == EA_OP_ROPE_KV;
    const ea_kv_group *g = rope ? group(c, op->u.rope_kv.group, op->u.rope_kv.slot)
                                : group(c, op->u.attention.group, op->u.attention.slot);
    if (!g)
        return;
    if (rope) {
        reads(c, op->u.rope_kv.q, g->n_head * g->head_dim);
        reads(c, op->u.rope_kv.k, g->n_head_kv * g->head_dim);
        reads(c, op->u.rope_kv.v, g->n_head_kv * g->head_dim);
    } else {
        reads(c, op->u.attention.q, g->n_head * g->head_dim);
        writes(c, op->u.attention.out, g->n_head * g->head_dim);
    }
}

static void check_op(ea_plan_checker *c, const ea_op *op)
{
    const ea_plan *plan = c->plan;
    switch (op->kind) {
    case EA_OP_EMBED: {
        const ea_plan_tensor *rows = tensor(c, op->u.embed.rows, EA_ROLE_ROWS);
        if (rows && (rows->n != plan->n_vocab || rows->k != plan->n_embd))
            wrong(c, "embedding has another shape");
        writes(c, op->u.embed.out, plan->n_embd);
        break;
    }
    case EA_OP_NORM: {
        int in = op->u.norm.in;
        if (in < 0 || in >= plan->n_buffers) {
            wrong(c, "buffer index out of range");
            break;
        }
        int width = plan->buffers[in].width;
        reads(c, in, width);
        writes(c, op->u.norm.out, width);
        vector(c, op->u.norm.weight, width);
        break;
    }
    case EA_OP_MATMUL: check_matmul(c, op); break;
    case EA_OP_ROPE_KV:
    case EA_OP_ATTENTION: check_attention_op(c, op); break;
    case EA_OP_SILU_MUL: {
        int out = op->u.silu_mul.out;
        if (out < 0 || out >= plan->n_buffers) {
            wrong(c, "buffer index out of range");
            break;
        }
        int width = plan->buffers[out].width;
        reads(c, op->u.silu_mul.gate, width);
        reads(c, op->u.silu_mul.up, width);
        writes(c, out, width);
        break;
    }
    case EA_OP_LOGITS: {
        const ea_plan_tensor *w = tensor(c, op->u.logits.weight, EA_ROLE_MATRIX);
        if (!w)
            break;
        const ea_plan_buffer *in = reads(c, op->u.logits.in, w->k);
        if (w->n != plan->n_vocab || (in && !(in->acts && in->wanted)))
            wrong(c, "vocabulary product does not fit");
        break;
    }
    default: wrong(c, "unknown operator");
    }
}

ea_status ea_plan_check(const ea_plan *plan, ea_error *err)
{
    ea_plan_checker c = {.plan = plan};
    if (plan->n_buffers > 64 || plan->n_groups < 1)
        return ea_fail(err, EA_EINTERNAL, "plan: %d buffers, %d KV groups", plan->n_buffers,
                       plan->n_groups);
    for (int i = 0; i < plan->n_groups; i++) {
        const ea_kv_group *g = &plan->groups[i];
        if (g->n_head_kv < 1 || g->n_head < g->n_head_kv || g->n_head % g->n_head_kv != 0 ||
            g->head_dim < 1 || g->head_dim > EA_MAX_HEAD_DIM || g->n_rot < 0 || g->n_rot % 2 != 0 ||
            g->n_rot > g->head_dim || (g->n_rot > 0 && !g->freq))
            return ea_fail(err, EA_EINTERNAL, "plan: KV group %d has a bad shape", i);
    }
    for (int i = 0; i < plan->n_ops; i++) {
        check_op(&c, &plan->ops[i]);
        if (c.wrong)
            return ea_fail(err, EA_EINTERNAL, "plan: operator %d (kind %d, layer %d): %s", i,
                           (int)plan->ops[i].kind, plan->ops[i].layer, c.wrong);
    }
    return EA_OK;
}
