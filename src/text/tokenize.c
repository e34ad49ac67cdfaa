/* tokenize.c: text to token ids: special tokens are cut out first (leftmost, longest), the
 * stretches between them are encoded by the vocabulary's kind. */
#include <string.h>

#include "text/vocab_internal.h"

static const char mark[] = EA_PROTECT_MARK;
static const char space_mark[] = "\xe2\x96\x81";
enum { MARK_BYTES = sizeof mark - 1, SPACE_MARK_BYTES = sizeof space_mark - 1 };

/* Append s with every occurrence of `from` replaced by `to`. */
static void add_replaced(ea_buf *out, const char *s, size_t n, const char *from, size_t n_from,
                         const char *to)
{
    const char *hit;
    while (n && (hit = memmem(s, n, from, n_from)) != NULL) {
        size_t skip = (size_t)(hit - s);
        ea_buf_add(out, s, skip);
        ea_buf_puts(out, to);
        s += skip + n_from;
        n -= skip + n_from;
    }
    if (n)
        ea_buf_add(out, s, n);
}

/* A stretch without special tokens; `prefix`: it starts the text or follows a special token. */
static ea_status encode_raw(const ea_vocab *v, const char *s, size_t n, bool prefix, ea_ids *out,
                            ea_error *err)
{
    bool spm = v->kind == EA_VOCAB_SPM, marked = memmem(s, n, mark, MARK_BYTES) != NULL;
    if (!spm && !marked)
        return ea_bpe_encode(v, s, n, out, err);
    ea_buf plain = EA_BUF_INIT, text = EA_BUF_INIT;
    if (marked) {
        add_replaced(&plain, s, n, mark, MARK_BYTES, "");
        s = plain.data;
        n = plain.n;
    }
    if (spm && n) {
        if (prefix && v->add_space_prefix)
            ea_buf_putc(&text, ' ');
        add_replaced(&text, s, n, space_mark, SPACE_MARK_BYTES, " ");
        s = text.data;
        n = text.n;
    }
    ea_status status = EA_OK;
    if (plain.failed || text.failed)
        status = ea_fail(err, EA_ENOMEM, "out of memory: %zu bytes of text", n);
    else if (n)
        status = spm ? ea_spm_encode(v, s, n, out, err) : ea_bpe_encode(v, s, n, out, err);
    ea_buf_done(&plain);
    ea_buf_done(&text);
    return status;
}

static size_t skip_space(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && (s[i] == ' ' || (s[i] >= '\t' && s[i] <= '\r')))
        i++;
    return i;
}

static ea_status tokenize(const ea_vocab *v, const char *text, size_t n, bool control, ea_ids *ids,
                          ea_error *err)
{
    size_t from = 0; /* start of the stretch */
    bool after_special = true;
    for (size_t i = 0; i < n;) {
        uint8_t b = (uint8_t)text[i];
        int32_t id = v->specials.first[b] < v->specials.first[b + 1]
                         ? ea_specials_match(v, text + i, n - i, control)
                         : -1;
        if (id < 0) {
            i++;
            continue;
        }
        if (i > from)
            EA_TRY(encode_raw(v, text + from, i - from, after_special, ids, err));
        EA_TRY(ea_ids_push(ids, id, err));
        after_special = true;
        i += ea_vocab_text(v, id).n;
        if (v->flags[id] & EA_TOKEN_RSTRIP)
            i += skip_space(text + i, n - i);
        from = i;
    }
    return from < n ? encode_raw(v, text + from, n - from, after_special, ids, err) : EA_OK;
}

ea_status ea_vocab_tokenize(const ea_vocab *v, const char *text, size_t n, unsigned flags,
                            int32_t **out, size_t *n_out, ea_error *err)
{
    if (n > INT32_MAX / 2)
        return ea_fail(err, EA_EINVAL, "text of %zu bytes is too long to tokenize (limit %d)", n,
                       INT32_MAX / 2);
    ea_ids ids = {NULL, 0, 0};
    ea_status status = EA_OK;
    if (flags & EA_TOKENIZE_ADD_BOS && v->add_bos)
        status = ea_ids_push(&ids, v->bos, err);
    if (status == EA_OK)
        status = tokenize(v, text, n, flags & EA_TOKENIZE_SPECIAL, &ids, err);
    if (status == EA_OK && !ids.ids) {
        ids.ids = ea_malloc(sizeof *ids.ids); /* nothing to free would surprise the caller */
        if (!ids.ids)
            status = ea_fail(err, EA_ENOMEM, "out of memory");
    }
    if (status != EA_OK) {
        ea_free(ids.ids);
        return status;
    }
    *out = ids.ids;
    *n_out = ids.n;
    return EA_OK;
}
