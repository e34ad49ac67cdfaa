/* table.c: the kernels for AVX-512 with VNNI: the quantised products; the rest is AVX-512's. */
#include "kernel/table.h"

#include "kernel/avx512vnni/matmul.h"

const ea_kernel_table ea_kernel_avx512vnni = {
#define EA_FORMAT(name, ...) .matmul_##name = &ea_matmul_##name##__avx512vnni,
#include "kernel/formats.def"
};
