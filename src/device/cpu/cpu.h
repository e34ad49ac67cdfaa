/* cpu.h: the CPU device: packed weights, shared by all engines of a model, and the device that runs
 * a plan over them. */
#ifndef EA_DEVICE_CPU_CPU_H
#define EA_DEVICE_CPU_CPU_H

#include "device/device.h"
#include "device/plan.h"

/* All tensors of a plan in the form the kernels read. Immutable after create; any number of devices
 * and threads. Lifetime: model. */
typedef struct ea_cpu_weights ea_cpu_weights;

typedef struct ea_cpu_weights_params {
    int n_threads; /* for packing, >= 1 */
    /* 0..1 from the calling thread; false stops (EA_ECANCELLED). May be NULL. */
    bool (*progress)(void *user, double fraction);
    void *progress_user;
    /* Other work to be done meanwhile, once, on one of the threads. Its failure is that of create,
     * before any other. May be NULL. */
    ea_status (*aside)(void *user, ea_error *err);
    void *aside_user;
} ea_cpu_weights_params;

/* Pack the plan's tensors; afterwards nothing refers to the GGUF's data any more, and bytes that
 * the GGUF holds in pages of its own are released as it goes. The plan (and its GGUF) must outlive
 * the weights. EA_EIO where the file became shorter meanwhile. EA_ENOMEM, before anything is
 * allocated, where weights and the smallest KV are more than the memory that is available: the text
 * says what is needed. */
ea_status ea_cpu_weights_create(const ea_plan *plan, const ea_cpu_weights_params *params,
                                ea_cpu_weights **out, ea_error *err) EA_MUST_CHECK;
void ea_cpu_weights_destroy(ea_cpu_weights *w);
/* Wait until no thread of the weights' own is at work in the background: see ea_model_settle. */
void ea_cpu_weights_settle(const ea_cpu_weights *w);
/* Bytes of memory of all weights. */
size_t ea_cpu_weights_bytes(const ea_cpu_weights *w);

/* Bytes of one KV page (EA_PAGE_TOKENS positions of all layers of all groups) on this device. */
size_t ea_cpu_page_bytes(const ea_plan *plan, ea_kv_type type);

typedef struct ea_cpu_device_params {
    int n_threads;      /* workers, the engine thread included */
    int n_pages;        /* KV pages */
    int max_rows;       /* of a step */
    int max_logit_rows; /* rows of a step that may want ARGMAX or LOGITS */
    ea_kv_type kv_type; /* EA_EUNSUPPORTED where a head's width does not allow it */
    bool bind;          /* bind workers and the thread of the first step to cores: ea_pool_bind */
} ea_cpu_device_params;

/* Memory for max_rows and the pages is reserved here and touched on first use. */
ea_status ea_cpu_device_create(const ea_cpu_weights *weights, const ea_cpu_device_params *params,
                               ea_device **out, ea_error *err) EA_MUST_CHECK;

#endif
