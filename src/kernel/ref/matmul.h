/* matmul.h: the scalar reference of the matrix products and of the activation quantiser. */
#ifndef EA_KERNEL_REF_MATMUL_H
#define EA_KERNEL_REF_MATMUL_H

#include "kernel/matmul.h"

#define EA_SLOT(name, ret, args, names)
#define EA_MATMUL(name, dtype) extern const ea_matmul_impl ea_matmul_##name##__ref;
#include "kernel/kernel_slots.def"
#undef EA_SLOT
#undef EA_MATMUL

#endif
