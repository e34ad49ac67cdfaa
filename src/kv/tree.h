/* tree.h: inside of kv/: pages as nodes of the prefix tree. See kv.h for the invariants. */
#ifndef EA_KV_TREE_H
#define EA_KV_TREE_H

#include "kv/heap.h"
#include "kv/index.h"
#include "kv/kv.h"

typedef struct ea_kv_node {
    int32_t parent; /* page before it in the timeline; -1 for the first, or while n_filled is 0 */
    int32_t n_ref;  /* sequences that have it in their table */
    int32_t n_children;
    int32_t n_filled; /* positions in the tree */
    bool used;        /* not in the free list */
    uint64_t last_use;
} ea_kv_node;

struct ea_kv {
    ea_kv_params params;
    ea_kv_node *nodes; /* [n_pages] */
    int32_t *tokens;   /* [n_pages][page_tokens] */
    ea_kv_index index; /* entry = page * page_tokens + slot */
    ea_kv_heap heap;   /* unreferenced pages without children */
    int32_t *free;     /* stack of n_free pages */
    int n_free, n_cached;
    uint64_t clock; /* counts uses */
    uint64_t n_evicted, n_copied, n_merged;
};

/* A page with one reference and nothing in it; evicts if it has to. -1: all pages are referred to.
 */
int32_t ea_kv_page_alloc(ea_kv *kv);

/* One more sequence refers to a page of the tree. */
void ea_kv_page_ref(ea_kv *kv, int32_t page);

/* One fewer. An unreferenced page stays in the tree, unless it is empty, or is not full and another
 * page holds all that it holds: then it is free at once. */
void ea_kv_page_unref(ea_kv *kv, int32_t page);

/* Fill the next position of a page. */
void ea_kv_page_push(ea_kv *kv, int32_t page, int32_t token, ea_key128 key);

/* Forget all positions from n_pos on. The page has no children. */
void ea_kv_page_cut(ea_kv *kv, int32_t page, int n_pos);

/* Hang a page on the one before it (-1: it is the first). */
void ea_kv_page_attach(ea_kv *kv, int32_t page, int32_t parent);

static inline int32_t *ea_kv_page_tokens(const ea_kv *kv, int32_t page)
{
    return kv->tokens + (size_t)page * (size_t)kv->params.page_tokens;
}

static inline int32_t ea_kv_page_entry(const ea_kv *kv, int32_t page, int slot)
{
    return page * kv->params.page_tokens + slot;
}

#endif
