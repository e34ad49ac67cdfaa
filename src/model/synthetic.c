/* synthetic.c: see synthetic.h. Random numbers are counter-based: each row's bytes depend only on
 * (seed, tensor, row), so rows can be made by any thread in any order. Immutable while writing. */
#include "model/synthetic.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "quant/blocks.h"

/* ---- random numbers ---- */

#define GOLDEN 0x9e3779b97f4a7c15u /* 2^64 / golden ratio: the step of splitmix64 */

/* The finaliser of splitmix64: a bijection that mixes all bits. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Number i of the stream `key`. */
static uint64_t random_at(uint64_t key, uint64_t i)
{
    return mix(key + (i + 1) * GOLDEN);
}

static void random_bytes(uint64_t key, uint8_t *dst, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t r = random_at(key, i / 8);
        memcpy(dst + i, &r, 8);
    }
    if (i < n) {
        uint64_t r = random_at(key, i / 8);
        memcpy(dst + i, &r, n - i);
    }
}

/* ---- rows ---- */

/* Where a block keeps its scale, and its minimum as a multiple of the scale that makes the mean
 * zero: mean(q) for small blocks, mean(q) * mean(sc) / mean(m) for super-blocks. */
typedef struct block_layout {
    ea_dtype type;
    int scale_at, min_at; /* byte offsets; min_at -1: no minimum */
    float min_ratio;
} block_layout;

static const block_layout layouts[] = {
    {EA_DTYPE_Q4_0, 0, -1, 0.0f},  {EA_DTYPE_Q4_1, 0, 2, -7.5f},   {EA_DTYPE_Q5_0, 0, -1, 0.0f},
    {EA_DTYPE_Q5_1, 0, 2, -15.5f}, {EA_DTYPE_Q8_0, 0, -1, 0.0f},   {EA_DTYPE_Q2_K, 80, 82, 1.5f},
    {EA_DTYPE_Q3_K, 108, -1, 0},   {EA_DTYPE_Q4_K, 0, 2, 7.5f},    {EA_DTYPE_Q5_K, 0, 2, 15.5f},
    {EA_DTYPE_Q6_K, 208, -1, 0},   {EA_DTYPE_IQ4_NL, 0, -1, 0.0f},
};

static const block_layout *find_layout(ea_dtype type)
{
    for (size_t i = 0; i < EA_ARRAY_LEN(layouts); i++)
        if (layouts[i].type == type)
            return &layouts[i];
    return NULL;
}

/* One tensor: what its rows are made from. */
typedef struct source {
    uint64_t key;
    const ea_dtype_info *info;
    const block_layout *layout; /* NULL: plain floats */
    float offset, scale;        /* floats: offset + scale * u; blocks: mean of their scales */
} source;

static void store_f16(uint8_t *p, float x)
{
    ea_f16 h = ea_f32_to_f16(x);
    memcpy(p, &h, sizeof h);
}

/* Blocks: random bytes, then the scales. These vary by +-25 % from block to block, so that a kernel
 * that takes another block's scale is caught, and have either sign where the format has no minimum,
 * which takes away the mean of the lop-sided integers. */
static void fill_blocks(const source *s, uint64_t key, uint8_t *dst, size_t row_bytes)
{
    random_bytes(key, dst, row_bytes);
    size_t size = (size_t)s->info->block_bytes;
    for (uint8_t *b = dst; b < dst + row_bytes; b += size) {
        uint8_t *at = b + s->layout->scale_at;
        float d = s->scale * (0.75f + (float)at[0] / 512.0f);
        if (s->layout->min_at >= 0)
            store_f16(b + s->layout->min_at, s->layout->min_ratio * d);
        else if (at[1] & 1)
            d = -d;
        store_f16(at, d);
    }
}

/* Plain floats, uniform; 16 random bits each are plenty, since the scale spreads them over the
 * mantissa. */
static void fill_floats(const source *s, uint64_t key, uint8_t *dst, size_t n)
{
    enum { BATCH = 256 };
    float x[BATCH];
    int16_t r[BATCH];
    size_t size = (size_t)s->info->block_bytes;
    for (size_t i = 0; i < n; i += BATCH) {
        size_t count = EA_MIN(n - i, (size_t)BATCH);
        random_bytes(key + i * GOLDEN, (uint8_t *)r, sizeof r);
        for (size_t j = 0; j < count; j++)
            x[j] = s->offset + s->scale * ((float)r[j] * 0x1p-15f);
        s->info->quantise(x, dst + i * size, (int64_t)count);
    }
}

