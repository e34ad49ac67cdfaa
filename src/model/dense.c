/* dense.c: the plan of a dense pre-norm decoder: x += O(attention(norm(x))), x += down(silu(gate) *
 * up) of norm(x), for each layer; then norm and vocabulary product of the rows that want it. */
#include "model/builder.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* Variants of the families that would compute something else: refused by name, never ignored. */
static ea_status refuse_variants(ea_builder *b)
{
    int n_expert;
    EA_TRY(ea_builder_int_or(b, "expert_count", 0, 1 << 16, 0, &n_expert));
    if (n_expert > 0)
        return ea_builder_fail(b, EA_EUNSUPPORTED,
                               "key '%s.expert_count' is %d: mixtures of experts are not supported",
                               b->def->arch, n_expert);
    return EA_OK;
}

/* Rotary frequencies in radians a position: base^(-2i/n_rot) / scale, each divided by its factor
 * where the file has rope_freqs.weight (Llama 3.1 and later). */
static double *rope_freqs(ea_builder *b)
{
    const ea_hparams *hp = &b->def->hp;
    int n = hp->n_rot / 2;
    double *freq = ea_malloc((size_t)n * sizeof *freq);
    if (!freq) {
        ea_builder_fail(b, EA_ENOMEM, "out of memory: %d rotary frequencies", n);
        return NULL;
    }
    const ea_gguf_tensor *factors = ea_gguf_tensor_find(b->g, "rope_freqs.weight");
    if (factors && (factors->type != EA_DTYPE_F32 || factors->n_dims != 1 || factors->ne[0] != n)) {
        ea_builder_fail(b, EA_EFORMAT,
                        "tensor rope_freqs.weight: %lld values of type id %d, expected %d of F32",
                        (long long)factors->ne[0], (int)factors->type, n);
        goto fail;
    }
    for (int i = 0; i < n; i++) {
        freq[i] = pow(hp->rope_base, -2.0 * i / hp->n_rot) / hp->rope_scale;
        if (!factors)
            continue;
        float factor;
        const uint8_t *at;
        uint8_t buf[sizeof factor];
        if (ea_gguf_tensor_read(b->g, factors, (size_t)i * sizeof factor, sizeof factor, buf, &at,
                                b->err) != EA_OK) {
            ea_builder_fail(b, EA_EIO, "tensor rope_freqs.weight: cannot be read");
            goto fail;
        }
        memcpy(&factor, at, sizeof factor);
        if (!isfinite(factor) || factor <= 0) {
            ea_builder_fail(b, EA_EFORMAT, "tensor rope_freqs.weight: value %d is %g, expected > 0",
                            i, (double)factor);
            goto fail;
        }
        freq[i] /= factor;
    }
    return freq;
fail:
    ea_free(freq);
    return NULL;
}

/* Buffers of the plan, by what they hold. */
typedef struct dense_buffers {
    int x, norm, q, k, v, attn, gate, up, ff, last;
} dense_buffers;

static dense_buffers add_buffers(ea_builder *b)
{
    const ea_hparams *hp = &b->def->hp;
    int n_q = hp->n_head * hp->head_dim, n_kv = hp->n_head_kv * hp->head_dim;
    return (dense_buffers){
        .x = ea_builder_buffer(b, "x", hp->n_embd, false, false),
        .norm = ea_builder_buffer(b, "norm", hp->n_embd, true, false),
        .q = ea_builder_buffer(b, "q", n_q, false, false),
        .k = ea_builder_buffer(b, "k", n_kv, false, false),
        .v = ea_builder_buffer(b, "v", n_kv, false, false),
        .attn = ea_builder_buffer(b, "attn", n_q, true, false),
        .gate = ea_builder_buffer(b, "gate", hp->n_ff, false, false),
        .up = ea_builder_buffer(b, "up", hp->n_ff, false, false),
        .ff = ea_builder_buffer(b, "ff", hp->n_ff, true, false),
        .last = ea_builder_buffer(b, "last", hp->n_embd, true, true),
    };
}

static void add_norm(ea_builder *b, int layer, int out, int in, int weight)
{
    ea_op op = {.kind = EA_OP_NORM, .layer = layer};
    op.u.norm.out = out;
    op.u.norm.in = in;
    op.u.norm.weight = weight;
    op.u.norm.eps = b->def->hp.rms_eps;
    ea_builder_op(b, op);
}

/* x += w * in: ends the stretch that began at the last meeting point. */
static void add_residual(ea_builder *b, int layer, int x, int in, int weight, int bias)
{
    ea_op op = {.kind = EA_OP_MATMUL, .layer = layer, .exchange = true};
    op.u.matmul.n = 1;
    op.u.matmul.in = in;
    op.u.matmul.out[0] = x;
    op.u.matmul.weight[0] = weight;
    op.u.matmul.bias[0] = bias;
    op.u.matmul.accumulate = true;
    ea_builder_op(b, op);
}

