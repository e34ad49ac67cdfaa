/* table.c: the scalar reference kernels: every slot, on every machine. */
#include "kernel/table.h"

#include "kernel/ref/matmul.h"
#include "kernel/ref/slots.h"

const ea_kernel_table ea_kernel_ref = {
#define EA_SLOT(name, ret, args, names) .name = ea_##name##__ref,
#define EA_MATMUL(name, dtype) .matmul_##name = &ea_matmul_##name##__ref,
#include "kernel/kernel_slots.def"
};
