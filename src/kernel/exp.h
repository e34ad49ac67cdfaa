/* exp.h: the constants and the order of operations of ea_exp, shared by the scalar form and by
 * every vector form, which must agree in all bits: t = fma(x, log2e, magic); n = t - magic nearest
 * integer of x / ln 2, by the rounding of the addition r = fma(-n, ln2_lo, fma(-n, ln2_hi, x)) |r|
 * <= ln 2 / 2 p = fma(fma(..fma(c6, r, c5)..c2, r, 1), r, 1) result = p * 2^n, exact or rounded
 * once; 0 where x < lo, infinity where x > hi, NaN stays NaN c2..c6 are a minimax fit of exp(r)
 * with both leading terms kept 1 (so exp(0) = 1 exactly); its own relative error is 0.05 * 2^-24,
 * the rest of the error is rounding. */
#ifndef EA_KERNEL_EXP_H
#define EA_KERNEL_EXP_H

#include "base/f16.h"

#include <math.h>

#define EA_EXP_LO (-87.3f)  /* e^lo is just above the smallest normal number */
#define EA_EXP_HI 88.72283f /* the largest x whose result is finite */
#define EA_EXP_LOG2E 0x1.715476p+0f
#define EA_EXP_MAGIC 0x1.8p23f /* adding it leaves the integer in the low mantissa bits */
#define EA_EXP_LN2_HI 0x1.62e430p-1f
#define EA_EXP_LN2_LO (-0x1.05c610p-29f)
#define EA_EXP_C2 0x1.fffffcp-2f
#define EA_EXP_C3 0x1.555490p-3f
#define EA_EXP_C4 0x1.5558f8p-5f
#define EA_EXP_C5 0x1.123b08p-7f
#define EA_EXP_C6 0x1.6a2264p-10f

/* Inline, so that a file compiled with FMA instructions uses them. */
static inline float ea_exp_scalar(float x)
{
    if (x < EA_EXP_LO)
        return 0.0f;
    if (x > EA_EXP_HI)
        return INFINITY;
    float t = fmaf(x, EA_EXP_LOG2E, EA_EXP_MAGIC), n = t - EA_EXP_MAGIC;
    float r = fmaf(-n, EA_EXP_LN2_LO, fmaf(-n, EA_EXP_LN2_HI, x));
    float p = fmaf(EA_EXP_C6, r, EA_EXP_C5);
    p = fmaf(p, r, EA_EXP_C4);
    p = fmaf(p, r, EA_EXP_C3);
    p = fmaf(p, r, EA_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* n runs from -126 to 128: two factors, since 2^128 is not a float. The first product is exact.
     */
    int32_t i = (int32_t)(ea_f32_bits(t) - ea_f32_bits(EA_EXP_MAGIC)), half = i >> 1;
    return p * ea_f32_from_bits((uint32_t)(half + 127) << 23) *
           ea_f32_from_bits((uint32_t)(i - half + 127) << 23);
}

#endif
