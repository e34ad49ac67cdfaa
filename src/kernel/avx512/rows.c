/* rows.c: the small row operators for AVX-512; see rows_vec.h. */
#include "kernel/avx512/slots.h"
#include "kernel/avx512/vec16.h"

#define EA_ROWS_NAME(op) ea_##op##__avx512
#include "kernel/rows_vec.h"
