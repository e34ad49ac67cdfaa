/* kernels.c: speed of the matrix products, per weight format, instruction set, thread count and row
 * count, beside the memory bandwidth that the same threads reach by plain reading. Up to 32 rows
 * all weights are streamed from memory, as in a step of the engine: few rows are bound by memory
 * (GB/s of weights), more of them by arithmetic (GMAC/s, 10^9 multiply-adds a second). More than 32
 * rows take 4,096 outputs again and again. Formats come from kernel_slots.def.
 *
 *   bench_kernels [-f FORMAT,...] [-l LEVEL,...] [-t THREADS] [-m MIB] [-k INPUTS] [-s SECONDS]
 *                 [-r ROWS] [-n]
 *
 * FORMAT and LEVEL by name (default: all), THREADS a number (default: 1 and all cores), MIB of
 * weights (default 256: beyond the caches), SECONDS a measurement, ROWS a row count or a range
 * (-r 1-32): then a line each, with the time relative to the first. -n: weights in pages of 4 KiB,
 * not in huge ones. Single thread but for the pool's workers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <sys/mman.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "kernel/table.h"

enum { MAX_ROWS = 256, COLD_ROWS = 32, WARM_OUTPUTS = 4096 };

typedef struct options {
    const char *formats, *levels;
    int threads, mib, k;
    int row0, row1; /* 0: the usual counts */
    bool small_pages;
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

static int matmul_pieces(void *arg, int stretch)
{
    const job *j = arg;
    (void)stretch;
    return (j->args.tile1 + j->step - 1) / j->step;
}

static void matmul_piece(const ea_worker *worker, void *arg, int stretch, int piece)
{
    const job *j = arg;
    ea_matmul_args args = j->args;
    (void)worker;
    (void)stretch;
    args.tile0 = piece * j->step;
    args.tile1 = EA_MIN(args.tile0 + j->step, j->args.tile1);
    ea_matmul(&args);
}

static int read_pieces(void *arg, int stretch)
{
    const job *j = arg;
    (void)stretch;
    return (int)(j->n_bytes / READ_CHUNK);
}

static void read_piece(const ea_worker *worker, void *arg, int stretch, int piece)
{
    job *j = arg;
    uint64_t sum[8] = {0};
    const uint64_t *p = (const uint64_t *)(const void *)(j->data + (size_t)piece * READ_CHUNK);
    (void)stretch;
    for (int k = 0; k < READ_CHUNK / 8; k += 8)
        for (int l = 0; l < 8; l++)
            sum[l] += p[k + l];
    for (int l = 0; l < 8; l++)
        j->sink[worker->index % 64][l] += sum[l];
}

static const ea_pool_work matmul_work = {1, matmul_pieces, matmul_piece, NULL},
                          read_work = {1, read_pieces, read_piece, NULL};

