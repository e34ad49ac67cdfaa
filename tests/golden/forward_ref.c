/* forward_ref.c: see forward_ref.h. One token after the other, one number after the other: slow and
 * meant to be read. */
#include "golden/forward_ref.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/f16.h"

typedef struct ref_model {
    const ea_gguf *g;
    char arch[16];
    int n_layer, n_embd, n_head, n_head_kv, head_dim, n_rot, n_ff, n_vocab;
    double eps, rope_base, rope_scale;
    bool neox, as_stored;
} ref_model;

/* A tensor as doubles: n rows of k. Freed by the caller. */
typedef struct ref_tensor {
    double *w;
    int n, k;
    int step; /* its products take int8 inputs in the engine, by so many; 0: they do not */
} ref_tensor;

static void die(const char *what, const char *name)
{
    fprintf(stderr, "forward_ref: %s %s\n", what, name);
    exit(1);
}

static void *get_memory(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p)
        die("out of memory", "");
    return p;
}

static int key_int(const ref_model *m, const char *name, int64_t fallback)
{
    char key[128];
    int64_t value;
    snprintf(key, sizeof key, "%s.%s", m->arch, name);
    if (ea_gguf_get_int_or(m->g, key, 0, 1 << 30, fallback, &value, NULL) != EA_OK || value < 0)
        die("key", key);
    return (int)value;
}

static double key_float(const ref_model *m, const char *name, double fallback)
{
    char key[128];
    double value;
    snprintf(key, sizeof key, "%s.%s", m->arch, name);
    if (ea_gguf_get_float_or(m->g, key, fallback, &value, NULL) != EA_OK)
        die("key", key);
    return value;
}

static bool has_tensor(const ref_model *m, const char *name)
{
    return ea_gguf_tensor_find(m->g, name) != NULL;
}

static ref_tensor load(const ref_model *m, const char *name)
{
    const ea_gguf_tensor *t = ea_gguf_tensor_find(m->g, name);
    if (!t)
        die("tensor", name);
    const ea_dtype_info *type = ea_dtype_find(t->type);
    ref_tensor out = {
        .n = (int)t->ne[1], .k = (int)t->ne[0], .step = type->block > 1 ? type->block : 0};
    size_t n = (size_t)out.n * (size_t)out.k;
    float *f32 = get_memory(n, sizeof *f32);
    type->dequantise(t->data, f32, (int64_t)n);
    out.w = get_memory(n, sizeof *out.w);
    for (size_t i = 0; i < n; i++)
        out.w[i] = (double)f32[i];
    free(f32);
    return out;
}

static ref_tensor load_layer(const ref_model *m, int layer, const char *name)
{
    char full[128];
    snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    return load(m, full);
}

/* Round x as the engine's int8 inputs: by `step`, to 127 steps of the largest. */
static void round_q8(double *out, const double *x, int n, int step)
{
    for (int b = 0; b < n; b += step) {
        int end = b + step < n ? b + step : n;
        float amax = 0;
        for (int i = b; i < end; i++)
            amax = fmaxf(amax, fabsf((float)x[i]));
        for (int i = b; i < end; i++)
            out[i] = amax > 0 ? nearbyint(x[i] * 127.0 / amax) * (amax / 127.0) : 0;
    }
}

/* y (+)= W x + bias */
static void product(const ref_model *m, double *y, const double *x, const char *weight, int layer,
                    const char *bias, bool add)
{
    ref_tensor w = layer < 0 ? load(m, weight) : load_layer(m, layer, weight);
    double *in = get_memory((size_t)w.k, sizeof *in);
    memcpy(in, x, (size_t)w.k * sizeof *in);
    if (m->as_stored && w.step)
        round_q8(in, x, w.k, w.step);
    char bias_name[128] = "";
    if (bias)
        snprintf(bias_name, sizeof bias_name, "blk.%d.%s", layer, bias);
    ref_tensor b = {0};
    if (bias && has_tensor(m, bias_name))
        b = load(m, bias_name);
    for (int r = 0; r < w.n; r++) {
        double sum = b.w ? b.w[r] : 0;
        for (int c = 0; c < w.k; c++)
            sum += w.w[(size_t)r * (size_t)w.k + (size_t)c] * in[c];
        y[r] = add ? y[r] + sum : sum;
    }
    free(in);
    free(w.w);
    free(b.w);
}

