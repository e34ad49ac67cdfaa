/* fake_engine.c: the engine side of the fake library: one thread that plays scripts. See fake.h.
 *
 * Requests are listed in order of arrival; the first n_parallel run. Only the engine thread removes
 * them and calls back, without the lock, as the real engine does. */
#include "fake.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"

enum { MAX_AGENTS = 64, N_REMEMBERED = 32 };

struct ea_request {
    atomic_int refs;
    atomic_bool cancelled;
    ea_engine *engine;
    ea_request_params p;
    int32_t *tokens;
    char *agent;
    ea_buf script; /* tokens to say, int32_t */
    size_t at;     /* next of them */
    ea_buf held;   /* bytes of a character that is not whole yet */
    size_t cut;    /* bytes of the answer before the first stop string */
    size_t said;   /* bytes so far */
    const char *stop;
    int fail_after;
    uint64_t delay_ns, prefill_ns, stall_ns, due_ns, submitted_ns, started_ns, first_ns;
    bool running, done;
    ea_usage usage;
    ea_request *next;
};

struct ea_engine {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    pthread_t thread;
    ea_engine_params p;
    ea_request *first;
    bool closing;
    uint64_t progress_ns;
    ea_engine_stats stats;
    ea_agent_info agents[MAX_AGENTS];
    size_t n_agents;
    ea_buf remembered[N_REMEMBERED]; /* earlier prompts, for n_cached */
    size_t n_remembered;
};

/* ---- scripts ---- */

static double script_number(const char *text, const char *name, double otherwise)
{
    const char *at = strstr(text, name);
    return at ? strtod(at + strlen(name), NULL) : otherwise;
}

static void say_token(ea_request *r, int32_t token)
{
    ea_buf_add(&r->script, &token, sizeof token);
}

static void say_text(ea_request *r, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        say_token(r, (unsigned char)text[i]);
}

static void say_params(ea_request *r)
{
    const ea_request_params *p = &r->p;
    const ea_sampling *s = &p->sampling;
    ea_buf b = EA_BUF_INIT;
    ea_buf_printf(&b,
                  "{\"temperature\":%g,\"top_k\":%d,\"top_p\":%g,\"min_p\":%g,"
                  "\"repeat_penalty\":%g,\"repeat_last_n\":%d,\"presence_penalty\":%g,"
                  "\"frequency_penalty\":%g,\"seed\":%llu,\"seed_set\":%s,\"max_tokens\":%d,"
                  "\"ignore_eos\":%s,\"n_top_logprobs\":%d,\"prompt_logprobs\":%s,\"stop\":[",
                  (double)s->temperature, s->top_k, (double)s->top_p, (double)s->min_p,
                  (double)s->repeat_penalty, s->repeat_last_n, (double)s->presence_penalty,
                  (double)s->frequency_penalty, (unsigned long long)s->seed,
                  s->seed_set ? "true" : "false", p->max_tokens, p->ignore_eos ? "true" : "false",
                  p->n_top_logprobs, p->prompt_logprobs ? "true" : "false");
    for (size_t i = 0; i < p->n_stop; i++) {
        ea_buf_puts(&b, i ? "," : "");
        ea_buf_json_string(&b, p->stop[i], strlen(p->stop[i]));
    }
    ea_buf_puts(&b, "],\"bias\":[");
    for (size_t i = 0; i < s->n_logit_bias; i++)
        ea_buf_printf(&b, "%s[%d,\"%g\"]", i ? "," : "", s->logit_bias[i].token,
                      (double)s->logit_bias[i].bias);
    ea_buf_puts(&b, "],\"agent\":");
    ea_buf_json_string(&b, p->agent ? p->agent : "", p->agent ? strlen(p->agent) : 0);
    ea_buf_puts(&b, ",\"role\":");
    ea_buf_json_string(&b, p->role ? p->role : "", p->role ? strlen(p->role) : 0);
    ea_buf_putc(&b, '}');
    say_text(r, b.data, b.n);
    ea_buf_done(&b);
}

