/* device.c: memory and life of the CPU device, and the preparation of a step; exec.c runs it.
 * All of it belongs to the engine thread; the pool's workers touch it inside ea_pool_run only.
 *
 * A KV page holds, for each group, layer and KV head, a K block and a V block as kernel.h lays them
 * out: [group][layer][head][K, V]. Page memory is one reservation, touched when first written. */
#include <math.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "device/cpu/internal.h"

static size_t align64(size_t n)
{
    return (n + 63) / 64 * 64;
}

static int stored_head_dim(const ea_kv_group *g)
{
    return (g->head_dim + 7) / 8 * 8; /* what the attention kernels take */
}

static size_t block_bytes(const ea_kv_group *g, ea_kv_type type)
{
    return ea_kv_block_bytes(type, stored_head_dim(g));
}

size_t ea_cpu_page_bytes(const ea_plan *plan, ea_kv_type type)
{
    size_t n = 0;
    for (int i = 0; i < plan->n_groups; i++) {
        const ea_kv_group *g = &plan->groups[i];
        n += block_bytes(g, type) * 2 * (size_t)g->n_layers * (size_t)g->n_head_kv;
    }
    return n;
}

/* ---- creation ---- */

/* Takes memory in two passes over the same code: with base NULL it only counts. */
typedef struct carver {
    uint8_t *base;
    size_t n;
} carver;

static void *carve(carver *c, size_t n_bytes)
{
    void *p = c->base ? c->base + c->n : NULL;
    c->n += align64(n_bytes);
    return p;
}

static int max_slots(const ea_device_info *info)
{
    return info->max_logit_rows + 4; /* the gap before the argmax slots */
}

static void carve_buffer(ea_cpu_device *d, carver *c, int i)
{
    const ea_plan_buffer *b = &d->plan->buffers[i];
    ea_cpu_buffer *out = &d->buffers[i];
    int rows = b->wanted ? max_slots(&d->base.info) : d->base.info.max_rows;
    if (!b->acts) {
        out->ld = (size_t)b->width;
        out->f32 = carve(c, (size_t)rows * out->ld * sizeof(float));
        return;
    }
    void *mem = carve(c, ea_acts_bytes(rows, b->width, out->forms));
    if (mem) {
        ea_acts_init(&out->acts, rows, b->width, out->forms, mem);
        out->f32 = out->acts.f32;
        out->ld = (size_t)out->acts.k_pad;
    }
    for (int w = 0; w < d->n_workers && out->private; w++) {
        mem = carve(c, ea_acts_bytes(EA_CPU_PRIVATE_ROWS, b->width, out->forms));
        if (mem)
            ea_acts_init(&d->workers[w].acts[i], EA_CPU_PRIVATE_ROWS, b->width, out->forms, mem);
    }
}

static void carve_worker(ea_cpu_device *d, carver *c, ea_cpu_worker *w)
{
    size_t attn = 0, wide = 0;
    for (int i = 0; i < d->plan->n_groups; i++) {
        int dim = d->groups[i].head_dim;
        attn = EA_MAX(attn, ea_attn_scratch_bytes(dim));
        wide = EA_MAX(wide, 2 * EA_ATTN_QUERIES * (size_t)dim * sizeof(float));
    }
    w->attn_scratch = carve(c, attn);
    w->attn_wide = carve(c, wide);
    w->logits = carve(c, (size_t)max_slots(&d->base.info) * EA_CPU_LOGIT_COLS * sizeof(float));
    w->best = carve(c, (size_t)max_slots(&d->base.info) * sizeof *w->best);
}

static void *carve_for(void *user, size_t n_bytes)
{
    return carve(user, n_bytes);
}

