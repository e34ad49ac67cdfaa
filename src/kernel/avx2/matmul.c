/* matmul.c: matrix products of quantised weights for AVX2. Body: matmul_vec.h. */
#include "kernel/avx2/matmul.h"

#include "kernel/avx2/vec_int.h"

#define LEVEL avx2
#define VNNI 0
#define MAX_ROWS 4
/* The smallest second-level caches of machines with AVX2 have 256 KiB. */
enum { CHUNK_BYTES = 192 * 1024 };

#define vi_dot2(acc, a, b) vi_add((acc), vi_madd16((a), (b)))
#define vi_dot2_at(acc, a, p) vi_dot2((acc), (a), vi_set1_32(load32(p)))

#include "kernel/matmul_vec.h"
