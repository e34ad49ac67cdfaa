/* weights.c: a plan's tensors in the form the kernels read. Everything is copied: matrices packed
 * tile by tile, embedding rows as they are, vectors as floats; an embedding that is also a matrix
 * of the plan (tied weights) is not kept twice, its rows are unpacked where they are needed.
 *
 * Loading. All tensors' work is cut into items of about ITEM_BYTES, in the order of the file, which
 * all workers claim from one counter: no tensor waits for another. A worker reads a slab of rows
 * from the file (not from a mapping: what was read before is never in our resident memory, and a
 * file that is cut short is an error), packs it while it is in its cache, and asks the system for
 * what will be wanted READ_AHEAD items later. Items are as large as huge pages, so that two workers
 * seldom meet in clearing one. Where huge pages turn out to be dear (huge.h), the rest is loaded
 * into small ones, which are put together in the background: a first token after 0.5 s and full
 * speed some seconds later rather than both after 3 s. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "device/cpu/internal.h"
#include "kernel/unpack.h"

enum {
    MIN_CTX = 256, /* the smallest KV that is worth loading a model for: tokens of a timeline */
    ITEM_BYTES = 2 << 20,
    SLAB_BYTES = 256 << 10, /* fits a level-2 cache together with what is packed from it */
    READ_AHEAD = 32,        /* items: 64 MiB */
    DEAR_PAGES = 3,         /* so many huge pages are dear before we believe it */
};

static size_t align64(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* ---- geometry ---- */

/* The matrix of the plan that is made of the same tensor, or NULL. */
static const ea_matrix *matrix_of(const ea_cpu_weights *w, const ea_gguf_tensor *src)
{
    for (int i = 0; i < w->plan->n_tensors; i++)
        if (w->plan->tensors[i].role == EA_ROLE_MATRIX && w->plan->tensors[i].src == src)
            return &w->tensors[i].matrix;
    return NULL;
}

/* Fill in geometry; *n_bytes grows by what the tensor needs. */
static ea_status measure(const ea_cpu_weights *w, const ea_plan_tensor *t, ea_cpu_tensor *out,
                         size_t *n_bytes, ea_error *err)
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
        out->rows_of = matrix_of(w, t->src);
        if (!out->rows_of && __builtin_mul_overflow((size_t)t->n, out->row_bytes, &need))
            need = SIZE_MAX;
        break;
    }
    if (need > SIZE_MAX - 63 || __builtin_add_overflow(*n_bytes, align64(need), n_bytes))
        return ea_fail(err, EA_ENOMEM, "weights: more bytes than this machine can address");
    return EA_OK;
}

static ea_status check_memory(const ea_plan *plan, size_t n_bytes, ea_error *err)
{
    size_t kv_bytes = ea_cpu_page_bytes(plan, EA_KV_F16) * (MIN_CTX / EA_PAGE_TOKENS);
    uint64_t have = ea_memory_available();
    if (have == 0)
        return EA_OK;
    have += ea_gguf_taken_bytes(plan->gguf); /* given back while we fill ours */
    if (n_bytes <= have && kv_bytes <= have - n_bytes)
        return EA_OK;
    double mib = 1024.0 * 1024.0;
    return ea_fail(err, EA_ENOMEM,
                   "%s: needs %.0f MiB of memory (weights %.0f MiB, KV of the smallest context of "
                   "%d tokens %.0f MiB), %.0f MiB are available",
                   ea_gguf_path(plan->gguf), ((double)n_bytes + (double)kv_bytes) / mib,
                   (double)n_bytes / mib, MIN_CTX, (double)kv_bytes / mib, (double)have / mib);
}

/* ---- the work ---- */

/* One tensor: n units, each of which becomes unit_bytes of ours. Unit: 16 rows of the file and a
 * tile, or one row, or a whole vector. */
typedef struct job {
    const ea_plan_tensor *t;
    const ea_matrix *matrix; /* MATRIX */
    uint8_t *dst;
    int n, per_item;
    int item0, n_items;
    size_t unit_src, unit_bytes; /* bytes of a unit in the file (the last may be short) and here */
    bool shared;                 /* another job reads the same tensor */
} job;

