/* probe.c: ea_probe of the public header: what the machine's memory and arithmetic can do, and what
 * the products make of it. One caller thread; the pool's workers run inside the measuring functions
 * only. The memory holds as many copies of the weights as fit, taken in turn, so that each run
 * finds its own outside the caches. */
#include <math.h>
#include <string.h>

#include "base/affinity.h"
#include "base/clock.h"
#include "base/huge.h"
#include "base/limits.h"
#include "base/machine.h"
#include "base/mem.h"
#include "base/pool.h"
#include "kernel/peak.h"
#include "kernel/table.h"

enum {
    MAX_ROWS = 512,
    READ_CHUNK = 256 * 1024,
    READ_RUN = 64 << 20,    /* short, so that some run is free of what else the machine does */
    PEAK_PIECE_NS = 200000, /* what a worker claims at a time: long beside the claim */
    MIN_MEMORY = 8 << 20,
    FIRST_TOUCH_NS =
        1000000000, /* memory that a virtual machine's host must fetch is slow to come */
};

struct ea_probe {
    ea_pool *pool;
    uint8_t *memory;
    size_t n_bytes, n_reserved; /* to be used; allocated */
    double seconds;
    int cpu; /* the caller's while it measures; -1: threads are not bound */
    /* The weights that the memory holds now; impl NULL: none. */
    ea_matrix weights;
    int n_copies;
};

void ea_probe_params_default(ea_probe_params *params)
{
    *params = (ea_probe_params){.size = sizeof *params};
}

static size_t default_bytes(void)
{
    ea_machine m;
    ea_machine_read(&m, "");
    uint64_t n = EA_MAX((uint64_t)128 << 20, EA_MIN(2 * m.cache_bytes[2], (uint64_t)1 << 30));
    if (m.memory_available)
        n = EA_MIN(n, m.memory_available / 4);
    return (size_t)EA_MAX(n, (uint64_t)MIN_MEMORY);
}

/* Write every page once. Where that takes too long, what has come by then must do. */
static void touch_memory(ea_probe *p, bool small_pages)
{
    uint64_t start = ea_now_ns();
    size_t at = 0;
    if (small_pages)
        ea_huge_refuse(p->memory, p->n_bytes);
    for (; at < p->n_bytes; at += EA_HUGE_BYTES) {
        if (at >= MIN_MEMORY && ea_now_ns() - start > FIRST_TOUCH_NS)
            break;
        memset(p->memory + at, 1, EA_MIN((size_t)EA_HUGE_BYTES, p->n_bytes - at));
    }
    p->n_bytes = EA_MIN(p->n_bytes, at);
}

/* Each worker on a core of its own, the caller while it measures (best_time); nobody where there
 * are fewer cores than threads. */
static void bind_threads(ea_probe *p)
{
    int cpus[EA_MAX_THREADS];
    p->cpu = -1;
    if (ea_affinity_cores(cpus, EA_MAX_THREADS, NULL) >= ea_pool_size(p->pool) &&
        ea_pool_bind_workers(p->pool, cpus))
        p->cpu = cpus[0];
}

ea_status ea_probe_set_threads(ea_probe *p, int n_threads, ea_error *err)
{
    ea_pool *pool;
    if (n_threads < 0 || n_threads > EA_MAX_THREADS)
        return ea_fail(err, EA_EINVAL, "n_threads: %d is not in 0..%d", n_threads, EA_MAX_THREADS);
    EA_TRY(ea_pool_create(n_threads ? n_threads : ea_cpu_default_threads(), &pool, err));
    ea_pool_destroy(p->pool);
    p->pool = pool;
    bind_threads(p);
    return EA_OK;
}

int ea_probe_threads(const ea_probe *p)
{
    return ea_pool_size(p->pool);
}

ea_status ea_probe_create(const ea_probe_params *params, ea_probe **out, ea_error *err)
{
    ea_status status = EA_OK;
    if (params->size != sizeof *params)
        return ea_fail(err, EA_EINVAL, "ea_probe_params.size: %zu is not %zu", params->size,
                       sizeof *params);
    if (!(params->seconds >= 0) || params->seconds > 60)
        return ea_fail(err, EA_EINVAL, "seconds: %g is not in 0..60", params->seconds);
    if (params->n_bytes && params->n_bytes < MIN_MEMORY)
        return ea_fail(err, EA_EINVAL, "n_bytes: %zu is less than %d", params->n_bytes,
                       (int)MIN_MEMORY);
    ea_probe *p = ea_calloc(1, sizeof *p);
    if (!p)
        return ea_fail(err, EA_ENOMEM, "out of memory");
    p->seconds = params->seconds > 0 ? params->seconds : 0.1;
    p->n_bytes = params->n_bytes ? params->n_bytes : default_bytes();
    p->n_bytes = p->n_bytes / READ_CHUNK * READ_CHUNK;
    p->n_reserved = p->n_bytes;
    p->memory = ea_pages_alloc(p->n_reserved);
    if (!p->memory) {
        status = ea_fail(err, EA_ENOMEM, "no memory of %zu bytes to measure with", p->n_reserved);
        goto fail;
    }
    EA_TRY_GOTO(ea_probe_set_threads(p, params->n_threads, err));
    touch_memory(p, params->small_pages);
    *out = p;
    return EA_OK;
fail:
    ea_probe_destroy(p);
    return status;
}

