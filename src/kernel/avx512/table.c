/* table.c: the kernels for AVX-512 (F BW DQ VL CD) with VNNI. */
#include "kernel/table.h"

#include "kernel/avx512/matmul.h"
#include "kernel/avx512/slots.h"

const ea_kernel_table ea_kernel_avx512 = {
#define EA_SLOT(name, ret, args, names) .name = ea_##name##__avx512,
#define EA_MATMUL(name, dtype) .matmul_##name = &ea_matmul_##name##__avx512,
#include "kernel/kernel_slots.def"
};