typedef struct loading {
    ea_cpu_weights *w;
    const ea_cpu_weights_params *params;
    job *jobs; /* in the order of the file */
    int n_jobs, n_items;
    uint8_t *slabs; /* one a worker */
    size_t slab_bytes;
    atomic_size_t n_done; /* bytes of ours */
    atomic_int n_dear;    /* huge pages that took long */
    atomic_bool stop;     /* relaxed: only saves work; results are read after the run */
    ea_status status;     /* of what stopped it first; its worker owns both until the run ends */
    ea_error err;
    ea_status aside_status;
    ea_error aside_err;
} loading;

static job make_job(const ea_plan_tensor *t, ea_cpu_tensor *out, uint8_t *dst)
{
    job j = {.t = t, .dst = dst};
    switch (t->role) {
    case EA_ROLE_MATRIX:
        out->matrix.data = dst;
        j.matrix = &out->matrix;
        j.n = out->matrix.n_tiles;
        j.unit_src = EA_TILE_N * ea_dtype_row_bytes(t->src->type, t->k);
        j.unit_bytes = out->matrix.tile_bytes;
        break;
    case EA_ROLE_ROWS:
        out->rows = dst;
        j.n = t->n;
        j.unit_src = j.unit_bytes = out->row_bytes;
        break;
    case EA_ROLE_VECTOR:
        out->vec = (float *)dst;
        j.n = 1;
        j.unit_src = (size_t)t->src->n_bytes;
        j.unit_bytes = (size_t)t->k * sizeof(float);
        break;
    }
    j.per_item = (int)EA_MIN(EA_MAX(ITEM_BYTES / j.unit_bytes, (size_t)1), (size_t)j.n);
    j.n_items = (j.n - 1) / j.per_item + 1;
    return j;
}

static int compare_jobs(const void *a, const void *b)
{
    const ea_gguf_tensor *x = ((const job *)a)->t->src, *y = ((const job *)b)->t->src;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->data < y->data ? -1 : x->data > y->data;
}

/* All jobs, and how much of the file one slab takes. */
static void make_jobs(loading *l)
{
    const ea_plan *plan = l->w->plan;
    uint8_t *mem = l->w->data;
    for (int i = 0; i < plan->n_tensors; i++) {
        ea_cpu_tensor *t = &l->w->tensors[i];
        if (t->rows_of)
            continue;
        job j = make_job(&plan->tensors[i], t, mem);
        mem += align64((size_t)j.n * j.unit_bytes);
        l->slab_bytes = EA_MAX(l->slab_bytes, j.unit_src);
        l->jobs[l->n_jobs++] = j;
    }
    EA_ASSERT((size_t)(mem - l->w->data) == l->w->n_bytes);
    qsort(l->jobs, (size_t)l->n_jobs, sizeof *l->jobs, compare_jobs);
    for (int i = 0; i < l->n_jobs; i++) {
        l->jobs[i].item0 = l->n_items;
        l->n_items += l->jobs[i].n_items;
        if (i && l->jobs[i].t->src == l->jobs[i - 1].t->src)
            l->jobs[i].shared = l->jobs[i - 1].shared = true;
    }
}

/* The job of an item: the last one that begins at or before it. */
static const job *find_job(const loading *l, int item)
{
    int low = 0, high = l->n_jobs;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (l->jobs[middle].item0 <= item)
            low = middle;
        else
            high = middle;
    }
    return &l->jobs[low];
}

/* Bytes from unit `from` on to before unit `to` in the file: the last tile may be of fewer rows. */
static size_t src_bytes(const job *j, int from, int to)
{
    uint64_t end = EA_MIN((uint64_t)to * j->unit_src, j->t->src->n_bytes);
    return (size_t)(end - (uint64_t)from * j->unit_src);
}

