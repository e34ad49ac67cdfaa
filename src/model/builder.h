/* builder.h: what architecture files share: reading keys with the architecture's prefix, binding
 * tensors with their expected shapes, and growing a plan. Private to model/.
 *
 * Errors of the adding calls stick in the builder (the first one is kept), so that an architecture
 * reads as a straight list of operators; ea_builder_finish reports it. */
#ifndef EA_MODEL_BUILDER_H
#define EA_MODEL_BUILDER_H

#include "model/model.h"

typedef struct ea_builder {
    const ea_gguf *g;
    ea_model_def *def;
    ea_status status; /* of the first failure */
    ea_error *err;
    size_t cap_tensors, cap_buffers, cap_ops;
} ea_builder;

/* One architecture family. */
typedef struct ea_arch {
    const char *name; /* general.architecture */
    ea_status (*build)(ea_builder *b);
} ea_arch;

extern const ea_arch ea_arch_llama, ea_arch_qwen2;

/* Fail with "<file>: <text>". Returns the status, which is also kept. */
ea_status ea_builder_fail(ea_builder *b, ea_status code, const char *fmt, ...) EA_PRINTF(3, 4);

/* Keys "<arch>.<name>". The _or forms take a fallback where the key is absent. */
ea_status ea_builder_int(ea_builder *b, const char *name, int min, int max, int *out);
ea_status ea_builder_int_or(ea_builder *b, const char *name, int min, int max, int fallback,
                            int *out);
ea_status ea_builder_float_or(ea_builder *b, const char *name, double fallback, double *out);

/* Hyper-parameters that all decoder-only families share, into def->hp. */
ea_status ea_builder_read_hparams(ea_builder *b);

/* Bind a tensor; returns its index in the plan, -1 on failure. n = 1 and role VECTOR: one
 * dimension. The name is formatted ("blk.%d.attn_q.weight"). */
int ea_builder_tensor(ea_builder *b, ea_tensor_role role, int n, int k, const char *fmt, ...)
    EA_PRINTF(5, 6);
/* The same, but -1 without a failure where the file has no such tensor. */
int ea_builder_tensor_if(ea_builder *b, ea_tensor_role role, int n, int k, const char *fmt, ...)
    EA_PRINTF(5, 6);

int ea_builder_buffer(ea_builder *b, const char *name, int width, bool acts, bool wanted);
int ea_builder_group(ea_builder *b, const ea_kv_group *group); /* takes group->freq */
void ea_builder_op(ea_builder *b, ea_op op);

/* ---- dense decoder: llama and its close relatives ---- */

typedef struct ea_dense_variant {
    bool neox;     /* rotary pairs (i, i + n/2) */
    bool qkv_bias; /* biases of Q, K and V are required (else taken where present) */
} ea_dense_variant;

ea_status ea_build_dense(ea_builder *b, const ea_dense_variant *variant);

#endif
