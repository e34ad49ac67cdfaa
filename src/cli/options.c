/* options.c: see options.h. Values are checked where they are set, so that a command reads only
 * values in range. */
#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "cli/cli.h"

/* ---- the table ---- */

enum {
#define EA_COMMAND(id, name, n_operands, usage, summary, about, example) id = 1 << EA_CLI_BIT_##id,
#include "cli/commands.def"
#undef EA_COMMAND
    ALL = (1 << EA_CLI_N_BITS) - 1,
};

const ea_option ea_option_table[EA_OPT_N] = {
#define EA_OPTION(id, names_, kind_, meta_, min_, max_, fallback_, commands_, help_) \
    [EA_OPT_##id] = {.names = names_,                                                \
                     .kind = EA_OPT_KIND_##kind_,                                    \
                     .meta = meta_,                                                  \
                     .min = min_,                                                    \
                     .max = max_,                                                    \
                     .fallback = fallback_,                                          \
                     .commands = commands_,                                          \
                     .help = help_},
#include "cli/options.def"
#undef EA_OPTION
};

bool ea_option_name(const ea_option *option, size_t i, char *buf, size_t size)
{
    const char *name = option->names;
    for (; i > 0; i--) {
        name = strchr(name, ',');
        if (!name)
            return false;
        name++;
    }
    snprintf(buf, size, "%.*s", (int)strcspn(name, ","), name);
    return true;
}

void ea_option_key(const ea_option *option, char *buf, size_t size)
{
    char name[64] = "";
    for (size_t i = 0; ea_option_name(option, i, name, sizeof name); i++)
        if (name[1] == '-')
            break;
    snprintf(buf, size, "%s", name + strspn(name, "-"));
}

