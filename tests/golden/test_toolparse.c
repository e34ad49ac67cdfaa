/* test_toolparse.c: answers of real templates' formats cut into content, reasoning and calls. Every
 * text is fed whole, byte by byte and in random pieces: the result must be the same. */
#include "support.h"

#include <jansson.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "text/chat.h"

/* What the deltas of one answer add up to. */
typedef struct answer {
    ea_buf content, reasoning, calls; /* calls: "name arguments\n" each */
    int n_calls, next_index;
} answer;

static void collect(void *user, const ea_chat_delta *delta)
{
    answer *a = user;
    switch (delta->kind) {
    case EA_CHAT_CONTENT: ea_buf_add(&a->content, delta->text, delta->n_bytes); break;
    case EA_CHAT_REASONING: ea_buf_add(&a->reasoning, delta->text, delta->n_bytes); break;
    case EA_CHAT_TOOL_CALL:
        assert_int_equal(delta->index, a->next_index++);
        ea_buf_printf(&a->calls, "%s %s\n", delta->name, delta->arguments);
        break;
    }
}

static void answer_done(answer *a)
{
    ea_buf_done(&a->content);
    ea_buf_done(&a->reasoning);
    ea_buf_done(&a->calls);
}

static const char *str(const ea_buf *buf)
{
    return buf->data ? buf->data : "";
}

static const char default_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"write_file\"}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"search\"}}]";

/* How a text is cut: 0 = whole, 1 = bytes, else pieces of 1..seed bytes. */
static answer parse(const ea_chat_style *style, const char *tools, bool strict, const char *text,
                    size_t n, unsigned seed)
{
    answer a = {.n_calls = 0};
    ea_chat_parser *p;
    ea_error err = {0};
    assert_ok(ea_chat_parser_init(style, tools, strict, &p, &err), &err);
    uint32_t random = seed;
    for (size_t i = 0; i < n;) {
        size_t len = n;
        if (seed) {
            random = random * 1664525u + 1013904223u;
            len = 1 + (random >> 8) % seed;
        }
        len = EA_MIN(len, n - i);
        ea_chat_parser_feed(p, text + i, len, collect, &a);
        i += len;
    }
    a.n_calls = ea_chat_parser_finish(p, collect, &a);
    assert_int_equal(a.n_calls, a.next_index);
    ea_chat_parser_destroy(p);
    return a;
}

/* Parsed whole; every other cut must agree. The caller frees it. */
static answer parse_all_ways(const ea_chat_style *style, const char *tools, bool strict,
                             const char *text, size_t n)
{
    answer whole = parse(style, tools, strict, text, n, 0);
    static const unsigned seeds[] = {1, 2, 3, 5, 7, 11, 13, 40};
    for (size_t i = 0; i < EA_ARRAY_LEN(seeds); i++) {
        answer cut = parse(style, tools, strict, text, n, seeds[i]);
        if (strcmp(str(&cut.content), str(&whole.content)) ||
            strcmp(str(&cut.reasoning), str(&whole.reasoning)) ||
            strcmp(str(&cut.calls), str(&whole.calls)))
            fail_msg("cut with seed %u it differs: %s", seeds[i], text);
        answer_done(&cut);
    }
    return whole;
}

/* ---- recorded formats ---- */

/* Families whose call format is one of ours. */
static const char *const families[] = {
    "Qwen-Qwen2.5-7B-Instruct.jinja",
    "Qwen-Qwen3-0.6B.jinja",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja",
    "meta-llama-Llama-3.1-8B-Instruct.jinja",
    "meta-llama-Llama-3.2-3B-Instruct.jinja",
};

/* The text as the engine gives it: end tokens, and what a template puts after them, are not in it.
 */
static size_t without_end(const char *raw)
{
    static const char *const ends[] = {"<|im_end|>", "<|eot_id|>"};
    for (size_t i = 0; i < EA_ARRAY_LEN(ends); i++) {
        const char *hit = strstr(raw, ends[i]);
        if (hit)
            return (size_t)(hit - raw);
    }
    return strlen(raw);
}

