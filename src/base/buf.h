/* buf.h: a growable byte buffer, also used as string builder. Errors stick: after an allocation
 * fails every later call does nothing, and ea_buf_failed tells. Owned by one thread at a time. */
#ifndef EA_BASE_BUF_H
#define EA_BASE_BUF_H

#include "base/error.h"

typedef struct ea_buf {
    char *data; /* NUL-terminated once anything was added; NULL while empty */
    size_t n, cap;
    bool failed;
} ea_buf;

#define EA_BUF_INIT       \
    {                     \
        NULL, 0, 0, false \
    }

void ea_buf_add(ea_buf *buf, const void *bytes, size_t n);
void ea_buf_puts(ea_buf *buf, const char *s);
void ea_buf_putc(ea_buf *buf, char c);
void ea_buf_printf(ea_buf *buf, const char *fmt, ...) EA_PRINTF(2, 3);
bool ea_buf_reserve(ea_buf *buf, size_t n_more); /* room for n_more further bytes */
void ea_buf_clear(ea_buf *buf);                  /* length 0, memory kept */
void ea_buf_drop_front(ea_buf *buf, size_t n);   /* remove the first n bytes */
/* Hand the bytes to the caller (free with ea_free; "" if empty); NULL if the buffer failed. The
 * buffer is empty after. */
char *ea_buf_take(ea_buf *buf);
void ea_buf_done(ea_buf *buf);

/* JSON string literal of n bytes, quotes included; bytes that are not UTF-8 become U+FFFD. */
void ea_buf_json_string(ea_buf *buf, const char *s, size_t n);
/* Shortest decimal that reads back as the same double; "null" for NaN and infinities. */
void ea_buf_json_double(ea_buf *buf, double value);

#endif