static void find_stop(ea_request *r, const ea_buf *answer)
{
    r->cut = answer->n;
    for (size_t i = 0; i < r->p.n_stop; i++) {
        const char *at = answer->data ? strstr(answer->data, r->p.stop[i]) : NULL;
        if (at && (size_t)(at - answer->data) < r->cut) {
            r->cut = (size_t)(at - answer->data);
            r->stop = "";
        }
    }
}

static void write_script(ea_request *r)
{
    ea_buf text = EA_BUF_INIT;
    for (size_t i = 0; i < r->p.n_tokens; i++)
        if (r->tokens[i] < 256) {
            char c = (char)r->tokens[i];
            ea_buf_putc(&text, c);
        }
    if (!text.n)
        ea_buf_puts(&text, "");
    const char *last = text.data;
    for (const char *u = last; (u = strstr(u, "user: ")); u++)
        last = u;
    r->delay_ns = (uint64_t)(script_number(last, "@delay=", 0) * 1e6);
    r->prefill_ns = (uint64_t)(script_number(last, "@prefill=", 0) * 1e6);
    r->stall_ns = (uint64_t)(script_number(last, "@stall=", 0) * 1e6);
    r->fail_after = (int)script_number(last, "@fail=", -1);
    const char *say = strstr(last, "@say=");
    if (text.data[0] == '\001')
        say_text(r, text.data + 1, text.n - 1);
    else if (strstr(last, "@params"))
        say_params(r);
    else if (say)
        say_text(r, say + 5, strcspn(say + 5, "\n"));
    int words = text.data[0] == '\001' || say || strstr(last, "@params")
                    ? 0
                    : (int)script_number(last, "@words=", 5);
    if (r->p.ignore_eos && words < r->p.max_tokens)
        words = r->p.max_tokens;
    for (int i = 0; i < words; i++)
        say_token(r, 256 + i % 1024);
    ea_buf answer = EA_BUF_INIT;
    for (size_t i = 0; i < r->script.n / sizeof(int32_t); i++) {
        char b[16];
        ea_buf_add(&answer, b,
                   ea_token_bytes(NULL, ((int32_t *)(void *)r->script.data)[i], false, b, 16));
    }
    find_stop(r, &answer);
    if (strstr(last, "@params")) { /* the answer spells the stop strings out */
        r->cut = answer.n;
        r->stop = NULL;
    }
    ea_buf_done(&answer);
    ea_buf_done(&text);
}

/* ---- events ---- */

static ea_agent_info *agent_of(ea_engine *e, const char *id)
{
    if (!id || !*id)
        return NULL;
    for (size_t i = 0; i < e->n_agents; i++)
        if (strncmp(e->agents[i].id, id, sizeof e->agents[i].id - 1) == 0)
            return &e->agents[i];
    if (e->n_agents == MAX_AGENTS)
        return NULL;
    ea_agent_info *a = &e->agents[e->n_agents++];
    snprintf(a->id, sizeof a->id, "%s", id);
    return a;
}

static void set_state(ea_request *r, ea_agent_state state)
{
    ea_engine *e = r->engine;
    pthread_mutex_lock(&e->lock);
    ea_agent_info *a = agent_of(e, r->agent);
    if (a)
        a->state = state;
    pthread_mutex_unlock(&e->lock);
}

static bool send_event(ea_request *r, ea_event *ev)
{
    ev->usage = r->usage;
    uint64_t start = ea_now_ns();
    bool go_on = r->p.on_event ? r->p.on_event(r->p.user, ev) : true;
    double ms = (double)(ea_now_ns() - start) / 1e6;
    pthread_mutex_lock(&r->engine->lock);
    if (ms > r->engine->stats.max_step_ms) /* here: the longest callback */
        r->engine->stats.max_step_ms = ms;
    pthread_mutex_unlock(&r->engine->lock);
    return go_on;
}

