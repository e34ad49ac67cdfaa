/* test_model.c: definitions from GGUF files: what is refused and with which words, what is read. */
#include <string.h>

#include <jansson.h>

#include "base/mem.h"
#include "model/model.h"
#include "model/synthetic.h"
#include "support.h"

/* ---- the malformed files of shared/data ---- */

/* What the error must name: field or tensor, and the value found. */
static const struct {
    const char *file, *field, *value;
} refusals[] = {
    {"m-arch-missing", "general.architecture", "missing"},
    {"m-arch-unknown", "general.architecture", "\"nosuch\""},
    {"m-arch-wrong-type", "general.architecture", "u32"},
    {"m-block-count-0", "llama.block_count", "0"},
    {"m-block-count-2", "blk.1.attn_norm.weight", "missing"},
    {"m-block-count-513", "llama.block_count", "513"},
    {"m-block-count-2147483648", "llama.block_count", "2147483648"},
    {"m-block-count-4294967295", "llama.block_count", "4294967295"},
    {"m-block-count-type", "llama.block_count", "string"},
    {"m-block-count-negative", "llama.block_count", "-1"},
    {"m-head-count-0", "llama.attention.head_count", "0"},
    {"m-head-count-3", "attention.head_count", "3"},
    {"m-head-kv-0", "llama.attention.head_count_kv", "0"},
    {"m-head-kv-gt", "attention.head_count_kv", "4"},
    {"m-head-count-array-short", "llama.attention.head_count", "array"},
    {"m-embd-0", "llama.embedding_length", "0"},
    {"m-embd-mismatch", "token_embd.weight", "[8, 288], expected [32, 288]"},
    {"m-embd-huge", "llama.embedding_length", "2147483648"},
    {"m-ff-mismatch", "blk.0.ffn_gate.weight", "[8, 16], expected [8, 64]"},
    {"m-rope-dim-odd", "llama.rope.dimension_count", "3"},
    {"m-rope-dim-gt", "llama.rope.dimension_count", "64"},
    {"m-rope-base-nan", "llama.rope.freq_base", "nan"},
    {"m-eps-nan", "llama.attention.layer_norm_rms_epsilon", "nan"},
    {"m-tensor-missing", "blk.0.attn_k.weight", "missing (expected shape [8, 4])"},
    {"m-tensor-shape-swapped", "blk.0.ffn_down.weight", "[8, 16], expected [16, 8]"},
    {"m-tensor-k-small", "blk.0.attn_k.weight", "[8, 2], expected [8, 4]"},
    {"m-norm-2d", "blk.0.attn_norm.weight", "[4, 2], expected [8]"},
    {"m-embd-rows-fewer", "token_embd.weight", "100"},
    {"m-split-count", "split.count", "65535"},
};

static ea_status load(const char *path, ea_error *err)
{
    ea_gguf *g = NULL;
    ea_model_def *def = NULL;
    *err = (ea_error){0};
    ea_status status = ea_gguf_open(path, &g, err);
    if (status == EA_OK)
        status = ea_model_def_load(g, &def, err);
    assert_true((status == EA_OK) == (def != NULL));
    ea_model_def_destroy(def);
    ea_gguf_close(g);
    return status;
}

static bool is_listed(const char *file)
{
    for (size_t i = 0; i < EA_ARRAY_LEN(refusals); i++)
        if (strstr(file, refusals[i].file) &&
            strcmp(strstr(file, refusals[i].file) + strlen(refusals[i].file), ".gguf") == 0)
            return true;
    return false;
}

static void bad_files_are_refused_by_name(void **state)
{
    (void)state;
    if (!shared_data_or_skip("gguf-bad/manifest.jsonl"))
        skip();
    for (size_t i = 0; i < EA_ARRAY_LEN(refusals); i++) {
        char rel[160];
        ea_error err;
        snprintf(rel, sizeof rel, "gguf-bad/files/%s.gguf", refusals[i].file);
        if (load(shared_data(rel), &err) == EA_OK)
            fail_msg("%s was accepted", rel);
        if (!strstr(err.text, refusals[i].file) || !strstr(err.text, refusals[i].field) ||
            !strstr(err.text, refusals[i].value))
            fail_msg("%s: \"%s\" should name the file, %s and %s", rel, err.text, refusals[i].field,
                     refusals[i].value);
    }
}

