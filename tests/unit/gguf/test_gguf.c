/* test_gguf.c: reader and writer against each other, and the reader against files broken in every
 * possible place. */
#include "support.h"

#include <malloc.h>
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "gguf/gguf.h"

static void fill_pattern(void *user, int64_t row, void *dst, size_t row_bytes)
{
    memset(dst, (int)(row * 7 + (int64_t)(uintptr_t)user), row_bytes);
}

static void put_pattern(ea_gguf_writer *w, const char *name, ea_dtype type, int64_t k, int64_t n,
                        uintptr_t seed)
{
    ea_gguf_put_tensor(w, name, type, 2, (int64_t[]){k, n}, fill_pattern, (void *)seed);
}

/* A writer with a value of every type and three tensors. */
static ea_gguf_writer *make_writer(void)
{
    static const char *const words[] = {"", "a", "two words", "\xc3\xa9"};
    ea_gguf_writer *w;
    ea_error err = {EA_OK, ""};
    assert_ok(ea_gguf_writer_create(&w, &err), &err);
    ea_gguf_put_int(w, "v.u8", EA_GGUF_U8, 255);
    ea_gguf_put_int(w, "v.i8", EA_GGUF_I8, -128);
    ea_gguf_put_int(w, "v.u16", EA_GGUF_U16, 65535);
    ea_gguf_put_int(w, "v.i16", EA_GGUF_I16, -32768);
    ea_gguf_put_int(w, "v.u32", EA_GGUF_U32, UINT32_MAX);
    ea_gguf_put_int(w, "v.i32", EA_GGUF_I32, INT32_MIN);
    ea_gguf_put_int(w, "v.u64", EA_GGUF_U64, INT64_MAX);
    ea_gguf_put_int(w, "v.i64", EA_GGUF_I64, INT64_MIN);
    ea_gguf_put_float(w, "v.f32", -0.5f);
    ea_gguf_put_float(w, "v.nan", NAN);
    ea_gguf_put_bool(w, "v.yes", true);
    ea_gguf_put_bool(w, "v.no", false);
    ea_gguf_put_str(w, "v.str", "text");
    ea_gguf_put_str(w, "v.empty", "");
    ea_gguf_put_str_array(w, "a.str", words, 4);
    ea_gguf_put_str_array(w, "a.none", words, 0);
    ea_gguf_put_int_array(w, "a.i16", EA_GGUF_I16, (int64_t[]){-1, 0, 300}, 3);
    ea_gguf_put_float_array(w, "a.f32", (float[]){1.5f, -2.0f}, 2);
    put_pattern(w, "t.f32", EA_DTYPE_F32, 4, 3, 1);
    put_pattern(w, "t.q8", EA_DTYPE_Q8_0, 64, 5, 2);
    put_pattern(w, "t.k", EA_DTYPE_Q4_K, 256, 1, 3);
    return w;
}

typedef struct image {
    void *data;
    size_t n;
} image;

static image make_image(int n_threads)
{
    image im;
    ea_error err = {EA_OK, ""};
    ea_gguf_writer *w = make_writer();
    assert_ok(ea_gguf_write_memory(w, n_threads, &im.data, &im.n, &err), &err);
    ea_gguf_writer_destroy(w);
    return im;
}

static void check_int(const ea_gguf *g, const char *key, int64_t want)
{
    int64_t got = 0;
    ea_error err = {EA_OK, ""};
    assert_ok(ea_gguf_get_int(g, key, INT64_MIN, INT64_MAX, &got, &err), &err);
    assert_true(got == want);
}

