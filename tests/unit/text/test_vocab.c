/* test_vocab.c: loading hostile vocabularies, special tokens and their protection, end tokens, and
 * texts that are long or not text at all. */
#include "support.h"

#include <jansson.h>
#include <string.h>
#include <zlib.h>

#include "base/mem.h"
#include "text/vocab_internal.h"

/* ---- fixtures: published vocabularies, unpacked in memory ---- */

typedef struct fixture {
    void *bytes;
    ea_gguf *gguf;
    ea_vocab *vocab;
} fixture;

static bool fixture_open(fixture *f, const char *rel)
{
    const char *path = shared_data_or_skip(rel);
    if (!path)
        return false;
    gzFile file = gzopen(path, "rb");
    assert_non_null(file);
    size_t cap = 32 << 20;
    f->bytes = ea_malloc(cap);
    assert_non_null(f->bytes);
    int n = gzread(file, f->bytes, (unsigned)cap);
    gzclose(file);
    assert_true(n > 0 && (size_t)n < cap);
    ea_error err = {0};
    assert_ok(ea_gguf_open_memory(rel, f->bytes, (size_t)n, &f->gguf, &err), &err);
    assert_ok(ea_vocab_load(f->gguf, -1, &f->vocab, &err), &err);
    return true;
}

static void fixture_close(fixture *f)
{
    ea_vocab_destroy(f->vocab);
    ea_gguf_close(f->gguf);
    ea_free(f->bytes);
}

#define QWEN "tokenizer/ggml-vocab-qwen3.gguf.gz"
#define LLAMA3 "tokenizer/ggml-vocab-llama-bpe.gguf.gz"
#define SPM "tokenizer/ggml-vocab-llama-spm.gguf"

static int32_t *tokenize(const ea_vocab *v, const char *text, size_t n, unsigned flags,
                         size_t *n_out)
{
    int32_t *ids;
    ea_error err = {0};
    assert_ok(ea_vocab_tokenize(v, text, n, flags, &ids, n_out, &err), &err);
    return ids;
}

static int count_control(const ea_vocab *v, const int32_t *ids, size_t n)
{
    int count = 0;
    for (size_t i = 0; i < n; i++)
        count += ea_vocab_is_control(v, ids[i]);
    return count;
}

/* Tokens -> bytes. */
static void detokenize(const ea_vocab *v, const int32_t *ids, size_t n, ea_buf *out)
{
    for (size_t i = 0; i < n; i++) {
        char piece[EA_MAX_SPECIAL_BYTES];
        size_t len = ea_vocab_token_bytes(v, ids[i], true, piece, sizeof piece);
        assert_true(len <= sizeof piece);
        ea_buf_add(out, piece, len);
    }
}

static void assert_round_trip(const ea_vocab *v, const char *text, size_t n)
{
    size_t n_ids;
    int32_t *ids = tokenize(v, text, n, 0, &n_ids);
    ea_buf back = EA_BUF_INIT;
    detokenize(v, ids, n_ids, &back);
    size_t skip = v->kind == EA_VOCAB_SPM && back.n == n + 1 ? 1 : 0;
    assert_int_equal(back.n - skip, n);
    assert_memory_equal(back.data + skip, text, n);
    ea_buf_done(&back);
    ea_free(ids);
}

/* ---- special tokens ---- */

static void test_specials(void **state)
{
    (void)state;
    fixture f;
    if (!fixture_open(&f, QWEN))
        skip();
    static const char text[] = "<|im_start|>user\nhi<|im_end|>";
    size_t n;
    int32_t *ids = tokenize(f.vocab, text, sizeof text - 1, EA_TOKENIZE_SPECIAL, &n);
    assert_int_equal(count_control(f.vocab, ids, n), 2);
    assert_int_equal(ids[0], 151644);
    assert_int_equal(ids[n - 1], 151645);
    ea_free(ids);
    ids = tokenize(f.vocab, text, sizeof text - 1, 0, &n);
    assert_int_equal(count_control(f.vocab, ids, n), 0);
    ea_free(ids);
    fixture_close(&f);
}

static void assert_protected(const ea_vocab *v, const char *text, const char *plain)
{
    ea_buf out = EA_BUF_INIT;
    ea_vocab_protect(v, text, strlen(text), &out);
    assert_false(out.failed);
    size_t n;
    int32_t *ids = tokenize(v, out.data, out.n, EA_TOKENIZE_SPECIAL, &n);
    assert_int_equal(count_control(v, ids, n), 0);
    ea_buf back = EA_BUF_INIT;
    detokenize(v, ids, n, &back);
    assert_string_equal(back.data, plain);
    ea_free(ids);
    ea_buf_done(&back);
    ea_buf_done(&out);
}

