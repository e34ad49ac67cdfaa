/* queue.h: the admission queue: first come, first served, by the serial number that a request got
 * when it was submitted. A request that was put back (preempted) keeps its number and so its place
 * before all later ones. Nobody is overtaken: a request that does not fit yet holds the queue until
 * it does, or a stream of small requests could keep a large one out for ever.
 *
 * Intrusive; nothing allocates. Owned by the engine thread. */
#ifndef EA_AGENT_QUEUE_H
#define EA_AGENT_QUEUE_H

#include "base/error.h"

typedef struct ea_queue_item {
    struct ea_queue_item *prev, *next;
    uint64_t serial;
} ea_queue_item;

typedef struct ea_queue {
    ea_queue_item *first, *last;
    int n;
} ea_queue;

/* Put the item where its serial number belongs. O(1) for newcomers and for what is put back at the
 * front. */
void ea_queue_insert(ea_queue *queue, ea_queue_item *item);
void ea_queue_remove(ea_queue *queue, ea_queue_item *item); /* O(1) */

#endif
