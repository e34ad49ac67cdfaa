/* acts.c: quantising a part of an activation row. Blocks are independent, so a part is a narrower
 * ea_acts whose blocks lie inside the full one. */
#include "kernel/matmul.h"

void ea_acts_quantise_cols(const ea_acts *a, int row, int col0, int n)
{
    EA_ASSERT(col0 % EA_Q8_K == 0 && col0 + n <= a->k && (n % EA_Q8_K == 0 || col0 + n == a->k));
    ea_acts part = *a;
    int row_in_group = row % EA_Q8_ROWS;
    part.k = n;
    part.k_pad = (n + EA_Q8_K - 1) / EA_Q8_K * EA_Q8_K;
    part.max_rows = row_in_group + 1;
    /* Such that ea_acts_row and ea_acts_q8 of row_in_group give this row's part. */
    part.f32 = ea_acts_row(a, row) + col0 - (ptrdiff_t)row_in_group * part.k_pad;
    part.q8 = ea_acts_q8(a, row) + col0 / EA_Q8_K;
    ea_acts_quantise(&part, row_in_group);
}
