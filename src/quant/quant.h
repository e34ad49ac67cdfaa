/* quant.h: the block formats of GGUF tensors and their scalar reference conversions, the oracle of
 * every kernel test. Format names, ids and bit layouts are those of the GGUF/ggml specification.
 * Pure functions; thread-safe. */
#ifndef EA_QUANT_QUANT_H
#define EA_QUANT_QUANT_H

#include "base/error.h"
#include "base/f16.h"

/* Values are the type ids stored in GGUF files. */
typedef enum ea_dtype {
    EA_DTYPE_F32 = 0,
    EA_DTYPE_F16 = 1,
    EA_DTYPE_Q4_0 = 2,
    EA_DTYPE_Q4_1 = 3,
    EA_DTYPE_Q5_0 = 6,
    EA_DTYPE_Q5_1 = 7,
    EA_DTYPE_Q8_0 = 8,
    EA_DTYPE_Q2_K = 10,
    EA_DTYPE_Q3_K = 11,
    EA_DTYPE_Q4_K = 12,
    EA_DTYPE_Q5_K = 13,
    EA_DTYPE_Q6_K = 14,
    EA_DTYPE_IQ4_NL = 20,
    EA_DTYPE_I8 = 24,
    EA_DTYPE_I16 = 25,
    EA_DTYPE_I32 = 26,
    EA_DTYPE_I64 = 27,
    EA_DTYPE_F64 = 28,
    EA_DTYPE_BF16 = 30,
} ea_dtype;

typedef struct ea_dtype_info {
    ea_dtype type;
    const char *name; /* "Q4_K" */
    int block;        /* elements of a block */
    int block_bytes;
    bool is_weight; /* has dequantise and quantise, so it may be a weight matrix */
    /* n is a multiple of block. */
    void (*dequantise)(const void *src, float *dst, int64_t n);
    void (*quantise)(const float *src, void *dst, int64_t n);
} ea_dtype_info;

/* NULL for an id that we do not know (the caller names it in its error). */
const ea_dtype_info *ea_dtype_find(uint32_t id);
const ea_dtype_info *ea_dtype_by_name(const char *name); /* case-insensitive */

/* Bytes of a row of n elements (n a multiple of the block, type known). */
size_t ea_dtype_row_bytes(ea_dtype type, int64_t n);

#endif
