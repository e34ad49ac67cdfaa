/* create.c: an engine for a real model: how much KV, then the device. */
#include "engine/internal.h"

#include "base/cpu.h"
#include "base/limits.h"
#include "base/mem.h"
#include "engine/hooks.h"

/* A default -c takes no more than this share of the memory that is available after loading: the
 * rest is for activations, prompts and the file cache. */
enum { DEFAULT_CTX_MAX = 32768, KV_SHARE = 2 };

/* Rows of a step that may want logits beyond one an agent: what prompt_logprobs goes through. */
enum { EXTRA_LOGIT_ROWS = 32 };

static size_t token_bytes(const void *ctx, int32_t token, char *buf, size_t size)
{
    return ea_token_bytes(ctx, token, false, buf, size);
}

static bool is_eog(const void *ctx, int32_t token)
{
    return ea_token_is_eog(ctx, token);
}

ea_status ea_engine_create_on(const ea_model *model, ea_device *dev, const ea_engine_params *params,
                              ea_engine **out, ea_error *err)
{
    ea_engine_vocab vocab = {0};
    ea_model_info info = {0};
    if (model) {
        vocab = (ea_engine_vocab){model, token_bytes, is_eog};
        ea_model_info_get(model, &info);
    }
    return ea_engine_create_hooked(&vocab, info.n_ctx_train, dev, params, NULL, out, err);
}

/* Size of a page, asked of a device that is as small as can be. */
static ea_status page_size(const ea_model *model, ea_kv_type kv_type, ea_device_info *out,
                           ea_error *err)
{
    ea_device *dev = NULL;
    EA_TRY(ea_model_open_device(model, 1, false, 1, 1, 1, kv_type, &dev, err));
    *out = dev->info;
    ea_device_destroy(dev);
    return EA_OK;
}

/* Pages for the KV tokens asked for, or for as many as make sense. */
static ea_status choose_pages(const ea_model *model, const ea_engine_params *p, int n_parallel,
                              int *n_pages, ea_error *err)
{
    ea_device_info page;
    ea_model_info info;
    EA_TRY(page_size(model, p->kv_type, &page, err));
    ea_model_info_get(model, &info);
    uint64_t available = ea_memory_available();
    int64_t n_ctx = p->n_ctx;
    if (n_ctx == 0) {
        int one =
            EA_MIN(info.n_ctx_train > 0 ? info.n_ctx_train : DEFAULT_CTX_MAX, DEFAULT_CTX_MAX);
        n_ctx = EA_MIN((int64_t)one * n_parallel, EA_MAX_CTX);
        int64_t most = available
                           ? (int64_t)(available / KV_SHARE / page.page_bytes) * page.page_tokens
                           : n_ctx;
        n_ctx = EA_MAX(EA_MIN(n_ctx, most), 4 * (int64_t)page.page_tokens);
    }
    int64_t n = (n_ctx + page.page_tokens - 1) / page.page_tokens;
    uint64_t n_bytes = (uint64_t)n * page.page_bytes;
    if (available && n_bytes > available)
        return ea_fail(
            err, EA_ENOMEM, "n_ctx: %lld tokens of KV take %.1f GiB, %.1f GiB are available",
            (long long)n_ctx, (double)n_bytes / (1 << 30), (double)available / (1 << 30));
    *n_pages = (int)n;
    return EA_OK;
}

ea_status ea_engine_create(const ea_model *model, const ea_engine_params *p, ea_engine **out,
                           ea_error *err)
{
    if (p->size != sizeof *p)
        return ea_fail(err, EA_EINVAL, "engine: size %zu, expected %zu (another version?)", p->size,
                       sizeof *p);
    if (p->n_ctx < 0 || p->n_ctx > EA_MAX_CTX)
        return ea_fail(err, EA_EINVAL, "n_ctx: %d is not in 0..%d", p->n_ctx, EA_MAX_CTX);
    if (p->n_parallel < 0 || p->n_parallel > EA_MAX_PARALLEL)
        return ea_fail(err, EA_EINVAL, "n_parallel: %d is not in 0..%d", p->n_parallel,
                       EA_MAX_PARALLEL);
    if (p->n_batch < 0 || p->n_batch > EA_MAX_BATCH)
        return ea_fail(err, EA_EINVAL, "n_batch: %d is not in 0..%d", p->n_batch, EA_MAX_BATCH);
    if (p->n_threads < 0 || p->n_threads > EA_MAX_THREADS)
        return ea_fail(err, EA_EINVAL, "n_threads: %d is not in 0..%d", p->n_threads,
                       EA_MAX_THREADS);
    int n_parallel = p->n_parallel ? p->n_parallel : 4, n_batch = p->n_batch ? p->n_batch : 512;
    int n_threads = p->n_threads ? p->n_threads : ea_cpu_default_threads(), n_pages = 0;
    EA_TRY(choose_pages(model, p, n_parallel, &n_pages, err));
    if (p->n_ctx_agent > 0 && p->n_ctx && p->n_ctx_agent > p->n_ctx)
        return ea_fail(
            err, EA_EINVAL,
            "n_ctx_agent: a timeline of %d tokens does not fit into %d KV tokens (n_ctx)",
            p->n_ctx_agent, p->n_ctx);
    ea_device *dev = NULL;
    EA_TRY(ea_model_open_device(model, n_threads, !p->no_bind, n_pages, EA_MAX(n_batch, n_parallel),
                                n_parallel + EXTRA_LOGIT_ROWS, p->kv_type, &dev, err));
    return ea_engine_create_on(model, dev, p, out, err);
}
