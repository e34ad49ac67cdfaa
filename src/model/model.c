/* model.c: the list of architectures, loading of a definition, description of a file. */
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "model/builder.h"

static const ea_arch *const archs[] = {&ea_arch_llama, &ea_arch_qwen2};

static const ea_arch *find_arch(ea_str name)
{
    for (size_t i = 0; i < EA_ARRAY_LEN(archs); i++)
        if (strlen(archs[i]->name) == name.n && memcmp(archs[i]->name, name.s, name.n) == 0)
            return archs[i];
    return NULL;
}

static ea_status read_arch(const ea_gguf *g, const ea_arch **out, ea_error *err)
{
    const char *path = ea_gguf_path(g);
    ea_str name;
    if (!ea_gguf_has(g, "general.architecture"))
        return ea_fail(err, EA_EFORMAT, "%s: key 'general.architecture' is missing", path);
    EA_TRY(ea_gguf_get_str(g, "general.architecture", &name, err));
    *out = find_arch(name);
    if (*out)
        return EA_OK;
    char known[128] = "";
    size_t n = 0;
    for (size_t i = 0; i < EA_ARRAY_LEN(archs) && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", archs[i]->name);
    return ea_fail(
        err, EA_EUNSUPPORTED,
        "%s: key 'general.architecture' is \"%.*s\", which this build does not know (known: "
        "%s)",
        path, (int)EA_MIN(name.n, (size_t)64), name.s, known);
}

/* A layer past block_count would be left out silently; and a vocabulary with more tokens than the
 * embedding has rows would index past it. */
static ea_status check_whole(ea_builder *b)
{
    ea_model_def *def = b->def;
    for (size_t i = 0; i < ea_gguf_n_tensors(b->g); i++) {
        const ea_gguf_tensor *t = ea_gguf_tensor_at(b->g, i);
        char name[EA_MAX_GGUF_NAME + 1];
        snprintf(name, sizeof name, "%.*s", (int)EA_MIN(t->name.n, sizeof name - 1), t->name.s);
        if (strncmp(name, "blk.", 4) == 0 && strtol(name + 4, NULL, 10) >= def->hp.n_layer)
            return ea_builder_fail(b, EA_EFORMAT, "tensor %s: %s.block_count is %d", name,
                                   def->arch, def->hp.n_layer);
        uint64_t n = 1;
        for (int d = 0; d < t->n_dims; d++)
            n *= (uint64_t)t->ne[d]; /* backed by the file's size: cannot overflow */
        def->n_params += n;
        def->n_bytes += t->n_bytes;
    }
    if (!ea_gguf_has(b->g, "tokenizer.ggml.tokens"))
        return EA_OK; /* the tokenizer's loader asks for it */
    ea_gguf_array tokens;
    EA_TRY(ea_gguf_get_array(b->g, "tokenizer.ggml.tokens", &tokens, b->err));
    if (tokens.n > (uint64_t)def->hp.n_vocab)
        return ea_builder_fail(b, EA_EFORMAT,
                               "tensor token_embd.weight has %d rows, tokenizer.ggml.tokens %llu "
                               "entries",
                               def->hp.n_vocab, (unsigned long long)tokens.n);
    return EA_OK;
}

ea_status ea_model_def_load(const ea_gguf *g, ea_model_def **out, ea_error *err)
{
    const ea_arch *arch;
    EA_TRY(read_arch(g, &arch, err));
    ea_model_def *def = ea_calloc(1, sizeof *def);
    if (!def)
        return ea_fail(err, EA_ENOMEM, "out of memory: model definition");
    def->arch = arch->name;
    ea_builder b = {.g = g, .def = def, .err = err};
    ea_status status;
    EA_TRY_GOTO(arch->build(&b));
    EA_TRY_GOTO(check_whole(&b));
    def->plan.gguf = g;
    def->plan.n_vocab = def->hp.n_vocab;
    def->plan.n_embd = def->hp.n_embd;
    def->plan.n_ctx_train = def->hp.n_ctx_train;
    EA_TRY_GOTO(ea_plan_check(&def->plan, err));
    *out = def;
    return EA_OK;
fail:
    ea_model_def_destroy(def);
    return status;
}

void ea_model_def_destroy(ea_model_def *def)
{
    if (!def)
        return;
    ea_plan_done(&def->plan);
    ea_free(def);
}

/* general.file_type, as llama.cpp's tools name it. */
static const char *file_type_name(int64_t type)
{
    static const struct {
        int type;
        const char *name;
    } names[] = {
        {0, "all F32"},        {1, "F16"},
        {2, "Q4_0"},           {3, "Q4_1"},
        {7, "Q8_0"},           {8, "Q5_0"},
        {9, "Q5_1"},           {10, "Q2_K - Medium"},
        {11, "Q3_K - Small"},  {12, "Q3_K - Medium"},
        {13, "Q3_K - Large"},  {14, "Q4_K - Small"},
        {15, "Q4_K - Medium"}, {16, "Q5_K - Small"},
        {17, "Q5_K - Medium"}, {18, "Q6_K"},
        {21, "Q2_K - Small"},  {25, "IQ4_NL - 4.5 bpw"},
        {32, "BF16"},
    };
    for (size_t i = 0; i < EA_ARRAY_LEN(names); i++)
        if (names[i].type == type)
            return names[i].name;
    return NULL;
}

void ea_model_describe(const ea_gguf *g, ea_buf *out)
{
    ea_str arch;
    if (ea_gguf_get_str(g, "general.architecture", &arch, NULL) == EA_OK)
        ea_buf_add(out, arch.s, arch.n);
    else
        ea_buf_puts(out, "?");
    double n_params = 0;
    for (size_t i = 0; i < ea_gguf_n_tensors(g); i++) {
        const ea_gguf_tensor *t = ea_gguf_tensor_at(g, i);
        n_params += (double)t->ne[0] * (double)t->ne[1] * (double)t->ne[2] * (double)t->ne[3];
    }
    if (n_params >= 1e9)
        ea_buf_printf(out, " %.1fB", n_params / 1e9);
    else if (n_params >= 1e6)
        ea_buf_printf(out, " %.0fM", n_params / 1e6);
    else if (n_params > 0)
        ea_buf_printf(out, " %.0fK", n_params / 1e3);
    int64_t type;
    const char *name = NULL;
    if (ea_gguf_get_int(g, "general.file_type", 0, INT32_MAX, &type, NULL) == EA_OK)
        name = file_type_name(type);
    if (name)
        ea_buf_printf(out, " %s", name);
}
