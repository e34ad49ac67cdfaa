/* tree.c: the page pool and the prefix tree: references, eviction. See tree.h. */
#include "kv/tree.h"

#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

ea_status ea_kv_create(const ea_kv_params *params, ea_kv **out, ea_error *err)
{
    if (params->n_pages < 1 || params->page_tokens < 1 ||
        params->n_pages > (EA_MAX_CTX + params->page_tokens) / params->page_tokens)
        return ea_fail(err, EA_EINVAL, "KV: %d pages of %d positions (at most %d positions)",
                       params->n_pages, params->page_tokens, EA_MAX_CTX);
    size_t n = (size_t)params->n_pages, n_pos = n * (size_t)params->page_tokens;
    ea_status status = EA_ENOMEM;
    ea_kv *kv = ea_calloc(1, sizeof *kv);
    if (!kv)
        return ea_fail(err, EA_ENOMEM, "out of memory: KV tables");
    kv->params = *params;
    kv->nodes = ea_calloc(n, sizeof *kv->nodes);
    kv->tokens = ea_calloc(n_pos, sizeof *kv->tokens);
    kv->free = ea_calloc(n, sizeof *kv->free);
    if (!kv->nodes || !kv->tokens || !kv->free) {
        ea_fail(err, EA_ENOMEM, "out of memory: KV tables of %d pages", params->n_pages);
        goto fail;
    }
    EA_TRY_GOTO(ea_kv_index_init(&kv->index, (int)n_pos, err));
    EA_TRY_GOTO(ea_kv_heap_init(&kv->heap, params->n_pages, err));
    /* Low page numbers first: memory that was never touched stays untouched. */
    for (int i = 0; i < params->n_pages; i++)
        kv->free[i] = params->n_pages - 1 - i;
    kv->n_free = params->n_pages;
    *out = kv;
    return EA_OK;
fail:
    ea_kv_destroy(kv);
    return status;
}

void ea_kv_destroy(ea_kv *kv)
{
    if (!kv)
        return;
    ea_kv_index_done(&kv->index);
    ea_kv_heap_done(&kv->heap);
    ea_free(kv->nodes);
    ea_free(kv->tokens);
    ea_free(kv->free);
    ea_free(kv);
}

ea_kv_counts ea_kv_count(const ea_kv *kv)
{
    return (ea_kv_counts){.n_pages = kv->params.n_pages,
                          .n_free = kv->n_free,
                          .n_cached = kv->n_cached,
                          .n_evicted = kv->n_evicted,
                          .n_copied = kv->n_copied,
                          .n_merged = kv->n_merged};
}

void ea_kv_page_attach(ea_kv *kv, int32_t page, int32_t parent)
{
    kv->nodes[page].parent = parent;
    if (parent >= 0)
        kv->nodes[parent].n_children++;
}

void ea_kv_page_push(ea_kv *kv, int32_t page, int32_t token, ea_key128 key)
{
    ea_kv_node *node = &kv->nodes[page];
    ea_kv_page_tokens(kv, page)[node->n_filled] = token;
    ea_kv_index_insert(&kv->index, ea_kv_page_entry(kv, page, node->n_filled), key);
    node->n_filled++;
}

void ea_kv_page_cut(ea_kv *kv, int32_t page, int n_pos)
{
    ea_kv_node *node = &kv->nodes[page];
    EA_ASSERT(node->n_children == 0);
    while (node->n_filled > n_pos)
        ea_kv_index_remove(&kv->index, ea_kv_page_entry(kv, page, --node->n_filled));
}

/* Out of the tree and into the free list. Its parent may become a leaf. */
static void page_free(ea_kv *kv, int32_t page)
{
    ea_kv_node *node = &kv->nodes[page];
    ea_kv_heap_remove(&kv->heap, page);
    ea_kv_page_cut(kv, page, 0);
    if (node->parent >= 0) {
        ea_kv_node *parent = &kv->nodes[node->parent];
        if (--parent->n_children == 0 && parent->n_ref == 0)
            ea_kv_heap_put(&kv->heap, node->parent, parent->last_use);
    }
    *node = (ea_kv_node){.parent = -1};
    kv->free[kv->n_free++] = page;
}

int32_t ea_kv_page_alloc(ea_kv *kv)
{
    if (kv->n_free == 0) {
        int32_t oldest = ea_kv_heap_oldest(&kv->heap);
        if (oldest < 0)
            return -1;
        page_free(kv, oldest);
        kv->n_cached--;
        kv->n_evicted++;
    }
    int32_t page = kv->free[--kv->n_free];
    kv->nodes[page] = (ea_kv_node){.parent = -1, .n_ref = 1, .used = true};
    return page;
}

void ea_kv_page_ref(ea_kv *kv, int32_t page)
{
    if (kv->nodes[page].n_ref++ == 0) {
        kv->n_cached--;
        ea_kv_heap_remove(&kv->heap, page);
    }
}

void ea_kv_page_unref(ea_kv *kv, int32_t page)
{
    ea_kv_node *node = &kv->nodes[page];
    EA_ASSERT(node->used && node->n_ref > 0);
    node->last_use = ++kv->clock;
    if (--node->n_ref > 0)
        return;
    bool full = node->n_filled == kv->params.page_tokens;
    int32_t last = ea_kv_page_entry(kv, page, node->n_filled - 1);
    if (node->n_filled == 0 || (!full && ea_kv_index_has_twin(&kv->index, last))) {
        page_free(kv, page);
        return;
    }
    kv->n_cached++;
    if (node->n_children == 0)
        ea_kv_heap_put(&kv->heap, page, node->last_use);
}
