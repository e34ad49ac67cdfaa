/* test_base.c: error, buffer, UTF-8, memory, half floats, files. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "base/f16.h"
#include "base/file.h"
#include "base/huge.h"
#include "base/mem.h"
#include "base/utf8.h"

static void first_error_wins_and_stays_one_line(void **state)
{
    (void)state;
    ea_error err = {0};
    assert_int_equal(ea_fail(&err, EA_EIO, "a%sb", "\n\x1b"), EA_EIO);
    assert_int_equal(ea_fail(&err, EA_ENOMEM, "later"), EA_ENOMEM);
    assert_int_equal(err.code, EA_EIO);
    assert_string_equal(err.text, "a??b");
    ea_error_prefix(&err, "file.gguf");
    assert_string_equal(err.text, "file.gguf: a??b");
    assert_int_equal(ea_fail(NULL, EA_EIO, "nowhere to write"), EA_EIO);
}

static void long_errors_are_cut(void **state)
{
    (void)state;
    char text[2 * EA_ERROR_TEXT];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    ea_error err = {0};
    (void)ea_fail(&err, EA_EIO, "%s", text);
    ea_error_prefix(&err, "%s", text);
    assert_int_equal(strlen(err.text), EA_ERROR_TEXT - 1);
}

static void utf8_accepts_exactly_the_standard(void **state)
{
    (void)state;
    char c[4];
    int n_valid = 0;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        size_t len = ea_utf8_encode(cp, c);
        bool surrogate = cp >= 0xd800 && cp < 0xe000;
        assert_int_equal(ea_utf8_valid_len(c, len), surrogate ? 0 : len);
        if (surrogate)
            continue;
        n_valid++;
        assert_int_equal(ea_utf8_decode(c, len), cp);
        for (size_t cut = 1; cut < len; cut++) {
            assert_int_equal(ea_utf8_valid_len(c, cut), 0);
            assert_int_equal(ea_utf8_incomplete_tail(c, cut), cut);
        }
        assert_int_equal(ea_utf8_incomplete_tail(c, len), 0);
    }
    assert_int_equal(n_valid, 0x110000 - 0x800);
    const char *bad[] = {"\x80",
                         "\xc0\x80",
                         "\xc1\xbf",
                         "\xe0\x80\x80",
                         "\xf0\x80\x80\x80",
                         "\xf4\x90\x80\x80",
                         "\xf5\x80\x80\x80",
                         "\xff"};
    for (size_t i = 0; i < EA_ARRAY_LEN(bad); i++)
        assert_int_equal(ea_utf8_valid_len(bad[i], strlen(bad[i])), 0);
    assert_int_equal(ea_utf8_incomplete_tail("\xe0\x80", 2), 0); /* can never become valid */
}

static void buffer_builds_json(void **state)
{
    (void)state;
    ea_buf buf = EA_BUF_INIT;
    ea_buf_json_string(&buf, "a\"\\\n\x01\xff\xc3\xa9", 8);
    assert_string_equal(buf.data, "\"a\\\"\\\\\\n\\u0001\xef\xbf\xbd\xc3\xa9\"");
    const struct {
        double value;
        const char *text;
    } doubles[] = {{7.6, "7.6"},
                   {0.1, "0.1"},
                   {1e300, "1e+300"},
                   {-0.5, "-0.5"},
                   {NAN, "null"},
                   {3, "3"},
                   {1.0 / 3, "0.3333333333333333"}};
    for (size_t i = 0; i < EA_ARRAY_LEN(doubles); i++) {
        ea_buf_clear(&buf);
        ea_buf_json_double(&buf, doubles[i].value);
        assert_string_equal(buf.data, doubles[i].text);
    }
    ea_buf_clear(&buf);
    ea_buf_puts(&buf, "0123456789");
    ea_buf_drop_front(&buf, 4);
    assert_string_equal(buf.data, "456789");
    ea_buf_done(&buf);
}

static void buffer_failure_sticks(void **state)
{
    (void)state;
    ea_buf buf = EA_BUF_INIT;
    ea_alloc_fail_at(1);
    ea_buf_puts(&buf, "x");
    ea_buf_puts(&buf, "y");
    assert_true(buf.failed);
    assert_null(ea_buf_take(&buf));
    char *empty = ea_buf_take(&buf);
    assert_string_equal(empty, "");
    ea_free(empty);
}

static void guard_counts_allocations(void **state)
{
    (void)state;
    ea_alloc_guard_begin(false);
    ea_free(ea_malloc(8));
    ea_free(ea_calloc(2, 2));
    assert_int_equal(ea_alloc_guard_end(), 2);
    ea_alloc_guard_begin(false);
    assert_int_equal(ea_alloc_guard_end(), 0);
}

static void growing_refuses_overflow(void **state)
{
    (void)state;
    void *ptr = NULL;
    size_t cap = 0;
    ea_error err = {0};
    assert_int_equal(ea_grow(&ptr, &cap, SIZE_MAX / 2 + 2, 1, &err), EA_ENOMEM);
    err = (ea_error){0};
    assert_int_equal(ea_grow(&ptr, &cap, SIZE_MAX / 8, 64, &err), EA_ENOMEM);
    assert_null(ptr);
    assert_int_equal(cap, 0);
}