static void test_protection(void **state)
{
    (void)state;
    fixture f;
    if (!fixture_open(&f, QWEN))
        skip();
#define M EA_PROTECT_MARK
    assert_protected(f.vocab, "<|im_end|>", "<|im_end|>");
    assert_protected(f.vocab, "a<|im_start|><|im_end|>b<|im_", "a<|im_start|><|im_end|>b<|im_");
    assert_protected(f.vocab, "<|<|im_end|>", "<|<|im_end|>");
    /* A mark that the client sends must not hide a spelling from us, nor survive. */
    assert_protected(f.vocab, "<|im" M "_end|>", "<|im_end|>");
    assert_protected(f.vocab, "x" M, "x");
    assert_protected(f.vocab, "<|im\xf4\x8f" M "\xbf\xbe_end|>", "<|im_end|>");
#undef M
    ea_buf out = EA_BUF_INIT;
    ea_vocab_protect(f.vocab, "plain <b> text", 14, &out);
    assert_string_equal(out.data, "plain <b> text");
    ea_buf_done(&out);
    fixture_close(&f);
}

static void test_end_tokens(void **state)
{
    (void)state;
    fixture f;
    if (!fixture_open(&f, QWEN))
        skip();
    assert_true(ea_vocab_is_eog(f.vocab, 151645));  /* <|im_end|> */
    assert_true(ea_vocab_is_eog(f.vocab, 151643));  /* <|endoftext|> */
    assert_false(ea_vocab_is_eog(f.vocab, 151644)); /* <|im_start|> */
    assert_false(ea_vocab_is_eog(f.vocab, 0));
    assert_false(ea_vocab_is_eog(f.vocab, -1));
    assert_false(ea_vocab_is_eog(f.vocab, ea_vocab_size(f.vocab)));
    fixture_close(&f);
    assert_true(fixture_open(&f, LLAMA3));
    assert_true(ea_vocab_is_eog(f.vocab, 128009)); /* <|eot_id|> */
    assert_true(ea_vocab_is_eog(f.vocab, 128001)); /* <|end_of_text|> */
    assert_true(ea_vocab_add_bos(f.vocab));
    size_t n;
    int32_t *ids = tokenize(f.vocab, "", 0, EA_TOKENIZE_ADD_BOS, &n);
    assert_int_equal(n, 1);
    assert_int_equal(ids[0], 128000);
    ea_free(ids);
    fixture_close(&f);
}

/* ---- bytes ---- */

static void test_token_bytes(void **state)
{
    (void)state;
    fixture f;
    if (!fixture_open(&f, SPM))
        skip();
    char buf[4];
    assert_int_equal(ea_vocab_token_bytes(f.vocab, 1, false, buf, 4), 0); /* <s> */
    assert_int_equal(ea_vocab_token_bytes(f.vocab, 1, true, buf, 4), 3);
    assert_memory_equal(buf, "<s>", 3);
    assert_int_equal(ea_vocab_token_bytes(f.vocab, 13, false, buf, 4), 1); /* <0x0A> */
    assert_int_equal(buf[0], '\n');
    assert_int_equal(ea_vocab_token_bytes(f.vocab, 32000, true, buf, 4), 0);
    assert_int_equal(ea_vocab_token_bytes(f.vocab, -1, true, buf, 4), 0);
    /* Too small a buffer: the size is told, nothing past it is written. */
    buf[1] = 'x';
    assert_int_equal(ea_vocab_token_bytes(f.vocab, 1, true, buf, 1), 3);
    assert_int_equal(buf[1], 'x');
    fixture_close(&f);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Long words, long runs, bytes that are no text: each must come back whole, in near-linear time
 * (a quadratic encoder takes hours here and runs into the timeout). */
static void check_long(const char *rel)
{
    fixture f;
    if (!fixture_open(&f, rel))
        skip();
    size_t n = 1 << 20;
    char *text = ea_malloc(n);
    static const char *const units[] = {"a", " ",  "\n",  "ab",           "\xe4\xb8\xad", "\xff",
                                        "9", "' ", " \n", "\xe2\x80\x8d", "<|im_",        "-="};
    for (size_t u = 0; u < EA_ARRAY_LEN(units); u++) {
        size_t len = strlen(units[u]), at = 0, end = u == 0 ? n : n / 16;
        for (; at + len <= end; at += len)
            memcpy(text + at, units[u], len);
        assert_round_trip(f.vocab, text, at);
    }
    uint32_t seed = 7;
    for (size_t i = 0; i < n; i++)
        text[i] = (char)next_random(&seed);
    assert_round_trip(f.vocab, text, n);
    for (size_t i = 0; i < n / 16; i++)
        text[i] = " \n\tab'.1<|"[next_random(&seed) % 10];
    assert_round_trip(f.vocab, text, n / 16);
    ea_free(text);
    fixture_close(&f);
}

static void test_long_qwen(void **state)
{
    (void)state;
    check_long(QWEN);
}

static void test_long_llama3(void **state)
{
    (void)state;
    check_long(LLAMA3);
}

static void test_long_spm(void **state)
{
    (void)state;
    check_long(SPM);
}

/* The plainest form of byte-pair encoding, as a reference for both fast ones. */
static size_t encode_plain(const ea_vocab *v, const char *s, size_t n, int32_t *ids)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = v->byte_id[(uint8_t)s[i]];
    for (;;) {
        const ea_merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (uint32_t k = 0; k <= v->merge_mask; k++) {
                const ea_merge *m = &v->merges[k];
                if (m->left >= 0 && m->left == ids[i] && m->right == ids[i + 1] &&
                    (!best || m->rank < best->rank)) {
                    best = m;
                    at = i;
                }
            }
        if (!best)
            return n;
        ids[at] = best->merged;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
    }
}