static void check_calls(const char *what, const answer *a, const json_t *want)
{
    size_t i;
    json_t *call;
    const char *line = str(&a->calls);
    assert_int_equal(a->n_calls, json_array_size(want));
    json_array_foreach(want, i, call)
    {
        const char *name = json_string_value(json_object_get(call, "name")),
                   *eol = strchr(line, '\n');
        assert_non_null(eol);
        if (strncmp(line, name, strlen(name)) != 0)
            fail_msg("%s: call %zu is %s", what, i, line);
        json_t *arguments =
            json_loadb(line + strlen(name) + 1, (size_t)(eol - line) - strlen(name) - 1, 0, NULL);
        if (!json_equal(arguments, json_object_get(call, "arguments")))
            fail_msg("%s: arguments of call %zu: %s", what, i, line);
        json_decref(arguments);
        line = eol + 1;
    }
}

static ea_chat_style style_of(const char *name)
{
    char rel[256], *source;
    size_t n;
    ea_error err = {0};
    ea_chat_template *t;
    ea_chat_params params = {.size = sizeof params};
    snprintf(rel, sizeof rel, "templates/jinja/%s", name);
    assert_ok(ea_file_read(shared_data(rel), 1 << 20, &source, &n, &err), &err);
    assert_ok(ea_chat_template_create(source, n, "", "", &t, &err), &err);
    ea_chat_style style = ea_chat_template_style(t, &params);
    ea_chat_template_destroy(t);
    ea_free(source);
    return style;
}

static void check_row(json_t *row, bool strict)
{
    char what[256];
    const char *name = json_string_value(json_object_get(row, "template")),
               *raw = json_string_value(json_object_get(row, "raw"));
    const json_t *want = json_object_get(row, "expected");
    const char *content = json_string_value(json_object_get(want, "content")),
               *reasoning = json_string_value(json_object_get(want, "reasoning_content"));
    snprintf(what, sizeof what, "%s %s", name, json_string_value(json_object_get(row, "case")));
    ea_chat_style style = style_of(name);
    answer a = parse_all_ways(&style, default_tools, strict, raw, without_end(raw));
    if (strcmp(str(&a.content), content ? content : "") != 0)
        fail_msg("%s: content \"%s\", wanted \"%s\"", what, str(&a.content), content);
    if (strcmp(str(&a.reasoning), reasoning ? reasoning : "") != 0)
        fail_msg("%s: reasoning \"%s\", wanted \"%s\"", what, str(&a.reasoning), reasoning);
    check_calls(what, &a, json_object_get(want, "tool_calls"));
    answer_done(&a);
}

static void test_recorded(void **state)
{
    (void)state;
    const char *path = shared_data_or_skip("templates/toolcall_raw.jsonl");
    if (!path)
        skip();
    char *rows;
    size_t n;
    ea_error err = {0};
    assert_ok(ea_file_read(path, 1 << 24, &rows, &n, &err), &err);
    int n_rows = 0;
    for (char *line = rows, *eol; (eol = strchr(line, '\n')); line = eol + 1) {
        *eol = '\0';
        json_t *row = json_loads(line, 0, NULL);
        assert_non_null(row);
        const char *name = json_string_value(json_object_get(row, "template"));
        for (size_t i = 0; i < EA_ARRAY_LEN(families); i++)
            if (strcmp(name, families[i]) == 0) {
                check_row(row, false);
                check_row(row, true);
                n_rows++;
            }
        json_decref(row);
    }
    ea_free(rows);
    assert_true(n_rows >= 40);
}

/* ---- our own cases ---- */

#define ARGS "{\"city\": \"Oslo\"}"
#define CALL "{\"name\": \"get_weather\", \"arguments\": " ARGS "}"
#define OSLO "get_weather " ARGS "\n"

enum { STRICT = 1, NO_TOOLS = 2, THINKING = 4 };

