/* fuzz_model.c: what comes after the container: hyper-parameters, tensor shapes, vocabulary, and
 * the vocabulary at work on some text. */
#include "fuzz.h"

#include <string.h>

#include "gguf/gguf.h"
#include "model/model.h"
#include "text/vocab.h"

static void use_vocab(const ea_gguf *g)
{
    static const char text[] = "Hello, w\xc3\xb6rld <s> 42\n\xff\xfe";
    ea_vocab *v;
    int32_t *tokens;
    size_t n;
    char bytes[64];
    if (ea_vocab_load(g, -1, &v, NULL) != EA_OK)
        return;
    unsigned flags = EA_TOKENIZE_SPECIAL | EA_TOKENIZE_ADD_BOS;
    if (ea_vocab_tokenize(v, text, strlen(text), flags, &tokens, &n, NULL) == EA_OK) {
        for (size_t i = 0; i < n; i++) {
            EA_ASSERT(tokens[i] >= 0 && tokens[i] < ea_vocab_size(v));
            (void)ea_vocab_token_bytes(v, tokens[i], true, bytes, sizeof bytes);
        }
        ea_free(tokens);
    }
    ea_vocab_destroy(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    ea_gguf *g;
    ea_model_def *def;
    if (ea_gguf_open_memory("input", data, n_bytes, &g, NULL) != EA_OK)
        return 0;
    if (ea_model_def_load(g, &def, NULL) == EA_OK)
        ea_model_def_destroy(def);
    use_vocab(g);
    ea_gguf_close(g);
    return 0;
}
