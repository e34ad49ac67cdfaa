/* tiny_model.h: tiny seeded models as GGUF, for tests that need a whole model but no real one. Made
 * by the generator of synthetic benchmark models (model/synthetic.h says how weights and vocabulary
 * look), so any shape and weight format will do. Link ea_tiny_model. Failures fail the test. */
#ifndef EA_TESTS_TINY_MODEL_H
#define EA_TESTS_TINY_MODEL_H

#include "model/synthetic.h"

typedef struct tiny_model {
    ea_synthetic_shape shape;
    uint64_t seed;
    const char *chat_template; /* tokenizer.chat_template, or NULL: none */
} tiny_model;

/* A llama of 2 layers, embd 64, ff 128, 4 heads over 2 KV heads, 320 tokens, context 2048, Q8_0,
 * tied, seed 1, no template: change what the test is about. */
tiny_model tiny_model_default(void);

/* The bytes (ea_pages_free with *n_bytes), or a file at path. */
void tiny_model_make(const tiny_model *m, void **out, size_t *n_bytes);
void tiny_model_write(const tiny_model *m, const char *path);

#endif
