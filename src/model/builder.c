/* builder.c: see builder.h. */
#include "model/builder.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

ea_status ea_builder_fail(ea_builder *b, ea_status code, const char *fmt, ...)
{
    char text[EA_ERROR_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (b->status == EA_OK)
        b->status = code;
    return ea_fail(b->err, code, "%s: %s", ea_gguf_path(b->g), text);
}

/* Keep the status of a call that reported its error itself. */
static ea_status keep(ea_builder *b, ea_status status)
{
    if (b->status == EA_OK)
        b->status = status;
    return status;
}

typedef struct key_name {
    char text[128];
} key_name;

static key_name arch_key(const ea_builder *b, const char *name)
{
    key_name key;
    snprintf(key.text, sizeof key.text, "%s.%s", b->def->arch, name);
    return key;
}

ea_status ea_builder_int(ea_builder *b, const char *name, int min, int max, int *out)
{
    key_name key = arch_key(b, name);
    int64_t value;
    if (!ea_gguf_has(b->g, key.text))
        return ea_builder_fail(b, EA_EFORMAT, "key '%s' is missing", key.text);
    EA_TRY(keep(b, ea_gguf_get_int(b->g, key.text, min, max, &value, b->err)));
    *out = (int)value;
    return EA_OK;
}

ea_status ea_builder_int_or(ea_builder *b, const char *name, int min, int max, int fallback,
                            int *out)
{
    key_name key = arch_key(b, name);
    int64_t value;
    EA_TRY(keep(b, ea_gguf_get_int_or(b->g, key.text, min, max, fallback, &value, b->err)));
    *out = (int)value;
    return EA_OK;
}

ea_status ea_builder_float_or(ea_builder *b, const char *name, double fallback, double *out)
{
    key_name key = arch_key(b, name);
    return keep(b, ea_gguf_get_float_or(b->g, key.text, fallback, out, b->err));
}

/* A float key in an open interval. */
static ea_status float_between(ea_builder *b, const char *name, double above, double below,
                               double fallback, double *out)
{
    double value;
    EA_TRY(ea_builder_float_or(b, name, fallback, &value));
    if (!(value > above && value < below))
        return ea_builder_fail(b, EA_EFORMAT, "key '%s' is %g, expected above %g and below %g",
                               arch_key(b, name).text, value, above, below);
    *out = value;
    return EA_OK;
}

static ea_status read_heads(ea_builder *b, ea_hparams *hp)
{
    EA_TRY(ea_builder_int(b, "attention.head_count", 1, EA_MAX_HEADS, &hp->n_head));
    EA_TRY(ea_builder_int_or(b, "attention.head_count_kv", 1, EA_MAX_HEADS, hp->n_head,
                             &hp->n_head_kv));
    if (hp->n_head % hp->n_head_kv != 0)
        return ea_builder_fail(b, EA_EFORMAT,
                               "key '%s.attention.head_count' is %d, no multiple of "
                               "attention.head_count_kv %d",
                               b->def->arch, hp->n_head, hp->n_head_kv);
    /* key_length stands for heads that are wider or narrower than n_embd / n_head. */
    if (!ea_gguf_has(b->g, arch_key(b, "attention.key_length").text) &&
        hp->n_embd % hp->n_head != 0)
        return ea_builder_fail(b, EA_EFORMAT,
                               "key '%s.embedding_length' is %d, no multiple of "
                               "attention.head_count %d",
                               b->def->arch, hp->n_embd, hp->n_head);
    EA_TRY(ea_builder_int_or(b, "attention.key_length", 1, EA_MAX_HEAD_DIM, hp->n_embd / hp->n_head,
                             &hp->head_dim));
    if (hp->head_dim < 1 || hp->head_dim > EA_MAX_HEAD_DIM)
        return ea_builder_fail(b, EA_EFORMAT,
                               "embedding_length %d by %d heads: head size %d is "
                               "not in 1..%d",
                               hp->n_embd, hp->n_head, hp->head_dim, EA_MAX_HEAD_DIM);
    int v_dim;
    EA_TRY(
        ea_builder_int_or(b, "attention.value_length", 1, EA_MAX_HEAD_DIM, hp->head_dim, &v_dim));
    if (v_dim != hp->head_dim)
        return ea_builder_fail(b, EA_EUNSUPPORTED,
                               "key '%s.attention.value_length' is %d and the key "
                               "length %d: different ones are not supported",
                               b->def->arch, v_dim, hp->head_dim);
    return EA_OK;
}

static bool str_is(ea_str s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.s, text, s.n) == 0;
}

