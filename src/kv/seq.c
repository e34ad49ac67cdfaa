/* seq.c: page tables of sequences: matching against the tree, reserving, committing, releasing. See
 * kv.h. */
#include "kv/tree.h"

#include <string.h>

#include "base/mem.h"

/* Pages that begin alike are interchangeable but for this: one that ends exactly where we match can
 * be continued without a copy. It is looked for among this many. */
enum { MAX_TWINS_LOOKED_AT = 8 };

ea_status ea_kv_seq_init(ea_kv_seq *seq, int max_pages, ea_error *err)
{
    *seq = (ea_kv_seq){.max_pages = max_pages};
    seq->pages = ea_calloc((size_t)max_pages, sizeof *seq->pages);
    if (!seq->pages)
        return ea_fail(err, EA_ENOMEM, "out of memory: page table of %d pages", max_pages);
    return EA_OK;
}

void ea_kv_seq_done(ea_kv_seq *seq)
{
    ea_free(seq->pages);
    *seq = (ea_kv_seq){0};
}

void ea_kv_seq_start(ea_kv_seq *seq, ea_key128 root)
{
    EA_ASSERT(seq->n_pages == 0);
    seq->n_tokens = 0;
    seq->key = root;
}

/* Put a referenced page at place i of the table, instead of what is there. */
static void table_set(ea_kv *kv, ea_kv_seq *seq, int i, int32_t page)
{
    EA_ASSERT(i <= seq->n_pages && i < seq->max_pages);
    if (i == seq->n_pages)
        seq->n_pages++;
    else
        ea_kv_page_unref(kv, seq->pages[i]);
    seq->pages[i] = page;
}

/* Keys are hashes: before a page is shared its tokens and its place in the tree are compared too,
 * so that not even a made-up collision mixes two timelines. By induction over the pages this
 * compares the whole timeline. */
static bool page_is(const ea_kv *kv, int32_t page, int32_t parent, const int32_t *tokens, int n)
{
    return kv->nodes[page].parent == parent && kv->nodes[page].n_filled >= n &&
           memcmp(ea_kv_page_tokens(kv, page), tokens, (size_t)n * sizeof *tokens) == 0;
}

/* Follow tokens[from..end) from key onwards; returns how far the index knows them, with the last
 * entry and key. */
static int follow(const ea_kv *kv, const int32_t *tokens, int from, int end, int32_t *entry,
                  ea_key128 *key)
{
    int p = from;
    for (; p < end; p++) {
        ea_key128 next = ea_key_next(*key, tokens[p]);
        int32_t e = ea_kv_index_find(&kv->index, next);
        if (e < 0)
            break;
        *entry = e;
        *key = next;
    }
    return p;
}

void ea_kv_match_full(ea_kv *kv, ea_kv_seq *seq, const int32_t *tokens, int limit, ea_kv_match *m)
{
    int size = kv->params.page_tokens;
    for (;;) {
        int i = seq->n_tokens / size, first = i * size;
        int32_t parent = i ? seq->pages[i - 1] : -1, entry = -1;
        ea_key128 key = seq->key;
        int end = follow(kv, tokens, seq->n_tokens, EA_MIN(first + size, limit), &entry, &key);
        *m = (ea_kv_match){.src = -1, .n_tokens = seq->n_tokens, .key = seq->key};
        if (entry < 0 || i >= seq->max_pages)
            return;
        int32_t page = entry / size;
        if (!page_is(kv, page, parent, tokens + first, end - first))
            return;
        if (end < first + size) {
            *m = (ea_kv_match){.src = page, .n_tokens = end, .key = key};
            return;
        }
        ea_kv_page_ref(kv, page);
        table_set(kv, seq, i, page);
        seq->n_tokens = end;
        seq->key = key;
    }
}

/* Fill our page in progress with tokens up to position `end` (at most its end). */
static void push_tokens(ea_kv *kv, ea_kv_seq *seq, const int32_t *tokens, int end)
{
    int size = kv->params.page_tokens, i = seq->n_tokens / size;
    int32_t page = seq->pages[i];
    if (kv->nodes[page].n_filled == 0 && end > seq->n_tokens)
        ea_kv_page_attach(kv, page, i ? seq->pages[i - 1] : -1);
    for (; seq->n_tokens < end; seq->n_tokens++) {
        seq->key = ea_key_next(seq->key, tokens[seq->n_tokens]);
        ea_kv_page_push(kv, page, tokens[seq->n_tokens], seq->key);
    }
}

/* A page that nobody writes and that ends exactly with *m, or -1. */
static int32_t find_continuable(const ea_kv *kv, const ea_kv_seq *seq, const ea_kv_match *m,
                                const int32_t *tokens)
{
    int size = kv->params.page_tokens, i = seq->n_tokens / size, n_pos = m->n_tokens - i * size;
    int32_t parent = i ? seq->pages[i - 1] : -1;
    int32_t e = ea_kv_index_find(&kv->index, m->key);
    for (int k = 0; e >= 0 && k < MAX_TWINS_LOOKED_AT; k++, e = kv->index.dup_next[e]) {
        int32_t page = e / size;
        if (kv->nodes[page].n_ref == 0 && kv->nodes[page].n_filled == n_pos &&
            page_is(kv, page, parent, tokens + i * size, n_pos))
            return page;
    }
    return -1;
}

