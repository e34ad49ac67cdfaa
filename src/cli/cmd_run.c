/* cmd_run.c: one prompt, its answer streamed to standard output. The engine thread appends text to
 * a buffer; the main thread writes it, so that a slow reader never holds up a step. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"

/* Room for text in flight, so that the engine thread does not allocate for a reader that keeps up.
 */
enum { TEXT_BYTES = 1 << 16 };

/* The answer so far; guarded by the waiter's lock. */
typedef struct answer {
    ea_waiter waiter;
    ea_buf text; /* not yet taken by the main thread */
    bool done;
    ea_finish finish;
    char error[EA_ERROR_TEXT];
    ea_usage usage;
} answer;

static bool on_event(void *user, const ea_event *event)
{
    answer *a = user;
    ea_waiter_lock(&a->waiter);
    if (event->n_bytes)
        ea_buf_add(&a->text, event->text, event->n_bytes);
    a->usage = event->usage;
    if (event->kind == EA_EVENT_DONE) {
        a->done = true;
        a->finish = event->finish;
        snprintf(a->error, sizeof a->error, "%s", event->error ? event->error : "");
    }
    bool go_on = !a->text.failed;
    ea_waiter_notify(&a->waiter);
    ea_waiter_unlock(&a->waiter);
    return go_on;
}

/* Write what comes until the request is done. Returns the exit status so far. */
static int stream(const ea_options *o, answer *a, ea_request *request)
{
    ea_buf part = EA_BUF_INIT, shown = EA_BUF_INIT;
    bool tty = isatty(1), stopped = false, done = false;
    char last = '\n';
    int result = EA_CLI_DONE;
    if (!ea_buf_reserve(&part, TEXT_BYTES))
        result = ea_cli_error(o, EA_CLI_FAILED, "out of memory");
    while (!done) {
        ea_waiter_lock(&a->waiter);
        while (!a->text.n && !a->done && (stopped || !ea_cli_signal()))
            ea_waiter_sleep(&a->waiter);
        ea_buf taken = a->text;
        a->text = part;
        part = taken;
        done = a->done;
        ea_waiter_unlock(&a->waiter);
        if (!stopped && part.n) {
            last = part.data[part.n - 1];
            if (tty)
                ea_cli_escape(&shown, part.data, part.n);
            const ea_buf *out = tty ? &shown : &part;
            if (!ea_cli_write(1, out->data, out->n) && !ea_cli_signal()) {
                stopped = true;
                if (errno != EPIPE)
                    result = ea_cli_error(o, EA_CLI_FAILED, "standard output: %s", strerror(errno));
                ea_request_cancel(request);
            }
        }
        ea_buf_clear(&part);
        ea_buf_clear(&shown);
        if (!stopped && ea_cli_signal()) {
            stopped = true;
            ea_request_cancel(request);
        }
    }
    if (tty && last != '\n')
        ea_cli_write(1, "\n", 1);
    ea_buf_done(&part);
    ea_buf_done(&shown);
    return result;
}

static double per_second(int n, double ms)
{
    return n > 0 && ms > 0 ? n * 1000.0 / ms : 0;
}

static void print_figures(const ea_usage *u, ea_finish finish, double load_s)
{
    static const char *const names[] = {"", "stop", "length", "cancelled", "error"};
    /* The first token comes out of the prompt's last step; the rest take generate_ms. */
    fprintf(stderr,
            "\nprompt     %6d tokens (%d cached), %.1f ms, %.1f tokens/s\n"
            "generated  %6d tokens (%s), %.1f ms, %.1f tokens/s\n"
            "load       %.2f s, seed %llu\n",
            u->n_prompt, u->n_cached, u->prompt_ms,
            per_second(u->n_prompt - u->n_cached, u->prompt_ms), u->n_generated, names[finish],
            u->generate_ms, per_second(u->n_generated - 1, u->generate_ms), load_s,
            (unsigned long long)u->seed);
}

