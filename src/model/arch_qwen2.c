/* arch_qwen2.c: Qwen2 and Qwen2.5 (dense): llama with biases on Q, K and V, and rotary pairs that
 * lie half a head apart. */
#include "model/builder.h"

static ea_status build(ea_builder *b)
{
    static const ea_dense_variant variant = {.neox = true, .qkv_bias = true};
    return ea_build_dense(b, &variant);
}

const ea_arch ea_arch_qwen2 = {"qwen2", build};
