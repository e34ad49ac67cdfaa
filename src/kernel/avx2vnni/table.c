/* table.c: the kernels for AVX2 with AVX-VNNI: the quantised products; the rest is AVX2's. */
#include "kernel/table.h"

#include "kernel/avx2vnni/matmul.h"

const ea_kernel_table ea_kernel_avx2vnni = {
#define EA_FORMAT(name, ...) .matmul_##name = &ea_matmul_##name##__avx2vnni,
#include "kernel/formats.def"
};
