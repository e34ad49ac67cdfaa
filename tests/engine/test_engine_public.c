/* test_engine_public.c: the public interface from end to end, over a tiny model of random weights:
 * sizes and refusals of ea_engine_create, and text out of text. */
#include "support.h"

#include <string.h>

static ea_model *model;

static int setup(void **state)
{
    (void)state;
    ea_error err = {0};
    ea_model_params params;
    ea_model_params_default(&params);
    assert_ok(ea_model_synthetic("layers=2,embd=64,ff=96,heads=4,kv=2,vocab=400,ctx=1024:Q8_0", 5,
                                 &params, &model, &err),
              &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ea_model_destroy(model);
    return 0;
}

static void test_defaults(void **state)
{
    (void)state;
    ea_engine_params params;
    ea_engine_stats stats;
    ea_engine *engine = NULL;
    ea_error err = {0};
    ea_engine_params_default(&params);
    assert_ok(ea_engine_create(model, &params, &engine, &err), &err);
    ea_engine_stats_get(engine, &stats);
    assert_int_equal(stats.n_parallel, 4);
    assert_int_equal(stats.n_ctx_agent, 1024); /* as trained */
    assert_int_equal(stats.n_ctx, 4 * 1024);
    assert_int_equal(stats.n_pages, stats.n_pages_free);
    assert_true(stats.n_threads >= 1);
    assert_true(stats.kv_bytes > 0);
    ea_engine_destroy(engine);
    ea_engine_destroy(NULL);
}

static void expect_refused(const ea_engine_params *params, ea_status status, const char *what)
{
    ea_engine *engine = NULL;
    ea_error err = {0};
    assert_int_equal(ea_engine_create(model, params, &engine, &err), status);
    assert_null(engine);
    if (!strstr(err.text, what))
        fail_msg("\"%s\" does not say %s", err.text, what);
}

static void test_refusals(void **state)
{
    (void)state;
    ea_engine_params good, p;
    ea_engine_params_default(&good);
    p = good, p.size = 3;
    expect_refused(&p, EA_EINVAL, "size");
    p = good, p.n_ctx = -1;
    expect_refused(&p, EA_EINVAL, "n_ctx");
    p = good, p.n_parallel = 257;
    expect_refused(&p, EA_EINVAL, "n_parallel");
    p = good, p.n_threads = 100000;
    expect_refused(&p, EA_EINVAL, "n_threads");
    p = good, p.n_batch = 1 << 20;
    expect_refused(&p, EA_EINVAL, "n_batch");
    p = good, p.n_ctx = 512, p.n_ctx_agent = 2048;
    expect_refused(&p, EA_EINVAL, "2048");
    p = good, p.max_gap_ms = -3;
    expect_refused(&p, EA_EINVAL, "max_gap_ms");
    p = good, p.kv_type = (ea_kv_type)3;
    expect_refused(&p, EA_EINVAL, "kv_type");
    p = good, p.kv_type = EA_KV_Q8_0; /* heads of this model are 16 wide */
    expect_refused(&p, EA_EUNSUPPORTED, "multiple of 32");
}

/* Pages of quantised KV are smaller by what kernel.h says. */
static void test_kv_types(void **state)
{
    (void)state;
    static const int bits_2[] = {32, 17, 9}; /* of two numbers */
    ea_model *wide = NULL;
    ea_model_params model_params;
    ea_engine_params params;
    ea_engine_stats stats;
    ea_error err = {0};
    ea_model_params_default(&model_params);
    assert_ok(ea_model_synthetic("layers=3,embd=128,ff=96,heads=4,kv=2,vocab=300,ctx=512:Q8_0", 5,
                                 &model_params, &wide, &err),
              &err);
    for (int type = EA_KV_F16; type <= EA_KV_Q4_0; type++) {
        ea_engine *engine = NULL;
        ea_engine_params_default(&params);
        params.n_ctx = 1024;
        params.kv_type = (ea_kv_type)type;
        assert_ok(ea_engine_create(wide, &params, &engine, &err), &err);
        ea_engine_stats_get(engine, &stats);
        assert_int_equal(stats.n_ctx, 1024);
        /* K and V of 3 layers, 2 heads of 32 */
        assert_int_equal(stats.kv_bytes, 1024 * 2 * 3 * 2 * 32 * bits_2[type] / 16);
        ea_engine_destroy(engine);
    }
    ea_model_destroy(wide);
}

/* More KV than the machine has memory: the text says what it would take. */
static void test_kv_larger_than_memory(void **state)
{
    (void)state;
    ea_model *large = NULL;
    ea_model_params model_params;
    ea_engine_params params;
    ea_engine *engine = NULL;
    ea_error err = {0};
    ea_model_params_default(&model_params);
    /* 128 KiB of KV a token: 2 TiB in all */
    assert_ok(ea_model_synthetic("layers=32,embd=1024,ff=32,heads=8,kv=8,vocab=300:Q4_0", 5,
                                 &model_params, &large, &err),
              &err);
    ea_engine_params_default(&params);
    params.n_ctx = 1 << 24;
    assert_int_equal(ea_engine_create(large, &params, &engine, &err), EA_ENOMEM);
    assert_non_null(strstr(err.text, "n_ctx: 16777216"));
    assert_non_null(strstr(err.text, "GiB are available"));
    assert_null(engine);
    ea_model_destroy(large);
}

typedef struct answer {
    char text[4096];
    size_t n;
    int n_tokens;
    ea_finish finish;
    ea_usage usage;
} answer;

static bool on_event(void *user, const ea_event *event)
{
    answer *a = user;
    memcpy(a->text + a->n, event->text, event->n_bytes);
    a->n += event->n_bytes;
    a->n_tokens += event->kind == EA_EVENT_TOKEN;
    a->finish = event->finish;
    a->usage = event->usage;
    return true;
}

static void test_text_out_of_text(void **state)
{
    (void)state;
    ea_engine_params params;
    ea_request_params rp;
    ea_engine *engine = NULL;
    ea_request *request = NULL;
    ea_error err = {0};
    int32_t *tokens = NULL;
    size_t n_tokens = 0;
    answer a[2] = {{.n = 0}, {.n = 0}};
    const char *prompt = "a cat sat on the mat";
    ea_engine_params_default(&params);
    assert_ok(ea_engine_create(model, &params, &engine, &err), &err);
    assert_ok(
        ea_tokenize(model, prompt, strlen(prompt), EA_TOKENIZE_ADD_BOS, &tokens, &n_tokens, &err),
        &err);
    for (int i = 0; i < 2; i++) {
        ea_request_params_default(&rp);
        rp.tokens = tokens;
        rp.n_tokens = n_tokens;
        rp.max_tokens = 100;
        rp.sampling.seed = 3;
        rp.sampling.seed_set = true;
        rp.ignore_eos = true;
        rp.on_event = on_event;
        rp.user = &a[i];
        rp.agent = "tester";
        assert_ok(ea_request_submit(engine, &rp, &request, &err), &err);
        ea_request_wait(request);
        ea_request_unref(request);
        assert_int_equal(a[i].finish, EA_FINISH_LENGTH);
        assert_int_equal(a[i].n_tokens, 100);
        assert_true(a[i].n > 0);
    }
    assert_int_equal(a[0].n, a[1].n);
    assert_memory_equal(a[0].text, a[1].text, a[0].n);
    assert_int_equal(a[1].usage.n_cached, n_tokens - 1);
    ea_free(tokens);
    ea_engine_destroy(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),         cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_kv_types),         cmocka_unit_test(test_kv_larger_than_memory),
        cmocka_unit_test(test_text_out_of_text),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
