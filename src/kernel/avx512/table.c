/* table.c: the kernels for AVX-512 (F BW DQ VL CD) with VNNI. */
#include "kernel/table.h"

const ea_kernel_table ea_kernel_avx512 = {
    .acts_quantise = NULL,
};
