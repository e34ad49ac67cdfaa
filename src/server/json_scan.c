/* json_scan.c: see json_scan.h. A recursive descent over bytes; the depth limit bounds the stack,
 * and every loop moves forward, so that time is linear in the text.
 *
 * Why not the JSON library here: it builds a tree of a body that may have megabytes of history, and
 * it refuses some legal text (integers past 64 bits, lone surrogates), which a tool schema or a
 * message may well contain. Grammar: RFC 8259; test_json_scan compares both readers. */
#include "server/json_scan.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

typedef struct scan {
    const char *text;
    size_t n, at;
    int depth;
    ea_error *err;
} scan;

/* Where we are, for people: lines and columns count from 1, columns in characters. */
static ea_status fail_at(const scan *s, size_t at, const char *what)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at && i < s->n; i++) {
        if (s->text[i] == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)s->text[i] & 0xc0) != 0x80) {
            column++;
        }
    }
    return ea_fail(s->err, EA_EFORMAT, "invalid JSON at line %zu, column %zu: %s", line, column,
                   what);
}

static void skip_space(scan *s)
{
    while (s->at < s->n && (s->text[s->at] == ' ' || s->text[s->at] == '\n' ||
                            s->text[s->at] == '\r' || s->text[s->at] == '\t'))
        s->at++;
}

/* The byte here, or 0 at the end; a NUL in the text is no legal byte anywhere outside strings
 * either, and inside them we look at `at` first. */
