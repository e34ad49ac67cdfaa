/* buf.c: see buf.h. */
#include "base/buf.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

bool ea_buf_reserve(ea_buf *buf, size_t n_more)
{
    size_t want;
    if (buf->failed)
        return false;
    if (__builtin_add_overflow(buf->n, n_more, &want) ||
        __builtin_add_overflow(want, (size_t)1, &want) ||
        ea_grow((void **)&buf->data, &buf->cap, want, 1, NULL) != EA_OK) {
        buf->failed = true;
        return false;
    }
    if (buf->n == 0)
        buf->data[0] = '\0'; /* fresh memory: a string also before anything is added */
    return true;
}

void ea_buf_add(ea_buf *buf, const void *bytes, size_t n)
{
    if (!ea_buf_reserve(buf, n))
        return;
    if (n)
        memcpy(buf->data + buf->n, bytes, n);
    buf->n += n;
    buf->data[buf->n] = '\0';
}

void ea_buf_puts(ea_buf *buf, const char *s)
{
    ea_buf_add(buf, s, strlen(s));
}

void ea_buf_putc(ea_buf *buf, char c)
{
    ea_buf_add(buf, &c, 1);
}

void ea_buf_printf(ea_buf *buf, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) {
        buf->failed = true;
        return;
    }
    if (!ea_buf_reserve(buf, (size_t)n))
        return;
    va_start(ap, fmt);
    vsnprintf(buf->data + buf->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    buf->n += (size_t)n;
}

void ea_buf_clear(ea_buf *buf)
{
    buf->n = 0;
    if (buf->data)
        buf->data[0] = '\0';
}

void ea_buf_drop_front(ea_buf *buf, size_t n)
{
    EA_ASSERT(n <= buf->n);
    if (n == 0)
        return;
    memmove(buf->data, buf->data + n, buf->n - n + 1);
    buf->n -= n;
}

char *ea_buf_take(ea_buf *buf)
{
    if (!buf->data)
        ea_buf_add(buf, "", 0);
    char *out = buf->failed ? NULL : buf->data;
    if (!out)
        ea_free(buf->data);
    *buf = (ea_buf)EA_BUF_INIT;
    return out;
}

void ea_buf_done(ea_buf *buf)
{
    ea_free(buf->data);
    *buf = (ea_buf)EA_BUF_INIT;
}

void ea_buf_json_string(ea_buf *buf, const char *s, size_t n)
{
    ea_buf_putc(buf, '"');
    size_t i = 0;
    while (i < n) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\') {
            ea_buf_putc(buf, '\\');
            ea_buf_putc(buf, (char)c);
            i++;
        } else if (c == '\n') {
            ea_buf_puts(buf, "\\n");
            i++;
        } else if (c == '\r') {
            ea_buf_puts(buf, "\\r");
            i++;
        } else if (c == '\t') {
            ea_buf_puts(buf, "\\t");
            i++;
        } else if (c < 0x20 || c == 0x7f) {
            ea_buf_printf(buf, "\\u%04x", c);
            i++;
        } else {
            size_t len = ea_utf8_valid_len(s + i, n - i);
            if (len)
                ea_buf_add(buf, s + i, len);
            else
                ea_buf_puts(buf, "\xef\xbf\xbd");
            i += len ? len : 1;
        }
    }
    ea_buf_putc(buf, '"');
}

void ea_buf_json_double(ea_buf *buf, double value)
{
    if (!isfinite(value)) {
        ea_buf_puts(buf, "null");
        return;
    }
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    ea_buf_puts(buf, text);
}
