/* table.c: the kernels for AVX2 with FMA, F16C and BMI2. */
#include "kernel/table.h"

const ea_kernel_table ea_kernel_avx2 = {
    .acts_quantise = NULL,
};
