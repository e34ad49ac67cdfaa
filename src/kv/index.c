/* index.c: see index.h. */
#include "kv/index.h"

#include <string.h>

#include "base/mem.h"

ea_status ea_kv_index_init(ea_kv_index *ix, int n_entries, ea_error *err)
{
    memset(ix, 0, sizeof *ix);
    uint32_t n_buckets = 16;
    while (n_buckets < (uint32_t)n_entries)
        n_buckets *= 2;
    size_t n = (size_t)n_entries;
    ix->n_entries = n_entries;
    ix->mask = n_buckets - 1;
    ix->head = ea_malloc(n_buckets * sizeof *ix->head);
    ix->key = ea_calloc(n, sizeof *ix->key);
    ix->next = ea_calloc(n, sizeof *ix->next);
    ix->prev = ea_calloc(n, sizeof *ix->prev);
    ix->dup_next = ea_calloc(n, sizeof *ix->dup_next);
    ix->dup_prev = ea_calloc(n, sizeof *ix->dup_prev);
    if (!ix->head || !ix->key || !ix->next || !ix->prev || !ix->dup_next || !ix->dup_prev) {
        ea_kv_index_done(ix);
        return ea_fail(err, EA_ENOMEM, "out of memory: prefix index of %d positions", n_entries);
    }
    memset(ix->head, 0xff, n_buckets * sizeof *ix->head);
    return EA_OK;
}

void ea_kv_index_done(ea_kv_index *ix)
{
    ea_free(ix->head);
    ea_free(ix->key);
    ea_free(ix->next);
    ea_free(ix->prev);
    ea_free(ix->dup_next);
    ea_free(ix->dup_prev);
    memset(ix, 0, sizeof *ix);
}

int32_t ea_kv_index_find(const ea_kv_index *ix, ea_key128 key)
{
    int32_t e = ix->head[key.lo & ix->mask];
    while (e >= 0 && !ea_key_equal(ix->key[e], key))
        e = ix->next[e];
    return e;
}

void ea_kv_index_insert(ea_kv_index *ix, int32_t entry, ea_key128 key)
{
    ix->key[entry] = key;
    int32_t rep = ea_kv_index_find(ix, key);
    if (rep >= 0) { /* hang it right behind the representative */
        ix->dup_prev[entry] = rep;
        ix->dup_next[entry] = ix->dup_next[rep];
        if (ix->dup_next[rep] >= 0)
            ix->dup_prev[ix->dup_next[rep]] = entry;
        ix->dup_next[rep] = entry;
        return;
    }
    int32_t *head = &ix->head[key.lo & ix->mask];
    ix->dup_next[entry] = ix->dup_prev[entry] = -1;
    ix->prev[entry] = -1;
    ix->next[entry] = *head;
    if (*head >= 0)
        ix->prev[*head] = entry;
    *head = entry;
}

void ea_kv_index_remove(ea_kv_index *ix, int32_t entry)
{
    int32_t dup = ix->dup_next[entry], before = ix->dup_prev[entry];
    if (before >= 0) { /* not the representative */
        ix->dup_next[before] = dup;
        if (dup >= 0)
            ix->dup_prev[dup] = before;
        return;
    }
    int32_t prev = ix->prev[entry], next = ix->next[entry];
    if (dup >= 0) { /* the first duplicate takes its place in the chain */
        ix->dup_prev[dup] = -1;
        ix->prev[dup] = prev;
        ix->next[dup] = next;
    }
    int32_t heir = dup >= 0 ? dup : next;
    if (prev >= 0)
        ix->next[prev] = heir;
    else
        ix->head[ix->key[entry].lo & ix->mask] = heir;
    if (next >= 0)
        ix->prev[next] = dup >= 0 ? dup : prev;
}
