/* schedule.c: who is admitted, who gives way when pages run out, and which rows a step has.
 *
 * Order of rights: age, that is the serial number of the request. The queue is served in that
 * order, pages are taken from the newest, and so the oldest active request always advances; since
 * one timeline fits into the pool, every request ends.
 *
 * Prefill rows go to one request after another by (tokens left + prefill rows served since the
 * engine started, as of the request's admission): the shortest rest first, for a returning tool
 * call must not wait behind a long document, but whoever waits is overtaken by at most as many rows
 * as its own rest has. Giving all prefills equal shares would delay every one of them to the end of
 * all. */
#include "engine/state.h"

#include <string.h>

/* Share of the gap bound at which a step beside running decoders aims. The estimate may be wrong by
 * half, and what a reader sees is not every token: the bytes of a character, or the beginning of
 * what may become a stop string or a tool call, wait for the next one. */
static const double GAP_SHARE = 0.4;
/* Longest step to aim at in any case: cancellation and shutdown wait for its end. */
static const double MAX_STEP_MS = 250;
/* Prefill rows of a step at least, however slow steps are: prefill must end some time. */
enum { MIN_PREFILL_ROWS = 4 };

static bool is_cancelled(const ea_request *r)
{
    return atomic_load_explicit(&r->cancel, memory_order_relaxed);
}

static int pages_of(const ea_engine *e, int n_tokens)
{
    return (n_tokens + e->dev->info.page_tokens - 1) / e->dev->info.page_tokens;
}

/* ---- in and out of the active requests ---- */

void ea_request_set_phase(ea_engine *e, ea_request *r, ea_agent_state phase)
{
    pthread_mutex_lock(&e->mail->lock);
    ea_agent_move(e->mail->agents, r->rec, r->phase, phase);
    pthread_mutex_unlock(&e->mail->lock);
    r->phase = phase;
    e->admit_again = true; /* what was promised to a prefill may be known to the tree now */
}

static void activate(ea_engine *e, ea_request *r)
{
    r->seq = e->free_seqs[--e->n_free_seqs];
    ea_kv_seq_start(&e->seqs[r->seq], e->root);
    if (!r->admit_ns)
        r->admit_ns = ea_engine_now(e);
    r->prefill_order = e->prefill_clock;
    r->n_rows = 0;
    int i = e->n_active++;
    for (; i > 0 && e->active[i - 1]->link.serial > r->link.serial; i--)
        e->active[i] = e->active[i - 1];
    e->active[i] = r;
    ea_request_set_phase(e, r, EA_AGENT_PREFILL);
}

void ea_engine_deactivate(ea_engine *e, ea_request *r)
{
    int i = 0;
    while (e->active[i] != r)
        i++;
    memmove(&e->active[i], &e->active[i + 1], (size_t)(--e->n_active - i) * sizeof *e->active);
    ea_kv_release(e->kv, &e->seqs[r->seq]);
    e->free_seqs[e->n_free_seqs++] = r->seq;
    r->seq = -1;
    r->n_rows = 0;
    e->admit_again = true;
}

/* Back to the queue with all that it has said so far; its pages become evictable, and what is left
 * of them is found again. */
static void preempt(ea_engine *e, ea_request *r)
{
    ea_engine_deactivate(e, r);
    ea_request_set_phase(e, r, EA_AGENT_QUEUED);
    ea_queue_insert(&e->queue, &r->link);
    e->stats.n_preemptions++;
}

/* Is there room for the request's timeline, beside what the active ones are going to take? Without
 * this a preempted request would come back at once and take away what it was preempted for. */
static bool fits(const ea_engine *e, const ea_request *r)
{
    ea_kv_counts counts = ea_kv_count(e->kv);
    int n_tokens, n_need, n_left = counts.n_free + counts.n_cached - e->n_active;
    for (int i = 0; i < e->n_active; i++) {
        const ea_request *other = e->active[i];
        if (other->phase == EA_AGENT_PREFILL)
            n_left -= EA_MAX(0, pages_of(e, other->n_tokens + 1) - e->seqs[other->seq].n_pages);
    }
    if (n_left <= 0)
        return false;
    ea_kv_peek(e->kv, e->root, r->tokens, r->n_tokens, &n_tokens, &n_need);
    return n_need <= n_left;
}

