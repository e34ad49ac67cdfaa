/* ea_ext.h: the C side of the Rust library ext/: chat templates in Jinja, rendered by minijinja.
 * (Constraints by llguidance get their functions here too.)
 *
 * Nothing unwinds out of these functions and nothing aborts; a panic inside is EA_EXT_INTERNAL.
 * Text handed out is freed by ea_ext_text_free and nothing else. A template is immutable: any
 * number of threads may render it at once. Each compile and render runs on a thread of its own with
 * a large stack, since templates nest as deep as they like. */
#ifndef EA_EXT_H
#define EA_EXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Results. Anything but EA_EXT_OK leaves one line of reason in the text. */
enum {
    EA_EXT_OK = 0,
    EA_EXT_INPUT = 1,    /* messages, tools or variables are no JSON of the right shape */
    EA_EXT_SYNTAX = 2,   /* the template does not compile, or is larger than allowed */
    EA_EXT_REFUSED = 3,  /* the template called raise_exception */
    EA_EXT_RUNTIME = 4,  /* the template failed while rendering */
    EA_EXT_LIMIT = 5,    /* the template ran out of its budget of work, memory or output */
    EA_EXT_INTERNAL = 6, /* our bug, or no thread to be had */
};

typedef struct ea_ext_text {
    char *data; /* n bytes and a NUL; NULL if nothing was handed out */
    size_t n;
} ea_ext_text;

void ea_ext_text_free(ea_ext_text *text);

typedef struct ea_ext_template ea_ext_template;

/* Compile n bytes of Jinja source (at most EA_EXT_MAX_SOURCE) and find out how the template wants
 * its messages. *out is written on EA_EXT_OK, *reason otherwise. */
enum { EA_EXT_MAX_SOURCE = 128 * 1024 };
int ea_ext_template_create(const char *source, size_t n, ea_ext_template **out,
                           ea_ext_text *reason);
void ea_ext_template_destroy(ea_ext_template *t); /* NULL is fine */

/* Called back with every string of messages and tools; appends the protected text by
 * emit(sink, bytes, n), any number of times. Bytes must be UTF-8 in all. */
typedef void (*ea_ext_emit_fn)(void *sink, const char *bytes, size_t n);
typedef void (*ea_ext_protect_fn)(void *user, const char *text, size_t n, ea_ext_emit_fn emit,
                                  void *sink);

typedef struct ea_ext_render {
    const char *messages; /* JSON array, the client's own text */
    size_t n_messages;
    const char *tools; /* JSON array or null; NULL: the variable is undefined */
    size_t n_tools;
    const char *variables; /* JSON object of further variables, or NULL */
    size_t n_variables;
    const char *bos, *eos; /* bos_token, eos_token */
    bool add_generation_prompt;
    /* Adapt messages to what the template can take: arguments given as JSON text become objects,
     * lists of text parts become strings, tools are written into the system message where the
     * template ignores them. false: as they are. */
    bool adapt;
    int64_t now;               /* seconds since 1970 for strftime_now; negative: the clock's */
    ea_ext_protect_fn protect; /* or NULL */
    void *protect_user;
} ea_ext_render;

/* *out: the rendering, or the reason. */
int ea_ext_template_render(const ea_ext_template *t, const ea_ext_render *params, ea_ext_text *out);

#endif
