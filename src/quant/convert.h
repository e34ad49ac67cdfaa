/* convert.h: the conversions that quant.c puts into its table; not for other folders. Contracts as
 * ea_dtype_info.dequantise and .quantise. */
#ifndef EA_QUANT_CONVERT_H
#define EA_QUANT_CONVERT_H

#include <stdint.h>

/* X(name in the function, enum suffix, elements, bytes) of every weight format. */
#define EA_WEIGHT_FORMATS(X) \
    X(f32, F32, 1, 4)        \
    X(f16, F16, 1, 2)        \
    X(bf16, BF16, 1, 2)      \
    X(q4_0, Q4_0, 32, 18)    \
    X(q4_1, Q4_1, 32, 20)    \
    X(q5_0, Q5_0, 32, 22)    \
    X(q5_1, Q5_1, 32, 24)    \
    X(q8_0, Q8_0, 32, 34)    \
    X(q2_k, Q2_K, 256, 84)   \
    X(q3_k, Q3_K, 256, 110)  \
    X(q4_k, Q4_K, 256, 144)  \
    X(q5_k, Q5_K, 256, 176)  \
    X(q6_k, Q6_K, 256, 210)  \
    X(iq4_nl, IQ4_NL, 32, 18)

#define EA_DECLARE_CONVERSIONS(fn, type, block, bytes)               \
    void ea_dequantise_##fn(const void *src, float *dst, int64_t n); \
    void ea_quantise_##fn(const float *src, void *dst, int64_t n);
EA_WEIGHT_FORMATS(EA_DECLARE_CONVERSIONS)
#undef EA_DECLARE_CONVERSIONS

#endif
