/* options.h: the option table and the values that a command line, the environment and the
 * configuration file gave (in this order of precedence, then the table's defaults). Owned by the
 * main thread; immutable once parsed. */
#ifndef EA_CLI_OPTIONS_H
#define EA_CLI_OPTIONS_H

#include "base/buf.h"

/* Bit of each command in ea_option.commands. */
enum {
#define EA_COMMAND(id, name, n_operands, usage, summary, about, example) EA_CLI_BIT_##id,
#include "cli/commands.def"
#undef EA_COMMAND
    EA_CLI_N_BITS
};

typedef enum ea_option_id {
#define EA_OPTION(id, names, kind, meta, min, max, fallback, commands, help) EA_OPT_##id,
#include "cli/options.def"
#undef EA_OPTION
    EA_OPT_N,
} ea_option_id;

typedef enum ea_option_kind {
    EA_OPT_KIND_FLAG,
    EA_OPT_KIND_INT,
    EA_OPT_KIND_NUM,
    EA_OPT_KIND_TEXT,
    EA_OPT_KIND_FILE,
    EA_OPT_KIND_TEXTS,
    EA_OPT_KIND_INTS,
    EA_OPT_KIND_CHOICE,
} ea_option_kind;

typedef struct ea_option {
    const char *names, *meta, *fallback, *help;
    ea_option_kind kind;
    unsigned commands;
    double min, max;
} ea_option;

extern const ea_option ea_option_table[EA_OPT_N];

/* Canonical long name without its dashes, e.g. "ctx-size". */
void ea_option_key(const ea_option *option, char *buf, size_t size);
/* Its environment variable, e.g. "EDGEAGENT_CTX_SIZE". */
void ea_option_env(const ea_option *option, char *buf, size_t size);
/* The i-th of the option's names ("-c"), false past the last. */
bool ea_option_name(const ea_option *option, size_t i, char *buf, size_t size);
/* "an integer from 0 to 256": what a value must be, for messages and help; "" for texts. */
void ea_option_range(const ea_option *option, char *buf, size_t size);

/* May it come from the environment and the configuration file (else from the command line only:
 * doctor's options, since it reports also where the configuration is broken)? */
bool ea_option_in_env(ea_option_id id);
bool ea_option_in_config(ea_option_id id);

typedef enum ea_option_source {
    EA_FROM_NOWHERE,
    EA_FROM_DEFAULT,
    EA_FROM_CONFIG,
    EA_FROM_ENV,
    EA_FROM_ARGS,
} ea_option_source;

typedef struct ea_option_value {
    ea_option_source source;
    bool flag;
    int64_t integer;
    double number;
    const char *text;   /* TEXT, FILE, CHOICE: NULL while unset */
    const char **texts; /* TEXTS */
    int *ints;          /* INTS */
    size_t n, cap;      /* elements of texts or ints */
} ea_option_value;

struct ea_cli_command;

typedef struct ea_options {
    const struct ea_cli_command *command;
    ea_option_value values[EA_OPT_N];
    const char *operand; /* the words that `completion` and `help` take, with a blank, or NULL */
    char **owned;        /* texts copied from the configuration file */
    size_t n_owned, cap_owned;
} ea_options;

/* Parse the words after the command's name (words[n] need not be NULL), the environment and the
 * configuration file. EA_EINVAL: wrong usage (exit status 2), anything else: a failure (1). *o is
 * to be freed by ea_options_done in every case. */
ea_status ea_options_parse(ea_options *o, const struct ea_cli_command *command, int n, char **words,
                           ea_error *err) EA_MUST_CHECK;
void ea_options_done(ea_options *o);

/* Values. The id must belong to the command and have the kind; texts are NULL where unset. */
bool ea_opt_flag(const ea_options *o, ea_option_id id);
int64_t ea_opt_int(const ea_options *o, ea_option_id id);
double ea_opt_num(const ea_options *o, ea_option_id id);
const char *ea_opt_text(const ea_options *o, ea_option_id id);
const ea_option_value *ea_opt_list(const ea_options *o, ea_option_id id);

/* ---- for config.c and main.c ---- */

/* Set one option from text; `where` names the place in messages. A higher source replaces, the same
 * source replaces single values and extends lists, a lower one is ignored. */
ea_status ea_option_set(ea_options *o, ea_option_id id, ea_option_source source, const char *where,
                        const char *text, ea_error *err) EA_MUST_CHECK;
ea_status ea_options_read_env(ea_options *o, ea_error *err) EA_MUST_CHECK;
ea_status ea_options_read_config(ea_options *o, ea_error *err) EA_MUST_CHECK;
/* A copy that lives as long as *o; NULL when memory is out. */
const char *ea_options_keep(ea_options *o, const char *text, size_t n);

/* Edit distance (insert, delete, replace, swap of neighbours) of two words of at most 63 bytes. */
int ea_edit_distance(const char *a, const char *b);
/* Is `distance` small enough to suggest the word for what was typed? */
bool ea_edit_close(int distance, const char *typed);

#endif
