/* test_chat.c: prompts from chat templates: the default one, control tokens in user text, what a
 * style tells, malformed templates in model files, and failing allocations. */
#include "support.h"

#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "text/chat.h"

static ea_chat_params params_of(const char *messages)
{
    return (ea_chat_params){
        .size = sizeof(ea_chat_params), .messages_json = messages, .add_generation_prompt = true};
}

static ea_chat_template *compile(const char *source)
{
    ea_chat_template *t;
    ea_error err = {0};
    assert_ok(ea_chat_template_create(source, source ? strlen(source) : 0, "<s>", "</s>", &t, &err),
              &err);
    return t;
}

static void test_default(void **state)
{
    (void)state;
    ea_chat_template *t = compile(NULL);
    ea_chat_params params = params_of("[{\"role\":\"system\",\"content\":\"Be brief.\"},"
                                      "{\"role\":\"user\",\"content\":\"Hi\\n\"}]");
    char *text;
    size_t n;
    ea_error err = {0};
    assert_ok(ea_chat_template_render(t, NULL, &params, &text, &n, &err), &err);
    assert_string_equal(text, "<|im_start|>system\nBe brief.<|im_end|>\n"
                              "<|im_start|>user\nHi\n<|im_end|>\n<|im_start|>assistant\n");
    assert_int_equal(n, strlen(text));
    ea_free(text);
    ea_chat_template_destroy(t);
}

/* A template that does not compile is told at each request, with the reason. */
static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *source, *messages, *says;
    } cases[] = {
        {"{% if %}", "[]", "does not compile"},
        {"{{ raise_exception('roles must alternate') }}", "[]", "roles must alternate"},
        {"{{ 1 + 'a' }}", "[]", "fails"},
        {"x", "{", "messages"},
        {"x", "[{\"content\":\"\"}]", "messages[0].role"},
    };
    for (size_t i = 0; i < EA_ARRAY_LEN(cases); i++) {
        ea_chat_template *t = compile(cases[i].source);
        ea_chat_params params = params_of(cases[i].messages);
        char *text = NULL;
        size_t n;
        ea_error err = {0};
        assert_int_equal(ea_chat_template_render(t, NULL, &params, &text, &n, &err), EA_EFORMAT);
        assert_null(text);
        if (!strstr(err.text, cases[i].says))
            fail_msg("%s: %s", cases[i].source, err.text);
        ea_chat_template_destroy(t);
    }
}

static void test_style(void **state)
{
    (void)state;
    ea_chat_params params = params_of(NULL);
    ea_chat_template *t =
        compile("{% if add_generation_prompt %}<a>{% if thinking is not false %}<think>\n"
                "{% endif %}{% endif %}");
    assert_true(ea_chat_template_style(t, &params).opens_thinking);
    params.template_kwargs = "{\"thinking\": false}";
    assert_false(ea_chat_template_style(t, &params).opens_thinking);
    assert_false(ea_chat_template_style(t, &params).bare_json);
    ea_chat_template_destroy(t);
    t = compile("{{ '{\"name\": \"' + 'f' + '\", \"parameters\": ' }}");
    assert_true(ea_chat_template_style(t, &params).bare_json);
    ea_chat_template_destroy(t);
}

/* A small SPM vocabulary with one control token that user text spells out. */
static ea_vocab *load_vocab(ea_gguf **g)
{
    const char *path = shared_data_or_skip("tiny/stories260K-f32.gguf");
    if (!path)
        return NULL;
    ea_error err = {0};
    ea_vocab *v;
    assert_ok(ea_gguf_open(path, g, &err), &err);
    assert_ok(ea_vocab_load(*g, -1, &v, &err), &err);
    return v;
}

static void test_protected(void **state)
{
    (void)state;
    ea_gguf *g;
    ea_vocab *v = load_vocab(&g);
    if (!v)
        skip();
    ea_chat_template *t = compile("{{ bos_token }}{% for m in messages %}{{ m.content }}|"
                                  "{{ m.role }}{% for c in m.tool_calls or [] %}"
                                  "{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}");
    ea_chat_params params = params_of(
        "[{\"role\":\"user\",\"content\":\"</s><s>\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
        "\"arguments\":{\"<s>\":\"</s>\"}}}]}]");
    char *text;
    size_t n, n_tokens;
    ea_error err = {0};
    assert_ok(ea_chat_template_render(t, v, &params, &text, &n, &err), &err);
    int32_t *tokens;
    assert_ok(ea_vocab_tokenize(v, text, n, EA_TOKENIZE_SPECIAL, &tokens, &n_tokens, &err), &err);
    int n_control = 0;
    for (size_t i = 0; i < n_tokens; i++)
        n_control += ea_vocab_is_control(v, tokens[i]);
    assert_int_equal(n_control, 1); /* the template's own <s> */
    assert_int_equal(tokens[0], 1);
    ea_free(tokens);
    ea_free(text);
    ea_chat_template_destroy(t);
    ea_vocab_destroy(v);
    ea_gguf_close(g);
}

/* Model files whose template is malformed: an answer or an error, in bounded time. */
static void test_malformed_files(void **state)
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
        if (strcmp(json_string_value(json_object_get(row, "level")), "template") == 0) {
            char rel[256];
            ea_gguf *g;
            ea_str source;
            ea_error err = {0};
            snprintf(rel, sizeof rel, "gguf-bad/%s",
                     json_string_value(json_object_get(row, "file")));
            assert_ok(ea_gguf_open(shared_data(rel), &g, &err), &err);
            if (ea_gguf_get_str(g, "tokenizer.chat_template", &source, &err) == EA_OK) {
                ea_chat_template *t;
                assert_ok(ea_chat_template_create(source.s, source.n, "", "", &t, &err), &err);
                ea_chat_params params = params_of("[{\"role\":\"user\",\"content\":\"Hi\"}]");
                char *text = NULL;
                size_t n;
                if (ea_chat_template_render(t, NULL, &params, &text, &n, &err) != EA_OK)
                    assert_true(err.text[0]);
                ea_free(text);
                ea_chat_template_destroy(t);
            }
            ea_gguf_close(g);
            n_rows++;
        }
        json_decref(row);
    }
    fclose(file);
    assert_true(n_rows >= 5);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    ea_gguf *g;
    ea_vocab *v = load_vocab(&g);
    if (!v)
        skip();
    ea_chat_template *t = compile(NULL);
    ea_chat_params params = params_of("[{\"role\":\"user\",\"content\":\"a<s>b\"}]");
    int n_failed = 0;
    for (size_t i = 1; i < 50; i++) {
        char *text = NULL;
        size_t n;
        ea_error err = {0};
        ea_alloc_fail_at(i);
        ea_status status = ea_chat_template_render(t, v, &params, &text, &n, &err);
        ea_alloc_fail_at(0);
        ea_free(text);
        if (status == EA_OK)
            break;
        assert_int_equal(status, EA_ENOMEM);
        n_failed++;
    }
    assert_in_range(n_failed, 1, 48);
    ea_chat_template_destroy(t);
    ea_vocab_destroy(v);
    ea_gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default),         cmocka_unit_test(test_errors),
        cmocka_unit_test(test_style),           cmocka_unit_test(test_protected),
        cmocka_unit_test(test_malformed_files), cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
