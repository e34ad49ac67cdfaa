/* test_quant.c: the block formats. Layouts are held by hashes of dequantised fixed blocks that were
 * computed with the format's reference implementation; quantisers by error bounds that follow from
 * each format's step. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "quant/blocks.h"
#include "quant/quant.h"

enum { N = 1024 };

static const ea_dtype weights[] = {
    EA_DTYPE_F32,  EA_DTYPE_F16,  EA_DTYPE_BF16, EA_DTYPE_Q4_0,   EA_DTYPE_Q4_1,
    EA_DTYPE_Q5_0, EA_DTYPE_Q5_1, EA_DTYPE_Q8_0, EA_DTYPE_Q2_K,   EA_DTYPE_Q3_K,
    EA_DTYPE_Q4_K, EA_DTYPE_Q5_K, EA_DTYPE_Q6_K, EA_DTYPE_IQ4_NL,
};
enum { N_WEIGHTS = sizeof weights / sizeof *weights };

/* splitmix64 */
static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static float uniform(uint64_t *state) /* -1..1 */
{
    return (float)(int32_t)(next(state) >> 40) * 0x1p-23f - 1.0f;
}

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_WEIGHTS; i++) {
        const ea_dtype_info *info = ea_dtype_find(weights[i]);
        assert_non_null(info);
        assert_int_equal(info->type, weights[i]);
        assert_true(info->is_weight);
        assert_ptr_equal(ea_dtype_by_name(info->name), info);
    }
    assert_ptr_equal(ea_dtype_by_name("q4_k"), ea_dtype_find(12));
    assert_int_equal(ea_dtype_row_bytes(EA_DTYPE_Q4_K, 512), 288);
    assert_int_equal(ea_dtype_row_bytes(EA_DTYPE_I64, 3), 24);
    assert_int_equal(ea_dtype_row_bytes(EA_DTYPE_F32, 0), 0);
    assert_false(ea_dtype_find(EA_DTYPE_I32)->is_weight);
    /* Removed and never assigned ids. */
    static const uint32_t unknown[] = {4, 5, 9, 31, 255, UINT32_MAX};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_null(ea_dtype_find(unknown[i]));
    assert_null(ea_dtype_by_name("Q4_K_M"));
}

/* Blocks of random bytes whose f16 fields (at f16_at) are given moderate exponents. */
static void random_blocks(const ea_dtype_info *info, const int f16_at[2], uint8_t *bytes)
{
    uint64_t s = (uint64_t)info->type;
    int n = N / info->block, size = info->block_bytes;
    for (int i = 0; i < n * size; i++)
        bytes[i] = (uint8_t)next(&s);
    for (int i = 0; i < n; i++) {
        if (info->type == EA_DTYPE_F32)
            bytes[i * 4 + 3] = (uint8_t)((bytes[i * 4 + 3] & 0x80) | 0x3f);
        for (int f = 0; f < 2 && f16_at[f] >= 0; f++) {
            uint8_t *high = &bytes[i * size + f16_at[f] + 1];
            *high = (uint8_t)((*high & 0x83) | 0x30);
        }
    }
}

static void test_dequantise_matches_reference(void **state)
{
    (void)state;
    /* FNV-1a of the N floats, from the reference implementation on the same bytes. */
    static const struct {
        ea_dtype type;
        int f16_at[2];
        uint64_t hash;
    } golden[] = {
        {EA_DTYPE_F32, {-1, -1}, 0x7078a1cf795a6517u},
        {EA_DTYPE_F16, {0, -1}, 0xf9104278469c095cu},
        {EA_DTYPE_BF16, {0, -1}, 0x93376804e8f195c0u},
        {EA_DTYPE_Q4_0, {0, -1}, 0xe7998a6b7c152659u},
        {EA_DTYPE_Q4_1, {0, 2}, 0x7d71c46e60102677u},
        {EA_DTYPE_Q5_0, {0, -1}, 0x60fe129041219cf4u},
        {EA_DTYPE_Q5_1, {0, 2}, 0x12e6d86c4a14171eu},
        {EA_DTYPE_Q8_0, {0, -1}, 0x4bbd034e7a920c8bu},
        {EA_DTYPE_Q2_K, {80, 82}, 0xaef900861f755978u},
        {EA_DTYPE_Q3_K, {108, -1}, 0xf567a0a444c9086du},
        {EA_DTYPE_Q4_K, {0, 2}, 0xf7b6f666243ab6b5u},
        {EA_DTYPE_Q5_K, {0, 2}, 0x82d75dff6753dad2u},
        {EA_DTYPE_Q6_K, {208, -1}, 0x63bd28cc92000d20u},
        {EA_DTYPE_IQ4_NL, {0, -1}, 0xe41cb8bb5e209416u},
    };
    static uint8_t bytes[N * 4 + 1];
    static float x[N], x_odd[N];
    assert_int_equal(sizeof golden / sizeof *golden, N_WEIGHTS);
    for (size_t i = 0; i < N_WEIGHTS; i++) {
        const ea_dtype_info *info = ea_dtype_find(golden[i].type);
        random_blocks(info, golden[i].f16_at, bytes);
        info->dequantise(bytes, x, N);
        uint64_t h = 0xcbf29ce484222325u;
        for (size_t b = 0; b < sizeof x; b++)
            h = (h ^ ((const uint8_t *)x)[b]) * 0x100000001b3u;
        if (h != golden[i].hash)
            fail_msg("%s: hash %016llx, reference %016llx", info->name, (unsigned long long)h,
                     (unsigned long long)golden[i].hash);
        /* An odd address gives the same. */
        memmove(bytes + 1, bytes, ea_dtype_row_bytes(info->type, N));
        info->dequantise(bytes + 1, x_odd, N);
        assert_memory_equal(x, x_odd, sizeof x);
    }
}