static void check_values(const ea_gguf *g)
{
    ea_error err = {EA_OK, ""};
    double f = 0;
    bool yes = false, no = true;
    ea_str s;
    check_int(g, "v.u8", 255);
    check_int(g, "v.i8", -128);
    check_int(g, "v.u16", 65535);
    check_int(g, "v.i16", -32768);
    check_int(g, "v.u32", UINT32_MAX);
    check_int(g, "v.i32", INT32_MIN);
    check_int(g, "v.u64", INT64_MAX);
    check_int(g, "v.i64", INT64_MIN);
    assert_ok(ea_gguf_get_float(g, "v.f32", &f, &err), &err);
    assert_true(f == -0.5);
    assert_ok(ea_gguf_get_bool(g, "v.yes", &yes, &err), &err);
    assert_ok(ea_gguf_get_bool(g, "v.no", &no, &err), &err);
    assert_true(yes && !no);
    assert_ok(ea_gguf_get_str(g, "v.str", &s, &err), &err);
    assert_int_equal(s.n, 4);
    assert_memory_equal(s.s, "text", 4);
    assert_ok(ea_gguf_get_str(g, "v.empty", &s, &err), &err);
    assert_int_equal(s.n, 0);
}

static void check_arrays(const ea_gguf *g)
{
    ea_error err = {EA_OK, ""};
    ea_gguf_array a;
    assert_ok(ea_gguf_get_array(g, "a.str", &a, &err), &err);
    assert_int_equal(a.type, EA_GGUF_STRING);
    assert_int_equal(a.n, 4);
    assert_int_equal(ea_gguf_array_str(&a, 0).n, 0);
    assert_int_equal(ea_gguf_array_str(&a, 2).n, 9);
    assert_memory_equal(ea_gguf_array_str(&a, 2).s, "two words", 9);
    assert_memory_equal(ea_gguf_array_str(&a, 3).s, "\xc3\xa9", 2);
    assert_ok(ea_gguf_get_array(g, "a.none", &a, &err), &err);
    assert_int_equal(a.n, 0);
    assert_ok(ea_gguf_get_array(g, "a.i16", &a, &err), &err);
    assert_int_equal(a.n, 3);
    assert_int_equal(ea_gguf_array_int(&a, 0), -1);
    assert_int_equal(ea_gguf_array_int(&a, 2), 300);
    assert_true(ea_gguf_array_float(&a, 2) == 300.0);
    assert_ok(ea_gguf_get_array(g, "a.f32", &a, &err), &err);
    assert_true(ea_gguf_array_float(&a, 0) == 1.5 && ea_gguf_array_float(&a, 1) == -2.0);
}

static void check_tensor(const ea_gguf *g, const char *name, int64_t k, int64_t n, size_t row_bytes,
                         int seed)
{
    const ea_gguf_tensor *t = ea_gguf_tensor_find(g, name);
    assert_non_null(t);
    assert_int_equal(t->n_dims, 2);
    assert_true(t->ne[0] == k && t->ne[1] == n && t->ne[2] == 1 && t->ne[3] == 1);
    assert_int_equal(t->n_bytes, row_bytes * (size_t)n);
    for (size_t i = 0; i < t->n_bytes; i++)
        assert_int_equal(t->data[i], (uint8_t)((int)(i / row_bytes) * 7 + seed));
}

static void check_all(const ea_gguf *g)
{
    check_values(g);
    check_arrays(g);
    assert_int_equal(ea_gguf_n_tensors(g), 3);
    check_tensor(g, "t.f32", 4, 3, 16, 1);
    check_tensor(g, "t.q8", 64, 5, 68, 2);
    check_tensor(g, "t.k", 256, 1, 144, 3);
    assert_null(ea_gguf_tensor_find(g, "t"));
    assert_null(ea_gguf_tensor_find(g, "t.f32x"));
}

