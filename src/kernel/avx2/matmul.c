/* matmul.c: see matmul.h. */
typedef int ea_matmul_avx2_empty;
