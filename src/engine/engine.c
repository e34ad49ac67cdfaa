/* engine.c: creation, the engine thread's loop, shutdown. */
#include "engine/state.h"

#include <string.h>

#include "base/mem.h"

/* ---- the loop ---- */

static void cancel_marked(ea_engine *e, bool all)
{
    for (ea_queue_item *item = e->queue.first, *next; item; item = next) {
        ea_request *r = ea_request_of(item);
        next = item->next;
        if (all || atomic_load_explicit(&r->cancel, memory_order_relaxed)) {
            ea_queue_remove(&e->queue, item);
            ea_request_finish(e, r, EA_FINISH_CANCELLED, NULL, EA_OK, NULL);
        }
    }
    for (int i = e->n_active - 1; i >= 0; i--) {
        ea_request *r = e->active[i];
        if (all || atomic_load_explicit(&r->cancel, memory_order_relaxed))
            ea_request_finish(e, r, EA_FINISH_CANCELLED, NULL, EA_OK, NULL);
    }
}

/* New requests to the queue, cancelled ones out of wherever they are. False: shut down. */
static bool take_events(ea_engine *e)
{
    ea_mailbox *mail = e->mail;
    pthread_mutex_lock(&mail->lock);
    ea_request *r = mail->first;
    bool cancels = mail->cancels, stopping = mail->stopping;
    mail->first = mail->last = NULL;
    mail->cancels = false;
    pthread_mutex_unlock(&mail->lock);
    e->admit_again |= r != NULL;
    for (ea_request *next; r; r = next) {
        next = r->next_mail;
        ea_queue_insert(&e->queue, &r->link);
    }
    if (cancels || stopping)
        cancel_marked(e, stopping);
    return !stopping;
}

static void *engine_main(void *arg)
{
    ea_engine *e = arg;
    for (;;) {
        bool more = e->hooks.on_loop && e->hooks.on_loop(e->hooks.user, e);
        if (!take_events(e))
            return NULL;
        ea_engine_admit(e);
        if (e->n_active > 0) {
            ea_engine_step(e);
        } else {
            ea_engine_publish(e, true);
            if (!more)
                ea_mailbox_sleep(e->mail);
        }
    }
}

/* ---- creation ---- */

static ea_status choose_int(const char *field, int value, int fallback, int lo, int hi, int *out,
                            ea_error *err)
{
    if (value == 0)
        value = EA_MAX(lo, EA_MIN(fallback, hi));
    if (value < lo || value > hi)
        return ea_fail(err, EA_EINVAL, "%s: %d is not in %d..%d", field, value, lo, hi);
    *out = value;
    return EA_OK;
}

static ea_status choose_params(ea_engine *e, const ea_engine_params *p, int n_ctx_train,
                               ea_error *err)
{
    const ea_device_info *info = &e->dev->info;
    if (p->size != sizeof *p)
        return ea_fail(err, EA_EINVAL, "engine: size %zu, expected %zu (another version?)", p->size,
                       sizeof *p);
    int n_ctx = info->n_pages * info->page_tokens;
    int most = EA_MIN(EA_MAX_PARALLEL, EA_MIN(info->max_rows, info->max_logit_rows));
    EA_TRY(choose_int("n_parallel", p->n_parallel, 4, 1, most, &e->n_parallel, err));
    int longest = n_ctx_train > 0 ? EA_MIN(n_ctx, n_ctx_train) : n_ctx;
    if (p->n_ctx_agent > n_ctx)
        return ea_fail(
            err, EA_EINVAL,
            "n_ctx_agent: a timeline of %d tokens does not fit into %d KV tokens (n_ctx)",
            p->n_ctx_agent, n_ctx);
    EA_TRY(choose_int("n_ctx_agent", p->n_ctx_agent, longest, 2, EA_MAX_CTX, &e->n_ctx_agent, err));
    EA_TRY(choose_int("n_batch", p->n_batch, 512, 1, EA_MAX_BATCH, &e->n_batch, err));
    EA_TRY(choose_int("n_queue", p->n_queue, 1024, 1, 1 << 20, &e->n_queue, err));
    e->n_batch = EA_MIN(EA_MAX(e->n_batch, e->n_parallel), info->max_rows);
    e->max_gap_ms = p->max_gap_ms != 0 ? p->max_gap_ms : 400;
    if (!(e->max_gap_ms >= 1 && e->max_gap_ms <= 3600e3))
        return ea_fail(err, EA_EINVAL, "max_gap_ms: %g is not in 1..3600000", p->max_gap_ms);
    e->log = p->log;
    e->log_user = p->log_user;
    return EA_OK;
}