static void fill_row(void *user, int64_t row, void *dst, size_t row_bytes)
{
    const source *s = user;
    uint64_t key = mix(s->key ^ mix((uint64_t)row + 1));
    if (s->layout) {
        fill_blocks(s, key, dst, row_bytes);
        return;
    }
    fill_floats(s, key, dst, row_bytes / (size_t)s->info->block_bytes);
}

/* Root mean square of the elements that fill_row makes with scale 1, measured over enough of them
 * to know it to about 1 %. */
static float measure_unit_rms(source s)
{
    enum { N = 8192, MAX_BYTES = N * 2 };
    float *x = ea_malloc(N * sizeof *x);
    uint8_t *bytes = ea_malloc(MAX_BYTES);
    double sum = 0.0;
    if (x && bytes) {
        size_t n_bytes = (size_t)(N / s.info->block) * (size_t)s.info->block_bytes;
        s.scale = 1.0f;
        fill_blocks(&s, 1, bytes, n_bytes);
        s.info->dequantise(bytes, x, N);
        for (int i = 0; i < N; i++)
            sum += (double)x[i] * (double)x[i];
    }
    ea_free(x);
    ea_free(bytes);
    return (float)sqrt(sum / N);
}

/* ---- the model ---- */

enum { MAX_TENSORS_PER_LAYER = 12, MAX_TENSORS_OUTSIDE = 3, WORD_BYTES = 24 };

struct ea_synthetic {
    ea_synthetic_shape shape;
    uint64_t seed;
    ea_gguf_writer *writer;
    source *sources; /* one a tensor; the writer points at them */
    size_t n_sources, cap_sources;
    uint64_t n_bytes;
    float unit_rms[32]; /* by type id, 0 = not measured yet */
    ea_error err;
};

/* The type that a matrix of k inputs gets; see synthetic.h. */
static ea_dtype type_for(ea_dtype type, int64_t k)
{
    if (k % ea_dtype_find((uint32_t)type)->block == 0)
        return type;
    if (k % EA_QK)
        return EA_DTYPE_F16;
    switch (type) {
    case EA_DTYPE_Q4_K: return EA_DTYPE_Q5_0;
    case EA_DTYPE_Q5_K: return EA_DTYPE_Q5_1;
    case EA_DTYPE_Q6_K: return EA_DTYPE_Q8_0;
    default: return EA_DTYPE_IQ4_NL;
    }
}

/* A tensor and its source. rows 0: one-dimensional. */
static void add_tensor(ea_synthetic *s, ea_dtype type, const char *name, int64_t k, int64_t rows,
                       float offset, float scale)
{
    EA_ASSERT(s->n_sources < s->cap_sources);
    source *src = &s->sources[s->n_sources++];
    *src = (source){.key = mix(s->seed ^ mix(s->n_sources * GOLDEN)),
                    .info = ea_dtype_find((uint32_t)type),
                    .layout = find_layout(type),
                    .offset = offset,
                    .scale = scale};
    if (src->layout) {
        float *rms = &s->unit_rms[type];
        if (*rms == 0.0f)
            *rms = measure_unit_rms(*src);
        if (*rms == 0.0f)
            (void)ea_fail(&s->err, EA_ENOMEM, "out of memory: synthetic model");
        else
            src->scale /= *rms * sqrtf(3.0f); /* the caller's scale is for uniform -1..1 */
    }
    s->n_bytes += ea_dtype_row_bytes(type, k) * (uint64_t)EA_MAX(rows, 1);
    ea_gguf_put_tensor(s->writer, name, type, rows ? 2 : 1, (int64_t[]){k, rows}, fill_row, src);
}

/* A matrix of n outputs by k inputs with root mean square gain / sqrt(k). */
static void add_matrix(ea_synthetic *s, const char *name, int64_t k, int64_t n, float gain)
{
    add_tensor(s, type_for(s->shape.type, k), name, k, n, 0.0f, gain * sqrtf(3.0f / (float)k));
}