static void test_round_trip_in_memory(void **state)
{
    (void)state;
    ea_error err = {EA_OK, ""};
    ea_gguf *g;
    image one = make_image(1), three = make_image(3);
    assert_int_equal(one.n, three.n);
    assert_memory_equal(one.data, three.data, one.n); /* threads do not change a byte */
    assert_ok(ea_gguf_open_memory("mem", one.data, one.n, &g, &err), &err);
    check_all(g);
    assert_string_equal(ea_gguf_path(g), "mem");
    ea_gguf_close(g);
    /* The same at an odd address: no load needs alignment. */
    char *odd = malloc(one.n + 1);
    assert_non_null(odd);
    memcpy(odd + 1, one.data, one.n);
    assert_ok(ea_gguf_open_memory("mem", odd + 1, one.n, &g, &err), &err);
    check_all(g);
    ea_gguf_close(g);
    free(odd);
    ea_pages_free(one.data, one.n);
    ea_pages_free(three.data, three.n);
}

/* ---- files ---- */

static int make_dir(void **state)
{
    static char dir[64];
    snprintf(dir, sizeof dir, "/tmp/ea-test-gguf-XXXXXX");
    *state = mkdtemp(dir);
    return *state ? 0 : -1;
}

static int remove_dir(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", (char *)*state);
    return system(command);
}

static const char *in_dir(void **state, const char *name)
{
    static char path[2][256];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", (char *)*state, name);
    return path[turn];
}

static void test_file_equals_memory(void **state)
{
    ea_error err = {EA_OK, ""};
    const char *path = in_dir(state, "whole.gguf");
    ea_gguf_writer *w = make_writer();
    ea_gguf *g;
    image im = make_image(2);
    ea_file file;
    assert_ok(ea_gguf_write_file(w, path, &err), &err);
    assert_ok(ea_gguf_write_file(w, path, &err), &err); /* replaces */
    ea_gguf_writer_destroy(w);
    assert_ok(ea_file_map(path, &file, &err), &err);
    assert_int_equal(file.n_bytes, im.n);
    assert_memory_equal(file.data, im.data, im.n);
    ea_file_unmap(&file);
    assert_ok(ea_gguf_open(path, &g, &err), &err);
    check_all(g);
    const ea_gguf_tensor *t = ea_gguf_tensor_at(g, 1);
    ea_gguf_tensor_release(g, t, 0, (size_t)t->n_bytes);
    check_all(g); /* released bytes are read again from the file */
    ea_gguf_close(g);
    ea_pages_free(im.data, im.n);
    /* Nothing but the file is left. */
    char command[300];
    snprintf(command, sizeof command, "test \"$(ls %s)\" = whole.gguf", (char *)*state);
    assert_int_equal(system(command), 0);
    assert_int_equal(unlink(path), 0);
}

/* Pages that were taken: released tensors are gone, the others and all keys stay. */
static void test_taken_pages(void **state)
{
    (void)state;
    ea_error err = {EA_OK, ""};
    ea_gguf *g;
    image im = make_image(2);
    char *cut = ea_pages_alloc(8);
    assert_int_equal(ea_gguf_open_take("cut", cut, 8, &g, &err), EA_EFORMAT);
    ea_pages_free(cut, 8); /* still ours */
    err = (ea_error){EA_OK, ""};
    assert_ok(ea_gguf_open_take("taken", im.data, im.n, &g, &err), &err);
    assert_int_equal(ea_gguf_taken_bytes(g), im.n);
    check_all(g);
    const ea_gguf_tensor *t = ea_gguf_tensor_at(g, 0);
    const uint8_t *at = NULL;
    assert_ok(ea_gguf_tensor_read(g, t, 0, (size_t)t->n_bytes, NULL, &at, &err), &err);
    assert_ptr_equal(at, t->data);
    for (size_t i = 0; i < ea_gguf_n_tensors(g); i++) {
        t = ea_gguf_tensor_at(g, i);
        ea_gguf_tensor_release(g, t, 0, (size_t)t->n_bytes);
        ea_gguf_tensor_prefetch(g, t, 0, (size_t)t->n_bytes);
    }
    ea_gguf_close(g);
}