static void finish(ea_request *r, ea_finish how, const char *error)
{
    ea_event ev = {.kind = EA_EVENT_DONE, .finish = how, .error = error};
    ea_engine *e = r->engine;
    ev.status = how == EA_FINISH_ERROR ? EA_EINTERNAL : EA_OK;
    if (r->first_ns)
        r->usage.generate_ms = (double)(ea_now_ns() - r->first_ns) / 1e6;
    pthread_mutex_lock(&e->lock);
    ea_agent_info *a = agent_of(e, r->agent);
    if (a) {
        a->state = EA_AGENT_IDLE;
        a->n_prompt += (uint64_t)r->usage.n_prompt;
        a->n_cached += (uint64_t)r->usage.n_cached;
        a->n_generated += (uint64_t)r->usage.n_generated;
    }
    if (r->running)
        e->stats.n_running--;
    else
        e->stats.n_queued--;
    if (how == EA_FINISH_CANCELLED)
        e->stats.n_requests_cancelled++;
    else if (how == EA_FINISH_ERROR)
        e->stats.n_requests_failed++;
    else
        e->stats.n_requests_done++;
    e->stats.n_generated_tokens += (uint64_t)r->usage.n_generated;
    pthread_mutex_unlock(&e->lock);
    r->done = true;
    send_event(r, &ev);
}

/* Longest common beginning with an earlier prompt; the last token is always computed. */
static void look_up(ea_request *r)
{
    ea_engine *e = r->engine;
    size_t best = 0, n = r->p.n_tokens;
    for (size_t k = 0; k < EA_MIN(e->n_remembered, (size_t)N_REMEMBERED); k++) {
        const int32_t *old = (const int32_t *)(void *)e->remembered[k].data;
        size_t i = 0, n_old = e->remembered[k].n / sizeof *old;
        while (i < n_old && i + 1 < n && old[i] == r->tokens[i])
            i++;
        best = EA_MAX(best, i);
    }
    ea_buf *slot = &e->remembered[e->n_remembered++ % N_REMEMBERED];
    ea_buf_clear(slot);
    ea_buf_add(slot, r->tokens, n * sizeof *r->tokens);
    r->usage.n_cached = (int)best;
}

static void fill_probs(const ea_request *r, ea_event *ev, ea_token_prob top[static 20])
{
    ev->logprob = -0.5f;
    for (int i = 0; i < r->p.n_top_logprobs; i++)
        top[i] = (ea_token_prob){(ev->token + i) % FAKE_N_VOCAB, -0.5f - (float)i};
    ev->top = top;
    ev->n_top = EA_MAX(0, r->p.n_top_logprobs);
}

static void start(ea_request *r)
{
    ea_engine *e = r->engine;
    uint64_t now = ea_now_ns();
    pthread_mutex_lock(&e->lock);
    e->stats.n_queued--;
    e->stats.n_running++;
    pthread_mutex_unlock(&e->lock);
    r->running = true;
    r->started_ns = now;
    r->due_ns = now + r->prefill_ns;
    r->usage.queue_ms = (double)(now - r->submitted_ns) / 1e6;
    look_up(r);
    set_state(r, EA_AGENT_PREFILL);
    ea_event ev = {.kind = EA_EVENT_STARTED};
    send_event(r, &ev);
    for (size_t i = 1; r->p.prompt_logprobs && i < r->p.n_tokens; i++) {
        ea_token_prob top[20];
        ea_event pl = {.kind = EA_EVENT_PROMPT_LOGPROB, .token = r->tokens[i], .pos = (int)i};
        fill_probs(r, &pl, top);
        send_event(r, &pl);
    }
}

/* Text of the next token, whole characters only and nothing past a stop string. */
static void add_text(ea_request *r, int32_t token, ea_event *ev, ea_buf *text)
{
    char bytes[16];
    size_t n = ea_token_bytes(NULL, token, false, bytes, sizeof bytes);
    n = EA_MIN(n, r->cut - EA_MIN(r->cut, r->said));
    r->said += n;
    ea_buf_add(&r->held, bytes, n);
    size_t whole = r->held.n - ea_utf8_incomplete_tail(r->held.data ? r->held.data : "", r->held.n);
    ea_buf_add(text, r->held.data, whole);
    ea_buf_drop_front(&r->held, whole);
    ev->text = text->data;
    ev->n_bytes = text->n;
}