/* Every model-level row of the manifest is in the table above or is accepted. */
static void manifest_is_covered(void **state)
{
    (void)state;
    const char *path = shared_data_or_skip("gguf-bad/manifest.jsonl");
    if (!path)
        skip();
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    json_t *line;
    int n_seen = 0;
    while ((line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL))) {
        const char *file = json_string_value(json_object_get(line, "file"));
        const char *expect = json_string_value(json_object_get(line, "expect"));
        if (strcmp(json_string_value(json_object_get(line, "level")), "model") == 0) {
            char rel[160];
            ea_error err;
            n_seen++;
            snprintf(rel, sizeof rel, "gguf-bad/%s", file);
            ea_status status = load(shared_data(rel), &err);
            if (strcmp(expect, "accept") == 0 && status != EA_OK)
                fail_msg("%s: %s", file, err.text);
            if (strcmp(expect, "reject") == 0 && (status == EA_OK || !is_listed(file)))
                fail_msg("%s: %s", file, status == EA_OK ? "accepted" : "not in the table");
        }
        json_decref(line);
    }
    fclose(f);
    assert_true(n_seen >= 30);
}

/* ---- made here ---- */

typedef struct made {
    void *bytes;
    size_t n_bytes;
    ea_gguf *g;
} made;

static void make(made *m, const char *spec, void (*more)(ea_gguf_writer *w))
{
    ea_error err = {0};
    ea_synthetic_shape shape;
    ea_synthetic *s;
    assert_ok(ea_synthetic_parse(spec, &shape, &err), &err);
    assert_ok(ea_synthetic_create(&shape, 1, &s, &err), &err);
    if (more)
        more(ea_synthetic_writer(s));
    assert_ok(ea_gguf_write_memory(ea_synthetic_writer(s), 1, &m->bytes, &m->n_bytes, &err), &err);
    ea_synthetic_destroy(s);
    assert_ok(ea_gguf_open_memory("made.gguf", m->bytes, m->n_bytes, &m->g, &err), &err);
}

static void unmake(made *m)
{
    ea_gguf_close(m->g);
    ea_pages_free(m->bytes, m->n_bytes);
}

static const char small[] = "layers=3,embd=64,ff=96,heads=4,kv=2,vocab=270,ctx=777:F32";

static void check_refused(void (*more)(ea_gguf_writer *w), ea_status status, const char *words)
{
    made m;
    ea_error err = {0};
    ea_model_def *def = NULL;
    make(&m, small, more);
    assert_int_equal(ea_model_def_load(m.g, &def, &err), status);
    assert_null(def);
    if (!strstr(err.text, words) || !strstr(err.text, "made.gguf"))
        fail_msg("\"%s\" should name made.gguf and %s", err.text, words);
    unmake(&m);
}

static void put_yarn(ea_gguf_writer *w)
{
    ea_gguf_put_str(w, "llama.rope.scaling.type", "yarn");
}

static void put_experts(ea_gguf_writer *w)
{
    ea_gguf_put_int(w, "llama.expert_count", EA_GGUF_U32, 8);
}

static void put_value_length(ea_gguf_writer *w)
{
    ea_gguf_put_int(w, "llama.attention.value_length", EA_GGUF_U32, 8);
}

static void put_bad_factor(ea_gguf_writer *w)
{
    ea_gguf_put_str(w, "llama.rope.scaling.type", "linear");
    ea_gguf_put_float(w, "llama.rope.scaling.factor", -2.0f);
}

static void fill_zero(void *user, int64_t row, void *dst, size_t row_bytes)
{
    (void)user;
    (void)row;
    memset(dst, 0, row_bytes);
}

static void put_zero_freqs(ea_gguf_writer *w)
{
    int64_t n = 8;
    ea_gguf_put_tensor(w, "rope_freqs.weight", EA_DTYPE_F32, 1, &n, fill_zero, NULL);
}

static void put_short_freqs(ea_gguf_writer *w)
{
    int64_t n = 7;
    ea_gguf_put_tensor(w, "rope_freqs.weight", EA_DTYPE_F32, 1, &n, fill_zero, NULL);
}

static void put_layer_too_many(ea_gguf_writer *w)
{
    int64_t n = 64;
    ea_gguf_put_tensor(w, "blk.3.attn_norm.weight", EA_DTYPE_F32, 1, &n, fill_zero, NULL);
}

