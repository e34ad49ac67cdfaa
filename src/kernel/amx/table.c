/* table.c: the kernels for AMX: the quantised products; the rest is AVX-512's. */
#include "kernel/table.h"

#include "kernel/amx/matmul.h"

const ea_kernel_table ea_kernel_amx = {
#define EA_FORMAT(name, ...) .matmul_##name = &EA_AMX_IMPL(name),
#include "kernel/formats.def"
};
