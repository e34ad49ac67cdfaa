/* test_synthetic.c: models of random weights: repeatable, loadable in every format, and tame. */
#include "tiny_model.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "golden/model_run.h"
#include "text/vocab.h"

static const ea_dtype weights[] = {
    EA_DTYPE_F32,  EA_DTYPE_F16,  EA_DTYPE_BF16, EA_DTYPE_Q4_0,   EA_DTYPE_Q4_1,
    EA_DTYPE_Q5_0, EA_DTYPE_Q5_1, EA_DTYPE_Q8_0, EA_DTYPE_Q2_K,   EA_DTYPE_Q3_K,
    EA_DTYPE_Q4_K, EA_DTYPE_Q5_K, EA_DTYPE_Q6_K, EA_DTYPE_IQ4_NL,
};
enum { N_WEIGHTS = sizeof weights / sizeof *weights };

static void test_bytes_depend_on_seed_alone(void **state)
{
    (void)state;
    static const char spec[] = "layers=2,embd=256,ff=512,heads=4,kv=2,vocab=300,tied=0:q4_k";
    ea_error err = {EA_OK, ""};
    void *data[3];
    size_t n[3];
    assert_ok(ea_synthetic_model(spec, 5, 1, &data[0], &n[0], &err), &err);
    assert_ok(ea_synthetic_model(spec, 5, 3, &data[1], &n[1], &err), &err);
    assert_ok(ea_synthetic_model(spec, 6, 1, &data[2], &n[2], &err), &err);
    assert_int_equal(n[0], n[1]);
    assert_int_equal(n[0], n[2]);
    assert_memory_equal(data[0], data[1], n[0]);
    assert_memory_not_equal(data[0], data[2], n[0]);
    for (int i = 0; i < 3; i++)
        ea_pages_free(data[i], n[i]);
}

/* Mean near 0 and root mean square near 1/sqrt(k), for every matrix. */
static void check_matrix(const ea_gguf_tensor *t, double want_rms)
{
    int64_t n = t->ne[0] * t->ne[1];
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    ea_dtype_find(t->type)->dequantise(t->data, x, n);
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    double mean = sum / (double)n, rms = sqrt(squares / (double)n);
    if (fabs(rms / want_rms - 1.0) > 0.1 || fabs(mean) > 0.1 * want_rms)
        fail_msg("%.*s (%s): mean %g, rms %g, wanted rms %g", (int)t->name.n, t->name.s,
                 ea_dtype_find(t->type)->name, mean, rms, want_rms);
    free(x);
}

static void test_weights_have_the_wanted_size(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_WEIGHTS; i++) {
        ea_error err = {EA_OK, ""};
        tiny_model m = tiny_model_default();
        m.shape.type = weights[i];
        m.shape.embd = 256;
        m.shape.ff = 512;
        void *data;
        size_t n;
        ea_gguf *g;
        tiny_model_make(&m, &data, &n);
        assert_ok(ea_gguf_open_memory("tiny", data, n, &g, &err), &err);
        const ea_gguf_tensor *t = ea_gguf_tensor_find(g, "blk.1.ffn_up.weight");
        assert_non_null(t);
        assert_int_equal(t->type, weights[i]);
        check_matrix(t, 1.0 / sqrt(256.0));
        check_matrix(ea_gguf_tensor_find(g, "token_embd.weight"), 1.0 / sqrt(256.0));
        check_matrix(ea_gguf_tensor_find(g, "blk.0.ffn_down.weight"), 1.0 / sqrt(4.0 * 512.0));
        ea_gguf_close(g);
        ea_pages_free(data, n);
    }
}

/* Rows that a format cannot hold get the replacement that the header names. */
static void test_fallback_formats(void **state)
{
    (void)state;
    static const struct {
        ea_dtype want, at_96, at_36;
    } rows[] = {
        {EA_DTYPE_Q2_K, EA_DTYPE_IQ4_NL, EA_DTYPE_F16},
        {EA_DTYPE_Q3_K, EA_DTYPE_IQ4_NL, EA_DTYPE_F16},
        {EA_DTYPE_Q4_K, EA_DTYPE_Q5_0, EA_DTYPE_F16},
        {EA_DTYPE_Q5_K, EA_DTYPE_Q5_1, EA_DTYPE_F16},
        {EA_DTYPE_Q6_K, EA_DTYPE_Q8_0, EA_DTYPE_F16},
        {EA_DTYPE_Q4_0, EA_DTYPE_Q4_0, EA_DTYPE_F16},
        {EA_DTYPE_F32, EA_DTYPE_F32, EA_DTYPE_F32},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ea_error err = {EA_OK, ""};
        tiny_model m = tiny_model_default();
        m.shape.type = rows[i].want;
        m.shape.embd = 96;
        m.shape.ff = 36;
        void *data;
        size_t n;
        ea_gguf *g;
        tiny_model_make(&m, &data, &n);
        assert_ok(ea_gguf_open_memory("tiny", data, n, &g, &err), &err);
        assert_int_equal(ea_gguf_tensor_find(g, "blk.0.attn_q.weight")->type, rows[i].at_96);
        assert_int_equal(ea_gguf_tensor_find(g, "blk.0.ffn_down.weight")->type, rows[i].at_36);
        ea_gguf_close(g);
        ea_pages_free(data, n);
    }
}

