/* matmul.c: the scalar matrix products and the activation quantiser. They define the results: the
 * vector kernels must give the same bits, so the order of operations here is the one of kernel.h
 * and nothing is clever. */
#include "kernel/ref/matmul.h"

#include <math.h>
#include <string.h>

#include "kernel/ref/slots.h"
#include "quant/blocks.h"

/* int8 codes of one 32-block, and the sums of its halves. */
static void quantise_block(const float *x, float inv, int8_t *q, int16_t sum16[2])
{
    int sum[2] = {0, 0};
    for (int j = 0; j < EA_Q8_K; j++) {
        float v = x[j] * inv; /* NaN for NaN and, with an infinite amax, for infinities */
        v = v > -127.0f ? v : -127.0f;
        v = v < 127.0f ? v : 127.0f;
        int code = (int)lrintf(v);
        q[j] = (int8_t)code;
        sum[j / 16] += code;
    }
    sum16[0] = (int16_t)sum[0];
    sum16[1] = (int16_t)sum[1];
}

/* Scale of n inputs, and its inverse. */
static float scale_of(const float *x, int n, float *inv)
{
    float amax = 0;
    for (int j = 0; j < n; j++)
        amax = fabsf(x[j]) > amax ? fabsf(x[j]) : amax; /* NaN never wins */
    *inv = amax >= EA_Q8_TINY ? 127.0f / amax : 0;
    return amax >= EA_Q8_TINY ? amax / 127.0f : 0;
}

void ea_acts_quantise_cols__ref(const ea_acts *a, int row, int col0, int n)
{
    const float *x = ea_acts_row(a, row);
    float inv;
    for (int b = col0 / EA_Q8_K; b < (col0 + n + EA_Q8_K - 1) / EA_Q8_K; b++) {
        int c = b / EA_CHUNK_BLOCKS * EA_ACTS_GROUP, j = b % EA_CHUNK_BLOCKS;
        if (a->q8[EA_FORM_Q8]) {
            struct ea_q8_chunk *q = ea_acts_q8(a, EA_FORM_Q8, row) + c;
            q->d[j] = scale_of(x + b * EA_Q8_K, EA_Q8_K, &inv);
            quantise_block(x + b * EA_Q8_K, inv, q->q + j * EA_Q8_K, q->sum16 + 2 * j);
            q->s[j] = q->d[j] * (float)(q->sum16[2 * j] + q->sum16[2 * j + 1]);
        }
        if (a->q8[EA_FORM_Q8K] && j == 0) {
            struct ea_q8_chunk *q = ea_acts_q8(a, EA_FORM_Q8K, row) + c;
            q->d[0] = scale_of(x + b * EA_Q8_K, EA_Q8_CHUNK, &inv);
            for (int i = 0; i < EA_CHUNK_BLOCKS; i++) {
                quantise_block(x + (b + i) * EA_Q8_K, inv, q->q + i * EA_Q8_K, q->sum16 + 2 * i);
                q->sum32[i] = (int16_t)(q->sum16[2 * i] + q->sum16[2 * i + 1]);
                for (int h = 2 * i; h < 2 * i + 2; h++) {
                    q->parts[h][0] = ea_f32_to_bf16((float)(q->sum16[h] & ~63));
                    q->parts[h][1] = ea_f32_to_bf16((float)(q->sum16[h] & 63));
                }
            }
        }
    }
}

/* Bias, old value, store: the end of every product. */
static void put(const ea_matmul_args *args, int tile, int r, const float acc[EA_TILE_N])
{
    for (int n = 0; n < EA_TILE_N; n++) {
        int c = tile * EA_TILE_N + n;
        if (c >= args->w->n)
            return;
        float *out = args->out + (size_t)r * args->ld + c;
        float v = args->bias ? acc[n] + args->bias[c] : acc[n];
        *out = args->accumulate ? *out + v : v;
    }
}