/* Whatever happens to the file later, keys and names stay; reading a tensor is an error. */
static void test_file_cut_short(void **state)
{
    ea_error err = {EA_OK, ""};
    const char *path = in_dir(state, "cut.gguf");
    ea_gguf_writer *w = make_writer();
    ea_gguf *g;
    assert_ok(ea_gguf_write_file(w, path, &err), &err);
    ea_gguf_writer_destroy(w);
    assert_ok(ea_gguf_open(path, &g, &err), &err);
    assert_int_equal(ea_gguf_taken_bytes(g), 0);
    const ea_gguf_tensor *t = ea_gguf_tensor_at(g, 1);
    uint8_t *buf = malloc((size_t)t->n_bytes);
    const uint8_t *at = NULL;
    assert_non_null(buf);
    assert_ok(ea_gguf_tensor_read(g, t, 0, (size_t)t->n_bytes, buf, &at, &err), &err);
    assert_ptr_equal(at, buf);
    assert_memory_equal(buf, t->data, (size_t)t->n_bytes);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(ea_gguf_tensor_read(g, t, 0, 1, buf, &at, &err), EA_EIO);
    assert_non_null(strstr(err.text, "cut.gguf: the file ends at byte"));
    assert_ptr_equal(ea_gguf_tensor_find(g, "t.f32"), ea_gguf_tensor_at(g, 0));
    check_values(g);
    check_arrays(g);
    free(buf);
    ea_gguf_close(g);
    assert_int_equal(unlink(path), 0);
}

static void test_unwritable_path(void **state)
{
    (void)state;
    ea_error err = {EA_OK, ""};
    ea_gguf_writer *w = make_writer();
    assert_int_equal(ea_gguf_write_file(w, "/nonexistent/x.gguf", &err), EA_EIO);
    assert_non_null(strstr(err.text, "/nonexistent/x.gguf"));
    ea_gguf_writer_destroy(w);
}

/* One file of a split set; tensor names are unique unless `name` repeats. */
static void write_split(const char *path, int64_t no, int64_t count, int64_t n_tensors,
                        const char *name)
{
    ea_error err = {EA_OK, ""};
    ea_gguf_writer *w;
    assert_ok(ea_gguf_writer_create(&w, &err), &err);
    if (no == 0)
        ea_gguf_put_str(w, "general.architecture", "llama");
    ea_gguf_put_int(w, "split.no", EA_GGUF_U16, no);
    ea_gguf_put_int(w, "split.count", EA_GGUF_U16, count);
    ea_gguf_put_int(w, "split.tensors.count", EA_GGUF_I32, n_tensors);
    put_pattern(w, name, EA_DTYPE_F32, 8, 2, (uintptr_t)(no + 1));
    assert_ok(ea_gguf_write_file(w, path, &err), &err);
    ea_gguf_writer_destroy(w);
}

static void refuses(const char *path, const char *part)
{
    ea_error err = {EA_OK, ""};
    ea_gguf *g = NULL;
    assert_int_not_equal(ea_gguf_open(path, &g, &err), EA_OK);
    assert_null(g);
    if (!strstr(err.text, part))
        fail_msg("message '%s' does not say '%s'", err.text, part);
}

static void test_split_set(void **state)
{
    ea_error err = {EA_OK, ""};
    ea_gguf *g;
    write_split(in_dir(state, "m-00001-of-00002.gguf"), 0, 2, 2, "a");
    write_split(in_dir(state, "m-00002-of-00002.gguf"), 1, 2, 2, "b");
    assert_ok(ea_gguf_open(in_dir(state, "m-00001-of-00002.gguf"), &g, &err), &err);
    assert_int_equal(ea_gguf_n_tensors(g), 2);
    check_tensor(g, "a", 8, 2, 32, 1);
    check_tensor(g, "b", 8, 2, 32, 2);
    assert_int_equal(ea_gguf_tensor_find(g, "b")->file, 1);
    assert_true(ea_gguf_has(g, "general.architecture"));
    ea_gguf_close(g);
    refuses(in_dir(state, "m-00002-of-00002.gguf"), "first file");
}

