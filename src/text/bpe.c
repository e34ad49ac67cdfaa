/* bpe.c: byte-pair encoding as GPT-2 defined it (Radford et al. 2019; merge order of Sennrich et
 * al. 2016): a word starts as its bytes, and the adjacent pair of the lowest rank is merged until
 * no pair has one; the leftmost goes first among equals. Works on token ids: a merge is a pair of
 * ids, so merges whose parts are no tokens can never apply and are left out. */
#include "text/vocab_internal.h"

#include <string.h>

/* Words up to this many bytes are merged by scanning, longer ones with a heap. Both give the same
 * tokens; the scan is faster for ordinary words (measured: break-even near 40). */
enum { SCAN_BYTES = 32 };

/* ---- alphabet: GPT-2 writes each byte as one printable character ---- */

/* Character of a byte: itself where that is printable Latin-1, else 256, 257, ... in order. */
static bool alphabet_is_self(int b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

/* Byte of character 256 + i. */
static const uint8_t alphabet_extra[68] = {
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d,
    0x0e, 0x0f, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b,
    0x1c, 0x1d, 0x1e, 0x1f, 0x20, 0x7f, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87,
    0x88, 0x89, 0x8a, 0x8b, 0x8c, 0x8d, 0x8e, 0x8f, 0x90, 0x91, 0x92, 0x93, 0x94, 0x95,
    0x96, 0x97, 0x98, 0x99, 0x9a, 0x9b, 0x9c, 0x9d, 0x9e, 0x9f, 0xa0, 0xad,
};

size_t ea_bpe_decode(const char *s, size_t n, char *dst)
{
    size_t n_out = 0;
    for (size_t i = 0; i < n;) {
        uint8_t b = (uint8_t)s[i];
        if (b < 0x80) {
            if (!alphabet_is_self(b))
                return SIZE_MAX;
            dst[n_out++] = (char)b;
            i++;
            continue;
        }
        /* Everything else in the alphabet has two bytes. */
        if (b < 0xc2 || b > 0xdf || i + 1 >= n || ((uint8_t)s[i + 1] & 0xc0) != 0x80)
            return SIZE_MAX;
        unsigned cp = (b & 0x1fu) << 6 | ((uint8_t)s[i + 1] & 0x3fu);
        if (cp < 256 && alphabet_is_self((int)cp))
            dst[n_out++] = (char)cp;
        else if (cp >= 256 && cp < 256 + EA_ARRAY_LEN(alphabet_extra))
            dst[n_out++] = (char)alphabet_extra[cp - 256];
        else
            return SIZE_MAX;
        i += 2;
    }
    return n_out;
}

/* ---- merges ---- */

static uint32_t merge_hash(int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key *= 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio: Fibonacci hashing */
    return (uint32_t)(key >> 32);
}

/* The merge of a pair, NULL if there is none. */
static inline const ea_merge *find_merge(const ea_vocab *v, int32_t left, int32_t right)
{
    for (uint32_t i = merge_hash(left, right) & v->merge_mask;; i = (i + 1) & v->merge_mask) {
        const ea_merge *m = &v->merges[i];
        if (m->left < 0) /* first: ids of missing byte tokens are negative too */
            return NULL;
        if (m->left == left && m->right == right)
            return m;
    }
}

/* Keeps the first of two equal merges. */
static void add_merge(ea_vocab *v, ea_merge merge)
{
    uint32_t i = merge_hash(merge.left, merge.right) & v->merge_mask;
    for (; v->merges[i].left >= 0; i = (i + 1) & v->merge_mask)
        if (v->merges[i].left == merge.left && v->merges[i].right == merge.right)
            return;
    v->merges[i] = merge;
}

/* Parse "left right" and add it, unless one of the three texts is no token. */
static ea_status load_merge(ea_vocab *v, ea_str text, uint64_t rank, ea_buf *scratch, ea_error *err)
{
    /* A part never contains a blank, but may start with one in old files. */
    const char *space = text.n > 2 ? memchr(text.s + 1, ' ', text.n - 2) : NULL;
    if (!space)
        return ea_fail(err, EA_EFORMAT,
                       "tokenizer.ggml.merges[%llu] = \"%.*s\": not two parts with a blank between",
                       (unsigned long long)rank, (int)EA_MIN(text.n, (size_t)60), text.s);
    size_t n_left = (size_t)(space - text.s), n_right = text.n - n_left - 1;
    ea_buf_clear(scratch);
    if (!ea_buf_reserve(scratch, text.n))
        return ea_fail(err, EA_ENOMEM, "out of memory");
    size_t a = ea_bpe_decode(text.s, n_left, scratch->data);
    if (a == SIZE_MAX)
        return EA_OK;
    size_t b = ea_bpe_decode(space + 1, n_right, scratch->data + a);
    if (b == SIZE_MAX)
        return EA_OK;
    int32_t left = ea_vocab_lookup(v, scratch->data, a),
            right = ea_vocab_lookup(v, scratch->data + a, b),
            merged = ea_vocab_lookup(v, scratch->data, a + b);
    if (left >= 0 && right >= 0 && merged >= 0)
        add_merge(v, (ea_merge){left, right, (uint32_t)rank, merged});
    return EA_OK;
}

static ea_status load_merges(ea_vocab *v, const ea_gguf *g, ea_error *err)
{
    ea_gguf_array merges;
    EA_TRY(ea_gguf_get_array(g, "tokenizer.ggml.merges", &merges, err));
    if (merges.type != EA_GGUF_STRING)
        return ea_fail(err, EA_EFORMAT, "tokenizer.ggml.merges: not an array of strings (type %d)",
                       (int)merges.type);
    if (merges.n > EA_MAX_MERGES)
        return ea_fail(err, EA_EFORMAT, "tokenizer.ggml.merges: %llu entries, at most %d",
                       (unsigned long long)merges.n, EA_MAX_MERGES);
    uint32_t n_slots = 64;
    while (n_slots < merges.n + merges.n / 2)
        n_slots *= 2;
    v->merges = ea_malloc(n_slots * sizeof *v->merges);
    if (!v->merges)
        return ea_fail(err, EA_ENOMEM, "out of memory: %llu merges", (unsigned long long)merges.n);
    v->merge_mask = n_slots - 1;
    memset(v->merges, 0xff, n_slots * sizeof *v->merges); /* left = -1: empty */
    ea_buf scratch = EA_BUF_INIT;
    ea_status status = EA_OK;
    for (uint64_t i = 0; status == EA_OK && i < merges.n; i++)
        status = load_merge(v, ea_gguf_array_str(&merges, i), i, &scratch, err);
    ea_buf_done(&scratch);
    return status;
}

ea_status ea_bpe_load(ea_vocab *v, const ea_gguf *g, ea_error *err)
{
    ea_str pre = {"default", 7}; /* files older than the key */
    if (ea_gguf_has(g, "tokenizer.ggml.pre"))
        EA_TRY(ea_gguf_get_str(g, "tokenizer.ggml.pre", &pre, err));
    EA_TRY(ea_pretok_create(pre.s, pre.n, &v->pretok, err));
    v->ignore_merges = ea_pretok_ignore_merges(v->pretok);
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        int32_t id = ea_vocab_lookup(v, &byte, 1);
        if (id >= 0) /* else a <0x..> token, if the vocabulary has one */
            v->byte_id[b] = id;
    }
    return load_merges(v, g, err);
}

