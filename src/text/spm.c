/* spm.c: SentencePiece's byte-pair model (Kudo and Richardson 2018) as GGUF's "llama" tokenizer:
 * the text starts as its characters, and the adjacent pair whose joined text is the token of the
 * highest score is merged first, the leftmost among equals. Characters that are no token become
 * byte tokens. Blanks stand for U+2581 throughout: the vocabulary is decoded at load. */
#include "text/vocab_internal.h"

#include <math.h>
#include <string.h>

#include "base/f16.h"
#include "base/utf8.h"

ea_status ea_spm_load(ea_vocab *v, const ea_gguf *g, ea_error *err)
{
    ea_gguf_array scores;
    EA_TRY(ea_gguf_get_array(g, "tokenizer.ggml.scores", &scores, err));
    if (scores.type != EA_GGUF_F32)
        return ea_fail(err, EA_EFORMAT, "tokenizer.ggml.scores: not an array of f32 (type %d)",
                       (int)scores.type);
    if (scores.n != (uint64_t)v->n)
        return ea_fail(err, EA_EFORMAT, "tokenizer.ggml.scores: %llu entries for %d tokens",
                       (unsigned long long)scores.n, v->n);
    v->scores = ea_malloc((size_t)v->n * sizeof *v->scores);
    if (!v->scores)
        return ea_fail(err, EA_ENOMEM, "out of memory");
    for (int i = 0; i < v->n; i++) {
        v->scores[i] = (float)ea_gguf_array_float(&scores, (uint64_t)i);
        if (isnan(v->scores[i]))
            return ea_fail(err, EA_EFORMAT, "tokenizer.ggml.scores[%d] is not a number", i);
    }
    return EA_OK;
}

/* Symbols by the offset of their first byte. */
typedef struct spm {
    const ea_vocab *v;
    const char *s;
    uint32_t *len, *prev; /* len 0: merged away; the next symbol starts at i + len */
    uint32_t n;
    struct spm_pair {
        uint64_t key; /* high half: score, highest first; low half: offset */
        uint32_t len; /* of both symbols: stale when they have grown or gone */
    } * heap;
    size_t n_heap, cap_heap;
} spm;

/* Order of keys = falling score. -0 and 0 are one score. */
static uint64_t score_key(float score)
{
    uint32_t u = ea_f32_bits(score + 0.0f);
    u = u & 0x80000000u ? ~u : u | 0x80000000u; /* unsigned order = order of floats */
    return (uint64_t)~u << 32;
}

static ea_status push_pair(spm *w, uint32_t left, ea_error *err)
{
    uint32_t right = left + w->len[left];
    if (right >= w->n)
        return EA_OK;
    uint32_t len = w->len[left] + w->len[right];
    int32_t id = ea_vocab_lookup(w->v, w->s + left, len);
    if (id < 0)
        return EA_OK;
    void *grown = w->heap;
    ea_status status = ea_grow(&grown, &w->cap_heap, w->n_heap + 1, sizeof *w->heap, err);
    w->heap = grown;
    EA_TRY(status);
    struct spm_pair pair = {score_key(w->v->scores[id]) | left, len};
    size_t i = w->n_heap++;
    for (size_t parent; i > 0 && w->heap[parent = (i - 1) / 2].key > pair.key; i = parent)
        w->heap[i] = w->heap[parent];
    w->heap[i] = pair;
    return EA_OK;
}

static struct spm_pair pop_pair(spm *w)
{
    struct spm_pair top = w->heap[0], moving = w->heap[--w->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < w->n_heap; i = child) {
        if (child + 1 < w->n_heap && w->heap[child + 1].key < w->heap[child].key)
            child++;
        if (w->heap[child].key >= moving.key)
            break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = moving;
    return top;
}

static ea_status merge_all(spm *w, ea_error *err)
{
    for (uint32_t i = 0; i < w->n; i += w->len[i])
        EA_TRY(push_pair(w, i, err));
    while (w->n_heap) {
        struct spm_pair pair = pop_pair(w);
        uint32_t left = (uint32_t)pair.key, right = left + w->len[left];
        if (w->len[left] == 0 || right >= w->n || w->len[left] + w->len[right] != pair.len)
            continue;
        w->len[left] = pair.len;
        w->len[right] = 0;
        if (left + pair.len < w->n)
            w->prev[left + pair.len] = left;
        if (left > 0)
            EA_TRY(push_pair(w, w->prev[left], err));
        EA_TRY(push_pair(w, left, err));
    }
    return EA_OK;
}

static ea_status emit_all(const spm *w, ea_ids *out, ea_error *err)
{
    for (uint32_t i = 0; i < w->n; i += w->len[i]) {
        int32_t id = ea_vocab_lookup(w->v, w->s + i, w->len[i]);
        if (id >= 0)
            EA_TRY(ea_ids_push(out, id, err));
        else
            for (uint32_t k = 0; k < w->len[i]; k++)
                EA_TRY(ea_vocab_push_byte(w->v, (uint8_t)w->s[i + k], out, err));
    }
    return EA_OK;
}

ea_status ea_spm_encode(const ea_vocab *v, const char *s, size_t n, ea_ids *out, ea_error *err)
{
    spm w = {.v = v, .s = s, .n = (uint32_t)n};
    w.len = ea_malloc(n * sizeof *w.len);
    w.prev = ea_malloc(n * sizeof *w.prev);
    ea_status status = EA_OK;
    if (!w.len || !w.prev)
        status = ea_fail(err, EA_ENOMEM, "out of memory: %zu bytes of text", n);
    if (status == EA_OK) {
        for (uint32_t i = 0, prev = 0, len; i < n; prev = i, i += len) {
            len = (uint32_t)ea_utf8_valid_len(s + i, n - i);
            w.len[i] = len = len ? len : 1;
            w.prev[i] = prev;
        }
        status = merge_all(&w, err);
    }
    if (status == EA_OK)
        status = emit_all(&w, out, err);
    ea_free(w.len);
    ea_free(w.prev);
    ea_free(w.heap);
    return status;
}
