/* slots.h: what this folder has beside products, for table.c. Contracts in kernel.h. */
#ifndef EA_KERNEL_AVX512VNNI_SLOTS_H
#define EA_KERNEL_AVX512VNNI_SLOTS_H

#include "kernel/kernel.h"

void ea_attention_quant__avx512vnni(const ea_attn_args *args);

#endif
