/* model.h: from a GGUF's metadata and tensors to hyper-parameters and a static operator plan. Every
 * number of the file is checked against base/limits.h and every tensor against the shape that the
 * hyper-parameters ask for; errors name file, field or tensor, and value. Immutable after load;
 * thread-safe. */
#ifndef EA_MODEL_MODEL_H
#define EA_MODEL_MODEL_H

#include "base/buf.h"
#include "device/plan.h"

/* As read from the file's <arch>.* keys. */
typedef struct ea_hparams {
    int n_vocab; /* rows of the token embedding */
    int n_ctx_train;
    int n_embd, n_layer, n_ff;
    int n_head, n_head_kv; /* n_head is a multiple of n_head_kv */
    int head_dim, n_rot;   /* n_rot: even, <= head_dim */
    float rms_eps;
    double rope_base;
    double rope_scale; /* positions are divided by it (linear scaling); 1 = none */
    bool tied;         /* no output.weight: the embedding is the output projection */
} ea_hparams;

typedef struct ea_model_def {
    const char *arch; /* static text */
    ea_hparams hp;
    ea_plan plan;
    uint64_t n_params; /* elements of all tensors of the file */
    uint64_t n_bytes;  /* and their bytes */
} ea_model_def;

/* g must stay open as long as the definition. EA_EUNSUPPORTED: an architecture or a variant that
 * this build does not know, by name. */
ea_status ea_model_def_load(const ea_gguf *g, ea_model_def **out, ea_error *err) EA_MUST_CHECK;
void ea_model_def_destroy(ea_model_def *def);

/* Append the type as llama.cpp prints it: "qwen2 1.5B Q4_K - Medium". Also for files that hold a
 * vocabulary only. */
void ea_model_describe(const ea_gguf *g, ea_buf *out);

#endif
