/* matmul.h: matrix products of quantised weights for AMX. */
#ifndef EA_KERNEL_AMX_MATMUL_H
#define EA_KERNEL_AMX_MATMUL_H

#include "kernel/matmul.h"

/* The tests build this folder a second time, over an emulation of the unit, under another name. */
#ifndef EA_AMX_NAME
#define EA_AMX_NAME amx
#endif
#define EA_AMX_JOIN2(name, level) name##__##level
#define EA_AMX_JOIN(name, level) EA_AMX_JOIN2(name, level)
#define EA_AMX_IMPL(name) EA_AMX_JOIN(ea_matmul_##name, EA_AMX_NAME)

#define EA_FORMAT(name, ...) extern const ea_matmul_impl EA_AMX_IMPL(name);
#include "kernel/formats.def"
#undef EA_FORMAT

#endif
