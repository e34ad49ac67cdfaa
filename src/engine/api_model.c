/* api_model.c: loading and describing models, the public side of model/, text/ and the weights of
 * device/. A model is immutable once a load function returned it; any thread. */
#include <string.h>

#include "base/buf.h"
#include "base/cpu.h"
#include "base/limits.h"
#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "engine/internal.h"
#include "kernel/kernel.h"
#include "model/synthetic.h"

void ea_model_params_default(ea_model_params *params)
{
    *params = (ea_model_params){.size = sizeof *params};
}

/* Parameters of a caller that may have been compiled against a smaller struct. */
static ea_status take_params(const ea_model_params *given, ea_model_params *out, ea_error *err)
{
    ea_model_params_default(out);
    if (given) {
        if (given->size < offsetof(ea_model_params, vocab_only) || given->size > 4096)
            return ea_fail(err, EA_EINVAL, "ea_model_params.size is %zu, expected %zu", given->size,
                           sizeof *given);
        memcpy(out, given, EA_MIN(given->size, sizeof *out));
    }
    if (out->n_threads == 0)
        out->n_threads = ea_cpu_default_threads();
    if (out->n_threads < 1 || out->n_threads > EA_MAX_THREADS)
        return ea_fail(err, EA_EINVAL, "n_threads: %d is not in 0..%d", out->n_threads,
                       EA_MAX_THREADS);
    return EA_OK;
}

/* ---- chat templates ---- */

/* A control token's spelling, terminated; "" where there is none or it is too long. */
static void token_spelling(const ea_vocab *v, int32_t token, char *buf, size_t size)
{
    size_t n = token < 0 ? 0 : ea_vocab_token_bytes(v, token, true, buf, size);
    buf[n < size ? n : 0] = '\0';
}

static ea_status compile_template(const ea_model *m, ea_str source, ea_chat_template **out,
                                  ea_error *err)
{
    char bos[256], eos[256];
    if (source.n > EA_MAX_TEMPLATE_BYTES)
        return ea_fail(err, EA_EFORMAT, "template of %zu bytes, at most %d are allowed", source.n,
                       EA_MAX_TEMPLATE_BYTES);
    token_spelling(m->vocab, ea_vocab_bos(m->vocab), bos, sizeof bos);
    token_spelling(m->vocab, ea_vocab_eos(m->vocab), eos, sizeof eos);
    return ea_chat_template_create(source.s, source.n, bos, eos, out, err);
}

/* A template that does not compile must not keep a model from completing plain text: chat stays
 * NULL and chat_error says why. */
static ea_status load_templates(ea_model *m, const ea_model_params *params, ea_error *err)
{
    ea_error why = {0};
    ea_str source = {NULL, 0};
    static const char tools_key[] = "tokenizer.chat_template.tool_use";
    if (ea_gguf_has(m->gguf, "tokenizer.chat_template")) {
        EA_TRY(ea_gguf_get_str(m->gguf, "tokenizer.chat_template", &source, err));
        m->has_chat_template = true;
    }
    ea_status status = compile_template(m, source, &m->chat, &why);
    if (status == EA_OK && ea_gguf_has(m->gguf, tools_key)) {
        EA_TRY(ea_gguf_get_str(m->gguf, tools_key, &source, err));
        status = compile_template(m, source, &m->chat_tools, &why);
    }
    if (status == EA_OK)
        return EA_OK;
    if (status == EA_ENOMEM)
        return ea_fail(err, status, "%s", why.text);
    ea_chat_template_destroy(m->chat);
    m->chat = NULL;
    ea_error_prefix(&why, "%s: tokenizer.chat_template", ea_gguf_path(m->gguf));
    m->chat_error = ea_strdup(why.text);
    if (!m->chat_error)
        return ea_fail(err, EA_ENOMEM, "out of memory: model");
    if (params->log)
        params->log(params->log_user, EA_LOG_DEBUG, m->chat_error);
    return EA_OK;
}

/* ---- loading ---- */

static char *copy_key(const ea_gguf *g, const char *key)
{
    ea_str value = {"", 0};
    if (ea_gguf_get_str(g, key, &value, NULL) != EA_OK)
        value = (ea_str){"", 0}; /* only a label: absent or of another type, it is left empty */
    return ea_strndup(value.s, value.n);
}

static ea_status load_labels(ea_model *m, ea_error *err)
{
    ea_buf type = EA_BUF_INIT;
    ea_model_describe(m->gguf, &type);
    m->path = ea_strdup(ea_gguf_path(m->gguf));
    m->arch = copy_key(m->gguf, "general.architecture");
    m->name = copy_key(m->gguf, "general.name");
    m->type = ea_buf_take(&type);
    if (!m->path || !m->arch || !m->name || !m->type)
        return ea_fail(err, EA_ENOMEM, "out of memory: model");
    return EA_OK;
}

/* Everything that is text. */
static ea_status load_text(ea_model *m, const ea_model_params *params, ea_error *err)
{
    EA_TRY(ea_vocab_load(m->gguf, m->def ? m->def->hp.n_vocab : -1, &m->vocab, err));
    EA_TRY(load_labels(m, err));
    return load_templates(m, params, err);
}

typedef struct text_job {
    ea_model *m;
    const ea_model_params *params;
} text_job;

