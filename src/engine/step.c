/* step.c: one step: build, run, and deal with what came of it. Nothing in here allocates. */
#include "engine/state.h"

#include "base/mem.h"

void ea_engine_publish(ea_engine *e, bool progress)
{
    ea_kv_counts counts = ea_kv_count(e->kv);
    e->stats.n_evicted_pages = counts.n_evicted;
    e->stats.n_pages_free = counts.n_free;
    e->stats.n_pages_cached = counts.n_cached;
    e->stats.n_running = e->n_active;
    uint64_t now = ea_engine_now(e);
    pthread_mutex_lock(&e->mail->lock);
    e->mail->stats = e->stats;
    if (progress)
        e->mail->progress_ns = now;
    pthread_mutex_unlock(&e->mail->lock);
}

/* The last row of the timeline was computed: what comes next? */
static void next_token(ea_engine *e, ea_request *r, const ea_row *row)
{
    if (r->max_tokens == 0) {
        ea_request_finish(e, r, EA_FINISH_LENGTH, NULL, EA_OK, NULL);
        return;
    }
    int32_t token = row->argmax;
    if (r->needs_logits)
        token = ea_sampler_draw(r->sampler, row->logits, r->tokens, r->n_tokens, r->n_tokens,
                                r->ignore_eos ? e->eog : NULL, r->ignore_eos ? e->n_eog : 0);
    ea_request_accept(e, r, token, row->logits);
}

static void take_results(ea_engine *e, ea_request *r)
{
    ea_kv_seq *seq = &e->seqs[r->seq];
    int first_pos = seq->n_tokens, n = r->n_rows;
    const ea_row *rows = e->rows + r->first_row;
    ea_kv_commit(e->kv, seq, r->tokens, n);
    r->n_seen = EA_MAX(r->n_seen, seq->n_tokens);
    if (r->phase == EA_AGENT_PREFILL)
        e->prefill_clock += n;
    if (r->prompt_logprobs)
        for (int i = 0; i < n; i++) {
            int pos = first_pos + i + 1; /* the token that row i predicts */
            if (pos > r->next_logprob && pos < r->n_prompt &&
                !atomic_load_explicit(&r->cancel, memory_order_relaxed))
                ea_request_emit_prompt_logprob(e, r, pos, rows[i].logits);
        }
    /* A cancelled request hears no more tokens; it ends before the next step. */
    if (seq->n_tokens == r->n_tokens && !atomic_load_explicit(&r->cancel, memory_order_relaxed))
        next_token(e, r, &rows[n - 1]);
}

static bool any_cancelled(const ea_engine *e)
{
    for (int i = 0; i < e->n_active; i++)
        if (atomic_load_explicit(&e->active[i]->cancel, memory_order_relaxed))
            return true;
    return false;
}

static void step(ea_engine *e)
{
    int n_active = e->n_active;
    uint64_t begin = ea_engine_now(e);
    ea_engine_build(e);
    if (e->n_rows == 0) {
        /* Requests were done without a step, gave up their places or are about to end; or else it
         * is our bug, of which the newest request has to bear the consequences. */
        if (e->n_active == n_active && !any_cancelled(e))
            ea_request_finish(e, e->active[n_active - 1], EA_FINISH_ERROR, NULL, EA_EINTERNAL,
                              "no request could advance");
        return;
    }
    ea_error err = {0};
    ea_batch batch = {e->rows, e->n_rows, e->tables, e->n_in_batch};
    ea_status status = e->dev->ops->step(e->dev, &batch, &err);
    if (status != EA_OK && e->log)
        e->log(e->log_user, EA_LOG_DEBUG, err.text);
    for (int i = 0; i < e->n_in_batch; i++) {
        if (status == EA_OK)
            take_results(e, e->in_batch[i]);
        else
            ea_request_finish(e, e->in_batch[i], EA_FINISH_ERROR, NULL, status, err.text);
    }
    double ms = ea_ms_between(begin, ea_engine_now(e));
    if (status == EA_OK)
        ea_cost_update(&e->cost, &e->load, ms);
    e->stats.n_steps++;
    e->stats.last_step_ms = ms;
    e->stats.max_step_ms = EA_MAX(e->stats.max_step_ms, ms);
}

void ea_engine_step(ea_engine *e)
{
    if (e->hooks.guard_allocs) {
        ea_alloc_guard_begin(true);
        e->guarded = true;
    }
    step(e);
    ea_engine_publish(e, true);
    if (e->guarded) {
        e->guarded = false;
        ea_alloc_guard_end();
    }
    if (e->hooks.after_step)
        e->hooks.after_step(e->hooks.user, e);
}
