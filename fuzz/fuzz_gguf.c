/* fuzz_gguf.c: the GGUF container. Whatever opens must be readable to its last byte. */
#include "fuzz.h"

#include "gguf/gguf.h"

static unsigned touch_array(const ea_gguf_array *a)
{
    unsigned sum = 0;
    for (uint64_t i = 0; i < a->n; i++) {
        if (a->type != EA_GGUF_STRING) {
            sum += (unsigned)(ea_gguf_array_float(a, i) > 0.0);
            continue;
        }
        ea_str s = ea_gguf_array_str(a, i);
        for (size_t j = 0; j < s.n; j++)
            sum += (unsigned char)s.s[j];
    }
    return sum;
}

/* Every getter on keys that the seeds have, each with another type among them. */
static unsigned touch_keys(const ea_gguf *g)
{
    static const char *const keys[] = {
        "general.architecture",
        "general.alignment",
        "general.name",
        "llama.block_count",
        "llama.context_length",
        "llama.rope.freq_base",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.scores",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
        "tokenizer.chat_template",
        "tokenizer.ggml.add_bos_token",
        "x.y",
        "x.arr",
        "a.b",
    };
    unsigned sum = 0;
    for (size_t i = 0; i < EA_ARRAY_LEN(keys); i++) {
        int64_t n = 0;
        double f = 0.0;
        bool b = false;
        ea_str s = {NULL, 0};
        ea_gguf_array a;
        sum += ea_gguf_get_int(g, keys[i], -5, 1 << 20, &n, NULL) == EA_OK;
        sum += ea_gguf_get_float(g, keys[i], &f, NULL) == EA_OK;
        sum += ea_gguf_get_bool(g, keys[i], &b, NULL) == EA_OK;
        if (ea_gguf_get_str(g, keys[i], &s, NULL) == EA_OK)
            for (size_t j = 0; j < s.n; j++)
                sum += (unsigned char)s.s[j];
        if (ea_gguf_get_array(g, keys[i], &a, NULL) == EA_OK)
            sum += touch_array(&a);
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    ea_gguf *g;
    ea_error err = {EA_OK, ""};
    if (ea_gguf_open_memory("input", data, n_bytes, &g, &err) != EA_OK) {
        EA_ASSERT(err.code != EA_OK && err.text[0]);
        return 0;
    }
    unsigned sum = touch_keys(g);
    for (size_t i = 0; i < ea_gguf_n_tensors(g); i++) {
        const ea_gguf_tensor *t = ea_gguf_tensor_at(g, i);
        EA_ASSERT(t->data >= data && t->n_bytes <= n_bytes &&
                  t->data + t->n_bytes <= data + n_bytes);
        for (uint64_t j = 0; j < t->n_bytes; j++)
            sum += t->data[j];
    }
    ea_gguf_close(g);
    volatile unsigned sink = sum; /* so that the reads are not optimised away */
    (void)sink;
    return 0;
}
