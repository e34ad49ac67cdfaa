/* tiny_model.c: see tiny_model.h. */
#include "tiny_model.h"

#include "support.h"

tiny_model tiny_model_default(void)
{
    return (tiny_model){.shape = {.arch = "llama",
                                  .layers = 2,
                                  .embd = 64,
                                  .ff = 128,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .vocab = 320,
                                  .ctx = 2048,
                                  .rope_base = 10000.0f,
                                  .norm_eps = 1e-5f,
                                  .tied = true,
                                  .type = EA_DTYPE_Q8_0},
                        .seed = 1};
}

static ea_synthetic *begin(const tiny_model *m)
{
    ea_error err = {EA_OK, ""};
    ea_synthetic *s = NULL;
    assert_ok(ea_synthetic_create(&m->shape, m->seed, &s, &err), &err);
    if (m->chat_template)
        ea_gguf_put_str(ea_synthetic_writer(s), "tokenizer.chat_template", m->chat_template);
    return s;
}

void tiny_model_make(const tiny_model *m, void **out, size_t *n_bytes)
{
    ea_error err = {EA_OK, ""};
    ea_synthetic *s = begin(m);
    assert_ok(ea_gguf_write_memory(ea_synthetic_writer(s), 1, out, n_bytes, &err), &err);
    ea_synthetic_destroy(s);
}

void tiny_model_write(const tiny_model *m, const char *path)
{
    ea_error err = {EA_OK, ""};
    ea_synthetic *s = begin(m);
    assert_ok(ea_gguf_write_file(ea_synthetic_writer(s), path, &err), &err);
    ea_synthetic_destroy(s);
}