static void carve_attention(ea_cpu_device *d, carver *c)
{
    size_t parts = 0;
    for (int i = 0; i < d->plan->n_groups; i++) {
        size_t part = ea_attn_part_floats(d->groups[i].head_dim) * sizeof(float);
        ea_cpu_attn_carve(d, i, carve_for, c);
        parts = EA_MAX(parts, part * (size_t)d->plan->groups[i].n_head);
    }
    d->attn_parts = carve(c, parts * EA_CPU_ATTN_PARTS);
    d->spans = carve(c, (size_t)d->base.info.max_rows * sizeof *d->spans);
}

/* Of one product operator. */
static size_t most_tiles(const ea_cpu_device *d)
{
    size_t most = 0;
    for (int i = 0; i < d->plan->n_ops; i++) {
        const ea_op *op = &d->plan->ops[i];
        size_t n = 0;
        for (int j = 0; op->kind == EA_OP_MATMUL && j < op->u.matmul.n; j++)
            n += (size_t)d->weights->tensors[op->u.matmul.weight[j]].matrix.n_tiles;
        if (op->kind == EA_OP_LOGITS)
            n = (size_t)d->weights->tensors[op->u.logits.weight].matrix.n_tiles;
        most = EA_MAX(most, n);
    }
    return most;
}

static void carve_all(ea_cpu_device *d, carver *c)
{
    size_t max_rows = (size_t)d->base.info.max_rows;
    for (int i = 0; i < d->plan->n_buffers; i++)
        carve_buffer(d, c, i);
    for (int i = 0; i < d->plan->n_groups; i++)
        d->groups[i].cs = carve(c, max_rows * (size_t)d->plan->groups[i].n_rot * sizeof(float));
    for (int i = 0; i < d->n_workers; i++)
        carve_worker(d, c, &d->workers[i]);
    carve_attention(d, c);
    d->slot_row = carve(c, (size_t)max_slots(&d->base.info) * sizeof *d->slot_row);
    d->cut = carve(c, (most_tiles(d) + 1) * sizeof *d->cut);
}

bool ea_cpu_fuses_silu(const ea_plan *plan, int i)
{
    if (i < 1 || i >= plan->n_ops || plan->ops[i].kind != EA_OP_SILU_MUL ||
        plan->ops[i - 1].kind != EA_OP_MATMUL)
        return false;
    const ea_op *silu = &plan->ops[i], *mm = &plan->ops[i - 1];
    return mm->u.matmul.n == 2 && !mm->u.matmul.accumulate &&
           mm->u.matmul.out[0] == silu->u.silu_mul.gate &&
           mm->u.matmul.out[1] == silu->u.silu_mul.up && plan->buffers[silu->u.silu_mul.out].acts;
}

/* Attention items of short spans do the rotation and KV write of the operator before them. */
static bool follows_rope(const ea_plan *plan, int i)
{
    if (i < 1 || plan->ops[i - 1].kind != EA_OP_ROPE_KV)
        return false;
    const ea_op *attn = &plan->ops[i], *rope = &plan->ops[i - 1];
    return rope->u.rope_kv.group == attn->u.attention.group &&
           rope->u.rope_kv.slot == attn->u.attention.slot &&
           rope->u.rope_kv.q == attn->u.attention.q;
}

/* A matrix reads this buffer. */
static void read_by(ea_cpu_device *d, int buffer, int weight)
{
    ea_acts_form form = ea_matrix_form(&d->weights->tensors[weight].matrix);
    d->buffers[buffer].forms |= 1u << form;
    d->buffers[buffer].q8 |= form != EA_FORM_F32;
}

