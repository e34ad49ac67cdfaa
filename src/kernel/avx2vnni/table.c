/* table.c: the kernels for AVX2 with AVX-VNNI: the quantised products, attention
 * over quantised KV; the rest is AVX2's. */
#include "kernel/table.h"

#include "kernel/avx2vnni/matmul.h"
#include "kernel/avx2vnni/slots.h"

const ea_kernel_table ea_kernel_avx2vnni = {
#define EA_FORMAT(name, ...) .matmul_##name = &ea_matmul_##name##__avx2vnni,
#include "kernel/formats.def"
    .attention_quant = ea_attention_quant__avx2vnni,
};
