/* test_device.c: what the plan check and the CPU device refuse, and the parts of the contract that
 * whole-model tests do not reach. */
#include <string.h>

#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "kernel/kernel.h"
#include "model/model.h"
#include "model/synthetic.h"
#include "support.h"

typedef struct fixture {
    void *bytes;
    size_t n_bytes;
    ea_gguf *g;
    ea_model_def *def;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    ea_error err = {0};
    if (!f ||
        ea_synthetic_model("layers=2,embd=64,ff=96,heads=4,kv=2,vocab=270:Q8_0", 3, 1, &f->bytes,
                           &f->n_bytes, &err) != EA_OK ||
        ea_gguf_open_memory("made.gguf", f->bytes, f->n_bytes, &f->g, &err) != EA_OK ||
        ea_model_def_load(f->g, &f->def, &err) != EA_OK) {
        printf("%s\n", err.text);
        return -1;
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    ea_model_def_destroy(f->def);
    ea_gguf_close(f->g);
    ea_pages_free(f->bytes, f->n_bytes);
    free(f);
    return 0;
}

/* ---- plan ---- */

/* The check must see the plan damaged by `damage` and be content with it as it was. */
static void expect_wrong(fixture *f, void (*damage)(ea_plan *plan), const char *words)
{
    ea_plan plan = f->def->plan;
    ea_error err = {0};
    ea_op *ops = malloc((size_t)plan.n_ops * sizeof *ops);
    ea_plan_tensor *tensors = malloc((size_t)plan.n_tensors * sizeof *tensors);
    assert_non_null(ops);
    assert_non_null(tensors);
    memcpy(ops, plan.ops, (size_t)plan.n_ops * sizeof *ops);
    memcpy(tensors, plan.tensors, (size_t)plan.n_tensors * sizeof *tensors);
    plan.ops = ops;
    plan.tensors = tensors;
    assert_ok(ea_plan_check(&plan, &err), &err);
    damage(&plan);
    assert_int_equal(ea_plan_check(&plan, &err), EA_EINTERNAL);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" should say %s", err.text, words);
    free(ops);
    free(tensors);
}

static ea_op *first(ea_plan *plan, ea_op_kind kind)
{
    for (int i = 0; i < plan->n_ops; i++)
        if (plan->ops[i].kind == kind)
            return &plan->ops[i];
    fail_msg("no operator of kind %d", (int)kind);
    return NULL;
}

static void drop_embedding(ea_plan *plan)
{
    plan->ops++;
    plan->n_ops--;
}

static void widen_tensor(ea_plan *plan)
{
    plan->tensors[first(plan, EA_OP_MATMUL)->u.matmul.weight[1]].n++;
}

static void shorten_bias(ea_plan *plan)
{
    first(plan, EA_OP_MATMUL)->u.matmul.bias[0] = first(plan, EA_OP_NORM)->u.norm.weight;
    plan->tensors[first(plan, EA_OP_NORM)->u.norm.weight].k--;
}

static void confuse_roles(ea_plan *plan)
{
    first(plan, EA_OP_NORM)->u.norm.weight = first(plan, EA_OP_MATMUL)->u.matmul.weight[0];
}

static void leave_group(ea_plan *plan)
{
    first(plan, EA_OP_ATTENTION)->u.attention.slot = 2;
}

static void leave_buffers(ea_plan *plan)
{
    first(plan, EA_OP_SILU_MUL)->u.silu_mul.gate = plan->n_buffers;
}

static void plan_check_sees_damage(void **state)
{
    expect_wrong(*state, drop_embedding, "read before it is written");
    expect_wrong(*state, widen_tensor, "width");
    expect_wrong(*state, shorten_bias, "length");
    expect_wrong(*state, confuse_roles, "role");
    expect_wrong(*state, leave_group, "slot out of range");
    expect_wrong(*state, leave_buffers, "buffer index out of range");
}

/* ---- weights and device ---- */

static bool stop_at_half(void *user, double fraction)
{
    double *last = user;
    assert_true(fraction >= *last && fraction <= 1.0);
    *last = fraction;
    return fraction < 0.5;
}