/* How the operators use the buffers. */
static ea_status scan_ops(ea_cpu_device *d, ea_error *err)
{
    const ea_plan *plan = d->plan;
    for (int i = 0; i < plan->n_buffers; i++) {
        d->buffers[i].is_acts = plan->buffers[i].acts;
        d->buffers[i].wanted = plan->buffers[i].wanted;
    }
    for (int i = 0; i < plan->n_ops; i++) {
        const ea_op *op = &plan->ops[i];
        switch (op->kind) {
        case EA_OP_NORM: d->buffers[op->u.norm.out].private = true; break;
        case EA_OP_ROPE_KV: d->last_kv_op = i; break;
        case EA_OP_MATMUL:
            for (int j = 0; j < op->u.matmul.n; j++)
                read_by(d, op->u.matmul.in, op->u.matmul.weight[j]);
            break;
        case EA_OP_LOGITS: read_by(d, op->u.logits.in, op->u.logits.weight); break;
        case EA_OP_SILU_MUL:
            if (!ea_cpu_fuses_silu(plan, i))
                return ea_fail(err, EA_EUNSUPPORTED,
                               "cpu device: operator %d: silu * up of something else than the two "
                               "products before it",
                               i);
            break;
        case EA_OP_ATTENTION:
            if (!follows_rope(plan, i))
                return ea_fail(err, EA_EUNSUPPORTED,
                               "cpu device: operator %d: attention without "
                               "the rotation of its layer before it",
                               i);
            break;
        default: break;
        }
        if (op->kind == EA_OP_NORM && !plan->buffers[op->u.norm.out].acts)
            return ea_fail(err, EA_EUNSUPPORTED,
                           "cpu device: operator %d: a norm that no product "
                           "reads",
                           i);
    }
    return EA_OK;
}

static void lay_out_groups(ea_cpu_device *d)
{
    size_t offset = 0;
    for (int i = 0; i < d->plan->n_groups; i++) {
        const ea_kv_group *g = &d->plan->groups[i];
        ea_cpu_group *out = &d->groups[i];
        int group = g->n_head / g->n_head_kv;
        out->offset = offset;
        out->block_bytes = block_bytes(g, d->kv_type);
        out->head_dim = stored_head_dim(g);
        out->heads = EA_MIN(group, EA_ATTN_QUERIES);
        out->parts = (group + out->heads - 1) / out->heads;
        out->span_rows = EA_ATTN_QUERIES / out->heads;
        offset += out->block_bytes * 2 * (size_t)g->n_layers * (size_t)g->n_head_kv;
    }
}

static ea_status check_kv_type(const ea_plan *plan, ea_kv_type type, ea_error *err)
{
    if ((int)type < EA_KV_F16 || (int)type > EA_KV_Q4_0)
        return ea_fail(err, EA_EINVAL, "kv_type: %d is none of f16, q8_0, q4_0", (int)type);
    for (int i = 0; i < plan->n_groups; i++)
        if (!ea_kv_type_fits(type, plan->groups[i].head_dim))
            return ea_fail(err, EA_EUNSUPPORTED,
                           "kv_type: %s needs heads whose width is a multiple of %d, this model's "
                           "are %d wide; use f16",
                           type == EA_KV_Q8_0 ? "q8_0" : "q4_0", EA_KV_BLOCK,
                           plan->groups[i].head_dim);
    return EA_OK;
}

static ea_status check_params(const ea_cpu_device_params *p, ea_error *err)
{
    if (p->n_pages < 1)
        return ea_fail(err, EA_EINVAL, "n_pages: %d is not at least 1", p->n_pages);
    if (p->max_rows < 1 || p->max_rows > EA_MAX_BATCH)
        return ea_fail(err, EA_EINVAL, "max_rows: %d is not in 1..%d", p->max_rows, EA_MAX_BATCH);
    if (p->max_logit_rows < 1 || p->max_logit_rows > p->max_rows)
        return ea_fail(err, EA_EINVAL, "max_logit_rows: %d is not in 1..%d", p->max_logit_rows,
                       p->max_rows);
    return EA_OK;
}

