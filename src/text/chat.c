/* chat.c: chat templates over ext/. A template that does not compile is kept with its reason: the
 * model still loads and completes text, and each chat request is told why it cannot be served. */
#include "text/chat.h"

#include <string.h>

#include "base/mem.h"
#include "ea_ext.h"

struct ea_chat_template {
    ea_ext_template *compiled; /* NULL: see reason */
    char *reason;
    char *bos, *eos;
    bool bare_json; /* its own call format: see ea_chat_style */
};

/* ChatML (OpenAI 2023), the form that most small models were tuned on. */
static const char chatml[] =
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

static ea_status fail_ext(int code, const char *reason, ea_error *err)
{
    static const char *const what[] = {
        [EA_EXT_INPUT] = "",
        [EA_EXT_SYNTAX] = "the chat template does not compile: ",
        [EA_EXT_REFUSED] = "the chat template refuses these messages: ",
        [EA_EXT_RUNTIME] = "the chat template fails on these messages: ",
        [EA_EXT_LIMIT] = "the chat template exceeds its limits: ",
        [EA_EXT_INTERNAL] = "",
    };
    bool known = code > 0 && (size_t)code < EA_ARRAY_LEN(what);
    return ea_fail(err, code == EA_EXT_INTERNAL ? EA_EINTERNAL : EA_EFORMAT, "%s%s",
                   known ? what[code] : "", reason ? reason : "no reason given");
}

static bool has_text(const char *s, size_t n, const char *text)
{
    return memmem(s, n, text, strlen(text)) != NULL;
}

/* Llama 3 writes calls as bare JSON; every other format has a mark of its own. */
static bool writes_bare_json(const char *s, size_t n)
{
    return has_text(s, n, "{\"name\": \"") && has_text(s, n, "\"parameters\": ") &&
           !has_text(s, n, "<tool_call>") && !has_text(s, n, "[TOOL_CALLS]");
}

ea_status ea_chat_template_create(const char *source, size_t n, const char *bos, const char *eos,
                                  ea_chat_template **out, ea_error *err)
{
    if (!source) {
        source = chatml;
        n = sizeof chatml - 1;
    }
    ea_chat_template *t = ea_calloc(1, sizeof *t);
    if (t) {
        t->bos = ea_strdup(bos ? bos : "");
        t->eos = ea_strdup(eos ? eos : "");
    }
    if (!t || !t->bos || !t->eos) {
        ea_chat_template_destroy(t);
        return ea_fail(err, EA_ENOMEM, "out of memory");
    }
    t->bare_json = writes_bare_json(source, n);
    ea_ext_text reason = {NULL, 0};
    int code = ea_ext_template_create(source, n, &t->compiled, &reason);
    ea_status status = EA_OK;
    if (code == EA_EXT_SYNTAX) {
        t->reason = ea_strdup(reason.data);
        if (!t->reason)
            status = ea_fail(err, EA_ENOMEM, "out of memory");
    } else if (code != EA_EXT_OK) {
        status = fail_ext(code, reason.data, err);
    }
    ea_ext_text_free(&reason);
    if (status != EA_OK) {
        ea_chat_template_destroy(t);
        return status;
    }
    *out = t;
    return EA_OK;
}

void ea_chat_template_destroy(ea_chat_template *t)
{
    if (!t)
        return;
    ea_ext_template_destroy(t->compiled);
    ea_free(t->reason);
    ea_free(t->bos);
    ea_free(t->eos);
    ea_free(t);
}

typedef struct protector {
    const ea_vocab *vocab;
    bool failed; /* out of memory: a string was lost, the rendering is worthless */
} protector;

/* Called by ext/ for every string of the messages and tools. */
static void protect(void *user, const char *text, size_t n, ea_ext_emit_fn emit, void *sink)
{
    protector *p = user;
    ea_buf out = EA_BUF_INIT;
    ea_vocab_protect(p->vocab, text, n, &out);
    if (out.failed)
        p->failed = true;
    else
        emit(sink, out.data, out.n);
    ea_buf_done(&out);
}

ea_status ea_chat_template_render(const ea_chat_template *t, const ea_vocab *v,
                                  const ea_chat_params *params, char **out, size_t *n_out,
                                  ea_error *err)
{
    if (!t->compiled)
        return fail_ext(EA_EXT_SYNTAX, t->reason, err);
    if (!params->messages_json)
        return ea_fail(err, EA_EINVAL, "messages_json is NULL");
    /* Hugging Face's environment always defines `tools`; null where there are none. */
    const char *tools = params->tools_json ? params->tools_json : "null";
    protector p = {v, false};
    ea_ext_render render = {
        .messages = params->messages_json,
        .n_messages = strlen(params->messages_json),
        .tools = tools,
        .n_tools = strlen(tools),
        .variables = params->template_kwargs,
        .n_variables = params->template_kwargs ? strlen(params->template_kwargs) : 0,
        .bos = t->bos,
        .eos = t->eos,
        .add_generation_prompt = params->add_generation_prompt,
        .adapt = true,
        .now = -1,
        .protect = v ? protect : NULL,
        .protect_user = &p,
    };
    ea_ext_text text = {NULL, 0};
    int code = ea_ext_template_render(t->compiled, &render, &text);
    ea_status status = EA_OK;
    char *copy = NULL;
    if (code != EA_EXT_OK && !p.failed) {
        status = fail_ext(code, text.data, err);
    } else {
        copy = p.failed ? NULL : ea_malloc(text.n + 1);
        if (!copy)
            status = ea_fail(err, EA_ENOMEM, "out of memory: a prompt of %zu bytes", text.n);
        else
            memcpy(copy, text.data, text.n + 1);
    }
    if (status == EA_OK) {
        *out = copy;
        *n_out = text.n;
    }
    ea_ext_text_free(&text);
    return status;
}

ea_chat_style ea_chat_template_style(const ea_chat_template *t, const ea_chat_params *params)
{
    static const char tag[] = "<think>";
    ea_chat_style style = {.bare_json = t->bare_json};
    ea_chat_params probe = {
        .messages_json = "[{\"role\":\"user\",\"content\":\"Hi\"}]",
        .template_kwargs = params->template_kwargs,
        .add_generation_prompt = true,
    };
    char *text;
    size_t n;
    if (ea_chat_template_render(t, NULL, &probe, &text, &n, NULL) != EA_OK)
        return style;
    while (n && strchr(" \n\t\r", text[n - 1]))
        n--;
    style.opens_thinking =
        n >= sizeof tag - 1 && memcmp(text + n - (sizeof tag - 1), tag, sizeof tag - 1) == 0;
    ea_free(text);
    return style;
}
