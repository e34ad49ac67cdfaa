/* test_engine_stream.c: bytes of tokens to text: UTF-8 and stop strings across token borders. */
#include "support.h"

#include <string.h>

#include "base/mem.h"
#include "engine/stream.h"

typedef struct run {
    char text[512];
    size_t n;
    int stop;
    size_t n_after[16]; /* length of the text after each piece */
} run;

/* Feed the pieces (NULL ends them), then the end. */
static run feed(const char *const *stops, size_t n_stops, const char *const *pieces)
{
    run r = {.stop = -1};
    ea_stream s;
    ea_error err = {0};
    assert_ok(ea_stream_init(&s, stops, n_stops, 32, &err), &err);
    char *out = malloc(ea_stream_max_out(32));
    assert_non_null(out);
    for (int i = 0; pieces[i] && r.stop < 0; i++) {
        size_t n = strlen(pieces[i]);
        memcpy(ea_stream_tail(&s), pieces[i], n);
        ea_stream_put(&s, n);
        n = ea_stream_take(&s, false, out, &r.stop);
        memcpy(r.text + r.n, out, n);
        r.n += n;
        r.n_after[i] = r.n;
    }
    if (r.stop < 0) {
        size_t n = ea_stream_take(&s, true, out, &r.stop);
        memcpy(r.text + r.n, out, n);
        r.n += n;
    }
    r.text[r.n] = '\0';
    free(out);
    ea_stream_done(&s);
    return r;
}

static void test_characters_are_held_together(void **state)
{
    (void)state;
    const char *pieces[] = {"a\xe2", "\x82",
                            "\xac"
                            "b\xf0\x9f",
                            "\x98\x80", NULL};
    run r = feed(NULL, 0, pieces);
    assert_string_equal(r.text, "a\xe2\x82\xac"
                                "b\xf0\x9f\x98\x80");
    assert_int_equal(r.n_after[0], 1);
    assert_int_equal(r.n_after[1], 1);
    assert_int_equal(r.n_after[2], 5);
}

static void test_garbage_becomes_replacement(void **state)
{
    (void)state;
    const char *pieces[] = {"a\xff"
                            "b\x80",
                            "\xe2\x82", "c\xf0\x9f\x98", NULL};
    run r = feed(NULL, 0, pieces);
    assert_string_equal(r.text, "a\xef\xbf\xbd"
                                "b\xef\xbf\xbd"
                                "\xef\xbf\xbd\xef\xbf\xbd"
                                "c\xef\xbf\xbd");
}

static void test_stop_across_pieces(void **state)
{
    (void)state;
    const char *stops[] = {"</end>", "STOP"};
    const char *pieces[] = {"one <", "/e", "nx </en", "d>two", NULL};
    run r = feed(stops, 2, pieces);
    assert_string_equal(r.text, "one </enx ");
    assert_int_equal(r.stop, 0);
    assert_int_equal(r.n_after[0], 4);
    assert_int_equal(r.n_after[1], 4);
    assert_int_equal(r.n_after[2], 10);
}

static void test_earliest_stop_counts(void **state)
{
    (void)state;
    const char *stops[] = {"later", "a l"};
    const char *pieces[] = {"a later b", NULL};
    run r = feed(stops, 2, pieces);
    assert_string_equal(r.text, "");
    assert_int_equal(r.stop, 1);
}

static void test_unfinished_stop_is_text(void **state)
{
    (void)state;
    const char *stops[] = {"\n\nUser:"};
    const char *pieces[] = {"hi\n", "\n", "Use", NULL};
    run r = feed(stops, 1, pieces);
    assert_string_equal(r.text, "hi\n\nUse");
    assert_int_equal(r.stop, -1);
    assert_int_equal(r.n_after[2], 2);
}

static void test_repeating_stop(void **state)
{
    (void)state;
    const char *stops[] = {"aab"};
    const char *pieces[] = {"a", "a", "a", "a", "b", "c", NULL};
    run r = feed(stops, 1, pieces);
    assert_string_equal(r.text, "aa");
    assert_int_equal(r.stop, 0);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    const char *stops[] = {"a", "b"};
    for (size_t n = 1; n <= 5; n++) {
        ea_stream s;
        ea_alloc_fail_at(n);
        assert_int_equal(ea_stream_init(&s, stops, 2, 32, NULL), EA_ENOMEM);
    }
    ea_alloc_fail_at(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_characters_are_held_together),
        cmocka_unit_test(test_garbage_becomes_replacement),
        cmocka_unit_test(test_stop_across_pieces),
        cmocka_unit_test(test_earliest_stop_counts),
        cmocka_unit_test(test_unfinished_stop_is_text),
        cmocka_unit_test(test_repeating_stop),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
