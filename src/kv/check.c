/* check.c: the invariants of kv.h, recomputed. For tests. */
#include "kv/tree.h"

#include "base/mem.h"

/* References and children, counted afresh. */
static void check_counts(const ea_kv *kv, const ea_kv_seq *const *seqs, int n_seqs)
{
    int size = kv->params.page_tokens, n = kv->params.n_pages, n_cached = 0, n_used = 0;
    int *n_ref = ea_calloc((size_t)n, sizeof *n_ref),
        *n_children = ea_calloc((size_t)n, sizeof(int));
    EA_ASSERT(n_ref && n_children);
    for (int s = 0; s < n_seqs; s++) {
        EA_ASSERT(seqs[s]->n_tokens <= seqs[s]->n_pages * size);
        for (int i = 0; i < seqs[s]->n_pages; i++)
            n_ref[seqs[s]->pages[i]]++;
    }
    for (int p = 0; p < n; p++)
        if (kv->nodes[p].used && kv->nodes[p].parent >= 0)
            n_children[kv->nodes[p].parent]++;
    for (int p = 0; p < n; p++) {
        const ea_kv_node *node = &kv->nodes[p];
        EA_ASSERT(node->n_ref == n_ref[p]);
        EA_ASSERT(node->n_children == n_children[p]);
        if (!node->used) {
            EA_ASSERT(node->n_ref == 0 && node->n_children == 0 && node->n_filled == 0);
            continue;
        }
        n_used++;
        n_cached += node->n_ref == 0;
        EA_ASSERT(node->n_filled == size || (node->n_children == 0 && node->n_ref <= 1));
        EA_ASSERT(node->n_ref > 0 || node->n_filled > 0);
        EA_ASSERT((kv->heap.place[p] >= 0) == (node->n_ref == 0 && node->n_children == 0));
        if (node->parent >= 0) {
            EA_ASSERT(kv->nodes[node->parent].used);
            EA_ASSERT(kv->nodes[node->parent].n_filled == size);
            EA_ASSERT(node->n_ref <= kv->nodes[node->parent].n_ref || node->n_filled == 0);
        }
    }
    EA_ASSERT(n_cached == kv->n_cached);
    EA_ASSERT(n_used + kv->n_free == n);
    ea_free(n_ref);
    ea_free(n_children);
}

/* Every filled position is in the index under the key that its chain gives, no other is, and full
 * pages are unique. */
static void check_index(const ea_kv *kv)
{
    int size = kv->params.page_tokens, n_filled = 0, n_indexed = 0;
    const ea_kv_index *ix = &kv->index;
    for (int p = 0; p < kv->params.n_pages; p++) {
        const ea_kv_node *node = &kv->nodes[p];
        for (int s = 0; s < node->n_filled; s++, n_filled++) {
            int32_t e = ea_kv_page_entry(kv, p, s), found = ea_kv_index_find(ix, ix->key[e]);
            int n_same = 0, n_full = 0;
            for (; found >= 0; found = ix->dup_next[found]) {
                n_same += found == e;
                n_full += found % size == size - 1;
            }
            EA_ASSERT(n_same == 1);
            EA_ASSERT(n_full <= 1);
            int32_t before =
                s ? e - 1 : (node->parent >= 0 ? ea_kv_page_entry(kv, node->parent, size - 1) : -1);
            if (before >= 0)
                EA_ASSERT(ea_key_equal(ix->key[e],
                                       ea_key_next(ix->key[before], ea_kv_page_tokens(kv, p)[s])));
        }
    }
    for (uint32_t b = 0; b <= ix->mask; b++)
        for (int32_t rep = ix->head[b]; rep >= 0; rep = ix->next[rep])
            for (int32_t e = rep; e >= 0; e = ix->dup_next[e])
                n_indexed++;
    EA_ASSERT(n_indexed == n_filled);
}

void ea_kv_check(const ea_kv *kv, const ea_kv_seq *const *seqs, int n_seqs)
{
    check_counts(kv, seqs, n_seqs);
    check_index(kv);
    for (int s = 0; s < n_seqs; s++) {
        const ea_kv_seq *seq = seqs[s];
        int size = kv->params.page_tokens;
        for (int i = 0; i < seq->n_pages; i++) {
            int filled = EA_MAX(0, EA_MIN(size, seq->n_tokens - i * size));
            EA_ASSERT(kv->nodes[seq->pages[i]].n_filled == filled);
            if (filled > 0)
                EA_ASSERT(kv->nodes[seq->pages[i]].parent == (i ? seq->pages[i - 1] : -1));
        }
        if (seq->n_tokens > 0) {
            int last = seq->n_tokens - 1;
            int32_t e = ea_kv_page_entry(kv, seq->pages[last / size], last % size);
            EA_ASSERT(ea_key_equal(kv->index.key[e], seq->key));
        }
    }
}