void ea_option_env(const ea_option *option, char *buf, size_t size)
{
    char key[64];
    ea_option_key(option, key, sizeof key);
    for (char *c = key; *c; c++)
        *c = *c == '-' ? '_' : (char)(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
    snprintf(buf, size, "EDGEAGENT_%s", key);
}

void ea_option_range(const ea_option *option, char *buf, size_t size)
{
    switch (option->kind) {
    case EA_OPT_KIND_INT:
        snprintf(buf, size, "an integer from %.0f to %.0f", option->min, option->max);
        break;
    case EA_OPT_KIND_INTS:
        snprintf(buf, size, "a list of integers from %.0f to %.0f", option->min, option->max);
        break;
    case EA_OPT_KIND_NUM:
        snprintf(buf, size, "a number from %g to %g", option->min, option->max);
        break;
    case EA_OPT_KIND_CHOICE: snprintf(buf, size, "one of %s", option->meta); break;
    case EA_OPT_KIND_FLAG: snprintf(buf, size, "on or off"); break;
    default: buf[0] = '\0';
    }
}

bool ea_option_in_env(ea_option_id id)
{
    return id != EA_OPT_HELP && id != EA_OPT_VERSION && id != EA_OPT_JSON &&
           id != EA_OPT_NO_MEASURE;
}

bool ea_option_in_config(ea_option_id id)
{
    return ea_option_in_env(id) && id != EA_OPT_CONFIG;
}

/* The row that `name` (as typed, with dashes) means among those of `commands`; EA_OPT_N if none. */
static ea_option_id find_name(const char *name, unsigned commands)
{
    char known[64];
    for (int id = 0; id < EA_OPT_N; id++)
        if (ea_option_table[id].commands & commands)
            for (size_t i = 0; ea_option_name(&ea_option_table[id], i, known, sizeof known); i++)
                if (strcmp(known, name) == 0)
                    return (ea_option_id)id;
    return EA_OPT_N;
}

/* ---- suggestions ---- */

int ea_edit_distance(const char *a, const char *b)
{
    enum { MAX = 64 };
    size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a >= MAX || n_b >= MAX)
        return MAX;
    int rows[3][MAX + 1]; /* of the matrix: before last, last, this */
    int *old = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= n_b; j++)
        last[j] = (int)j;
    memset(old, 0, sizeof rows[0]);
    for (size_t i = 1; i <= n_a; i++) {
        now[0] = (int)i;
        for (size_t j = 1; j <= n_b; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            best = EA_MIN(best, EA_MIN(last[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = EA_MIN(best, old[j - 2] + 1);
            now[j] = best;
        }
        int *free_row = old;
        old = last;
        last = now;
        now = free_row;
    }
    return last[n_b];
}

bool ea_edit_close(int distance, const char *typed)
{
    /* Dashes are in nearly every name, so they carry no evidence; a third of the rest may differ.
     */
    size_t n = strlen(typed + strspn(typed, "-"));
    return distance <= EA_MAX((int)n / 3, n >= 3 ? 1 : 0);
}

/* Nearest name among the options of `commands`, or false. */
static bool nearest(const char *typed, unsigned commands, char *buf, size_t size)
{
    char known[64];
    int best = 64;
    for (int id = 0; id < EA_OPT_N; id++)
        if (ea_option_table[id].commands & commands)
            for (size_t i = 0; ea_option_name(&ea_option_table[id], i, known, sizeof known); i++) {
                int distance = ea_edit_distance(typed, known);
                if (distance < best) {
                    best = distance;
                    snprintf(buf, size, "%s", known);
                }
            }
    return ea_edit_close(best, typed);
}

static ea_status fail_unknown(const ea_options *o, const char *typed, ea_error *err)
{
    ea_option_id elsewhere = find_name(typed, ALL);
    if (elsewhere != EA_OPT_N)
        for (size_t i = 0; i < ea_cli_n_commands; i++)
            if (ea_option_table[elsewhere].commands & ea_cli_commands[i].bit)
                return ea_fail(err, EA_EINVAL, "%s is an option of %s, not of %s", typed,
                               ea_cli_commands[i].name, o->command->name);
    char name[64];
    if (nearest(typed, o->command->bit, name, sizeof name))
        return ea_fail(err, EA_EINVAL, "unknown option %s; did you mean %s?", typed, name);
    return ea_fail(err, EA_EINVAL, "unknown option %s; see edgeagent %s --help", typed,
                   o->command->name);
}

/* ---- values ---- */

static bool parse_int(const char *text, const ea_option *option, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || !((double)value >= option->min) ||
        !((double)value <= option->max))
        return false;
    *out = value;
    return true;
}

static bool parse_num(const char *text, const ea_option *option, double *out)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= option->min) || !(value <= option->max))
        return false;
    *out = value;
    return true;
}