/* The tables, in ordinary memory; everything of them is zero. */
static bool alloc_tables(ea_cpu_device *d)
{
    d->buffers = ea_calloc((size_t)d->plan->n_buffers, sizeof *d->buffers);
    d->groups = ea_calloc((size_t)d->plan->n_groups, sizeof *d->groups);
    d->workers = ea_calloc((size_t)d->n_workers, sizeof *d->workers);
    if (!d->buffers || !d->groups || !d->workers)
        return false;
    for (int i = 0; i < d->n_workers; i++) {
        d->workers[i].acts = ea_calloc((size_t)d->plan->n_buffers, sizeof *d->workers[i].acts);
        d->workers[i].norm_of =
            ea_calloc((size_t)d->plan->n_buffers, sizeof *d->workers[i].norm_of);
        if (!d->workers[i].acts || !d->workers[i].norm_of)
            return false;
    }
    return true;
}

static ea_status alloc_memory(ea_cpu_device *d, ea_error *err)
{
    const ea_device_info *info = &d->base.info;
    carver count = {0};
    carve_all(d, &count);
    d->memory_bytes = count.n;
    d->memory = ea_pages_alloc(d->memory_bytes);
    d->logits_bytes = (size_t)info->max_logit_rows * (size_t)info->n_vocab * sizeof(float);
    d->logits = ea_pages_alloc(d->logits_bytes);
    if (__builtin_mul_overflow((size_t)info->n_pages, info->page_bytes, &d->kv_bytes))
        return ea_fail(err, EA_ENOMEM, "n_pages: %d pages of %zu bytes are too many", info->n_pages,
                       info->page_bytes);
    d->kv = ea_pages_alloc(d->kv_bytes);
    if (!d->memory || !d->logits || !d->kv)
        return ea_fail(err, EA_ENOMEM,
                       "out of memory: %zu MiB for KV, %zu MiB for the rows of a step",
                       d->kv_bytes >> 20, (d->memory_bytes + d->logits_bytes) >> 20);
    carver c = {.base = d->memory};
    carve_all(d, &c);
    return EA_OK;
}

static void destroy(ea_device *dev)
{
    ea_cpu_device *d = (ea_cpu_device *)dev;
    ea_pool_destroy(d->pool);
    for (int i = 0; i < d->n_workers && d->workers; i++) {
        ea_free(d->workers[i].acts);
        ea_free(d->workers[i].norm_of);
    }
    ea_free(d->stretches);
    ea_free(d->workers);
    ea_free(d->groups);
    ea_free(d->buffers);
    ea_pages_free(d->memory, d->memory_bytes);
    ea_pages_free(d->kv, d->kv_bytes);
    ea_pages_free(d->logits, d->logits_bytes);
    ea_free(d);
}

/* ---- a step ---- */

/* Rows whose features this device lacks. */
static ea_status check_row(const ea_row *row, int i, ea_error *err)
{
    if (row->want == EA_WANT_HIDDEN)
        return ea_fail(err, EA_EUNSUPPORTED, "row %d: hidden states are not supported", i);
    if (row->adapter != 0)
        return ea_fail(err, EA_EUNSUPPORTED, "row %d: adapter %d is not supported", i,
                       (int)row->adapter);
    if (row->parent != -1 && row->parent != i - 1)
        return ea_fail(err, EA_EUNSUPPORTED, "row %d: draft trees are not supported", i);
    return EA_OK;
}

/* The engine's promises; a broken one is a bug that would write into another agent's KV. */
static void assert_row(const ea_cpu_device *d, const ea_batch *batch, int i)
{
    const ea_row *row = &batch->rows[i];
    EA_ASSERT(row->seq >= 0 && row->seq < batch->n_seqs);
    EA_ASSERT(row->token == -1 ? row->embd != NULL
                               : row->token >= 0 && row->token < d->plan->n_vocab);
    const ea_seq *seq = &batch->seqs[row->seq];
    int pos = row->pos[0];
    EA_ASSERT(pos >= 0 && pos / EA_PAGE_TOKENS < seq->n_pages);
    int32_t page = seq->pages[pos / EA_PAGE_TOKENS];
    EA_ASSERT(page >= 0 && page < d->base.info.n_pages);
}

