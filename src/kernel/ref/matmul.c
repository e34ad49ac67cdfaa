/* matmul.c: the scalar matrix products and the activation quantiser. They define the results: the
 * vector kernels must give the same bits, so the order of operations here is the one of kernel.h
 * and nothing is clever. */
#include "kernel/ref/matmul.h"

#include <math.h>
#include <string.h>

#include "quant/blocks.h"

void ea_acts_quantise__ref(const ea_acts *a, int row)
{
    const float *x = ea_acts_row(a, row);
    struct ea_q8_block *b = ea_acts_q8(a, row);
    int r = row % EA_Q8_ROWS;
    for (int i = 0; i < a->k_pad / EA_Q8_K; i++, b++, x += EA_Q8_K) {
        float amax = 0;
        for (int j = 0; j < EA_Q8_K; j++)
            amax = fabsf(x[j]) > amax ? fabsf(x[j]) : amax; /* NaN never wins */
        float inv = amax >= EA_Q8_TINY ? 127.0f / amax : 0;
        float d = amax >= EA_Q8_TINY ? amax / 127.0f : 0;
        int sum[2] = {0, 0};
        for (int j = 0; j < EA_Q8_K; j++) {
            float v = x[j] * inv; /* NaN for NaN and, with an infinite amax, for infinities */
            v = v > -127.0f ? v : -127.0f;
            v = v < 127.0f ? v : 127.0f;
            int q = (int)lrintf(v);
            b->q[r][j] = (int8_t)q;
            sum[j / 16] += q;
        }
        b->d[r] = d;
        b->s[r] = d * (float)(sum[0] + sum[1]);
        b->sum16[r][0] = (int16_t)sum[0];
        b->sum16[r][1] = (int16_t)sum[1];
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

/* One 32-block of a tile, unpacked. Value of weight (i, n) = dw[n] * sc[i / 16][n] * q[i][n] +
 * m[n], where sc is 1 for formats without scales per 16. Q2_K's minima are integers per 16 instead:
 * - dmin[n] * mi[i / 16][n]. */
struct block {
    int8_t q[EA_Q8_K][EA_TILE_N];
    float dw[EA_TILE_N];
    int sc[2][EA_TILE_N];
    float m[EA_TILE_N];
    float dmin[EA_TILE_N];
    int mi[2][EA_TILE_N];
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

/* Formats of 32-blocks: block j of the super-block at sb. */
static void unpack_q4_0(const uint8_t *sb, int j, struct block *out)
{
    const uint8_t *p = sb + 64 + j * 256;
    head_f16(sb + 32 * j, out->dw);
    EACH_CODE(out, plane4(p, i, n) - 8)
}

static void unpack_iq4_nl(const uint8_t *sb, int j, struct block *out)
{
    const uint8_t *p = sb + 64 + j * 256;
    head_f16(sb + 32 * j, out->dw);
    EACH_CODE(out, ea_iq4nl_values[plane4(p, i, n)])
}

static void unpack_q5_0(const uint8_t *sb, int j, struct block *out)
{
    const uint8_t *p = sb + 64 + j * 320;
    head_f16(sb + 32 * j, out->dw);
    EACH_CODE(out, (plane4(p, i, n) | plane1(p + 256, i, n) << 4) - 16)
}

static void unpack_q8_0(const uint8_t *sb, int j, struct block *out)
{
    const uint8_t *p = sb + 64 + j * 512;
    head_f16(sb + 32 * j, out->dw);
    EACH_CODE(out, plane8(p, i, n) - 128)
}

static void unpack_q4_1(const uint8_t *sb, int j, struct block *out)
{
    const uint8_t *p = sb + 64;
    (void)j;
    head_f16(sb, out->dw);
    head_f16(sb + 32, out->m);
    EACH_CODE(out, plane4(p, i, n))
}

static void unpack_q5_1(const uint8_t *sb, int j, struct block *out)
{
    const uint8_t *p = sb + 64;
    (void)j;
    head_f16(sb, out->dw);
    head_f16(sb + 32, out->m);
    EACH_CODE(out, plane4(p, i, n) | plane1(p + 256, i, n) << 4)
}

/* Q4_K, Q5_K: d * sc and dmin * m are exact in f32 (11 + 6 bits). */
static void scales_q4_k(const uint8_t *sb, int j, struct block *out)
{
    float d[EA_TILE_N], dmin[EA_TILE_N];
    head_f16(sb, d);
    head_f16(sb + 32, dmin);
    for (int n = 0; n < EA_TILE_N; n++) {
        out->dw[n] = d[n] * (float)sb[64 + j * EA_TILE_N + n];
        out->m[n] = -(dmin[n] * (float)sb[192 + j * EA_TILE_N + n]);
    }
}

static void unpack_q4_k(const uint8_t *sb, int j, struct block *out)
{
    const uint8_t *p = sb + 320 + j * 256;
    scales_q4_k(sb, j, out);
    EACH_CODE(out, plane4(p, i, n))
}

static void unpack_q5_k(const uint8_t *sb, int j, struct block *out)
{
    const uint8_t *p = sb + 320 + j * 320;
    scales_q4_k(sb, j, out);
    EACH_CODE(out, plane4(p, i, n) | plane1(p + 256, i, n) << 4)
}

static void scales_q6_k(const uint8_t *sb, int j, struct block *out)
{
    head_f16(sb, out->dw);
    for (int h = 0; h < 2; h++)
        for (int n = 0; n < EA_TILE_N; n++)
            out->sc[h][n] = (int8_t)sb[64 + (2 * j + h) * EA_TILE_N + n];
}

static void unpack_q6_k(const uint8_t *sb, int j, struct block *out)
{
    const uint8_t *p = sb + 320 + j * 384;
    scales_q6_k(sb, j, out);
    EACH_CODE(out, (plane4(p, i, n) | plane2(p + 256, i, n) << 4) - 32)
}

static void unpack_q3_k(const uint8_t *sb, int j, struct block *out)
{
    const uint8_t *p = sb + 320 + j * 192;
    scales_q6_k(sb, j, out);
    EACH_CODE(out, (plane2(p, i, n) | plane1(p + 128, i, n) << 2) - 4)
}

static void unpack_q2_k(const uint8_t *sb, int j, struct block *out)
{
    const uint8_t *p = sb + 320 + j * 128;
    head_f16(sb, out->dw);
    head_f16(sb + 32, out->dmin);
    for (int h = 0; h < 2; h++)
        for (int n = 0; n < EA_TILE_N; n++) {
            int scm = sb[64 + (2 * j + h) * EA_TILE_N + n];
            out->sc[h][n] = scm & 15;
            out->mi[h][n] = scm >> 4;
        }
    EACH_CODE(out, plane2(p, i, n))
}

/* Which terms a format has. */
typedef enum ea_ref_kind { PLAIN, MIN, SCALES16, SCALES16_MIN } ea_ref_kind;

/* One 32-block of one row into its 16 accumulators. Scales per 16: |sc| <= 128 and |dot of 16| <=
 * 16
 * * 32 * 127 (Q6_K), so |idot| <= 2 * 128 * 65,024 < 2^24 and its conversion to f32 is exact. */
static void add_block(const struct block *w, ea_ref_kind kind, const struct ea_q8_block *x, int r,
                      float acc[EA_TILE_N])
{
    for (int n = 0; n < EA_TILE_N; n++) {
        int dot[2] = {0, 0};
        for (int i = 0; i < EA_Q8_K; i++)
            dot[i / 16] += w->q[i][n] * x->q[r][i];
        int idot = kind >= SCALES16 ? w->sc[0][n] * dot[0] + w->sc[1][n] * dot[1] : dot[0] + dot[1];
        acc[n] = fmaf((float)idot, w->dw[n] * x->d[r], acc[n]);
        if (kind == MIN)
            acc[n] = fmaf(w->m[n], x->s[r], acc[n]);
        if (kind == SCALES16_MIN) {
            int imin = w->mi[0][n] * x->sum16[r][0] + w->mi[1][n] * x->sum16[r][1];
            acc[n] = fmaf(-(float)imin, w->dmin[n] * x->d[r], acc[n]);
        }
    }
}

/* Rows are taken a few at a time, since unpacking a block costs more than a row's dot products. */
enum { ROWS = 16 };

static void run_q8(const ea_matmul_args *args, ea_ref_kind kind,
                   void (*unpack)(const uint8_t *sb, int j, struct block *out))
{
    const ea_tile_layout *l = args->w->impl->layout;
    for (int tile = args->tile0; tile < args->tile1; tile++) {
        const uint8_t *w = args->w->data + (size_t)tile * args->w->tile_bytes;
        for (int r0 = 0; r0 < args->n_rows; r0 += ROWS) {
            int n_rows = EA_MIN(ROWS, args->n_rows - r0);
            float acc[ROWS][EA_TILE_N] = {{0}};
            for (int b = 0; b < args->w->k / EA_Q8_K; b++) {
                struct block block;
                unpack(w + (size_t)(b / l->sb_blocks) * ea_layout_sb_bytes(l), b % l->sb_blocks,
                       &block);
                for (int r = 0; r < n_rows; r++) {
                    int row = args->row0 + r0 + r;
                    add_block(&block, kind, ea_acts_q8(args->x, row) + b, row % EA_Q8_ROWS, acc[r]);
                }
            }
            for (int r = 0; r < n_rows; r++)
                put(args, tile, r0 + r, acc[r]);
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
RUN(q4_k, MIN)
RUN(q5_k, MIN)
RUN(q3_k, SCALES16)
RUN(q6_k, SCALES16)
RUN(q2_k, SCALES16_MIN)

#define EA_SLOT(name, ret, args, names)
#define EA_MATMUL(name, dtype) \
    const ea_matmul_impl ea_matmul_##name##__ref = {&ea_layout_##name, run_##name};
#include "kernel/kernel_slots.def"
