/* utf8.c: see utf8.h. Ranges: Unicode 15, table 3-7. */
#include "base/utf8.h"

/* Length that a lead byte announces; 0 for continuation bytes and bytes that never occur. */
static size_t announced_len(unsigned char c)
{
    if (c < 0x80)
        return 1;
    if (c >= 0xc2 && c <= 0xdf)
        return 2;
    if (c >= 0xe0 && c <= 0xef)
        return 3;
    if (c >= 0xf0 && c <= 0xf4)
        return 4;
    return 0;
}

/* Is c a legal second byte after lead? Excludes over-long forms, surrogates and values past
 * U+10FFFF. */
static int second_ok(unsigned char lead, unsigned char c)
{
    unsigned char lo = 0x80, hi = 0xbf;
    if (lead == 0xe0)
        lo = 0xa0;
    else if (lead == 0xed)
        hi = 0x9f;
    else if (lead == 0xf0)
        lo = 0x90;
    else if (lead == 0xf4)
        hi = 0x8f;
    return c >= lo && c <= hi;
}

size_t ea_utf8_valid_len(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t len = n ? announced_len(u[0]) : 0;
    if (len == 0 || len > n)
        return 0;
    if (len > 1 && !second_ok(u[0], u[1]))
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((u[i] & 0xc0) != 0x80)
            return 0;
    return len;
}

size_t ea_utf8_incomplete_tail(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = u[n - back];
        if ((c & 0xc0) == 0x80)
            continue;
        if (announced_len(c) <= back)
            return 0;
        if (back >= 2 && !second_ok(c, u[n - back + 1]))
            return 0;
        return back;
    }
    return 0;
}

uint32_t ea_utf8_decode(const char *s, size_t len)
{
    const unsigned char *u = (const unsigned char *)s;
    switch (len) {
    case 1: return u[0];
    case 2: return (uint32_t)(u[0] & 0x1f) << 6 | (u[1] & 0x3f);
    case 3: return (uint32_t)(u[0] & 0x0f) << 12 | (uint32_t)(u[1] & 0x3f) << 6 | (u[2] & 0x3f);
    default:
        return (uint32_t)(u[0] & 0x07) << 18 | (uint32_t)(u[1] & 0x3f) << 12 |
               (uint32_t)(u[2] & 0x3f) << 6 | (u[3] & 0x3f);
    }
}

size_t ea_utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}