/* Cut the rows into spans: of one sequence, at most span_rows each. */
static void make_spans(ea_cpu_device *d, const ea_batch *batch)
{
    int most = d->groups[0].span_rows;
    for (int i = 1; i < d->plan->n_groups; i++)
        most = EA_MIN(most, d->groups[i].span_rows);
    d->n_spans = 0;
    d->fused_rope = true;
    for (int i = 0; i < d->plan->n_groups; i++)
        if (d->groups[i].parts > 1)
            d->fused_rope = false; /* several items read one K */
    for (int i = 0; i < batch->n_rows; i++) {
        const ea_row *row = &batch->rows[i];
        bool same = i > 0 && batch->rows[i - 1].seq == row->seq;
        EA_ASSERT(!same || row->pos[0] == batch->rows[i - 1].pos[0] + 1);
        ea_cpu_span *last = d->n_spans ? &d->spans[d->n_spans - 1] : NULL;
        if (same && last->n_rows < most) {
            last->n_rows++;
            continue;
        }
        if (same)
            d->fused_rope = false; /* a later span reads what an earlier one writes */
        if (!same)
            for (int p = 0; p <= row->pos[0] / EA_PAGE_TOKENS; p++) {
                int32_t page = batch->seqs[row->seq].pages[p];
                EA_ASSERT(page >= 0 && page < d->base.info.n_pages);
            }
        d->spans[d->n_spans++] = (ea_cpu_span){i, 1, batch->seqs[row->seq].pages};
    }
}

static void make_slots(ea_cpu_device *d, ea_batch *batch)
{
    int n_logits = 0, n_argmax = 0;
    for (int i = 0; i < batch->n_rows; i++) {
        n_logits += batch->rows[i].want == EA_WANT_LOGITS;
        n_argmax += batch->rows[i].want == EA_WANT_ARGMAX;
    }
    EA_ASSERT(n_logits + n_argmax <= d->base.info.max_logit_rows);
    d->n_logit_rows = n_logits;
    d->argmax_slot0 = (n_logits + 3) / 4 * 4;
    d->n_slots = n_argmax ? d->argmax_slot0 + n_argmax : n_logits;
    for (int i = n_logits; i < d->argmax_slot0 && i < d->n_slots; i++)
        d->slot_row[i] = -1;
    int logit_slot = 0, argmax_slot = d->argmax_slot0;
    d->needed_row0 = d->needed_row1 = 0;
    for (int i = 0; i < batch->n_rows; i++) {
        ea_row *row = &batch->rows[i];
        if (row->want != EA_WANT_NONE) {
            if (d->needed_row1 == 0)
                d->needed_row0 = i / 4 * 4;
            d->needed_row1 = i + 1;
        }
        row->argmax = -1;
        row->logits = NULL;
        if (row->want == EA_WANT_LOGITS) {
            row->logits = d->logits + (size_t)logit_slot * (size_t)d->plan->n_vocab;
            d->slot_row[logit_slot++] = i;
        } else if (row->want == EA_WANT_ARGMAX) {
            d->slot_row[argmax_slot++] = i;
        }
    }
    for (int w = 0; w < d->n_workers; w++)
        for (int s = 0; s < d->n_slots; s++)
            d->workers[w].best[s] = (ea_cpu_best){-INFINITY, INT32_MAX};
}

/* Largest logit over what all workers have seen, the lowest token among equals: the same whoever
 * computed which tile. */
static void merge_best(ea_cpu_device *d)
{
    for (int s = 0; s < d->n_slots; s++) {
        if (d->slot_row[s] < 0)
            continue;
        ea_cpu_best best = d->workers[0].best[s];
        for (int w = 1; w < d->n_workers; w++) {
            ea_cpu_best other = d->workers[w].best[s];
            if (other.value > best.value || (other.value == best.value && other.token < best.token))
                best = other;
        }
        ea_row *row = &d->rows[d->slot_row[s]];
        row->argmax = best.token == INT32_MAX ? ea_cpu_first_allowed(d, row) : best.token;
    }
}

