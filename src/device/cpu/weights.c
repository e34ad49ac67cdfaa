/* weights.c: a plan's tensors in the form the kernels read. Matrices are packed tile by tile by all
 * threads; the file's pages are released behind the packer, so that peak memory is one copy. The
 * token embedding is not copied: a step touches a handful of its rows. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "device/cpu/internal.h"

/* The smallest KV that is worth loading a model for: a timeline of this many tokens. */
enum { MIN_CTX = 256 };

static size_t align64(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* Fill in geometry; *n_bytes grows by what the tensor needs, data pointers hold offsets until the
 * memory is there. */
static ea_status measure(const ea_plan_tensor *t, ea_cpu_tensor *out, size_t *n_bytes,
                         ea_error *err)
{
    size_t need = 0;
    switch (t->role) {
    case EA_ROLE_MATRIX: {
        ea_status status = ea_matrix_init(&out->matrix, t->src->type, t->n, t->k, &need, err);
        if (status != EA_OK) {
            ea_error_prefix(err, "tensor %.*s", (int)t->src->name.n, t->src->name.s);
            return status;
        }
        break;
    }
    case EA_ROLE_VECTOR: need = (size_t)t->k * sizeof(float); break;
    case EA_ROLE_ROWS:
        out->type = ea_dtype_find(t->src->type);
        out->row_bytes = ea_dtype_row_bytes(t->src->type, t->k);
        break;
    }
    if (__builtin_add_overflow(*n_bytes, align64(need), n_bytes))
        return ea_fail(err, EA_ENOMEM, "weights: more bytes than this machine can address");
    return EA_OK;
}

static ea_status check_memory(const ea_plan *plan, size_t n_bytes, ea_error *err)
{
    size_t kv_bytes = ea_cpu_page_bytes(plan) * (MIN_CTX / EA_PAGE_TOKENS);
    uint64_t have = ea_memory_available();
    if (have == 0 || (n_bytes <= have && kv_bytes <= have - n_bytes))
        return EA_OK;
    double mib = 1024.0 * 1024.0;
    return ea_fail(err, EA_ENOMEM,
                   "%s: needs %.0f MiB of memory (weights %.0f MiB, KV of the smallest context of "
                   "%d tokens %.0f MiB), %.0f MiB are available",
                   ea_gguf_path(plan->gguf), ((double)n_bytes + (double)kv_bytes) / mib,
                   (double)n_bytes / mib, MIN_CTX, (double)kv_bytes / mib, (double)have / mib);
}

struct pack_job {
    const ea_matrix *matrix;
    const uint8_t *rows;
};

static void pack_item(int tile, void *arg)
{
    const struct pack_job *job = arg;
    ea_matrix_pack_tile(job->matrix, tile, job->rows);
}

static void fill_tensor(const ea_plan *plan, const ea_plan_tensor *t, ea_cpu_tensor *out,
                        uint8_t **mem, ea_pool *pool)
{
    if (t->role == EA_ROLE_ROWS)
        return;
    if (t->role == EA_ROLE_VECTOR) {
        float *vec = (float *)*mem;
        ea_dtype_find(t->src->type)->dequantise(t->src->data, vec, t->k);
        out->vec = vec;
        *mem += align64((size_t)t->k * sizeof(float));
        return;
    }
    ea_matrix *m = &out->matrix;
    m->data = *mem;
    *mem += align64((size_t)m->n_tiles * m->tile_bytes);
    struct pack_job job = {m, t->src->data};
    ea_pool_for(pool, m->n_tiles, 4, pack_item, &job);
    ea_gguf_tensor_release(plan->gguf, t->src);
}

static ea_status fill(ea_cpu_weights *w, const ea_cpu_weights_params *params, ea_error *err)
{
    ea_pool *pool;
    EA_TRY(ea_pool_create(params->n_threads, &pool, err));
    ea_status status = EA_OK;
    uint8_t *mem = w->data;
    for (int i = 0; i < w->plan->n_tensors; i++) {
        fill_tensor(w->plan, &w->plan->tensors[i], &w->tensors[i], &mem, pool);
        double done = (double)(mem - w->data) / (double)EA_MAX(w->n_bytes, (size_t)1);
        if (params->progress && !params->progress(params->progress_user, done)) {
            status =
                ea_fail(err, EA_ECANCELLED, "%s: loading was stopped", ea_gguf_path(w->plan->gguf));
            break;
        }
    }
    EA_ASSERT(status != EA_OK || (size_t)(mem - w->data) == w->n_bytes);
    ea_pool_destroy(pool);
    return status;
}

ea_status ea_cpu_weights_create(const ea_plan *plan, const ea_cpu_weights_params *params,
                                ea_cpu_weights **out, ea_error *err)
{
    ea_cpu_weights *w = ea_calloc(1, sizeof *w);
    ea_status status = EA_ENOMEM;
    if (w) {
        w->plan = plan;
        w->tensors = ea_calloc((size_t)plan->n_tensors, sizeof *w->tensors);
    }
    if (!w || !w->tensors) {
        ea_fail(err, EA_ENOMEM, "out of memory: table of %d tensors", plan->n_tensors);
        goto fail;
    }
    size_t n_bytes = 0;
    for (int i = 0; i < plan->n_tensors; i++) {
        status = measure(&plan->tensors[i], &w->tensors[i], &n_bytes, err);
        if (status != EA_OK) {
            ea_error_prefix(err, "%s", ea_gguf_path(plan->gguf));
            goto fail;
        }
    }
    EA_TRY_GOTO(check_memory(plan, n_bytes, err));
    w->data = ea_pages_alloc(n_bytes);
    if (!w->data) {
        status = ea_fail(err, EA_ENOMEM, "%s: cannot get %zu MiB of memory for the weights",
                         ea_gguf_path(plan->gguf), n_bytes >> 20);
        goto fail;
    }
    w->n_bytes = n_bytes;
    EA_TRY_GOTO(fill(w, params, err));
    *out = w;
    return EA_OK;
fail:
    ea_cpu_weights_destroy(w);
    return status;
}

void ea_cpu_weights_destroy(ea_cpu_weights *w)
{
    if (!w)
        return;
    ea_pages_free(w->data, w->n_bytes);
    ea_free(w->tensors);
    ea_free(w);
}

size_t ea_cpu_weights_bytes(const ea_cpu_weights *w)
{
    return w->n_bytes;
}