static const struct {
    const char *text, *content, *reasoning, *calls;
    unsigned how;
} cases[] = {
    /* tags */
    {"<tool_call>[" CALL ", {\"name\":\"now\"}]</tool_call>", "", "", OSLO "now {}\n", 0},
    {"<tool_call>[]</tool_call>", "", "", "", 0},
    {"a <tool_call>" CALL "</tool_call> b", "a b", "", OSLO, 0},
    {"<tool_call>" CALL, "", "", OSLO, 0},
    {"<tool_call>" CALL "\n<tool_call>" CALL "</tool_call>", "", "", OSLO OSLO, 0},
    {"<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>", "", "", "other {}\n", 0},
    {"<tool_call>{\"name\":\"now\",\"arguments\":\"{\\\"a\\\":1.50}\"}</tool_call>", "", "",
     "now {\"a\":1.50}\n", 0},
    {"<tool_call>{\"arguments\":{\"n\":12345678901234567890},\"name\":\"n\\u006fw\",\"id\":1}"
     "</tool_call>",
     "", "", "now {\"n\":12345678901234567890}\n", 0},
    /* broken calls are text, to the byte */
    {"<tool_call>{\"name\": \"now\", \"arguments\": {}</tool_call>",
     "<tool_call>{\"name\": \"now\", \"arguments\": {}</tool_call>", "", "", 0},
    {"<tool_call>{\"name\": \"now\", \"argu", "<tool_call>{\"name\": \"now\", \"argu", "", "", 0},
    {"<tool_call>{\"name\":\"now\",\"arguments\":[1]}</tool_call>",
     "<tool_call>{\"name\":\"now\",\"arguments\":[1]}</tool_call>", "", "", 0},
    {"<tool_call>{\"name\":\"now\",\"arguments\":\"x\"}</tool_call>",
     "<tool_call>{\"name\":\"now\",\"arguments\":\"x\"}</tool_call>", "", "", 0},
    {"<tool_call>\n<function=now>\n", "<tool_call>\n<function=now>\n", "", "", 0},
    {"<tool_call>{<tool_call>" CALL "</tool_call>", "<tool_call>{", "", OSLO, 0},
    {"x < y <tool", "x < y <tool", "", "", 0},
    /* fenced blocks */
    {"```json\n" CALL "\n```", "", "", OSLO, 0},
    {"```\n" CALL "\n```", "", "", OSLO, 0},
    {"I will look.\n```json\n" CALL "\n```\nDone.", "I will look.\nDone.", "", OSLO, 0},
    {"```json\n[" CALL "]\n```", "", "", OSLO, 0},
    {"```json\n" CALL, "", "", OSLO, 0},
    {"```json\n" CALL "\n```", "```json\n" CALL "\n```", "", "", STRICT},
    {"```json\n{\"name\": \"other\", \"arguments\": {}}\n```",
     "```json\n{\"name\": \"other\", \"arguments\": {}}\n```", "", "", 0},
    {"```json\n{\"name\": \"now\", \"arguments\": {}, \"more\": 1}\n```",
     "```json\n{\"name\": \"now\", \"arguments\": {}, \"more\": 1}\n```", "", "", 0},
    {"```json\n{\"name\": \"now\"}\n```", "```json\n{\"name\": \"now\"}\n```", "", "", 0},
    {"```json\n" CALL "\nrest\n```", "```json\n" CALL "\nrest\n```", "", "", 0},
    {"```python\n" CALL "\n```\nend", "```python\n" CALL "\n```\nend", "", "", 0},
    {"```python\nx = 1\n```\n" CALL "\n", "```python\nx = 1\n```\n" CALL "\n", "", "", 0},
    {"a ``b`` `c` ```", "a ``b`` `c` ```", "", "", 0},
    {"```json\n{\"name\": \"now\", \"arguments\": {}}\n```\n```json\n{\"a\": 1}\n```",
     "```json\n{\"a\": 1}\n```", "", "now {}\n", 0},
    /* bare objects */
    {CALL, "", "", OSLO, 0},
    {" \n" CALL "\n" CALL "\n", "", "", OSLO OSLO, 0},
    {"[" CALL "]", "", "", OSLO, 0},
    {CALL " and more", CALL " and more", "", "", 0},
    {"{\"name\": \"other\", \"parameters\": {}}", "{\"name\": \"other\", \"parameters\": {}}", "",
     "", 0},
    {"{\"answer\": 42}\n", "{\"answer\": 42}\n", "", "", 0},
    {"[1, 2", "[1, 2", "", "", 0},
    {CALL, CALL, "", "", STRICT},
    {"Sure: " CALL, "Sure: " CALL, "", "", 0},
    /* thinking */
    {"<think>\nhm <b> \n</think>\n\nYes.", "Yes.", "hm <b>", "", 0},
    {"<think>\n\n</think>\n\n<tool_call>" CALL "</tool_call>", "", "", OSLO, 0},
    {"<think><tool_call>" CALL "</tool_call></think>No.", "No.", "<tool_call>" CALL "</tool_call>",
     "", 0},
    {"<think>cut of", "", "cut of", "", 0},
    {"<think>a</thi", "", "a</thi", "", 0},
    {"a <think>b</think>", "a <think>b</think>", "", "", 0},
    {"so</think>Yes", "Yes", "so", "", THINKING},
    {"<thin", "<thin", "", "", 0},
    /* without tools nothing is a call */
    {"<tool_call>" CALL "</tool_call>\n", "<tool_call>" CALL "</tool_call>\n", "", "", NO_TOOLS},
    {"```json\n" CALL "\n```", "```json\n" CALL "\n```", "", "", NO_TOOLS},
    {"<think>a</think>b", "b", "a", "", NO_TOOLS},
    /* white space of a plain answer stays */
    {"  one\n\n two \n", "  one\n\n two \n", "", "", 0},
    {" \n", " \n", "", "", 0},
    {"", "", "", "", 0},
};