/* The prompt as tokens: through the chat template, or as it is. */
static int make_prompt(const ea_options *o, const ea_model *model, const char *text, size_t n_bytes,
                       int32_t **tokens, size_t *n_tokens)
{
    ea_model_info info;
    ea_error err = {0};
    const char *system = ea_opt_text(o, EA_OPT_SYSTEM);
    char *jinja;
    int result = ea_cli_chat_template(o, &jinja);
    if (result != EA_CLI_DONE)
        return result;
    ea_model_info_get(model, &info);
    ea_status status;
    if (ea_opt_flag(o, EA_OPT_NO_TEMPLATE) || (!info.has_chat_template && !system && !jinja)) {
        if (!ea_opt_flag(o, EA_OPT_NO_TEMPLATE))
            fputs("the model has no chat template: the prompt is continued as plain text\n",
                  stderr);
        status = ea_tokenize(model, text, n_bytes, EA_TOKENIZE_ADD_BOS | EA_TOKENIZE_SPECIAL,
                             tokens, n_tokens, &err);
    } else {
        ea_buf messages = EA_BUF_INIT;
        ea_buf_puts(&messages, "[");
        if (system) {
            ea_buf_puts(&messages, "{\"role\":\"system\",\"content\":");
            ea_buf_json_string(&messages, system, strlen(system));
            ea_buf_puts(&messages, "},");
        }
        ea_buf_puts(&messages, "{\"role\":\"user\",\"content\":");
        ea_buf_json_string(&messages, text, n_bytes);
        ea_buf_puts(&messages, "}]");
        ea_chat_params params;
        ea_chat_params_default(&params);
        params.messages_json = messages.data;
        params.template_override = jinja;
        params.add_generation_prompt = true;
        status = messages.failed ? ea_fail(&err, EA_ENOMEM, "out of memory")
                                 : ea_chat_render(model, &params, NULL, tokens, n_tokens, &err);
        ea_buf_done(&messages);
    }
    ea_free(jinja);
    if (status != EA_OK)
        return ea_cli_error(o, EA_CLI_FAILED, "%s", err.text);
    if (*n_tokens == 0)
        return ea_cli_error(o, EA_CLI_USAGE, "the prompt is empty");
    return EA_CLI_DONE;
}

static int generate(const ea_options *o, ea_engine *engine, const int32_t *tokens, size_t n_tokens,
                    double load_s)
{
    answer a = {.text = EA_BUF_INIT};
    ea_request_params params;
    ea_request *request = NULL;
    ea_error err = {0};
    const ea_option_value *stop = ea_opt_list(o, EA_OPT_STOP);
    ea_request_params_default(&params);
    params.tokens = tokens;
    params.n_tokens = n_tokens;
    params.max_tokens = (int)ea_opt_int(o, EA_OPT_N_PREDICT);
    ea_cli_sampling(o, &params.sampling);
    params.ignore_eos = ea_opt_flag(o, EA_OPT_IGNORE_EOS);
    params.stop = stop->texts;
    params.n_stop = stop->n;
    params.on_event = on_event;
    params.user = &a;
    if (!ea_buf_reserve(&a.text, TEXT_BYTES) || !ea_waiter_init(&a.waiter))
        return ea_cli_error(o, EA_CLI_FAILED, "out of memory");
    int result;
    if (ea_request_submit(engine, &params, &request, &err) != EA_OK) {
        result = ea_cli_error(o, EA_CLI_FAILED, "%s", err.text);
    } else {
        result = stream(o, &a, request);
        ea_request_wait(request);
        ea_request_unref(request);
        print_figures(&a.usage, a.finish, load_s);
        if (a.finish == EA_FINISH_ERROR)
            result = ea_cli_error(o, EA_CLI_FAILED, "%s", a.error);
        else if (ea_cli_signal())
            result = 128 + ea_cli_signal();
    }
    ea_waiter_done(&a.waiter);
    ea_buf_done(&a.text);
    return result;
}

int ea_cli_run(const ea_options *o)
{
    char *text;
    size_t n_bytes, n_tokens = 0;
    int result = ea_cli_read_text(o, EA_OPT_FILE, &text, &n_bytes);
    if (result != EA_CLI_DONE)
        return result;
    ea_model *model = NULL;
    ea_engine *engine = NULL;
    int32_t *tokens = NULL;
    ea_error err = {0};
    ea_engine_params params;
    if (text[strspn(text, " \t\r\n")] == '\0' && strlen(text) == n_bytes) {
        result =
            ea_cli_error(o, EA_CLI_USAGE,
                         "the prompt is empty: give -p TEXT, -f FILE or text on standard input");
        goto done;
    }
    ea_cli_signals_catch();
    uint64_t start = ea_now_ns();
    result = ea_cli_load(o, false, &model);
    if (result != EA_CLI_DONE)
        goto done;
    result = make_prompt(o, model, text, n_bytes, &tokens, &n_tokens);
    if (result != EA_CLI_DONE)
        goto done;
    ea_cli_engine_params(o, &params);
    params.n_parallel = 1;
    if (ea_engine_create(model, &params, &engine, &err) != EA_OK) {
        result = ea_cli_error(o, EA_CLI_FAILED, "%s", err.text);
        goto done;
    }
    result = generate(o, engine, tokens, n_tokens, (double)(ea_now_ns() - start) / 1e9);
done:
    ea_engine_destroy(engine);
    ea_free(tokens);
    ea_model_destroy(model);
    ea_free(text);
    return result;
}