static void rms_norm(const ref_model *m, double *out, const double *x, const char *weight,
                     int layer)
{
    ref_tensor w = layer < 0 ? load(m, weight) : load_layer(m, layer, weight);
    double sum = 0;
    for (int i = 0; i < m->n_embd; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < m->n_embd; i++)
        out[i] = x[i] / sqrt(sum / m->n_embd + m->eps) * w.w[i];
    free(w.w);
}

/* Turn each head's first n_rot components by their angles at this position. */
static void rotate(const ref_model *m, double *x, int n_heads, int pos)
{
    ref_tensor factors = {0};
    if (has_tensor(m, "rope_freqs.weight"))
        factors = load(m, "rope_freqs.weight");
    for (int h = 0; h < n_heads; h++)
        for (int i = 0; i < m->n_rot / 2; i++) {
            double *a = x + h * m->head_dim + (m->neox ? i : 2 * i);
            double *b = a + (m->neox ? m->n_rot / 2 : 1);
            double angle = pos / m->rope_scale * pow(m->rope_base, -2.0 * i / m->n_rot);
            if (factors.w)
                angle /= factors.w[i];
            double re = *a * cos(angle) - *b * sin(angle), im = *a * sin(angle) + *b * cos(angle);
            *a = re;
            *b = im;
        }
    free(factors.w);
}

static void store(const ref_model *m, double *to, const double *x, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = m->as_stored ? (double)ea_f16_to_f32(ea_f32_to_f16((float)x[i])) : x[i];
}

/* out = softmax(q . K / sqrt(d)) V over positions 0 .. pos. k, v: [positions][n_head_kv][d] */
static void attend(const ref_model *m, double *out, const double *q, const double *k,
                   const double *v, int pos)
{
    int d = m->head_dim, row = m->n_head_kv * d;
    double *p = get_memory((size_t)pos + 1, sizeof *p);
    for (int h = 0; h < m->n_head; h++) {
        int kv = h / (m->n_head / m->n_head_kv) * d;
        double max = -INFINITY, sum = 0;
        for (int t = 0; t <= pos; t++) {
            p[t] = 0;
            for (int i = 0; i < d; i++)
                p[t] += q[h * d + i] * k[t * row + kv + i];
            p[t] /= sqrt(d);
            max = fmax(max, p[t]);
        }
        for (int t = 0; t <= pos; t++)
            sum += p[t] = exp(p[t] - max);
        for (int i = 0; i < d; i++) {
            out[h * d + i] = 0;
            for (int t = 0; t <= pos; t++)
                out[h * d + i] += p[t] / sum * v[t * row + kv + i];
        }
    }
    free(p);
}

static void open_model(ref_model *m, const ea_gguf *g, bool as_stored)
{
    ea_str arch;
    *m = (ref_model){.g = g, .as_stored = as_stored};
    if (ea_gguf_get_str(g, "general.architecture", &arch, NULL) != EA_OK ||
        arch.n >= sizeof m->arch)
        die("key", "general.architecture");
    memcpy(m->arch, arch.s, arch.n);
    m->neox = strcmp(m->arch, "qwen2") == 0;
    if (!m->neox && strcmp(m->arch, "llama") != 0)
        die("architecture", m->arch);
    const ea_gguf_tensor *embd = ea_gguf_tensor_find(g, "token_embd.weight");
    if (!embd)
        die("tensor", "token_embd.weight");
    m->n_vocab = (int)embd->ne[1];
    m->n_layer = key_int(m, "block_count", -1);
    m->n_embd = key_int(m, "embedding_length", -1);
    m->n_ff = key_int(m, "feed_forward_length", -1);
    m->n_head = key_int(m, "attention.head_count", -1);
    m->n_head_kv = key_int(m, "attention.head_count_kv", m->n_head);
    m->head_dim = key_int(m, "attention.key_length", m->n_embd / m->n_head);
    m->n_rot = key_int(m, "rope.dimension_count", m->head_dim);
    m->eps = key_float(m, "attention.layer_norm_rms_epsilon", 1e-5);
    m->rope_base = key_float(m, "rope.freq_base", 10000);
    m->rope_scale = key_float(m, "rope.scaling.factor", 1);
}

