/* events.c: what the owner of a request hears, and how a request ends. Engine thread.
 *
 * Records and counters are brought up to date before DONE is delivered, so that whoever was told
 * may look at once. */
#include "engine/state.h"

#include "base/mem.h"

/* Call the owner. The allocation guard rests meanwhile: what a callback does is not ours. */
static void deliver(ea_engine *e, ea_request *r, ea_event *event)
{
    event->usage = (ea_usage){
        .n_prompt = r->n_prompt,
        .n_cached = r->n_cached,
        .n_generated = r->n_generated,
        .queue_ms = r->admit_ns ? ea_ms_between(r->submit_ns, r->admit_ns) : 0,
        .prompt_ms = r->first_ns ? ea_ms_between(r->admit_ns, r->first_ns) : 0,
        .generate_ms = ea_ms_between(r->first_ns, r->last_ns),
        .seed = r->seed,
    };
    if (!event->text)
        event->text = "";
    if (!r->on_event)
        return;
    bool guarded = e->guarded;
    if (guarded)
        ea_alloc_guard_end();
    if (!r->on_event(r->user, event))
        ea_request_cancel(r);
    if (guarded)
        ea_alloc_guard_begin(true);
}

static void count_cached(ea_engine *e, ea_request *r, int n)
{
    r->n_cached += n;
    e->stats.n_cached_tokens += (uint64_t)n;
    pthread_mutex_lock(&e->mail->lock);
    ea_agent_cached(r->rec, n);
    pthread_mutex_unlock(&e->mail->lock);
}

/* Others may have computed what a prompt needs while it was in prefill itself. */
void ea_request_note_matched(ea_engine *e, ea_request *r)
{
    int n = EA_MIN(e->seqs[r->seq].n_tokens, r->n_prompt) - r->n_seen;
    if (!r->started || n <= 0)
        return;
    r->n_seen += n;
    count_cached(e, r, n);
}

void ea_request_emit_started(ea_engine *e, ea_request *r)
{
    r->started = true;
    e->stats.n_prompt_tokens += (uint64_t)r->n_prompt;
    pthread_mutex_lock(&e->mail->lock);
    ea_agent_started(r->rec, r->n_prompt);
    pthread_mutex_unlock(&e->mail->lock);
    r->n_seen = e->seqs[r->seq].n_tokens;
    count_cached(e, r, r->n_seen);
    ea_event event = {.kind = EA_EVENT_STARTED};
    deliver(e, r, &event);
}

/* The figures that logits give for the token that follows them. */
static void add_logprobs(ea_engine *e, const ea_request *r, const float *logits, int32_t token,
                         ea_event *event)
{
    int n_vocab = e->dev->info.n_vocab;
    event->logprob = ea_logprob(logits, n_vocab, token);
    event->top = e->top;
    event->n_top = r->n_top > 0 ? ea_top_logprobs(logits, n_vocab, r->n_top, e->top) : 0;
}

void ea_request_emit_prompt_logprob(ea_engine *e, ea_request *r, int pos, const float *logits)
{
    ea_event event = {.kind = EA_EVENT_PROMPT_LOGPROB, .token = r->tokens[pos], .pos = pos};
    add_logprobs(e, r, logits, event.token, &event);
    r->next_logprob = pos;
    deliver(e, r, &event);
}

void ea_request_finish(ea_engine *e, ea_request *r, ea_finish why, const char *stop,
                       ea_status status, const char *error)
{
    ea_mailbox *mail = e->mail;
    int n_held = 0, none;
    if (r->seq >= 0)
        ea_engine_deactivate(e, r);
    if (!r->admit_ns)
        r->admit_ns = ea_engine_now(e);
    e->stats.n_requests_done += why == EA_FINISH_STOP || why == EA_FINISH_LENGTH;
    e->stats.n_requests_cancelled += why == EA_FINISH_CANCELLED;
    e->stats.n_requests_failed += why == EA_FINISH_ERROR;
    pthread_mutex_lock(&mail->lock);
    ea_agent_ended(mail->agents, r->rec, r->phase, r->n_tokens, ea_engine_now(e));
    mail->n_live--;
    pthread_mutex_unlock(&mail->lock);
    ea_engine_publish(e, false);
    if (!stop) /* after a stop string nothing is left to show */
        n_held = (int)ea_stream_take(&r->stream, true, e->text, &none);
    ea_event event = {.kind = EA_EVENT_DONE,
                      .text = e->text,
                      .n_bytes = (size_t)n_held,
                      .finish = why,
                      .stop = stop,
                      .status = status,
                      .error = error,
                      .pos = r->n_tokens};
    deliver(e, r, &event);
    pthread_mutex_lock(&mail->lock);
    r->done = true;
    pthread_cond_broadcast(&mail->done);
    pthread_mutex_unlock(&mail->lock);
    ea_request_unref(r);
}

static bool is_eog(const ea_engine *e, int32_t token)
{
    return e->vocab.is_eog && e->vocab.is_eog(e->vocab.ctx, token);
}

static void count_token(ea_engine *e, ea_request *r)
{
    uint64_t now = ea_engine_now(e);
    if (!r->first_ns)
        r->first_ns = now;
    r->last_ns = now;
    r->n_generated++;
    e->stats.n_generated_tokens++;
    double ms = ea_ms_between(r->first_ns, now);
    pthread_mutex_lock(&e->mail->lock);
    ea_agent_token(e->mail->agents, r->rec, r->n_tokens,
                   ms > 0 ? (r->n_generated - 1) * 1e3 / ms : 0, now);
    pthread_mutex_unlock(&e->mail->lock);
}

void ea_request_accept(ea_engine *e, ea_request *r, int32_t token, const float *logits)
{
    int stop = -1;
    if (!r->ignore_eos && is_eog(e, token)) { /* not part of the answer: no TOKEN event */
        count_token(e, r);
        ea_request_finish(e, r, EA_FINISH_STOP, NULL, EA_OK, NULL);
        return;
    }
    EA_ASSERT(r->n_tokens < r->n_max);
    r->tokens[r->n_tokens++] = token;
    count_token(e, r);
    if (r->phase != EA_AGENT_RUNNING)
        ea_request_set_phase(e, r, EA_AGENT_RUNNING);
    ea_event event = {
        .kind = EA_EVENT_TOKEN, .token = token, .pos = r->n_tokens - 1, .text = e->text};
    if (r->n_top >= 0)
        add_logprobs(e, r, logits, token, &event);
    if (e->vocab.token_bytes) {
        size_t n = e->vocab.token_bytes(e->vocab.ctx, token, ea_stream_tail(&r->stream),
                                        e->max_token_bytes);
        ea_stream_put(&r->stream, EA_MIN(n, e->max_token_bytes));
        event.n_bytes = ea_stream_take(&r->stream, false, e->text, &stop);
    }
    deliver(e, r, &event);
    if (stop >= 0)
        ea_request_finish(e, r, EA_FINISH_STOP, r->stream.stops[stop], EA_OK, NULL);
    else if (r->n_tokens == r->n_max)
        ea_request_finish(e, r, EA_FINISH_LENGTH, NULL, EA_OK, NULL);
}
