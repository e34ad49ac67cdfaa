/* vocab.h: vocabulary and tokenizer of one model: byte-pair encoding (GPT-2 style with the
 * pre-tokenizers gpt-2, smollm, starcoder, qwen2, llama-bpe, ...) and SentencePiece (SPM).
 * Immutable after load; thread-safe. */
#ifndef EA_TEXT_VOCAB_H
#define EA_TEXT_VOCAB_H

#include "base/buf.h"
#include "base/error.h"
#include "gguf/gguf.h"

typedef struct ea_vocab ea_vocab;

/* Reads tokenizer.* keys. The GGUF must stay open as long as the vocabulary. n_vocab_expect: rows
 * of the embedding, or -1 where not known (vocab-only files). */
ea_status ea_vocab_load(const ea_gguf *g, int64_t n_vocab_expect, ea_vocab **out,
                        ea_error *err) EA_MUST_CHECK;
void ea_vocab_destroy(ea_vocab *v);

int ea_vocab_size(const ea_vocab *v);
int32_t ea_vocab_bos(const ea_vocab *v); /* -1 where there is none */
int32_t ea_vocab_eos(const ea_vocab *v);
int32_t ea_vocab_eot(const ea_vocab *v);
bool ea_vocab_add_bos(const ea_vocab *v);
bool ea_vocab_is_eog(const ea_vocab *v, int32_t token);
bool ea_vocab_is_control(const ea_vocab *v, int32_t token);

/* The character put inside control-token spellings of user text by ea_vocab_protect: the tokenizer
 * never matches a special token across it and drops it before encoding. U+10FFFE, a noncharacter.
 */
#define EA_PROTECT_MARK "\xf4\x8f\xbf\xbe"

/* Append text to out with every control-token spelling broken up by EA_PROTECT_MARK (after its
 * first character); marks that are already in the text are removed. */
void ea_vocab_protect(const ea_vocab *v, const char *text, size_t n, ea_buf *out);

/* flags: EA_TOKENIZE_* of the public header. *out from ea_malloc. */
ea_status ea_vocab_tokenize(const ea_vocab *v, const char *text, size_t n, unsigned flags,
                            int32_t **out, size_t *n_out, ea_error *err) EA_MUST_CHECK;

/* Bytes of a token as they appear in text; see ea_token_bytes of the public header. */
size_t ea_vocab_token_bytes(const ea_vocab *v, int32_t token, bool special, char *buf, size_t size);

#endif
