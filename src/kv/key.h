/* key.h: prefix keys. The key of a position is an opaque 128-bit value that stands for the whole
 * timeline up to and including it: key(p) = XXH3_128(key(p - 1), token(p)), and key(-1) is the
 * root, which names everything else that the KV depends on (model, adapter, isolation). So two
 * timelines that agree in a key agree in every token before it, and timelines of different roots
 * never meet. Keys are compared, never ordered or taken apart. Pure functions. */
#ifndef EA_KV_KEY_H
#define EA_KV_KEY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ea_key128 {
    uint64_t lo, hi;
} ea_key128;

/* model: hash of the weights and numeric path; adapter: LoRA id, 0 = none; isolation: 0, or a value
 * whose timelines share nothing with others'. */
ea_key128 ea_key_root(uint64_t model, uint32_t adapter, uint64_t isolation);
ea_key128 ea_key_next(ea_key128 prev, int32_t token);

static inline bool ea_key_equal(ea_key128 a, ea_key128 b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

#endif
