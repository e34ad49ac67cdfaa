/* test_engine_load.c: loading a model file through the public interface: what memory it takes, what
 * it reports, how it is stopped, and what happens when the file is cut short under it. Argument:
 * the name of a real model, whose memory is then measured instead. */
#include "support.h"

#include <string.h>
#include <sys/wait.h>

#include "base/mem.h"
#include "tiny_model.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

static char dir[] = "/tmp/ea-test-load-XXXXXX";
static char path[128];
static size_t file_bytes;

/* ---- files ---- */

/* About 30 MB. */
static tiny_model middle_model(bool tied)
{
    tiny_model m = tiny_model_default();
    m.shape.embd = 512;
    m.shape.ff = 2048;
    m.shape.layers = 8;
    m.shape.vocab = 16000;
    m.shape.tied = tied;
    m.shape.type = EA_DTYPE_Q4_K;
    return m;
}

/* Without the writer's care that nothing is lost in a power cut, which takes a disk's time. */
static void write_model(const tiny_model *m)
{
    void *bytes;
    tiny_model_make(m, &bytes, &file_bytes);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, file_bytes, f), file_bytes);
    assert_int_equal(fclose(f), 0);
    ea_pages_free(bytes, file_bytes);
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/model.gguf", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

/* ---- text out of it ---- */

typedef struct answer {
    int32_t tokens[64];
    int n;
} answer;

static bool on_event(void *user, const ea_event *event)
{
    answer *a = user;
    if (event->kind == EA_EVENT_TOKEN && a->n < 64)
        a->tokens[a->n++] = event->token;
    return true;
}

/* Greedy continuation; returns the engine's KV bytes. */
static uint64_t generate(ea_model *model, int n_tokens, answer *out)
{
    int32_t prompt[] = {5, 300, 77, 260, 9};
    ea_engine_params params;
    ea_request_params rp;
    ea_engine *engine = NULL;
    ea_engine_stats stats;
    ea_request *request = NULL;
    ea_error err = {0};
    ea_engine_params_default(&params);
    params.n_ctx = 512;
    params.n_parallel = 1;
    params.n_threads = 2;
    assert_ok(ea_engine_create(model, &params, &engine, &err), &err);
    ea_engine_stats_get(engine, &stats);
    ea_request_params_default(&rp);
    rp.tokens = prompt;
    rp.n_tokens = EA_ARRAY_LEN(prompt);
    rp.max_tokens = n_tokens;
    rp.sampling.temperature = 0;
    rp.ignore_eos = true;
    rp.on_event = on_event;
    rp.user = out;
    out->n = 0;
    assert_ok(ea_request_submit(engine, &rp, &request, &err), &err);
    ea_request_wait(request);
    ea_request_unref(request);
    ea_engine_destroy(engine);
    assert_int_equal(out->n, n_tokens);
    return stats.kv_bytes;
}

/* ---- memory ---- */

#ifndef SANITIZED
/* "VmHWM" and the like of this process, in bytes. */
static size_t memory(const char *field)
{
    char line[256];
    unsigned long kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, field, strlen(field)) == 0 && line[strlen(field)] == ':')
            assert_int_equal(sscanf(line + strlen(field) + 1, "%lu", &kib), 1);
    fclose(f);
    assert_true(kib > 0);
    return kib * 1024;
}
#endif

/* Load and generate in a process of its own, so that its peak is that of the load. `model` is a
 * file, or a synthetic model's specification. Growth must stay under limit + KV. */
static void must_fit(const char *model, bool synthetic, size_t limit)
{
#ifdef SANITIZED
    (void)model, (void)synthetic, (void)limit;
    printf("SKIPPED: memory cannot be measured under a sanitizer\n");
#else
    fflush(stdout);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        size_t before = memory("VmRSS");
        ea_model *m = NULL;
        ea_model_params params;
        ea_error err = {0};
        answer a;
        ea_model_params_default(&params);
        params.n_threads = 2;
        ea_status status = synthetic ? ea_model_synthetic(model, 1, &params, &m, &err)
                                     : ea_model_load(model, &params, &m, &err);
        if (status != EA_OK) {
            printf("%s\n", err.text);
            fflush(stdout);
            _exit(2);
        }
        size_t peak = memory("VmHWM") - before, kept = memory("VmRSS") - before;
        size_t kv = generate(m, 8, &a), with_kv = memory("VmHWM") - before;
        ea_model_destroy(m);
        printf("%s: limit %zu, peak of the load %zu, kept %zu, with KV of %zu %zu\n", model, limit,
               peak, kept, kv, with_kv);
        fflush(stdout);
        _exit(peak <= limit && kept <= limit && with_kv <= limit + kv + (32u << 20) ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
#endif
}

/* Beside the tensors: the vocabulary, stacks, code pages, what is read into. */
enum { BESIDE = 9 << 20 };

static void memory_of_a_file(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        tiny_model m = middle_model(tied);
        write_model(&m);
        must_fit(path, false, file_bytes * 105 / 100 + BESIDE);
    }
}

