/* api_text.c: the public functions on text: tokens, chat templates, answers. All of them only read
 * the model, so they may run on any thread. */
#include <string.h>

#include "base/mem.h"
#include "engine/internal.h"

ea_status ea_tokenize(const ea_model *model, const char *text, size_t n_bytes, unsigned flags,
                      int32_t **out, size_t *n_out, ea_error *err)
{
    return ea_vocab_tokenize(model->vocab, text, n_bytes, flags, out, n_out, err);
}

size_t ea_token_bytes(const ea_model *model, int32_t token, bool special, char *buf, size_t size)
{
    return ea_vocab_token_bytes(model->vocab, token, special, buf, size);
}

bool ea_token_is_eog(const ea_model *model, int32_t token)
{
    return ea_vocab_is_eog(model->vocab, token);
}

void ea_chat_params_default(ea_chat_params *params)
{
    *params = (ea_chat_params){.size = sizeof *params, .add_generation_prompt = true};
}

/* True if the request has tools: anything but NULL, null and []. */
static bool has_tools(const ea_chat_params *params)
{
    const char *s = params->tools_json;
    if (!s)
        return false;
    s += strspn(s, " \n\t\r");
    if (*s != '[')
        return *s != '\0' && strncmp(s, "null", 4) != 0;
    s++;
    return s[strspn(s, " \n\t\r")] != ']';
}

static ea_status token_text(const ea_vocab *v, int32_t token, char *buf, size_t size, ea_error *err)
{
    size_t n = ea_vocab_token_bytes(v, token, true, buf, size - 1);
    if (n >= size)
        return ea_fail(err, EA_EUNSUPPORTED, "token %d has a spelling of %zu bytes", (int)token, n);
    buf[n] = '\0';
    return EA_OK;
}

/* The template for these parameters. *own is to be destroyed by the caller, or NULL. */
static ea_status pick_template(const ea_model *model, const ea_chat_params *params,
                               const ea_chat_template **out, ea_chat_template **own, ea_error *err)
{
    *own = NULL;
    if (params->template_override) {
        char bos[256], eos[256];
        EA_TRY(token_text(model->vocab, ea_vocab_bos(model->vocab), bos, sizeof bos, err));
        EA_TRY(token_text(model->vocab, ea_vocab_eos(model->vocab), eos, sizeof eos, err));
        EA_TRY(ea_chat_template_create(params->template_override, strlen(params->template_override),
                                       bos, eos, own, err));
        *out = *own;
        return EA_OK;
    }
    *out = has_tools(params) && model->chat_tools ? model->chat_tools : model->chat;
    if (!*out)
        return ea_fail(err, EA_EFORMAT, "%s",
                       model->chat_error ? model->chat_error : "the model has no chat template");
    return EA_OK;
}

/* Cut the marks of ea_vocab_protect out of a text, in place. */
static void remove_marks(char *text)
{
    static const char mark[] = EA_PROTECT_MARK;
    char *to = strstr(text, mark), *from = to;
    while (from) {
        from += sizeof mark - 1;
        char *next = strstr(from, mark);
        size_t n = next ? (size_t)(next - from) : strlen(from) + 1;
        memmove(to, from, n);
        to += n;
        from = next;
    }
}

/* Tokens of a rendered prompt, with BOS in front where the model asks for one and the template did
 * not write it. */
static ea_status tokenize_prompt(const ea_vocab *v, const char *text, size_t n, int32_t **out,
                                 size_t *n_out, ea_error *err)
{
    int32_t *tokens;
    size_t n_tokens;
    EA_TRY(ea_vocab_tokenize(v, text, n, EA_TOKENIZE_SPECIAL, &tokens, &n_tokens, err));
    if (ea_vocab_add_bos(v) && !(n_tokens && tokens[0] == ea_vocab_bos(v))) {
        int32_t *grown = ea_realloc(tokens, (n_tokens + 1) * sizeof *tokens);
        if (!grown) {
            ea_free(tokens);
            return ea_fail(err, EA_ENOMEM, "out of memory: %zu tokens", n_tokens + 1);
        }
        tokens = grown;
        memmove(tokens + 1, tokens, n_tokens++ * sizeof *tokens);
        tokens[0] = ea_vocab_bos(v);
    }
    *out = tokens;
    *n_out = n_tokens;
    return EA_OK;
}

ea_status ea_chat_render(const ea_model *model, const ea_chat_params *params, char **text,
                         int32_t **tokens, size_t *n_tokens, ea_error *err)
{
    const ea_chat_template *chat;
    ea_chat_template *own;
    char *rendered = NULL;
    size_t n;
    EA_TRY(pick_template(model, params, &chat, &own, err));
    ea_status status = ea_chat_template_render(chat, model->vocab, params, &rendered, &n, err);
    if (status == EA_OK)
        status = tokenize_prompt(model->vocab, rendered, n, tokens, n_tokens, err);
    ea_chat_template_destroy(own);
    if (status == EA_OK && text) {
        remove_marks(rendered);
        *text = rendered;
        return EA_OK;
    }
    ea_free(rendered);
    return status;
}

ea_status ea_chat_parser_create(const ea_model *model, const ea_chat_params *params,
                                ea_chat_parser **out, ea_error *err)
{
    const ea_chat_template *chat;
    ea_chat_template *own;
    EA_TRY(pick_template(model, params, &chat, &own, err));
    ea_chat_style style = ea_chat_template_style(chat, params);
    ea_chat_template_destroy(own);
    return ea_chat_parser_init(&style, params->tools_json, params->strict_tools, out, err);
}
