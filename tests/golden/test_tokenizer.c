/* test_tokenizer.c: token ids against vectors made by other encoders: llama.cpp's own test strings
 * for every vocabulary it publishes, and 344 longer texts. Detokenizing gives the text back. */
#include "support.h"

#include <jansson.h>
#include <string.h>
#include <zlib.h>

#include "base/mem.h"
#include "text/vocab.h"

typedef struct fixture {
    char *bytes;
    ea_gguf *gguf;
    ea_vocab *vocab;
} fixture;

/* A whole file, gunzipped where it is compressed; NUL-terminated. */
static char *slurp(const char *path, size_t *n_out)
{
    gzFile f = gzopen(path, "rb");
    assert_non_null(f);
    size_t n = 0, cap = 1 << 20;
    char *data = ea_malloc(cap + 1);
    for (;;) {
        int got = gzread(f, data + n, (unsigned)(cap - n));
        assert_true(got >= 0);
        if (got == 0)
            break;
        n += (size_t)got;
        if (n == cap)
            data = ea_realloc(data, (cap *= 2) + 1);
        assert_non_null(data);
    }
    gzclose(f);
    data[n] = '\0';
    *n_out = n;
    return data;
}

static bool fixture_open(fixture *f, const char *name)
{
    char rel[128];
    size_t n;
    ea_error err = {0};
    snprintf(rel, sizeof rel, "tokenizer/ggml-vocab-%s.gguf.gz", name);
    if (access(shared_data(rel), R_OK) != 0)
        rel[strlen(rel) - 3] = '\0';
    if (!shared_data_or_skip(rel))
        return false;
    f->bytes = slurp(shared_data(rel), &n);
    assert_ok(ea_gguf_open_memory(rel, f->bytes, n, &f->gguf, &err), &err);
    assert_ok(ea_vocab_load(f->gguf, -1, &f->vocab, &err), &err);
    return true;
}

static void fixture_close(fixture *f)
{
    ea_vocab_destroy(f->vocab);
    ea_gguf_close(f->gguf);
    ea_free(f->bytes);
}

/* The text that the tokens stand for. */
static void detokenize(const ea_vocab *v, const int32_t *ids, size_t n, ea_buf *out)
{
    for (size_t i = 0; i < n; i++) {
        char piece[1024];
        size_t len = ea_vocab_token_bytes(v, ids[i], true, piece, sizeof piece);
        assert_true(len <= sizeof piece);
        ea_buf_add(out, piece, len);
    }
}

static void check_ids(const fixture *f, const char *what, const char *text, size_t n,
                      unsigned flags, const int32_t *want, size_t n_want)
{
    int32_t *ids;
    size_t n_ids;
    ea_error err = {0};
    assert_ok(ea_vocab_tokenize(f->vocab, text, n, flags, &ids, &n_ids, &err), &err);
    size_t i = 0;
    while (i < n_ids && i < n_want && ids[i] == want[i])
        i++;
    if (i < n_ids || i < n_want)
        fail_msg("%s: token %zu of %zu is %d, wanted %d of %zu; text: %.200s", what, i, n_ids,
                 i < n_ids ? ids[i] : -1, i < n_want ? want[i] : -1, n_want, text);
    ea_buf back = EA_BUF_INIT;
    detokenize(f->vocab, ids, n_ids, &back);
    /* SentencePiece puts a blank in front. */
    size_t skip = n && back.n == n + 1 && back.data[0] == ' ' ? 1 : 0;
    assert_int_equal(back.n - skip, n);
    if (n)
        assert_memory_equal(back.data + skip, text, n);
    ea_buf_done(&back);
    ea_free(ids);
}

/* "1 2 3" -> ids; returns their number. */
static size_t parse_ids(char *line, int32_t *ids, size_t cap)
{
    size_t n = 0;
    for (char *save, *p = strtok_r(line, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
        assert_true(n < cap);
        ids[n++] = (int32_t)strtol(p, NULL, 10);
    }
    return n;
}

/* The 46 strings of llama.cpp's vocabulary tests. */
static void check_published(const char *vocab, const char *out_name)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    fixture f;
    char rel[128];
    if (!shared_data_or_skip("tokenizer/ggml-vocab.inp") || !fixture_open(&f, vocab))
        skip();
    size_t n_in, n_out;
    char *in = slurp(shared_data("tokenizer/ggml-vocab.inp"), &n_in);
    snprintf(rel, sizeof rel, "tokenizer/ggml-vocab-%s.gguf.out", out_name);
    char *out = slurp(shared_data(rel), &n_out);
    int n_rows = 0;
    for (char *text = in, *line = out, *end; *line && (end = strstr(text, separator));
         text = end + strlen(separator), n_rows++) {
        int32_t want[1024];
        char *eol = strchr(line, '\n');
        assert_non_null(eol);
        *eol = '\0';
        size_t n_want = parse_ids(line, want, EA_ARRAY_LEN(want));
        line = eol + 1;
        *end = '\0';
        check_ids(&f, vocab, text, (size_t)(end - text), 0, want, n_want);
    }
    assert_int_equal(n_rows, 46);
    ea_free(in);
    ea_free(out);
    fixture_close(&f);
}

