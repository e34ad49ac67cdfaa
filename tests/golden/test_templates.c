/* test_templates.c: chat templates of 65 models against Jinja2's own renderings of them. Also what
 * the adapter makes of a client's messages, and that hostile templates end in an error. */
#include "support.h"

#include <jansson.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "ea_ext.h"

/* Rows where we differ from Jinja2, and why. */
static const char *const known_exceptions[] = {
    /* Jinja2: tojson of a generator is an error. Ours renders it as the list it stands for. */
    "llama-cpp-deepseek-r1.jinja tool_use",
    "llama-cpp-deepseek-r1.jinja tool_use_obj",
    "llama-cpp-deepseek-r1.jinja tool_first",
    "llama-cpp-deepseek-r1.jinja tool_parallel_results",
    /* Jinja2: safe + text escapes the text for HTML, which no chat template can want. */
    "meetkai-functionary-medium-v3.1.jinja tool_use",
    "meetkai-functionary-medium-v3.1.jinja tool_use_obj",
    "meetkai-functionary-medium-v3.1.jinja tool_first",
    "meetkai-functionary-medium-v3.1.jinja tool_parallel_results",
};

static bool is_known(const char *row)
{
    for (size_t i = 0; i < EA_ARRAY_LEN(known_exceptions); i++)
        if (strcmp(known_exceptions[i], row) == 0)
            return true;
    return false;
}

typedef struct cache {
    char name[128];
    ea_ext_template *t;
} cache;

static ea_ext_template *load_template(cache *c, const char *name)
{
    if (strcmp(c->name, name) == 0)
        return c->t;
    ea_ext_template_destroy(c->t);
    c->t = NULL;
    snprintf(c->name, sizeof c->name, "%s", name);
    char rel[256];
    char *source;
    size_t n;
    ea_error err = {0};
    snprintf(rel, sizeof rel, "templates/jinja/%s", name);
    assert_ok(ea_file_read(shared_data(rel), 1 << 20, &source, &n, &err), &err);
    ea_ext_text reason = {0};
    if (ea_ext_template_create(source, n, &c->t, &reason) != EA_EXT_OK)
        fail_msg("%s: %s", name, reason.data);
    ea_free(source);
    return c->t;
}

/* Members of a context file as the render call takes them. */
static int render_context(const ea_ext_template *t, json_t *context, bool adapt, ea_ext_text *out)
{
    char *messages = json_dumps(json_object_get(context, "messages"), 0),
         *tools = json_dumps(json_object_get(context, "tools"), 0);
    json_t *rest = json_copy(context);
    static const char *const taken[] = {
        "messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "now",
    };
    for (size_t i = 0; i < EA_ARRAY_LEN(taken); i++)
        json_object_del(rest, taken[i]);
    char *variables = json_dumps(rest, 0);
    ea_ext_render params = {
        .messages = messages,
        .n_messages = strlen(messages),
        .tools = tools,
        .n_tools = tools ? strlen(tools) : 0,
        .variables = variables,
        .n_variables = strlen(variables),
        .bos = json_string_value(json_object_get(context, "bos_token")),
        .eos = json_string_value(json_object_get(context, "eos_token")),
        .add_generation_prompt = json_is_true(json_object_get(context, "add_generation_prompt")),
        .adapt = adapt,
        .now = 1721952000, /* 2024-07-26T00:00:00, as in the contexts */
    };
    int rc = ea_ext_template_render(t, &params, out);
    free(messages);
    free(tools);
    free(variables);
    json_decref(rest);
    return rc;
}

/* NULL if the row comes out as it should, else what is wrong (static buffer). */
static const char *check_row(const ea_ext_template *t, json_t *row, json_t *context)
{
    static char problem[600];
    ea_ext_text out = {0};
    int rc = render_context(t, context, false, &out);
    const char *want = json_string_value(json_object_get(row, "output")),
               *kind = json_string_value(json_object_get(row, "kind"));
    problem[0] = '\0';
    if (want && rc != EA_EXT_OK) {
        snprintf(problem, sizeof problem, "error %d: %.400s", rc, out.data);
    } else if (want && (out.n != strlen(want) || memcmp(out.data, want, out.n) != 0)) {
        size_t at = 0;
        while (at < out.n && want[at] == out.data[at])
            at++;
        snprintf(problem, sizeof problem, "at %zu: got \"%.80s\", wanted \"%.80s\"", at,
                 out.data + at, want + at);
    } else if (!want && rc == EA_EXT_OK) {
        snprintf(problem, sizeof problem, "rendered, wanted an error: %.200s",
                 json_string_value(json_object_get(row, "error")));
    } else if (!want && (rc == EA_EXT_REFUSED) != (strcmp(kind, "raise_exception") == 0)) {
        snprintf(problem, sizeof problem, "error %d (%.200s), wanted %s", rc, out.data, kind);
    }
    ea_ext_text_free(&out);
    return problem[0] ? problem : NULL;
}

