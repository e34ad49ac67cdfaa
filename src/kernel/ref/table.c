/* table.c: the scalar reference kernels: every slot, on every machine. */
#include "kernel/table.h"

#include "kernel/ref/matmul.h"

const ea_kernel_table ea_kernel_ref = {
    .acts_quantise = ea_acts_quantise__ref,
#define EA_SLOT(name, ret, args, names)
#define EA_MATMUL(name, dtype) .matmul_##name = &ea_matmul_##name##__ref,
#include "kernel/kernel_slots.def"
};
