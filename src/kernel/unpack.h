/* unpack.h: the way back from a packed matrix. */
#ifndef EA_KERNEL_UNPACK_H
#define EA_KERNEL_UNPACK_H

#include "kernel/kernel.h"

/* The k weights of output `row` (0 <= row < n) as floats: the very bits that the file's row gives.
 * Any thread; slow beside a row that lies in one piece (about 1 ns a weight), for tables of which a
 * step needs a few rows. */
void ea_matrix_row(const ea_matrix *m, int row, float *out);

#endif
