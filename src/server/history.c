/* history.c: see history.h. A plain table: with some hundred entries, comparing each with the
 * prompt costs microseconds beside the milliseconds of tokenizing it. */
#include "server/history.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"

/* A conversation of 8,000 tokens takes about 64 KB: both bounds allow for hundreds of live
 * timelines. */
enum { MAX_ENTRIES = 512 };
static const size_t MAX_BYTES = 64u << 20;

typedef struct entry {
    char *text; /* NULL: free */
    size_t n_text;
    int32_t *tokens;
    size_t n_tokens;
    uint64_t used; /* larger is later */
} entry;

struct ea_history {
    const ea_model *model;
    pthread_mutex_t lock; /* all below */
    uint64_t clock;
    size_t n_bytes;
    entry entries[MAX_ENTRIES];
};

ea_status ea_history_create(const ea_model *model, ea_history **out, ea_error *err)
{
    ea_history *h = ea_calloc(1, sizeof *h);
    if (!h)
        return ea_fail(err, EA_ENOMEM, "out of memory: history of answers");
    if (pthread_mutex_init(&h->lock, NULL) != 0) {
        ea_free(h);
        return ea_fail(err, EA_EIO, "cannot create a mutex");
    }
    h->model = model;
    *out = h;
    return EA_OK;
}

static size_t bytes_of(const entry *e)
{
    return e->n_text + e->n_tokens * sizeof *e->tokens;
}

static void clear(ea_history *h, entry *e)
{
    h->n_bytes -= bytes_of(e);
    ea_free(e->text);
    ea_free(e->tokens);
    *e = (entry){0};
}

void ea_history_destroy(ea_history *h)
{
    if (!h)
        return;
    for (int i = 0; i < MAX_ENTRIES; i++)
        clear(h, &h->entries[i]);
    pthread_mutex_destroy(&h->lock);
    ea_free(h);
}

/* An entry to write to: the one with the same text, a free one, or the least recently used. */
static entry *choose(ea_history *h, const char *text, size_t n_text)
{
    entry *best = &h->entries[0];
    for (int i = 0; i < MAX_ENTRIES; i++) {
        entry *e = &h->entries[i];
        if (e->text && e->n_text == n_text && memcmp(e->text, text, n_text) == 0)
            return e;
        if (e->used < best->used) /* free ones were never used */
            best = e;
    }
    return best;
}

static void make_room(ea_history *h, size_t n)
{
    while (h->n_bytes + n > MAX_BYTES) {
        entry *oldest = NULL;
        for (int i = 0; i < MAX_ENTRIES; i++)
            if (h->entries[i].text && (!oldest || h->entries[i].used < oldest->used))
                oldest = &h->entries[i];
        clear(h, oldest);
    }
}

void ea_history_add(ea_history *h, const char *text, size_t n_text, const int32_t *tokens,
                    size_t n_tokens)
{
    entry made = {ea_malloc(n_text), n_text, ea_malloc(n_tokens * sizeof *tokens), n_tokens, 0};
    if (n_text == 0 || n_tokens == 0 || !made.text || !made.tokens || bytes_of(&made) > MAX_BYTES) {
        ea_free(made.text);
        ea_free(made.tokens);
        return;
    }
    memcpy(made.text, text, n_text);
    memcpy(made.tokens, tokens, n_tokens * sizeof *tokens);
    pthread_mutex_lock(&h->lock);
    entry *e = choose(h, text, n_text);
    clear(h, e);
    make_room(h, bytes_of(&made));
    made.used = ++h->clock;
    h->n_bytes += bytes_of(&made);
    *e = made;
    pthread_mutex_unlock(&h->lock);
}

/* The tokens of the longest remembered beginning of text, copied; *n_text is how much of the text
 * they say. NULL: none. */
static int32_t *find(ea_history *h, const char *text, size_t *n_text, size_t *n_tokens)
{
    entry *best = NULL;
    int32_t *tokens = NULL;
    pthread_mutex_lock(&h->lock);
    for (int i = 0; i < MAX_ENTRIES; i++) {
        entry *e = &h->entries[i];
        if (e->text && e->n_text < *n_text && (!best || e->n_text > best->n_text) &&
            memcmp(e->text, text, e->n_text) == 0)
            best = e;
    }
    if (best)
        tokens = ea_malloc(best->n_tokens * sizeof *tokens);
    if (tokens) {
        best->used = ++h->clock;
        memcpy(tokens, best->tokens, best->n_tokens * sizeof *tokens);
        *n_tokens = best->n_tokens;
        *n_text = best->n_text;
    }
    pthread_mutex_unlock(&h->lock);
    return tokens;
}

/* Control tokens have a spelling but no text. */
static bool is_control(const ea_model *model, int32_t token)
{
    return ea_token_bytes(model, token, false, NULL, 0) == 0 &&
           ea_token_bytes(model, token, true, NULL, 0) > 0;
}

ea_status ea_history_apply(ea_history *h, const char *text, size_t n_text, int32_t **tokens,
                           size_t *n_tokens, ea_error *err)
{
    size_t n_known = n_text, n_before = 0, n_rest = 0;
    int32_t *rest = NULL, *before = find(h, text, &n_known, &n_before);
    if (!before)
        return EA_OK;
    ea_status status = ea_tokenize(h->model, text + n_known, n_text - n_known, EA_TOKENIZE_SPECIAL,
                                   &rest, &n_rest, err);
    if (status == EA_OK && n_rest > 0 && is_control(h->model, rest[0])) {
        int32_t *all = ea_realloc(before, (n_before + n_rest) * sizeof *all);
        if (all) {
            memcpy(all + n_before, rest, n_rest * sizeof *rest);
            ea_free(*tokens);
            *tokens = all;
            *n_tokens = n_before + n_rest;
            before = NULL;
        } else {
            status = ea_fail(err, EA_ENOMEM, "out of memory: prompt tokens");
        }
    }
    ea_free(before);
    ea_free(rest);
    return status;
}