static float load_f32(const uint8_t *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

static float load_f16(const uint8_t *p)
{
    ea_f16 h;
    memcpy(&h, p, sizeof h);
    return ea_f16_to_f32(h);
}

static float load_bf16(const uint8_t *p)
{
    ea_bf16 b;
    memcpy(&b, p, sizeof b);
    return ea_bf16_to_f32(b);
}

static void run_float(const ea_matmul_args *args, float (*load)(const uint8_t *), size_t size)
{
    for (int tile = args->tile0; tile < args->tile1; tile++) {
        const uint8_t *w = args->w->data + (size_t)tile * args->w->tile_bytes;
        for (int r = 0; r < args->n_rows; r++) {
            const float *x = ea_acts_row(args->x, args->row0 + r);
            float acc[EA_TILE_N] = {0};
            for (int i = 0; i < args->w->k; i++)
                for (int n = 0; n < EA_TILE_N; n++)
                    acc[n] = fmaf(load(w + (size_t)(i * EA_TILE_N + n) * size), x[i], acc[n]);
            put(args, tile, r, acc);
        }
    }
}

static void run_f32(const ea_matmul_args *args)
{
    run_float(args, load_f32, 4);
}

static void run_f16(const ea_matmul_args *args)
{
    run_float(args, load_f16, 2);
}

static void run_bf16(const ea_matmul_args *args)
{
    run_float(args, load_bf16, 2);
}

/* ---- quantised formats ---- */

/* One 32-block of a tile, unpacked. Formats with one scale a block: weight (i, n) = d[n] * q[i][n]
 * + m[n]. K formats: d[n] * sc[i / 16][n] * q[i][n] - dmin[n] * mi[i / 16][n]. */
struct block {
    int8_t q[EA_Q8_K][EA_TILE_N];
    float d[EA_TILE_N], m[EA_TILE_N], dmin[EA_TILE_N];
    int sc[2][EA_TILE_N], mi[2][EA_TILE_N];
};

/* Code bits of input i, column n in a plane: the reading side of pack.h. */
static int plane4(const uint8_t *p, int i, int n)
{
    int g = i / 4;
    return p[g / 2 * 64 + 4 * n + i % 4] >> (g % 2 * 4) & 15;
}

static int plane2(const uint8_t *p, int i, int n)
{
    int g = i / 4;
    return p[g / 4 * 64 + 4 * n + i % 4] >> (g % 4 * 2) & 3;
}

static int plane1(const uint8_t *p, int i, int n)
{
    return p[4 * n + i % 4] >> (i / 4) & 1;
}

static int plane8(const uint8_t *p, int i, int n)
{
    return p[i / 4 * 64 + 4 * n + i % 4];
}

/* Fill q from an expression in `p`, `i` and `n`. */
#define EACH_CODE(out, expr)                \
    for (int i = 0; i < EA_Q8_K; i++)       \
        for (int n = 0; n < EA_TILE_N; n++) \
            (out)->q[i][n] = (int8_t)(expr);

static void head_f16(const uint8_t *head, float out[EA_TILE_N])
{
    for (int n = 0; n < EA_TILE_N; n++)
        out[n] = load_f16(head + 2 * n);
}

/* Block j of super-block `nth` of a tile: `tile` is its start, `sb` that of the super-block. */
typedef void (*unpack_fn)(const uint8_t *tile, const uint8_t *sb, int nth, int j,
                          struct block *out);

#define UNPACK(name)                                                                  \
    static void unpack_##name(const uint8_t *tile, const uint8_t *sb, int nth, int j, \
                              struct block *out)

UNPACK(q4_0)
{
    const uint8_t *p = sb + 64 + j * 256;
    (void)tile, (void)nth;
    head_f16(sb + 32 * j, out->d);
    EACH_CODE(out, plane4(p, i, n) - 8)
}

UNPACK(iq4_nl)
{
    const uint8_t *p = sb + 64 + j * 256;
    (void)tile, (void)nth;
    head_f16(sb + 32 * j, out->d);
    EACH_CODE(out, ea_iq4nl_values[plane4(p, i, n)])
}

