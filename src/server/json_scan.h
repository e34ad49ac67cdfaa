/* json_scan.h: checks a request body against the JSON grammar (RFC 8259) and finds the members of
 * its top-level object, without building a tree. Messages, tools and template variables go on to
 * the chat template as the bytes that the client sent; only parameters are decoded. Pure. */
#ifndef EA_SERVER_JSON_SCAN_H
#define EA_SERVER_JSON_SCAN_H

#include "base/error.h"

enum {
    EA_JSON_MAX_DEPTH = 128,   /* nesting; what the template side accepts too */
    EA_JSON_MAX_MEMBERS = 256, /* of the top-level object; the longest API has about 60 */
};

/* One member; all pointers lead into the scanned text, except for keys written with escapes. */
typedef struct ea_json_member {
    char key[48];      /* decoded, cut: every key that we know is shorter */
    const char *value; /* first byte of the value */
    size_t n_bytes;
    char type; /* '{' '[' '"' 'n' (null) 't' 'f', '0' for numbers */
} ea_json_member;

typedef struct ea_json_object {
    ea_json_member *members;
    size_t n, cap;
} ea_json_object;

/* The whole of text must be one JSON object. EA_EFORMAT: the text names line, column and what is
 * wrong there; a key given twice at the top level is refused too, since readers differ in which
 * one counts. */
ea_status ea_server_json_scan(const char *text, size_t n, ea_json_object *out,
                              ea_error *err) EA_MUST_CHECK;
void ea_server_json_done(ea_json_object *object);

/* Member of that name, or NULL; a null value counts as absent. */
const ea_json_member *ea_server_json_find(const ea_json_object *object, const char *key);

#endif
