/* matmul.h: matrix products of quantised weights for AVX-512 with VNNI. */
#ifndef EA_KERNEL_AVX512VNNI_MATMUL_H
#define EA_KERNEL_AVX512VNNI_MATMUL_H

#include "kernel/matmul.h"

#define EA_FORMAT(name, ...) extern const ea_matmul_impl ea_matmul_##name##__avx512vnni;
#include "kernel/formats.def"
#undef EA_FORMAT

#endif