static bool parse_flag(const char *text, bool *out)
{
    static const char *const yes[] = {"1", "true", "on", "yes"}, *const no[] = {"0", "false", "off",
                                                                                "no"};
    for (size_t i = 0; i < EA_ARRAY_LEN(yes); i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *out = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static bool add_int(ea_option_value *v, int64_t value)
{
    void *ints = v->ints;
    if (v->n >= 1000 || ea_grow(&ints, &v->cap, v->n + 1, sizeof *v->ints, NULL) != EA_OK)
        return false;
    v->ints = ints;
    v->ints[v->n++] = (int)value;
    return true;
}

/* One element of a list: N, FIRST-LAST, FIRST-LAST+STEP or FIRST-LAST*FACTOR (n bytes at text). */
static bool parse_element(const char *text, size_t n, const ea_option *option, ea_option_value *v)
{
    char buf[64], op = '+';
    if (n == 0 || n >= sizeof buf)
        return false;
    memcpy(buf, text, n);
    buf[n] = '\0';
    int64_t first, last, step = 1;
    char *dash = strchr(buf + 1, '-');
    if (!dash)
        return parse_int(buf, option, &first) && add_int(v, first);
    char *by = dash + strcspn(dash, "+*");
    if (*by) {
        const ea_option positive = {.min = *by == '*' ? 2 : 1, .max = EA_MAX_CTX};
        op = *by;
        if (!parse_int(by + 1, &positive, &step))
            return false;
        *by = '\0';
    }
    *dash = '\0';
    if (!parse_int(buf, option, &first) || !parse_int(dash + 1, option, &last) || first > last ||
        (op == '*' && first <= 0))
        return false;
    for (int64_t i = first; i <= last; i = op == '*' ? i * step : i + step)
        if (!add_int(v, i))
            return false;
    return true;
}

static bool parse_ints(const char *text, const ea_option *option, ea_option_value *v)
{
    for (;;) {
        size_t n = strcspn(text, ",");
        if (!parse_element(text, n, option, v))
            return false;
        if (!text[n])
            return true;
        text += n + 1;
    }
}

static bool is_choice(const char *text, const char *choices)
{
    size_t n = strlen(text);
    for (const char *c = choices;; c++) {
        size_t len = strcspn(c, "|");
        if (len == n && memcmp(c, text, n) == 0)
            return true;
        c += len;
        if (!*c)
            return false;
    }
}

static bool add_text(ea_option_value *v, const char *text)
{
    void *texts = v->texts;
    if (ea_grow(&texts, &v->cap, v->n + 1, sizeof *v->texts, NULL) != EA_OK)
        return false;
    v->texts = texts;
    v->texts[v->n++] = text;
    return true;
}

ea_status ea_option_set(ea_options *o, ea_option_id id, ea_option_source source, const char *where,
                        const char *text, ea_error *err)
{
    const ea_option *option = &ea_option_table[id];
    ea_option_value *v = &o->values[id];
    if (v->source > source)
        return EA_OK;
    if (v->source < source)
        v->n = 0;
    bool good = true;
    switch (option->kind) {
    case EA_OPT_KIND_FLAG: good = parse_flag(text, &v->flag); break;
    case EA_OPT_KIND_INT: good = parse_int(text, option, &v->integer); break;
    case EA_OPT_KIND_NUM: good = parse_num(text, option, &v->number); break;
    case EA_OPT_KIND_INTS: good = parse_ints(text, option, v); break;
    case EA_OPT_KIND_CHOICE: good = is_choice(text, option->meta); /* fall through */
    case EA_OPT_KIND_TEXT:
    case EA_OPT_KIND_FILE: v->text = text; break;
    case EA_OPT_KIND_TEXTS:
        if (!add_text(v, text))
            return ea_fail(err, EA_ENOMEM, "%s: out of memory", where);
        break;
    }
    if (!good) {
        char range[96];
        ea_option_range(option, range, sizeof range);
        return ea_fail(err, EA_EINVAL, "%s: '%.100s' is not %s", where, text, range);
    }
    v->source = source;
    return EA_OK;
}

const char *ea_options_keep(ea_options *o, const char *text, size_t n)
{
    void *owned = o->owned;
    if (ea_grow(&owned, &o->cap_owned, o->n_owned + 1, sizeof *o->owned, NULL) != EA_OK)
        return NULL;
    o->owned = owned;
    char *copy = ea_strndup(text, n);
    if (copy)
        o->owned[o->n_owned++] = copy;
    return copy;
}

/* ---- the command line ---- */

/* "--name=value" as two words: *name gets a copy, *value points behind the '='; else *value is
 * NULL. */
static ea_status split_word(ea_options *o, const char *word, const char **name, const char **value,
                            ea_error *err)
{
    const char *eq = word[1] == '-' ? strchr(word, '=') : NULL;
    *name = eq ? ea_options_keep(o, word, (size_t)(eq - word)) : word;
    *value = eq ? eq + 1 : NULL;
    return *name ? EA_OK : ea_fail(err, EA_ENOMEM, "command line: out of memory");
}

static ea_status add_operand(ea_options *o, const char *word, ea_error *err)
{
    ea_buf both = EA_BUF_INIT;
    if (!o->operand) {
        o->operand = word;
        return EA_OK;
    }
    ea_buf_printf(&both, "%s %s", o->operand, word);
    const char *joined = both.failed ? NULL : ea_options_keep(o, both.data, both.n);
    ea_buf_done(&both);
    if (!joined)
        return ea_fail(err, EA_ENOMEM, "command line: out of memory");
    o->operand = joined;
    return EA_OK;
}

static ea_status read_words(ea_options *o, int n, char **words, ea_error *err)
{
    bool only_operands = false;
    int n_operands = 0;
    for (int i = 0; i < n; i++) {
        if (!only_operands && strcmp(words[i], "--") == 0) {
            only_operands = true;
            continue;
        }
        if (only_operands || words[i][0] != '-' || !words[i][1]) {
            if (n_operands == o->command->n_operands)
                return ea_fail(err, EA_EINVAL, "unexpected word '%.100s'; see edgeagent %s --help",
                               words[i], o->command->name);
            n_operands++;
            EA_TRY(add_operand(o, words[i], err));
            continue;
        }
        const char *name, *value;
        EA_TRY(split_word(o, words[i], &name, &value, err));
        ea_option_id id = find_name(name, o->command->bit);
        if (id == EA_OPT_N)
            return fail_unknown(o, name, err);
        if (ea_option_table[id].kind == EA_OPT_KIND_FLAG) {
            value = value ? value : "on";
        } else if (!value) {
            if (++i >= n)
                return ea_fail(err, EA_EINVAL, "%s: a value is missing (%s)", name,
                               ea_option_table[id].meta);
            value = words[i];
        }
        EA_TRY(ea_option_set(o, id, EA_FROM_ARGS, name, value, err));
    }
    return EA_OK;
}

ea_status ea_options_parse(ea_options *o, const ea_cli_command *command, int n, char **words,
                           ea_error *err)
{
    *o = (ea_options){.command = command};
    bool has_own = false; /* an option beyond those of every command? */
    for (int id = 0; id < EA_OPT_N; id++) {
        const ea_option *option = &ea_option_table[id];
        if (!(option->commands & command->bit))
            continue;
        has_own |= option->commands != ALL && ea_option_in_env((ea_option_id)id);
        if (option->fallback[0])
            EA_TRY(ea_option_set(o, (ea_option_id)id, EA_FROM_DEFAULT, option->names,
                                 option->fallback, err));
    }
    EA_TRY(read_words(o, n, words, err));
    /* Help must work, and doctor report, also where the configuration is broken. */
    if (!has_own || o->values[EA_OPT_HELP].flag || o->values[EA_OPT_VERSION].flag)
        return EA_OK;
    EA_TRY(ea_options_read_env(o, err));
    return ea_options_read_config(o, err);
}

void ea_options_done(ea_options *o)
{
    for (int id = 0; id < EA_OPT_N; id++) {
        ea_free(o->values[id].ints);
        ea_free((void *)o->values[id].texts);
    }
    for (size_t i = 0; i < o->n_owned; i++)
        ea_free(o->owned[i]);
    ea_free(o->owned);
    *o = (ea_options){0};
}

static const ea_option_value *get(const ea_options *o, ea_option_id id, ea_option_kind kind)
{
    EA_ASSERT(ea_option_table[id].kind == kind);
    EA_ASSERT(ea_option_table[id].commands & o->command->bit);
    return &o->values[id];
}

bool ea_opt_flag(const ea_options *o, ea_option_id id)
{
    return get(o, id, EA_OPT_KIND_FLAG)->flag;
}

int64_t ea_opt_int(const ea_options *o, ea_option_id id)
{
    return get(o, id, EA_OPT_KIND_INT)->integer;
}

double ea_opt_num(const ea_options *o, ea_option_id id)
{
    return get(o, id, EA_OPT_KIND_NUM)->number;
}

const char *ea_opt_text(const ea_options *o, ea_option_id id)
{
    ea_option_kind kind = ea_option_table[id].kind;
    EA_ASSERT(kind == EA_OPT_KIND_TEXT || kind == EA_OPT_KIND_FILE || kind == EA_OPT_KIND_CHOICE);
    return get(o, id, kind)->text;
}

const ea_option_value *ea_opt_list(const ea_options *o, ea_option_id id)
{
    ea_option_kind kind = ea_option_table[id].kind;
    EA_ASSERT(kind == EA_OPT_KIND_INTS || kind == EA_OPT_KIND_TEXTS);
    return get(o, id, kind);
}
