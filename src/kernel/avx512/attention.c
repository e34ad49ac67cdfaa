/* attention.c: paged attention for AVX-512; see attention_vec.h. With 32 registers 24 accumulators
 * fit beside the vectors that they share, and twelve queries keep both multipliers busy behind two
 * conversions. */
#include "kernel/avx512/slots.h"
#include "kernel/avx512/vec16.h"

#define EA_KV_NAME ea_kv_write__avx512
#define EA_ATTN_NAME(slot) ea_##slot##__avx512
#define EA_ATTN_F16 1
#define EA_ATTN_VNNI 0
#define EA_ATTN_BLOCK 12
#define EA_ATTN_SINGLE 1 /* values also take one vector alone */
enum {
    BLOCK_QUERIES = EA_ATTN_BLOCK,
    WIDE = 4, /* vectors at once for few queries: more chains, longer runs through memory */
    WIDE_QUERIES = 6,
    NARROW = 2,
};
#include "kernel/attention_vec.h"
#include "kernel/kv_vec.h"
