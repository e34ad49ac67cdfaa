/* matmul.c: the scalar matrix products and the activation quantiser. They define the results: the
 * vector kernels must give the same bits, so the order of operations here is the one of kernel.h
 * and nothing is clever. */
#include "kernel/ref/matmul.h"

#include <math.h>
#include <string.h>

/* A block whose largest value is below this is taken as zero: 127 / amax must stay finite. */
#define Q8_TINY 0x1p-100f

void ea_acts_quantise__ref(const ea_acts *a, int row)
{
    const float *x = ea_acts_row(a, row);
    struct ea_q8_block *b = ea_acts_q8(a, row);
    int r = row % EA_Q8_ROWS;
    for (int i = 0; i < a->k_pad / EA_Q8_K; i++, b++, x += EA_Q8_K) {
        float amax = 0;
        for (int j = 0; j < EA_Q8_K; j++)
            amax = fabsf(x[j]) > amax ? fabsf(x[j]) : amax; /* NaN never wins */
        float inv = amax >= Q8_TINY ? 127.0f / amax : 0;
        float d = amax >= Q8_TINY ? amax / 127.0f : 0;
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

#define EA_SLOT(name, ret, args, names)
#define EA_MATMUL(name, dtype) \
    const ea_matmul_impl ea_matmul_##name##__ref = {&ea_layout_##name, run_##name};
#include "kernel/kernel_slots.def"