static void add_layer(ea_synthetic *s, int layer)
{
    const ea_synthetic_shape *m = &s->shape;
    int64_t embd = m->embd, kv = (int64_t)m->embd / m->heads * m->kv_heads, ff = m->ff;
    float to_residual = 1.0f / sqrtf(2.0f * (float)m->layers);
    bool biases = strcmp(m->arch, "qwen2") == 0;
    const struct {
        const char *name;
        int64_t k, n;
        float gain;
        bool bias;
    } matrices[] = {
        {"attn_q", embd, embd, 1.0f, biases},       {"attn_k", embd, kv, 1.0f, biases},
        {"attn_v", embd, kv, 1.0f, biases},         {"attn_output", embd, embd, to_residual, false},
        {"ffn_gate", embd, ff, 1.0f, false},        {"ffn_up", embd, ff, 1.0f, false},
        {"ffn_down", ff, embd, to_residual, false},
    };
    char name[EA_MAX_GGUF_NAME + 1];
    snprintf(name, sizeof name, "blk.%d.attn_norm.weight", layer);
    add_tensor(s, EA_DTYPE_F32, name, embd, 0, 1.0f, 0.1f);
    snprintf(name, sizeof name, "blk.%d.ffn_norm.weight", layer);
    add_tensor(s, EA_DTYPE_F32, name, embd, 0, 1.0f, 0.1f);
    for (size_t i = 0; i < EA_ARRAY_LEN(matrices); i++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, matrices[i].name);
        add_matrix(s, name, matrices[i].k, matrices[i].n, matrices[i].gain);
        if (!matrices[i].bias)
            continue;
        snprintf(name, sizeof name, "blk.%d.%s.bias", layer, matrices[i].name);
        add_tensor(s, EA_DTYPE_F32, name, matrices[i].n, 0, 0.0f, 0.3f);
    }
}

/* general.file_type as llama.cpp numbers it (the "S" mix for the K formats: one type all over). */
static int file_type(ea_dtype type)
{
    switch (type) {
    case EA_DTYPE_F16: return 1;
    case EA_DTYPE_Q4_0: return 2;
    case EA_DTYPE_Q4_1: return 3;
    case EA_DTYPE_Q8_0: return 7;
    case EA_DTYPE_Q5_0: return 8;
    case EA_DTYPE_Q5_1: return 9;
    case EA_DTYPE_Q2_K: return 10;
    case EA_DTYPE_Q3_K: return 11;
    case EA_DTYPE_Q4_K: return 14;
    case EA_DTYPE_Q5_K: return 16;
    case EA_DTYPE_Q6_K: return 18;
    case EA_DTYPE_IQ4_NL: return 25;
    case EA_DTYPE_BF16: return 32;
    default: return 0;
    }
}