void ea_engine_admit(ea_engine *e)
{
    while (e->queue.first && e->n_active < e->n_parallel) {
        ea_request *r = ea_request_of(e->queue.first);
        /* A request that is alone always fits. */
        if (e->n_active > 0 && (!e->admit_again || !fits(e, r))) {
            e->admit_again = false;
            return;
        }
        ea_queue_remove(&e->queue, &r->link);
        activate(e, r);
    }
}

/* ---- rows ---- */

static ea_want want_of(const ea_request *r, int pos)
{
    if (pos == r->n_tokens - 1 && r->max_tokens != 0)
        return r->needs_logits ? EA_WANT_LOGITS : EA_WANT_ARGMAX;
    if (r->prompt_logprobs && pos >= r->next_logprob && pos + 1 < r->n_prompt)
        return EA_WANT_LOGITS;
    return EA_WANT_NONE;
}

/* Put the next n positions of the timeline into the step; pages are reserved. */
static void add_rows(ea_engine *e, ea_request *r, int n)
{
    const ea_kv_seq *seq = &e->seqs[r->seq];
    int n_out = 0;
    r->first_row = e->n_rows;
    r->n_rows = n;
    e->tables[e->n_in_batch] = (ea_seq){seq->pages, seq->n_pages};
    for (int i = 0; i < n; i++) {
        int pos = seq->n_tokens + i;
        ea_want want = want_of(r, pos);
        e->rows[e->n_rows++] = (ea_row){.token = r->tokens[pos],
                                        .pos = {pos, pos, pos},
                                        .seq = e->n_in_batch,
                                        .parent = -1,
                                        .want = want};
        n_out += want != EA_WANT_NONE;
    }
    ea_cost_add(&e->load, seq->n_tokens, n, n_out);
    e->n_logit_rows += n_out;
    e->in_batch[e->n_in_batch++] = r;
}

/* Preempt the newest request for the good of r; false if that would be r itself, or one that has
 * rows in this step. */
static bool preempt_newest_for(ea_engine *e, const ea_request *r)
{
    ea_request *newest = e->active[e->n_active - 1];
    if (newest == r || newest->n_rows > 0)
        return false;
    preempt(e, newest);
    return true;
}

/* Pages for up to n more positions of r, from newer requests if need be; for how many there is
 * room.
 */
static int make_room(ea_engine *e, ea_request *r, int n)
{
    int got;
    while ((got = ea_kv_reserve(e->kv, &e->seqs[r->seq], n)) == 0)
        if (!preempt_newest_for(e, r))
            return 0;
    return got;
}

static void build_decode(ea_engine *e)
{
    for (int i = 0; i < e->n_active; i++) { /* preemption takes from the end */
        ea_request *r = e->active[i];
        if (r->phase != EA_AGENT_RUNNING || is_cancelled(r))
            continue;
        if (make_room(e, r, 1) > 0)
            add_rows(e, r, 1);
        else
            preempt(e, r); /* it is the newest itself */
    }
}

static bool is_pending(const ea_engine *e, ea_key128 key)
{
    for (int i = 0; i < e->pending.n; i++)
        if (ea_key_equal(e->pending.keys[i], key))
            return true;
    return false;
}

/* Positions that may be taken from the tree. The last one is computed in any case where its logits
 * are wanted, and so is each whose logits a prompt-logprobs event is made from. */
static int match_limit(const ea_request *r)
{
    int limit = r->max_tokens == 0 ? r->n_tokens : r->n_tokens - 1;
    return r->prompt_logprobs ? EA_MIN(limit, r->next_logprob) : limit;
}

/* Take from the tree all there is. False: the request has to wait, for a page or because another
 * one is computing in this very step what it needs next. */