static void loading_reports_and_stops(void **state)
{
    fixture *f = *state;
    double last = 0;
    ea_error err = {0};
    ea_cpu_weights *w = NULL;
    ea_cpu_weights_params params = {
        .n_threads = 1, .progress = stop_at_half, .progress_user = &last};
    assert_int_equal(ea_cpu_weights_create(&f->def->plan, &params, &w, &err), EA_ECANCELLED);
    assert_null(w);
    assert_true(last >= 0.5);
}

/* A model whose packed weights are larger than any machine: the plan says so, no byte is touched.
 */
static void too_large_a_model_says_what_it_needs(void **state)
{
    fixture *f = *state;
    ea_plan plan = f->def->plan;
    ea_plan_tensor *tensors = malloc((size_t)plan.n_tensors * sizeof *tensors);
    assert_non_null(tensors);
    memcpy(tensors, plan.tensors, (size_t)plan.n_tensors * sizeof *tensors);
    for (int i = 0; i < plan.n_tensors; i++)
        if (tensors[i].role == EA_ROLE_MATRIX) {
            tensors[i].n = 1 << 22;
            tensors[i].k = 1 << 17; /* 0.5 TiB each */
        }
    plan.tensors = tensors;
    ea_error err = {0};
    ea_cpu_weights *w = NULL;
    ea_cpu_weights_params params = {.n_threads = 1};
    if (ea_memory_available() == 0)
        skip();
    assert_int_equal(ea_cpu_weights_create(&plan, &params, &w, &err), EA_ENOMEM);
    assert_null(w);
    if (!strstr(err.text, "made.gguf: needs ") || !strstr(err.text, "MiB are available"))
        fail_msg("\"%s\"", err.text);
    free(tensors);
}

static ea_cpu_weights *pack(fixture *f)
{
    ea_error err = {0};
    ea_cpu_weights *w;
    ea_cpu_weights_params params = {.n_threads = 2};
    assert_ok(ea_cpu_weights_create(&f->def->plan, &params, &w, &err), &err);
    return w;
}

static void device_refuses_by_name(void **state)
{
    ea_cpu_weights *w = pack(*state);
    static const struct {
        ea_cpu_device_params params;
        const char *field;
    } cases[] = {
        {{0, 4, 8, 8, EA_KV_F16, false}, "threads"},
        {{1, 0, 8, 8, EA_KV_F16, false}, "n_pages"},
        {{1, 4, 0, 8, EA_KV_F16, false}, "max_rows"},
        {{1, 4, 5000, 8, EA_KV_F16, false}, "max_rows"},
        {{1, 4, 8, 0, EA_KV_F16, false}, "max_logit_rows"},
        {{1, 4, 8, 9, EA_KV_F16, false}, "max_logit"},
        {{1, 4, 8, 8, (ea_kv_type)7, false}, "kv_type: 7"},
    };
    for (size_t i = 0; i < EA_ARRAY_LEN(cases); i++) {
        ea_error err = {0};
        ea_device *dev = NULL;
        assert_int_equal(ea_cpu_device_create(w, &cases[i].params, &dev, &err), EA_EINVAL);
        assert_null(dev);
        if (!strstr(err.text, cases[i].field))
            fail_msg("\"%s\" should name %s", err.text, cases[i].field);
    }
    ea_cpu_weights_destroy(w);
}

static void device_says_what_it_is(void **state)
{
    fixture *f = *state;
    ea_cpu_weights *w = pack(f);
    ea_error err = {0};
    ea_device *dev;
    ea_cpu_device_params params = {2, 4, 8, 3, EA_KV_F16, false};
    assert_ok(ea_cpu_device_create(w, &params, &dev, &err), &err);
    assert_string_equal(dev->info.name, "cpu");
    assert_int_equal(dev->info.n_vocab, 270);
    assert_int_equal(dev->info.n_embd, 64);
    assert_int_equal(dev->info.page_tokens, EA_PAGE_TOKENS);
    /* K and V of 2 layers, 2 heads of 16 f16 each, 32 positions */
    assert_int_equal(dev->info.page_bytes, 2 * 2 * 2 * 16 * 2 * 32);
    assert_int_equal(dev->info.max_rows, 8);
    assert_int_equal(dev->info.max_logit_rows, 3);
    assert_int_equal(dev->info.n_threads, 2);
    ea_device_destroy(dev);
    ea_cpu_weights_destroy(w);
}