static void test_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < EA_ARRAY_LEN(cases); i++) {
        ea_chat_style style = {.opens_thinking = (cases[i].how & THINKING) != 0};
        answer a = parse_all_ways(&style, cases[i].how & NO_TOOLS ? NULL : default_tools,
                                  cases[i].how & STRICT, cases[i].text, strlen(cases[i].text));
        if (strcmp(str(&a.content), cases[i].content) ||
            strcmp(str(&a.reasoning), cases[i].reasoning) || strcmp(str(&a.calls), cases[i].calls))
            fail_msg("%s\n gave content \"%s\" reasoning \"%s\" calls \"%s\"", cases[i].text,
                     str(&a.content), str(&a.reasoning), str(&a.calls));
        answer_done(&a);
    }
}

/* Plain text is passed on at once, but for what may still become a mark. */
static void test_streams(void **state)
{
    (void)state;
    ea_chat_style style = {.bare_json = false};
    ea_chat_parser *p;
    answer a = {.n_calls = 0};
    ea_error err = {0};
    assert_ok(ea_chat_parser_init(&style, default_tools, false, &p, &err), &err);
    static const struct {
        const char *piece, *so_far;
    } steps[] = {
        {"Hel", "Hel"},
        {"lo ", "Hello"},
        {"you <", "Hello you"},
        {"b", "Hello you <b"},
        {"<tool_", "Hello you <b"},
        {"x", "Hello you <b<tool_x"},
        {"`", "Hello you <b<tool_x"},
        {"` y", "Hello you <b<tool_x`` y"},
    };
    for (size_t i = 0; i < EA_ARRAY_LEN(steps); i++) {
        ea_chat_parser_feed(p, steps[i].piece, strlen(steps[i].piece), collect, &a);
        assert_string_equal(str(&a.content), steps[i].so_far);
    }
    assert_int_equal(ea_chat_parser_finish(p, collect, &a), 0);
    ea_chat_parser_destroy(p);
    answer_done(&a);
}

/* A megabyte in one call, byte by byte, and a megabyte that never becomes one. */
static void test_long(void **state)
{
    (void)state;
    ea_chat_style style = {.bare_json = false};
    static const char *const heads[] = {
        "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"",
        "<tool_call>[\"",
        "```json\n{\"",
        "<",
        "```",
        "{",
        "<think>",
        " ",
    };
    static const char *const units[] = {"x", "<tool_call>[", "```\n", " ", "\\\"", "[", "<"};
    for (size_t h = 0; h < EA_ARRAY_LEN(heads); h++)
        for (size_t u = 0; u < EA_ARRAY_LEN(units); u++) {
            ea_buf text = EA_BUF_INIT;
            ea_buf_puts(&text, heads[h]);
            while (text.n < 200000)
                ea_buf_puts(&text, units[u]);
            if (h == 0 && u == 0)
                ea_buf_puts(&text, "\"}}</tool_call>");
            answer a = parse(&style, default_tools, false, text.data, text.n, 1);
            assert_int_equal(a.n_calls, h == 0 && u == 0);
            answer_done(&a);
            ea_buf_done(&text);
        }
}

static void test_bad_tools(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "{}", "[", "[1]", "[{}]", "[{\"function\":{}}]"};
    ea_chat_style style = {.bare_json = false};
    for (size_t i = 0; i < EA_ARRAY_LEN(bad); i++) {
        ea_error err = {0};
        ea_chat_parser *p = NULL;
        assert_int_equal(ea_chat_parser_init(&style, bad[i], false, &p, &err), EA_EFORMAT);
        assert_null(p);
        assert_non_null(strstr(err.text, "tools"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded),  cmocka_unit_test(test_cases),
        cmocka_unit_test(test_streams),   cmocka_unit_test(test_long),
        cmocka_unit_test(test_bad_tools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