static ea_status read_rope(ea_builder *b, ea_hparams *hp)
{
    EA_TRY(ea_builder_int_or(b, "rope.dimension_count", 2, hp->head_dim, hp->head_dim, &hp->n_rot));
    if (hp->n_rot % 2 != 0)
        return ea_builder_fail(b, EA_EFORMAT,
                               "key '%s.rope.dimension_count' is %d, expected an even "
                               "number",
                               b->def->arch, hp->n_rot);
    EA_TRY(float_between(b, "rope.freq_base", 0, 1e12, 10000, &hp->rope_base));
    /* Files older than the rope.scaling keys say scale_linear. */
    EA_TRY(float_between(b, "rope.scale_linear", 0, 1e6, 1, &hp->rope_scale));
    key_name key = arch_key(b, "rope.scaling.type");
    if (!ea_gguf_has(b->g, key.text))
        return EA_OK;
    ea_str type;
    EA_TRY(keep(b, ea_gguf_get_str(b->g, key.text, &type, b->err)));
    if (str_is(type, "none"))
        return EA_OK;
    if (!str_is(type, "linear"))
        return ea_builder_fail(b, EA_EUNSUPPORTED,
                               "key '%s' is \"%.*s\": only none and linear are "
                               "supported",
                               key.text, (int)EA_MIN(type.n, (size_t)64), type.s);
    return float_between(b, "rope.scaling.factor", 0, 1e6, hp->rope_scale, &hp->rope_scale);
}

ea_status ea_builder_read_hparams(ea_builder *b)
{
    ea_hparams *hp = &b->def->hp;
    const ea_gguf_tensor *embd = ea_gguf_tensor_find(b->g, "token_embd.weight");
    if (!embd)
        return ea_builder_fail(b, EA_EFORMAT, "tensor token_embd.weight is missing");
    if (embd->n_dims > 2 || embd->ne[1] < 1 || embd->ne[1] > EA_MAX_VOCAB)
        return ea_builder_fail(b, EA_EFORMAT,
                               "tensor token_embd.weight: %d dimensions, %lld rows, "
                               "expected 2 and 1..%d",
                               embd->n_dims, (long long)embd->ne[1], EA_MAX_VOCAB);
    hp->n_vocab = (int)embd->ne[1];
    /* A context longer than the limit is cut, not refused: it is a promise about quality. */
    key_name ctx_key = arch_key(b, "context_length");
    int64_t n_ctx;
    if (!ea_gguf_has(b->g, ctx_key.text))
        return ea_builder_fail(b, EA_EFORMAT, "key '%s' is missing", ctx_key.text);
    EA_TRY(keep(b, ea_gguf_get_int(b->g, ctx_key.text, 1, UINT32_MAX, &n_ctx, b->err)));
    hp->n_ctx_train = (int)EA_MIN(n_ctx, (int64_t)EA_MAX_CTX);

    EA_TRY(ea_builder_int(b, "embedding_length", 1, EA_MAX_EMBD, &hp->n_embd));
    EA_TRY(ea_builder_int(b, "block_count", 1, EA_MAX_LAYERS, &hp->n_layer));
    EA_TRY(ea_builder_int(b, "feed_forward_length", 1, EA_MAX_EMBD * 8, &hp->n_ff));
    EA_TRY(read_heads(b, hp));
    EA_TRY(read_rope(b, hp));
    double eps;
    EA_TRY(float_between(b, "attention.layer_norm_rms_epsilon", 0, 1, 1e-5, &eps));
    hp->rms_eps = (float)eps;
    return EA_OK;
}

/* Does the tensor have exactly this shape? Leading dimensions of a vector must all be 1. */
static bool shape_fits(const ea_gguf_tensor *t, ea_tensor_role role, int n, int k)
{
    if (role == EA_ROLE_VECTOR)
        return t->n_dims == 1 && t->ne[0] == k;
    return t->n_dims == 2 && t->ne[0] == k && t->ne[1] == n;
}

static void shape_text(char *buf, size_t size, const int64_t *ne, int n_dims)
{
    size_t n = 0;
    buf[0] = '\0';
    for (int i = 0; i < n_dims && n < size; i++)
        n += (size_t)snprintf(buf + n, size - n, "%s%lld", i ? ", " : "", (long long)ne[i]);
}