void ea_probe_destroy(ea_probe *p)
{
    if (!p)
        return;
    ea_pool_destroy(p->pool);
    ea_pages_free(p->memory, p->n_reserved);
    ea_free(p);
}

/* ---- one measurement ---- */

/* Prepares run `i` of a measurement; its work is then `n_items` calls of fn. */
typedef struct job {
    ea_item_fn fn;
    int n_items;
    const ea_probe *probe;
    ea_read_fn *read;
    const uint8_t *data;
    ea_peak_fn *peak;
    int rounds;
    ea_matmul_args args; /* all tiles */
    int step;            /* tiles of an item */
} job;

/* Fastest of the runs that fit into the time, in seconds; at least two. next (may be NULL) is
 * called before each. */
static double best_time(ea_probe *p, job *j, void (*next)(job *j, int run))
{
    double best = INFINITY;
    cpu_set_t home;
    bool bound = p->cpu >= 0 && ea_affinity_bind(p->cpu, &home);
    uint64_t start = ea_now_ns();
    for (int i = 0; i < 2 || (double)(ea_now_ns() - start) < p->seconds * 1e9; i++) {
        if (next)
            next(j, i);
        uint64_t t0 = ea_now_ns();
        ea_pool_for(p->pool, j->n_items, 1, j->fn, j);
        best = fmin(best, (double)(ea_now_ns() - t0) * 1e-9);
    }
    if (bound)
        ea_affinity_restore(&home);
    return fmax(best, 1e-9);
}

/* ---- limits ---- */

static void read_item(int item, void *arg)
{
    const job *j = arg;
    j->read(j->data + (size_t)item * READ_CHUNK, READ_CHUNK);
}

/* Go on in the memory where the run before ended, or begin again. */
static void next_stretch(job *j, int run)
{
    size_t n = (size_t)j->n_items * READ_CHUNK;
    j->data = j->probe->memory + (size_t)run % (j->probe->n_bytes / n) * n;
}

/* Which loop reads fastest depends on the machine's own prefetcher: the best of all. */
double ea_probe_bandwidth(ea_probe *p)
{
    size_t n;
    double best = 0;
    const ea_peak_loops *loops = ea_peak_loops_all(&n);
    job j = {.fn = read_item,
             .probe = p,
             .n_items = (int)(EA_MIN(p->n_bytes, (size_t)READ_RUN) / READ_CHUNK)};
    for (size_t i = 0; i < n; i++)
        if (loops[i].read && ea_cpu_has(loops[i].level)) {
            j.read = loops[i].read;
            best = fmax(best, (double)j.n_items * READ_CHUNK / best_time(p, &j, next_stretch));
        }
    return best;
}

static void peak_item(int item, void *arg)
{
    const job *j = arg;
    (void)item;
    (void)j->peak(j->rounds);
}

/* Multiply-adds a second of one loop on all threads. */
static double measure_peak(ea_probe *p, ea_peak_fn *peak)
{
    job j = {.fn = peak_item, .peak = peak, .rounds = 64, .n_items = 4 * ea_pool_size(p->pool)};
    for (;;) {
        uint64_t start = ea_now_ns();
        (void)peak(j.rounds);
        if (ea_now_ns() - start >= PEAK_PIECE_NS || j.rounds > INT32_MAX / 2)
            break;
        j.rounds *= 2;
    }
    double macs = peak(j.rounds) * j.n_items;
    return macs / best_time(p, &j, NULL);
}

/* EA_CPU_N_LEVELS where `name` is NULL: all that are usable. */
static ea_status find_level(const char *name, ea_cpu_level *out, ea_error *err)
{
    int level = EA_CPU_N_LEVELS;
    if (name)
        for (level = 0; level < EA_CPU_N_LEVELS; level++)
            if (strcmp(name, ea_cpu_level_name((ea_cpu_level)level)) == 0)
                break;
    if (name && level == EA_CPU_N_LEVELS)
        return ea_fail(err, EA_EINVAL, "level: '%.32s' is none", name);
    if (name && !ea_cpu_has((ea_cpu_level)level))
        return ea_fail(err, EA_EUNSUPPORTED, "level: this machine has no %s, or EA_CPU masks it",
                       name);
    *out = (ea_cpu_level)level;
    return EA_OK;
}

