/* model_run.c: see model_run.h. */
#include "golden/model_run.h"

static void open_rest(test_model *m)
{
    ea_error err = {0};
    assert_ok(ea_model_def_load(m->g, &m->def, &err), &err);
    ea_cpu_weights_params params = {.n_threads = 2};
    assert_ok(ea_cpu_weights_create(&m->def->plan, &params, &m->weights, &err), &err);
}

void test_model_open(test_model *m, const char *path)
{
    ea_error err = {0};
    *m = (test_model){0};
    assert_ok(ea_gguf_open(path, &m->g, &err), &err);
    open_rest(m);
}

void test_model_open_memory(test_model *m, const void *data, size_t n_bytes)
{
    ea_error err = {0};
    *m = (test_model){0};
    assert_ok(ea_gguf_open_memory("test model", data, n_bytes, &m->g, &err), &err);
    open_rest(m);
}

void test_model_close(test_model *m)
{
    ea_cpu_weights_destroy(m->weights);
    ea_model_def_destroy(m->def);
    ea_gguf_close(m->g);
    *m = (test_model){0};
}

ea_device *test_device(const test_model *m, int n_threads, int n_pages, int max_rows,
                       int max_logit_rows)
{
    return test_device_kv(m, n_threads, n_pages, max_rows, max_logit_rows, EA_KV_F16);
}

ea_device *test_device_kv(const test_model *m, int n_threads, int n_pages, int max_rows,
                          int max_logit_rows, ea_kv_type kv_type)
{
    ea_error err = {0};
    ea_device *dev;
    ea_cpu_device_params params = {n_threads, n_pages, max_rows, max_logit_rows, kv_type, false};
    assert_ok(ea_cpu_device_create(m->weights, &params, &dev, &err), &err);
    return dev;
}

void test_seq_init(test_seq *s, int first_page, int stride, int n_pages)
{
    assert_true(n_pages <= (int)(sizeof s->pages / sizeof *s->pages));
    s->n_pages = n_pages;
    s->n_tokens = 0;
    for (int i = 0; i < n_pages; i++)
        s->pages[i] = first_page + i * stride;
}

void test_feed(ea_device *dev, test_seq *s, const int32_t *tokens, int n, ea_want want,
               ea_row *rows)
{
    ea_row *own = rows ? rows : calloc((size_t)n, sizeof *own);
    assert_non_null(own);
    for (int i = 0; i < n; i++) {
        int pos = s->n_tokens + i;
        own[i] = (ea_row){.token = tokens[i], .pos = {pos, pos, pos}, .parent = -1, .want = want};
    }
    ea_seq seq = {s->pages, s->n_pages};
    ea_batch batch = {.rows = own, .n_rows = n, .seqs = &seq, .n_seqs = 1};
    ea_error err = {0};
    assert_ok(dev->ops->step(dev, &batch, &err), &err);
    s->n_tokens += n;
    if (!rows)
        free(own);
}