/* What the engine has to know of the vocabulary before the first token. */
static ea_status scan_vocab(ea_engine *e, ea_error *err)
{
    int n_vocab = e->dev->info.n_vocab;
    char byte;
    for (int32_t t = 0; t < n_vocab; t++) {
        e->n_eog += e->vocab.is_eog && e->vocab.is_eog(e->vocab.ctx, t);
        if (e->vocab.token_bytes)
            e->max_token_bytes =
                EA_MAX(e->max_token_bytes, e->vocab.token_bytes(e->vocab.ctx, t, &byte, 0));
    }
    e->eog = ea_calloc((size_t)e->n_eog, sizeof *e->eog);
    e->text = ea_malloc(ea_stream_max_out(e->max_token_bytes));
    if (!e->eog || !e->text)
        return ea_fail(err, EA_ENOMEM, "out of memory: text of tokens");
    for (int32_t t = 0, n = 0; t < n_vocab && n < e->n_eog; t++)
        if (e->vocab.is_eog(e->vocab.ctx, t))
            e->eog[n++] = t;
    return EA_OK;
}

static void copy_page(void *user, int32_t dst, int32_t src, int n_pos)
{
    ea_device *dev = user;
    dev->ops->copy_page(dev, dst, src, n_pos);
}

static ea_status create_kv(ea_engine *e, ea_error *err)
{
    const ea_device_info *info = &e->dev->info;
    ea_kv_params params = {.n_pages = info->n_pages,
                           .page_tokens = info->page_tokens,
                           .copy = copy_page,
                           .copy_user = e->dev};
    EA_TRY(ea_kv_create(&params, &e->kv, err));
    e->root = ea_key_root(0, 0, 0); /* one model, no adapters, nothing isolated */
    size_t n = (size_t)e->n_parallel;
    e->seqs = ea_calloc(n, sizeof *e->seqs);
    e->free_seqs = ea_calloc(n, sizeof *e->free_seqs);
    e->active = ea_calloc(n, sizeof *e->active);
    e->rows = ea_calloc((size_t)e->n_batch, sizeof *e->rows);
    e->tables = ea_calloc(n, sizeof *e->tables);
    e->in_batch = ea_calloc(n, sizeof *e->in_batch);
    e->prefilling = ea_calloc(n, sizeof *e->prefilling);
    e->pending.keys = ea_calloc(n, sizeof *e->pending.keys);
    if (!e->seqs || !e->free_seqs || !e->active || !e->rows || !e->tables || !e->in_batch ||
        !e->prefilling || !e->pending.keys)
        return ea_fail(err, EA_ENOMEM, "out of memory: %d agents, %d rows", e->n_parallel,
                       e->n_batch);
    int max_pages = (e->n_ctx_agent + info->page_tokens - 1) / info->page_tokens;
    for (int i = 0; i < e->n_parallel; i++) {
        EA_TRY(ea_kv_seq_init(&e->seqs[i], max_pages, err));
        e->free_seqs[e->n_free_seqs++] = i;
    }
    return EA_OK;
}

