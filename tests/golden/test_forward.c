/* test_forward.c: tiny seeded models of both architectures and every weight format, through plan
 * and CPU device, against the plain double-precision pass of forward_ref.c.
 *
 * Tolerance. The oracle rounds KV to f16 and quantised products' inputs to int8 where the engine
 * does. What is left is f32 against double, 1e-6 of logits of order one, but where that moves a
 * value across a rounding boundary. A boundary crossed in KV moves later logits by some 2^-11; one
 * crossed in an int8 input moves them by percents (one step is 1/127 of a block's largest value, in
 * one of 256 inputs, and everything after it sees it). So every position must be within 0.1, and
 * one position of each model, at least, within 1e-3: a wrong scale, minimum, head, bias or rotation
 * spoils all of them. "sees a wrong model" holds that the check can fail. */
#include <math.h>

#include "base/mem.h"
#include "golden/forward_ref.h"
#include "golden/model_run.h"
#include "model/synthetic.h"

static const double TOLERANCE = 0.1, CLOSE = 1e-3;
enum { N_TOKENS = 9, MAX_VOCAB = 512 };

typedef struct tiny {
    void *bytes;
    size_t n_bytes;
    test_model m;
} tiny;

/* The model of a spec with further keys put by `more` (may be NULL). */
static void open_tiny(tiny *t, const char *spec, void (*more)(ea_gguf_writer *w))
{
    ea_error err = {0};
    ea_synthetic_shape shape;
    ea_synthetic *s;
    assert_ok(ea_synthetic_parse(spec, &shape, &err), &err);
    assert_ok(ea_synthetic_create(&shape, 7, &s, &err), &err);
    if (more)
        more(ea_synthetic_writer(s));
    assert_ok(ea_gguf_write_memory(ea_synthetic_writer(s), 1, &t->bytes, &t->n_bytes, &err), &err);
    ea_synthetic_destroy(s);
    test_model_open_memory(&t->m, t->bytes, t->n_bytes);
}

static void close_tiny(tiny *t)
{
    test_model_close(&t->m);
    ea_pages_free(t->bytes, t->n_bytes);
}

static const int32_t tokens[N_TOKENS] = {1, 77, 260, 3, 200, 77, 77, 150, 31};

/* Largest difference of a logit between engine and oracle: over all positions, and at the position
 * where it is least. */
typedef struct difference {
    double most, least;
} difference;

static difference compare(tiny *t, const ea_gguf *oracle)
{
    static double expected[N_TOKENS * MAX_VOCAB];
    ea_row rows[N_TOKENS];
    test_seq seq;
    int n_vocab = t->m.def->hp.n_vocab;
    assert_true(n_vocab <= MAX_VOCAB);
    forward_ref(oracle, tokens, N_TOKENS, true, expected);
    ea_device *dev = test_device(&t->m, 2, 2, N_TOKENS, N_TOKENS);
    test_seq_init(&seq, 0, 1, 2);
    test_feed(dev, &seq, tokens, N_TOKENS, EA_WANT_LOGITS, rows);
    difference d = {0, INFINITY};
    for (int i = 0; i < N_TOKENS; i++) {
        double here = 0;
        for (int j = 0; j < n_vocab; j++) {
            double diff = fabs((double)rows[i].logits[j] - expected[i * n_vocab + j]);
            here = diff <= here ? here : diff; /* a NaN stays */
        }
        d.most = here <= d.most ? d.most : here;
        d.least = here < d.least ? here : d.least;
    }
    ea_device_destroy(dev);
    return d;
}

static void check_spec(const char *spec, void (*more)(ea_gguf_writer *w))
{
    tiny t;
    open_tiny(&t, spec, more);
    difference d = compare(&t, t.m.g);
    if (!(d.most <= TOLERANCE && d.least <= CLOSE))
        fail_msg("%s: logits differ by up to %g, at the best position %g", spec, d.most, d.least);
    close_tiny(&t);
}

static void every_format(const char *arch)
{
    static const char *const types[] = {"F32",  "F16",  "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
                                        "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char spec[160];
        snprintf(spec, sizeof spec,
                 "layers=2,embd=256,ff=512,heads=8,kv=2,vocab=300,arch=%s,tied=%d:%s", arch,
                 (int)(i % 2), types[i]);
        check_spec(spec, NULL);
    }
}

static void llama_in_every_format(void **state)
{
    (void)state;
    every_format("llama");
}

static void qwen2_in_every_format(void **state)
{
    (void)state;
    every_format("qwen2");
}

/* Widths that are no multiple of a tile, a block or a vector; all heads on one KV head. */
static void odd_shapes(void **state)
{
    (void)state;
    check_spec("layers=1,embd=96,ff=172,heads=8,kv=8,vocab=263:F32", NULL); /* heads of 12 */
    check_spec("layers=1,embd=96,ff=172,heads=3,kv=1,vocab=263:F16", NULL);
    check_spec("layers=3,embd=96,ff=160,heads=3,kv=3,vocab=301,arch=qwen2:Q8_0", NULL);
    check_spec("layers=1,embd=96,ff=224,heads=24,kv=1,vocab=287:Q4_0", NULL);  /* heads of 4 */
    check_spec("layers=1,embd=512,ff=64,heads=128,kv=1,vocab=263:Q4_0", NULL); /* over 64 a head */
}

static void put_linear_rope(ea_gguf_writer *w)
{
    ea_gguf_put_str(w, "llama.rope.scaling.type", "linear");
    ea_gguf_put_float(w, "llama.rope.scaling.factor", 4.0f);
}

static void fill_freqs(void *user, int64_t row, void *dst, size_t row_bytes)
{
    (void)user;
    (void)row;
    for (size_t i = 0; i < row_bytes / sizeof(float); i++)
        ((float *)dst)[i] = 1.0f + (float)i;
}

static void put_rope_freqs(ea_gguf_writer *w)
{
    int64_t n = 16;
    ea_gguf_put_tensor(w, "rope_freqs.weight", EA_DTYPE_F32, 1, &n, fill_freqs, NULL);
}

static void scaled_rotary_embeddings(void **state)
{
    (void)state;
    check_spec("layers=2,embd=128,ff=128,heads=4,kv=2,vocab=263:F32", put_linear_rope);
    check_spec("layers=2,embd=128,ff=128,heads=4,kv=2,vocab=263:F32", put_rope_freqs);
}

/* The checks above must be able to fail: the oracle of a model with other rotary factors (its first
 * position is the same), and one with other weights. */
static void sees_a_wrong_model(void **state)
{
    (void)state;
    tiny right, wrong;
    open_tiny(&right, "layers=2,embd=128,ff=128,heads=4,kv=2,vocab=263:F32", NULL);
    open_tiny(&wrong, "layers=2,embd=128,ff=128,heads=4,kv=2,vocab=263:F32", put_rope_freqs);
    assert_true(compare(&right, wrong.m.g).most > 4 * TOLERANCE);
    close_tiny(&wrong);
    open_tiny(&wrong, "layers=2,embd=128,ff=128,heads=4,kv=2,vocab=263:Q8_0", NULL);
    assert_true(compare(&right, wrong.m.g).least > 2 * CLOSE);
    close_tiny(&wrong);
    close_tiny(&right);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_in_every_format),
        cmocka_unit_test(qwen2_in_every_format),
        cmocka_unit_test(odd_shapes),
        cmocka_unit_test(scaled_rotary_embeddings),
        cmocka_unit_test(sees_a_wrong_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
