/* stream.h: bytes of generated tokens -> text that may be shown: whole UTF-8 characters, up to the
 * first stop string. Bytes that may still become a stop string or a character are held back. Bytes
 * that are no UTF-8 come out as U+FFFD, a character cut off at the end as a single one. One a
 * request, owned by the engine thread once the request is submitted; only _init allocates. */
#ifndef EA_ENGINE_STREAM_H
#define EA_ENGINE_STREAM_H

#include "base/error.h"

typedef struct ea_stream {
    char **stops;
    size_t *stop_len;
    int n_stops;
    size_t max_stop; /* longest of them */
    char *hold;
    size_t n_hold, cap;
} ea_stream;

/* Copies the stop strings. max_token: bytes of the longest token. EA_EINVAL: too many, too long, or
 * an empty one. */
ea_status ea_stream_init(ea_stream *s, const char *const *stops, size_t n_stops, size_t max_token,
                         ea_error *err) EA_MUST_CHECK;
void ea_stream_done(ea_stream *s);

/* Room that ea_stream_take needs at most, for any stream with this longest token. */
size_t ea_stream_max_out(size_t max_token);

/* Where the next token's bytes go: at most max_token of them; tell with _put how many came. */
char *ea_stream_tail(ea_stream *s);
void ea_stream_put(ea_stream *s, size_t n);

/* Move what may be shown to out, returning its length. *stop: index of the stop string that was
 * found, or -1; the rest of the stream is empty then. last: nothing follows, so nothing is held. */
size_t ea_stream_take(ea_stream *s, bool last, char *out, int *stop);

#endif