ea_status ea_probe_peak(ea_probe *p, ea_peak_kind kind, const char *level, double *out,
                        ea_error *err)
{
    ea_cpu_level top;
    size_t n;
    double best = 0;
    if (kind != EA_PEAK_INT8 && kind != EA_PEAK_F32)
        return ea_fail(err, EA_EINVAL, "kind: %d is none", (int)kind);
    EA_TRY(find_level(level, &top, err));
    const ea_peak_loops *loops = ea_peak_loops_all(&n);
    /* The highest is the fastest: but for avx2vnni, which avx512 does not contain, so try it. */
    for (size_t i = n, tried = 0; i-- > 0 && tried < 2;) {
        ea_peak_fn *peak = kind == EA_PEAK_INT8 ? loops[i].int8 : loops[i].f32;
        if (!peak || loops[i].level > top || !ea_cpu_has(loops[i].level))
            continue;
        best = fmax(best, measure_peak(p, peak));
        tried++;
    }
    *out = best;
    return EA_OK;
}

/* ---- products ---- */

/* The kernel asked for; *level is its level. NULL if there is none that this machine can run. */
static const ea_matmul_impl *find_kernel(ea_dtype type, ea_cpu_level wanted, ea_cpu_level *level)
{
    size_t n;
    const ea_kernel_level *levels = ea_kernel_levels(&n);
    for (size_t i = n; i-- > 0;) {
        const ea_matmul_impl *impl = ea_kernel_matmul(levels[i].table, type);
        *level = levels[i].level;
        if (impl && ea_cpu_has(*level) && (wanted == EA_CPU_N_LEVELS || wanted == *level))
            return impl;
    }
    return NULL;
}

static void copy_tile(int tile, void *arg)
{
    const ea_probe *p = arg;
    size_t n = p->weights.tile_bytes;
    memcpy(p->memory + ((size_t)tile + 1) * n, p->memory, n);
}

/* Random weights: one tile is quantised and packed, the others are copies, which no kernel can
 * tell. */
static ea_status fill_weights(ea_probe *p, const ea_matmul_impl *impl, const ea_product *product,
                              ea_error *err)
{
    ea_matrix m;
    size_t n_bytes;
    ea_matrix_init_impl(&m, impl, product->n, product->k, &n_bytes);
    if (p->weights.impl == impl && p->weights.n == m.n && p->weights.k == m.k)
        return EA_OK;
    if (n_bytes > p->n_bytes)
        return ea_fail(err, EA_ENOMEM, "%zu bytes of weights are more than the %zu to measure with",
                       n_bytes, p->n_bytes);
    const ea_dtype_info *info = ea_dtype_find((uint32_t)m.type);
    size_t row_bytes = ea_dtype_row_bytes(m.type, m.k);
    float *row = ea_malloc((size_t)m.k * sizeof *row);
    uint8_t *file = ea_malloc(EA_TILE_N * row_bytes);
    ea_status status = row && file ? EA_OK : ea_fail(err, EA_ENOMEM, "out of memory");
    uint64_t s = 1;
    for (int n = 0; n < EA_TILE_N && status == EA_OK; n++) {
        for (int i = 0; i < m.k; i++) {
            s = s * 6364136223846793005u + 1442695040888963407u; /* Knuth's, as in MMIX */
            row[i] = (float)(int32_t)(s >> 32) * 0x1p-36f;
        }
        info->quantise(row, file + (size_t)n * row_bytes, m.k);
    }
    if (status == EA_OK) {
        ea_matrix first = m;
        first.n = EA_TILE_N;
        first.data = p->memory;
        ea_matrix_pack_tile(&first, 0, file);
        p->weights = m;
        p->n_copies = (int)EA_MIN(p->n_bytes / n_bytes, (size_t)INT32_MAX / (size_t)m.n_tiles);
        ea_pool_for(p->pool, p->n_copies * m.n_tiles - 1,
                    EA_MAX(1, (int)(READ_CHUNK / m.tile_bytes)), copy_tile, p);
    }
    ea_free(row);
    ea_free(file);
    return status;
}

static void product_item(int item, void *arg)
{
    const job *j = arg;
    ea_matmul_args args = j->args;
    args.tile0 = item * j->step;
    args.tile1 = EA_MIN(args.tile0 + j->step, j->args.tile1);
    ea_matmul(&args);
}

