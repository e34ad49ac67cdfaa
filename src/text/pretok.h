/* pretok.h: pre-tokenizers of byte-pair vocabularies: regular expressions that cut text into words
 * before merging. Compiled once a vocabulary; immutable and thread-safe after. */
#ifndef EA_TEXT_PRETOK_H
#define EA_TEXT_PRETOK_H

#include "base/error.h"

typedef struct ea_pretok ea_pretok;

/* name: tokenizer.ggml.pre. EA_EUNSUPPORTED names the known ones. */
ea_status ea_pretok_create(const char *name, size_t n, ea_pretok **out, ea_error *err);
void ea_pretok_destroy(ea_pretok *p);

/* What a vocabulary with this pre-tokenizer does where its keys are silent. */
bool ea_pretok_add_bos(const ea_pretok *p);
bool ea_pretok_ignore_merges(const ea_pretok *p); /* a word that is a token stays whole */

/* End offsets of the words of a text, in order; the last is the text's length. */
typedef struct ea_words {
    size_t *ends;
    size_t n, cap;
} ea_words;

/* Cut n bytes into words; every byte is in exactly one. Bytes that are not UTF-8 make words of
 * their own. Words are appended to *out, offsets relative to s. */
ea_status ea_pretok_split(const ea_pretok *p, const char *s, size_t n, ea_words *out,
                          ea_error *err);
void ea_words_done(ea_words *w);

#endif