static void test_golden(void **state)
{
    (void)state;
    const char *path = shared_data_or_skip("templates/golden.jsonl");
    if (!path)
        skip();
    setenv("TZ", "UTC", 1);
    char *rows;
    size_t n;
    ea_error err = {0};
    assert_ok(ea_file_read(path, 1 << 24, &rows, &n, &err), &err);
    cache templates = {0};
    int n_rows = 0, n_bad = 0, n_known = 0;
    for (char *line = rows, *eol; (eol = strchr(line, '\n')); line = eol + 1, n_rows++) {
        *eol = '\0';
        json_t *row = json_loads(line, 0, NULL);
        assert_non_null(row);
        const char *name = json_string_value(json_object_get(row, "template")),
                   *context_name = json_string_value(json_object_get(row, "context"));
        char rel[256], key[256];
        snprintf(rel, sizeof rel, "templates/contexts/%s.json", context_name);
        snprintf(key, sizeof key, "%s %s", name, context_name);
        json_t *context = json_load_file(shared_data(rel), 0, NULL);
        assert_non_null(context);
        const char *problem = check_row(load_template(&templates, name), row, context);
        if (!problem == is_known(key)) {
            n_bad++;
            print_error("%s: %s\n", key, problem ? problem : "is right now: take it off the list");
        }
        n_known += problem != NULL && is_known(key);
        json_decref(context);
        json_decref(row);
    }
    ea_ext_template_destroy(templates.t);
    ea_free(rows);
    assert_int_equal(n_rows, 520);
    assert_int_equal(n_bad, 0);
    assert_int_equal(n_known, EA_ARRAY_LEN(known_exceptions));
}

/* ---- hostile templates ---- */

static const char user_hi[] = "[{\"role\":\"user\",\"content\":\"hi\"}]";

/* Render one template over "hi"; the reason or the text goes to out. A template that does not
 * compile counts as its error. */
static int render_source(const char *source, size_t n, const char *messages, const char *tools,
                         ea_ext_text *out)
{
    ea_ext_template *t;
    int rc = ea_ext_template_create(source, n, &t, out);
    if (rc != EA_EXT_OK)
        return rc;
    ea_ext_render params = {
        .messages = messages,
        .n_messages = strlen(messages),
        .tools = tools,
        .n_tools = tools ? strlen(tools) : 0,
        .bos = "<s>",
        .eos = "</s>",
        .add_generation_prompt = true,
        .adapt = true,
        .now = -1,
    };
    rc = ea_ext_template_render(t, &params, out);
    ea_ext_template_destroy(t);
    return rc;
}

static void test_hostile(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        int rc;
    } cases[] = {
        {"{% for i in range(1000000000) %}x{% endfor %}", EA_EXT_RUNTIME},
        {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
         EA_EXT_LIMIT},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", EA_EXT_RUNTIME},
        {"{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}"
         "{% endfor %}{{ ns.s }}",
         EA_EXT_LIMIT},
        {"{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}"
         "{% endfor %}{{ ns.s|length }}",
         EA_EXT_LIMIT},
        {"{{ 'x' * 2000000000 }}", EA_EXT_LIMIT},
        {"{{ 'x'.ljust(2000000000) }}", EA_EXT_LIMIT},
        {"{% for i in range(30000) %}{{ 'x' * 1000 }}{% endfor %}", EA_EXT_LIMIT},
        {"{{ messages[0].content.nosuch() }}", EA_EXT_RUNTIME},
        {"{{ raise_exception('no ' ~ messages[0].content) }}", EA_EXT_REFUSED},
        {"{% if %}{{ x", EA_EXT_SYNTAX},
        {"\xff", EA_EXT_SYNTAX},
        {"{% include 'other' %}", EA_EXT_SYNTAX},
        {"{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}"
         "{% endfor %}ok",
         EA_EXT_OK},
        {"{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = {'a': ns.x} %}"
         "{% endfor %}{{ ns.x|tojson }}",
         EA_EXT_RUNTIME},
        {"{% set ns = namespace(l=[]) %}{% set _ = ns.l.append(ns.l) %}", EA_EXT_RUNTIME},
    };
    for (size_t i = 0; i < EA_ARRAY_LEN(cases); i++) {
        ea_ext_text out = {0};
        int rc = render_source(cases[i].source, strlen(cases[i].source), user_hi, NULL, &out);
        if (rc != cases[i].rc)
            fail_msg("%s: gave %d, wanted %d: %.200s", cases[i].source, rc, cases[i].rc, out.data);
        ea_ext_text_free(&out);
    }
}