/* The page that the copy goes to: the one reserved, or a new one. src is protected from eviction
 * meanwhile. */
static int32_t page_for_copy(ea_kv *kv, const ea_kv_seq *seq, int i, int32_t src)
{
    if (i < seq->n_pages)
        return seq->pages[i];
    ea_kv_node *node = &kv->nodes[src];
    bool cached = node->n_ref == 0;
    if (!cached)
        return ea_kv_page_alloc(kv);
    ea_kv_heap_remove(&kv->heap, src);
    int32_t dst = ea_kv_page_alloc(kv);
    if (node->n_children == 0)
        ea_kv_heap_put(&kv->heap, src, node->last_use = ++kv->clock);
    return dst;
}

bool ea_kv_match_part(ea_kv *kv, ea_kv_seq *seq, const int32_t *tokens, const ea_kv_match *m)
{
    int size = kv->params.page_tokens, i = seq->n_tokens / size, n_pos = m->n_tokens - i * size;
    if (m->src < 0)
        return true;
    if (seq->n_tokens % size == 0) {
        int32_t page = find_continuable(kv, seq, m, tokens);
        if (page >= 0) {
            ea_kv_page_ref(kv, page);
            table_set(kv, seq, i, page);
            seq->n_tokens = m->n_tokens;
            seq->key = m->key;
            return true;
        }
    }
    int32_t dst = page_for_copy(kv, seq, i, m->src);
    if (dst < 0) {
        /* The source is the last page that could be evicted: rather than lose it, cut it where we
         * part from it and go on there. */
        if (kv->nodes[m->src].n_ref > 0 || kv->nodes[m->src].n_children > 0)
            return false;
        ea_kv_page_cut(kv, m->src, n_pos);
        ea_kv_page_ref(kv, m->src);
        table_set(kv, seq, i, m->src);
        seq->n_tokens = m->n_tokens;
        seq->key = m->key;
        return true;
    }
    if (i == seq->n_pages)
        table_set(kv, seq, i, dst);
    kv->params.copy(kv->params.copy_user, dst, m->src, n_pos);
    kv->n_copied++;
    push_tokens(kv, seq, tokens, m->n_tokens);
    return true;
}

int ea_kv_reserve(ea_kv *kv, ea_kv_seq *seq, int n)
{
    int size = kv->params.page_tokens;
    while (seq->n_pages * size < seq->n_tokens + n && seq->n_pages < seq->max_pages) {
        int32_t page = ea_kv_page_alloc(kv);
        if (page < 0)
            break;
        seq->pages[seq->n_pages++] = page;
    }
    return EA_MIN(n, seq->n_pages * size - seq->n_tokens);
}

/* Our page i has just become full. If the tree has had such a page already, use that one and free
 * ours: the bits are the same. */
static void merge_full(ea_kv *kv, ea_kv_seq *seq, int i)
{
    int size = kv->params.page_tokens;
    int32_t mine = seq->pages[i], parent = i ? seq->pages[i - 1] : -1;
    const int32_t *tokens = ea_kv_page_tokens(kv, mine);
    int32_t e = ea_kv_index_find(&kv->index, seq->key);
    for (; e >= 0; e = kv->index.dup_next[e]) { /* at most two: ours and one other */
        int32_t page = e / size;
        if (page == mine || !page_is(kv, page, parent, tokens, size))
            continue;
        ea_kv_page_ref(kv, page);
        /* Nobody else refers to ours, and it has no children yet. */
        ea_kv_page_cut(kv, mine, 0);
        table_set(kv, seq, i, page);
        kv->n_merged++;
        return;
    }
}

void ea_kv_commit(ea_kv *kv, ea_kv_seq *seq, const int32_t *tokens, int n)
{
    int size = kv->params.page_tokens, end = seq->n_tokens + n;
    EA_ASSERT(end <= seq->n_pages * size);
    while (seq->n_tokens < end) {
        int i = seq->n_tokens / size;
        push_tokens(kv, seq, tokens, EA_MIN(end, (i + 1) * size));
        if (seq->n_tokens == (i + 1) * size)
            merge_full(kv, seq, i);
    }
}

void ea_kv_release(ea_kv *kv, ea_kv_seq *seq)
{
    while (seq->n_pages > 0) /* children before parents */
        ea_kv_page_unref(kv, seq->pages[--seq->n_pages]);
    seq->n_tokens = 0;
}

void ea_kv_peek(const ea_kv *kv, ea_key128 root, const int32_t *tokens, int n, int *n_tokens,
                int *n_need)
{
    int size = kv->params.page_tokens, i = 0, n_shared = 0;
    int32_t parent = -1;
    ea_key128 key = root;
    for (; (i + 1) * size <= n; i++) {
        int32_t entry = -1;
        int end = follow(kv, tokens, i * size, (i + 1) * size, &entry, &key);
        if (end < (i + 1) * size || !page_is(kv, entry / size, parent, tokens + i * size, size))
            break;
        parent = entry / size;
        if (kv->nodes[parent].n_ref > 0)
            n_shared++; /* costs nothing: it is held anyway */
    }
    *n_tokens = i * size;
    *n_need = n / size + 1 - n_shared; /* pages of n + 1 positions */
}