static void put_units(const job *j, int from, int to, const uint8_t *src)
{
    uint8_t *dst = j->dst + (size_t)from * j->unit_bytes;
    switch (j->t->role) {
    case EA_ROLE_MATRIX: {
        ea_matrix part = *j->matrix; /* its rows begin at src */
        part.data = dst;
        part.n -= from * EA_TILE_N;
        part.n_tiles -= from;
        for (int i = from; i < to; i++)
            ea_matrix_pack_tile(&part, i - from, src);
        break;
    }
    case EA_ROLE_ROWS:
        if (src != dst)
            memcpy(dst, src, src_bytes(j, from, to));
        break;
    case EA_ROLE_VECTOR:
        ea_dtype_find(j->t->src->type)->dequantise(src, (float *)dst, j->t->k);
        break;
    }
}

/* Touch the huge pages that begin in what we are about to write. */
static void touch_huge_pages(loading *l, uint8_t *dst, size_t n)
{
    uint8_t *end = dst + n;
    dst += (EA_HUGE_BYTES - (uintptr_t)dst % EA_HUGE_BYTES) % EA_HUGE_BYTES;
    for (; dst < end && atomic_load_explicit(&l->n_dear, memory_order_relaxed) < DEAR_PAGES;
         dst += EA_HUGE_BYTES)
        if (ea_huge_touch_is_dear(dst) &&
            atomic_fetch_add_explicit(&l->n_dear, 1, memory_order_relaxed) == DEAR_PAGES - 1)
            ea_huge_refuse(l->w->data, l->w->n_bytes);
}

static ea_status fill_item(loading *l, const job *j, int item, uint8_t *slab, ea_error *err)
{
    const ea_gguf *g = l->w->plan->gguf;
    int first = (item - j->item0) * j->per_item, end = EA_MIN(first + j->per_item, j->n);
    int step = EA_MAX((int)(l->slab_bytes / j->unit_src), 1);
    touch_huge_pages(l, j->dst + (size_t)first * j->unit_bytes,
                     (size_t)(end - first) * j->unit_bytes);
    for (int from = first; from < end; from += step) {
        int to = EA_MIN(from + step, end);
        size_t offset = (size_t)from * j->unit_src, n = src_bytes(j, from, to);
        const uint8_t *src;
        /* Rows are read to where they belong. */
        uint8_t *buf = j->t->role == EA_ROLE_ROWS ? j->dst + offset : slab;
        EA_TRY(ea_gguf_tensor_read(g, j->t->src, offset, n, buf, &src, err));
        put_units(j, from, to, src);
    }
    if (!j->shared)
        ea_gguf_tensor_release(g, j->t->src, (size_t)first * j->unit_src, src_bytes(j, first, end));
    atomic_fetch_add_explicit(&l->n_done, (size_t)(end - first) * j->unit_bytes,
                              memory_order_relaxed);
    return EA_OK;
}

static void prefetch_item(const loading *l, int item)
{
    if (item >= l->n_items)
        return;
    const job *j = find_job(l, item);
    int first = (item - j->item0) * j->per_item, end = EA_MIN(first + j->per_item, j->n);
    ea_gguf_tensor_prefetch(l->w->plan->gguf, j->t->src, (size_t)first * j->unit_src,
                            src_bytes(j, first, end));
}

/* The first to stop the run says why. */
static void stop(loading *l, ea_status status, const ea_error *err)
{
    if (!atomic_exchange_explicit(&l->stop, true, memory_order_relaxed)) {
        l->status = status;
        l->err = *err;
    }
}

static void report(loading *l)
{
    double done = (double)atomic_load_explicit(&l->n_done, memory_order_relaxed);
    ea_error err = {0};
    if (l->params->progress &&
        !l->params->progress(l->params->progress_user,
                             EA_MIN(done / (double)EA_MAX(l->w->n_bytes, (size_t)1), 1.0)))
        stop(
            l,
            ea_fail(&err, EA_ECANCELLED, "%s: loading was stopped", ea_gguf_path(l->w->plan->gguf)),
            &err);
}

static void do_aside(loading *l)
{
    l->aside_status = l->params->aside(l->params->aside_user, &l->aside_err);
    if (l->aside_status != EA_OK)
        stop(l, l->aside_status, &l->aside_err);
}

