/* matmul.c: matrix products of quantised weights for AVX-512 without VNNI. Body: matmul_vec.h. */
#include "kernel/avx512/matmul.h"

#include "kernel/avx512/vec_int.h"

#define LEVEL avx512
#define VNNI 0
#define MAX_ROWS 8
enum { CHUNK_BYTES = 768 * 1024 };

#define vi_dot2(acc, a, b) vi_add((acc), vi_madd16((a), (b)))
#define vi_dot2_at(acc, a, p) vi_dot2((acc), (a), vi_set1_32(load32(p)))

#include "kernel/matmul_vec.h"