UNPACK(q5_0)
{
    const uint8_t *p = sb + 64 + j * 320;
    (void)tile, (void)nth;
    head_f16(sb + 32 * j, out->d);
    EACH_CODE(out, (plane4(p, i, n) | plane1(p + 256, i, n) << 4) - 16)
}

UNPACK(q8_0)
{
    const uint8_t *p = sb + 64 + j * 512;
    (void)tile, (void)nth;
    head_f16(sb + 32 * j, out->d);
    EACH_CODE(out, plane8(p, i, n) - 128)
}

UNPACK(q4_1)
{
    const uint8_t *p = sb + 64;
    (void)tile, (void)nth, (void)j;
    head_f16(sb, out->d);
    head_f16(sb + 32, out->m);
    EACH_CODE(out, plane4(p, i, n))
}

UNPACK(q5_1)
{
    const uint8_t *p = sb + 64;
    (void)tile, (void)nth, (void)j;
    head_f16(sb, out->d);
    head_f16(sb + 32, out->m);
    EACH_CODE(out, plane4(p, i, n) | plane1(p + 256, i, n) << 4)
}

/* Q4_K, Q5_K: both halves of a block have the same scale and minimum. */
static void scales_q4_k(const uint8_t *sb, int j, struct block *out)
{
    head_f16(sb, out->d);
    head_f16(sb + 32, out->dmin);
    for (int h = 0; h < 2; h++)
        for (int n = 0; n < EA_TILE_N; n++) {
            out->sc[h][n] = sb[64 + j * EA_TILE_N + n];
            out->mi[h][n] = sb[192 + j * EA_TILE_N + n];
        }
}

UNPACK(q4_k)
{
    const uint8_t *p = sb + 320 + j * 256;
    (void)tile, (void)nth;
    scales_q4_k(sb, j, out);
    EACH_CODE(out, plane4(p, i, n))
}

UNPACK(q5_k)
{
    const uint8_t *p = sb + 320 + j * 320;
    (void)tile, (void)nth;
    scales_q4_k(sb, j, out);
    EACH_CODE(out, plane4(p, i, n) | plane1(p + 256, i, n) << 4)
}

static void scales_q6_k(const uint8_t *tile, const uint8_t *sb, int nth, int j, struct block *out)
{
    head_f16(tile + 32 * nth, out->d);
    for (int h = 0; h < 2; h++)
        for (int n = 0; n < EA_TILE_N; n++)
            out->sc[h][n] = (int8_t)sb[(2 * j + h) * EA_TILE_N + n];
}

UNPACK(q6_k)
{
    const uint8_t *p = sb + 256 + j * 384;
    scales_q6_k(tile, sb, nth, j, out);
    EACH_CODE(out, (plane4(p, i, n) | plane2(p + 256, i, n) << 4) - 32)
}

UNPACK(q3_k)
{
    const uint8_t *p = sb + 256 + j * 192;
    scales_q6_k(tile, sb, nth, j, out);
    EACH_CODE(out, (plane2(p, i, n) | plane1(p + 128, i, n) << 2) - 4)
}

UNPACK(q2_k)
{
    const uint8_t *p = sb + 320 + j * 128;
    (void)tile, (void)nth;
    head_f16(sb, out->d);
    head_f16(sb + 32, out->dmin);
    for (int h = 0; h < 2; h++)
        for (int n = 0; n < EA_TILE_N; n++) {
            int scm = sb[64 + (2 * j + h) * EA_TILE_N + n];
            out->sc[h][n] = scm & 15;
            out->mi[h][n] = scm >> 4;
        }
    EACH_CODE(out, plane2(p, i, n))
}

/* How a format's terms are added up: kernel.h, "Numerics". */
typedef enum ea_ref_kind {
    PLAIN,   /* d a 32-block */
    MIN,     /* and m */
    K32_MIN, /* integer scale and minimum a 32-block */
    K16,     /* integer scale a half block */
    K16_MIN  /* and minimum */
} ea_ref_kind;

