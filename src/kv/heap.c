/* heap.c: see heap.h. */
#include "kv/heap.h"

#include <string.h>

#include "base/mem.h"

ea_status ea_kv_heap_init(ea_kv_heap *heap, int n_pages, ea_error *err)
{
    size_t n = (size_t)n_pages;
    memset(heap, 0, sizeof *heap);
    heap->page = ea_calloc(n, sizeof *heap->page);
    heap->place = ea_malloc(n * sizeof *heap->place);
    heap->last_use = ea_calloc(n, sizeof *heap->last_use);
    if (!heap->page || !heap->place || !heap->last_use) {
        ea_kv_heap_done(heap);
        return ea_fail(err, EA_ENOMEM, "out of memory: eviction order of %d pages", n_pages);
    }
    memset(heap->place, 0xff, n * sizeof *heap->place);
    return EA_OK;
}

void ea_kv_heap_done(ea_kv_heap *heap)
{
    ea_free(heap->page);
    ea_free(heap->place);
    ea_free(heap->last_use);
    memset(heap, 0, sizeof *heap);
}

static void set_place(ea_kv_heap *heap, int i, int32_t page)
{
    heap->page[i] = page;
    heap->place[page] = i;
}

static void sift_up(ea_kv_heap *heap, int i, int32_t page)
{
    uint64_t t = heap->last_use[page];
    while (i > 0 && heap->last_use[heap->page[(i - 1) / 2]] > t) {
        set_place(heap, i, heap->page[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    set_place(heap, i, page);
}

static void sift_down(ea_kv_heap *heap, int i, int32_t page)
{
    uint64_t t = heap->last_use[page];
    for (int child; (child = 2 * i + 1) < heap->n; i = child) {
        if (child + 1 < heap->n &&
            heap->last_use[heap->page[child + 1]] < heap->last_use[heap->page[child]])
            child++;
        if (heap->last_use[heap->page[child]] >= t)
            break;
        set_place(heap, i, heap->page[child]);
    }
    set_place(heap, i, page);
}

void ea_kv_heap_put(ea_kv_heap *heap, int32_t page, uint64_t last_use)
{
    ea_kv_heap_remove(heap, page);
    heap->last_use[page] = last_use;
    sift_up(heap, heap->n++, page);
}

void ea_kv_heap_remove(ea_kv_heap *heap, int32_t page)
{
    int i = heap->place[page];
    if (i < 0)
        return;
    heap->place[page] = -1;
    int32_t last = heap->page[--heap->n];
    if (last == page)
        return;
    /* The last one fills the hole and then moves whichever way it has to. */
    if (i > 0 && heap->last_use[heap->page[(i - 1) / 2]] > heap->last_use[last])
        sift_up(heap, i, last);
    else
        sift_down(heap, i, last);
}

int32_t ea_kv_heap_oldest(const ea_kv_heap *heap)
{
    return heap->n ? heap->page[0] : -1;
}
