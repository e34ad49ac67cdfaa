/* cli.h: the program's commands and what they share. The program reaches the engine only through
 * edgeagent.h and the server only through server/server.h. The main thread runs the command;
 * callbacks of the engine run on the engine thread and hand over through queues of the command. */
#ifndef EA_CLI_CLI_H
#define EA_CLI_CLI_H

#include <pthread.h>

#include "cli/options.h"

/* Exit statuses (edgeagent.1, EXIT STATUS). After a signal: 128 + its number. */
enum { EA_CLI_DONE = 0, EA_CLI_FAILED = 1, EA_CLI_USAGE = 2 };

typedef struct ea_cli_command {
    const char *name; /* one word, or two: "bench step" */
    int n_operands;   /* most words that are no options */
    const char *usage, *summary, *about, *example;
    unsigned bit; /* its bit in ea_option.commands */
    int (*run)(const ea_options *o);
} ea_cli_command;

extern const ea_cli_command ea_cli_commands[];
extern const size_t ea_cli_n_commands;
const ea_cli_command *ea_cli_command_find(const char *name); /* NULL if there is none */
/* The second word of a command that `of` is the first word of, or NULL: "step", "bench". */
const char *ea_cli_command_second(const ea_cli_command *command, const char *of);

/* One a file: cmd_run.c, ... Each returns an exit status and has printed what went wrong. */
int ea_cli_run(const ea_options *o);
int ea_cli_serve(const ea_options *o);
int ea_cli_bench(const ea_options *o);
int ea_cli_bench_kernels(const ea_options *o);
int ea_cli_bench_step(const ea_options *o);
int ea_cli_tokenize(const ea_options *o);
int ea_cli_perplexity(const ea_options *o);
int ea_cli_doctor(const ea_options *o);
int ea_cli_completion(const ea_options *o);
int ea_cli_man(const ea_options *o);
int ea_cli_help(const ea_options *o);

/* ---- help.c ---- */
void ea_cli_help_text(ea_buf *out);                                        /* all commands */
void ea_cli_command_help_text(const ea_cli_command *command, ea_buf *out); /* one command */

/* ---- generated texts, pure functions of the tables ---- */
void ea_cli_man_text(ea_buf *out);
bool ea_cli_completion_text(const char *shell, ea_buf *out); /* false: unknown shell */

/* ---- console.c ---- */
/* "edgeagent COMMAND: text" on standard error; returns `status`, so that `return ea_cli_error(...)`
 * reads well. */
int ea_cli_error(const ea_options *o, int status, const char *fmt, ...) EA_PRINTF(3, 4);
/* Write all bytes; false when the reader went away (errno EPIPE) or writing failed otherwise. A
 * signal that asks us to stop interrupts it (errno EINTR). */
bool ea_cli_write(int fd, const char *data, size_t n);
/* Print a finished text to standard output; 0, or 1 with a message (a vanished reader is no
 * error). */
int ea_cli_print(const ea_options *o, ea_buf *text);
/* Append text so that it cannot drive a terminal: control characters but newline and tab as \xNN,
 * C1 controls and invalid bytes too. */
void ea_cli_escape(ea_buf *out, const char *text, size_t n);

/* From here on SIGINT and SIGTERM are noted instead of ending the process (a second one does end
 * it), and SIGPIPE is ignored. */
void ea_cli_signals_catch(void);
int ea_cli_signal(void); /* the signal that asked us to stop, or 0 */

/* ---- load.c ---- */
/* Load the model that -m or --synthetic names, with progress on a terminal. Prints what failed.
 * Returns an exit status. */
int ea_cli_load(const ea_options *o, bool vocab_only, ea_model **out);
/* Log function for models and engines: warnings and errors, everything with --verbose. `user` is
 * the ea_options. */
void ea_cli_log(void *user, ea_log_level level, const char *line);
/* The sampler chain as the options say. */
void ea_cli_sampling(const ea_options *o, ea_sampling *out);
/* Engine parameters from the options that the command has (-t, -c, -b, --max-gap-ms), log set. */
void ea_cli_engine_params(const ea_options *o, ea_engine_params *out);
/* The file that --chat-template-file names, or NULL in *out; an exit status. Freed by ea_free. */
int ea_cli_chat_template(const ea_options *o, char **out);
/* The text from -p, -f or standard input (one newline at the end is dropped, as llama.cpp does).
 * Prints what failed. Freed by ea_free. */
int ea_cli_read_text(const ea_options *o, ea_option_id file, char **out, size_t *n_out);

/* ---- waiter.c ---- */
/* How callbacks of the engine wake the main thread: state that both touch is guarded by the lock.
 */
typedef struct ea_waiter {
    pthread_mutex_t lock;
    pthread_cond_t wake;
} ea_waiter;

bool ea_waiter_init(ea_waiter *w); /* false: the system refused */
void ea_waiter_done(ea_waiter *w);
void ea_waiter_lock(ea_waiter *w);
void ea_waiter_unlock(ea_waiter *w);
void ea_waiter_notify(ea_waiter *w); /* holding the lock */
/* Holding the lock: sleep until notified, or a short time, so that a signal is seen soon. */
void ea_waiter_sleep(ea_waiter *w);

#endif
