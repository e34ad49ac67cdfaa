/* console.c: standard output and error, and the signals of a terminal. The one place of cli/ that
 * knows about them; the signal flag is the process's, since a handler can be given no state. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/utf8.h"
#include "cli/cli.h"

static volatile sig_atomic_t signal_seen; /* written by the handler only */

static void note_signal(int number)
{
    signal_seen = number;
    /* A second signal of either kind ends the process, in case the first one is not obeyed. */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}

void ea_cli_signals_catch(void)
{
    /* No SA_RESTART: a write to a reader that does not read must not hold us back. */
    struct sigaction action = {.sa_handler = note_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
}

int ea_cli_signal(void)
{
    return signal_seen;
}

int ea_cli_error(const ea_options *o, int status, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    /* What the user typed or a file holds must not drive the terminal. */
    ea_buf line = EA_BUF_INIT;
    ea_cli_escape(&line, text, strlen(text));
    fprintf(stderr, "edgeagent%s%s: %s\n", o ? " " : "", o ? o->command->name : "",
            line.failed || !line.data ? "" : line.data);
    ea_buf_done(&line);
    return status;
}

bool ea_cli_write(int fd, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t written = write(fd, data, n);
        if (written < 0) {
            if (errno == EINTR && !signal_seen)
                continue;
            return false;
        }
        data += written;
        n -= (size_t)written;
    }
    return true;
}

int ea_cli_print(const ea_options *o, ea_buf *text)
{
    int result = EA_CLI_DONE;
    signal(SIGPIPE, SIG_IGN);
    if (text->failed)
        result = ea_cli_error(o, EA_CLI_FAILED, "out of memory");
    else if (!ea_cli_write(1, text->data, text->n) && errno != EPIPE)
        result = ea_cli_error(o, EA_CLI_FAILED, "standard output: %s", strerror(errno));
    ea_buf_done(text);
    return result;
}

void ea_cli_escape(ea_buf *out, const char *text, size_t n)
{
    while (n > 0) {
        size_t len = ea_utf8_valid_len(text, n);
        uint32_t cp = len ? ea_utf8_decode(text, len) : 0;
        bool control = (cp < 0x20 && cp != '\n' && cp != '\t') || (cp >= 0x7f && cp < 0xa0);
        len = len ? len : 1;
        if (control)
            for (size_t i = 0; i < len; i++)
                ea_buf_printf(out, "\\x%02x", (unsigned char)text[i]);
        else
            ea_buf_add(out, text, len);
        text += len;
        n -= len;
    }
}
