/* cmd_tokenize.c: the tokens of a text, printed as llama-tokenize does. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/cli.h"

/* The token's own bytes in quotes; escaped only where a terminal would act on them. */
static void put_token(ea_buf *out, const ea_model *model, int32_t token, bool tty)
{
    char buf[512], *bytes = buf;
    size_t n = ea_token_bytes(model, token, true, buf, sizeof buf);
    if (n > sizeof buf) {
        bytes = ea_malloc(n);
        if (!bytes) {
            out->failed = true;
            return;
        }
        n = ea_token_bytes(model, token, true, bytes, n);
    }
    ea_buf_printf(out, "%6d -> '", token);
    if (tty)
        ea_cli_escape(out, bytes, n);
    else
        ea_buf_add(out, bytes, n);
    ea_buf_puts(out, "'\n");
    if (bytes != buf)
        ea_free(bytes);
}

int ea_cli_tokenize(const ea_options *o)
{
    char *text;
    size_t n_bytes, n = 0;
    int result = ea_cli_read_text(o, EA_OPT_FILE, &text, &n_bytes);
    if (result != EA_CLI_DONE)
        return result;
    ea_model *model = NULL;
    int32_t *tokens = NULL;
    ea_buf out = EA_BUF_INIT;
    ea_error err = {0};
    result = ea_cli_load(o, true, &model);
    if (result != EA_CLI_DONE)
        goto done;
    unsigned flags = (ea_opt_flag(o, EA_OPT_NO_BOS) ? 0u : (unsigned)EA_TOKENIZE_ADD_BOS) |
                     (ea_opt_flag(o, EA_OPT_NO_PARSE_SPECIAL) ? 0u : (unsigned)EA_TOKENIZE_SPECIAL);
    if (ea_tokenize(model, text, n_bytes, flags, &tokens, &n, &err) != EA_OK) {
        result = ea_cli_error(o, EA_CLI_FAILED, "%s", err.text);
        goto done;
    }
    bool ids = ea_opt_flag(o, EA_OPT_IDS), tty = isatty(1);
    if (ids)
        ea_buf_putc(&out, '[');
    for (size_t i = 0; i < n; i++) {
        if (ids)
            ea_buf_printf(&out, "%s%d", i ? ", " : "", tokens[i]);
        else
            put_token(&out, model, tokens[i], tty);
    }
    if (ids)
        ea_buf_puts(&out, "]\n");
    if (ea_opt_flag(o, EA_OPT_SHOW_COUNT))
        ea_buf_printf(&out, "Total number of tokens: %zu\n", n);
    result = ea_cli_print(o, &out);
done:
    ea_buf_done(&out);
    ea_free(tokens);
    ea_model_destroy(model);
    ea_free(text);
    return result;
}