static void test_split_set_inconsistent(void **state)
{
    const char *first = in_dir(state, "n-00001-of-00002.gguf");
    char second[256];
    snprintf(second, sizeof second, "%s", in_dir(state, "n-00002-of-00002.gguf"));
    write_split(first, 0, 2, 2, "a");
    refuses(first, "n-00002-of-00002.gguf"); /* not there: named */
    write_split(second, 1, 2, 2, "a");
    refuses(first, "tensor 'a'"); /* in both */
    write_split(second, 1, 3, 2, "b");
    refuses(first, "'split.count' is 3");
    write_split(second, 0, 2, 2, "b");
    refuses(first, "'split.no' is 0");
    write_split(second, 1, 2, 2, "b");
    write_split(first, 0, 2, 9, "a");
    refuses(first, "'split.tensors.count' is 9");
    write_split(in_dir(state, "plain.gguf"), 0, 2, 2, "a");
    refuses(in_dir(state, "plain.gguf"), "-00001-of-00002.gguf");
}

/* ---- getters ---- */

static void test_getter_errors(void **state)
{
    (void)state;
    ea_error err = {EA_OK, ""};
    ea_gguf *g;
    image im = make_image(1);
    int64_t i = 77;
    double f = 77;
    bool b = true;
    ea_str s = {NULL, 77};
    ea_gguf_array a = {.n = 77};
    assert_ok(ea_gguf_open_memory("mem", im.data, im.n, &g, &err), &err);
    assert_int_equal(ea_gguf_get_int(g, "absent", 0, 9, &i, &err), EA_ENOTFOUND);
    assert_string_equal(err.text, "mem: key 'absent' is missing");
    err = (ea_error){EA_OK, ""};
    assert_int_equal(ea_gguf_get_int(g, "v.u8", 0, 254, &i, &err), EA_EFORMAT);
    assert_string_equal(err.text, "mem: key 'v.u8' is 255, not in 0..254");
    assert_int_equal(ea_gguf_get_int(g, "v.str", 0, 9, &i, NULL), EA_EFORMAT);
    assert_int_equal(ea_gguf_get_int(g, "v.f32", 0, 9, &i, NULL), EA_EFORMAT);
    assert_int_equal(ea_gguf_get_int(g, "v.yes", 0, 9, &i, NULL), EA_EFORMAT);
    assert_int_equal(ea_gguf_get_int(g, "a.i16", 0, 9, &i, NULL), EA_EFORMAT);
    err = (ea_error){EA_OK, ""};
    assert_int_equal(ea_gguf_get_float(g, "v.nan", &f, &err), EA_EFORMAT);
    assert_non_null(strstr(err.text, "nan"));
    assert_int_equal(ea_gguf_get_float(g, "v.u8", &f, NULL), EA_EFORMAT);
    assert_int_equal(ea_gguf_get_bool(g, "v.u8", &b, NULL), EA_EFORMAT);
    assert_int_equal(ea_gguf_get_str(g, "v.u8", &s, NULL), EA_EFORMAT);
    assert_int_equal(ea_gguf_get_array(g, "v.str", &a, NULL), EA_EFORMAT);
    assert_int_equal(ea_gguf_get_int_or(g, "v.str", 0, 9, 5, &i, NULL), EA_EFORMAT);
    assert_true(i == 77 && f == 77 && b && s.n == 77 && a.n == 77); /* outputs untouched */
    assert_ok(ea_gguf_get_int_or(g, "absent", 0, 9, 5, &i, &err), &err);
    assert_int_equal(i, 5);
    ea_gguf_close(g);
    ea_pages_free(im.data, im.n);
}

static void check_put_refused(void (*put)(ea_gguf_writer *), const char *part)
{
    ea_error err = {EA_OK, ""};
    ea_gguf_writer *w;
    void *data = NULL;
    size_t n = 0;
    assert_ok(ea_gguf_writer_create(&w, &err), &err);
    put(w);
    assert_int_equal(ea_gguf_write_memory(w, 1, &data, &n, &err), EA_EINVAL);
    if (!strstr(err.text, part))
        fail_msg("message '%s' does not say '%s'", err.text, part);
    ea_gguf_writer_destroy(w);
}

