/* pack.h: how codes are laid into the planes of a tile (see matmul.h), shared by the packers. */
#ifndef EA_KERNEL_PACK_H
#define EA_KERNEL_PACK_H

#include <string.h>

#include "kernel/matmul.h"

/* Codes of one 32-block of a tile before they are packed: one row an output column. */
typedef uint8_t ea_codes[EA_TILE_N][EA_Q8_K];

/* Four codes at once: the packers work on 32-bit words of four neighbouring inputs. */
static inline uint32_t ea_pack_word(ea_codes u, int n, int g)
{
    uint32_t w;
    memcpy(&w, &u[n][4 * g], sizeof w);
    return w;
}

static inline void ea_pack_put(uint8_t *plane, int word, uint32_t w)
{
    memcpy(plane + 4 * word, &w, sizeof w);
}

/* Bits 0..3 of every code to a 4-bit plane (256 bytes). */
static inline void ea_pack_plane4(uint8_t *plane, ea_codes u)
{
    for (int v = 0; v < 4; v++)
        for (int n = 0; n < EA_TILE_N; n++)
            ea_pack_put(plane, v * EA_TILE_N + n,
                        (ea_pack_word(u, n, 2 * v) & 0x0f0f0f0fu) |
                            (ea_pack_word(u, n, 2 * v + 1) & 0x0f0f0f0fu) << 4);
}

/* Bits shift, shift + 1 to a 2-bit plane (128 bytes). */
static inline void ea_pack_plane2(uint8_t *plane, ea_codes u, int shift)
{
    for (int v = 0; v < 2; v++)
        for (int n = 0; n < EA_TILE_N; n++) {
            uint32_t w = 0;
            for (int j = 0; j < 4; j++)
                w |= (ea_pack_word(u, n, 4 * v + j) >> shift & 0x03030303u) << (2 * j);
            ea_pack_put(plane, v * EA_TILE_N + n, w);
        }
}

/* Bit `shift` to a 1-bit plane (64 bytes). */
static inline void ea_pack_plane1(uint8_t *plane, ea_codes u, int shift)
{
    for (int n = 0; n < EA_TILE_N; n++) {
        uint32_t w = 0;
        for (int g = 0; g < 8; g++)
            w |= (ea_pack_word(u, n, g) >> shift & 0x01010101u) << g;
        ea_pack_put(plane, n, w);
    }
}

/* Whole bytes (512 bytes). */
static inline void ea_pack_plane8(uint8_t *plane, ea_codes u)
{
    for (int g = 0; g < 8; g++)
        for (int n = 0; n < EA_TILE_N; n++)
            ea_pack_put(plane, g * EA_TILE_N + n, ea_pack_word(u, n, g));
}

/* A half-precision scale of column n in a header row of 16. */
static inline void ea_pack_f16(uint8_t *head, int n, ea_f16 h)
{
    memcpy(head + 2 * n, &h, sizeof h);
}

#endif
