/* amx_emulated.h: the macros of kernel/amx/tile.h in plain C, so that the kernels of that folder
 * are tested on machines without the unit: built a second time with this file in front. Shapes are
 * checked as the processor does, by Intel's SDM; a violation, there an exception, aborts. */
#ifndef EA_TESTS_KERNEL_AMX_EMULATED_H
#define EA_TESTS_KERNEL_AMX_EMULATED_H
#define EA_KERNEL_AMX_TILE_H /* takes the place of kernel/amx/tile.h */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/f16.h"

typedef struct ea_tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} ea_tile_config;

static _Thread_local struct {
    ea_tile_config c;
    uint8_t t[8][16][64];
} amx;

static inline void amx_require(int ok)
{
    if (!ok)
        abort();
}

static inline void amx_config(const ea_tile_config *c)
{
    amx_require(c->palette == 1 && c->start_row == 0);
    for (int i = 0; i < 16; i++) {
        amx_require(c->row_bytes[i] <= 64 && c->rows[i] <= 16);
        amx_require((c->row_bytes[i] == 0) == (c->rows[i] == 0) && (i < 8 || !c->rows[i]));
    }
    amx.c = *c;
    memset(amx.t, 0, sizeof amx.t);
}

static inline void amx_release(void)
{
    memset(&amx, 0, sizeof amx);
}

static inline void amx_zero(int t)
{
    amx_require(amx.c.palette == 1);
    memset(amx.t[t], 0, sizeof amx.t[t]);
}

static inline void amx_load(int t, const void *p, int64_t stride)
{
    amx_require(amx.c.rows[t] > 0);
    memset(amx.t[t], 0, sizeof amx.t[t]);
    for (int r = 0; r < amx.c.rows[t]; r++)
        memcpy(amx.t[t][r], (const uint8_t *)p + r * stride, amx.c.row_bytes[t]);
}

static inline void amx_store(int t, void *p, int64_t stride)
{
    amx_require(amx.c.rows[t] > 0);
    for (int r = 0; r < amx.c.rows[t]; r++)
        memcpy((uint8_t *)p + r * stride, amx.t[t][r], amx.c.row_bytes[t]);
}

/* c (m x n) += a (m x k) * b (k / 4 x n), a signed bytes, b signed or not. */
static inline void amx_dot(int c, int a, int b, int b_signed)
{
    const ea_tile_config *f = &amx.c;
    amx_require(a != b && a != c && b != c && f->palette == 1);
    amx_require(f->rows[c] == f->rows[a] && f->row_bytes[c] == f->row_bytes[b] &&
                f->row_bytes[a] / 4 == f->rows[b] && f->row_bytes[a] % 4 == 0);
    for (int m = 0; m < f->rows[c]; m++)
        for (int n = 0; n < f->row_bytes[c] / 4; n++) {
            int32_t sum;
            memcpy(&sum, &amx.t[c][m][4 * n], 4);
            for (int k = 0; k < f->row_bytes[a]; k++) {
                uint8_t w = amx.t[b][k / 4][4 * n + k % 4];
                sum += (int8_t)amx.t[a][m][k] * (b_signed ? (int8_t)w : w);
            }
            memcpy(&amx.t[c][m][4 * n], &sum, 4);
        }
}

/* The same for pairs of bf16, without the unit's rounding of inexact sums. */
static inline void amx_dot_bf16(int c, int a, int b)
{
    const ea_tile_config *f = &amx.c;
    amx_require(a != b && a != c && b != c && f->palette == 1);
    amx_require(f->rows[c] == f->rows[a] && f->row_bytes[c] == f->row_bytes[b] &&
                f->row_bytes[a] / 4 == f->rows[b] && f->row_bytes[a] % 4 == 0);
    for (int m = 0; m < f->rows[c]; m++)
        for (int n = 0; n < f->row_bytes[c] / 4; n++) {
            float sum;
            memcpy(&sum, &amx.t[c][m][4 * n], 4);
            for (int k = 0; k < f->row_bytes[a] / 2; k++) {
                ea_bf16 x, w;
                memcpy(&x, &amx.t[a][m][2 * k], 2);
                memcpy(&w, &amx.t[b][k / 2][4 * n + 2 * (k % 2)], 2);
                sum += ea_bf16_to_f32(x) * ea_bf16_to_f32(w);
            }
            memcpy(&amx.t[c][m][4 * n], &sum, 4);
        }
}

#define TILE_CONFIG(c) amx_config(c)
#define TILE_RELEASE() amx_release()
#define TILE_ZERO(t) amx_zero(t)
#define TILE_LOAD(t, p, stride) amx_load((t), (p), (stride))
#define TILE_STORE(t, p, stride) amx_store((t), (p), (stride))
#define TILE_DOT_SU(c, a, b) amx_dot((c), (a), (b), 0)
#define TILE_DOT_SS(c, a, b) amx_dot((c), (a), (b), 1)
#define TILE_DOT_BF16(c, a, b) amx_dot_bf16((c), (a), (b))

#endif