static void next_copy(job *j, int run)
{
    const ea_probe *p = j->probe;
    ea_matrix *w = (ea_matrix *)j->args.w;
    w->data = p->memory + (size_t)(run % p->n_copies) * (size_t)w->n_tiles * w->tile_bytes;
}

/* A claim of tiles: about what the device asks for. */
static int claim_step(const ea_matrix *w, int n_rows, int n_threads)
{
    int step = n_rows == 1 ? (int)(128 * 1024 / w->tile_bytes) : 16;
    return EA_MAX(1, EA_MIN(step, w->n_tiles / (4 * n_threads)));
}

static ea_status run_product(ea_probe *p, int n_rows, double *seconds, ea_error *err)
{
    ea_matrix w = p->weights;
    unsigned forms = 1u << EA_FORM_Q8 | (w.k % EA_Q8_CHUNK == 0 ? 1u << EA_FORM_Q8K : 0);
    size_t x_bytes = ea_acts_bytes(n_rows, w.k, forms),
           out_bytes = (size_t)n_rows * (size_t)w.n * sizeof(float);
    void *x_memory = ea_pages_alloc(x_bytes);
    float *out = ea_pages_alloc(out_bytes);
    ea_status status = EA_OK;
    if (x_memory && out) {
        ea_acts x;
        ea_acts_init(&x, n_rows, w.k, forms, x_memory);
        for (int r = 0; r < n_rows; r++) {
            for (int i = 0; i < w.k; i++)
                ea_acts_row(&x, r)[i] = (float)((r * 131 + i * 7919) % 1000 - 500) / 500;
            ea_acts_quantise(&x, r);
        }
        job j = {.fn = product_item,
                 .probe = p,
                 .args = {.w = &w,
                          .x = &x,
                          .n_rows = n_rows,
                          .tile1 = w.n_tiles,
                          .out = out,
                          .ld = (size_t)w.n},
                 .step = claim_step(&w, n_rows, ea_pool_size(p->pool))};
        j.n_items = (w.n_tiles + j.step - 1) / j.step;
        *seconds = best_time(p, &j, next_copy);
    } else {
        status = ea_fail(err, EA_ENOMEM, "out of memory: %zu bytes", x_bytes + out_bytes);
    }
    ea_pages_free(x_memory, x_bytes);
    ea_pages_free(out, out_bytes);
    return status;
}

static ea_status check_product(const ea_product *product, const ea_dtype_info *info, ea_error *err)
{
    if (product->n < 1 || product->n > EA_MAX_VOCAB)
        return ea_fail(err, EA_EINVAL, "n: %d is not in 1..%d", product->n, EA_MAX_VOCAB);
    if (product->k < 1 || product->k > EA_MAX_EMBD || product->k % info->block != 0)
        return ea_fail(err, EA_EINVAL, "k: %d is no multiple of %s's block of %d in 1..%d",
                       product->k, info->name, info->block, EA_MAX_EMBD);
    if (product->n_rows < 1 || product->n_rows > MAX_ROWS)
        return ea_fail(err, EA_EINVAL, "n_rows: %d is not in 1..%d", product->n_rows,
                       (int)MAX_ROWS);
    return EA_OK;
}

ea_status ea_probe_product(ea_probe *p, const ea_product *product, ea_product_time *out,
                           ea_error *err)
{
    const ea_dtype_info *info = product->format ? ea_dtype_by_name(product->format) : NULL;
    ea_cpu_level wanted, level;
    if (!info)
        return ea_fail(err, EA_EINVAL, "format: '%.32s' is none",
                       product->format ? product->format : "");
    EA_TRY(find_level(product->level, &wanted, err));
    EA_TRY(check_product(product, info, err));
    const ea_matmul_impl *impl = find_kernel(info->type, wanted, &level);
    if (!impl)
        return ea_fail(err, EA_EUNSUPPORTED, "format: there is no %s product of %s",
                       product->level ? product->level : "usable", info->name);
    EA_TRY(fill_weights(p, impl, product, err));
    double seconds = 0;
    EA_TRY(run_product(p, product->n_rows, &seconds, err));
    *out = (ea_product_time){.level = ea_cpu_level_name(level),
                             .peak = impl->layout->form == EA_FORM_F32 ? EA_PEAK_F32 : EA_PEAK_INT8,
                             .seconds = seconds,
                             .n_bytes = (double)p->weights.n_tiles * (double)p->weights.tile_bytes,
                             .n_macs = (double)product->n * product->k * product->n_rows};
    return EA_OK;
}
