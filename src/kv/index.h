/* index.h: the hash index from prefix keys to the KV positions that hold them. An entry is one
 * position of one page (entry = page * page_tokens + slot), so all memory is taken at creation.
 * Several entries may hold one key (pages that begin alike); only one of them, the representative,
 * is in the bucket's chain, the others hang on it: a key that a thousand chats share costs no
 * longer chain. Insert, find and remove are O(1). Owned by the engine thread. */
#ifndef EA_KV_INDEX_H
#define EA_KV_INDEX_H

#include "base/error.h"
#include "kv/key.h"

typedef struct ea_kv_index {
    int n_entries;
    uint32_t mask;                /* buckets - 1 */
    int32_t *head;                /* [mask + 1] representative, -1 = empty */
    ea_key128 *key;               /* [n_entries] */
    int32_t *next, *prev;         /* bucket chain of representatives; prev of the first = -1 */
    int32_t *dup_next, *dup_prev; /* entries of one key; dup_prev of the representative = -1 */
} ea_kv_index;

ea_status ea_kv_index_init(ea_kv_index *ix, int n_entries, ea_error *err) EA_MUST_CHECK;
void ea_kv_index_done(ea_kv_index *ix);

/* entry must not be in the index. */
void ea_kv_index_insert(ea_kv_index *ix, int32_t entry, ea_key128 key);
void ea_kv_index_remove(ea_kv_index *ix, int32_t entry);

/* An entry with that key, or -1. The others follow by dup_next. */
int32_t ea_kv_index_find(const ea_kv_index *ix, ea_key128 key);

/* Is there another entry with the key of `entry`? */
static inline bool ea_kv_index_has_twin(const ea_kv_index *ix, int32_t entry)
{
    return ix->dup_next[entry] >= 0 || ix->dup_prev[entry] >= 0;
}

#endif