static void say_next(ea_request *r)
{
    const int32_t *script = (const int32_t *)(void *)r->script.data;
    size_t n = r->script.n / sizeof *script;
    if (r->fail_after >= 0 && r->usage.n_generated >= r->fail_after) {
        finish(r, EA_FINISH_ERROR, "the fake device was lost");
        return;
    }
    if (r->usage.n_generated == 0) {
        r->first_ns = ea_now_ns();
        r->usage.prompt_ms = (double)(r->first_ns - r->started_ns) / 1e6;
        set_state(r, EA_AGENT_RUNNING);
    }
    if (r->p.max_tokens >= 0 && r->usage.n_generated >= r->p.max_tokens) {
        finish(r, EA_FINISH_LENGTH, NULL);
        return;
    }
    if (r->at >= n || (r->stop && r->said >= r->cut)) {
        finish(r, EA_FINISH_STOP, NULL);
        return;
    }
    ea_buf text = EA_BUF_INIT;
    ea_token_prob top[20];
    ea_event ev = {.kind = EA_EVENT_TOKEN, .token = script[r->at++]};
    r->usage.n_generated++;
    add_text(r, ev.token, &ev, &text);
    fill_probs(r, &ev, top);
    if (!send_event(r, &ev))
        atomic_store(&r->cancelled, true);
    ea_buf_done(&text);
    r->due_ns = ea_now_ns() + r->delay_ns;
}

/* ---- the thread ---- */

static void step(ea_request *r, bool may_start)
{
    if (atomic_load(&r->cancelled)) {
        finish(r, EA_FINISH_CANCELLED, NULL);
    } else if (!r->running && may_start) {
        start(r);
        if (r->stall_ns)
            ea_sleep_ns(r->stall_ns);
    } else if (r->running && r->due_ns <= ea_now_ns()) {
        say_next(r);
    }
}

/* Unlink what is done; the lock is held. */
static void sweep(ea_engine *e)
{
    for (ea_request **at = &e->first; *at;) {
        ea_request *r = *at;
        if (r->done) {
            *at = r->next;
            ea_request_unref(r);
        } else {
            at = &r->next;
        }
    }
}

static void sleep_until_due(ea_engine *e)
{
    uint64_t due = ea_now_ns() + 20000000u; /* bounds the wait, also for requests just cancelled */
    for (ea_request *r = e->first; r; r = r->next)
        if (r->running && r->due_ns < due)
            due = r->due_ns;
    struct timespec ts = {(time_t)(due / 1000000000u), (long)(due % 1000000000u)};
    pthread_cond_timedwait(&e->cond, &e->lock, &ts);
}

