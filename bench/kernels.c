/* kernels.c: speed of the matrix products, per weight format, instruction set and thread count,
 * beside the memory bandwidth that the same threads reach by plain reading. One row is bound by
 * memory and is given in GB/s of weights; 8, 32 and 256 rows are bound by arithmetic and are given
 * in TMAC/s (10^12 multiply-adds a second). Formats come from kernel_slots.def.
 *
 *   bench_kernels [-f FORMAT] [-l LEVEL] [-t THREADS] [-m MIB] [-k INPUTS] [-s SECONDS]
 *
 * FORMAT and LEVEL by name (default: all), THREADS a number (default: 1 and all cores), MIB the
 * weights of the one-row case (default 512: beyond the caches), SECONDS a measurement. Single
 * thread but for the pool's workers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "kernel/table.h"

enum { MAX_ROWS = 256 };

typedef struct options {
    const char *format, *level;
    int threads, mib, k;
    double seconds;
} options;

/* What one measurement runs, again and again. */
typedef struct job {
    ea_matmul_args args; /* all tiles */
    int step;            /* tiles claimed at a time */
    const uint8_t *data; /* plain reading */
    size_t n_bytes;
    uint64_t sink[64][8]; /* by worker, one line each */
} job;

enum { READ_CHUNK = 256 * 1024 };

static void matmul_worker(const ea_worker *worker, void *arg)
{
    const job *j = arg;
    ea_matmul_args args = j->args;
    int n = j->args.tile1, first;
    while ((first = ea_pool_claim(worker, j->step)) < n) {
        args.tile0 = first;
        args.tile1 = EA_MIN(first + j->step, n);
        ea_matmul(&args);
    }
}

static void read_worker(const ea_worker *worker, void *arg)
{
    job *j = arg;
    int n = (int)(j->n_bytes / READ_CHUNK), i;
    uint64_t sum[8] = {0};
    while ((i = ea_pool_claim(worker, 1)) < n) {
        const uint64_t *p = (const uint64_t *)(const void *)(j->data + (size_t)i * READ_CHUNK);
        for (int k = 0; k < READ_CHUNK / 8; k += 8)
            for (int l = 0; l < 8; l++)
                sum[l] += p[k + l];
    }
    for (int l = 0; l < 8; l++)
        j->sink[worker->index % 64][l] += sum[l];
}

/* Fastest of the runs that fit into the time, in seconds; at least three. */
static double best_time(ea_pool *pool, ea_worker_fn fn, job *j, double seconds)
{
    double best = 1e9;
    uint64_t start = ea_now_ns();
    for (int i = 0; i < 3 || (double)(ea_now_ns() - start) < seconds * 1e9; i++) {
        uint64_t t0 = ea_now_ns();
        ea_pool_run(pool, fn, j);
        double t = (double)(ea_now_ns() - t0) * 1e-9;
        best = EA_MIN(best, t);
    }
    return best;
}

static void *must(void *p)
{
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}

/* Random weights: one tile is quantised and packed, the others are copies, which no kernel can
 * tell. */
static void fill_matrix(ea_matrix *m)
{
    const ea_dtype_info *info = ea_dtype_find((uint32_t)m->type);
    size_t row_bytes = ea_dtype_row_bytes(m->type, m->k);
    float *row = must(ea_malloc((size_t)m->k * sizeof *row));
    uint8_t *file = must(ea_malloc(EA_TILE_N * row_bytes));
    uint64_t s = 1;
    for (int n = 0; n < EA_TILE_N; n++) {
        for (int i = 0; i < m->k; i++) {
            s = s * 6364136223846793005ull + 1442695040888963407ull;
            row[i] = (float)(int32_t)(s >> 32) * 0x1p-36f;
        }
        info->quantise(row, file + (size_t)n * row_bytes, m->k);
    }
    ea_matrix_pack_tile(m, 0, file);
    for (int t = 1; t < m->n_tiles; t++)
        memcpy(m->data + (size_t)t * m->tile_bytes, m->data, m->tile_bytes);
    ea_free(row);
    ea_free(file);
}

/* A claim of tiles: about what the device asks for. */
static int claim_step(const ea_matrix *w, int n_tiles, int n_rows, int n_threads)
{
    int step = n_rows == 1 ? (int)(128 * 1024 / w->tile_bytes) : 16;
    return EA_MAX(1, EA_MIN(step, n_tiles / (4 * n_threads)));
}