static bool match(ea_engine *e, ea_request *r)
{
    ea_kv_seq *seq = &e->seqs[r->seq];
    int limit = match_limit(r);
    while (seq->n_tokens < limit) {
        ea_kv_match m;
        ea_kv_match_full(e->kv, seq, r->tokens, limit, &m);
        if (!r->prompt_logprobs && m.n_tokens < r->n_tokens - 1 &&
            is_pending(e, ea_key_next(m.key, r->tokens[m.n_tokens])))
            return false;
        if (ea_kv_match_part(e->kv, seq, r->tokens, &m))
            return true;
        if (!preempt_newest_for(e, r))
            return false;
    }
    return true;
}

/* How many prefill rows the step takes for r: bounded by its rest, by time and by logit rows. */
static int choose_rows(const ea_engine *e, const ea_request *r, double target_ms, bool first)
{
    int n_before = e->seqs[r->seq].n_tokens, left = r->n_tokens - n_before;
    int most = EA_MIN(left, e->n_batch - e->n_rows);
    int n = ea_cost_rows(&e->cost, &e->load, n_before, most, r->prompt_logprobs, target_ms);
    if (first)
        n = EA_MAX(n, EA_MIN(most, MIN_PREFILL_ROWS));
    int n_logits = e->dev->info.max_logit_rows - e->n_logit_rows;
    if (r->prompt_logprobs)
        return EA_MIN(n, n_logits);
    return n == left && n_logits == 0 && r->max_tokens != 0 ? n - 1 : n;
}

static void prefill(ea_engine *e, ea_request *r, double target_ms, bool first)
{
    ea_kv_seq *seq = &e->seqs[r->seq];
    bool go_on = match(e, r);
    ea_request_note_matched(e, r);
    if (!go_on)
        return;
    if (!r->started)
        ea_request_emit_started(e, r);
    if (seq->n_tokens == r->n_tokens) { /* only the prompt was asked for, and it is all there */
        ea_request_finish(e, r, EA_FINISH_LENGTH, NULL, EA_OK, NULL);
        return;
    }
    int n = choose_rows(e, r, target_ms, first);
    if (n > 0)
        n = make_room(e, r, n);
    if (n <= 0)
        return;
    e->pending.keys[e->pending.n++] = ea_key_next(seq->key, r->tokens[seq->n_tokens]);
    add_rows(e, r, n);
}

static int64_t order_of(const ea_engine *e, const ea_request *r)
{
    return r->prefill_order + r->n_tokens - e->seqs[r->seq].n_tokens;
}

/* The active requests in prefill, in the order in which they are served. */
static int list_prefills(ea_engine *e)
{
    int n = 0;
    for (int i = 0; i < e->n_active; i++) {
        ea_request *r = e->active[i];
        if (r->phase != EA_AGENT_PREFILL || is_cancelled(r))
            continue;
        int at = n++;
        for (; at > 0 && order_of(e, e->prefilling[at - 1]) > order_of(e, r); at--)
            e->prefilling[at] = e->prefilling[at - 1];
        e->prefilling[at] = r;
    }
    return n;
}

static void build_prefill(ea_engine *e)
{
    double target_ms = MAX_STEP_MS;
    if (e->n_in_batch > 0)
        target_ms = EA_MIN(target_ms, GAP_SHARE * e->max_gap_ms);
    int n_decode = e->n_rows, n = list_prefills(e);
    for (int i = 0; i < n && e->n_rows < e->n_batch; i++)
        if (e->prefilling[i]->phase == EA_AGENT_PREFILL) /* else preempted meanwhile */
            prefill(e, e->prefilling[i], target_ms, e->n_rows == n_decode);
}

void ea_engine_build(ea_engine *e)
{
    e->n_rows = e->n_in_batch = e->n_logit_rows = 0;
    e->pending.n = 0;
    e->load = (ea_cost_load){0};
    for (int i = 0; i < e->n_active; i++)
        e->active[i]->n_rows = 0;
    build_decode(e);
    build_prefill(e);
}
