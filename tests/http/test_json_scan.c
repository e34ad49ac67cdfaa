/* test_json_scan.c: the scan of request bodies: what it finds, where it complains, and that it
 * takes and refuses the same texts as another JSON reader. */
#include "support.h"

#include <jansson.h>
#include <string.h>

#include "server/json_scan.h"

static void finds_members(void **state)
{
    (void)state;
    const char text[] = " {\"a\" : [1, {\"b\":2}] ,\"n\":null,\"\\u0061b\\n\":-1.5e3,\"t\":true}\n";
    ea_json_object o;
    ea_error err = {0};
    assert_ok(ea_server_json_scan(text, sizeof text - 1, &o, &err), &err);
    assert_int_equal(o.n, 4);
    const ea_json_member *m = ea_server_json_find(&o, "a");
    assert_non_null(m);
    assert_int_equal(m->type, '[');
    assert_int_equal(m->n_bytes, strlen("[1, {\"b\":2}]"));
    assert_memory_equal(m->value, "[1, {\"b\":2}]", m->n_bytes);
    assert_null(ea_server_json_find(&o, "n")); /* null is absent */
    assert_null(ea_server_json_find(&o, "b")); /* not at the top */
    m = ea_server_json_find(&o, "ab\n");
    assert_non_null(m);
    assert_int_equal(m->type, '0');
    ea_server_json_done(&o);
}

static void says_where(void **state)
{
    (void)state;
    const struct {
        const char *text, *where;
    } cases[] = {
        {"{\"a\":1,}", "line 1, column 8"},
        {"{\n\n  \"a\": tru }", "line 3, column 8"},
        {"{\"\xc3\xa9\xc3\xa9\":x}", "line 1, column 7"}, /* characters, not bytes */
        {"{\"a\":\"x", "line 1, column 6"},
        {"[]", "line 1, column 1"},
    };
    for (size_t i = 0; i < EA_ARRAY_LEN(cases); i++) {
        ea_json_object o;
        ea_error err = {0};
        const char *text = cases[i].text;
        assert_int_equal(ea_server_json_scan(text, strlen(text), &o, &err), EA_EFORMAT);
        if (!strstr(err.text, cases[i].where))
            fail_msg("%s: %s", text, err.text);
    }
}

/* Legal JSON that the other reader cannot represent, and our own limits. */
static bool may_differ(const json_error_t *theirs, const ea_error *ours)
{
    static const char *const their_limits[] = {"too big",   "overflow", "Unicode",
                                               "surrogate", "NUL byte", "\\u0000"};
    static const char *const our_limits[] = {"given twice", "nested too deeply", "too many fields"};
    for (size_t i = 0; theirs && i < EA_ARRAY_LEN(their_limits); i++)
        if (strstr(theirs->text, their_limits[i]))
            return true;
    for (size_t i = 0; ours && i < EA_ARRAY_LEN(our_limits); i++)
        if (strstr(ours->text, our_limits[i]))
            return true;
    return false;
}

static void compare(const char *text, size_t n)
{
    ea_json_object o = {0};
    ea_error err = {0};
    json_error_t their_error;
    bool ours = ea_server_json_scan(text, n, &o, &err) == EA_OK;
    json_t *tree = json_loadb(text, n, JSON_ALLOW_NUL, &their_error);
    bool theirs = json_is_object(tree);
    if (ours && !theirs && (tree || !may_differ(&their_error, NULL)))
        fail_msg("we took what they refused (%s): %.*s", their_error.text, (int)n, text);
    if (!ours && theirs && !may_differ(NULL, &err))
        fail_msg("we refused what they took (%s): %.*s", err.text, (int)n, text);
    if (ours && theirs)
        assert_int_equal(o.n, json_object_size(tree));
    json_decref(tree);
    if (ours)
        ea_server_json_done(&o);
}

static void agrees_with_another_reader(void **state)
{
    (void)state;
    static const char seed[] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"h\xc3\xa9 \\u00e9 \\n "
        "\xf0\x9f\x99\x82\"}],\"temperature\":0.7,\"top_k\":-12,\"x\":1e-5,\"stop\":[\"a\","
        "\"b\"],\"stream\":true,\"none\":null,\"deep\":{\"a\":{\"b\":[[],{}]}},\"off\":false}";
    /* No NUL: the other reader takes one after a literal. */
    static const char pool[] = "{}[]\",:0123456789eE+-.\\untrfalsb /\x80\xc3\xa9\xed\xa0\n\t";
    char text[sizeof seed + 8];
    uint64_t rng = 88172645463325252u; /* xorshift64; any odd-looking start */
    for (int round = 0; round < 50000; round++) {
        size_t n = sizeof seed - 1;
        memcpy(text, seed, n);
        int n_edits = 1 + round % 3;
        for (int k = 0; k < n_edits && n > 0; k++) {
            rng ^= rng << 13;
            rng ^= rng >> 7;
            rng ^= rng << 17;
            size_t at = rng % n;
            char c = pool[(rng >> 32) % (sizeof pool - 1)];
            switch (rng >> 20 & 3) {
            case 0: text[at] = c; break;
            case 1: /* insert */
                memmove(text + at + 1, text + at, n - at);
                text[at] = c;
                n++;
                break;
            case 2: /* delete */
                memmove(text + at, text + at + 1, n - at - 1);
                n--;
                break;
            default: n = at + 1; break; /* cut short */
            }
        }
        compare(text, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_members),
        cmocka_unit_test(says_where),
        cmocka_unit_test(agrees_with_another_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
