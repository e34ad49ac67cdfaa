/* attention.c: paged attention for AVX2; see attention_vec.h. A vector of sixteen takes two of the
 * 16 registers, so 12 accumulators are six queries, or two queries with two vectors. */
#include "kernel/avx2/slots.h"
#include "kernel/avx2/vec16.h"

#define EA_KV_NAME ea_kv_write__avx2
#define EA_ATTN_NAME(slot) ea_##slot##__avx2
#define EA_ATTN_F16 1
#define EA_ATTN_VNNI 0
#define EA_ATTN_BLOCK 6
#define EA_ATTN_SINGLE 0 /* values also take one vector alone */
enum {
    BLOCK_QUERIES = EA_ATTN_BLOCK,
    WIDE = 2, /* vectors at once for few queries: more chains, longer runs through memory */
    WIDE_QUERIES = 2,
    NARROW = 1,
};
#include "kernel/attention_vec.h"
#include "kernel/kv_vec.h"