/* The work aside is the first piece, where there is any; then come the items. */
static int fill_pieces(void *arg, int stretch)
{
    const loading *l = arg;
    (void)stretch;
    return (l->params->aside != NULL) + l->n_items;
}

static void fill_piece(const ea_worker *worker, void *arg, int stretch, int piece)
{
    loading *l = arg;
    int item = piece - (l->params->aside != NULL);
    (void)stretch;
    if (atomic_load_explicit(&l->stop, memory_order_relaxed))
        return;
    if (item < 0) {
        do_aside(l);
        return;
    }
    ea_error err = {0};
    prefetch_item(l, item + READ_AHEAD);
    ea_status status = fill_item(l, find_job(l, item), item,
                                 l->slabs + (size_t)worker->index * l->slab_bytes, &err);
    if (status != EA_OK)
        stop(l, status, &err);
    else if (worker->index == 0)
        report(l);
}

/* Run the jobs. The failure of the work aside is told first: whether another came before it is a
 * matter of timing. */
static ea_status run(loading *l, ea_pool *pool, ea_error *err)
{
    for (int i = 0; i < READ_AHEAD; i++)
        prefetch_item(l, i);
    ea_pool_run(pool, &(ea_pool_work){1, fill_pieces, fill_piece, l});
    if (l->aside_status == EA_OK && !atomic_load_explicit(&l->stop, memory_order_relaxed))
        report(l); /* the last item may have been another worker's */
    if (l->aside_status != EA_OK)
        return ea_fail(err, l->aside_status, "%s", l->aside_err.text);
    if (atomic_load_explicit(&l->stop, memory_order_relaxed))
        return ea_fail(err, l->status, "%s", l->err.text);
    return EA_OK;
}

static ea_status fill(ea_cpu_weights *w, const ea_cpu_weights_params *params, ea_error *err)
{
    loading l = {.w = w, .params = params, .slab_bytes = SLAB_BYTES};
    ea_pool *pool = NULL;
    ea_status status;
    size_t n_slabs = 0;
    EA_TRY_GOTO(ea_pool_create(params->n_threads, &pool, err));
    l.jobs = ea_calloc((size_t)w->plan->n_tensors, sizeof *l.jobs);
    if (!l.jobs) {
        status = ea_fail(err, EA_ENOMEM, "out of memory: table of %d tensors", w->plan->n_tensors);
        goto fail;
    }
    make_jobs(&l);
    l.slab_bytes = align64(l.slab_bytes);
    n_slabs = (size_t)params->n_threads * l.slab_bytes;
    l.slabs = ea_pages_alloc(n_slabs);
    if (!l.slabs) {
        status = ea_fail(err, EA_ENOMEM, "out of memory: %zu bytes to read into", n_slabs);
        goto fail;
    }
    status = run(&l, pool, err);
    if (status == EA_OK && atomic_load_explicit(&l.n_dear, memory_order_relaxed) >= DEAR_PAGES)
        w->join = ea_huge_join_begin(w->data, w->n_bytes);
fail:
    ea_pages_free(l.slabs, n_slabs);
    ea_free(l.jobs);
    ea_pool_destroy(pool);
    return status;
}

/* ---- the object ---- */

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
        status = measure(w, &plan->tensors[i], &w->tensors[i], &n_bytes, err);
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

void ea_cpu_weights_settle(const ea_cpu_weights *w)
{
    ea_huge_join_wait(w->join);
}

void ea_cpu_weights_destroy(ea_cpu_weights *w)
{
    if (!w)
        return;
    ea_huge_join_end(w->join);
    ea_pages_free(w->data, w->n_bytes);
    ea_free(w->tensors);
    ea_free(w);
}

size_t ea_cpu_weights_bytes(const ea_cpu_weights *w)
{
    return w->n_bytes;
}

void ea_cpu_tensor_row(const ea_cpu_tensor *t, int i, int k, float *out)
{
    if (t->rows)
        t->type->dequantise(t->rows + (size_t)i * t->row_bytes, out, k);
    else
        ea_matrix_row(t->rows_of, i, out);
}
