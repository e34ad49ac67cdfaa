/* model_run.h: a model and CPU devices over it, for tests that look at logits: no engine, no text.
 * Every call fails the test where it fails. */
#ifndef EA_TESTS_GOLDEN_MODEL_RUN_H
#define EA_TESTS_GOLDEN_MODEL_RUN_H

#include "support.h"

#include "device/cpu/cpu.h"
#include "device/device.h"
#include "gguf/gguf.h"
#include "model/model.h"

typedef struct test_model {
    ea_gguf *g;
    ea_model_def *def;
    ea_cpu_weights *weights;
} test_model;

void test_model_open(test_model *m, const char *path);
/* Over bytes that stay until test_model_close. */
void test_model_open_memory(test_model *m, const void *data, size_t n_bytes);
void test_model_close(test_model *m);

ea_device *test_device(const test_model *m, int n_threads, int n_pages, int max_rows,
                       int max_logit_rows);
ea_device *test_device_kv(const test_model *m, int n_threads, int n_pages, int max_rows,
                          int max_logit_rows, ea_kv_type kv_type);

/* A timeline: its page table. Pages first_page, first_page + stride, ... */
typedef struct test_seq {
    int32_t pages[64];
    int n_pages, n_tokens;
} test_seq;
void test_seq_init(test_seq *s, int first_page, int stride, int n_pages);

/* Append n tokens in one step; every row wants `want`. rows (may be NULL: not looked at) gets the n
 * rows with their results. */
void test_feed(ea_device *dev, test_seq *s, const int32_t *tokens, int n, ea_want want,
               ea_row *rows);

#endif
