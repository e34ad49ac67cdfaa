/* jscan.c: see jscan.h. The scanner is a pushdown automaton with one bit of stack a level. */
#include "text/jscan.h"

#include <string.h>

#include "base/utf8.h"

enum {
    BEGIN = 0,   /* white space, then { or [ */
    VALUE,       /* a value must come */
    FIRST_VALUE, /* after [: a value or ] */
    FIRST_KEY,   /* after {: a key or } */
    KEY,         /* after a comma in an object */
    COLON,       /* after a key */
    NEXT,        /* after a value: comma or close */
    STRING,      /* inside a string value */
    KEY_STRING,  /* inside a key */
    ESCAPE,      /* after a backslash in a string value */
    KEY_ESCAPE,  /* the same in a key */
    NUMBER,      /* inside a number */
    LITERAL,     /* inside true, false, null */
};

/* States of a number: what has been read. */
enum { MINUS = 1, ZERO, DIGITS, POINT, FRACTION, EXP, EXP_SIGN, EXP_DIGITS };

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool in_object(const ea_jscan *s)
{
    return s->is_object[(s->depth - 1) / 8] >> (s->depth - 1) % 8 & 1;
}

static ea_jscan_result open_value(ea_jscan *s, bool object)
{
    if (s->depth == EA_JSCAN_DEPTH)
        return EA_JSCAN_INVALID;
    uint8_t bit = (uint8_t)(1u << s->depth % 8);
    if (object)
        s->is_object[s->depth / 8] |= bit;
    else
        s->is_object[s->depth / 8] &= (uint8_t)~bit;
    s->depth++;
    s->state = object ? FIRST_KEY : FIRST_VALUE;
    return EA_JSCAN_MORE;
}

static ea_jscan_result close_value(ea_jscan *s, bool object)
{
    if (in_object(s) != object)
        return EA_JSCAN_INVALID;
    s->state = NEXT;
    return --s->depth == 0 ? EA_JSCAN_DONE : EA_JSCAN_MORE;
}

static ea_jscan_result begin_value(ea_jscan *s, char c)
{
    if (c == '{' || c == '[')
        return open_value(s, c == '{');
    if (c == '"') {
        s->state = STRING;
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        s->state = NUMBER;
        s->number = c == '-' ? MINUS : c == '0' ? ZERO : DIGITS;
    } else if (c == 't' || c == 'f' || c == 'n') {
        s->state = LITERAL;
        s->literal = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
    } else {
        return EA_JSCAN_INVALID;
    }
    return EA_JSCAN_MORE;
}

static ea_jscan_result after_value(ea_jscan *s, char c)
{
    if (c == ',') {
        s->state = in_object(s) ? KEY : VALUE;
        return EA_JSCAN_MORE;
    }
    return c == '}' || c == ']' ? close_value(s, c == '}') : EA_JSCAN_INVALID;
}

/* The number's state after c; 0 if c does not continue it. */
static uint8_t number_next(uint8_t state, char c)
{
    bool digit = c >= '0' && c <= '9';
    switch (state) {
    case MINUS: return c == '0' ? ZERO : digit ? DIGITS : 0;
    case ZERO: return c == '.' ? POINT : (c | 0x20) == 'e' ? EXP : 0;
    case DIGITS: return digit ? DIGITS : c == '.' ? POINT : (c | 0x20) == 'e' ? EXP : 0;
    case POINT: return digit ? FRACTION : 0;
    case FRACTION: return digit ? FRACTION : (c | 0x20) == 'e' ? EXP : 0;
    case EXP: return digit ? EXP_DIGITS : c == '+' || c == '-' ? EXP_SIGN : 0;
    case EXP_SIGN:
    case EXP_DIGITS: return digit ? EXP_DIGITS : 0;
    default: return 0;
    }
}

static bool number_may_end(uint8_t state)
{
    return state == ZERO || state == DIGITS || state == FRACTION || state == EXP_DIGITS;
}

static ea_jscan_result feed_string(ea_jscan *s, char c)
{
    bool key = s->state == KEY_STRING || s->state == KEY_ESCAPE;
    if (s->state == ESCAPE || s->state == KEY_ESCAPE) {
        if (s->hex) {
            char lower = (char)(c | 0x20);
            if (!((c >= '0' && c <= '9') || (lower >= 'a' && lower <= 'f')))
                return EA_JSCAN_INVALID;
            if (--s->hex)
                return EA_JSCAN_MORE;
        } else if (c == 'u') {
            s->hex = 4;
            return EA_JSCAN_MORE;
        } else if (!c || !strchr("\"\\/bfnrt", c)) {
            return EA_JSCAN_INVALID;
        }
        s->state = key ? KEY_STRING : STRING;
    } else if (c == '\\') {
        s->state = key ? KEY_ESCAPE : ESCAPE;
    } else if (c == '"') {
        s->state = key ? COLON : NEXT;
    } else if ((unsigned char)c < 0x20) {
        return EA_JSCAN_INVALID;
    }
    return EA_JSCAN_MORE;
}

