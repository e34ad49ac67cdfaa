/* matmul.h: matrix products and activation quantiser for AVX2 with FMA and F16C. */
#ifndef EA_KERNEL_AVX2_MATMUL_H
#define EA_KERNEL_AVX2_MATMUL_H

#include "kernel/matmul.h"

#define EA_SLOT(name, ret, args, names)
#define EA_MATMUL(name, dtype) extern const ea_matmul_impl ea_matmul_##name##__avx2;
#include "kernel/kernel_slots.def"
#undef EA_SLOT
#undef EA_MATMUL

#endif