static ea_status step(ea_device *dev, ea_batch *batch, ea_error *err)
{
    ea_cpu_device *d = (ea_cpu_device *)dev;
    EA_ASSERT(batch->n_rows >= 0 && batch->n_rows <= dev->info.max_rows);
    if (batch->n_rows == 0)
        return EA_OK;
    for (int i = 0; i < batch->n_rows; i++) {
        EA_TRY(check_row(&batch->rows[i], i, err));
        assert_row(d, batch, i);
    }
    d->rows = batch->rows;
    d->seqs = batch->seqs;
    d->n_rows = batch->n_rows;
    d->n_steps++;
    ea_huge_join_give_way(d->weights->join);
    make_spans(d, batch);
    for (int i = 0; i < d->plan->n_groups; i++)
        ea_cpu_attn_plan_step(d, i);
    make_slots(d, batch);
    ea_cpu_run(d);
    merge_best(d);
    return EA_OK;
}

static void copy_page(ea_device *dev, int32_t dst, int32_t src, int n_pos)
{
    ea_cpu_device *d = (ea_cpu_device *)dev;
    EA_ASSERT(dst >= 0 && dst < dev->info.n_pages && src >= 0 && src < dev->info.n_pages);
    EA_ASSERT(n_pos >= 0 && n_pos <= EA_PAGE_TOKENS);
    /* Whole: positions past n_pos may hold anything, and K lies in groups of 16 positions. */
    if (dst != src && n_pos > 0)
        memcpy(d->kv + (size_t)dst * dev->info.page_bytes,
               d->kv + (size_t)src * dev->info.page_bytes, dev->info.page_bytes);
}

static const ea_device_ops cpu_ops = {step, copy_page, destroy};

ea_status ea_cpu_device_create(const ea_cpu_weights *weights, const ea_cpu_device_params *params,
                               ea_device **out, ea_error *err)
{
    EA_TRY(check_params(params, err));
    EA_TRY(check_kv_type(weights->plan, params->kv_type, err));
    ea_cpu_device *d = ea_calloc(1, sizeof *d);
    if (!d)
        return ea_fail(err, EA_ENOMEM, "out of memory: cpu device");
    ea_status status;
    d->base.ops = &cpu_ops;
    d->weights = weights;
    d->plan = weights->plan;
    EA_TRY_GOTO(ea_pool_create(params->n_threads, &d->pool, err));
    d->n_workers = params->n_threads;
    if (params->bind)
        ea_pool_bind(d->pool);
    d->kv_type = params->kv_type;
    d->base.info = (ea_device_info){.name = "cpu",
                                    .n_vocab = d->plan->n_vocab,
                                    .n_embd = d->plan->n_embd,
                                    .page_tokens = EA_PAGE_TOKENS,
                                    .n_pages = params->n_pages,
                                    .page_bytes = ea_cpu_page_bytes(d->plan, d->kv_type),
                                    .max_rows = params->max_rows,
                                    .max_logit_rows = params->max_logit_rows,
                                    .n_threads = params->n_threads};
    if (!alloc_tables(d)) {
        status = ea_fail(err, EA_ENOMEM, "out of memory: cpu device");
        goto fail;
    }
    EA_TRY_GOTO(scan_ops(d, err));
    if (!ea_cpu_list_stretches(d)) {
        status = ea_fail(err, EA_ENOMEM, "out of memory: cpu device");
        goto fail;
    }
    lay_out_groups(d);
    EA_TRY_GOTO(alloc_memory(d, err));
    *out = &d->base;
    return EA_OK;
fail:
    destroy(&d->base);
    return status;
}
