/* kernel_support.h: what the kernel tests share: random inputs, the list of weight formats made
 * from kernel_slots.def, and the walk over the levels that the machine has. */
#ifndef EA_TESTS_KERNEL_SUPPORT_H
#define EA_TESTS_KERNEL_SUPPORT_H

#include "support.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernel/table.h"
#include "quant/blocks.h"

/* xorshift64*: deterministic, good enough for test data. */
typedef struct rng {
    uint64_t s;
} rng;

static inline uint32_t rng_u32(rng *r)
{
    r->s ^= r->s >> 12;
    r->s ^= r->s << 25;
    r->s ^= r->s >> 27;
    return (uint32_t)(r->s * 0x2545f4914f6cdd1dull >> 32);
}

/* Uniform in [-1, 1). */
static inline float rng_float(rng *r)
{
    return (float)(int32_t)rng_u32(r) * 0x1p-31f;
}

static inline void *checked(void *p)
{
    assert_non_null(p);
    return p;
}

#ifdef EA_TEST_AMX_EMULATED
extern const ea_kernel_table ea_kernel_amx_emulated;
#endif

/* Walk over the levels built in: `body(level)` runs for each that the machine has; others are named
 * as skipped. Returns how many ran. */
static inline int for_each_level(void (*body)(const ea_kernel_level *level))
{
    int n_run = 0;
#ifdef EA_TEST_AMX_EMULATED
    if (ea_cpu_has(EA_CPU_AVX512VNNI)) {
        body(&(ea_kernel_level){EA_CPU_AMX, &ea_kernel_amx_emulated});
        n_run++;
    } else {
        printf("SKIPPED: emulated AMX: needs AVX-512 VNNI\n");
    }
#else
    size_t n;
    const ea_kernel_level *levels = ea_kernel_levels(&n);
    for (size_t i = 0; i < n; i++) {
        if (!ea_cpu_has(levels[i].level)) {
            printf("SKIPPED: level %s: not on this machine, or masked by EA_CPU\n",
                   ea_cpu_level_name(levels[i].level));
            continue;
        }
        body(&levels[i]);
        n_run++;
    }
#endif
    return n_run;
}

/* ---- weight formats ---- */

static const ea_dtype matmul_types[] = {
#define EA_SLOT(name, ret, args, names)
#define EA_MATMUL(name, dtype) EA_DTYPE_##dtype,
#include "kernel/kernel_slots.def"
#undef EA_SLOT
#undef EA_MATMUL
};

/* Where a block has its half-precision scales, and its codes. */
typedef struct block_fields {
    ea_dtype type;
    int n_halves, halves[2];
    int codes, n_codes, codes2, n_codes2;
} block_fields;

#define OFF(type, field) (int)offsetof(ea_block_##type, field)
#define CODES(type, field) OFF(type, field), (int)sizeof(((ea_block_##type *)0)->field)
static const block_fields fields[] = {
    {EA_DTYPE_Q4_0, 1, {OFF(q4_0, d)}, CODES(q4_0, qs), 0, 0},
    {EA_DTYPE_Q4_1, 2, {OFF(q4_1, d), OFF(q4_1, m)}, CODES(q4_1, qs), 0, 0},
    {EA_DTYPE_Q5_0, 1, {OFF(q5_0, d)}, CODES(q5_0, qs), CODES(q5_0, qh)},
    {EA_DTYPE_Q5_1, 2, {OFF(q5_1, d), OFF(q5_1, m)}, CODES(q5_1, qs), CODES(q5_1, qh)},
    {EA_DTYPE_Q8_0, 1, {OFF(q8_0, d)}, CODES(q8_0, qs), 0, 0},
    {EA_DTYPE_IQ4_NL, 1, {OFF(iq4_nl, d)}, CODES(iq4_nl, qs), 0, 0},
    {EA_DTYPE_Q2_K, 2, {OFF(q2_k, d), OFF(q2_k, dmin)}, CODES(q2_k, qs), 0, 0},
    {EA_DTYPE_Q3_K, 1, {OFF(q3_k, d)}, CODES(q3_k, qs), CODES(q3_k, hmask)},
    {EA_DTYPE_Q4_K, 2, {OFF(q4_k, d), OFF(q4_k, dmin)}, CODES(q4_k, qs), 0, 0},
    {EA_DTYPE_Q5_K, 2, {OFF(q5_k, d), OFF(q5_k, dmin)}, CODES(q5_k, qs), CODES(q5_k, qh)},
    {EA_DTYPE_Q6_K, 1, {OFF(q6_k, d)}, CODES(q6_k, ql), CODES(q6_k, qh)},
};

/* NULL for the float formats. */
static inline const block_fields *fields_of(ea_dtype type)
{
    for (size_t i = 0; i < EA_ARRAY_LEN(fields); i++)
        if (fields[i].type == type)
            return &fields[i];
    return NULL;
}

/* What the bytes of weights are. RANDOM: every byte, scales in (-1, 1) / 64. The others: extremes
 * of codes and small scales, with random d. */
typedef enum weight_mode {
    W_RANDOM,
    W_ONES,
    W_ZEROS,
    W_80,
    W_NO_SCALE,
    N_WEIGHT_MODES
} weight_mode;

/* One file row of k weights. */
static inline void fill_weights(rng *r, ea_dtype type, weight_mode mode, int k, uint8_t *dst)
{
    const block_fields *f = fields_of(type);
    const ea_dtype_info *info = ea_dtype_find((uint32_t)type);
    size_t n_bytes = ea_dtype_row_bytes(type, k);
    if (!f) {
        for (int i = 0; i < k; i++) {
            float x = mode == W_NO_SCALE || mode == W_ZEROS ? 0 : rng_float(r);
            info->quantise(&x, dst + (size_t)i * (size_t)info->block_bytes, 1);
        }
        return;
    }
    for (size_t i = 0; i < n_bytes; i++)
        dst[i] = mode == W_ONES    ? 0xff
                 : mode == W_80    ? 0x80
                 : mode == W_ZEROS ? 0
                                   : (uint8_t)rng_u32(r);
    for (int b = 0; b < k / info->block; b++)
        for (int h = 0; h < f->n_halves; h++) {
            ea_f16 d = ea_f32_to_f16(mode == W_NO_SCALE ? 0 : rng_float(r) / 64);
            memcpy(dst + (size_t)b * (size_t)info->block_bytes + f->halves[h], &d, sizeof d);
        }
}

#endif