static void variants_are_refused_by_name(void **state)
{
    (void)state;
    check_refused(put_yarn, EA_EUNSUPPORTED, "\"yarn\"");
    check_refused(put_experts, EA_EUNSUPPORTED, "expert_count");
    check_refused(put_value_length, EA_EUNSUPPORTED, "value_length");
    check_refused(put_bad_factor, EA_EFORMAT, "rope.scaling.factor");
    check_refused(put_zero_freqs, EA_EFORMAT, "rope_freqs.weight");
    check_refused(put_short_freqs, EA_EFORMAT, "rope_freqs.weight");
    check_refused(put_layer_too_many, EA_EFORMAT, "blk.3.attn_norm.weight");
}

static void hyper_parameters_are_read(void **state)
{
    (void)state;
    made m;
    ea_error err = {0};
    ea_model_def *def;
    make(&m, small, NULL);
    assert_ok(ea_model_def_load(m.g, &def, &err), &err);
    assert_string_equal(def->arch, "llama");
    assert_int_equal(def->hp.n_layer, 3);
    assert_int_equal(def->hp.n_embd, 64);
    assert_int_equal(def->hp.n_ff, 96);
    assert_int_equal(def->hp.n_head, 4);
    assert_int_equal(def->hp.n_head_kv, 2);
    assert_int_equal(def->hp.head_dim, 16);
    assert_int_equal(def->hp.n_rot, 16);
    assert_int_equal(def->hp.n_vocab, 270);
    assert_int_equal(def->hp.n_ctx_train, 777);
    /* embd 64: per layer q and o 64 x 64, k and v 32 x 64, three of 96 x 64, two norms */
    uint64_t layer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64 + 2 * 64;
    assert_int_equal(def->n_params, 3 * layer + 270 * 64 * (def->hp.tied ? 1 : 2) + 64);
    assert_int_equal(def->n_bytes, def->n_params * 4);
    ea_model_def_destroy(def);
    unmake(&m);
}

/* A layer has four meeting points, and every operator of the plan but those is between two. */
static void exchange_points_of_a_layer(void **state)
{
    (void)state;
    made m;
    ea_error err = {0};
    ea_model_def *def;
    make(&m, small, NULL);
    assert_ok(ea_model_def_load(m.g, &def, &err), &err);
    int n[3] = {0};
    for (int i = 0; i < def->plan.n_ops; i++) {
        const ea_op *op = &def->plan.ops[i];
        if (!op->exchange)
            continue;
        assert_in_range(op->layer, 0, 2);
        n[op->layer]++;
        assert_true(op->kind == EA_OP_ATTENTION || op->kind == EA_OP_SILU_MUL ||
                    (op->kind == EA_OP_MATMUL && op->u.matmul.accumulate));
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(n[i], 4);
    ea_model_def_destroy(def);
    unmake(&m);
}

/* The n-th allocation fails, for every n: an error, no leak (under ASan), no crash. */
static void survives_out_of_memory(void **state)
{
    (void)state;
    made m;
    make(&m, small, NULL);
    bool loaded = false;
    for (size_t n = 1; n < 1000 && !loaded; n++) {
        ea_error err = {0};
        ea_model_def *def = NULL;
        ea_alloc_fail_at(n);
        ea_status status = ea_model_def_load(m.g, &def, &err);
        ea_alloc_fail_at(0);
        loaded = status == EA_OK;
        assert_true(loaded || status == EA_ENOMEM);
        ea_model_def_destroy(def);
    }
    assert_true(loaded);
    unmake(&m);
}

static void type_is_described(void **state)
{
    (void)state;
    made m;
    make(&m, small, NULL);
    ea_buf buf = EA_BUF_INIT;
    ea_model_describe(m.g, &buf);
    assert_non_null(buf.data);
    assert_memory_equal(buf.data, "llama 110K", strlen("llama 110K"));
    ea_buf_done(&buf);
    unmake(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files_are_refused_by_name),
        cmocka_unit_test(manifest_is_covered),
        cmocka_unit_test(variants_are_refused_by_name),
        cmocka_unit_test(hyper_parameters_are_read),
        cmocka_unit_test(exchange_points_of_a_layer),
        cmocka_unit_test(survives_out_of_memory),
        cmocka_unit_test(type_is_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