static ea_status start_thread(ea_engine *e, ea_error *err)
{
    const ea_device_info *info = &e->dev->info;
    e->stats = (ea_engine_stats){.n_pages = info->n_pages,
                                 .page_tokens = info->page_tokens,
                                 .n_ctx = info->n_pages * info->page_tokens,
                                 .n_ctx_agent = e->n_ctx_agent,
                                 .n_parallel = e->n_parallel,
                                 .n_threads = info->n_threads,
                                 .kv_bytes = (uint64_t)info->n_pages * info->page_bytes};
    ea_engine_publish(e, true);
    int r = pthread_create(&e->thread, NULL, engine_main, e);
    if (r != 0)
        return ea_fail(err, EA_EIO, "cannot start the engine thread: %s", strerror(r));
    e->thread_started = true;
    return EA_OK;
}

ea_status ea_engine_create_hooked(const ea_engine_vocab *vocab, int n_ctx_train, ea_device *dev,
                                  const ea_engine_params *params, const ea_engine_hooks *hooks,
                                  ea_engine **out, ea_error *err)
{
    ea_status status;
    ea_engine *e = ea_calloc(1, sizeof *e);
    if (!e) {
        ea_device_destroy(dev);
        return ea_fail(err, EA_ENOMEM, "out of memory: engine");
    }
    e->dev = dev;
    e->vocab = *vocab;
    if (hooks)
        e->hooks = *hooks;
    ea_cost_init(&e->cost);
    EA_TRY_GOTO(ea_mailbox_create(&e->mail, err));
    EA_TRY_GOTO(choose_params(e, params, n_ctx_train, err));
    EA_TRY_GOTO(scan_vocab(e, err));
    EA_TRY_GOTO(create_kv(e, err));
    EA_TRY_GOTO(start_thread(e, err));
    *out = e;
    return EA_OK;
fail:
    ea_engine_destroy(e);
    return status;
}

void ea_engine_destroy(ea_engine *e)
{
    if (!e)
        return;
    if (e->thread_started) {
        pthread_mutex_lock(&e->mail->lock);
        e->mail->stopping = true;
        pthread_cond_signal(&e->mail->wake);
        pthread_mutex_unlock(&e->mail->lock);
        pthread_join(e->thread, NULL);
    }
    for (int i = 0; e->seqs && i < e->n_parallel; i++)
        ea_kv_seq_done(&e->seqs[i]);
    ea_kv_destroy(e->kv);
    ea_free(e->seqs);
    ea_free(e->free_seqs);
    ea_free(e->active);
    ea_free(e->rows);
    ea_free(e->tables);
    ea_free(e->in_batch);
    ea_free(e->prefilling);
    ea_free(e->pending.keys);
    ea_free(e->eog);
    ea_free(e->text);
    ea_device_destroy(e->dev);
    ea_mailbox_unref(e->mail);
    ea_free(e);
}

void ea_engine_check(const ea_engine *e)
{
    const ea_kv_seq *seqs[EA_MAX_PARALLEL];
    EA_ASSERT(e->n_active + e->n_free_seqs == e->n_parallel);
    for (int i = 0; i < e->n_active; i++) {
        const ea_request *r = e->active[i];
        bool ends = r->max_tokens == 0 || atomic_load_explicit(&r->cancel, memory_order_relaxed);
        seqs[i] = &e->seqs[r->seq];
        EA_ASSERT(i == 0 || e->active[i - 1]->link.serial < r->link.serial);
        EA_ASSERT(r->phase == EA_AGENT_PREFILL || r->phase == EA_AGENT_RUNNING);
        EA_ASSERT(seqs[i]->n_tokens < r->n_tokens || ends);
        EA_ASSERT(r->phase != EA_AGENT_RUNNING || ends || seqs[i]->n_tokens == r->n_tokens - 1);
        if (e->queue.first)
            EA_ASSERT(r->link.serial < e->queue.first->serial);
    }
    ea_kv_check(e->kv, seqs, e->n_active);
}
