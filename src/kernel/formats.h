/* formats.h: the quantised formats as compile-time constants for the kernels that are instantiated
 * once a format. Only files of the instruction-set folders include it. */
#ifndef EA_KERNEL_FORMATS_H
#define EA_KERNEL_FORMATS_H

#include "kernel/matmul.h"

typedef enum ea_codes_kind {
    CODES2,
    CODES3,
    CODES4,
    CODES4_NL, /* indices into a table of values */
    CODES5,
    CODES6,
    CODES8
} ea_codes_kind;

typedef enum ea_scale_kind {
    PLAIN,   /* f16 scale a 32-block */
    MIN,     /* and f16 minimum */
    K32_MIN, /* super-block: integer scale and minimum a 32-block, f16 d and dmin */
    K16,     /* super-block: integer scale a half block, f16 d */
    K16_MIN  /* super-block: integer scale and minimum a half block, f16 d and dmin */
} ea_scale_kind;

typedef struct ea_fmt {
    ea_codes_kind codes;
    ea_scale_kind scales;
    int zero;       /* u = q + zero, where u is what the codes say */
    int sb_blocks;  /* 32-blocks of a super-block */
    int front;      /* bytes before the first super-block, for each super-block */
    int head_bytes; /* header of a super-block */
    int code_bytes; /* of a 32-block */
} ea_fmt;

static inline __attribute__((always_inline)) bool ea_fmt_is_k(const ea_fmt f)
{
    return f.scales == K32_MIN || f.scales == K16 || f.scales == K16_MIN;
}

static inline __attribute__((always_inline)) bool ea_fmt_is_k16(const ea_fmt f)
{
    return f.scales == K16 || f.scales == K16_MIN;
}

static inline __attribute__((always_inline)) ea_acts_form ea_fmt_form(const ea_fmt f)
{
    return ea_fmt_is_k(f) ? EA_FORM_Q8K : EA_FORM_Q8;
}

static inline __attribute__((always_inline)) size_t ea_fmt_sb_bytes(const ea_fmt f)
{
    return (size_t)(f.head_bytes + f.sb_blocks * f.code_bytes);
}

/* Bytes before the first super-block of a tile of n_blocks 32-blocks. */
static inline __attribute__((always_inline)) size_t ea_fmt_front(const ea_fmt f, int n_blocks)
{
    return ((size_t)(n_blocks / f.sb_blocks) * (size_t)f.front + 63) / 64 * 64;
}

#define EA_FORMAT(name, ...) \
    static const ea_fmt ea_fmt_##name __attribute__((unused)) = {__VA_ARGS__};
#include "kernel/formats.def"
#undef EA_FORMAT

#endif
