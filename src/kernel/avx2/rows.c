/* rows.c: the small row operators for AVX2; see rows_vec.h. */
#include "kernel/avx2/slots.h"
#include "kernel/avx2/vec16.h"

#define EA_ROWS_NAME(op) ea_##op##__avx2
#include "kernel/rows_vec.h"
