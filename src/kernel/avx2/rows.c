/* rows.c: see rows.h. */
typedef int ea_rows_avx2_empty;
