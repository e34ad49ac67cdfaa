/* tile.h: the instructions of the matrix unit (Intel AMX: SDM vol. 1, chapter 18), as macros: tile
 * numbers are part of the instruction. They are written as assembly with memory clobbers, since the
 * compiler's own intrinsics do not tell it that a tile load reads memory. */
#ifndef EA_KERNEL_AMX_TILE_H
#define EA_KERNEL_AMX_TILE_H

#include <stdint.h>

/* Shapes of the eight tiles: rows, and bytes of a row. */
typedef struct ea_tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} ea_tile_config;

#define TILE_CONFIG(c) __asm__ volatile("ldtilecfg %0" : : "m"(*(c)) : "memory")
#define TILE_RELEASE() __asm__ volatile("tilerelease" : : : "memory")
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t : : :)
#define TILE_LOAD(t, p, stride)                       \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t  \
                     :                                \
                     : "r"(p), "r"((int64_t)(stride)) \
                     : "memor"                        \
                       "y")
#define TILE_STORE(t, p, stride)                         \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" \
                     :                                   \
                     : "r"(p), "r"((int64_t)(stride))    \
                     : "memory")
/* c += a (int8) * b (uint8 / int8), four products a sum */
#define TILE_DOT_SU(c, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : :)
#define TILE_DOT_SS(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : :)
/* c += a * b, pairs of bf16, f32 sums */
#define TILE_DOT_BF16(c, a, b) \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : :)

#endif
