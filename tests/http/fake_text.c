/* fake_text.c: the model side of the fake library: a byte vocabulary, a plain chat template and a
 * parser for two tags. See fake.h. */
#include "fake.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

/* ---- model ---- */

void ea_model_info_get(const ea_model *model, ea_model_info *out)
{
    (void)model;
    *out = (ea_model_info){.path = "/models/fake-1.gguf",
                           .arch = "fake",
                           .name = "Fake",
                           .type = "fake 1B",
                           .n_params = 1000000000,
                           .n_bytes = 4000,
                           .n_vocab = FAKE_N_VOCAB,
                           .n_embd = 8,
                           .n_ctx_train = 4096,
                           .has_chat_template = true,
                           .bos = FAKE_BOS,
                           .eos = FAKE_EOS,
                           .eot = -1,
                           .add_bos = true};
}

size_t ea_token_bytes(const ea_model *model, int32_t token, bool special, char *buf, size_t size)
{
    (void)model;
    char text[16];
    size_t n = 0;
    if (token < 256) {
        text[0] = (char)token;
        n = 1;
    } else if (token < FAKE_BOS) {
        n = (size_t)snprintf(text, sizeof text, " w%d", (int)token - 256);
    } else if (special) {
        n = (size_t)snprintf(text, sizeof text, "%s", token == FAKE_BOS ? "<s>" : "</s>");
    }
    memcpy(buf, text, n < size ? n : size);
    return n;
}

ea_status ea_tokenize(const ea_model *model, const char *text, size_t n, unsigned flags,
                      int32_t **out, size_t *n_out, ea_error *err)
{
    (void)model;
    int32_t *tokens = ea_malloc((n + 1) * sizeof *tokens);
    size_t at = 0;
    if (!tokens)
        return ea_fail(err, EA_ENOMEM, "out of memory");
    if (flags & EA_TOKENIZE_ADD_BOS)
        tokens[at++] = FAKE_BOS;
    for (size_t i = 0; i < n; i++)
        tokens[at++] = (unsigned char)text[i];
    *out = tokens;
    *n_out = at;
    return EA_OK;
}

/* ---- template: "role: content\n" a message; with "@raw" the client's JSON itself ---- */

void ea_chat_params_default(ea_chat_params *p)
{
    *p = (ea_chat_params){.size = sizeof *p, .add_generation_prompt = true};
}

static void add_content(ea_buf *text, const json_t *content)
{
    size_t i;
    json_t *part;
    if (json_is_string(content))
        ea_buf_add(text, json_string_value(content), json_string_length(content));
    json_array_foreach(content, i, part)
    {
        const char *s = json_string_value(json_object_get(part, "text"));
        ea_buf_puts(text, s ? s : "");
    }
}

static ea_status add_messages(ea_buf *text, const json_t *messages, ea_error *err)
{
    size_t i;
    json_t *m;
    if (json_array_size(messages) == 0)
        return ea_fail(err, EA_EFORMAT, "messages: at least one is needed");
    json_array_foreach(messages, i, m)
    {
        const char *role = json_string_value(json_object_get(m, "role"));
        if (!role)
            return ea_fail(err, EA_EFORMAT, "messages[%zu]: no role", i);
        ea_buf_printf(text, "%s: ", role);
        add_content(text, json_object_get(m, "content"));
        ea_buf_putc(text, '\n');
    }
    ea_buf_puts(text, "assistant:");
    return EA_OK;
}

ea_status ea_chat_render(const ea_model *model, const ea_chat_params *p, char **text_out,
                         int32_t **tokens, size_t *n_tokens, ea_error *err)
{
    ea_buf text = EA_BUF_INIT;
    ea_status status = EA_OK;
    if (text_out)
        *text_out = NULL;
    if (strstr(p->messages_json, "@raw")) {
        ea_buf_printf(&text, "\001%s\002%s\002%s", p->messages_json,
                      p->tools_json ? p->tools_json : "none",
                      p->template_kwargs ? p->template_kwargs : "none");
    } else {
        json_t *messages = json_loads(p->messages_json, 0, NULL);
        status = add_messages(&text, messages, err);
        json_decref(messages);
    }
    if (status == EA_OK)
        status = ea_tokenize(model, text.data, text.n, EA_TOKENIZE_ADD_BOS, tokens, n_tokens, err);
    ea_buf_done(&text);
    return status;
}

