/* table.h: the table of kernels that each instruction-set folder exports, and the one that this
 * machine runs. The struct comes from kernel_slots.def; a NULL slot means that the folder does not
 * provide it and the next lower level's is used. Tables are immutable. */
#ifndef EA_KERNEL_TABLE_H
#define EA_KERNEL_TABLE_H

#include "base/cpu.h"
#include "kernel/kernel.h"
#include "kernel/matmul.h"

typedef struct ea_kernel_table {
#define EA_SLOT(name, ret, args, names) ret(*name) args;
#define EA_MATMUL(name, dtype) const ea_matmul_impl *matmul_##name;
#include "kernel/kernel_slots.def"
#undef EA_SLOT
#undef EA_MATMUL
} ea_kernel_table;

extern const ea_kernel_table ea_kernel_ref;
#if defined(__x86_64__)
extern const ea_kernel_table ea_kernel_avx2;
extern const ea_kernel_table ea_kernel_avx2vnni;
extern const ea_kernel_table ea_kernel_avx512;
extern const ea_kernel_table ea_kernel_avx512vnni;
extern const ea_kernel_table ea_kernel_amx;
#endif

/* The tables built into this program, ascending, and the level that each needs. */
typedef struct ea_kernel_level {
    ea_cpu_level level;
    const ea_kernel_table *table;
} ea_kernel_level;
const ea_kernel_level *ea_kernel_levels(size_t *n);

/* Each slot from the highest level that the machine has and EA_CPU does not mask. Thread-safe. */
const ea_kernel_table *ea_kernel(void);

/* The implementation for a weight format in a table; NULL where it has none. */
const ea_matmul_impl *ea_kernel_matmul(const ea_kernel_table *table, ea_dtype type);

#endif
