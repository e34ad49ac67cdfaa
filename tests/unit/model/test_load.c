/* test_load.c: ea_model_load over every file of the malformed set, as a user meets them: refused
 * with a text that begins with the file, or loaded; and models made here. */
#include <string.h>

#include <jansson.h>

#include "support.h"

static void expect_outcome(const char *file, const char *expect, bool vocab_only)
{
    char rel[200];
    snprintf(rel, sizeof rel, "gguf-bad/%s", file);
    ea_model_params params;
    ea_model *model = NULL;
    ea_error err = {0};
    ea_model_params_default(&params);
    params.n_threads = 1;
    params.vocab_only = vocab_only;
    ea_status status = ea_model_load(shared_data(rel), &params, &model, &err);
    assert_true((status == EA_OK) == (model != NULL));
    if (status == EA_OK) {
        ea_model_info info;
        ea_model_info_get(model, &info);
        assert_string_equal(info.path, shared_data(rel));
        assert_true(vocab_only || info.n_layer > 0);
    } else if (!strstr(err.text, strrchr(file, '/') + 1) || err.code != status) {
        fail_msg("%s: \"%s\" does not name the file", file, err.text);
    }
    if (!vocab_only && strcmp(expect, "reject") == 0 && status == EA_OK)
        fail_msg("%s was accepted", file);
    if (strcmp(expect, "accept") == 0 && status != EA_OK)
        fail_msg("%s: %s", file, err.text);
    ea_model_destroy(model);
}

static void every_malformed_file(void **state)
{
    (void)state;
    const char *path = shared_data_or_skip("gguf-bad/manifest.jsonl");
    if (!path)
        skip();
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    json_t *line;
    int n_rejected = 0;
    while ((line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL))) {
        const char *file = json_string_value(json_object_get(line, "file"));
        const char *expect = json_string_value(json_object_get(line, "expect"));
        const char *level = json_string_value(json_object_get(line, "level"));
        /* A sound container without a model is none that can be loaded. */
        if (strcmp(level, "container") == 0 && strcmp(expect, "accept") == 0)
            expect = "either";
        expect_outcome(file, expect, false);
        expect_outcome(file, "either", true);
        n_rejected += strcmp(expect, "reject") == 0;
        json_decref(line);
    }
    fclose(f);
    assert_true(n_rejected > 100);
}

static void no_such_file(void **state)
{
    (void)state;
    ea_model *model = NULL;
    ea_error err = {0};
    assert_int_equal(ea_model_load("/nonexistent/m.gguf", NULL, &model, &err), EA_EIO);
    assert_non_null(strstr(err.text, "/nonexistent/m.gguf"));
    ea_model_params params;
    ea_model_params_default(&params);
    params.n_threads = -2;
    err = (ea_error){0};
    assert_int_equal(ea_model_load("/nonexistent/m.gguf", &params, &model, &err), EA_EINVAL);
    assert_non_null(strstr(err.text, "n_threads"));
    assert_null(model);
}

static bool count_progress(void *user, double fraction)
{
    double *last = user;
    assert_true(fraction >= *last && fraction <= 1);
    *last = fraction;
    return true;
}

static void synthetic_models(void **state)
{
    (void)state;
    ea_model *model = NULL;
    ea_error err = {0};
    double last = 0;
    ea_model_params params;
    ea_model_params_default(&params);
    params.n_threads = 2;
    params.progress = count_progress;
    params.progress_user = &last;
    assert_ok(ea_model_synthetic("layers=2,embd=64,ff=96,heads=4,kv=2,vocab=300,ctx=500:Q8_0", 1,
                                 &params, &model, &err),
              &err);
    assert_true(last == 1);
    ea_model_info info;
    ea_model_info_get(model, &info);
    assert_string_equal(info.arch, "llama");
    assert_int_equal(info.n_vocab, 300);
    assert_int_equal(info.n_layer, 2);
    assert_int_equal(info.n_head, 4);
    assert_int_equal(info.n_head_kv, 2);
    assert_int_equal(info.n_ctx_train, 500);
    assert_false(info.has_chat_template);
    assert_true(info.n_bytes < info.n_params * 2);
    ea_model_destroy(model);
    model = NULL;
    assert_int_equal(ea_model_synthetic("nosuch:Q8_0", 1, NULL, &model, &err), EA_EINVAL);
    assert_non_null(strstr(err.text, "nosuch"));
    assert_null(model);
    assert_non_null(strstr(ea_model_synthetic_shapes(), "llama-1b"));
}

static void system_is_reported(void **state)
{
    (void)state;
    char *text = ea_system_report();
    assert_non_null(text);
    assert_non_null(strstr(text, "cpu: "));
    assert_non_null(strstr(text, "levels: ref"));
    assert_non_null(strstr(text, "matmul Q4_K"));
    ea_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_malformed_file),
        cmocka_unit_test(no_such_file),
        cmocka_unit_test(synthetic_models),
        cmocka_unit_test(system_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