/* One row's sums in one tile. */
struct sums {
    float acc[EA_TILE_N];
    int isum[EA_TILE_N], imin[EA_TILE_N]; /* of the running super-block */
};

/* Block b of a row. The integers fit: |q * sc| <= 2^12 and |x| <= 127, 256 of them. */
static void add_block(const struct block *w, ea_ref_kind kind, const struct ea_q8_chunk *x, int b,
                      struct sums *to)
{
    const int j = b % EA_CHUNK_BLOCKS;
    for (int n = 0; n < EA_TILE_N; n++) {
        int dot[2] = {0, 0};
        for (int i = 0; i < EA_Q8_K; i++)
            dot[i / 16] += w->q[i][n] * x->q[EA_Q8_K * j + i];
        if (kind == PLAIN || kind == MIN) {
            to->acc[n] = fmaf((float)(dot[0] + dot[1]), w->d[n] * x->d[j], to->acc[n]);
            if (kind == MIN)
                to->acc[n] = fmaf(w->m[n], x->s[j], to->acc[n]);
            continue;
        }
        if (j == 0) {
            to->isum[n] = 0;
            to->imin[n] = 0;
        }
        to->isum[n] += w->sc[0][n] * dot[0] + w->sc[1][n] * dot[1];
        to->imin[n] += w->mi[0][n] * x->sum16[2 * j] + w->mi[1][n] * x->sum16[2 * j + 1];
        if (j == EA_CHUNK_BLOCKS - 1) {
            float t = (float)to->isum[n] * w->d[n];
            if (kind != K16)
                t = fmaf(-(float)to->imin[n], w->dmin[n], t);
            to->acc[n] = fmaf(t, x->d[0], to->acc[n]);
        }
    }
}

/* Rows are taken a few at a time, since unpacking a block costs more than a row's dot products. */
enum { ROWS = 16 };

static void run_q8(const ea_matmul_args *args, ea_ref_kind kind, unpack_fn unpack)
{
    const ea_tile_layout *l = args->w->impl->layout;
    for (int t = args->tile0; t < args->tile1; t++) {
        const uint8_t *tile = args->w->data + (size_t)t * args->w->tile_bytes;
        const uint8_t *sbs = tile + ea_layout_front(l, args->w->k);
        for (int r0 = 0; r0 < args->n_rows; r0 += ROWS) {
            int n_rows = EA_MIN(ROWS, args->n_rows - r0);
            struct sums sums[ROWS] = {0};
            for (int b = 0; b < args->w->k / EA_Q8_K; b++) {
                struct block block = {0};
                int i = b / l->sb_blocks;
                unpack(tile, sbs + (size_t)i * ea_layout_sb_bytes(l), i, b % l->sb_blocks, &block);
                for (int r = 0; r < n_rows; r++)
                    add_block(&block, kind,
                              ea_acts_q8(args->x, l->form, args->row0 + r0 + r) +
                                  b / EA_CHUNK_BLOCKS * EA_ACTS_GROUP,
                              b, &sums[r]);
            }
            for (int r = 0; r < n_rows; r++)
                put(args, t, r0 + r, sums[r].acc);
        }
    }
}

#define RUN(name, kind)                                \
    static void run_##name(const ea_matmul_args *args) \
    {                                                  \
        run_q8(args, kind, unpack_##name);             \
    }
RUN(q4_0, PLAIN)
RUN(iq4_nl, PLAIN)
RUN(q5_0, PLAIN)
RUN(q8_0, PLAIN)
RUN(q4_1, MIN)
RUN(q5_1, MIN)
RUN(q4_k, K32_MIN)
RUN(q5_k, K32_MIN)
RUN(q3_k, K16)
RUN(q6_k, K16)
RUN(q2_k, K16_MIN)

#define EA_SLOT(name, ret, args, names)
#define EA_MATMUL(name, dtype) \
    const ea_matmul_impl ea_matmul_##name##__ref = {.layout = &ea_layout_##name, .run = run_##name};
#include "kernel/kernel_slots.def"
