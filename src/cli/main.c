/* main.c: finds the command, parses its options and runs it. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

#define RUN_OF_RUN ea_cli_run
#define RUN_OF_SERVE ea_cli_serve
#define RUN_OF_BENCH ea_cli_bench
#define RUN_OF_BENCH_KERNELS ea_cli_bench_kernels
#define RUN_OF_BENCH_STEP ea_cli_bench_step
#define RUN_OF_TOKENIZE ea_cli_tokenize
#define RUN_OF_PERPLEXITY ea_cli_perplexity
#define RUN_OF_DOCTOR ea_cli_doctor
#define RUN_OF_COMPLETION ea_cli_completion
#define RUN_OF_MAN ea_cli_man
#define RUN_OF_HELP_COMMAND ea_cli_help

const ea_cli_command ea_cli_commands[] = {
#define EA_COMMAND(id, name, n_operands, usage, summary, about, example) \
    {name, n_operands, usage, summary, about, example, 1u << EA_CLI_BIT_##id, RUN_OF_##id},
#include "cli/commands.def"
#undef EA_COMMAND
};
const size_t ea_cli_n_commands = EA_ARRAY_LEN(ea_cli_commands);

const ea_cli_command *ea_cli_command_find(const char *name)
{
    for (size_t i = 0; i < ea_cli_n_commands; i++)
        if (strcmp(ea_cli_commands[i].name, name) == 0)
            return &ea_cli_commands[i];
    return NULL;
}

const char *ea_cli_command_second(const ea_cli_command *command, const char *of)
{
    size_t n = strlen(of);
    bool is_part = strncmp(command->name, of, n) == 0 && command->name[n] == ' ';
    return is_part ? command->name + n + 1 : NULL;
}

/* The command that the words begin with, the longest; *n_words of them. */
static const ea_cli_command *read_command(int n, char **words, int *n_words)
{
    const char *second;
    *n_words = 2;
    for (size_t i = 0; i < ea_cli_n_commands && n >= 2; i++)
        if ((second = ea_cli_command_second(&ea_cli_commands[i], words[0])) &&
            strcmp(second, words[1]) == 0)
            return &ea_cli_commands[i];
    *n_words = 1;
    return ea_cli_command_find(words[0]);
}

static int print_version(void)
{
    printf("edgeagent %s\n", ea_version());
    return EA_CLI_DONE;
}

static int print_help(const ea_options *o)
{
    ea_buf text = EA_BUF_INIT;
    if (o)
        ea_cli_command_help_text(o->command, &text);
    else
        ea_cli_help_text(&text);
    return ea_cli_print(o, &text);
}

static int unknown_command(const char *typed)
{
    int best = 64;
    const char *nearest = "";
    for (size_t i = 0; i < ea_cli_n_commands; i++) {
        int distance = ea_edit_distance(typed, ea_cli_commands[i].name);
        if (distance < best) {
            best = distance;
            nearest = ea_cli_commands[i].name;
        }
    }
    if (ea_edit_close(best, typed))
        return ea_cli_error(NULL, EA_CLI_USAGE, "unknown command '%.100s'; did you mean %s?", typed,
                            nearest);
    return ea_cli_error(NULL, EA_CLI_USAGE, "unknown command '%.100s'; see edgeagent --help",
                        typed);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        ea_buf text = EA_BUF_INIT;
        ea_cli_help_text(&text);
        ea_cli_write(2, text.data, text.n);
        ea_buf_done(&text);
        return EA_CLI_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0)
        return print_version();
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return print_help(NULL);
    int n_words;
    const ea_cli_command *command = read_command(argc - 1, argv + 1, &n_words);
    if (!command)
        return unknown_command(argv[1]);

    ea_options options;
    ea_error err = {0};
    int result;
    ea_status status =
        ea_options_parse(&options, command, argc - 1 - n_words, argv + 1 + n_words, &err);
    if (status != EA_OK)
        result = ea_cli_error(&options, status == EA_EINVAL ? EA_CLI_USAGE : EA_CLI_FAILED, "%s",
                              err.text);
    else if (ea_opt_flag(&options, EA_OPT_HELP))
        result = print_help(&options);
    else if (ea_opt_flag(&options, EA_OPT_VERSION))
        result = print_version();
    else
        result = command->run(&options);
    ea_options_done(&options);
    return result;
}
