/* vocab_internal.h: the vocabulary's data, shared by the files of text/ that build and use it.
 * Immutable after ea_vocab_load, so any number of threads may tokenize with one vocabulary. */
#ifndef EA_TEXT_VOCAB_INTERNAL_H
#define EA_TEXT_VOCAB_INTERNAL_H

#include "base/mem.h"
#include "text/pretok.h"
#include "text/vocab.h"

/* Token types as GGUF numbers them (tokenizer.ggml.token_type). */
typedef enum ea_token_type {
    EA_TOKEN_UNDEFINED = 0,
    EA_TOKEN_NORMAL = 1,
    EA_TOKEN_UNKNOWN = 2,
    EA_TOKEN_CONTROL = 3,
    EA_TOKEN_USER_DEFINED = 4,
    EA_TOKEN_UNUSED = 5,
    EA_TOKEN_BYTE = 6,
} ea_token_type;

enum {
    EA_TOKEN_TYPE_MASK = 0x07,
    EA_TOKEN_EOG = 0x08,    /* ends a generation */
    EA_TOKEN_RSTRIP = 0x10, /* white space after its spelling belongs to it */
};

typedef enum ea_vocab_kind { EA_VOCAB_BPE, EA_VOCAB_SPM } ea_vocab_kind;

/* Special tokens longer than this are never looked for in text: it bounds the work per position. */
enum { EA_MAX_SPECIAL_BYTES = 512 };

/* Merges of one vocabulary; the largest known has 640,000. */
enum { EA_MAX_MERGES = 1 << 23 };

/* Tokens that are cut out of the text before encoding, sorted by spelling (bytewise). */
typedef struct ea_specials {
    int32_t *ids;
    uint32_t n;
    uint32_t first[257]; /* spellings that start with byte b: ids[first[b]] .. ids[first[b + 1]] */
} ea_specials;

/* One merge: the pair (left, right) of token ids becomes `merged`; lower rank merges first. */
typedef struct ea_merge {
    int32_t left, right; /* left < 0: empty slot */
    uint32_t rank;
    int32_t merged;
} ea_merge;

struct ea_vocab {
    ea_vocab_kind kind;
    int n;
    uint8_t *flags;  /* [n] type and EA_TOKEN_* bits */
    uint32_t *offs;  /* [n + 1] into bytes */
    char *bytes;     /* what each token stands for, decoded (BPE alphabet, U+2581, <0x..>) */
    uint32_t *table; /* open-addressing hash: bytes -> id + 1; 0 = empty */
    uint32_t table_mask;
    uint32_t max_token_bytes; /* of the tokens in the table */
    int32_t byte_id[256];     /* token of a single byte, -1 where there is none */
    int32_t bos, eos, eot, unk;
    bool add_bos, add_space_prefix, ignore_merges;
    ea_specials specials;
    /* BPE */
    ea_merge *merges; /* open-addressing hash */
    uint32_t merge_mask;
    ea_pretok *pretok;
    /* SPM */
    float *scores; /* [n] */
};

static inline ea_str ea_vocab_text(const ea_vocab *v, int32_t id)
{
    return (ea_str){v->bytes + v->offs[id], v->offs[id + 1] - v->offs[id]};
}

static inline ea_token_type ea_vocab_type(const ea_vocab *v, int32_t id)
{
    return (ea_token_type)(v->flags[id] & EA_TOKEN_TYPE_MASK);
}

/* The token that text encoding may produce for exactly these bytes; -1 if there is none. */
int32_t ea_vocab_lookup(const ea_vocab *v, const char *s, size_t n);

/* Growing list of token ids. */
typedef struct ea_ids {
    int32_t *ids;
    size_t n, cap;
} ea_ids;

static inline ea_status ea_ids_push(ea_ids *list, int32_t id, ea_error *err)
{
    void *grown = list->ids;
    ea_status status = ea_grow(&grown, &list->cap, list->n + 1, sizeof *list->ids, err);
    list->ids = grown;
    if (status == EA_OK)
        list->ids[list->n++] = id;
    return status;
}

/* One byte that no token covers: its byte token, else the unknown token, else EA_EFORMAT. */
ea_status ea_vocab_push_byte(const ea_vocab *v, uint8_t byte, ea_ids *out, ea_error *err);

/* special.c */
ea_status ea_specials_build(ea_vocab *v, ea_error *err);
/* The longest special token whose spelling starts at s (n bytes left), -1 if none. `control` also
 * matches control and unknown tokens, else user-defined ones only. */
int32_t ea_specials_match(const ea_vocab *v, const char *s, size_t n, bool control);

/* bpe.c */
ea_status ea_bpe_load(ea_vocab *v, const ea_gguf *g, ea_error *err);
ea_status ea_bpe_encode(const ea_vocab *v, const char *s, size_t n, ea_ids *out, ea_error *err);
/* Decode one token's spelling in GPT-2's byte alphabet (s, n) into bytes; dst has room for n.
 * Returns the number of bytes, or SIZE_MAX if a character is outside the alphabet. */
size_t ea_bpe_decode(const char *s, size_t n, char *dst);

/* spm.c */
ea_status ea_spm_load(ea_vocab *v, const ea_gguf *g, ea_error *err);
ea_status ea_spm_encode(const ea_vocab *v, const char *s, size_t n, ea_ids *out, ea_error *err);

#endif
