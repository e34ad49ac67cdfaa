/* history.h: what was said, with the tokens it was said in.
 *
 * A model may spell a text in other tokens than the tokenizer would, so a returning history,
 * tokenized anew, could differ from the timeline whose KV is still there. Here a conversation's
 * text so far (rendered prompt and answer) is remembered with its tokens; a new prompt that begins
 * with a remembered text keeps them, and only the rest is tokenized. The result is a function of
 * the prompt and the remembered answers, never of what the KV cache holds. Bounded in number and
 * bytes; the least recently used go first. Thread-safe. */
#ifndef EA_SERVER_HISTORY_H
#define EA_SERVER_HISTORY_H

#include "edgeagent.h"

typedef struct ea_history ea_history;

ea_status ea_history_create(const ea_model *model, ea_history **out, ea_error *err) EA_MUST_CHECK;
void ea_history_destroy(ea_history *h); /* NULL is fine */

/* Remember that these tokens say this text. Both are copied; without memory nothing happens. */
void ea_history_add(ea_history *h, const char *text, size_t n_text, const int32_t *tokens,
                    size_t n_tokens);

/* If the longest remembered beginning of text is followed by a control token (as an answer is by
 * the end of its turn), replace *tokens (freed by ea_free; the tokenizer's own reading of all of
 * text) by the remembered ones and those of the rest. */
ea_status ea_history_apply(ea_history *h, const char *text, size_t n_text, int32_t **tokens,
                           size_t *n_tokens, ea_error *err) EA_MUST_CHECK;

#endif
