/* help.c: --help, of the program and of one command, from the two tables. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

enum { WIDTH = 90, INDENT = 36 }; /* columns of the page; where the explanations begin */

/* Append words of text, broken at WIDTH; `column` is where the line stands now, `indent` where the
 * next ones begin. Blank lines of the text are kept. */
static void wrap(ea_buf *out, const char *text, int column, int indent)
{
    bool first = true;
    while (*text) {
        if (*text == '\n') {
            ea_buf_putc(out, '\n');
            column = 0;
            text++;
            first = true;
            continue;
        }
        int n = (int)strcspn(text, " \n");
        if (!first && column + 1 + n > WIDTH) {
            ea_buf_printf(out, "\n%*s", indent, "");
            column = indent;
        } else if (!first) {
            ea_buf_putc(out, ' ');
            column++;
        }
        ea_buf_add(out, text, (size_t)n);
        column += n;
        text += n;
        text += strspn(text, " ");
        first = false;
    }
    ea_buf_putc(out, '\n');
}

static void option_help(ea_buf *out, ea_option_id id)
{
    const ea_option *option = &ea_option_table[id];
    ea_buf left = EA_BUF_INIT, right = EA_BUF_INIT;
    char name[64], range[96];
    for (size_t i = 0; ea_option_name(option, i, name, sizeof name); i++)
        ea_buf_printf(&left, "%s%s", i ? ", " : "", name);
    if (option->meta[0])
        ea_buf_printf(&left, " %s", option->meta);

    ea_buf_puts(&right, option->help);
    ea_option_range(option, range, sizeof range);
    bool shown = range[0] && option->kind != EA_OPT_KIND_FLAG && option->kind != EA_OPT_KIND_CHOICE;
    if (shown || option->fallback[0])
        ea_buf_printf(&right, " (%s%s%s%s)", shown ? range : "",
                      shown && option->fallback[0] ? "; " : "",
                      option->fallback[0] ? "default " : "", option->fallback);
    if (ea_option_in_env(id)) {
        ea_option_env(option, name, sizeof name);
        ea_buf_printf(&right, " [%s]", name);
    }
    if (!left.failed && !right.failed) {
        ea_buf_printf(out, "  %-*s", INDENT - 2, left.data);
        if (left.n > INDENT - 3)
            ea_buf_printf(out, "\n%*s", INDENT, "");
        wrap(out, right.data, INDENT, INDENT);
    }
    out->failed |= left.failed || right.failed;
    ea_buf_done(&left);
    ea_buf_done(&right);
}

void ea_cli_command_help_text(const ea_cli_command *command, ea_buf *out)
{
    ea_buf_printf(out, "usage: edgeagent %s%s%s\n\n", command->name, command->usage[0] ? " " : "",
                  command->usage);
    wrap(out, command->about, 0, 0);
    ea_buf_puts(out, "\noptions:\n");
    for (int id = 0; id < EA_OPT_N; id++)
        if (ea_option_table[id].commands & command->bit)
            option_help(out, (ea_option_id)id);
    ea_buf_printf(out, "\nexample:\n  %s\n", command->example);
}

void ea_cli_help_text(ea_buf *out)
{
    ea_buf_puts(out, "usage: edgeagent COMMAND [option...]\n\n"
                     "One engine for many local agents: a real model, served to all of them at "
                     "once.\n\ncommands:\n");
    for (size_t i = 0; i < ea_cli_n_commands; i++)
        ea_buf_printf(out, "  %-14s %s\n", ea_cli_commands[i].name, ea_cli_commands[i].summary);
    ea_buf_puts(out, "\n");
    wrap(out,
         "edgeagent COMMAND --help tells the options of a command, edgeagent --version the "
         "version. An option may also be given by its environment variable (EDGEAGENT_CTX_SIZE for "
         "--ctx-size) or as a line \"ctx-size = 4096\" of $XDG_CONFIG_HOME/edgeagent/config or "
         "--config FILE; the command line wins over the environment, that over the file.\n\n"
         "Exit status: 0 done, 1 failed, 2 wrong usage.",
         0, 0);
}

int ea_cli_help(const ea_options *o)
{
    ea_buf text = EA_BUF_INIT;
    if (!o->operand) {
        ea_cli_help_text(&text);
        return ea_cli_print(o, &text);
    }
    const ea_cli_command *command = ea_cli_command_find(o->operand);
    if (!command)
        return ea_cli_error(o, EA_CLI_USAGE, "there is no command '%.100s'", o->operand);
    ea_cli_command_help_text(command, &text);
    return ea_cli_print(o, &text);
}