/* Run a few tokens and look at the size of the logits. */
static void check_logits(const tiny_model *m)
{
    enum { N = 12 };
    void *data;
    size_t n;
    test_model tm;
    test_seq seq;
    int32_t tokens[N];
    ea_row rows[N];
    tiny_model_make(m, &data, &n);
    test_model_open_memory(&tm, data, n);
    ea_device *dev = test_device(&tm, 1, 4, N, N);
    test_seq_init(&seq, 0, 1, 4);
    for (int i = 0; i < N; i++)
        tokens[i] = (i * 37 + 11) % m->shape.vocab;
    test_feed(dev, &seq, tokens, N, EA_WANT_LOGITS, rows);
    double squares = 0;
    for (int i = 0; i < N; i++)
        for (int v = 0; v < m->shape.vocab; v++)
            squares += (double)rows[i].logits[v] * (double)rows[i].logits[v];
    double rms = sqrt(squares / (N * m->shape.vocab));
    if (!(rms > 0.3 && rms < 3.0))
        fail_msg("%s %s: rms of the logits is %g", m->shape.arch,
                 ea_dtype_find(m->shape.type)->name, rms);
    assert_memory_not_equal(rows[0].logits, rows[N - 1].logits,
                            (size_t)m->shape.vocab * sizeof(float));
    ea_device_destroy(dev);
    test_model_close(&tm);
    ea_pages_free(data, n);
}

static void test_logits_are_of_order_one(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_WEIGHTS; i++) {
        tiny_model m = tiny_model_default();
        m.shape.type = weights[i];
        m.shape.embd = 256;
        m.shape.ff = 256;
        check_logits(&m);
    }
    tiny_model deep = tiny_model_default();
    deep.shape.arch = "qwen2";
    deep.shape.layers = 48;
    deep.shape.tied = false;
    check_logits(&deep);
}

static void test_text_survives_the_vocabulary(void **state)
{
    (void)state;
    static const char text[] = "some words, a Number 42\n and \xc3\xa9\xf0\x9f\x99\x82  end";
    ea_error err = {EA_OK, ""};
    tiny_model m = tiny_model_default();
    m.shape.vocab = 259 + 27 + 27 * 27;
    void *data;
    size_t n, n_tokens, n_out = 0;
    ea_gguf *g;
    ea_vocab *v;
    int32_t *tokens;
    char out[256];
    tiny_model_make(&m, &data, &n);
    assert_ok(ea_gguf_open_memory("tiny", data, n, &g, &err), &err);
    assert_ok(ea_vocab_load(g, m.shape.vocab, &v, &err), &err);
    assert_ok(ea_vocab_tokenize(v, text, strlen(text), 0, &tokens, &n_tokens, &err), &err);
    assert_true(n_tokens < strlen(text)); /* words were found, not bytes alone */
    for (size_t i = 0; i < n_tokens; i++)
        n_out += ea_vocab_token_bytes(v, tokens[i], false, out + n_out, sizeof out - n_out);
    assert_int_equal(n_out, strlen(text));
    assert_memory_equal(out, text, n_out);
    ea_free(tokens);
    ea_vocab_destroy(v);
    ea_gguf_close(g);
    ea_pages_free(data, n);
}

static void test_bad_specs(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *says;
    } rows[] = {
        {"llama-1b", "<shape>:<type>"},
        {"llama-2b:Q4_K", "llama-8b"},
        {"llama-1b:Q4_K_M", "Q4_K_M"},
        {"llama-1b:I8", "I8"},
        {":Q4_0", "unknown shape"},
        {"layers=1:Q4_0", "embd=0"},
        {"layers=x,embd=64:Q4_0", "layers=x"},
        {"layers=99999999999,embd=64:Q4_0", "layers=99999999999"},
        {"layers=1,embd=64,ff=64,heads=3,kv=1,vocab=300:F32", "heads=3"},
        {"layers=1,embd=64,ff=64,heads=4,kv=3,vocab=300:F32", "kv=3"},
        {"layers=1,embd=64,ff=64,heads=4,kv=2,vocab=258:F32", "vocab=258"},
        {"layers=513,embd=64,ff=64,heads=4,kv=2,vocab=300:F32", "layers=513"},
        {"layers=1,embd=64,ff=64,heads=4,kv=2,vocab=300,arch=mamba:F32", "arch=mamba"},
        {"layers=512,embd=131072,ff=524288,heads=1024,kv=8,vocab=4194304:F32", "MiB"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ea_error err = {EA_OK, ""};
        void *data;
        size_t n;
        assert_int_not_equal(ea_synthetic_model(rows[i].spec, 1, 1, &data, &n, &err), EA_OK);
        if (!strstr(err.text, rows[i].says))
            fail_msg("%s: message '%s' does not say '%s'", rows[i].spec, err.text, rows[i].says);
    }
}

/* Every name that the help text lists is one. */
static void test_listed_shapes_parse(void **state)
{
    (void)state;
    char names[256], *rest = names;
    int n = 0;
    snprintf(names, sizeof names, "%s", ea_synthetic_shapes());
    for (char *name; (name = strtok_r(rest, ", ", &rest)) != NULL; n++) {
        ea_error err = {EA_OK, ""};
        ea_synthetic_shape shape;
        char spec[64];
        snprintf(spec, sizeof spec, "%s:Q4_K", name);
        assert_ok(ea_synthetic_parse(spec, &shape, &err), &err);
    }
    assert_int_equal(n, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_depend_on_seed_alone),
        cmocka_unit_test(test_weights_have_the_wanted_size),
        cmocka_unit_test(test_fallback_formats),
        cmocka_unit_test(test_logits_are_of_order_one),
        cmocka_unit_test(test_text_survives_the_vocabulary),
        cmocka_unit_test(test_bad_specs),
        cmocka_unit_test(test_listed_shapes_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
