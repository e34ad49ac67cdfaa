/* huge.h: huge pages where they are dear. A kernel clears a huge page in 0.1 to 0.3 ms; in a
 * virtual machine whose host takes free memory back it may have to be fetched from the host first,
 * which was seen to take 7 ms, while small pages came from memory that the guest had kept. Whoever
 * fills much memory can time its first touches, go on with small pages, and have them put together
 * later. */
#ifndef EA_BASE_HUGE_H
#define EA_BASE_HUGE_H

#include "base/error.h"

enum { EA_HUGE_BYTES = 2 << 20 };

/* Touch a byte of ours (it becomes 0); true if that took longer than any clearing of a huge page.
 */
bool ea_huge_touch_is_dear(uint8_t *at);

/* Pages of this range that are not there yet come as small ones. */
void ea_huge_refuse(void *ptr, size_t n_bytes);

/* Start a thread that puts the small pages of this range together, while others read and write it.
 * The range must stay until _end, which may come at any time. NULL where the system cannot (Linux
 * before 6.1) or has no thread: then the pages stay as they are. All of these take a NULL join. */
typedef struct ea_huge_join ea_huge_join;
ea_huge_join *ea_huge_join_begin(void *ptr, size_t n_bytes);
void ea_huge_join_end(ea_huge_join *join);
/* Somebody needs the processors and the memory now: for a while it works at a tenth of its speed.
 * Cheap enough for every step of an engine. */
void ea_huge_join_give_way(ea_huge_join *join);
/* Until it has seen all of the range. */
void ea_huge_join_wait(ea_huge_join *join);

#endif
