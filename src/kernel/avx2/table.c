/* table.c: the kernels for AVX2 with FMA, F16C and BMI2. */
#include "kernel/table.h"

#include "kernel/avx2/slots.h"

const ea_kernel_table ea_kernel_avx2 = {
    .rms_norm = ea_rms_norm__avx2,
    .rope = ea_rope__avx2,
    .silu_mul = ea_silu_mul__avx2,
    .argmax = ea_argmax__avx2,
    .kv_write = ea_kv_write__avx2,
    .attention = ea_attention__avx2,
};
