/* config.c: the environment and the configuration file as sources of option values. The file is
 * lines "key = value"; '#' begins a comment at the start of a line or after a blank. Keys are the
 * options' long names; keys of other commands are ignored, unknown ones are errors, so that a
 * misspelt key does not silently do nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/cli.h"

enum { MAX_CONFIG_BYTES = 1 << 20 };

ea_status ea_options_read_env(ea_options *o, ea_error *err)
{
    for (int id = 0; id < EA_OPT_N; id++) {
        char name[96];
        if (!(ea_option_table[id].commands & o->command->bit) ||
            !ea_option_in_env((ea_option_id)id))
            continue;
        ea_option_env(&ea_option_table[id], name, sizeof name);
        const char *value = getenv(name);
        if (value && *value)
            EA_TRY(ea_option_set(o, (ea_option_id)id, EA_FROM_ENV, name, value, err));
    }
    return EA_OK;
}

/* Path of the default file, or false where there is no home. */
static bool default_path(char *buf, size_t size)
{
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    int n;
    if (xdg && *xdg == '/')
        n = snprintf(buf, size, "%s/edgeagent/config", xdg);
    else if (home && *home)
        n = snprintf(buf, size, "%s/.config/edgeagent/config", home);
    else
        return false;
    return n > 0 && (size_t)n < size;
}

static char *trim(char *s)
{
    s += strspn(s, " \t\r");
    size_t n = strlen(s);
    while (n > 0 && strchr(" \t\r", s[n - 1]))
        s[--n] = '\0';
    return s;
}

static void cut_comment(char *line)
{
    for (char *c = line; *c; c++)
        if (*c == '#' && (c == line || c[-1] == ' ' || c[-1] == '\t')) {
            *c = '\0';
            return;
        }
}

static ea_status fail_key(const char *where, const char *key, ea_error *err)
{
    int best = 64;
    char known[64], nearest[64] = "";
    for (int id = 0; id < EA_OPT_N; id++) {
        ea_option_key(&ea_option_table[id], known, sizeof known);
        int distance = ea_edit_distance(key, known);
        if (ea_option_in_config((ea_option_id)id) && distance < best) {
            best = distance;
            memcpy(nearest, known, sizeof nearest);
        }
    }
    if (ea_edit_close(best, key))
        return ea_fail(err, EA_EINVAL, "%s: unknown key '%.100s'; did you mean %s?", where, key,
                       nearest);
    return ea_fail(err, EA_EINVAL, "%s: unknown key '%.100s'", where, key);
}

/* One line without its newline; `where` is FILE:LINE. */
static ea_status read_line(ea_options *o, const char *where, char *line, ea_error *err)
{
    cut_comment(line);
    line = trim(line);
    if (!*line)
        return EA_OK;
    char *eq = strchr(line, '=');
    if (!eq)
        return ea_fail(err, EA_EINVAL, "%s: '%.100s' is not of the form key = value", where, line);
    *eq = '\0';
    const char *key = trim(line), *value = trim(eq + 1);
    bool known = false;
    for (int id = 0; id < EA_OPT_N; id++) {
        char own[64], place[512];
        ea_option_key(&ea_option_table[id], own, sizeof own);
        if (!ea_option_in_config((ea_option_id)id) || strcmp(own, key) != 0)
            continue;
        known = true;
        if (!(ea_option_table[id].commands & o->command->bit))
            continue;
        snprintf(place, sizeof place, "%s: %s", where, key);
        const char *kept = ea_options_keep(o, value, strlen(value));
        if (!kept)
            return ea_fail(err, EA_ENOMEM, "%s: out of memory", place);
        EA_TRY(ea_option_set(o, (ea_option_id)id, EA_FROM_CONFIG, place, kept, err));
    }
    return known ? EA_OK : fail_key(where, key, err);
}

ea_status ea_options_read_config(ea_options *o, ea_error *err)
{
    char path[4096];
    const char *named = ea_opt_text(o, EA_OPT_CONFIG);
    if (named)
        snprintf(path, sizeof path, "%s", named);
    else if (!default_path(path, sizeof path) || access(path, F_OK) != 0)
        return EA_OK;
    char *text;
    size_t n;
    EA_TRY(ea_file_read(path, MAX_CONFIG_BYTES, &text, &n, err));
    ea_status status = EA_OK;
    int number = 1;
    for (char *line = text, *end; status == EA_OK && line; line = end, number++) {
        char where[400];
        end = strchr(line, '\n');
        if (end)
            *end++ = '\0';
        snprintf(where, sizeof where, "%.380s:%d", path, number);
        status = read_line(o, where, line, err);
    }
    ea_free(text);
    return status;
}