static void test_packed_scales_round_trip(void **state)
{
    (void)state;
    uint64_t s = 7;
    for (int round = 0; round < 100; round++) {
        uint8_t sc[8], m[8], sc2[8], m2[8], packed[EA_K_SCALES];
        int8_t t[16], t2[16];
        for (int i = 0; i < 8; i++) {
            sc[i] = (uint8_t)(next(&s) & 63);
            m[i] = (uint8_t)(next(&s) & 63);
        }
        for (int i = 0; i < 16; i++)
            t[i] = (int8_t)((int)(next(&s) & 63) - 32);
        ea_q4k_scales_pack(sc, m, packed);
        ea_q4k_scales_unpack(packed, sc2, m2);
        assert_memory_equal(sc, sc2, sizeof sc);
        assert_memory_equal(m, m2, sizeof m);
        ea_q3k_scales_pack(t, packed);
        ea_q3k_scales_unpack(packed, t2);
        assert_memory_equal(t, t2, sizeof t);
    }
}

/* ---- quantisers ---- */

typedef struct bounds {
    float lo, hi, amax;
} bounds;

static bounds bounds_of(const float *x, int n)
{
    bounds b = {0.0f, 0.0f, 0.0f}; /* lo <= 0 <= hi: what formats with a minimum store */
    for (int i = 0; i < n; i++) {
        b.lo = fminf(b.lo, x[i]);
        b.hi = fmaxf(b.hi, x[i]);
    }
    b.amax = fmaxf(-b.lo, b.hi);
    return b;
}

/* Largest root-mean-square error of one sub-block, given its bounds (b) and its block's (all).
 * Rounding to nearest costs half a step; a symmetric format lacks the level that would hold +max
 * where -max sets the scale, which costs a whole step; scales of sub-blocks are themselves rounded
 * to a step d of the super-block. f16: what storing a scale in 11 bits, or as a subnormal (2^-25
 * off), may cost once it is multiplied by the largest integers. */
static float rms_bound(ea_dtype type, bounds b, bounds all)
{
    float levels = ea_dtype_find(type)->block == 256 ? 4096.0f : 128.0f;
    float f16 = (all.hi - all.lo) * 0x1p-10f + levels * 0x1p-25f, span = b.hi - b.lo,
          all_span = all.hi - all.lo;
    switch (type) {
    case EA_DTYPE_F32: return 0.0f;
    case EA_DTYPE_F16: return fmaxf(b.amax * 0x1p-11f, 0x1p-25f);
    case EA_DTYPE_BF16: return b.amax * 0x1p-8f;
    case EA_DTYPE_Q4_0: return b.amax / 8.0f + f16;
    case EA_DTYPE_Q5_0: return b.amax / 16.0f + f16;
    case EA_DTYPE_Q4_1: return span / 30.0f + f16;
    case EA_DTYPE_Q5_1: return span / 62.0f + f16;
    case EA_DTYPE_Q8_0: return b.amax / 254.0f + f16;
    case EA_DTYPE_IQ4_NL: return b.amax * 14.0f / 127.0f + f16; /* 113 -> 127 is the widest gap */
    case EA_DTYPE_Q2_K: return (span / 3 + all_span / 3 / 15) / 2 + -all.lo / 15 + f16;
    case EA_DTYPE_Q4_K: return (span / 15 + all_span / 15 / 63) / 2 + -all.lo / 63 + f16;
    case EA_DTYPE_Q5_K: return (span / 31 + all_span / 31 / 63) / 2 + -all.lo / 63 + f16;
    case EA_DTYPE_Q3_K: return b.amax / 4 + all.amax / 4 / 32 * (1 + 4) + f16;
    case EA_DTYPE_Q6_K: return b.amax / 32 + all.amax / 32 / 128 * (1 + 32) + f16;
    default: fail_msg("type %d has no bound", type); return 0.0f;
    }
}

