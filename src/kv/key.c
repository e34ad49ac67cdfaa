/* key.c: see key.h. */
#include "kv/key.h"

#include <string.h>
#include <xxhash.h>

/* Any fixed value would do; a root differs from the key of a position by it. */
#define ROOT_SEED 0x45612d726f6f7431u

ea_key128 ea_key_root(uint64_t model, uint32_t adapter, uint64_t isolation)
{
    uint64_t in[3] = {model, adapter, isolation};
    XXH128_hash_t h = XXH3_128bits_withSeed(in, sizeof in, ROOT_SEED);
    return (ea_key128){h.low64, h.high64};
}

ea_key128 ea_key_next(ea_key128 prev, int32_t token)
{
    unsigned char in[20];
    memcpy(in, &prev.lo, 8);
    memcpy(in + 8, &prev.hi, 8);
    memcpy(in + 16, &token, 4);
    XXH128_hash_t h = XXH3_128bits(in, sizeof in);
    return (ea_key128){h.low64, h.high64};
}
