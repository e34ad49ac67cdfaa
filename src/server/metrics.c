/* metrics.c: counters and /metrics in Prometheus' text format (version 0.0.4). Counters are relaxed
 * atomics; a scrape is no snapshot across them. */
#include "server/internal.h"

#include <string.h>

static const int CODES[EA_N_CODES] = {200, 204, 400, 401, 404,          405, 413,
                                      415, 429, 500, 503, 0 /* gone */, -1 /* other */};

/* Upper bounds in seconds of the time to the first token, queueing included: from a cached turn on
 * a fast machine to a long prompt on a slow one. */
static const double TTFT[EA_N_TTFT] = {0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};

void ea_server_count_answer(ea_server *s, ea_route_id route, int http)
{
    int i = 0;
    while (i < EA_N_CODES - 1 && CODES[i] != http)
        i++;
    EA_COUNT(s->counters.answers[route][i], 1);
}

static uint64_t to_us(double ms)
{
    return ms > 0 ? (uint64_t)(ms * 1e3) : 0;
}

/* At the end of each engine request, also of cancelled ones: their work was done too. */
void ea_server_count_usage(ea_server *s, const ea_usage *u)
{
    ea_server_counters *c = &s->counters;
    EA_COUNT(c->queue_us, to_us(u->queue_ms));
    EA_COUNT(c->prompt_us, to_us(u->prompt_ms));
    EA_COUNT(c->generate_us, to_us(u->generate_ms));
    if (u->n_prompt > u->n_cached)
        EA_COUNT(c->prompt_tokens, (uint64_t)(u->n_prompt - u->n_cached));
    if (u->n_generated <= 0)
        return;
    EA_COUNT(c->generate_tokens, (uint64_t)u->n_generated);
    double seconds = (u->queue_ms + u->prompt_ms) / 1e3;
    int i = 0;
    while (i < EA_N_TTFT && seconds > TTFT[i])
        i++;
    EA_COUNT(c->ttft[i], 1);
    EA_COUNT(c->ttft_us, to_us(seconds * 1e3));
}