static char peek(const scan *s)
{
    return s->at < s->n ? s->text[s->at] : '\0';
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* At a backslash. Surrogates need not come in pairs here: the grammar allows it, and who reads the
 * string decides. */
static ea_status scan_escape(scan *s)
{
    size_t start = s->at++;
    char c = peek(s);
    if (c == 'u') {
        for (int i = 1; i <= 4; i++)
            if (s->at + (size_t)i >= s->n || !is_hex(s->text[s->at + (size_t)i]))
                return fail_at(s, start, "\\u needs four hexadecimal digits");
        s->at += 5;
        return EA_OK;
    }
    if (c == '\0' || !strchr("\"\\/bfnrt", c))
        return fail_at(s, start, "unknown escape in a string");
    s->at++;
    return EA_OK;
}

/* At the opening quote. All text must be UTF-8: it goes on to the tokenizer and into answers. */
static ea_status scan_string(scan *s)
{
    size_t start = s->at++;
    while (s->at < s->n) {
        unsigned char c = (unsigned char)s->text[s->at];
        if (c == '"') {
            s->at++;
            return EA_OK;
        }
        if (c == '\\') {
            EA_TRY(scan_escape(s));
        } else if (c < 0x20) {
            return fail_at(s, s->at, "control character in a string (write it as \\n, \\t, ...)");
        } else if (c < 0x80) {
            s->at++;
        } else {
            size_t len = ea_utf8_valid_len(s->text + s->at, s->n - s->at);
            if (!len)
                return fail_at(s, s->at, "bytes in a string that are not UTF-8");
            s->at += len;
        }
    }
    return fail_at(s, start, "a string that starts here does not end");
}

static bool scan_digits(scan *s)
{
    size_t start = s->at;
    while (peek(s) >= '0' && peek(s) <= '9')
        s->at++;
    return s->at > start;
}

/* Any size: whether a number fits is a matter of the field that reads it. */
static ea_status scan_number(scan *s)
{
    size_t start = s->at;
    if (peek(s) == '-')
        s->at++;
    bool leading_zero = peek(s) == '0';
    size_t first = s->at;
    if (!scan_digits(s))
        return fail_at(s, start, "a number needs digits");
    if (leading_zero && s->at - first > 1)
        return fail_at(s, start, "a number may not start with 0");
    if (peek(s) == '.') {
        s->at++;
        if (!scan_digits(s))
            return fail_at(s, start, "a number needs digits after the point");
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->at++;
        if (peek(s) == '+' || peek(s) == '-')
            s->at++;
        if (!scan_digits(s))
            return fail_at(s, start, "a number needs digits in its exponent");
    }
    return EA_OK;
}

static ea_status scan_word(scan *s, const char *word)
{
    size_t len = strlen(word);
    if (s->n - s->at < len || memcmp(s->text + s->at, word, len) != 0)
        return fail_at(s, s->at, "expected a value");
    s->at += len;
    return EA_OK;
}

static ea_status scan_value(scan *s, ea_json_object *out);

/* key: the literal with its quotes. \u is decoded only for ASCII: no key of ours has others, and a
 * key that stays unknown is ignored in any case. */
static void decode_key(const char *key, size_t n, char out[static 48])
{
    size_t at = 0;
    for (size_t i = 1; i + 1 < n && at < 47; i++) {
        char c = key[i];
        if (c == '\\') {
            unsigned code = 0;
            c = key[++i];
            if (c == 'u') {
                for (int k = 0; k < 4; k++) {
                    char h = key[++i];
                    code = code * 16 + (unsigned)(h <= '9' ? h - '0' : (h | 0x20) - 'a' + 10);
                }
                c = code >= 0x20 && code < 0x7f ? (char)code : '?';
            } else {
                static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
                const char *which = strchr(from, c);
                c = which ? to[which - from] : c;
            }
        }
        out[at++] = c;
    }
    out[at] = '\0';
}

/* Quadratic in the number of members, which the limit keeps harmless. */
static ea_status add_member(scan *s, ea_json_object *out, size_t key_at, size_t key_end,
                            size_t value_at)
{
    if (out->n >= EA_JSON_MAX_MEMBERS)
        return fail_at(s, key_at, "too many fields in the request (limit 256)");
    EA_TRY(ea_grow((void **)&out->members, &out->cap, out->n + 1, sizeof *out->members, s->err));
    ea_json_member *m = &out->members[out->n];
    decode_key(s->text + key_at, key_end - key_at, m->key);
    bool whole = strlen(m->key) < sizeof m->key - 1; /* a cut key may look like another one */
    for (size_t i = 0; whole && i < out->n; i++) {
        if (strcmp(out->members[i].key, m->key) == 0) {
            char what[96];
            snprintf(what, sizeof what, "field '%s' is given twice", m->key);
            return fail_at(s, key_at, what);
        }
    }
    m->value = s->text + value_at;
    m->n_bytes = s->at - value_at;
    char c = m->value[0];
    m->type = c == '-' || (c >= '0' && c <= '9') ? '0' : c;
    out->n++;
    return EA_OK;
}

/* At '{'. out as for scan_value. */
static ea_status scan_object(scan *s, ea_json_object *out)
{
    s->at++;
    skip_space(s);
    if (peek(s) == '}') {
        s->at++;
        return EA_OK;
    }
    for (;;) {
        skip_space(s);
        if (peek(s) != '"')
            return fail_at(s, s->at, "expected a field name in double quotes");
        size_t key_at = s->at;
        EA_TRY(scan_string(s));
        size_t key_end = s->at;
        skip_space(s);
        if (peek(s) != ':')
            return fail_at(s, s->at, "expected ':' after a field name");
        s->at++;
        skip_space(s);
        size_t value_at = s->at;
        EA_TRY(scan_value(s, NULL));
        if (out)
            EA_TRY(add_member(s, out, key_at, key_end, value_at));
        skip_space(s);
        char c = peek(s);
        if (c != ',' && c != '}')
            return fail_at(s, s->at,
                           s->at < s->n ? "expected ',' or '}'" : "the text ends in an object");
        s->at++;
        if (c == '}')
            return EA_OK;
    }
}

static ea_status scan_array(scan *s)
{
    s->at++;
    skip_space(s);
    if (peek(s) == ']') {
        s->at++;
        return EA_OK;
    }
    for (;;) {
        skip_space(s);
        EA_TRY(scan_value(s, NULL));
        skip_space(s);
        char c = peek(s);
        if (c != ',' && c != ']')
            return fail_at(s, s->at,
                           s->at < s->n ? "expected ',' or ']'" : "the text ends in an array");
        s->at++;
        if (c == ']')
            return EA_OK;
    }
}

/* out: where to note the members if this is an object; NULL everywhere but at the top. */
static ea_status scan_value(scan *s, ea_json_object *out)
{
    ea_status status;
    switch (peek(s)) {
    case '{':
    case '[':
        if (++s->depth > EA_JSON_MAX_DEPTH)
            return fail_at(s, s->at, "nested too deeply (limit 128)");
        status = peek(s) == '{' ? scan_object(s, out) : scan_array(s);
        s->depth--;
        return status;
    case '"': return scan_string(s);
    case 't': return scan_word(s, "true");
    case 'f': return scan_word(s, "false");
    case 'n': return scan_word(s, "null");
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9': return scan_number(s);
    default: return fail_at(s, s->at, s->at < s->n ? "expected a value" : "the text ends here");
    }
}

ea_status ea_server_json_scan(const char *text, size_t n, ea_json_object *out, ea_error *err)
{
    scan s = {.text = text, .n = n, .err = err};
    ea_json_object object = {0};
    ea_status status = EA_OK;
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        s.at = 3; /* a byte order mark is not JSON, but some editors leave one */
    skip_space(&s);
    if (s.at == n) {
        status = ea_fail(err, EA_EFORMAT, "the request body is empty; expected a JSON object");
        goto fail;
    }
    if (peek(&s) != '{') {
        status = fail_at(&s, s.at, "the request must be a JSON object");
        goto fail;
    }
    EA_TRY_GOTO(scan_value(&s, &object));
    skip_space(&s);
    if (s.at != n) {
        status = fail_at(&s, s.at, "text after the end of the object");
        goto fail;
    }
    *out = object;
    return EA_OK;
fail:
    ea_server_json_done(&object);
    return status;
}

void ea_server_json_done(ea_json_object *object)
{
    ea_free(object->members);
    *object = (ea_json_object){0};
}

const ea_json_member *ea_server_json_find(const ea_json_object *object, const char *key)
{
    for (size_t i = 0; i < object->n; i++)
        if (strcmp(object->members[i].key, key) == 0)
            return object->members[i].type == 'n' ? NULL : &object->members[i];
    return NULL;
}