/* A source of n copies of `unit` between head and tail. */
static void check_repeated(const char *head, const char *unit, const char *tail, size_t n)
{
    ea_buf source = EA_BUF_INIT;
    ea_buf_puts(&source, head);
    for (size_t i = 0; i < n; i++)
        ea_buf_puts(&source, unit);
    ea_buf_puts(&source, tail);
    ea_ext_text out = {0};
    int rc = render_source(source.data, source.n, user_hi, NULL, &out);
    assert_in_range(rc, EA_EXT_OK, EA_EXT_LIMIT);
    assert_non_null(out.data);
    ea_ext_text_free(&out);
    ea_buf_done(&source);
}

/* Deep and long expressions end in a result or an error, never in a broken stack. */
static void test_nesting(void **state)
{
    (void)state;
    check_repeated("{{ ", "(", "1", 5000);
    check_repeated("{{ ", "[", " }}", 60000);
    check_repeated("{{ 1", "+1", " }}", 60000);
    check_repeated("{{ 1", "|abs", " }}", 30000);
    check_repeated("{{ x", ".a", " }}", 60000);
    check_repeated("{{ ", "not ", "1 }}", 30000);
    check_repeated("{{ ", "-", "1 }}", 100000);
    check_repeated("{{ 1", " if 1 else 2", " }}", 10000);
    check_repeated("", "{% if 1 %}", "", 12000);
    check_repeated("", "{% for x in [1] %}", "", 7000);
    check_repeated("{{ 1", " ~ 'a'", " }}", 2000);
    check_repeated("", "x", "", EA_EXT_MAX_SOURCE + 1);
}

/* ---- what the adapter makes of messages ---- */

static void assert_renders(const char *source, const char *messages, const char *tools,
                           const char *want)
{
    ea_ext_text out = {0};
    int rc = render_source(source, strlen(source), messages, tools, &out);
    if (rc != EA_EXT_OK || strcmp(out.data, want) != 0)
        fail_msg("%s over %s gave %d: %s", source, messages, rc, out.data);
    ea_ext_text_free(&out);
}

#define CALL(arguments, content)                                                           \
    "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":" content \
    ",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","   \
    "\"arguments\":" arguments "}}]}]"

/* Templates in the two styles there are: arguments dumped as JSON, and arguments written as given.
 */
#define DUMPS                                                                                 \
    "{% for m in messages %}[{{ m.content }}]{% if tools %}{{ tools|tojson }}{% endif %}"     \
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments|tojson }}" \
    "{% endfor %}{% endfor %}"
#define WRITES                                                                         \
    "{% for m in messages %}[{{ m.content }}]"                                         \
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}" \
    "{% endfor %}{% endfor %}"
#define PLAIN "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"