static uint64_t load(const atomic_uint_least64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void head(ea_buf *out, const char *name, const char *type, const char *help)
{
    ea_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void one(ea_buf *out, const char *name, const char *type, const char *help, double value)
{
    head(out, name, type, help);
    ea_buf_printf(out, "%s ", name);
    ea_buf_json_double(out, value);
    ea_buf_putc(out, '\n');
}

static void add_http(const ea_server *s, ea_buf *out)
{
    const ea_server_counters *c = &s->counters;
    head(out, "edgeagent_http_requests_total", "counter", "Answered HTTP requests.");
    for (int r = 0; r < EA_N_ROUTES; r++) {
        for (int i = 0; i < EA_N_CODES; i++) {
            uint64_t n = load(&c->answers[r][i]);
            if (!n)
                continue;
            ea_buf_printf(out, "edgeagent_http_requests_total{route=\"%s\",code=\"",
                          ea_route_name((ea_route_id)r));
            if (CODES[i] > 0)
                ea_buf_printf(out, "%d", CODES[i]);
            else
                ea_buf_puts(out, CODES[i] == 0 ? "none" : "other");
            ea_buf_printf(out, "\"} %llu\n", (unsigned long long)n);
        }
    }
    one(out, "edgeagent_http_connections", "gauge", "Open connections.",
        atomic_load_explicit(&c->connections, memory_order_relaxed));
    one(out, "edgeagent_clients_vanished_total", "counter",
        "Clients that went away before their answer was complete.", (double)load(&c->vanished));
    head(out, "edgeagent_time_to_first_token_seconds", "histogram",
         "From submission to the first token.");
    uint64_t sum = 0;
    for (int i = 0; i < EA_N_TTFT; i++) {
        sum += load(&c->ttft[i]);
        ea_buf_printf(out, "edgeagent_time_to_first_token_seconds_bucket{le=\"%g\"} %llu\n",
                      TTFT[i], (unsigned long long)sum);
    }
    sum += load(&c->ttft[EA_N_TTFT]);
    ea_buf_printf(out,
                  "edgeagent_time_to_first_token_seconds_bucket{le=\"+Inf\"} %llu\n"
                  "edgeagent_time_to_first_token_seconds_sum %.6f\n"
                  "edgeagent_time_to_first_token_seconds_count %llu\n",
                  (unsigned long long)sum, (double)load(&c->ttft_us) / 1e6,
                  (unsigned long long)sum);
}

static void add_engine(const ea_engine_stats *e, ea_buf *out)
{
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"edgeagent_steps_total", "counter", "Forward passes.", (double)e->n_steps},
        {"edgeagent_prompt_tokens_total", "counter", "Prompt tokens, computed or cached.",
         (double)e->n_prompt_tokens},
        {"edgeagent_cached_tokens_total", "counter", "Prompt tokens that were not computed again.",
         (double)e->n_cached_tokens},
        {"edgeagent_generated_tokens_total", "counter", "Generated tokens.",
         (double)e->n_generated_tokens},
        {"edgeagent_requests_done_total", "counter", "Requests that ended by themselves.",
         (double)e->n_requests_done},
        {"edgeagent_requests_cancelled_total", "counter", "Requests ended early by their client.",
         (double)e->n_requests_cancelled},
        {"edgeagent_requests_failed_total", "counter", "Requests that ended in an error.",
         (double)e->n_requests_failed},
        {"edgeagent_preemptions_total", "counter", "Running requests set back for lack of pages.",
         (double)e->n_preemptions},
        {"edgeagent_evicted_pages_total", "counter", "KV pages dropped to make room.",
         (double)e->n_evicted_pages},
        {"edgeagent_requests_running", "gauge", "Requests running now.", e->n_running},
        {"edgeagent_requests_queued", "gauge", "Requests waiting now.", e->n_queued},
        {"edgeagent_kv_pages", "gauge", "KV pages in all.", e->n_pages},
        {"edgeagent_kv_pages_free", "gauge", "KV pages never used or free.", e->n_pages_free},
        {"edgeagent_kv_pages_cached", "gauge", "KV pages held only by the prefix tree.",
         e->n_pages_cached},
        {"edgeagent_kv_page_tokens", "gauge", "Positions of one page.", e->page_tokens},
        {"edgeagent_kv_bytes", "gauge", "Memory of the KV pages.", (double)e->kv_bytes},
        {"edgeagent_last_step_seconds", "gauge", "Time of the last step.", e->last_step_ms / 1e3},
        {"edgeagent_max_step_seconds", "gauge", "Time of the longest step.", e->max_step_ms / 1e3},
        {"edgeagent_since_progress_seconds", "gauge",
         "Time since the engine finished a step or found nothing to do.",
         e->since_progress_ms / 1e3},
    };
    for (size_t i = 0; i < EA_ARRAY_LEN(rows); i++)
        one(out, rows[i].name, rows[i].type, rows[i].help, rows[i].value);
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* The names that dashboards made for llama-server look for. */
static void add_llamacpp(const ea_server *s, const ea_engine_stats *e, ea_buf *out)
{
    const ea_server_counters *c = &s->counters;
    double prompt_s = (double)load(&c->prompt_us) / 1e6,
           generate_s = (double)load(&c->generate_us) / 1e6,
           prompt_n = (double)load(&c->prompt_tokens),
           generate_n = (double)load(&c->generate_tokens);
    int used = e->n_pages - e->n_pages_free - e->n_pages_cached;
    one(out, "llamacpp:prompt_tokens_total", "counter", "Prompt tokens computed.", prompt_n);
    one(out, "llamacpp:prompt_seconds_total", "counter", "Time in prompts.", prompt_s);
    one(out, "llamacpp:tokens_predicted_total", "counter", "Tokens generated.", generate_n);
    one(out, "llamacpp:tokens_predicted_seconds_total", "counter", "Time generating.", generate_s);
    one(out, "llamacpp:n_decode_total", "counter", "Forward passes.", (double)e->n_steps);
    one(out, "llamacpp:prompt_tokens_seconds", "gauge", "Mean prompt throughput, tokens/s.",
        ratio(prompt_n, prompt_s));
    one(out, "llamacpp:predicted_tokens_seconds", "gauge", "Mean generation throughput, tokens/s.",
        ratio(generate_n, generate_s));
    one(out, "llamacpp:kv_cache_usage_ratio", "gauge", "Share of the KV pages in use.",
        ratio(used, e->n_pages));
    one(out, "llamacpp:kv_cache_tokens", "gauge", "Positions of the KV pages in use.",
        (double)used * e->page_tokens);
    one(out, "llamacpp:requests_processing", "gauge", "Requests running now.", e->n_running);
    one(out, "llamacpp:requests_deferred", "gauge", "Requests waiting now.", e->n_queued);
}

void ea_server_metrics(ea_server *s, ea_buf *out)
{
    ea_engine_stats stats;
    ea_engine_stats_get(s->params.engine, &stats);
    add_http(s, out);
    add_engine(&stats, out);
    add_llamacpp(s, &stats, out);
}
