/* slots.h: this folder's row operators and attention, one function a slot of kernel_slots.def, for
 * table.c. Contracts in kernel.h. */
#ifndef EA_KERNEL_AVX2_SLOTS_H
#define EA_KERNEL_AVX2_SLOTS_H

#include "kernel/kernel.h"

#define EA_SLOT(name, ret, args, names) ret ea_##name##__avx2 args;
#define EA_MATMUL(name, dtype)
#include "kernel/kernel_slots.def"
#undef EA_SLOT
#undef EA_MATMUL

#endif