/* ---- encoding ---- */

static ea_status emit(const ea_vocab *v, int32_t id, uint8_t byte, ea_ids *out, ea_error *err)
{
    return id >= 0 ? ea_ids_push(out, id, err) : ea_vocab_push_byte(v, byte, out, err);
}

/* A word of at most SCAN_BYTES bytes: look for the lowest rank, merge, repeat. */
static ea_status encode_short(const ea_vocab *v, const char *s, size_t n, ea_ids *out,
                              ea_error *err)
{
    int32_t ids[SCAN_BYTES];
    const ea_merge *pairs[SCAN_BYTES]; /* of (i, i + 1) */
    uint8_t bytes[SCAN_BYTES];         /* first byte, for symbols without a token */
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)s[i];
        ids[i] = v->byte_id[bytes[i]];
    }
    for (size_t i = 0; i + 1 < n; i++)
        pairs[i] = find_merge(v, ids[i], ids[i + 1]);
    for (;;) {
        size_t best = SIZE_MAX;
        uint32_t rank = UINT32_MAX;
        for (size_t i = 0; i + 1 < n; i++)
            if (pairs[i] && pairs[i]->rank < rank) {
                rank = pairs[i]->rank;
                best = i;
            }
        if (best == SIZE_MAX)
            break;
        ids[best] = pairs[best]->merged;
        n--;
        for (size_t i = best + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            bytes[i] = bytes[i + 1];
            if (i + 1 < n)
                pairs[i] = pairs[i + 1];
        }
        if (best > 0)
            pairs[best - 1] = find_merge(v, ids[best - 1], ids[best]);
        if (best + 1 < n)
            pairs[best] = find_merge(v, ids[best], ids[best + 1]);
    }
    for (size_t i = 0; i < n; i++)
        EA_TRY(emit(v, ids[i], bytes[i], out, err));
    return EA_OK;
}

/* Candidate merge: key = rank << 32 | position, so the order of keys is the order of merging. An
 * entry is stale when the symbols there are not this pair any more. */
typedef struct candidate {
    uint64_t key;
    int32_t left, right;
} candidate;

typedef struct long_word {
    uint32_t *next, *prev; /* symbols by position of their first byte; UINT32_MAX ends */
    int32_t *ids;          /* -2: merged away */
    candidate *heap;
    size_t n_heap, cap_heap;
} long_word;

enum { MERGED_AWAY = -2 };