enum { N_SHAPES = 9 };

/* Inputs with different troubles: plain, zeros, constants of either sign, one sign only, outliers,
 * far from zero, tiny, one sub-block much larger than the others. */
static void make_input(int shape, float *x)
{
    uint64_t s = 1000 + (uint64_t)shape;
    for (int i = 0; i < N; i++) {
        float u = uniform(&s);
        switch (shape) {
        case 0: x[i] = u; break;
        case 1: x[i] = 0.0f; break;
        case 2: x[i] = -0.75f; break;
        case 3: x[i] = fabsf(u) + 0.01f; break;
        case 4: x[i] = -fabsf(u); break;
        case 5: x[i] = i % 97 == 0 ? 50.0f * u : u; break;
        case 6: x[i] = 100.0f + u; break;
        case 7: x[i] = u * 1e-2f; break;
        default: x[i] = i / 16 % 5 == 0 ? 20.0f * u : 0.1f * u; break;
        }
    }
}

static void check_round_trip(const ea_dtype_info *info, int shape)
{
    static float x[N], y[N];
    static uint8_t bytes[N * 4 + 8];
    size_t n_bytes = ea_dtype_row_bytes(info->type, N);
    make_input(shape, x);
    memset(bytes, 0xa5, sizeof bytes);
    info->quantise(x, bytes, N);
    for (size_t i = n_bytes; i < sizeof bytes; i++)
        assert_int_equal(bytes[i], 0xa5); /* nothing past the row is written */
    info->dequantise(bytes, y, N);
    int sub = info->block == 1 ? 1 : info->block == 32 ? 32 : 16;
    if (info->type == EA_DTYPE_Q4_K || info->type == EA_DTYPE_Q5_K)
        sub = 32;
    for (int i = 0; i < N; i += sub) {
        bounds all = bounds_of(x + i / info->block * info->block, info->block);
        float limit = rms_bound(info->type, bounds_of(x + i, sub), all), sum = 0.0f;
        for (int j = i; j < i + sub; j++)
            sum += (x[j] - y[j]) * (x[j] - y[j]);
        if (!(sqrtf(sum / (float)sub) <= limit))
            fail_msg("%s, shape %d, element %d: rms error %g, bound %g", info->name, shape, i,
                     (double)sqrtf(sum / (float)sub), (double)limit);
    }
}

static void test_round_trip_error_is_bounded(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_WEIGHTS; i++)
        for (int shape = 0; shape < N_SHAPES; shape++)
            check_round_trip(ea_dtype_find(weights[i]), shape);
}

/* More bits, less error: on one plain input each format beats the next coarser one of its family.
 */
static void test_more_bits_are_better(void **state)
{
    (void)state;
    static const ea_dtype order[] = {EA_DTYPE_Q2_K, EA_DTYPE_Q3_K, EA_DTYPE_Q4_K, EA_DTYPE_Q5_K,
                                     EA_DTYPE_Q6_K, EA_DTYPE_Q8_0, EA_DTYPE_F16,  EA_DTYPE_F32};
    static float x[N], y[N];
    static uint8_t bytes[N * 4];
    float last = INFINITY;
    make_input(0, x);
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        const ea_dtype_info *info = ea_dtype_find(order[i]);
        info->quantise(x, bytes, N);
        info->dequantise(bytes, y, N);
        float sum = 0.0f;
        for (int j = 0; j < N; j++)
            sum += (x[j] - y[j]) * (x[j] - y[j]);
        if (!(sum < last))
            fail_msg("%s: squared error %g, the coarser format had %g", info->name, (double)sum,
                     (double)last);
        last = sum;
    }
}

/* Values out of contract give some block and no undefined behaviour (the sanitizers look). */
static void test_quantise_bears_bad_floats(void **state)
{
    (void)state;
    static float x[N];
    static uint8_t bytes[N * 4];
    for (int i = 0; i < N; i++)
        x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -3e38f;
    for (size_t i = 0; i < N_WEIGHTS; i++)
        ea_dtype_find(weights[i])->quantise(x, bytes, N);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_dequantise_matches_reference),
        cmocka_unit_test(test_packed_scales_round_trip),
        cmocka_unit_test(test_round_trip_error_is_bounded),
        cmocka_unit_test(test_more_bits_are_better),
        cmocka_unit_test(test_quantise_bears_bad_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
