/* test_gguf_manifest.c: the collection of malformed files. Rows of level "container" are accepted
 * or refused here as the manifest says; all other rows are well-formed containers whose content is
 * refused by later layers, so here they open. Allocation is bounded by RLIMIT_DATA. */
#include "support.h"

#include <jansson.h>
#include <string.h>
#include <sys/resource.h>

#include "gguf/gguf.h"

/* Split sets are resolved on opening, so this one of level "model" is refused here already. */
static bool refused_early(const char *file)
{
    return strcmp(file, "files/m-split-count.gguf") == 0;
}

/* Look at everything that was accepted: values and data must be readable (the sanitizers look). */
static unsigned touch(const ea_gguf *g)
{
    unsigned sum = 0;
    for (size_t i = 0; i < ea_gguf_n_tensors(g); i++) {
        const ea_gguf_tensor *t = ea_gguf_tensor_at(g, i);
        sum += t->data[0];
        sum += t->data[t->n_bytes - 1];
    }
    return sum;
}

static void check_row(const char *dir, const json_t *row)
{
    const char *file = json_string_value(json_object_get(row, "file"));
    const char *level = json_string_value(json_object_get(row, "level"));
    const char *expect = json_string_value(json_object_get(row, "expect"));
    char path[4200];
    ea_gguf *g = NULL;
    ea_error err = {EA_OK, ""};
    assert_non_null(file);
    assert_non_null(level);
    assert_non_null(expect);
    snprintf(path, sizeof path, "%s/%s", dir, file);
    ea_status status = ea_gguf_open(path, &g, &err);
    bool container = strcmp(level, "container") == 0;
    bool must_accept = container ? strcmp(expect, "accept") == 0 : !refused_early(file);
    bool must_reject = container ? strcmp(expect, "reject") == 0 : refused_early(file);
    if (status == EA_OK) {
        touch(g);
        ea_gguf_close(g);
        if (must_reject)
            fail_msg("%s was accepted", file);
        assert_int_equal(err.code, EA_OK);
        return;
    }
    assert_null(g);
    assert_int_equal(err.code, status);
    if (must_accept)
        fail_msg("%s was refused: %s", file, err.text);
    /* The message begins with the file and says more than that. */
    assert_memory_equal(err.text, path, strlen(path));
    assert_true(strlen(err.text) > strlen(path) + 10);
    if (!strstr(err.text, "missing"))
        assert_true(strpbrk(err.text + strlen(path), "0123456789'") != NULL);
    if (getenv("EA_TEST_VERBOSE"))
        printf("%s\n", err.text + strlen(dir) + 7);
}

static void test_manifest(void **state)
{
    (void)state;
    const char *manifest = shared_data_or_skip("gguf-bad/manifest.jsonl");
    if (!manifest)
        skip();
    char dir[4096], line[16384];
    FILE *f = fopen(manifest, "r");
    assert_non_null(f);
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(manifest, '/') - manifest), manifest);
    size_t n = 0;
    while (fgets(line, sizeof line, f)) {
        json_error_t why;
        json_t *row = json_loads(line, 0, &why);
        if (!row)
            fail_msg("%s: %s", manifest, why.text);
        check_row(dir, row);
        json_decref(row);
        n++;
    }
    fclose(f);
    assert_true(n >= 150); /* the loop did run */
}

/* No allocation from a number in a file: the whole collection fits in a few MB on top of what the
 * program has. Sanitizers reserve terabytes, so there the limit is left out (they have their own:
 * a request too large aborts). */
static int limit_memory(void **state)
{
    (void)state;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    struct rlimit limit = {16u << 20, 16u << 20};
    return setrlimit(RLIMIT_DATA, &limit);
#else
    return 0;
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_manifest)};
    return cmocka_run_group_tests(tests, limit_memory, NULL);
}
