/* synthetic.h: models of random weights with real shapes, as GGUF bytes: for benchmarks (no
 * download, any format) and, tiny, for tests. The same shape and seed give the same bytes whatever
 * the thread count.
 *
 * Weights. Blocks of quantised formats are random bytes whose scales are set so that every matrix
 * has zero mean and a root mean square of 1/sqrt(k) (k = its inputs; matrices that write to the
 * residual stream: a further 1/sqrt(2 layers)), so activations and logits stay of order one through
 * all layers. Norm weights are 1 +- 0.1, biases (qwen2) +- 0.3, both F32.
 *
 * Format. All matrices, embedding and output included, have the type asked for where their k is a
 * multiple of its block; where k is no multiple of 256, the super-block formats are replaced as
 * llama.cpp replaces them: Q2_K and Q3_K by IQ4_NL, Q4_K by Q5_0, Q5_K by Q5_1, Q6_K by Q8_0;
 * where k is no multiple of 32 either, by F16.
 *
 * Vocabulary. SPM: <unk>, <s>, </s>, the 256 byte tokens, then words over the alphabet of space and
 * a-z in order of length; any text can be tokenized and comes back unchanged. */
#ifndef EA_MODEL_SYNTHETIC_H
#define EA_MODEL_SYNTHETIC_H

#include "base/error.h"
#include "gguf/gguf.h"

enum { EA_SYNTHETIC_MIN_VOCAB = 3 + 256 };

typedef struct ea_synthetic_shape {
    const char *arch; /* "llama" or "qwen2" */
    int layers, embd, ff, heads, kv_heads, vocab, ctx;
    float rope_base, norm_eps;
    bool tied;     /* no output matrix: the embedding serves */
    ea_dtype type; /* of all matrices */
} ea_synthetic_shape;

/* "<shape>:<type>" -> shape. EA_EINVAL names what is wrong and lists the known names. */
ea_status ea_synthetic_parse(const char *spec, ea_synthetic_shape *out,
                             ea_error *err) EA_MUST_CHECK;

/* A GGUF writer that has all keys and tensors of the model; more keys may be put before writing.
 * Owns the writer. */
typedef struct ea_synthetic ea_synthetic;
ea_status ea_synthetic_create(const ea_synthetic_shape *shape, uint64_t seed, ea_synthetic **out,
                              ea_error *err) EA_MUST_CHECK;
ea_gguf_writer *ea_synthetic_writer(ea_synthetic *s);
uint64_t ea_synthetic_bytes(const ea_synthetic *s); /* of all tensors */
void ea_synthetic_destroy(ea_synthetic *s);         /* NULL is fine */

/* All of the above: the model of a spec as GGUF bytes (ea_pages_free with *n_bytes). spec is
 * "<shape>:<type>": shape one of ea_synthetic_shapes or
 * "layers=..,embd=..,ff=..,heads=..,kv=..,vocab=..[,ctx=..][,arch=llama|qwen2][,tied=0|1]" (ctx
 * 4096, llama and tied where not given), type a weight format of quant.h. EA_ENOMEM where the
 * machine has less memory available than the model needs. */
ea_status ea_synthetic_model(const char *spec, uint64_t seed, int n_threads, void **out,
                             size_t *n_bytes, ea_error *err) EA_MUST_CHECK;

/* The names, separated by ", "; static storage. */
const char *ea_synthetic_shapes(void);

#endif
