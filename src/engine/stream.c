/* stream.c: see stream.h. */
#include "engine/stream.h"

#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"

static const char REPLACEMENT[] = "\xef\xbf\xbd"; /* U+FFFD */

ea_status ea_stream_init(ea_stream *s, const char *const *stops, size_t n_stops, size_t max_token,
                         ea_error *err)
{
    memset(s, 0, sizeof *s);
    if (n_stops > EA_MAX_STOPS)
        return ea_fail(err, EA_EINVAL, "stop: %zu strings, at most %d", n_stops, EA_MAX_STOPS);
    for (size_t i = 0; i < n_stops; i++) {
        size_t len = stops[i] ? strlen(stops[i]) : 0;
        if (len == 0)
            return ea_fail(err, EA_EINVAL, "stop: string %zu is empty", i);
        if (len > EA_MAX_STOP_BYTES)
            return ea_fail(err, EA_EINVAL, "stop: string %zu has %zu bytes, at most %d", i, len,
                           EA_MAX_STOP_BYTES);
        s->max_stop = EA_MAX(s->max_stop, len);
    }
    s->stops = ea_calloc(n_stops, sizeof *s->stops);
    s->stop_len = ea_calloc(n_stops, sizeof *s->stop_len);
    /* Held back at most: a stop string but its last byte, or a character but its last byte. */
    s->cap = s->max_stop + 4 + max_token;
    s->hold = ea_malloc(s->cap);
    bool ok = s->stops && s->stop_len && s->hold;
    for (size_t i = 0; ok && i < n_stops; i++) {
        s->stops[i] = ea_strdup(stops[i]);
        s->stop_len[i] = strlen(stops[i]);
        s->n_stops++;
        ok = s->stops[i] != NULL;
    }
    if (ok)
        return EA_OK;
    ea_stream_done(s);
    return ea_fail(err, EA_ENOMEM, "out of memory: stop strings");
}

void ea_stream_done(ea_stream *s)
{
    for (int i = 0; i < s->n_stops; i++)
        ea_free(s->stops[i]);
    ea_free(s->stops);
    ea_free(s->stop_len);
    ea_free(s->hold);
    memset(s, 0, sizeof *s);
}

size_t ea_stream_max_out(size_t max_token)
{
    return (sizeof REPLACEMENT - 1) * (EA_MAX_STOP_BYTES + 4 + max_token);
}

char *ea_stream_tail(ea_stream *s)
{
    return s->hold + s->n_hold;
}

void ea_stream_put(ea_stream *s, size_t n)
{
    EA_ASSERT(n <= s->cap - s->n_hold);
    s->n_hold += n;
}

/* First place where a stop string occurs, or n_hold. At one place the first of the list counts. */
static size_t find_stop(const ea_stream *s, int *stop)
{
    size_t at = s->n_hold;
    *stop = -1;
    for (int i = 0; i < s->n_stops; i++) {
        const char *found = memmem(s->hold, s->n_hold, s->stops[i], s->stop_len[i]);
        if (found && (size_t)(found - s->hold) < at) {
            at = (size_t)(found - s->hold);
            *stop = i;
        }
    }
    return at;
}

/* Bytes at the end that are the beginning of a stop string. */
static size_t partial_stop(const ea_stream *s)
{
    size_t len = s->max_stop ? EA_MIN(s->max_stop - 1, s->n_hold) : 0;
    for (; len > 0; len--)
        for (int i = 0; i < s->n_stops; i++)
            if (s->stop_len[i] > len && memcmp(s->stops[i], s->hold + s->n_hold - len, len) == 0)
                return len;
    return 0;
}

/* Copy n bytes as valid UTF-8. */
static size_t copy_valid(char *out, const char *bytes, size_t n)
{
    size_t n_out = 0, whole = n - ea_utf8_incomplete_tail(bytes, n);
    for (size_t i = 0; i < whole;) {
        size_t len = ea_utf8_valid_len(bytes + i, whole - i);
        if (len) {
            memcpy(out + n_out, bytes + i, len);
            n_out += len;
            i += len;
        } else {
            memcpy(out + n_out, REPLACEMENT, sizeof REPLACEMENT - 1);
            n_out += sizeof REPLACEMENT - 1;
            i++;
        }
    }
    if (whole < n) { /* one character that will not be finished */
        memcpy(out + n_out, REPLACEMENT, sizeof REPLACEMENT - 1);
        n_out += sizeof REPLACEMENT - 1;
    }
    return n_out;
}

size_t ea_stream_take(ea_stream *s, bool last, char *out, int *stop)
{
    size_t n = find_stop(s, stop);
    if (*stop >= 0 || last) {
        size_t n_out = copy_valid(out, s->hold, n);
        s->n_hold = 0;
        return n_out;
    }
    n -= partial_stop(s);
    n -= ea_utf8_incomplete_tail(s->hold, n);
    size_t n_out = copy_valid(out, s->hold, n);
    memmove(s->hold, s->hold + n, s->n_hold - n);
    s->n_hold -= n;
    return n_out;
}