/* Fastest of the runs that fit into the time, in seconds; at least three. */
static double best_time(ea_pool *pool, const ea_pool_work *work, job *j, double seconds)
{
    ea_pool_work mine = *work;
    double best = 1e9;
    mine.arg = j;
    uint64_t start = ea_now_ns();
    for (int i = 0; i < 3 || (double)(ea_now_ns() - start) < seconds * 1e9; i++) {
        uint64_t t0 = ea_now_ns();
        ea_pool_run(pool, &mine);
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

/* One product of n_rows, best time in seconds; *macs, *n_bytes: what it multiplies and reads. */
static double bench_rows(const options *o, ea_pool *pool, const ea_matrix *w, const ea_acts *x,
                         float *out, int n_rows, double *macs, double *n_bytes)
{
    int n_tiles = n_rows > COLD_ROWS ? EA_MIN(w->n_tiles, WARM_OUTPUTS / EA_TILE_N) : w->n_tiles;
    job j = {
        .args =
            {.w = w, .x = x, .n_rows = n_rows, .tile1 = n_tiles, .out = out, .ld = (size_t)w->n},
        .step = claim_step(w, n_tiles, n_rows, ea_pool_size(pool))};
    *macs = (double)n_tiles * EA_TILE_N * w->k * n_rows;
    *n_bytes = (double)n_tiles * (double)w->tile_bytes;
    return best_time(pool, &matmul_work, &j, o->seconds);
}

static void sweep_format(const options *o, ea_pool *pool, const char *label, const ea_matrix *w,
                         const ea_acts *x, float *out)
{
    double first = 0, macs, n_bytes;
    for (int n = o->row0; n <= o->row1; n++) {
        double t = bench_rows(o, pool, w, x, out, n, &macs, &n_bytes);
        first = n == o->row0 ? t : first;
        printf("%s %3d rows %8.2f ms  x %5.2f  %6.2f GB/s  %6.1f GMAC/s\n", label, n, t * 1e3,
               t / first, n_bytes / t * 1e-9, macs / t * 1e-9);
        fflush(stdout);
    }
}

static void bench_format(const options *o, ea_pool *pool, const ea_kernel_level *level,
                         const ea_matmul_impl *impl, const ea_acts *x, uint8_t *memory)
{
    static const int row_counts[] = {1, 2, 4, 8, 16, 32, MAX_ROWS};
    ea_matrix w;
    size_t n_bytes;
    char label[48];
    ea_matrix_init_impl(&w, impl, EA_TILE_N, o->k, &n_bytes);
    int n_tiles = (int)(((size_t)o->mib << 20) / n_bytes);
    ea_matrix_init_impl(&w, impl, n_tiles * EA_TILE_N, o->k, &n_bytes);
    w.data = memory;
    fill_matrix(&w);
    for (int r = 0; r < MAX_ROWS; r++)
        ea_acts_quantise(x, r);

    float *out = must(ea_malloc((size_t)MAX_ROWS * (size_t)w.n * sizeof *out));
    snprintf(label, sizeof label, "%-7s %-11s %2d",
             ea_dtype_find((uint32_t)impl->layout->type)->name, ea_cpu_level_name(level->level),
             ea_pool_size(pool));
    if (o->row0) {
        sweep_format(o, pool, label, &w, x, out);
    } else {
        double macs, bytes, t = bench_rows(o, pool, &w, x, out, 1, &macs, &bytes);
        printf("%s  %8.2f", label, bytes / t * 1e-9);
        for (size_t i = 1; i < EA_ARRAY_LEN(row_counts); i++) {
            t = bench_rows(o, pool, &w, x, out, row_counts[i], &macs, &bytes);
            printf("  %7.1f", macs / t * 1e-9);
        }
        printf("\n");
        fflush(stdout);
    }
    ea_free(out);
}

/* Is `name` one of the list's words, separated by commas? */
static bool listed(const char *list, const char *name)
{
    for (size_t n; *list; list += n + (list[n] == ',')) {
        n = strcspn(list, ",");
        if (n == strlen(name) && strncasecmp(list, name, n) == 0)
            return true;
    }
    return false;
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
    double t = best_time(pool, &read_work, j, o->seconds);
    printf("memory read: %d threads %.2f GB/s\n", n_threads, (double)j->n_bytes / t * 1e-9);
    ea_free(j);
    if (!o->row0)
        printf("format  level      thr  GB/s r=1  GMAC/s 2        4        8       16       32     "
               " 256"
               "\n");

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
            bool wanted = o->levels ? listed(o->levels, ea_cpu_level_name(levels[l].level))
                                    : levels[l].level != EA_CPU_REF; /* minutes, of no interest */
            if (impl && wanted && ea_cpu_has(levels[l].level) &&
                (!o->formats || listed(o->formats, name)))
                bench_format(o, pool, &levels[l], impl, x, memory);
        }
    ea_pool_destroy(pool);
}

/* 0 where the text is no row count or range. */
static int parse_rows(options *o, const char *text)
{
    char *end;
    o->row0 = o->row1 = (int)strtol(text, &end, 10);
    if (*end == '-')
        o->row1 = (int)strtol(end + 1, &end, 10);
    return *end == 0 && o->row0 >= 1 && o->row0 <= o->row1 && o->row1 <= MAX_ROWS;
}

static int parse_options(options *o, int argc, char **argv)
{
    for (int c; (c = getopt(argc, argv, "f:l:t:m:k:s:r:n")) != -1;)
        switch (c) {
        case 'f': o->formats = optarg; break;
        case 'l': o->levels = optarg; break;
        case 't': o->threads = atoi(optarg); break;
        case 'm': o->mib = atoi(optarg); break;
        case 'k': o->k = atoi(optarg); break;
        case 's': o->seconds = atof(optarg); break;
        case 'n': o->small_pages = true; break;
        case 'r':
            if (!parse_rows(o, optarg)) {
                fprintf(stderr, "-r takes 1 to %d, or a range\n", MAX_ROWS);
                return 0;
            }
            break;
        default: return 0;
        }
    if (o->mib < 8 || o->k < 256 || o->k % 256 || o->k > 65536 || o->threads < 0) {
        fprintf(stderr, "-m takes 8 or more, -k a multiple of 256 up to 65536\n");
        return 0;
    }
    return 1;
}

int main(int argc, char **argv)
{
    options o = {.mib = 256, .k = 2048, .seconds = 0.3};
    if (!parse_options(&o, argc, argv))
        return 2;
    const unsigned forms = 1u << EA_FORM_Q8 | 1u << EA_FORM_Q8K;
    size_t n_bytes = (size_t)o.mib << 20, x_bytes = ea_acts_bytes(MAX_ROWS, o.k, forms);
    uint8_t *memory = must(ea_pages_alloc(n_bytes));
    if (o.small_pages && madvise(memory, n_bytes, MADV_NOHUGEPAGE) != 0)
        perror("madvise");
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