static void *engine_main(void *arg)
{
    ea_engine *e = arg;
    pthread_mutex_lock(&e->lock);
    while (!e->closing || e->first) {
        ea_request *list[1024];
        size_t n = 0;
        for (ea_request *r = e->first; r && n < 1024; r = r->next) {
            if (e->closing)
                atomic_store(&r->cancelled, true);
            list[n++] = r;
        }
        pthread_mutex_unlock(&e->lock);
        for (size_t i = 0; i < n; i++)
            step(list[i], e->stats.n_running < e->p.n_parallel);
        pthread_mutex_lock(&e->lock);
        sweep(e);
        e->progress_ns = ea_now_ns();
        e->stats.n_steps++;
        if (!e->closing)
            sleep_until_due(e);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

ea_engine *fake_engine_create(const ea_engine_params *params)
{
    ea_engine *e = ea_calloc(1, sizeof *e);
    pthread_condattr_t attr;
    EA_ASSERT(e != NULL);
    e->p = *params;
    e->progress_ns = ea_now_ns();
    e->stats.n_ctx = e->stats.n_ctx_agent = params->n_ctx;
    e->stats.n_parallel = params->n_parallel;
    e->stats.n_threads = 1;
    e->stats.page_tokens = 16;
    e->stats.n_pages = e->stats.n_pages_free = 100;
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->cond, &attr);
    pthread_condattr_destroy(&attr);
    EA_ASSERT(pthread_create(&e->thread, NULL, engine_main, e) == 0);
    return e;
}

void ea_engine_destroy(ea_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->closing = true;
    pthread_cond_signal(&e->cond);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    for (size_t i = 0; i < N_REMEMBERED; i++)
        ea_buf_done(&e->remembered[i]);
    pthread_cond_destroy(&e->cond);
    pthread_mutex_destroy(&e->lock);
    ea_free(e);
}

/* ---- requests ---- */

void ea_request_params_default(ea_request_params *p)
{
    *p = (ea_request_params){.size = sizeof *p, .max_tokens = -1, .n_top_logprobs = -1};
    p->sampling = (ea_sampling){.temperature = 0.8f,
                                .top_k = 40,
                                .top_p = 0.95f,
                                .min_p = 0.05f,
                                .repeat_penalty = 1,
                                .repeat_last_n = 64};
}

static ea_request *make_request(ea_engine *e, const ea_request_params *p)
{
    ea_request *r = ea_calloc(1, sizeof *r);
    EA_ASSERT(r != NULL);
    atomic_init(&r->refs, 1);
    r->engine = e;
    r->p = *p;
    r->tokens = ea_malloc(p->n_tokens * sizeof *r->tokens);
    EA_ASSERT(r->tokens != NULL);
    memcpy(r->tokens, p->tokens, p->n_tokens * sizeof *r->tokens);
    r->agent = ea_strdup(p->agent ? p->agent : "");
    r->submitted_ns = ea_now_ns();
    r->usage.n_prompt = (int)p->n_tokens;
    r->usage.seed = p->sampling.seed_set ? p->sampling.seed : 1;
    write_script(r);
    return r;
}

ea_status ea_request_submit(ea_engine *e, const ea_request_params *p, ea_request **out,
                            ea_error *err)
{
    if (p->n_tokens > (size_t)e->p.n_ctx)
        return ea_fail(err, EA_ETOOLONG, "the prompt has %zu tokens, the context holds %d",
                       p->n_tokens, e->p.n_ctx);
    pthread_mutex_lock(&e->lock);
    bool full = e->stats.n_queued >= e->p.n_queue;
    pthread_mutex_unlock(&e->lock);
    if (full)
        return ea_fail(err, EA_EBUSY, "the queue is full (%d requests wait)", e->p.n_queue);
    ea_request *r = make_request(e, p);
    if (out) {
        atomic_fetch_add(&r->refs, 1);
        *out = r;
    }
    pthread_mutex_lock(&e->lock);
    ea_request **at = &e->first;
    while (*at)
        at = &(*at)->next;
    *at = r;
    e->stats.n_queued++;
    e->stats.n_prompt_tokens += p->n_tokens;
    ea_agent_info *a = agent_of(e, r->agent);
    if (a) {
        a->state = EA_AGENT_QUEUED;
        a->n_requests++;
        a->n_ctx = (int)p->n_tokens;
        snprintf(a->role, sizeof a->role, "%s", p->role ? p->role : "");
    }
    pthread_cond_signal(&e->cond);
    pthread_mutex_unlock(&e->lock);
    return EA_OK;
}

void ea_request_cancel(ea_request *r)
{
    atomic_store(&r->cancelled, true);
}

const int32_t *ea_request_tokens(const ea_request *r, size_t *n_tokens)
{
    *n_tokens = r->p.n_tokens;
    return r->tokens;
}

void ea_request_unref(ea_request *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    ea_buf_done(&r->script);
    ea_buf_done(&r->held);
    ea_free(r->agent);
    ea_free(r->tokens);
    ea_free(r);
}

/* ---- state ---- */

const char *ea_agent_state_name(ea_agent_state state)
{
    static const char *const names[] = {"queued",    "prefill", "running",
                                        "suspended", "idle",    "closed"};
    return names[state];
}

void ea_agent_suspend(ea_engine *e, const char *agent)
{
    pthread_mutex_lock(&e->lock);
    ea_agent_info *a = agent_of(e, agent);
    if (a)
        a->state = EA_AGENT_SUSPENDED;
    pthread_mutex_unlock(&e->lock);
}

size_t ea_engine_agents(ea_engine *e, ea_agent_info *out, size_t n)
{
    pthread_mutex_lock(&e->lock);
    size_t total = e->n_agents;
    for (size_t i = 0; i < EA_MIN(n, total); i++)
        out[i] = e->agents[i];
    pthread_mutex_unlock(&e->lock);
    return total;
}

void ea_engine_stats_get(ea_engine *e, ea_engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->since_progress_ms = (double)(ea_now_ns() - e->progress_ns) / 1e6;
    pthread_mutex_unlock(&e->lock);
}
