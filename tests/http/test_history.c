/* test_history.c: a returning text keeps the tokens that it was said in. Needs a real vocabulary.
 */
#include "support.h"

#include <string.h>

#include "base/mem.h"
#include "server/history.h"

static ea_model *model;

static void tokenize(const char *text, unsigned flags, int32_t **tokens, size_t *n)
{
    ea_error err = {0};
    assert_ok(ea_tokenize(model, text, strlen(text), flags, tokens, n, &err), &err);
}

/* What a server makes of a prompt. */
static void read_prompt(ea_history *h, const char *text, int32_t **tokens, size_t *n)
{
    ea_error err = {0};
    tokenize(text, EA_TOKENIZE_SPECIAL | EA_TOKENIZE_ADD_BOS, tokens, n);
    assert_ok(ea_history_apply(h, text, strlen(text), tokens, n, &err), &err);
}

/* "Hello" letter by letter, as no tokenizer would write it: what a model may do all the same. */
static size_t spell_hello(int32_t *out)
{
    int32_t *one;
    size_t n, at = 0;
    tokenize("", EA_TOKENIZE_ADD_BOS, &one, &n);
    for (size_t i = 0; i < n; i++)
        out[at++] = one[i];
    ea_free(one);
    for (const char *c = "Hello"; *c; c++) {
        char letter[2] = {*c, 0};
        tokenize(letter, 0, &one, &n);
        out[at++] = one[n - 1]; /* without the space that the vocabulary puts in front */
        ea_free(one);
    }
    return at;
}

static void a_returning_text_keeps_its_tokens(void **state)
{
    (void)state;
    ea_history *h = NULL;
    ea_error err = {0};
    assert_ok(ea_history_create(model, &h, &err), &err);
    int32_t said[16], *plain, *got, *rest;
    size_t n_said = spell_hello(said), n_plain, n_got, n_rest;
    const char *prompt = "Hello</s> and more";
    tokenize(prompt, EA_TOKENIZE_SPECIAL | EA_TOKENIZE_ADD_BOS, &plain, &n_plain);
    read_prompt(h, prompt, &got, &n_got); /* nothing is remembered */
    assert_int_equal(n_got, n_plain);
    assert_memory_equal(got, plain, n_plain * sizeof *plain);
    ea_free(got);

    ea_history_add(h, "Hel", 3, said, n_said - 2); /* a shorter beginning must not win */
    ea_history_add(h, "Hello", 5, said, n_said);
    read_prompt(h, prompt, &got, &n_got);
    tokenize("</s> and more", EA_TOKENIZE_SPECIAL, &rest, &n_rest);
    assert_int_equal(n_got, n_said + n_rest);
    assert_memory_equal(got, said, n_said * sizeof *said);
    assert_memory_equal(got + n_said, rest, n_rest * sizeof *rest);
    assert_true(n_got != n_plain);
    ea_free(got);
    ea_free(rest);

    /* The text goes on without an end of turn: no border to cut at. */
    read_prompt(h, "Hellos", &got, &n_got);
    ea_free(plain);
    tokenize("Hellos", EA_TOKENIZE_SPECIAL | EA_TOKENIZE_ADD_BOS, &plain, &n_plain);
    assert_int_equal(n_got, n_plain);
    assert_memory_equal(got, plain, n_plain * sizeof *plain);
    ea_free(got);
    ea_free(plain);
    ea_history_destroy(h);
}

static void old_answers_make_room(void **state)
{
    (void)state;
    ea_history *h = NULL;
    ea_error err = {0};
    assert_ok(ea_history_create(model, &h, &err), &err);
    int32_t said[16], *got;
    size_t n_said = spell_hello(said), n_got, n_plain;
    tokenize("Hello</s>", EA_TOKENIZE_SPECIAL | EA_TOKENIZE_ADD_BOS, &got, &n_plain);
    ea_free(got);
    ea_history_add(h, "Hello", 5, said, n_said);
    char text[32];
    for (int i = 0; i < 511; i++) {
        snprintf(text, sizeof text, "filler %d", i);
        ea_history_add(h, text, strlen(text), said, n_said);
    }
    read_prompt(h, "Hello</s>", &got, &n_got);
    assert_int_equal(n_got, n_said + 1); /* still there, and now the youngest */
    ea_free(got);
    for (int i = 0; i < 511; i++) {
        snprintf(text, sizeof text, "other %d", i);
        ea_history_add(h, text, strlen(text), said, n_said);
    }
    read_prompt(h, "Hello</s>", &got, &n_got);
    assert_int_equal(n_got, n_said + 1);
    ea_free(got);
    for (int i = 0; i < 512; i++) {
        snprintf(text, sizeof text, "third %d", i);
        ea_history_add(h, text, strlen(text), said, n_said);
    }
    read_prompt(h, "Hello</s>", &got, &n_got);
    assert_int_equal(n_got, n_plain);
    ea_free(got);
    size_t large = 40u << 20; /* two of these are over the bound: the first goes */
    char *big = malloc(large);
    memset(big, 'x', large);
    ea_history_add(h, big, large, said, n_said);
    big[0] = 'y';
    ea_history_add(h, big, large, said, n_said);
    free(big);
    ea_history_destroy(h);
}

int main(void)
{
    const char *path = shared_data_or_skip("tokenizer/ggml-vocab-llama-spm.gguf");
    if (!path)
        return EA_TEST_SKIPPED;
    ea_model_params params;
    ea_model_params_default(&params);
    params.vocab_only = true;
    ea_error err = {0};
    if (ea_model_load(path, &params, &model, &err) != EA_OK) {
        printf("%s\n", err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_returning_text_keeps_its_tokens),
        cmocka_unit_test(old_answers_make_room),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ea_model_destroy(model);
    return failed;
}
