/* peak.h: what one core can do at most: loops in registers for the arithmetic, a loop of loads for
 * the memory, one set for each level whose instructions differ from the level below. Measurements
 * only; the engine does not call them. Any thread; a level's loops run only where
 * ea_cpu_has(level). */
#ifndef EA_KERNEL_PEAK_H
#define EA_KERNEL_PEAK_H

#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"

/* Runs `rounds` times; the multiply-adds that it has done. */
typedef double ea_peak_fn(int rounds);
/* Loads n_bytes (a multiple of 256) from p, aligned to 64. */
typedef void ea_read_fn(const uint8_t *p, size_t n_bytes);

/* int8 products, summed; f32 FMA; loads. NULL: as the level below. */
typedef struct ea_peak_loops {
    ea_cpu_level level;
    ea_peak_fn *int8, *f32;
    ea_read_fn *read;
} ea_peak_loops;

/* Ascending; those of ref come first and are complete. */
const ea_peak_loops *ea_peak_loops_all(size_t *n);

ea_peak_fn ea_peak_int8__ref, ea_peak_f32__ref;
ea_read_fn ea_peak_read__ref;
#if defined(__x86_64__)
ea_peak_fn ea_peak_int8__avx2, ea_peak_f32__avx2, ea_peak_int8__avx2vnni, ea_peak_int8__avx512,
    ea_peak_f32__avx512, ea_peak_int8__avx512vnni, ea_peak_int8__amx;
ea_read_fn ea_peak_read__avx2, ea_peak_read__avx512;
#endif

#endif
