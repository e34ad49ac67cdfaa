/* device_open.c: which device an engine gets: the CPU one. The place where a choice between devices
 * will be made once, at load. */
#include "device/cpu/cpu.h"
#include "engine/internal.h"

ea_status ea_model_open_device(const struct ea_model *model, int n_threads, bool bind, int n_pages,
                               int max_rows, int max_logit_rows, ea_kv_type kv_type,
                               ea_device **out, ea_error *err)
{
    if (!model->weights)
        return ea_fail(err, EA_EINVAL, "%s: was loaded for its vocabulary only", model->path);
    ea_cpu_device_params params = {.n_threads = n_threads,
                                   .n_pages = n_pages,
                                   .max_rows = max_rows,
                                   .max_logit_rows = max_logit_rows,
                                   .kv_type = kv_type,
                                   .bind = bind};
    return ea_cpu_device_create(model->weights, &params, out, err);
}
