/* arch_llama.c: the llama family (Llama 1-3.x, Mistral, SmolLM, TinyLlama, ...). GGUF files of this
 * family have the rows of attn_q and attn_k permuted so that rotary pairs are neighbours. */
#include "model/builder.h"

static ea_status build(ea_builder *b)
{
    static const ea_dense_variant variant = {.neox = false, .qkv_bias = false};
    return ea_build_dense(b, &variant);
}

const ea_arch ea_arch_llama = {"llama", build};