static void rows_that_it_cannot_run_are_refused(void **state)
{
    ea_cpu_weights *w = pack(*state);
    ea_error err = {0};
    ea_device *dev;
    ea_cpu_device_params params = {1, 4, 8, 3, EA_KV_F16, false};
    assert_ok(ea_cpu_device_create(w, &params, &dev, &err), &err);
    int32_t page = 0;
    ea_seq seq = {&page, 1};
    ea_row good = {.token = 5, .parent = -1}, row = good;
    ea_batch batch = {&row, 1, &seq, 1};
    assert_ok(dev->ops->step(dev, &batch, &err), &err);
    row.want = EA_WANT_HIDDEN;
    assert_int_equal(dev->ops->step(dev, &batch, &err), EA_EUNSUPPORTED);
    row = good;
    row.adapter = 1;
    assert_int_equal(dev->ops->step(dev, &batch, &err), EA_EUNSUPPORTED);
    row = good;
    row.parent = 3;
    assert_int_equal(dev->ops->step(dev, &batch, &err), EA_EUNSUPPORTED);
    batch.n_rows = 0;
    err = (ea_error){0};
    assert_ok(dev->ops->step(dev, &batch, &err), &err);
    ea_device_destroy(dev);
    ea_cpu_weights_destroy(w);
}

/* A row given as an embedding equals the row of the token that has this embedding. */
static void input_embeddings(void **state)
{
    fixture *f = *state;
    ea_cpu_weights *w = pack(f);
    ea_error err = {0};
    ea_device *dev;
    ea_cpu_device_params params = {1, 4, 8, 3, EA_KV_F16, false};
    assert_ok(ea_cpu_device_create(w, &params, &dev, &err), &err);
    const ea_gguf_tensor *t = ea_gguf_tensor_find(f->g, "token_embd.weight");
    float embd[64], by_token[270];
    ea_dtype_find(t->type)->dequantise(t->data + 9 * ea_dtype_row_bytes(t->type, 64), embd, 64);
    int32_t page = 2;
    ea_seq seq = {&page, 1};
    ea_row row = {.token = 9, .parent = -1, .want = EA_WANT_LOGITS};
    ea_batch batch = {&row, 1, &seq, 1};
    assert_ok(dev->ops->step(dev, &batch, &err), &err);
    memcpy(by_token, row.logits, sizeof by_token);
    row = (ea_row){.token = -1, .embd = embd, .parent = -1, .want = EA_WANT_LOGITS};
    assert_ok(dev->ops->step(dev, &batch, &err), &err);
    assert_memory_equal(by_token, row.logits, sizeof by_token);
    ea_device_destroy(dev);
    ea_cpu_weights_destroy(w);
}

/* The n-th allocation fails, for every n. */
static void survives_out_of_memory(void **state)
{
    fixture *f = *state;
    bool made = false;
    for (size_t n = 1; n < 1000 && !made; n++) {
        ea_error err = {0};
        ea_cpu_weights *w = NULL;
        ea_device *dev = NULL;
        ea_cpu_weights_params wp = {.n_threads = 2};
        ea_cpu_device_params dp = {2, 4, 8, 3, EA_KV_F16, false};
        ea_alloc_fail_at(n);
        ea_status status = ea_cpu_weights_create(&f->def->plan, &wp, &w, &err);
        if (status == EA_OK)
            status = ea_cpu_device_create(w, &dp, &dev, &err);
        ea_alloc_fail_at(0);
        made = status == EA_OK;
        assert_true(made || (status == EA_ENOMEM && err.text[0] != '\0'));
        ea_device_destroy(dev);
        ea_cpu_weights_destroy(w);
    }
    assert_true(made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_check_sees_damage),
        cmocka_unit_test(loading_reports_and_stops),
        cmocka_unit_test(too_large_a_model_says_what_it_needs),
        cmocka_unit_test(device_refuses_by_name),
        cmocka_unit_test(device_says_what_it_is),
        cmocka_unit_test(rows_that_it_cannot_run_are_refused),
        cmocka_unit_test(input_embeddings),
        cmocka_unit_test(survives_out_of_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