static ea_status load_text_aside(void *user, ea_error *err)
{
    const text_job *job = user;
    return load_text(job->m, job->params, err);
}

/* Everything after the GGUF is open. Definition first: it is the cheapest to refuse. The text parts
 * (a vocabulary of 150,000 words takes 50 ms) are made on one thread while the others begin with
 * the weights. */
static ea_status load_parts(ea_model *m, const ea_model_params *params, ea_error *err)
{
    if (params->vocab_only)
        return load_text(m, params, err);
    EA_TRY(ea_model_def_load(m->gguf, &m->def, err));
    text_job job = {m, params};
    ea_cpu_weights_params pack = {.n_threads = params->n_threads,
                                  .progress = params->progress,
                                  .progress_user = params->progress_user,
                                  .aside = load_text_aside,
                                  .aside_user = &job};
    return ea_cpu_weights_create(&m->def->plan, &pack, &m->weights, err);
}

static ea_status new_model(ea_model **out, ea_error *err)
{
    *out = ea_calloc(1, sizeof **out);
    return *out ? EA_OK : ea_fail(err, EA_ENOMEM, "out of memory: model");
}

ea_status ea_model_load(const char *path, const ea_model_params *given, ea_model **out,
                        ea_error *err)
{
    ea_model_params params;
    ea_model *m;
    ea_status status;
    EA_TRY(take_params(given, &params, err));
    EA_TRY(new_model(&m, err));
    EA_TRY_GOTO(ea_gguf_open(path, &m->gguf, err));
    EA_TRY_GOTO(load_parts(m, &params, err));
    *out = m;
    return EA_OK;
fail:
    ea_model_destroy(m);
    return status;
}

ea_status ea_model_synthetic(const char *spec, uint64_t seed, const ea_model_params *given,
                             ea_model **out, ea_error *err)
{
    ea_model_params params;
    ea_model *m;
    ea_status status;
    void *bytes = NULL;
    size_t n_bytes = 0;
    EA_TRY(take_params(given, &params, err));
    EA_TRY(new_model(&m, err));
    EA_TRY_GOTO(ea_synthetic_model(spec, seed, params.n_threads, &bytes, &n_bytes, err));
    EA_TRY_GOTO(ea_gguf_open_take(spec, bytes, n_bytes, &m->gguf, err));
    bytes = NULL; /* the GGUF's; loading releases its tensors as they are packed */
    EA_TRY_GOTO(load_parts(m, &params, err));
    *out = m;
    return EA_OK;
fail:
    ea_pages_free(bytes, n_bytes);
    ea_model_destroy(m);
    return status;
}

const char *ea_model_synthetic_shapes(void)
{
    return ea_synthetic_shapes();
}

void ea_model_settle(const ea_model *m)
{
    if (m->weights)
        ea_cpu_weights_settle(m->weights);
}

void ea_model_destroy(ea_model *m)
{
    if (!m)
        return;
    ea_cpu_weights_destroy(m->weights);
    ea_model_def_destroy(m->def);
    ea_chat_template_destroy(m->chat);
    ea_chat_template_destroy(m->chat_tools);
    ea_vocab_destroy(m->vocab);
    ea_gguf_close(m->gguf);
    ea_free(m->path);
    ea_free(m->arch);
    ea_free(m->name);
    ea_free(m->type);
    ea_free(m->chat_error);
    ea_free(m);
}

void ea_model_info_get(const ea_model *m, ea_model_info *out)
{
    *out = (ea_model_info){.path = m->path,
                           .arch = m->arch,
                           .name = m->name,
                           .type = m->type,
                           .n_vocab = ea_vocab_size(m->vocab),
                           .has_chat_template = m->has_chat_template,
                           .bos = ea_vocab_bos(m->vocab),
                           .eos = ea_vocab_eos(m->vocab),
                           .eot = ea_vocab_eot(m->vocab),
                           .add_bos = ea_vocab_add_bos(m->vocab)};
    if (!m->def)
        return;
    const ea_hparams *hp = &m->def->hp;
    out->n_params = m->def->n_params;
    out->n_bytes = m->def->n_bytes;
    out->n_vocab = hp->n_vocab;
    out->n_embd = hp->n_embd;
    out->n_layer = hp->n_layer;
    out->n_head = hp->n_head;
    out->n_head_kv = hp->n_head_kv;
    out->n_ctx_train = hp->n_ctx_train;
}

/* ---- system ---- */

char *ea_system_report(void)
{
    ea_buf buf = EA_BUF_INIT;
    ea_buf_printf(&buf, "cpu: %s\nlevels:", ea_cpu_name());
    for (int level = EA_CPU_REF; level < EA_CPU_N_LEVELS; level++)
        if (ea_cpu_has((ea_cpu_level)level))
            ea_buf_printf(&buf, " %s", ea_cpu_level_name((ea_cpu_level)level));
    ea_buf_printf(&buf, "\nthreads: %d by default\n", ea_cpu_default_threads());
    ea_buf_printf(&buf, "memory: %.1f GiB, %.1f GiB available\n",
                  (double)ea_memory_total() / (1 << 30), (double)ea_memory_available() / (1 << 30));
    ea_buf_puts(&buf, "kernels:\n");
    ea_kernel_report(&buf);
    return ea_buf_take(&buf);
}
