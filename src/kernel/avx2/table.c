/* table.c: the kernels for AVX2 with FMA, F16C and BMI2. */
#include "kernel/table.h"

#include "kernel/avx2/matmul.h"
#include "kernel/avx2/slots.h"

const ea_kernel_table ea_kernel_avx2 = {
#define EA_SLOT(name, ret, args, names) .name = ea_##name##__avx2,
#define EA_MATMUL(name, dtype) .matmul_##name = &ea_matmul_##name##__avx2,
#include "kernel/kernel_slots.def"
};
