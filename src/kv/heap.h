/* heap.h: the order of eviction: a binary min-heap of page numbers by last use, with the place of
 * each page known, so that taking one out of the middle is O(log n). Memory is taken at creation.
 * Owned by the engine thread. */
#ifndef EA_KV_HEAP_H
#define EA_KV_HEAP_H

#include "base/error.h"

typedef struct ea_kv_heap {
    int n;
    int32_t *page;      /* [n] heap order */
    int32_t *place;     /* [n_pages] index into page[], -1 = not in the heap */
    uint64_t *last_use; /* [n_pages] */
} ea_kv_heap;

ea_status ea_kv_heap_init(ea_kv_heap *heap, int n_pages, ea_error *err) EA_MUST_CHECK;
void ea_kv_heap_done(ea_kv_heap *heap);

/* Add a page that is not there, or give one that is there a new time. */
void ea_kv_heap_put(ea_kv_heap *heap, int32_t page, uint64_t last_use);
/* Take a page out; nothing happens if it is not there. */
void ea_kv_heap_remove(ea_kv_heap *heap, int32_t page);
/* The page that was used longest ago, or -1. It stays in the heap. */
int32_t ea_kv_heap_oldest(const ea_kv_heap *heap);

#endif
