/* matmul.h: matrix products of quantised weights for AVX2 with AVX-VNNI. */
#ifndef EA_KERNEL_AVX2VNNI_MATMUL_H
#define EA_KERNEL_AVX2VNNI_MATMUL_H

#include "kernel/matmul.h"

#define EA_FORMAT(name, ...) extern const ea_matmul_impl ea_matmul_##name##__avx2vnni;
#include "kernel/formats.def"
#undef EA_FORMAT

#endif