static void put_range(ea_gguf_writer *w)
{
    ea_gguf_put_int(w, "k", EA_GGUF_U8, 256);
}

static void put_type(ea_gguf_writer *w)
{
    ea_gguf_put_int(w, "k", EA_GGUF_STRING, 1);
}

static void put_block(ea_gguf_writer *w)
{
    put_pattern(w, "t", EA_DTYPE_Q8_0, 33, 1, 0);
}

static void put_name(ea_gguf_writer *w)
{
    put_pattern(w, "0123456789012345678901234567890123456789012345678901234567890123", EA_DTYPE_F32,
                1, 1, 0);
}

static void test_writer_refuses(void **state)
{
    (void)state;
    check_put_refused(put_range, "256 does not fit u8");
    check_put_refused(put_type, "no integer type");
    check_put_refused(put_block, "no multiple of Q8_0's block");
    check_put_refused(put_name, "63");
}

static void test_alignment_is_written(void **state)
{
    (void)state;
    ea_error err = {EA_OK, ""};
    ea_gguf_writer *w;
    ea_gguf *g;
    image im;
    assert_ok(ea_gguf_writer_create(&w, &err), &err);
    ea_gguf_put_int(w, "general.alignment", EA_GGUF_U32, 256);
    put_pattern(w, "a", EA_DTYPE_F32, 1, 1, 0);
    put_pattern(w, "b", EA_DTYPE_F32, 1, 1, 0);
    assert_ok(ea_gguf_write_memory(w, 1, &im.data, &im.n, &err), &err);
    assert_ok(ea_gguf_open_memory("mem", im.data, im.n, &g, &err), &err);
    const uint8_t *base = im.data;
    assert_int_equal((ea_gguf_tensor_find(g, "a")->data - base) % 256, 0);
    assert_int_equal(ea_gguf_tensor_find(g, "b")->data - ea_gguf_tensor_find(g, "a")->data, 256);
    ea_gguf_close(g);
    ea_gguf_writer_destroy(w);
    ea_pages_free(im.data, im.n);
}

/* ---- broken files ---- */

/* Open a copy of exactly n bytes (so that a sanitizer sees the first byte past it); true if it
 * opened. */
static bool opens(const void *data, size_t n)
{
    ea_error err = {EA_OK, ""};
    ea_gguf *g = NULL;
    void *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, data, n);
    ea_status status = ea_gguf_open_memory("cut", copy, n, &g, &err);
    if (status == EA_OK) {
        volatile uint8_t sink = 0;
        for (size_t i = 0; i < ea_gguf_n_tensors(g); i++) {
            const ea_gguf_tensor *t = ea_gguf_tensor_at(g, i);
            sink = (uint8_t)(sink + t->data[0] + t->data[t->n_bytes - 1]);
        }
        ea_gguf_close(g);
    } else {
        assert_null(g);
        assert_int_equal(err.code, status);
        assert_memory_equal(err.text, "cut: ", 5);
    }
    free(copy);
    return status == EA_OK;
}

static void test_truncation_at_every_byte(void **state)
{
    (void)state;
    image im = make_image(1);
    /* The last tensor has 144 bytes in a data section padded to 32: 16 bytes of padding. */
    size_t padding = 16;
    for (size_t n = 0; n < im.n; n++)
        if (opens(im.data, n) != (n >= im.n - padding))
            fail_msg("cut at byte %zu of %zu", n, im.n);
    ea_pages_free(im.data, im.n);
}

