/* forward_ref.h: a plain scalar forward pass in double precision, straight from a GGUF's
 * dequantised tensors: the oracle for whole models. Shares nothing with model/, device/ or kernel/
 * but the file reader and the block formats. Knows llama and qwen2. */
#ifndef EA_TESTS_GOLDEN_FORWARD_REF_H
#define EA_TESTS_GOLDEN_FORWARD_REF_H

#include <stdbool.h>
#include <stdint.h>

#include "gguf/gguf.h"

/* Logits of every position of one timeline: logits[i * n_vocab + t], i < n_tokens.
 * as_stored: also round what the engine stores rounded: K and V to f16, and the inputs of products
 * with quantised weights to int8 by blocks of 32 (kernel.h, "Numerics"). Without it the pass is the
 * model's own mathematics. Exits the process where the file is not what it expects. */
void forward_ref(const ea_gguf *g, const int32_t *tokens, int n_tokens, bool as_stored,
                 double *logits);

#endif
