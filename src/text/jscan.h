/* jscan.h: JSON as the model writes it, character by character: a strict incremental scanner that
 * tells where a value ends, and views into text that it has accepted. Nothing is built and no
 * number is read, so text is handed on exactly as written. Pure functions over the caller's memory.
 */
#ifndef EA_TEXT_JSCAN_H
#define EA_TEXT_JSCAN_H

#include "base/buf.h"
#include "gguf/gguf.h"

enum { EA_JSCAN_DEPTH = 256 }; /* deeper values are refused */

typedef enum ea_jscan_result {
    EA_JSCAN_MORE,    /* a correct beginning */
    EA_JSCAN_DONE,    /* the value ended with this character */
    EA_JSCAN_INVALID, /* this character cannot be here; scan no further */
} ea_jscan_result;

/* All zero at the start of a value, which must be an object or an array (RFC 8259). */
typedef struct ea_jscan {
    uint8_t state, number;                 /* see jscan.c */
    uint8_t hex;                           /* digits still to come of \uXXXX */
    const char *literal;                   /* rest of true, false or null */
    int depth;                             /* open objects and arrays */
    uint8_t is_object[EA_JSCAN_DEPTH / 8]; /* one bit a level */
} ea_jscan;

ea_jscan_result ea_jscan_feed(ea_jscan *scan, char c);

/* True if text is one whole object or array, with white space around it at most. */
bool ea_json_valid(const char *text, size_t n);

/* Walk over an object or array that the scanner has accepted: members in order. */
typedef struct ea_jwalk {
    const char *at, *end;
    bool is_object;
} ea_jwalk;

/* False if value is neither. */
bool ea_jwalk_begin(ea_jwalk *walk, ea_str value);
/* The next member; key is the string's inside, still escaped (empty for arrays). */
bool ea_jwalk_next(ea_jwalk *walk, ea_str *key, ea_str *value);
/* The first member of that name (compared as written); false if there is none. */
bool ea_json_member(ea_str object, const char *name, ea_str *value);

static inline bool ea_json_is_object(ea_str value)
{
    return value.n > 0 && value.s[0] == '{';
}

static inline bool ea_json_is_string(ea_str value)
{
    return value.n > 0 && value.s[0] == '"';
}

/* Append what a string value (quotes included) stands for; lone surrogates become U+FFFD. */
void ea_json_unescape(ea_str value, ea_buf *out);

#endif
