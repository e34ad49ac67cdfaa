/* fuzz_tokenize.c: any bytes through a small vocabulary of each kind: every byte comes back, and
 * protected text holds no control token. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fuzz.h"
#include "text/vocab_internal.h"

/* A byte-level vocabulary of 256 bytes, a few merges and special tokens, or SPM over the same
 * tokens; built once. */
static ea_vocab *build(bool spm, ea_gguf **out_gguf)
{
    static const char *const words[] = {"ab", "abc", "  ", "\n\n", "12", "he", "hello"};
    static const char *const merges[] = {"a b", "ab c", "h e"};
    enum { N_WORDS = sizeof words / sizeof words[0], N = 256 + N_WORDS + 4 };
    char names[N][16];
    const char *tokens[N];
    int64_t types[N];
    float scores[N];
    for (int i = 0; i < N; i++) {
        types[i] = EA_TOKEN_NORMAL;
        scores[i] = (float)-i;
        tokens[i] = names[i];
    }
    for (int b = 0; b < 256; b++) {
        bool plain = !spm && b > 0x20 && b < 0x7f; /* in GPT-2's alphabet as itself */
        snprintf(names[b], sizeof names[b], plain ? "%c" : "<0x%02X>", b);
        types[b] = plain ? EA_TOKEN_NORMAL : EA_TOKEN_BYTE;
    }
    for (int i = 0; i < N_WORDS; i++)
        snprintf(names[256 + i], sizeof names[0], "%s", words[i]);
    static const char *const special[] = {"<s>", "<|e|>", "<", "<t>"};
    for (int i = 0; i < 4; i++) {
        snprintf(names[256 + N_WORDS + i], sizeof names[0], "%s", special[i]);
        types[256 + N_WORDS + i] = i == 3 ? EA_TOKEN_USER_DEFINED : EA_TOKEN_CONTROL;
    }
    ea_gguf_writer *w;
    void *bytes;
    size_t n_bytes;
    ea_gguf *g;
    ea_vocab *v;
    if (ea_gguf_writer_create(&w, NULL) != EA_OK)
        abort();
    ea_gguf_put_str(w, "tokenizer.ggml.model", spm ? "llama" : "gpt2");
    ea_gguf_put_str(w, "tokenizer.ggml.pre", "qwen2");
    ea_gguf_put_str_array(w, "tokenizer.ggml.tokens", tokens, N);
    ea_gguf_put_int_array(w, "tokenizer.ggml.token_type", EA_GGUF_I32, types, N);
    ea_gguf_put_float_array(w, "tokenizer.ggml.scores", scores, N);
    ea_gguf_put_str_array(w, "tokenizer.ggml.merges", merges, EA_ARRAY_LEN(merges));
    ea_gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", false);
    if (ea_gguf_write_memory(w, 1, &bytes, &n_bytes, NULL) != EA_OK ||
        ea_gguf_open_memory("fuzz", bytes, n_bytes, &g, NULL) != EA_OK ||
        ea_vocab_load(g, -1, &v, NULL) != EA_OK)
        abort();
    ea_gguf_writer_destroy(w);
    *out_gguf = g;
    return v;
}

static void check(const ea_vocab *v, const char *text, size_t n, unsigned flags, bool no_control)
{
    static const char mark[] = EA_PROTECT_MARK, space[] = "\xe2\x96\x81";
    int32_t *ids;
    size_t n_ids;
    ea_buf back = EA_BUF_INIT;
    if (ea_vocab_tokenize(v, text, n, flags, &ids, &n_ids, NULL) != EA_OK)
        abort();
    for (size_t i = 0; i < n_ids; i++) {
        char piece[16];
        size_t len = ea_vocab_token_bytes(v, ids[i], true, piece, sizeof piece);
        if (len > sizeof piece || (no_control && ea_vocab_is_control(v, ids[i])))
            abort();
        ea_buf_add(&back, piece, len);
    }
    /* U+2581 and the mark do not come back as they were; all else does. */
    if (!memmem(text, n, mark, sizeof mark - 1) && !memmem(text, n, space, sizeof space - 1) &&
        (back.n != n || (n && memcmp(back.data, text, n) != 0)))
        abort();
    ea_buf_done(&back);
    ea_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static ea_vocab *vocabs[2]; /* kept, with what they stand on, for all inputs */
    static ea_gguf *ggufs[2];
    for (int spm = 0; spm < 2; spm++) {
        if (!vocabs[spm])
            vocabs[spm] = build(spm, &ggufs[spm]);
        const ea_vocab *v = vocabs[spm];
        const char *text = (const char *)data;
        check(v, text, size, 0, true);
        check(v, text, size, EA_TOKENIZE_SPECIAL, false);
        ea_buf safe = EA_BUF_INIT;
        ea_vocab_protect(v, text, size, &safe);
        check(v, safe.data ? safe.data : "", safe.n, EA_TOKENIZE_SPECIAL, true);
        ea_buf_done(&safe);
    }
    return 0;
}
