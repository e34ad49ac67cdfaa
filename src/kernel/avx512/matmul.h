/* matmul.h: matrix products and activation quantiser for AVX-512 with VNNI. */
#ifndef EA_KERNEL_AVX512_MATMUL_H
#define EA_KERNEL_AVX512_MATMUL_H

#include "kernel/matmul.h"

#define EA_SLOT(name, ret, args, names)
#define EA_MATMUL(name, dtype) extern const ea_matmul_impl ea_matmul_##name##__avx512;
#include "kernel/kernel_slots.def"
#undef EA_SLOT
#undef EA_MATMUL

#endif