static void test_bit_flips(void **state)
{
    (void)state;
    image im = make_image(1);
    uint8_t *data = im.data;
    size_t n_refused = 0, n_tried = 0;
    /* Every bit of the file alone, then clusters of 2..5 at fixed pseudo-random places. */
    for (size_t bit = 0; bit < im.n * 8; bit++, n_tried++) {
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        n_refused += !opens(data, im.n);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    uint64_t s = 12345;
    for (int round = 0; round < 20000; round++, n_tried++) {
        size_t bits[5], n = 2 + (size_t)round % 4;
        for (size_t i = 0; i < n; i++) {
            s = s * 6364136223846793005u + 1442695040888963407u;
            bits[i] = (size_t)(s >> 33) % (im.n * 8);
            data[bits[i] / 8] ^= (uint8_t)(1u << bits[i] % 8);
        }
        n_refused += !opens(data, im.n);
        for (size_t i = 0; i < n; i++)
            data[bits[i] / 8] ^= (uint8_t)(1u << bits[i] % 8);
    }
    assert_true(n_refused > n_tried / 10 && n_refused < n_tried); /* both outcomes were seen */
    assert_true(opens(data, im.n)); /* the flips were all taken back */
    ea_pages_free(im.data, im.n);
}

/* Every allocation that fails gives EA_ENOMEM and leaks nothing (a leak checker looks). */
static void test_out_of_memory(void **state)
{
    (void)state;
    image im = make_image(1);
    ea_gguf *g = NULL;
    size_t n = 1;
    for (;; n++) {
        ea_error err = {EA_OK, ""};
        ea_alloc_fail_at(n);
        ea_status status = ea_gguf_open_memory("mem", im.data, im.n, &g, &err);
        ea_alloc_fail_at(0);
        if (status == EA_OK)
            break;
        assert_int_equal(status, EA_ENOMEM);
        assert_null(g);
    }
    assert_true(n > 10);
    ea_gguf_close(g);
    ea_pages_free(im.data, im.n);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* A file of as many smallest records as possible: what the reader allocates stays within a small
 * multiple of the file. */
static void test_memory_is_bounded_by_file(void **state)
{
    (void)state;
    ea_error err = {EA_OK, ""};
    ea_gguf_writer *w;
    ea_gguf *g;
    image im;
    char key[16];
    assert_ok(ea_gguf_writer_create(&w, &err), &err);
    for (int i = 0; i < 60000; i++) {
        snprintf(key, sizeof key, "%x", i);
        ea_gguf_put_bool(w, key, true);
    }
    for (int i = 0; i < 60000; i++) {
        snprintf(key, sizeof key, "%x", i);
        ea_gguf_put_tensor(w, key, EA_DTYPE_I8, 1, (int64_t[]){1}, fill_pattern, NULL);
    }
    assert_ok(ea_gguf_write_memory(w, 1, &im.data, &im.n, &err), &err);
    ea_gguf_writer_destroy(w);
    struct mallinfo2 before = mallinfo2();
    assert_ok(ea_gguf_open_memory("mem", im.data, im.n, &g, &err), &err);
    struct mallinfo2 after = mallinfo2();
    size_t used = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
    if (used > 6 * im.n)
        fail_msg("%zu bytes allocated for a file of %zu", used, im.n);
    ea_gguf_close(g);
    ea_pages_free(im.data, im.n);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip_in_memory),
        cmocka_unit_test_setup_teardown(test_file_equals_memory, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_file_cut_short, make_dir, remove_dir),
        cmocka_unit_test(test_taken_pages),
        cmocka_unit_test(test_unwritable_path),
        cmocka_unit_test_setup_teardown(test_split_set, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_split_set_inconsistent, make_dir, remove_dir),
        cmocka_unit_test(test_getter_errors),
        cmocka_unit_test(test_writer_refuses),
        cmocka_unit_test(test_alignment_is_written),
        cmocka_unit_test(test_truncation_at_every_byte),
        cmocka_unit_test(test_bit_flips),
        cmocka_unit_test(test_out_of_memory),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(test_memory_is_bounded_by_file),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
