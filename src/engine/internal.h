/* internal.h: the objects behind the public header's opaque types that more than one file of
 * engine/ needs. */
#ifndef EA_ENGINE_INTERNAL_H
#define EA_ENGINE_INTERNAL_H

#include "edgeagent.h"

#include "device/device.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "text/chat.h"
#include "text/vocab.h"

/* Immutable after load. Lifetime: model. */
struct ea_model {
    ea_gguf *gguf; /* keys and names stay in use, its tensors' data does not */
    ea_vocab *vocab;
    ea_chat_template *chat;       /* NULL only where the model's own template does not compile */
    char *chat_error;             /* then why, for whoever asks for a chat; else NULL */
    ea_chat_template *chat_tools; /* the file's second template for requests with tools, or NULL */
    ea_model_def *def;            /* hyper-parameters and operator plan; NULL when vocab_only */
    struct ea_cpu_weights *weights; /* packed; NULL when vocab_only */
    char *path, *arch, *name, *type;
    bool has_chat_template;
};

/* A device for one engine over the model's weights (n_pages KV pages of kv_type). In device_open.c,
 * so that tests of the engine can put a fake one in its place. */
ea_status ea_model_open_device(const struct ea_model *model, int n_threads, bool bind, int n_pages,
                               int max_rows, int max_logit_rows, ea_kv_type kv_type,
                               ea_device **out, ea_error *err) EA_MUST_CHECK;

/* An engine over any device; takes dev in every case, also on failure. `model` may be NULL in
 * tests: then text is empty and `is_eog` tells end tokens. */
ea_status ea_engine_create_on(const ea_model *model, ea_device *dev, const ea_engine_params *params,
                              ea_engine **out, ea_error *err) EA_MUST_CHECK;

#endif
