/* pack.h: how codes are laid into the planes of a tile (see matmul.h), shared by the packers.
 *
 * A packer goes through a tile block by block and, in a block, column by column. It takes eight
 * codes of a column at a time, as the bytes of a 64-bit word: what goes to one 32-bit word of a
 * plane are then a few shifts of it. */
#ifndef EA_KERNEL_PACK_H
#define EA_KERNEL_PACK_H

#include <string.h>

#include "kernel/matmul.h"

/* The 32 codes of a column in a block, byte i of x[v] being code 8 v + i. */
typedef struct ea_codes {
    uint64_t x[4];
} ea_codes;

#define EA_EACH_BYTE(b) (0x0101010101010101u * (b))

/* 32 bytes from p, each shifted right by `shift` (0..7) and cut to `mask`. */
static inline ea_codes ea_codes_load(const uint8_t *p, int shift, unsigned mask)
{
    ea_codes u;
    memcpy(&u, p, sizeof u);
    for (int v = 0; v < 4; v++)
        u.x[v] = u.x[v] >> shift & EA_EACH_BYTE(mask);
    return u;
}

static inline void ea_pack_put(uint8_t *plane, int vector, int n, uint64_t w)
{
    uint32_t low = (uint32_t)w;
    memcpy(plane + 64 * vector + 4 * n, &low, sizeof low);
}

/* Codes of 4 bits to column n of a 4-bit plane (256 bytes). */
static inline void ea_pack_plane4(uint8_t *plane, int n, ea_codes u)
{
    for (int v = 0; v < 4; v++)
        ea_pack_put(plane, v, n, u.x[v] | u.x[v] >> 28);
}

/* Codes of 2 bits to column n of a 2-bit plane (128 bytes). */
static inline void ea_pack_plane2(uint8_t *plane, int n, ea_codes u)
{
    for (int v = 0; v < 2; v++) {
        uint64_t w = u.x[2 * v] | u.x[2 * v + 1] << 4;
        ea_pack_put(plane, v, n, w | w >> 30);
    }
}

/* Codes of 1 bit to column n of a 1-bit plane (64 bytes). */
static inline void ea_pack_plane1(uint8_t *plane, int n, ea_codes u)
{
    uint64_t w = u.x[0] | u.x[1] << 2 | u.x[2] << 4 | u.x[3] << 6;
    ea_pack_put(plane, 0, n, w | w >> 31);
}

/* Whole bytes to column n (512 bytes). */
static inline void ea_pack_plane8(uint8_t *plane, int n, ea_codes u)
{
    for (int v = 0; v < 4; v++) {
        ea_pack_put(plane, 2 * v, n, u.x[v]);
        ea_pack_put(plane, 2 * v + 1, n, u.x[v] >> 32);
    }
}

/* A half-precision scale of column n in a header row of 16. */
static inline void ea_pack_f16(uint8_t *head, int n, ea_f16 h)
{
    memcpy(head + 2 * n, &h, sizeof h);
}

#endif