static int add_tensor(ea_builder *b, ea_tensor_role role, int n, int k, const ea_gguf_tensor *t,
                      const char *name)
{
    ea_plan *plan = &b->def->plan;
    if (!shape_fits(t, role, n, k)) {
        char found[96], wanted[64];
        int64_t ne[2] = {k, n};
        shape_text(found, sizeof found, t->ne, t->n_dims);
        shape_text(wanted, sizeof wanted, ne, role == EA_ROLE_VECTOR ? 1 : 2);
        ea_builder_fail(b, EA_EFORMAT, "tensor %s: shape [%s], expected [%s]", name, found, wanted);
        return -1;
    }
    const ea_dtype_info *type = ea_dtype_find(t->type);
    if (!type || !type->is_weight || (role == EA_ROLE_VECTOR && type->block != 1)) {
        ea_builder_fail(b, EA_EFORMAT, "tensor %s: type %s is no %s format", name,
                        type ? type->name : "?", role == EA_ROLE_VECTOR ? "vector" : "weight");
        return -1;
    }
    if (keep(b, ea_grow((void **)&plan->tensors, &b->cap_tensors, (size_t)plan->n_tensors + 1,
                        sizeof *plan->tensors, b->err)) != EA_OK)
        return -1;
    plan->tensors[plan->n_tensors] = (ea_plan_tensor){.src = t, .role = role, .n = n, .k = k};
    return plan->n_tensors++;
}

static int find_and_add(ea_builder *b, ea_tensor_role role, int n, int k, bool required,
                        const char *fmt, va_list args)
{
    char name[EA_MAX_GGUF_NAME + 1];
    if (b->status != EA_OK)
        return -1;
    vsnprintf(name, sizeof name, fmt, args);
    const ea_gguf_tensor *t = ea_gguf_tensor_find(b->g, name);
    if (t)
        return add_tensor(b, role, n, k, t, name);
    if (required) {
        char wanted[64];
        int64_t ne[2] = {k, n};
        shape_text(wanted, sizeof wanted, ne, role == EA_ROLE_VECTOR ? 1 : 2);
        ea_builder_fail(b, EA_EFORMAT, "tensor %s is missing (expected shape [%s])", name, wanted);
    }
    return -1;
}

int ea_builder_tensor(ea_builder *b, ea_tensor_role role, int n, int k, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int index = find_and_add(b, role, n, k, true, fmt, args);
    va_end(args);
    return index;
}

int ea_builder_tensor_if(ea_builder *b, ea_tensor_role role, int n, int k, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int index = find_and_add(b, role, n, k, false, fmt, args);
    va_end(args);
    return index;
}

int ea_builder_buffer(ea_builder *b, const char *name, int width, bool acts, bool wanted)
{
    ea_plan *plan = &b->def->plan;
    if (b->status != EA_OK ||
        keep(b, ea_grow((void **)&plan->buffers, &b->cap_buffers, (size_t)plan->n_buffers + 1,
                        sizeof *plan->buffers, b->err)) != EA_OK)
        return -1;
    plan->buffers[plan->n_buffers] = (ea_plan_buffer){name, width, acts, wanted};
    return plan->n_buffers++;
}

int ea_builder_group(ea_builder *b, const ea_kv_group *group)
{
    ea_plan *plan = &b->def->plan;
    ea_kv_group *groups = NULL;
    if (b->status == EA_OK)
        groups = ea_realloc(plan->groups, (size_t)(plan->n_groups + 1) * sizeof *groups);
    if (!groups) {
        ea_free(group->freq);
        if (b->status == EA_OK)
            ea_builder_fail(b, EA_ENOMEM, "out of memory: KV groups");
        return -1;
    }
    plan->groups = groups;
    groups[plan->n_groups] = *group;
    return plan->n_groups++;
}

void ea_builder_op(ea_builder *b, ea_op op)
{
    ea_plan *plan = &b->def->plan;
    if (b->status != EA_OK ||
        keep(b, ea_grow((void **)&plan->ops, &b->cap_ops, (size_t)plan->n_ops + 1,
                        sizeof *plan->ops, b->err)) != EA_OK)
        return;
    plan->ops[plan->n_ops++] = op;
}