/* The bytes that were made up go as they are packed: 70 MB once, not twice. */
static void memory_of_a_synthetic_model(void **state)
{
    (void)state;
    must_fit("layers=20,embd=1024,ff=2048,heads=8,kv=8,vocab=2000,tied=0:Q5_K", true,
             (size_t)(20 * (4 * 1024 * 1024 + 3 * 1024 * 2048) + 2 * 2000 * 1024) / 8 * 11 / 2 *
                     105 / 100 +
                 BESIDE);
}

/* The bound that is promised for any model. */
static const char *real_model;

static void memory_of_a_real_model(void **state)
{
    (void)state;
    const char *file = real_model_or_skip(real_model);
    if (!file)
        skip();
    FILE *f = fopen(file, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    size_t n = (size_t)ftell(f);
    fclose(f);
    must_fit(file, false, n * 105 / 100 + (300u << 20) - (32u << 20));
}

/* ---- progress ---- */

typedef struct watch {
    double last, largest_step;
    int n_calls;
    double stop_at; /* > 1: never */
    off_t cut_to;   /* < 0: no */
} watch;

static bool on_progress(void *user, double fraction)
{
    watch *w = user;
    assert_true(fraction >= w->last && fraction <= 1.0);
    if (fraction - w->last > w->largest_step)
        w->largest_step = fraction - w->last;
    w->last = fraction;
    w->n_calls++;
    if (w->cut_to >= 0)
        assert_int_equal(truncate(path, w->cut_to), 0);
    return fraction < w->stop_at;
}

static ea_status load(int n_threads, watch *w, ea_model **out, ea_error *err)
{
    ea_model_params params;
    ea_model_params_default(&params);
    params.n_threads = n_threads;
    params.progress = on_progress;
    params.progress_user = w;
    return ea_model_load(path, &params, out, err);
}

static void progress_is_steady(void **state)
{
    (void)state;
    tiny_model m = middle_model(true);
    write_model(&m);
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        watch w = {.stop_at = 2, .cut_to = -1};
        ea_model *model = NULL;
        ea_error err = {0};
        assert_ok(load(n_threads, &w, &model, &err), &err);
        assert_true(w.last == 1.0);
        if (n_threads == 1) { /* of several, the caller's may not get a turn for long */
            assert_true(w.n_calls > 20);
            assert_true(w.largest_step < 0.15);
        }
        ea_model_destroy(model);
    }
}

static void progress_can_stop(void **state)
{
    (void)state;
    tiny_model m = middle_model(false);
    write_model(&m);
    for (int n_threads = 1; n_threads <= 3; n_threads++)
        for (double at = 0; at < 1; at += 0.45) {
            watch w = {.stop_at = at, .cut_to = -1};
            ea_model *model = NULL;
            ea_error err = {0};
            ea_status status = load(n_threads, &w, &model, &err);
            assert_int_equal(status, EA_ECANCELLED);
            assert_null(model);
            assert_non_null(strstr(err.text, "model.gguf: loading was stopped"));
        }
}

/* ---- files that become shorter ---- */

static void cut_while_loading(void **state)
{
    (void)state;
    const off_t cuts[] = {0, 1 << 20, (off_t)(3 << 20)};
    for (size_t i = 0; i < EA_ARRAY_LEN(cuts); i++) {
        tiny_model m = middle_model(true);
        write_model(&m);
        watch w = {.stop_at = 2, .cut_to = cuts[i]};
        ea_model *model = NULL;
        ea_error err = {0};
        ea_status status = load(1, &w, &model, &err);
        assert_int_equal(status, EA_EIO);
        assert_null(model);
        if (!strstr(err.text, "model.gguf") || !strstr(err.text, "the file ends at byte"))
            fail_msg("\"%s\"", err.text);
    }
}

/* Also what a tokenizer and a template need is in memory. */
static void cut_after_loading(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        tiny_model m = middle_model(tied);
        write_model(&m);
        watch w = {.stop_at = 2, .cut_to = -1};
        ea_model *model = NULL;
        ea_error err = {0};
        answer before, after;
        int32_t *tokens = NULL;
        size_t n = 0;
        assert_ok(load(2, &w, &model, &err), &err);
        generate(model, 32, &before);
        assert_int_equal(truncate(path, 0), 0);
        generate(model, 32, &after);
        assert_memory_equal(before.tokens, after.tokens, sizeof before.tokens[0] * 32);
        assert_ok(ea_tokenize(model, "a cat", 5, EA_TOKENIZE_ADD_BOS, &tokens, &n, &err), &err);
        assert_true(n > 1);
        ea_free(tokens);
        ea_model_destroy(model);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_a_file),   cmocka_unit_test(memory_of_a_synthetic_model),
        cmocka_unit_test(progress_is_steady), cmocka_unit_test(progress_can_stop),
        cmocka_unit_test(cut_while_loading),  cmocka_unit_test(cut_after_loading),
    };
    const struct CMUnitTest real[] = {cmocka_unit_test(memory_of_a_real_model)};
    if (argc > 1) {
        real_model = argv[1];
        if (!real_model_or_skip(real_model))
            return EA_TEST_SKIPPED;
        return cmocka_run_group_tests(real, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, setup, teardown);
}
