/* attention.c: speed of attention over paged KV on one thread, at the level that this machine (or
 * EA_CPU) gives. Decode walks over the heads of a KV pool larger than most caches, as a step
 * walks over layers, and is told in GB/s of KV read; prefill stays on one head, 64 queries at a
 * time, and is told in GMAC/s of both products. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "kernel/table.h"

enum { MIN_NS = 200 * 1000 * 1000 };

/* The attention shapes of the models that the project measures itself with. */
typedef struct shape {
    const char *name;
    int head_dim, group; /* query heads a KV head */
} shape;
static const shape shapes[] = {{"SmolLM2-135M", 64, 3}, {"Qwen2.5-1.5B", 128, 6}};
static const int depths[] = {512, 2048, 8192};

static const char *const type_names[] = {"f16", "q8_0", "q4_0"};

typedef struct pool {
    ea_kv_type type;
    uint8_t *kv;
    size_t n_bytes, page_bytes, head_bytes;
    int n_heads;
    int32_t *pages;
} pool;

/* As many heads as fill pool_bytes at this depth; arbitrary small numbers in them. */
static bool pool_init(pool *p, const shape *s, ea_kv_type type, int depth, size_t pool_bytes)
{
    int n_pages = depth / EA_PAGE_TOKENS;
    p->type = type;
    p->head_bytes = 2 * ea_kv_block_bytes(type, s->head_dim);
    p->n_heads = EA_MAX(1, (int)(pool_bytes / ((size_t)n_pages * p->head_bytes)));
    p->page_bytes = (size_t)p->n_heads * p->head_bytes;
    p->n_bytes = (size_t)n_pages * p->page_bytes;
    p->kv = ea_pages_alloc(p->n_bytes);
    p->pages = ea_malloc((size_t)n_pages * sizeof *p->pages);
    if (!p->kv || !p->pages)
        return false;
    ea_f16 *x = (ea_f16 *)p->kv;
    uint32_t r = 1;
    for (size_t i = 0; i < p->n_bytes / sizeof *x; i++) {
        r = r * 1664525u + 1013904223u;
        x[i].bits = (uint16_t)(0x2c00 | (r >> 16 & 0x83ff)); /* +-0.0625..0.125, also as scales */
    }
    for (int i = 0; i < n_pages; i++)
        p->pages[i] = (i * 7 + 3) % n_pages; /* depths are powers of two: a permutation */
    return true;
}

static void pool_done(pool *p)
{
    ea_pages_free(p->kv, p->n_bytes);
    ea_free(p->pages);
}

/* Nanoseconds of one call with n queries, the last at the end of the context. */
static double time_calls(const pool *p, const shape *s, int depth, int n, bool walk, float *work)
{
    const float *q[EA_ATTN_QUERIES];
    float *out[EA_ATTN_QUERIES];
    int32_t pos[EA_ATTN_QUERIES];
    for (int i = 0; i < n; i++) {
        q[i] = work + i * s->head_dim;
        out[i] = work + (EA_ATTN_QUERIES + i) * s->head_dim;
        pos[i] = depth - 1 - (n - 1 - i) / s->group;
    }
    ea_attn_args args = {.type = p->type,
                         .n_queries = n,
                         .head_dim = s->head_dim,
                         .q = q,
                         .out = out,
                         .pos = pos,
                         .scale = 0.1f,
                         .kv = p->kv,
                         .page_bytes = p->page_bytes,
                         .pages = p->pages,
                         .scratch = work + (size_t)2 * EA_ATTN_QUERIES * (size_t)s->head_dim};
    uint64_t start = ea_now_ns(), now = start;
    int calls = 0;
    for (; now - start < MIN_NS; calls++, now = ea_now_ns()) {
        size_t head = walk ? (size_t)(calls % p->n_heads) : 0;
        args.k_offset = head * p->head_bytes;
        args.v_offset = args.k_offset + p->head_bytes / 2;
        ea_attention(&args);
    }
    return (double)(now - start) / calls;
}

static int bench_shape(const shape *s, ea_kv_type type, size_t pool_bytes)
{
    size_t work_bytes = (size_t)2 * EA_ATTN_QUERIES * (size_t)s->head_dim * sizeof(float) +
                        ea_attn_scratch_bytes(s->head_dim);
    float *work = ea_pages_alloc(work_bytes);
    for (size_t d = 0; work && d < EA_ARRAY_LEN(depths); d++) {
        pool p = {0};
        int depth = depths[d];
        if (!pool_init(&p, s, type, depth, pool_bytes)) {
            fprintf(stderr, "out of memory: %zu bytes of KV\n", p.n_bytes);
            return 1;
        }
        for (int i = 0; i < EA_ATTN_QUERIES * s->head_dim; i++)
            work[i] = 0.1f * (float)(i % 17 - 8);
        double decode = time_calls(&p, s, depth, s->group, true, work);
        double prefill = time_calls(&p, s, depth, EA_ATTN_QUERIES, false, work);
        double bytes = (double)p.head_bytes * depth / EA_PAGE_TOKENS;
        double macs = 0;
        for (int i = 0; i < EA_ATTN_QUERIES; i++)
            macs += 2.0 * s->head_dim * (depth - i / s->group);
        printf("| %-13s | %8d | %4s | %5d | %6.2f | %7.1f | %7.1f |\n", s->name, s->head_dim,
               type_names[type], depth, bytes / decode, decode / 1000, macs / prefill);
        fflush(stdout);
        pool_done(&p);
    }
    ea_pages_free(work, work_bytes);
    return work ? 0 : 1;
}

int main(int argc, char **argv)
{
    long mib = argc > 1 ? strtol(argv[1], NULL, 10) : 512;
    if (argc > 2 || mib < 1 || mib > 65536) {
        fprintf(stderr, "usage: %s [MiB of KV to walk over, 1..65536; default 512]\n", argv[0]);
        return 2;
    }
    printf("%s, one thread, %ld MiB of KV\n", ea_cpu_name(), mib);
    printf(
        "| shape         | head_dim |   KV | depth | decode GB/s | decode us | prefill GMAC/s |\n");
    printf("|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < EA_ARRAY_LEN(shapes); i++)
        for (int type = EA_KV_F16; type <= EA_KV_Q4_0; type++)
            if (bench_shape(&shapes[i], (ea_kv_type)type, (size_t)mib << 20))
                return 1;
    return 0;
}