#define PUBLISHED(test, vocab, out)       \
    static void test_##test(void **state) \
    {                                     \
        (void)state;                      \
        check_published(vocab, out);      \
    }
PUBLISHED(gpt2, "gpt-2", "gpt-2")
PUBLISHED(starcoder, "starcoder", "starcoder")
PUBLISHED(deepseek_coder, "deepseek-coder", "deepseek-coder")
PUBLISHED(falcon, "falcon", "falcon")
PUBLISHED(llama_spm, "llama-spm", "llama-spm")
PUBLISHED(phi3, "phi-3", "phi-3")
PUBLISHED(qwen2, "qwen3", "qwen2")
PUBLISHED(deepseek_r1_qwen, "qwen3", "deepseek-r1-qwen")
PUBLISHED(llama_bpe, "llama-bpe", "llama-bpe")

/* vectors.jsonl.gz: rows {text, parse_special, ids: {vocabulary: [..]}}. */
static void check_vectors(const char *vocab, const char *column)
{
    fixture f;
    if (!shared_data_or_skip("tokenizer/vectors.jsonl.gz") || !fixture_open(&f, vocab))
        skip();
    size_t n;
    char *rows = slurp(shared_data("tokenizer/vectors.jsonl.gz"), &n);
    int n_rows = 0;
    for (char *line = rows, *eol; (eol = strchr(line, '\n')); line = eol + 1) {
        *eol = '\0';
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(row);
        const json_t *text = json_object_get(row, "text"),
                     *ids = json_object_get(json_object_get(row, "ids"), column);
        bool special = json_is_true(json_object_get(row, "parse_special"));
        if (json_is_array(ids)) {
            size_t n_want = json_array_size(ids);
            int32_t *want = ea_malloc(n_want * sizeof *want);
            for (size_t i = 0; i < n_want; i++)
                want[i] = (int32_t)json_integer_value(json_array_get(ids, i));
            check_ids(&f, vocab, json_string_value(text), json_string_length(text),
                      special ? EA_TOKENIZE_SPECIAL : 0, want, n_want);
            ea_free(want);
            n_rows++;
        }
        json_decref(row);
    }
    assert_true(n_rows > 300);
    ea_free(rows);
    fixture_close(&f);
}

#define VECTORS(test, vocab, column)              \
    static void test_vectors_##test(void **state) \
    {                                             \
        (void)state;                              \
        check_vectors(vocab, column);             \
    }
VECTORS(qwen3, "qwen3", "qwen3")
VECTORS(llama3, "llama-bpe", "llama3")
VECTORS(gpt2, "gpt-2", "gpt-2")
VECTORS(llama_spm, "llama-spm", "llama-spm")

/* A vocabulary kind that we do not have is refused by name. */
static void test_wpm_refused(void **state)
{
    (void)state;
    if (!shared_data_or_skip("tokenizer/ggml-vocab-bert-bge.gguf.gz"))
        skip();
    size_t n;
    char *bytes = slurp(shared_data("tokenizer/ggml-vocab-bert-bge.gguf.gz"), &n);
    ea_error err = {0};
    ea_gguf *g;
    ea_vocab *v;
    assert_ok(ea_gguf_open_memory("bge", bytes, n, &g, &err), &err);
    assert_int_equal(ea_vocab_load(g, -1, &v, &err), EA_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "\"bert\""));
    ea_gguf_close(g);
    ea_free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_starcoder),
        cmocka_unit_test(test_deepseek_coder),
        cmocka_unit_test(test_falcon),
        cmocka_unit_test(test_llama_spm),
        cmocka_unit_test(test_phi3),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_deepseek_r1_qwen),
        cmocka_unit_test(test_llama_bpe),
        cmocka_unit_test(test_vectors_qwen3),
        cmocka_unit_test(test_vectors_llama3),
        cmocka_unit_test(test_vectors_gpt2),
        cmocka_unit_test(test_vectors_llama_spm),
        cmocka_unit_test(test_wpm_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
