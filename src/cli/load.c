/* load.c: what several commands do before their own work: the model, its progress line, the text
 * to work on. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cli/cli.h"

/* A prompt is held several times (text, JSON, tokens); nothing sensible comes near this. */
enum { MAX_TEXT_BYTES = 256 << 20 };

void ea_cli_log(void *user, ea_log_level level, const char *line)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    const ea_options *o = user;
    if (level > EA_LOG_WARN && !ea_opt_flag(o, EA_OPT_VERBOSE))
        return;
    fprintf(stderr, "%s: %s\n", names[level], line);
}

typedef struct load_progress {
    bool tty;
    int shown; /* percent */
} load_progress;

static bool show_progress(void *user, double fraction)
{
    load_progress *progress = user;
    int percent = (int)(fraction * 100);
    if (progress->tty && percent > progress->shown) {
        progress->shown = percent;
        fprintf(stderr, "\rloading %3d %%", percent);
        fflush(stderr);
    }
    return ea_cli_signal() == 0;
}

int ea_cli_load(const ea_options *o, bool vocab_only, ea_model **out)
{
    bool may_be_synthetic = ea_option_table[EA_OPT_SYNTHETIC].commands & o->command->bit;
    const char *path = ea_opt_text(o, EA_OPT_MODEL),
               *synthetic = may_be_synthetic ? ea_opt_text(o, EA_OPT_SYNTHETIC) : NULL;
    if (!path && !synthetic)
        return ea_cli_error(o, EA_CLI_USAGE, "no model: give -m FILE%s or set EDGEAGENT_MODEL",
                            may_be_synthetic ? ", --synthetic SHAPE:TYPE" : "");
    load_progress progress = {.tty = isatty(2), .shown = -1};
    ea_model_params params;
    ea_model_params_default(&params);
    params.vocab_only = vocab_only;
    params.log = ea_cli_log;
    params.log_user = (void *)o;
    params.progress = show_progress;
    params.progress_user = &progress;
    if (ea_option_table[EA_OPT_THREADS].commands & o->command->bit)
        params.n_threads = (int)ea_opt_int(o, EA_OPT_THREADS);
    ea_error err = {0};
    ea_status status = synthetic ? ea_model_synthetic(synthetic, 1, &params, out, &err)
                                 : ea_model_load(path, &params, out, &err);
    if (progress.shown >= 0)
        fprintf(stderr, "\r%*s\r", 20, "");
    if (status == EA_ECANCELLED && ea_cli_signal())
        return 128 + ea_cli_signal();
    if (status != EA_OK && synthetic)
        return ea_cli_error(o, status == EA_EINVAL ? EA_CLI_USAGE : EA_CLI_FAILED,
                            "--synthetic %s: %s", synthetic, err.text);
    if (status != EA_OK)
        return ea_cli_error(o, EA_CLI_FAILED, "%s", err.text);
    return EA_CLI_DONE;
}

void ea_cli_sampling(const ea_options *o, ea_sampling *out)
{
    ea_request_params defaults;
    ea_request_params_default(&defaults);
    int64_t seed = ea_opt_int(o, EA_OPT_SEED);
    *out = defaults.sampling;
    out->temperature = (float)ea_opt_num(o, EA_OPT_TEMP);
    out->top_k = (int)ea_opt_int(o, EA_OPT_TOP_K);
    out->top_p = (float)ea_opt_num(o, EA_OPT_TOP_P);
    out->min_p = (float)ea_opt_num(o, EA_OPT_MIN_P);
    out->repeat_penalty = (float)ea_opt_num(o, EA_OPT_REPEAT_PENALTY);
    out->repeat_last_n = (int)ea_opt_int(o, EA_OPT_REPEAT_LAST_N);
    out->presence_penalty = (float)ea_opt_num(o, EA_OPT_PRESENCE_PENALTY);
    out->frequency_penalty = (float)ea_opt_num(o, EA_OPT_FREQUENCY_PENALTY);
    out->seed_set = seed >= 0;
    out->seed = seed >= 0 ? (uint64_t)seed : 0;
}

void ea_cli_engine_params(const ea_options *o, ea_engine_params *out)
{
    ea_engine_params_default(out);
    out->log = ea_cli_log;
    out->log_user = (void *)o;
    if (ea_option_table[EA_OPT_THREADS].commands & o->command->bit)
        out->n_threads = (int)ea_opt_int(o, EA_OPT_THREADS);
    if (ea_option_table[EA_OPT_BATCH_SIZE].commands & o->command->bit)
        out->n_batch = (int)ea_opt_int(o, EA_OPT_BATCH_SIZE);
    if (ea_option_table[EA_OPT_CTX_SIZE].commands & o->command->bit)
        out->n_ctx = (int)ea_opt_int(o, EA_OPT_CTX_SIZE);
    if (ea_option_table[EA_OPT_NO_BIND].commands & o->command->bit)
        out->no_bind = ea_opt_flag(o, EA_OPT_NO_BIND);
    if (ea_option_table[EA_OPT_MAX_GAP_MS].commands & o->command->bit)
        out->max_gap_ms = ea_opt_num(o, EA_OPT_MAX_GAP_MS);
    const char *kv_type = ea_opt_text(o, EA_OPT_KV_TYPE);
    out->kv_type = strcmp(kv_type, "q8_0") == 0   ? EA_KV_Q8_0
                   : strcmp(kv_type, "q4_0") == 0 ? EA_KV_Q4_0
                                                  : EA_KV_F16;
}

int ea_cli_chat_template(const ea_options *o, char **out)
{
    const char *path = ea_opt_text(o, EA_OPT_CHAT_TEMPLATE_FILE);
    size_t n;
    ea_error err = {0};
    *out = NULL;
    if (path && ea_file_read(path, EA_MAX_TEMPLATE_BYTES, out, &n, &err) != EA_OK)
        return ea_cli_error(o, EA_CLI_FAILED, "%s", err.text);
    return EA_CLI_DONE;
}

int ea_cli_read_text(const ea_options *o, ea_option_id file, char **out, size_t *n_out)
{
    bool has_prompt = ea_option_table[EA_OPT_PROMPT].commands & o->command->bit;
    const char *prompt = has_prompt ? ea_opt_text(o, EA_OPT_PROMPT) : NULL;
    const char *path = ea_opt_text(o, file);
    if (prompt && path)
        return ea_cli_error(o, EA_CLI_USAGE, "give -p or -f, not both");
    if (prompt) {
        *out = ea_strdup(prompt);
        *n_out = strlen(prompt);
        return *out ? EA_CLI_DONE : ea_cli_error(o, EA_CLI_FAILED, "out of memory");
    }
    if (!path || strcmp(path, "-") == 0) {
        path = "-";
        if (isatty(0))
            fputs("reading from standard input; end with Ctrl-D\n", stderr);
    }
    ea_error err = {0};
    if (ea_file_read(path, MAX_TEXT_BYTES, out, n_out, &err) != EA_OK)
        return ea_cli_error(o, EA_CLI_FAILED, "%s", err.text);
    if (*n_out > 0 && (*out)[*n_out - 1] == '\n')
        (*out)[--*n_out] = '\0';
    return EA_CLI_DONE;
}
