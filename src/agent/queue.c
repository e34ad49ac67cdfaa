/* queue.c: see queue.h. */
#include "agent/queue.h"

void ea_queue_insert(ea_queue *queue, ea_queue_item *item)
{
    ea_queue_item *before = queue->last; /* item goes behind it */
    if (queue->first && item->serial < queue->first->serial)
        before = NULL;
    while (before && before->serial > item->serial)
        before = before->prev;
    item->prev = before;
    item->next = before ? before->next : queue->first;
    *(item->prev ? &item->prev->next : &queue->first) = item;
    *(item->next ? &item->next->prev : &queue->last) = item;
    queue->n++;
}

void ea_queue_remove(ea_queue *queue, ea_queue_item *item)
{
    *(item->prev ? &item->prev->next : &queue->first) = item->next;
    *(item->next ? &item->next->prev : &queue->last) = item->prev;
    item->prev = item->next = NULL;
    queue->n--;
}