static void bench_format(const options *o, ea_pool *pool, const ea_kernel_level *level,
                         const ea_matmul_impl *impl, const ea_acts *x, uint8_t *memory)
{
    static const int row_counts[] = {8, 32, 256};
    const ea_dtype_info *info = ea_dtype_find((uint32_t)impl->layout->type);
    ea_matrix w;
    size_t n_bytes;
    ea_matrix_init_impl(&w, impl, EA_TILE_N, o->k, &n_bytes);
    int n_tiles = (int)(((size_t)o->mib << 20) / n_bytes);
    ea_matrix_init_impl(&w, impl, n_tiles * EA_TILE_N, o->k, &n_bytes);
    w.data = memory;
    fill_matrix(&w);
    for (int r = 0; r < MAX_ROWS; r++)
        ea_acts_quantise(x, r);

    float *out = must(ea_malloc((size_t)MAX_ROWS * (size_t)w.n * sizeof *out));
    job j = {
        .args = {.w = &w, .x = x, .n_rows = 1, .tile1 = n_tiles, .out = out, .ld = (size_t)w.n}};
    j.step = claim_step(&w, n_tiles, 1, ea_pool_size(pool));
    double t = best_time(pool, matmul_worker, &j, o->seconds);
    printf("%-7s %-11s %2d  %8.2f", info->name, ea_cpu_level_name(level->level), ea_pool_size(pool),
           (double)n_bytes / t * 1e-9);
    for (size_t i = 0; i < EA_ARRAY_LEN(row_counts); i++) {
        j.args.n_rows = row_counts[i];
        j.args.tile1 = EA_MIN(n_tiles, 256); /* 4,096 outputs, as a real matrix has */
        j.step = claim_step(&w, j.args.tile1, row_counts[i], ea_pool_size(pool));
        t = best_time(pool, matmul_worker, &j, o->seconds);
        double macs = (double)j.args.tile1 * EA_TILE_N * o->k * row_counts[i];
        printf("  %8.4f", macs / t * 1e-12);
    }
    printf("\n");
    fflush(stdout);
    ea_free(out);
}

static void bench_threads(const options *o, int n_threads, const ea_acts *x, uint8_t *memory)
{
    ea_pool *pool;
    ea_error err = {0};
    if (ea_pool_create(n_threads, &pool, &err) != EA_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    job *j = must(ea_calloc(1, sizeof *j));
    j->data = memory;
    j->n_bytes = (size_t)o->mib << 20;
    double t = best_time(pool, read_worker, j, o->seconds);
    printf("memory read: %d threads %.2f GB/s\n", n_threads, (double)j->n_bytes / t * 1e-9);
    ea_free(j);
    printf("format  level      thr  GB/s r=1  TMAC r=8  TMAC r=32  TMAC r=256\n");

    size_t n_levels;
    const ea_kernel_level *levels = ea_kernel_levels(&n_levels);
    static const ea_dtype types[] = {
#define EA_SLOT(name, ret, args, names)
#define EA_MATMUL(name, dtype) EA_DTYPE_##dtype,
#include "kernel/kernel_slots.def"
    };
    for (size_t i = 0; i < EA_ARRAY_LEN(types); i++)
        for (size_t l = 0; l < n_levels; l++) {
            const ea_matmul_impl *impl = ea_kernel_matmul(levels[l].table, types[i]);
            const char *name = ea_dtype_find((uint32_t)types[i])->name;
            bool wanted = o->level ? strcmp(o->level, ea_cpu_level_name(levels[l].level)) == 0
                                   : levels[l].level != EA_CPU_REF; /* minutes, of no interest */
            if (impl && wanted && ea_cpu_has(levels[l].level) &&
                (!o->format || strcasecmp(o->format, name) == 0))
                bench_format(o, pool, &levels[l], impl, x, memory);
        }
    ea_pool_destroy(pool);
}

int main(int argc, char **argv)
{
    options o = {.mib = 512, .k = 2048, .seconds = 0.3};
    for (int c; (c = getopt(argc, argv, "f:l:t:m:k:s:")) != -1;)
        switch (c) {
        case 'f': o.format = optarg; break;
        case 'l': o.level = optarg; break;
        case 't': o.threads = atoi(optarg); break;
        case 'm': o.mib = atoi(optarg); break;
        case 'k': o.k = atoi(optarg); break;
        case 's': o.seconds = atof(optarg); break;
        default: return 2;
        }
    if (o.mib < 8 || o.k < 256 || o.k % 256 || o.k > 65536 || o.threads < 0) {
        fprintf(stderr, "-m takes 8 or more, -k a multiple of 256 up to 65536\n");
        return 2;
    }
    const unsigned forms = 1u << EA_FORM_Q8 | 1u << EA_FORM_Q8K;
    size_t n_bytes = (size_t)o.mib << 20, x_bytes = ea_acts_bytes(MAX_ROWS, o.k, forms);
    uint8_t *memory = must(ea_pages_alloc(n_bytes));
    memset(memory, 1, n_bytes);
    void *x_mem = must(ea_pages_alloc(x_bytes));
    ea_acts x;
    ea_acts_init(&x, MAX_ROWS, o.k, forms, x_mem);
    for (int r = 0; r < MAX_ROWS; r++)
        for (int i = 0; i < o.k; i++)
            ea_acts_row(&x, r)[i] = (float)((r * 131 + i * 7919) % 1000 - 500) / 500;
    printf("%s; %d MiB of weights, %d inputs\n", ea_cpu_name(), o.mib, o.k);
    int all = ea_cpu_default_threads();
    if (o.threads)
        bench_threads(&o, o.threads, &x, memory);
    else
        for (int n = 1; n <= all; n = n < all ? all : all + 1)
            bench_threads(&o, n, &x, memory);
    ea_pages_free(x_mem, x_bytes);
    ea_pages_free(memory, n_bytes);
    return 0;
}