void forward_ref(const ea_gguf *g, const int32_t *tokens, int n_tokens, bool as_stored,
                 double *logits)
{
    ref_model m;
    open_model(&m, g, as_stored);
    int n_q = m.n_head * m.head_dim, n_kv = m.n_head_kv * m.head_dim;
    double *x = get_memory((size_t)m.n_embd, sizeof *x);
    double *norm = get_memory((size_t)m.n_embd, sizeof *norm);
    double *q = get_memory((size_t)n_q, sizeof *q), *att = get_memory((size_t)n_q, sizeof *att);
    double *k = get_memory((size_t)n_kv, sizeof *k), *v = get_memory((size_t)n_kv, sizeof *v);
    double *gate = get_memory((size_t)m.n_ff, sizeof *gate);
    double *up = get_memory((size_t)m.n_ff, sizeof *up);
    size_t cache = (size_t)m.n_layer * (size_t)n_tokens * (size_t)n_kv;
    double *k_cache = get_memory(cache, sizeof *k_cache), *v_cache = get_memory(cache, sizeof *v);
    ref_tensor embd = load(&m, "token_embd.weight");

    for (int pos = 0; pos < n_tokens; pos++) {
        memcpy(x, embd.w + (size_t)tokens[pos] * (size_t)m.n_embd, (size_t)m.n_embd * sizeof *x);
        for (int l = 0; l < m.n_layer; l++) {
            double *k_layer = k_cache + (size_t)l * (size_t)n_tokens * (size_t)n_kv;
            double *v_layer = v_cache + (size_t)l * (size_t)n_tokens * (size_t)n_kv;
            rms_norm(&m, norm, x, "attn_norm.weight", l);
            product(&m, q, norm, "attn_q.weight", l, "attn_q.bias", false);
            product(&m, k, norm, "attn_k.weight", l, "attn_k.bias", false);
            product(&m, v, norm, "attn_v.weight", l, "attn_v.bias", false);
            rotate(&m, q, m.n_head, pos);
            rotate(&m, k, m.n_head_kv, pos);
            store(&m, k_layer + (size_t)pos * (size_t)n_kv, k, n_kv);
            store(&m, v_layer + (size_t)pos * (size_t)n_kv, v, n_kv);
            attend(&m, att, q, k_layer, v_layer, pos);
            product(&m, x, att, "attn_output.weight", l, "attn_output.bias", true);

            rms_norm(&m, norm, x, "ffn_norm.weight", l);
            product(&m, gate, norm, "ffn_gate.weight", l, NULL, false);
            product(&m, up, norm, "ffn_up.weight", l, NULL, false);
            for (int i = 0; i < m.n_ff; i++)
                gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
            product(&m, x, gate, "ffn_down.weight", l, NULL, true);
        }
        rms_norm(&m, norm, x, "output_norm.weight", -1);
        product(&m, logits + (size_t)pos * (size_t)m.n_vocab, norm,
                has_tensor(&m, "output.weight") ? "output.weight" : "token_embd.weight", -1, NULL,
                false);
    }
    free(embd.w);
    free(k_cache);
    free(v_cache);
    free(x);
    free(norm);
    free(q);
    free(att);
    free(k);
    free(v);
    free(gate);
    free(up);
}