/* ---- parser: <think>...</think> and <tool_call>{"name","arguments"}</tool_call> ---- */

struct ea_chat_parser {
    ea_buf held;
    bool tools;
    int n_calls;
};

ea_status ea_chat_parser_create(const ea_model *model, const ea_chat_params *p,
                                ea_chat_parser **out, ea_error *err)
{
    (void)model;
    ea_chat_parser *parser = ea_calloc(1, sizeof *parser);
    if (!parser)
        return ea_fail(err, EA_ENOMEM, "out of memory");
    parser->tools = p->tools_json != NULL;
    *out = parser;
    return EA_OK;
}

static void emit(ea_chat_parser *p, ea_chat_delta_kind kind, size_t n, ea_chat_delta_fn fn,
                 void *user)
{
    ea_chat_delta d = {.kind = kind, .text = p->held.data, .n_bytes = n};
    if (n)
        fn(user, &d);
    ea_buf_drop_front(&p->held, n);
}

static void emit_call(ea_chat_parser *p, size_t n, ea_chat_delta_fn fn, void *user)
{
    json_t *call = json_loadb(p->held.data, n, 0, NULL);
    char *arguments =
        json_dumps(json_object_get(call, "arguments"), JSON_COMPACT | JSON_REAL_PRECISION(15));
    ea_chat_delta d = {.kind = EA_CHAT_TOOL_CALL,
                       .name = json_string_value(json_object_get(call, "name")),
                       .arguments = arguments,
                       .index = p->n_calls++};
    if (d.name && arguments)
        fn(user, &d);
    free(arguments);
    json_decref(call);
    ea_buf_drop_front(&p->held, n);
}

/* One tag at the front of what is held; false: wait for more. */
static bool take_tag(ea_chat_parser *p, const char *open, const char *close, bool call,
                     ea_chat_delta_fn fn, void *user)
{
    char *end = strstr(p->held.data, close);
    if (!end)
        return false;
    size_t n = (size_t)(end - p->held.data) - strlen(open);
    ea_buf_drop_front(&p->held, strlen(open));
    if (call)
        emit_call(p, n, fn, user);
    else
        emit(p, EA_CHAT_REASONING, n, fn, user);
    ea_buf_drop_front(&p->held, strlen(close));
    return true;
}

void ea_chat_parser_feed(ea_chat_parser *p, const char *text, size_t n, ea_chat_delta_fn fn,
                         void *user)
{
    static const char think[] = "<think>", tool[] = "<tool_call>";
    ea_buf_add(&p->held, text, n);
    while (p->held.n) {
        size_t plain = strcspn(p->held.data, "<");
        emit(p, EA_CHAT_CONTENT, plain, fn, user);
        if (!p->held.n)
            return;
        size_t n_think = p->held.n < 7 ? p->held.n : 7, n_tool = p->held.n < 11 ? p->held.n : 11;
        if (strncmp(p->held.data, think, n_think) == 0) {
            if (n_think < 7 || !take_tag(p, think, "</think>", false, fn, user))
                return;
        } else if (p->tools && strncmp(p->held.data, tool, n_tool) == 0) {
            if (n_tool < 11 || !take_tag(p, tool, "</tool_call>", true, fn, user))
                return;
        } else {
            emit(p, EA_CHAT_CONTENT, 1, fn, user);
        }
    }
}

int ea_chat_parser_finish(ea_chat_parser *p, ea_chat_delta_fn fn, void *user)
{
    emit(p, EA_CHAT_CONTENT, p->held.n, fn, user);
    return p->n_calls;
}

void ea_chat_parser_destroy(ea_chat_parser *p)
{
    if (!p)
        return;
    ea_buf_done(&p->held);
    ea_free(p);
}