static void half_floats_round_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float x = ea_f16_to_f32((ea_f16){(uint16_t)h});
        if (isnan(x)) {
            assert_true(isnan(ea_f16_to_f32(ea_f32_to_f16(x))));
            continue;
        }
        assert_int_equal(ea_f32_to_f16(x).bits, h);
        if (!isfinite(x) || (h & 0x7fff) == 0x7bff)
            continue;
        /* exactly half way to the next one: the even of the two */
        float next = ea_f16_to_f32((ea_f16){(uint16_t)(h + 1)}), mid = x / 2 + next / 2;
        assert_int_equal(ea_f32_to_f16(mid).bits, h & 1 ? h + 1 : h);
    }
    assert_int_equal(ea_f32_to_f16(65520.0f).bits, 0x7c00);
    assert_int_equal(ea_f32_to_f16(65519.9f).bits, 0x7bff);
    assert_int_equal(ea_f32_to_bf16(1.00390625f).bits, 0x3f80); /* half way, to even */
    assert_int_equal(ea_f32_to_bf16(1.01171875f).bits, 0x3f82);
}

static void files_are_read_whole_or_refused(void **state)
{
    (void)state;
    char path[] = "/tmp/ea-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "hello", 5), 5);
    close(fd);
    char *text = NULL;
    size_t n = 0;
    ea_error err = {0};
    assert_ok(ea_file_read(path, 5, &text, &n, &err), &err);
    assert_int_equal(n, 5);
    assert_string_equal(text, "hello");
    ea_free(text);
    assert_int_equal(ea_file_read(path, 4, &text, &n, &err), EA_ETOOLONG);
    assert_non_null(strstr(err.text, path));
    ea_file file;
    err = (ea_error){0};
    assert_ok(ea_file_map(path, &file, &err), &err);
    assert_memory_equal(file.data, "hello", 5);
    char buf[8] = "";
    assert_ok(ea_file_read_at(&file, path, 1, buf, 4, &err), &err);
    assert_memory_equal(buf, "ello", 4);
    ea_file_prefetch(&file, 0, 5);
    /* Shorter than it was: no signal, but what is left and what was. */
    assert_int_equal(truncate(path, 3), 0);
    assert_int_equal(ea_file_read_at(&file, path, 1, buf, 4, &err), EA_EIO);
    assert_non_null(strstr(err.text, "ends at byte 3, it had 5 bytes"));
    ea_file_unmap(&file);
    unlink(path);
    assert_int_equal(ea_file_map(path, &file, &err), EA_EIO);
    assert_int_equal(ea_file_map("/tmp", &file, NULL), EA_EIO);
}

static void pages(void **state)
{
    (void)state;
    const size_t sizes[] = {0, 1, 4095, 1 << 20, (4 << 20) - 1, 4 << 20, (9 << 20) + 12345};
    for (size_t i = 0; i < EA_ARRAY_LEN(sizes); i++) {
        uint8_t *p = ea_pages_alloc(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t at = 0; at < sizes[i]; at += 4096)
            assert_int_equal(p[at], 0);
        if (sizes[i])
            p[sizes[i] - 1] = 1;
        ea_pages_free(p, sizes[i]);
    }
    assert_null(ea_pages_alloc(SIZE_MAX));
    assert_null(ea_pages_alloc(SIZE_MAX - 5000));

    uint8_t *p = ea_pages_alloc(5 * 4096);
    memset(p, 7, 5 * 4096);
    ea_pages_release(p + 1, 3 * 4096); /* pages 1 and 2 lie in it whole */
    assert_int_equal(p[4095], 7);
    assert_int_equal(p[4096], 0);
    assert_int_equal(p[3 * 4096 - 1], 0);
    assert_int_equal(p[3 * 4096], 7);
    ea_pages_free(p, 5 * 4096);

    p = ea_pages_reserve((size_t)1 << 40); /* more than there is memory */
    assert_non_null(p);
    assert_true(ea_pages_commit(p, 100));
    p[99] = 3;
    assert_true(ea_pages_commit(p, 1 << 20));
    assert_int_equal(p[99], 3);
    assert_int_equal(p[(1 << 20) - 1], 0);
    ea_pages_free(p, (size_t)1 << 40);
}

/* What lies in pages that are put together meanwhile stays what it is. */
static void huge_pages(void **state)
{
    (void)state;
    size_t n = 5 * (size_t)EA_HUGE_BYTES + 4096;
    uint32_t *p = ea_pages_alloc(n);
    assert_non_null(p);
    ea_huge_refuse(p, n);
    for (size_t i = 0; i < n / sizeof *p; i++)
        p[i] = (uint32_t)i * 7;
    ea_huge_join *join = ea_huge_join_begin(p, n);
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < n / sizeof *p; i++)
            if (p[i] != (uint32_t)i * 7)
                fail_msg("word %zu is %u", i, p[i]);
    ea_huge_join_end(join); /* in the middle, or done */
    join = ea_huge_join_begin(p, n);
    ea_huge_join_give_way(join);
    ea_huge_join_wait(join);
    for (size_t i = 0; i < n / sizeof *p; i++)
        assert_int_equal(p[i], (uint32_t)i * 7);
    ea_huge_join_end(join);
    ea_huge_join_give_way(NULL);
    ea_huge_join_wait(NULL);
    ea_huge_join_end(NULL);
    assert_null(ea_huge_join_begin(p, 4096)); /* too small for one */
    uint8_t *at = (uint8_t *)p + 12;
    (void)ea_huge_touch_is_dear(at);
    assert_int_equal(*at, 0);
    ea_pages_free(p, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(huge_pages),
        cmocka_unit_test(pages),
        cmocka_unit_test(first_error_wins_and_stays_one_line),
        cmocka_unit_test(long_errors_are_cut),
        cmocka_unit_test(utf8_accepts_exactly_the_standard),
        cmocka_unit_test(buffer_builds_json),
        cmocka_unit_test(buffer_failure_sticks),
        cmocka_unit_test(guard_counts_allocations),
        cmocka_unit_test(growing_refuses_overflow),
        cmocka_unit_test(half_floats_round_to_nearest_even),
        cmocka_unit_test(files_are_read_whole_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
