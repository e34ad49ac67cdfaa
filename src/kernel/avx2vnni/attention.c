/* attention.c: attention over quantised KV pages for AVX2 with AVX-VNNI; see attention_vec.h and
 * avx2/attention.c. */
#include "kernel/avx2vnni/slots.h"
#include "kernel/avx2/vec16.h"

VEC_INLINE v16i v16i_dot4(v16i acc, v16i u, v16i s)
{
    return (v16i){_mm256_dpbusd_avx_epi32(acc.lo, u.lo, s.lo),
                  _mm256_dpbusd_avx_epi32(acc.hi, u.hi, s.hi)};
}

#define EA_ATTN_NAME(slot) ea_##slot##__avx2vnni
#define EA_ATTN_F16 0
#define EA_ATTN_VNNI 1
#define EA_ATTN_BLOCK 6
#define EA_ATTN_SINGLE 0 /* values also take one vector alone */
enum {
    BLOCK_QUERIES = EA_ATTN_BLOCK,
    WIDE = 2, /* vectors at once for few queries: more chains, longer runs through memory */
    WIDE_QUERIES = 2,
    NARROW = 1,
};
#include "kernel/attention_vec.h"
