/* chat.h: chat templates (rendered by ext/) and the parser of answers into content, reasoning and
 * tool calls. Templates are compiled once a model and immutable; parsers belong to one thread. */
#ifndef EA_TEXT_CHAT_H
#define EA_TEXT_CHAT_H

#include "base/error.h"
#include "text/vocab.h"

typedef struct ea_chat_template ea_chat_template;

/* source: Jinja text, or NULL for the default (ChatML). bos/eos: their spellings, for the
 * template's variables. */
ea_status ea_chat_template_create(const char *source, size_t n, const char *bos, const char *eos,
                                  ea_chat_template **out, ea_error *err) EA_MUST_CHECK;
void ea_chat_template_destroy(ea_chat_template *t);

/* Render to text; control spellings inside message strings are protected (see ea_vocab_protect)
 * when v is given. */
ea_status ea_chat_template_render(const ea_chat_template *t, const ea_vocab *v,
                                  const ea_chat_params *params, char **out, size_t *n_out,
                                  ea_error *err) EA_MUST_CHECK;

/* What answers to this template's prompts look like. */
typedef struct ea_chat_style {
    bool bare_json;      /* its calls are bare JSON objects, without tags */
    bool opens_thinking; /* its generation prompt ends inside the thinking tags */
} ea_chat_style;

/* params: template_kwargs are looked at, since they may turn thinking off. */
ea_chat_style ea_chat_template_style(const ea_chat_template *t, const ea_chat_params *params);

/* The parser over a known style; see ea_chat_parser_create of the public header. */
ea_status ea_chat_parser_init(const ea_chat_style *style, const char *tools_json, bool strict_tools,
                              ea_chat_parser **out, ea_error *err) EA_MUST_CHECK;

#endif
