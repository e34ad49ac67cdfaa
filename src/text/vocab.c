/* vocab.c: loading a vocabulary from GGUF metadata, and looking things up in it. Every field is
 * checked here, so that encoding can trust the tables. Tokens are decoded once: `bytes` holds what
 * each one stands for in text. */
#include "text/vocab_internal.h"

#include <string.h>
#include <strings.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/limits.h"

/* Spellings that end a turn whatever the file says of their type (llama.cpp has the same list:
 * converters often forget the type). */
static const char *const eog_names[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<|endofturn|>",
    "<end_of_utterance>",
    "<|call|>",
    "<|return|>",
    "<\xef\xbd\x9c"
    "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
};
/* These only where they are control tokens: as text they are common. */
static const char *const eog_control_names[] = {
    "</s>", "<eos>", "[EOT]", "<EOT>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
};
/* The first of them that exists is the end-of-turn token where no key names one. */
static const char *const eot_names[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
};

static const char space_mark[] = "\xe2\x96\x81"; /* U+2581, SentencePiece's blank */
enum { SPACE_MARK_BYTES = sizeof space_mark - 1 };

/* ---- lookup ---- */

int32_t ea_vocab_lookup(const ea_vocab *v, const char *s, size_t n)
{
    if (n == 0 || n > v->max_token_bytes)
        return -1;
    for (uint32_t i = (uint32_t)XXH3_64bits(s, n) & v->table_mask;; i = (i + 1) & v->table_mask) {
        if (v->table[i] == 0)
            return -1;
        int32_t id = (int32_t)(v->table[i] - 1);
        ea_str text = ea_vocab_text(v, id);
        if (text.n == n && memcmp(text.s, s, n) == 0)
            return id;
    }
}

/* Of two tokens with one spelling the later one is used. */
static void table_put(ea_vocab *v, int32_t id)
{
    ea_str text = ea_vocab_text(v, id);
    uint32_t i = (uint32_t)XXH3_64bits(text.s, text.n) & v->table_mask;
    for (; v->table[i]; i = (i + 1) & v->table_mask) {
        ea_str other = ea_vocab_text(v, (int32_t)(v->table[i] - 1));
        if (other.n == text.n && memcmp(other.s, text.s, text.n) == 0)
            break;
    }
    v->table[i] = (uint32_t)id + 1;
    v->max_token_bytes = EA_MAX(v->max_token_bytes, (uint32_t)text.n);
}

ea_status ea_vocab_push_byte(const ea_vocab *v, uint8_t byte, ea_ids *out, ea_error *err)
{
    int32_t id = v->byte_id[byte] >= 0 ? v->byte_id[byte] : v->unk;
    if (id < 0)
        return ea_fail(err, EA_EUNSUPPORTED,
                       "the vocabulary has no token for byte 0x%02x and no unknown token", byte);
    return ea_ids_push(out, id, err);
}

/* ---- loading ---- */

static ea_status load_kind(ea_vocab *v, const ea_gguf *g, ea_error *err)
{
    ea_str model;
    EA_TRY(ea_gguf_get_str(g, "tokenizer.ggml.model", &model, err));
    if (model.n == 4 && memcmp(model.s, "gpt2", 4) == 0)
        v->kind = EA_VOCAB_BPE;
    else if (model.n == 5 && memcmp(model.s, "llama", 5) == 0)
        v->kind = EA_VOCAB_SPM;
    else
        return ea_fail(err, EA_EUNSUPPORTED,
                       "tokenizer.ggml.model = \"%.*s\" is not supported (known: gpt2, llama)",
                       (int)EA_MIN(model.n, (size_t)40), model.s);
    return EA_OK;
}