static void add_attention(ea_builder *b, const dense_buffers *buf, const ea_dense_variant *variant,
                          int group, int layer)
{
    const ea_hparams *hp = &b->def->hp;
    const char *names[] = {"q", "k", "v"};
    int outs[] = {buf->q, buf->k, buf->v};
    int n_q = hp->n_head * hp->head_dim, n_kv = hp->n_head_kv * hp->head_dim;
    add_norm(b, layer, buf->norm, buf->x,
             ea_builder_tensor(b, EA_ROLE_VECTOR, 1, hp->n_embd, "blk.%d.attn_norm.weight", layer));

    ea_op qkv = {.kind = EA_OP_MATMUL, .layer = layer};
    qkv.u.matmul.n = 3;
    qkv.u.matmul.in = buf->norm;
    for (int i = 0; i < 3; i++) {
        int n = i == 0 ? n_q : n_kv;
        qkv.u.matmul.out[i] = outs[i];
        qkv.u.matmul.weight[i] = ea_builder_tensor(b, EA_ROLE_MATRIX, n, hp->n_embd,
                                                   "blk.%d.attn_%s.weight", layer, names[i]);
        qkv.u.matmul.bias[i] =
            variant->qkv_bias
                ? ea_builder_tensor(b, EA_ROLE_VECTOR, 1, n, "blk.%d.attn_%s.bias", layer, names[i])
                : ea_builder_tensor_if(b, EA_ROLE_VECTOR, 1, n, "blk.%d.attn_%s.bias", layer,
                                       names[i]);
    }
    ea_builder_op(b, qkv);

    ea_op rope = {.kind = EA_OP_ROPE_KV, .layer = layer};
    rope.u.rope_kv.q = buf->q;
    rope.u.rope_kv.k = buf->k;
    rope.u.rope_kv.v = buf->v;
    rope.u.rope_kv.group = group;
    rope.u.rope_kv.slot = layer;
    ea_builder_op(b, rope);

    ea_op attn = {.kind = EA_OP_ATTENTION, .layer = layer, .exchange = true};
    attn.u.attention.out = buf->attn;
    attn.u.attention.q = buf->q;
    attn.u.attention.group = group;
    attn.u.attention.slot = layer;
    ea_builder_op(b, attn);

    add_residual(
        b, layer, buf->x, buf->attn,
        ea_builder_tensor(b, EA_ROLE_MATRIX, hp->n_embd, n_q, "blk.%d.attn_output.weight", layer),
        ea_builder_tensor_if(b, EA_ROLE_VECTOR, 1, hp->n_embd, "blk.%d.attn_output.bias", layer));
}

static void add_ffn(ea_builder *b, const dense_buffers *buf, int layer)
{
    const ea_hparams *hp = &b->def->hp;
    add_norm(b, layer, buf->norm, buf->x,
             ea_builder_tensor(b, EA_ROLE_VECTOR, 1, hp->n_embd, "blk.%d.ffn_norm.weight", layer));

    ea_op gate_up = {.kind = EA_OP_MATMUL, .layer = layer};
    gate_up.u.matmul.n = 2;
    gate_up.u.matmul.in = buf->norm;
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "gate" : "up";
        gate_up.u.matmul.out[i] = i == 0 ? buf->gate : buf->up;
        gate_up.u.matmul.weight[i] = ea_builder_tensor(b, EA_ROLE_MATRIX, hp->n_ff, hp->n_embd,
                                                       "blk.%d.ffn_%s.weight", layer, name);
        gate_up.u.matmul.bias[i] =
            ea_builder_tensor_if(b, EA_ROLE_VECTOR, 1, hp->n_ff, "blk.%d.ffn_%s.bias", layer, name);
    }
    ea_builder_op(b, gate_up);

    ea_op act = {.kind = EA_OP_SILU_MUL, .layer = layer, .exchange = true};
    act.u.silu_mul.out = buf->ff;
    act.u.silu_mul.gate = buf->gate;
    act.u.silu_mul.up = buf->up;
    ea_builder_op(b, act);

    add_residual(
        b, layer, buf->x, buf->ff,
        ea_builder_tensor(b, EA_ROLE_MATRIX, hp->n_embd, hp->n_ff, "blk.%d.ffn_down.weight", layer),
        ea_builder_tensor_if(b, EA_ROLE_VECTOR, 1, hp->n_embd, "blk.%d.ffn_down.bias", layer));
}

static void add_head(ea_builder *b, const dense_buffers *buf)
{
    ea_hparams *hp = &b->def->hp;
    add_norm(b, -1, buf->last, buf->x,
             ea_builder_tensor(b, EA_ROLE_VECTOR, 1, hp->n_embd, "output_norm.weight"));
    ea_op logits = {.kind = EA_OP_LOGITS, .layer = -1};
    logits.u.logits.in = buf->last;
    logits.u.logits.weight =
        ea_builder_tensor_if(b, EA_ROLE_MATRIX, hp->n_vocab, hp->n_embd, "output.weight");
    hp->tied = logits.u.logits.weight < 0;
    if (hp->tied && b->status == EA_OK)
        logits.u.logits.weight =
            ea_builder_tensor(b, EA_ROLE_MATRIX, hp->n_vocab, hp->n_embd, "token_embd.weight");
    ea_builder_op(b, logits);
}

ea_status ea_build_dense(ea_builder *b, const ea_dense_variant *variant)
{
    EA_TRY(refuse_variants(b));
    EA_TRY(ea_builder_read_hparams(b));
    const ea_hparams *hp = &b->def->hp;
    ea_kv_group full = {.n_layers = hp->n_layer,
                        .n_head = hp->n_head,
                        .n_head_kv = hp->n_head_kv,
                        .head_dim = hp->head_dim,
                        .scale = 1.0f / sqrtf((float)hp->head_dim),
                        .n_rot = hp->n_rot,
                        .neox = variant->neox,
                        .freq = rope_freqs(b)};
    EA_TRY(b->status);
    int group = ea_builder_group(b, &full);
    dense_buffers buf = add_buffers(b);

    ea_op embed = {.kind = EA_OP_EMBED, .layer = -1};
    embed.u.embed.out = buf.x;
    embed.u.embed.rows =
        ea_builder_tensor(b, EA_ROLE_ROWS, hp->n_vocab, hp->n_embd, "token_embd.weight");
    ea_builder_op(b, embed);
    for (int layer = 0; layer < hp->n_layer && b->status == EA_OK; layer++) {
        add_attention(b, &buf, variant, group, layer);
        add_ffn(b, &buf, layer);
    }
    add_head(b, &buf);
    return b->status;
}
