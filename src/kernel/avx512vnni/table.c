/* table.c: the kernels for AVX-512 with VNNI: the quantised products, attention
 * over quantised KV; the rest is AVX-512's. */
#include "kernel/table.h"

#include "kernel/avx512vnni/matmul.h"
#include "kernel/avx512vnni/slots.h"

const ea_kernel_table ea_kernel_avx512vnni = {
#define EA_FORMAT(name, ...) .matmul_##name = &ea_matmul_##name##__avx512vnni,
#include "kernel/formats.def"
    .attention_quant = ea_attention_quant__avx512vnni,
};