static ea_status load_types(ea_vocab *v, const ea_gguf *g, ea_error *err)
{
    static const char key[] = "tokenizer.ggml.token_type";
    v->flags = ea_calloc((size_t)v->n, 1);
    if (!v->flags)
        return ea_fail(err, EA_ENOMEM, "out of memory: %d tokens", v->n);
    memset(v->flags, EA_TOKEN_NORMAL, (size_t)v->n);
    if (!ea_gguf_has(g, key))
        return EA_OK;
    ea_gguf_array types;
    EA_TRY(ea_gguf_get_array(g, key, &types, err));
    if (types.type != EA_GGUF_I32 && types.type != EA_GGUF_U32)
        return ea_fail(err, EA_EFORMAT, "%s: not an array of i32 (type %d)", key, (int)types.type);
    if (types.n != (uint64_t)v->n)
        return ea_fail(err, EA_EFORMAT, "%s: %llu entries for %d tokens", key,
                       (unsigned long long)types.n, v->n);
    for (int i = 0; i < v->n; i++) {
        int64_t type = ea_gguf_array_int(&types, (uint64_t)i);
        if (type < EA_TOKEN_UNDEFINED || type > EA_TOKEN_BYTE)
            return ea_fail(err, EA_EFORMAT, "%s[%d] = %lld is not a token type (0..6)", key, i,
                           (long long)type);
        v->flags[i] = (uint8_t)type;
    }
    return EA_OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "<0xHH>" -> 0..255, else -1. */
static int parse_byte_token(ea_str text)
{
    if (text.n != 6 || memcmp(text.s, "<0x", 3) != 0 || text.s[5] != '>')
        return -1;
    int high = hex_digit(text.s[3]), low = hex_digit(text.s[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static size_t decode_spaces(ea_str text, char *dst)
{
    size_t n = 0;
    for (size_t i = 0; i < text.n;) {
        if (text.n - i >= SPACE_MARK_BYTES && text.s[i] == space_mark[0] &&
            memcmp(text.s + i, space_mark, SPACE_MARK_BYTES) == 0) {
            dst[n++] = ' ';
            i += SPACE_MARK_BYTES;
        } else {
            dst[n++] = text.s[i++];
        }
    }
    return n;
}

/* Write what token `id` stands for to dst (room for text.n) and tell whether encoding may produce
 * it. */
static ea_status decode_token(ea_vocab *v, int32_t id, ea_str text, char *dst, size_t *n_out,
                              bool *encodable, ea_error *err)
{
    ea_token_type type = ea_vocab_type(v, id);
    *encodable =
        type == EA_TOKEN_NORMAL || type == EA_TOKEN_UNDEFINED || type == EA_TOKEN_USER_DEFINED;
    if (type == EA_TOKEN_BYTE) {
        int byte = parse_byte_token(text);
        if (byte < 0)
            return ea_fail(err, EA_EFORMAT,
                           "tokenizer.ggml.tokens[%d] = \"%.*s\": a byte token is <0x00>..<0xFF>",
                           id, (int)EA_MIN(text.n, (size_t)40), text.s);
        *dst = (char)byte;
        *n_out = 1;
        v->byte_id[byte] = id;
        return EA_OK;
    }
    size_t n = SIZE_MAX;
    if (type == EA_TOKEN_NORMAL || type == EA_TOKEN_UNDEFINED) {
        n = v->kind == EA_VOCAB_BPE ? ea_bpe_decode(text.s, text.n, dst) : decode_spaces(text, dst);
        if (n == SIZE_MAX)
            *encodable = false;
    }
    if (n == SIZE_MAX) {
        memcpy(dst, text.s, text.n);
        n = text.n;
    }
    *n_out = n;
    return EA_OK;
}

static bool is_one_of(ea_str text, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(names[i]) == text.n && memcmp(names[i], text.s, text.n) == 0)
            return true;
    return false;
}

/* End-of-generation tokens by their spelling. */
static void mark_end_token(ea_vocab *v, int32_t id, ea_str text)
{
    if (text.n < 4 || (text.s[0] != '<' && text.s[0] != '['))
        return;
    if (is_one_of(text, eog_names, EA_ARRAY_LEN(eog_names)))
        v->flags[id] = EA_TOKEN_CONTROL | EA_TOKEN_EOG;
    else if (ea_vocab_type(v, id) == EA_TOKEN_CONTROL &&
             is_one_of(text, eog_control_names, EA_ARRAY_LEN(eog_control_names)))
        v->flags[id] |= EA_TOKEN_EOG;
}

static ea_status load_tokens(ea_vocab *v, const ea_gguf_array *tokens, ea_error *err)
{
    uint64_t n_bytes = 0;
    for (uint64_t i = 0; i < tokens->n; i++)
        n_bytes += ea_gguf_array_str(tokens, i).n + 1;
    uint32_t n_slots = 64;
    while (n_slots < (uint32_t)v->n + (uint32_t)v->n / 2)
        n_slots *= 2;
    v->offs = ea_malloc(((size_t)v->n + 1) * sizeof *v->offs);
    v->table = ea_calloc(n_slots, sizeof *v->table);
    /* A decoded token is never longer than its spelling; the sum of those lies in the file. */
    v->bytes = n_bytes <= UINT32_MAX ? ea_malloc(n_bytes) : NULL;
    if (!v->offs || !v->table || !v->bytes)
        return ea_fail(err, EA_ENOMEM, "out of memory: a vocabulary of %llu bytes",
                       (unsigned long long)n_bytes);
    v->table_mask = n_slots - 1;
    uint32_t at = 0;
    for (int32_t id = 0; id < v->n; id++) {
        ea_str text = ea_gguf_array_str(tokens, (uint64_t)id);
        mark_end_token(v, id, text);
        size_t n = 0;
        bool encodable = false;
        EA_TRY(decode_token(v, id, text, v->bytes + at, &n, &encodable, err));
        v->offs[id] = at;
        at += (uint32_t)n;
        v->offs[id + 1] = at;
        if (encodable && n > 0)
            table_put(v, id);
    }
    char *fitted = ea_realloc(v->bytes, at);
    if (fitted)
        v->bytes = fitted;
    return EA_OK;
}

/* A token id from its key; where the key is absent the kind's customary id, which must exist. */
static ea_status load_id(const ea_vocab *v, const ea_gguf *g, const char *key, int32_t customary,
                         int32_t *out, ea_error *err)
{
    int64_t id = customary;
    if (ea_gguf_has(g, key))
        EA_TRY(ea_gguf_get_int(g, key, 0, v->n - 1, &id, err));
    else if (customary >= v->n)
        return ea_fail(err, EA_EFORMAT,
                       "%s is absent and its default %d is not in the vocabulary of %d", key,
                       customary, v->n);
    *out = (int32_t)id;
    return EA_OK;
}

static ea_status load_ids(ea_vocab *v, const ea_gguf *g, ea_error *err)
{
    bool spm = v->kind == EA_VOCAB_SPM;
    EA_TRY(load_id(v, g, "tokenizer.ggml.bos_token_id", spm ? 1 : -1, &v->bos, err));
    EA_TRY(load_id(v, g, "tokenizer.ggml.eos_token_id", spm ? 2 : -1, &v->eos, err));
    EA_TRY(load_id(v, g, "tokenizer.ggml.unknown_token_id", spm ? 0 : -1, &v->unk, err));
    EA_TRY(load_id(v, g, "tokenizer.ggml.eot_token_id", -1, &v->eot, err));
    if (v->eos >= 0)
        v->flags[v->eos] |= EA_TOKEN_EOG;
    if (v->eot >= 0)
        v->flags[v->eot] |= EA_TOKEN_EOG;
    for (size_t k = 0; k < EA_ARRAY_LEN(eot_names) && v->eot < 0; k++)
        for (int32_t id = 0; id < v->n && v->eot < 0; id++)
            if (v->flags[id] & EA_TOKEN_EOG && is_one_of(ea_vocab_text(v, id), &eot_names[k], 1))
                v->eot = id;
    return EA_OK;
}

static ea_status load_switches(ea_vocab *v, const ea_gguf *g, ea_error *err)
{
    bool spm = v->kind == EA_VOCAB_SPM;
    EA_TRY(ea_gguf_get_bool_or(g, "tokenizer.ggml.add_bos_token",
                               spm || ea_pretok_add_bos(v->pretok), &v->add_bos, err));
    EA_TRY(
        ea_gguf_get_bool_or(g, "tokenizer.ggml.add_space_prefix", spm, &v->add_space_prefix, err));
    if (v->bos < 0)
        v->add_bos = false;
    /* Phi-3's tokenizer lets its role tokens swallow white space; GGUF has no field for that. */
    ea_str name;
    if (spm && ea_gguf_get_str(g, "general.name", &name, NULL) == EA_OK && name.n < 256) {
        char text[256];
        memcpy(text, name.s, name.n);
        text[name.n] = '\0';
        if (strcasestr(text, "phi-3") || strcasestr(text, "phi3"))
            for (int32_t id = 0; id < v->n; id++)
                if (ea_vocab_type(v, id) == EA_TOKEN_CONTROL && ea_vocab_text(v, id).n > 3 &&
                    memcmp(ea_vocab_text(v, id).s, "<|", 2) == 0 &&
                    !is_one_of(ea_vocab_text(v, id), &(const char *){"<|endoftext|>"}, 1))
                    v->flags[id] |= EA_TOKEN_RSTRIP;
    }
    return EA_OK;
}

static ea_status load(ea_vocab *v, const ea_gguf *g, int64_t n_vocab_expect, ea_error *err)
{
    static const char key[] = "tokenizer.ggml.tokens";
    EA_TRY(load_kind(v, g, err));
    ea_gguf_array tokens;
    EA_TRY(ea_gguf_get_array(g, key, &tokens, err));
    if (tokens.type != EA_GGUF_STRING)
        return ea_fail(err, EA_EFORMAT, "%s: not an array of strings (type %d)", key,
                       (int)tokens.type);
    if (tokens.n < 1 || tokens.n > EA_MAX_VOCAB)
        return ea_fail(err, EA_EFORMAT, "%s: %llu tokens, must be 1..%d", key,
                       (unsigned long long)tokens.n, EA_MAX_VOCAB);
    if (n_vocab_expect >= 0 && tokens.n > (uint64_t)n_vocab_expect)
        return ea_fail(err, EA_EFORMAT, "%s: %llu tokens, but the embedding has only %lld rows",
                       key, (unsigned long long)tokens.n, (long long)n_vocab_expect);
    v->n = (int)tokens.n;
    memset(v->byte_id, 0xff, sizeof v->byte_id);
    EA_TRY(load_types(v, g, err));
    EA_TRY(load_tokens(v, &tokens, err));
    EA_TRY(load_ids(v, g, err));
    EA_TRY(v->kind == EA_VOCAB_BPE ? ea_bpe_load(v, g, err) : ea_spm_load(v, g, err));
    EA_TRY(load_switches(v, g, err));
    return ea_specials_build(v, err);
}

ea_status ea_vocab_load(const ea_gguf *g, int64_t n_vocab_expect, ea_vocab **out, ea_error *err)
{
    ea_vocab *v = ea_calloc(1, sizeof *v);
    if (!v)
        return ea_fail(err, EA_ENOMEM, "out of memory");
    ea_status status = load(v, g, n_vocab_expect, err);
    if (status != EA_OK) {
        ea_vocab_destroy(v);
        ea_error_prefix(err, "%s", ea_gguf_path(g));
        return status;
    }
    *out = v;
    return EA_OK;
}

void ea_vocab_destroy(ea_vocab *v)
{
    if (!v)
        return;
    ea_pretok_destroy(v->pretok);
    ea_free(v->flags);
    ea_free(v->offs);
    ea_free(v->bytes);
    ea_free(v->table);
    ea_free(v->merges);
    ea_free(v->scores);
    ea_free(v->specials.ids);
    ea_free(v);
}

/* ---- questions ---- */

int ea_vocab_size(const ea_vocab *v)
{
    return v->n;
}

int32_t ea_vocab_bos(const ea_vocab *v)
{
    return v->bos;
}

int32_t ea_vocab_eos(const ea_vocab *v)
{
    return v->eos;
}

int32_t ea_vocab_eot(const ea_vocab *v)
{
    return v->eot;
}

bool ea_vocab_add_bos(const ea_vocab *v)
{
    return v->add_bos;
}

bool ea_vocab_is_eog(const ea_vocab *v, int32_t token)
{
    return token >= 0 && token < v->n && v->flags[token] & EA_TOKEN_EOG;
}

bool ea_vocab_is_control(const ea_vocab *v, int32_t token)
{
    return token >= 0 && token < v->n && ea_vocab_type(v, token) == EA_TOKEN_CONTROL;
}

size_t ea_vocab_token_bytes(const ea_vocab *v, int32_t token, bool special, char *buf, size_t size)
{
    if (token < 0 || token >= v->n)
        return 0;
    ea_token_type type = ea_vocab_type(v, token);
    if (!special &&
        (type == EA_TOKEN_CONTROL || type == EA_TOKEN_UNKNOWN || type == EA_TOKEN_UNUSED))
        return 0;
    ea_str text = ea_vocab_text(v, token);
    if (text.n && size)
        memcpy(buf, text.s, EA_MIN(text.n, size));
    return text.n;
}