static void sift_down(candidate *heap, size_t n, size_t i)
{
    candidate moving = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1].key < heap[child].key)
            child++;
        if (heap[child].key >= moving.key)
            break;
        heap[i] = heap[child];
    }
    heap[i] = moving;
}

static candidate heap_pop(long_word *w)
{
    candidate top = w->heap[0];
    w->heap[0] = w->heap[--w->n_heap];
    if (w->n_heap)
        sift_down(w->heap, w->n_heap, 0);
    return top;
}

static ea_status heap_push(long_word *w, candidate c, ea_error *err)
{
    void *grown = w->heap;
    ea_status status = ea_grow(&grown, &w->cap_heap, w->n_heap + 1, sizeof *w->heap, err);
    w->heap = grown;
    EA_TRY(status);
    size_t i = w->n_heap++;
    for (size_t parent; i > 0 && w->heap[parent = (i - 1) / 2].key > c.key; i = parent)
        w->heap[i] = w->heap[parent];
    w->heap[i] = c;
    return EA_OK;
}

/* Push the pair that starts at `at`, if it merges. */
static ea_status push_pair(const ea_vocab *v, long_word *w, uint32_t at, ea_error *err)
{
    uint32_t next = w->next[at];
    if (next == UINT32_MAX)
        return EA_OK;
    const ea_merge *m = find_merge(v, w->ids[at], w->ids[next]);
    if (!m)
        return EA_OK;
    return heap_push(w, (candidate){(uint64_t)m->rank << 32 | at, m->left, m->right}, err);
}

static ea_status merge_long(const ea_vocab *v, long_word *w, size_t n, ea_error *err)
{
    /* All first pairs at once, ordered in linear time. */
    for (uint32_t i = 0; i + 1 < n; i++) {
        const ea_merge *m = find_merge(v, w->ids[i], w->ids[i + 1]);
        if (m)
            w->heap[w->n_heap++] = (candidate){(uint64_t)m->rank << 32 | i, m->left, m->right};
    }
    for (size_t i = w->n_heap / 2; i-- > 0;)
        sift_down(w->heap, w->n_heap, i);
    while (w->n_heap) {
        candidate c = heap_pop(w);
        uint32_t at = (uint32_t)c.key, right = w->next[at];
        if (w->ids[at] != c.left || right == UINT32_MAX || w->ids[right] != c.right)
            continue;
        w->ids[at] = find_merge(v, c.left, c.right)->merged;
        w->ids[right] = MERGED_AWAY;
        w->next[at] = w->next[right];
        if (w->next[at] != UINT32_MAX)
            w->prev[w->next[at]] = at;
        if (w->prev[at] != UINT32_MAX)
            EA_TRY(push_pair(v, w, w->prev[at], err));
        EA_TRY(push_pair(v, w, at, err));
    }
    return EA_OK;
}

static ea_status encode_long(const ea_vocab *v, const char *s, size_t n, ea_ids *out, ea_error *err)
{
    long_word w = {ea_malloc(n * sizeof *w.next),
                   ea_malloc(n * sizeof *w.prev),
                   ea_malloc(n * sizeof *w.ids),
                   ea_malloc(n * sizeof *w.heap),
                   0,
                   n};
    ea_status status = EA_OK;
    if (!w.next || !w.prev || !w.ids || !w.heap)
        status = ea_fail(err, EA_ENOMEM, "out of memory: a word of %zu bytes", n);
    if (status == EA_OK) {
        for (uint32_t i = 0; i < n; i++) {
            w.ids[i] = v->byte_id[(uint8_t)s[i]];
            w.prev[i] = i ? i - 1 : UINT32_MAX;
            w.next[i] = i + 1 < n ? i + 1 : UINT32_MAX;
        }
        status = merge_long(v, &w, n, err);
    }
    if (status == EA_OK)
        for (uint32_t i = 0; status == EA_OK && i != UINT32_MAX; i = w.next[i])
            status = emit(v, w.ids[i], (uint8_t)s[i], out, err);
    ea_free(w.next);
    ea_free(w.prev);
    ea_free(w.ids);
    ea_free(w.heap);
    return status;
}

ea_status ea_bpe_encode(const ea_vocab *v, const char *s, size_t n, ea_ids *out, ea_error *err)
{
    ea_words words = {NULL, 0, 0};
    ea_status status = ea_pretok_split(v->pretok, s, n, &words, err);
    size_t from = 0;
    for (size_t i = 0; status == EA_OK && i < words.n; from = words.ends[i++]) {
        const char *word = s + from;
        size_t len = words.ends[i] - from;
        int32_t whole = v->ignore_merges || len == 1 ? ea_vocab_lookup(v, word, len) : -1;
        if (whole >= 0)
            status = ea_ids_push(out, whole, err);
        else if (len <= SCAN_BYTES)
            status = encode_short(v, word, len, out, err);
        else
            status = encode_long(v, word, len, out, err);
    }
    ea_words_done(&words);
    return status;
}