static void test_adapt(void **state)
{
    (void)state;
    /* JSON text becomes an object only where the template would escape it. */
    assert_renders(DUMPS, CALL("\"{\\\"a\\\": 1.50, \\\"b\\\":[12345678901234567890]}\"", "\"x\""),
                   NULL, "[hi][x]f{\"a\": 1.5, \"b\": [12345678901234567890]}");
    assert_renders(WRITES, CALL("\"{\\\"a\\\":  1.50}\"", "\"x\""), NULL, "[hi][x]f{\"a\":  1.50}");
    assert_renders(DUMPS, CALL("\"\"", "\"x\""), NULL, "[hi][x]f{}");
    assert_renders(DUMPS, CALL("\"not json\"", "\"x\""), NULL, "[hi][x]f\"not json\"");
    /* No content beside calls: not the word None. */
    assert_renders(DUMPS, CALL("\"{}\"", "null"), NULL, "[hi][]f{}");
    /* Parts become text where the template wants text, and the other way round. */
    assert_renders(PLAIN,
                   "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                   "{\"type\":\"text\",\"text\":\"b\"}]}]",
                   NULL, "<user>ab");
    assert_renders("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}"
                   "{% endfor %}",
                   user_hi, NULL, "hi");
    /* Keys stay in the client's order, text is not escaped. */
    assert_renders(DUMPS, user_hi, "[{\"z\":1,\"a\":\"<\u00e9>\"}]",
                   "[hi][{\"z\": 1, \"a\": \"<\u00e9>\"}]");
}

/* Arguments as clients send them (JSON text) give what the template makes of objects. */
static void test_adapt_real(void **state)
{
    (void)state;
    static const char *const names[] = {
        "Qwen-Qwen2.5-7B-Instruct.jinja",
        "Qwen3-Coder.jinja",
        "meta-llama-Llama-3.2-3B-Instruct.jinja",
        "mistralai-Mistral-Nemo-Instruct-2407.jinja",
    };
    if (!shared_data_or_skip("templates/contexts/tool_use.json"))
        skip();
    setenv("TZ", "UTC", 1);
    json_t *text = json_load_file(shared_data("templates/contexts/tool_use.json"), 0, NULL),
           *object = json_load_file(shared_data("templates/contexts/tool_use_obj.json"), 0, NULL);
    cache templates = {0};
    for (size_t i = 0; i < EA_ARRAY_LEN(names); i++) {
        ea_ext_text got = {0}, want = {0};
        const ea_ext_template *t = load_template(&templates, names[i]);
        assert_int_equal(render_context(t, text, true, &got), EA_EXT_OK);
        assert_int_equal(render_context(t, object, false, &want), EA_EXT_OK);
        if (strcmp(got.data, want.data) != 0)
            fail_msg("%s: %s", names[i], got.data);
        ea_ext_text_free(&got);
        ea_ext_text_free(&want);
    }
    ea_ext_template_destroy(templates.t);
    json_decref(text);
    json_decref(object);
}

/* A template that knows nothing of tools has them told in the system message. */
static void test_adapt_tools(void **state)
{
    (void)state;
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    ea_ext_text out = {0};
    assert_int_equal(render_source(PLAIN, sizeof PLAIN - 1, user_hi, tools, &out), EA_EXT_OK);
    assert_non_null(strstr(out.data, "<tools>[{\"name\": \"f\"}]</tools>"));
    assert_ptr_equal(strstr(out.data, "<system>"), out.data);
    ea_ext_text_free(&out);
    assert_renders(PLAIN, CALL("\"{\\\"a\\\": 1}\"", "null"), NULL,
                   "<user>hi<assistant><tool_call>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]"
                   "</tool_call>");
}

/* JSON that is none, or not of the shape, is told apart from the template's own trouble. */
static void test_bad_input(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "{}",
        "[",
        "[1]",
        "[{\"role\":1}]",
        "[{\"role\":\"user\",\"content\":7}]",
        "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]",
        "[{\"role\":\"user\",\"content\":\"\\ud800\"}]",
    };
    for (size_t i = 0; i < EA_ARRAY_LEN(bad); i++) {
        ea_ext_text out = {0};
        assert_int_equal(render_source("{{ messages }}", 14, bad[i], NULL, &out), EA_EXT_INPUT);
        assert_true(out.n > 0);
        ea_ext_text_free(&out);
    }
    ea_buf deep = EA_BUF_INIT;
    for (int i = 0; i < 100000; i++)
        ea_buf_putc(&deep, '[');
    ea_ext_text out = {0};
    assert_int_equal(render_source("x", 1, deep.data, NULL, &out), EA_EXT_INPUT);
    ea_ext_text_free(&out);
    ea_buf_done(&deep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),     cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_nesting),    cmocka_unit_test(test_adapt),
        cmocka_unit_test(test_adapt_real), cmocka_unit_test(test_adapt_tools),
        cmocka_unit_test(test_bad_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