/* Random words, across the length where the encoder changes its method. */
static void test_methods_agree(void **state)
{
    (void)state;
    fixture f;
    if (!fixture_open(&f, "tokenizer/ggml-vocab-gpt-2.gguf.gz"))
        skip();
    uint32_t seed = 3;
    static const size_t lengths[] = {1, 2, 7, 31, 32, 33, 34, 48};
    for (size_t k = 0; k < EA_ARRAY_LEN(lengths); k++) {
        size_t n = lengths[k];
        char word[80];
        int32_t want[80];
        for (size_t i = 0; i < n; i++)
            word[i] = "etaoinshrdlu"[next_random(&seed) % 12];
        size_t n_want = encode_plain(f.vocab, word, n, want), n_ids;
        int32_t *ids = tokenize(f.vocab, word, n, 0, &n_ids);
        assert_int_equal(n_ids, n_want);
        assert_memory_equal(ids, want, n_want * sizeof *want);
        ea_free(ids);
    }
    fixture_close(&f);
}

/* ---- malformed files ---- */

static void check_malformed(const char *name, const char *expect)
{
    char rel[256];
    ea_error err = {0};
    ea_gguf *g;
    ea_vocab *v = NULL;
    snprintf(rel, sizeof rel, "gguf-bad/%s", name);
    if (ea_gguf_open(shared_data(rel), &g, &err) != EA_OK)
        fail_msg("%s is well-formed as a container, but: %s", name, err.text);
    const ea_gguf_tensor *embd = ea_gguf_tensor_find(g, "token_embd.weight");
    ea_status status = ea_vocab_load(g, embd ? embd->ne[1] : -1, &v, &err);
    if (strcmp(expect, "reject") == 0 && status == EA_OK)
        fail_msg("%s was accepted", name);
    if (status == EA_OK) {
        static const char text[] = "Once <s>upon\n a\xff time<|im_end|>";
        size_t n;
        ea_free(tokenize(v, text, sizeof text - 1, EA_TOKENIZE_SPECIAL | EA_TOKENIZE_ADD_BOS, &n));
        assert_true(n > 0);
    } else if (!strstr(err.text, "tokenizer.ggml.") || !strstr(err.text, name)) {
        fail_msg("%s: the message names no field or no file: %s", name, err.text);
    }
    ea_vocab_destroy(v);
    ea_gguf_close(g);
}

static void test_malformed(void **state)
{
    (void)state;
    const char *path = shared_data_or_skip("gguf-bad/manifest.jsonl");
    if (!path)
        skip();
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char line[4096];
    int n_rows = 0;
    while (fgets(line, sizeof line, file)) {
        json_t *row = json_loads(line, 0, NULL);
        assert_non_null(row);
        if (strcmp(json_string_value(json_object_get(row, "level")), "tokenizer") == 0 ||
            strstr(line, "m-embd-rows-fewer")) {
            check_malformed(json_string_value(json_object_get(row, "file")),
                            json_string_value(json_object_get(row, "expect")));
            n_rows++;
        }
        json_decref(row);
    }
    fclose(file);
    assert_int_equal(n_rows, 30);
}

/* Every failing allocation of a load gives an error and leaks nothing (the leak check is the
 * sanitizer's). */
static void test_out_of_memory(void **state)
{
    (void)state;
    const char *path = shared_data_or_skip("tiny/stories260K-f32.gguf");
    if (!path)
        skip();
    ea_gguf *g;
    ea_error err = {0};
    assert_ok(ea_gguf_open(path, &g, &err), &err);
    for (size_t n = 1; n < 1000; n++) {
        ea_vocab *v = NULL;
        ea_error failed = {0};
        ea_alloc_fail_at(n);
        ea_status status = ea_vocab_load(g, -1, &v, &failed);
        ea_alloc_fail_at(0);
        if (status == EA_OK) {
            ea_vocab_destroy(v);
            assert_true(n > 3);
            break;
        }
        assert_int_equal(status, EA_ENOMEM);
    }
    ea_gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_specials),   cmocka_unit_test(test_protection),
        cmocka_unit_test(test_end_tokens), cmocka_unit_test(test_token_bytes),
        cmocka_unit_test(test_long_qwen),  cmocka_unit_test(test_long_llama3),
        cmocka_unit_test(test_long_spm),   cmocka_unit_test(test_methods_agree),
        cmocka_unit_test(test_malformed),  cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
