/* special.c: finding special tokens in text, and protecting user text against them. The spellings
 * lie sorted in one array; a match narrows the range of candidates byte by byte, like a walk down
 * a trie, at no memory but the array. */
#include "text/vocab_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

static const char mark[] = EA_PROTECT_MARK;
enum { MARK_BYTES = sizeof mark - 1 };

static int compare_text(const void *a, const void *b, void *vocab)
{
    ea_str x = ea_vocab_text(vocab, *(const int32_t *)a);
    ea_str y = ea_vocab_text(vocab, *(const int32_t *)b);
    int order = memcmp(x.s, y.s, EA_MIN(x.n, y.n));
    if (order == 0)
        order = (x.n > y.n) - (x.n < y.n);
    if (order == 0) /* twins: by id, so that the choice does not depend on the sort */
        order = *(const int32_t *)a < *(const int32_t *)b ? -1 : 1;
    return order;
}

static bool is_special(const ea_vocab *v, int32_t id)
{
    ea_token_type type = ea_vocab_type(v, id);
    size_t n = ea_vocab_text(v, id).n;
    return (type == EA_TOKEN_CONTROL || type == EA_TOKEN_USER_DEFINED ||
            type == EA_TOKEN_UNKNOWN) &&
           n > 0 && n <= EA_MAX_SPECIAL_BYTES;
}

ea_status ea_specials_build(ea_vocab *v, ea_error *err)
{
    ea_specials *sp = &v->specials;
    uint32_t n = 0;
    for (int32_t id = 0; id < v->n; id++)
        n += is_special(v, id);
    sp->ids = ea_malloc(n * sizeof *sp->ids);
    if (!sp->ids)
        return ea_fail(err, EA_ENOMEM, "out of memory");
    for (int32_t id = 0; id < v->n; id++)
        if (is_special(v, id))
            sp->ids[sp->n++] = id;
    qsort_r(sp->ids, n, sizeof *sp->ids, compare_text, v);
    uint32_t at = 0;
    for (int b = 0; b < 256; b++) {
        sp->first[b] = at;
        while (at < n && (uint8_t)ea_vocab_text(v, sp->ids[at]).s[0] == b)
            at++;
    }
    sp->first[256] = n;
    return EA_OK;
}

/* In ids[lo, hi), all longer than depth bytes: the first whose byte at depth is >= b (0..256). */
static uint32_t lower_bound(const ea_vocab *v, uint32_t lo, uint32_t hi, size_t depth, int b)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((uint8_t)ea_vocab_text(v, v->specials.ids[mid]).s[depth] < b)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int32_t ea_specials_match(const ea_vocab *v, const char *s, size_t n, bool control)
{
    uint8_t b = (uint8_t)s[0];
    uint32_t lo = v->specials.first[b], hi = v->specials.first[b + 1];
    int32_t best = -1;
    for (size_t depth = 1; lo < hi; depth++) {
        /* Spellings of exactly this length come first in the range; of twins the first one wins. */
        bool taken = false;
        for (; lo < hi && ea_vocab_text(v, v->specials.ids[lo]).n == depth; lo++) {
            int32_t id = v->specials.ids[lo];
            if (!taken && (control || ea_vocab_type(v, id) == EA_TOKEN_USER_DEFINED)) {
                best = id;
                taken = true;
            }
        }
        if (depth >= n || lo >= hi)
            break;
        b = (uint8_t)s[depth];
        uint32_t from = lower_bound(v, lo, hi, depth, b);
        hi = lower_bound(v, from, hi, depth, b + 1);
        lo = from;
    }
    /* A spelling of one character is protected by the mark after it. */
    if (best >= 0 && ea_vocab_type(v, best) != EA_TOKEN_USER_DEFINED) {
        size_t len = ea_vocab_text(v, best).n;
        if (n - len >= MARK_BYTES && memcmp(s + len, mark, MARK_BYTES) == 0 &&
            ea_utf8_valid_len(s, len) == len)
            return -1;
    }
    return best;
}

/* Text without marks. Dropping one may join the bytes around it to another, which goes too. */
static void add_unmarked(const char *text, size_t n, ea_buf *out)
{
    size_t start = out->n;
    for (size_t i = 0; i < n; i++) {
        ea_buf_putc(out, text[i]);
        if (!out->failed && out->n - start >= MARK_BYTES &&
            memcmp(out->data + out->n - MARK_BYTES, mark, MARK_BYTES) == 0)
            out->n -= MARK_BYTES;
    }
}

void ea_vocab_protect(const ea_vocab *v, const char *text, size_t n, ea_buf *out)
{
    if (n && memmem(text, n, mark, MARK_BYTES)) {
        ea_buf clean = EA_BUF_INIT;
        add_unmarked(text, n, &clean);
        if (clean.failed)
            out->failed = true;
        else
            ea_vocab_protect(v, clean.data, clean.n, out);
        ea_buf_done(&clean);
        return;
    }
    size_t from = 0; /* first byte not yet copied */
    for (size_t i = 0; i < n;) {
        uint8_t b = (uint8_t)text[i];
        size_t len = 1;
        if (v->specials.first[b] < v->specials.first[b + 1]) {
            int32_t id = ea_specials_match(v, text + i, n - i, true);
            if (id >= 0 && ea_vocab_type(v, id) != EA_TOKEN_USER_DEFINED) {
                len = EA_MAX(ea_utf8_valid_len(text + i, n - i), (size_t)1);
                ea_buf_add(out, text + from, i + len - from);
                ea_buf_add(out, mark, MARK_BYTES);
                from = i + len;
            }
        }
        i += len;
    }
    if (n)
        ea_buf_add(out, text + from, n - from);
}