static void put_hyper(ea_synthetic *s)
{
    const ea_synthetic_shape *m = &s->shape;
    const struct {
        const char *key;
        int value;
    } ints[] = {
        {"block_count", m->layers},
        {"context_length", m->ctx},
        {"embedding_length", m->embd},
        {"feed_forward_length", m->ff},
        {"attention.head_count", m->heads},
        {"attention.head_count_kv", m->kv_heads},
        {"rope.dimension_count", m->embd / m->heads},
        {"vocab_size", m->vocab},
    };
    char key[64], name[128];
    ea_gguf_put_str(s->writer, "general.architecture", m->arch);
    snprintf(name, sizeof name, "synthetic %s %dx%d %s", m->arch, m->layers, m->embd,
             ea_dtype_find((uint32_t)m->type)->name);
    ea_gguf_put_str(s->writer, "general.name", name);
    ea_gguf_put_int(s->writer, "general.file_type", EA_GGUF_U32, file_type(m->type));
    for (size_t i = 0; i < EA_ARRAY_LEN(ints); i++) {
        snprintf(key, sizeof key, "%s.%s", m->arch, ints[i].key);
        ea_gguf_put_int(s->writer, key, EA_GGUF_U32, ints[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", m->arch);
    ea_gguf_put_float(s->writer, key, m->norm_eps);
    snprintf(key, sizeof key, "%s.rope.freq_base", m->arch);
    ea_gguf_put_float(s->writer, key, m->rope_base);
}

/* Word i of the list of all words over 27 letters (space, written as SPM writes it, and a-z) in
 * order of length. Every word's beginning is in the list before it, so the tokenizer's merges can
 * reach each. */
static void make_word(int i, char *out)
{
    int letters[8], n = 0;
    for (i += 1; i > 0; i = (i - 1) / 27)
        letters[n++] = (i - 1) % 27;
    while (n-- > 0) {
        if (letters[n] == 0) {
            memcpy(out, "\xe2\x96\x81", 3);
            out += 3;
        } else {
            *out++ = (char)('a' + letters[n] - 1);
        }
    }
    *out = '\0';
}

static ea_status put_vocabulary(ea_synthetic *s, ea_error *err)
{
    enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, BYTE = 6 }; /* the format's token types */
    size_t n = (size_t)s->shape.vocab;
    char(*text)[WORD_BYTES] = ea_malloc(n * sizeof *text);
    const char **tokens = ea_malloc(n * sizeof *tokens);
    int64_t *types = ea_malloc(n * sizeof *types);
    float *scores = ea_malloc(n * sizeof *scores);
    ea_status status = EA_OK;
    if (!text || !tokens || !types || !scores) {
        status = ea_fail(err, EA_ENOMEM, "out of memory: vocabulary of %zu", n);
        goto fail;
    }
    static const char *const specials[] = {"<unk>", "<s>", "</s>"};
    for (size_t i = 0; i < n; i++) {
        tokens[i] = text[i];
        scores[i] = i < EA_SYNTHETIC_MIN_VOCAB ? 0.0f : -(float)(i - EA_SYNTHETIC_MIN_VOCAB);
        types[i] = i == 0 ? UNKNOWN : i < 3 ? CONTROL : i < EA_SYNTHETIC_MIN_VOCAB ? BYTE : NORMAL;
        if (i < 3)
            snprintf(text[i], WORD_BYTES, "%s", specials[i]);
        else if (i < EA_SYNTHETIC_MIN_VOCAB)
            snprintf(text[i], WORD_BYTES, "<0x%02X>", (unsigned)(i - 3));
        else
            make_word((int)(i - EA_SYNTHETIC_MIN_VOCAB), text[i]);
    }
    ea_gguf_put_str(s->writer, "tokenizer.ggml.model", "llama");
    ea_gguf_put_str_array(s->writer, "tokenizer.ggml.tokens", tokens, n);
    ea_gguf_put_float_array(s->writer, "tokenizer.ggml.scores", scores, n);
    ea_gguf_put_int_array(s->writer, "tokenizer.ggml.token_type", EA_GGUF_I32, types, n);
    ea_gguf_put_int(s->writer, "tokenizer.ggml.unknown_token_id", EA_GGUF_U32, 0);
    ea_gguf_put_int(s->writer, "tokenizer.ggml.bos_token_id", EA_GGUF_U32, 1);
    ea_gguf_put_int(s->writer, "tokenizer.ggml.eos_token_id", EA_GGUF_U32, 2);
    ea_gguf_put_bool(s->writer, "tokenizer.ggml.add_bos_token", true);
    ea_gguf_put_bool(s->writer, "tokenizer.ggml.add_space_prefix", false);
fail:
    ea_free(text);
    ea_free(tokens);
    ea_free(types);
    ea_free(scores);
    return status;
}

static ea_status check_shape(const ea_synthetic_shape *m, ea_error *err)
{
    const struct {
        const char *name;
        int value, min, max;
    } ranges[] = {
        {"layers", m->layers, 1, EA_MAX_LAYERS},
        {"embd", m->embd, 2, EA_MAX_EMBD},
        {"ff", m->ff, 1, 4 * EA_MAX_EMBD},
        {"heads", m->heads, 1, EA_MAX_HEADS},
        {"kv", m->kv_heads, 1, m->heads},
        {"vocab", m->vocab, EA_SYNTHETIC_MIN_VOCAB, EA_MAX_VOCAB},
        {"ctx", m->ctx, 1, EA_MAX_CTX},
    };
    for (size_t i = 0; i < EA_ARRAY_LEN(ranges); i++)
        if (ranges[i].value < ranges[i].min || ranges[i].value > ranges[i].max)
            return ea_fail(err, EA_EINVAL, "synthetic model: %s=%d is not in %d..%d",
                           ranges[i].name, ranges[i].value, ranges[i].min, ranges[i].max);
    if (m->embd % m->heads || m->embd / m->heads % 2 || m->embd / m->heads > EA_MAX_HEAD_DIM)
        return ea_fail(err, EA_EINVAL,
                       "synthetic model: embd=%d over heads=%d gives no even head size up to %d",
                       m->embd, m->heads, EA_MAX_HEAD_DIM);
    if (m->heads % m->kv_heads)
        return ea_fail(err, EA_EINVAL, "synthetic model: kv=%d does not divide heads=%d",
                       m->kv_heads, m->heads);
    if (strcmp(m->arch, "llama") != 0 && strcmp(m->arch, "qwen2") != 0)
        return ea_fail(err, EA_EINVAL, "synthetic model: arch=%s, known are llama and qwen2",
                       m->arch);
    const ea_dtype_info *info = ea_dtype_find((uint32_t)m->type);
    if (!info || !info->is_weight)
        return ea_fail(err, EA_EINVAL, "synthetic model: type %d is no weight format",
                       (int)m->type);
    return EA_OK;
}

ea_status ea_synthetic_create(const ea_synthetic_shape *shape, uint64_t seed, ea_synthetic **out,
                              ea_error *err)
{
    EA_TRY(check_shape(shape, err));
    ea_status status = EA_OK;
    ea_synthetic *s = ea_calloc(1, sizeof *s);
    if (!s)
        return ea_fail(err, EA_ENOMEM, "out of memory: synthetic model");
    s->shape = *shape;
    s->seed = seed;
    s->cap_sources = (size_t)shape->layers * MAX_TENSORS_PER_LAYER + MAX_TENSORS_OUTSIDE;
    s->sources = ea_calloc(s->cap_sources, sizeof *s->sources);
    if (!s->sources) {
        status = ea_fail(err, EA_ENOMEM, "out of memory: synthetic model");
        goto fail;
    }
    EA_TRY_GOTO(ea_gguf_writer_create(&s->writer, err));
    put_hyper(s);
    EA_TRY_GOTO(put_vocabulary(s, err));
    add_matrix(s, "token_embd.weight", shape->embd, shape->vocab, 1.0f);
    for (int layer = 0; layer < shape->layers; layer++)
        add_layer(s, layer);
    add_tensor(s, EA_DTYPE_F32, "output_norm.weight", shape->embd, 0, 1.0f, 0.1f);
    if (!shape->tied)
        add_matrix(s, "output.weight", shape->embd, shape->vocab, 1.0f);
    if (s->err.code != EA_OK) {
        status = ea_fail(err, s->err.code, "%s", s->err.text);
        goto fail;
    }
    *out = s;
    return EA_OK;
fail:
    ea_synthetic_destroy(s);
    return status;
}

ea_gguf_writer *ea_synthetic_writer(ea_synthetic *s)
{
    return s->writer;
}

uint64_t ea_synthetic_bytes(const ea_synthetic *s)
{
    return s->n_bytes;
}

void ea_synthetic_destroy(ea_synthetic *s)
{
    if (!s)
        return;
    ea_gguf_writer_destroy(s->writer);
    ea_free(s->sources);
    ea_free(s);
}

/* ---- specs ---- */

#define SHAPE_NAMES "llama-1b, llama-8b, qwen-0.5b, qwen-1.5b, smollm2-135m"

/* The published configurations of these models; all have a norm epsilon of 1e-5 (llama) or 1e-6
 * (qwen2). */
static const struct {
    const char *name;
    ea_synthetic_shape shape;
} shapes[] = {
    {"llama-1b",
     {"llama", 16, 2048, 8192, 32, 8, 128256, 131072, 500000.0f, 1e-5f, true, EA_DTYPE_F32}},
    {"llama-8b",
     {"llama", 32, 4096, 14336, 32, 8, 128256, 131072, 500000.0f, 1e-5f, false, EA_DTYPE_F32}},
    {"qwen-0.5b",
     {"qwen2", 24, 896, 4864, 14, 2, 151936, 32768, 1000000.0f, 1e-6f, true, EA_DTYPE_F32}},
    {"qwen-1.5b",
     {"qwen2", 28, 1536, 8960, 12, 2, 151936, 32768, 1000000.0f, 1e-6f, true, EA_DTYPE_F32}},
    {"smollm2-135m",
     {"llama", 30, 576, 1536, 9, 3, 49152, 8192, 100000.0f, 1e-5f, true, EA_DTYPE_F32}},
};

const char *ea_synthetic_shapes(void)
{
    return SHAPE_NAMES;
}

/* Digits only, at most INT_MAX. */
static bool parse_int(const char *s, size_t n, int *out)
{
    int value = 0;
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9' || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, s[i] - '0', &value))
            return false;
    if (n == 0)
        return false;
    *out = value;
    return true;
}

static bool same(const char *s, size_t n, const char *word)
{
    return strlen(word) == n && memcmp(s, word, n) == 0;
}

/* One "key=value" of a shape written out. */
static ea_status parse_pair(const char *pair, size_t n, ea_synthetic_shape *shape, ea_error *err)
{
    const char *eq = memchr(pair, '=', n);
    size_t key_n = eq ? (size_t)(eq - pair) : n, value_n = eq ? n - key_n - 1 : 0;
    const struct {
        const char *key;
        int *value;
    } ints[] = {
        {"layers", &shape->layers}, {"embd", &shape->embd},   {"ff", &shape->ff},
        {"heads", &shape->heads},   {"kv", &shape->kv_heads}, {"vocab", &shape->vocab},
        {"ctx", &shape->ctx},
    };
    for (size_t i = 0; eq && i < EA_ARRAY_LEN(ints); i++)
        if (same(pair, key_n, ints[i].key) && parse_int(eq + 1, value_n, ints[i].value))
            return EA_OK;
    if (eq && same(pair, key_n, "arch") &&
        (same(eq + 1, value_n, "llama") || same(eq + 1, value_n, "qwen2"))) {
        shape->arch = eq[1] == 'l' ? "llama" : "qwen2";
        return EA_OK;
    }
    if (eq && same(pair, key_n, "tied") &&
        (same(eq + 1, value_n, "0") || same(eq + 1, value_n, "1"))) {
        shape->tied = eq[1] == '1';
        return EA_OK;
    }
    return ea_fail(
        err, EA_EINVAL,
        "synthetic model: '%.*s' is not one of layers=N embd=N ff=N heads=N kv=N vocab=N "
        "ctx=N arch=llama|qwen2 tied=0|1",
        (int)EA_MIN(n, 64u), pair);
}

static ea_status parse_shape(const char *s, size_t n, ea_synthetic_shape *out, ea_error *err)
{
    for (size_t i = 0; i < EA_ARRAY_LEN(shapes); i++)
        if (same(s, n, shapes[i].name)) {
            *out = shapes[i].shape;
            return EA_OK;
        }
    if (!memchr(s, '=', n))
        return ea_fail(err, EA_EINVAL,
                       "synthetic model: unknown shape '%.*s'; known are %s, or write it out as "
                       "layers=N,embd=N,ff=N,heads=N,kv=N,vocab=N",
                       (int)EA_MIN(n, 64u), s, SHAPE_NAMES);
    *out = (ea_synthetic_shape){
        .arch = "llama", .ctx = 4096, .rope_base = 10000.0f, .norm_eps = 1e-5f, .tied = true};
    for (const char *end = s + n; s < end;) {
        const char *comma = memchr(s, ',', (size_t)(end - s));
        size_t len = comma ? (size_t)(comma - s) : (size_t)(end - s);
        EA_TRY(parse_pair(s, len, out, err));
        s += len + (comma != NULL);
    }
    return EA_OK;
}

ea_status ea_synthetic_parse(const char *spec, ea_synthetic_shape *out, ea_error *err)
{
    const char *colon = strrchr(spec, ':');
    if (!colon)
        return ea_fail(
            err, EA_EINVAL,
            "synthetic model '%.64s': expected <shape>:<type>, such as llama-1b:Q4_K; shapes "
            "are " SHAPE_NAMES,
            spec);
    ea_synthetic_shape shape;
    EA_TRY(parse_shape(spec, (size_t)(colon - spec), &shape, err));
    const ea_dtype_info *info = ea_dtype_by_name(colon + 1);
    if (!info || !info->is_weight)
        return ea_fail(
            err, EA_EINVAL,
            "synthetic model: unknown type '%.32s'; known are F32 F16 BF16 Q4_0 Q4_1 Q5_0 "
            "Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL",
            colon + 1);
    shape.type = info->type;
    EA_TRY(check_shape(&shape, err));
    *out = shape;
    return EA_OK;
}

ea_status ea_synthetic_model(const char *spec, uint64_t seed, int n_threads, void **out,
                             size_t *n_bytes, ea_error *err)
{
    ea_synthetic_shape shape;
    ea_synthetic *s;
    EA_TRY(ea_synthetic_parse(spec, &shape, err));
    EA_TRY(ea_synthetic_create(&shape, seed, &s, err));
    /* The system would promise more than it has and kill the process later. */
    uint64_t available = ea_memory_available();
    ea_status status;
    if (available && s->n_bytes > available)
        status = ea_fail(err, EA_ENOMEM,
                         "synthetic model %s needs %" PRIu64 " MiB of memory, %" PRIu64
                         " MiB are available",
                         spec, s->n_bytes >> 20, available >> 20);
    else
        status = ea_gguf_write_memory(s->writer, n_threads, out, n_bytes, err);
    ea_synthetic_destroy(s);
    return status;
}