ea_jscan_result ea_jscan_feed(ea_jscan *s, char c)
{
    if (s->state >= STRING && s->state <= KEY_ESCAPE)
        return feed_string(s, c);
    if (s->state == LITERAL) {
        if (*s->literal != c)
            return EA_JSCAN_INVALID;
        if (!*++s->literal)
            s->state = NEXT;
        return EA_JSCAN_MORE;
    }
    if (s->state == NUMBER) {
        uint8_t next = number_next(s->number, c);
        if (next) {
            s->number = next;
            return EA_JSCAN_MORE;
        }
        if (!number_may_end(s->number))
            return EA_JSCAN_INVALID;
        s->state = NEXT; /* and c is what comes after it */
    }
    if (is_space(c))
        return EA_JSCAN_MORE;
    switch (s->state) {
    case BEGIN: return c == '{' || c == '[' ? open_value(s, c == '{') : EA_JSCAN_INVALID;
    case FIRST_VALUE:
        if (c == ']')
            return close_value(s, false);
        return begin_value(s, c);
    case VALUE: return begin_value(s, c);
    case FIRST_KEY:
        if (c == '}')
            return close_value(s, true);
        /* fall through */
    case KEY:
        if (c != '"')
            return EA_JSCAN_INVALID;
        s->state = KEY_STRING;
        return EA_JSCAN_MORE;
    case COLON:
        if (c != ':')
            return EA_JSCAN_INVALID;
        s->state = VALUE;
        return EA_JSCAN_MORE;
    default: return after_value(s, c);
    }
}

bool ea_json_valid(const char *text, size_t n)
{
    ea_jscan scan = {0};
    for (size_t i = 0; i < n; i++) {
        ea_jscan_result result = ea_jscan_feed(&scan, text[i]);
        if (result == EA_JSCAN_INVALID)
            return false;
        if (result == EA_JSCAN_DONE) {
            while (++i < n)
                if (!is_space(text[i]))
                    return false;
            return true;
        }
    }
    return false;
}

/* ---- views into accepted text ---- */

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && is_space(*at))
        at++;
    return at;
}

/* at: the opening quote; returns what follows the closing one. */
static const char *skip_string(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++)
        at += *at == '\\';
    return at < end ? at + 1 : end;
}

static const char *skip_value(const char *at, const char *end)
{
    int depth = 0;
    while (at < end) {
        if (*at == '"') {
            at = skip_string(at, end);
        } else if (*at == '{' || *at == '[') {
            depth++;
            at++;
        } else if (*at == '}' || *at == ']') {
            if (depth == 0)
                return at; /* the end of a scalar before it */
            depth--;
            at++;
        } else if (depth == 0 && (*at == ',' || is_space(*at))) {
            return at;
        } else {
            at++;
            continue;
        }
        if (depth == 0)
            return at;
    }
    return at;
}

bool ea_jwalk_begin(ea_jwalk *walk, ea_str value)
{
    const char *end = value.s + value.n, *at = skip_space(value.s, end);
    if (at == end || (*at != '{' && *at != '['))
        return false;
    *walk = (ea_jwalk){at + 1, end, *at == '{'};
    return true;
}

bool ea_jwalk_next(ea_jwalk *walk, ea_str *key, ea_str *value)
{
    const char *at = skip_space(walk->at, walk->end), *end = walk->end;
    if (at < end && *at == ',')
        at = skip_space(at + 1, end);
    if (at >= end || *at == '}' || *at == ']')
        return false;
    *key = (ea_str){at, 0};
    if (walk->is_object) {
        const char *close = skip_string(at, end);
        *key = (ea_str){at + 1, (size_t)(close - at) - 2};
        at = skip_space(skip_space(close, end) + 1, end); /* past the colon */
    }
    const char *after = skip_value(at, end);
    *value = (ea_str){at, (size_t)(after - at)};
    walk->at = after;
    return true;
}

bool ea_json_member(ea_str object, const char *name, ea_str *value)
{
    ea_jwalk walk;
    ea_str key, found;
    if (!ea_jwalk_begin(&walk, object) || !walk.is_object)
        return false;
    while (ea_jwalk_next(&walk, &key, &found))
        if (key.n == strlen(name) && memcmp(key.s, name, key.n) == 0) {
            *value = found;
            return true;
        }
    return false;
}

static unsigned hex4(const char *s)
{
    unsigned value = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        value = value * 16 + (unsigned)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return value;
}

/* at: the 'u' of \uXXXX; appends the character, returns what follows (the pair's second half too).
 */
static const char *unescape_unicode(const char *at, const char *end, ea_buf *out)
{
    unsigned cp = hex4(at + 1);
    at += 5;
    if (cp >= 0xd800 && cp < 0xdc00 && end - at >= 6 && at[0] == '\\' && at[1] == 'u') {
        unsigned low = hex4(at + 2);
        if (low >= 0xdc00 && low < 0xe000) {
            cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
            at += 6;
        }
    }
    if (cp >= 0xd800 && cp < 0xe000)
        cp = 0xfffd;
    char bytes[4];
    ea_buf_add(out, bytes, ea_utf8_encode(cp, bytes));
    return at;
}

void ea_json_unescape(ea_str value, ea_buf *out)
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    const char *at = value.s + 1, *end = value.s + value.n - 1;
    while (at < end) {
        const char *stop = memchr(at, '\\', (size_t)(end - at));
        size_t plain = (size_t)((stop ? stop : end) - at);
        ea_buf_add(out, at, plain);
        at += plain;
        if (!stop)
            break;
        if (*++at == 'u') {
            at = unescape_unicode(at, end, out);
            continue;
        }
        const char *known = strchr(from, *at);
        ea_buf_putc(out, known ? to[known - from] : *at);
        at++;
    }
}
