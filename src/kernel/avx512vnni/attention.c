/* attention.c: attention over quantised KV pages for AVX-512 with VNNI; see attention_vec.h and
 * avx512/attention.c. */
#include "kernel/avx512vnni/slots.h"
#include "kernel/avx512/vec16.h"

#define v16i_dot4 _mm512_dpbusd_epi32

#define EA_ATTN_NAME(slot) ea_##slot##__avx512vnni
#define EA_ATTN_F16 0
#define EA_ATTN_VNNI 1
#define EA_ATTN_BLOCK 12
#define EA_ATTN_SINGLE 1 /* values also take one vector alone */
enum {
    BLOCK_QUERIES = EA_ATTN_BLOCK,
    WIDE = 4, /* vectors at once for few queries: more chains, longer runs through memory */
    WIDE_QUERIES = 6,
    NARROW = 2,
};
#include "kernel/attention_vec.h"
