/* pack.c: tile layouts of the float formats. */
#include <string.h>

#include "kernel/matmul.h"

/* Inputs that are transposed together: their part of the tile stays in the first cache. */
enum { STRIP = 64 };

static void pack_f32(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    for (int i0 = 0; i0 < k; i0 += STRIP)
        for (int n = 0; n < n_cols; n++)
            for (int i = i0; i < EA_MIN(i0 + STRIP, k); i++)
                memcpy(tile + (size_t)(i * EA_TILE_N + n) * 4,
                       rows + (size_t)n * row_bytes + (size_t)i * 4, 4);
}

static void pack_16(int k, int n_cols, const uint8_t *rows, size_t row_bytes, uint8_t *tile)
{
    for (int i0 = 0; i0 < k; i0 += STRIP)
        for (int n = 0; n < n_cols; n++)
            for (int i = i0; i < EA_MIN(i0 + STRIP, k); i++)
                memcpy(tile + (size_t)(i * EA_TILE_N + n) * 2,
                       rows + (size_t)n * row_bytes + (size_t)i * 2, 2);
}

const ea_tile_layout ea_layout_f32 = {.type = EA_DTYPE_F32, .pack = pack_f32};
const ea_tile_layout ea_layout_f16 = {.type = EA_DTYPE_F16, .pack = pack_16};
const ea_tile_layout ea_layout_bf16 = {.type = EA_DTYPE_BF16, .pack = pack_16};
