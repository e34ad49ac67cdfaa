/* request.c: requests from outside: validation, submission, cancellation, waiting. Any thread. */
#include "engine/state.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

/* Longest agent name and role that are read; what is shown is cut further. */
enum { MAX_NAME_BYTES = 1024 };

void ea_request_params_default(ea_request_params *params)
{
    *params = (ea_request_params){
        .size = sizeof *params,
        .max_tokens = -1,
        .n_top_logprobs = -1,
        .sampling = {.temperature = 0.8f,
                     .top_k = 40,
                     .top_p = 0.95f,
                     .min_p = 0.05f,
                     .repeat_penalty = 1,
                     .repeat_last_n = 64},
    };
}

static ea_status check_name(const char *field, const char *name, ea_error *err)
{
    if (name && strnlen(name, MAX_NAME_BYTES + 1) > MAX_NAME_BYTES)
        return ea_fail(err, EA_EINVAL, "%s: longer than %d bytes", field, MAX_NAME_BYTES);
    return EA_OK;
}

static ea_status check_params(const ea_engine *e, const ea_request_params *p, ea_error *err)
{
    if (p->size != sizeof *p)
        return ea_fail(err, EA_EINVAL, "request: size %zu, expected %zu (another version?)",
                       p->size, sizeof *p);
    if (p->n_tokens < 1 || !p->tokens)
        return ea_fail(err, EA_EINVAL, "tokens: the prompt is empty");
    /* One place of the timeline is for the first generated token. */
    size_t limit = (size_t)e->n_ctx_agent - (p->max_tokens != 0);
    if (p->n_tokens > limit)
        return ea_fail(err, EA_ETOOLONG,
                       "the prompt has %zu tokens, more than the %zu that fit into a timeline "
                       "of %d",
                       p->n_tokens, limit, e->n_ctx_agent);
    for (size_t i = 0; i < p->n_tokens; i++)
        if (p->tokens[i] < 0 || p->tokens[i] >= e->dev->info.n_vocab)
            return ea_fail(err, EA_EINVAL, "tokens: token %d at position %zu is not in 0..%d",
                           p->tokens[i], i, e->dev->info.n_vocab - 1);
    if (p->max_tokens < -1)
        return ea_fail(err, EA_EINVAL, "max_tokens: %d is less than -1", p->max_tokens);
    if (p->n_top_logprobs < -1 || p->n_top_logprobs > EA_MAX_TOP_LOGPROBS)
        return ea_fail(err, EA_EINVAL, "n_top_logprobs: %d is not in -1..%d", p->n_top_logprobs,
                       EA_MAX_TOP_LOGPROBS);
    if (p->n_stop > 0 && !p->stop)
        return ea_fail(err, EA_EINVAL, "stop: %zu strings at NULL", p->n_stop);
    EA_TRY(check_name("agent", p->agent, err));
    return check_name("role", p->role, err);
}

static void request_free(ea_request *r)
{
    if (!r)
        return;
    ea_sampler_destroy(r->sampler);
    ea_stream_done(&r->stream);
    ea_free(r->tokens);
    ea_mailbox_unref(r->mail);
    ea_free(r);
}

/* Everything that the request will ever need is taken here: a step allocates nothing. */
static ea_status request_create(ea_engine *e, const ea_request_params *p, ea_request **out,
                                ea_error *err)
{
    ea_status status = EA_ENOMEM;
    ea_request *r = ea_calloc(1, sizeof *r);
    if (!r)
        return ea_fail(err, EA_ENOMEM, "out of memory: request");
    r->mail = ea_mailbox_ref(e->mail);
    atomic_init(&r->n_ref, 2);
    r->n_prompt = r->n_tokens = (int)p->n_tokens;
    r->max_tokens = p->max_tokens;
    r->n_max = e->n_ctx_agent;
    if (p->max_tokens >= 0 && p->max_tokens < r->n_max - r->n_prompt)
        r->n_max = r->n_prompt + p->max_tokens;
    r->n_top = p->n_top_logprobs;
    r->prompt_logprobs = p->prompt_logprobs;
    r->ignore_eos = p->ignore_eos;
    r->on_event = p->on_event;
    r->user = p->user;
    r->seq = -1;
    r->tokens = ea_malloc((size_t)r->n_max * sizeof *r->tokens);
    if (!r->tokens) {
        ea_fail(err, EA_ENOMEM, "out of memory: timeline of %d tokens", r->n_max);
        goto fail;
    }
    memcpy(r->tokens, p->tokens, p->n_tokens * sizeof *r->tokens);
    ea_sampling sampling = p->sampling;
    if (!sampling.seed_set)
        sampling.seed = ea_random_u64();
    sampling.seed_set = true;
    r->seed = sampling.seed;
    EA_TRY_GOTO(ea_sampler_create(&sampling, e->dev->info.n_vocab, &r->sampler, err));
    EA_TRY_GOTO(ea_stream_init(&r->stream, p->stop, p->n_stop, e->max_token_bytes, err));
    r->needs_logits = !ea_sampler_is_argmax(r->sampler) || r->ignore_eos || r->n_top >= 0;
    *out = r;
    return EA_OK;
fail:
    request_free(r);
    return status;
}

/* Into the mailbox, if it is open and has room. */
static ea_status post(ea_engine *e, ea_request *r, const ea_request_params *p, ea_error *err)
{
    ea_mailbox *mail = e->mail;
    ea_status status = EA_OK;
    int n_live = 0;
    r->submit_ns = ea_engine_now(e);
    pthread_mutex_lock(&mail->lock);
    if (mail->stopping) {
        status = EA_ECLOSED;
    } else if (mail->n_live >= e->n_parallel + e->n_queue) {
        status = EA_EBUSY;
        n_live = mail->n_live;
    } else {
        mail->n_live++;
        r->link.serial = mail->next_serial++;
        r->rec = ea_agents_open(mail->agents, p->agent, p->role, r->submit_ns);
        *(mail->first ? &mail->last->next_mail : &mail->first) = r;
        mail->last = r;
        pthread_cond_signal(&mail->wake);
    }
    pthread_mutex_unlock(&mail->lock);
    if (status == EA_ECLOSED)
        return ea_fail(err, status, "the engine is shutting down");
    if (status == EA_EBUSY)
        return ea_fail(err, status,
                       "the queue is full: %d requests, of which %d run (limit %d + %d)", n_live,
                       EA_MIN(n_live, e->n_parallel), e->n_parallel, e->n_queue);
    return EA_OK;
}

ea_status ea_request_submit(ea_engine *e, const ea_request_params *params, ea_request **out,
                            ea_error *err)
{
    ea_request *r = NULL;
    EA_TRY(check_params(e, params, err));
    EA_TRY(request_create(e, params, &r, err));
    ea_status status = post(e, r, params, err);
    if (status != EA_OK) {
        request_free(r);
        return status;
    }
    if (out)
        *out = r;
    else
        ea_request_unref(r);
    return EA_OK;
}

void ea_request_cancel(ea_request *r)
{
    if (!r)
        return;
    atomic_store_explicit(&r->cancel, true, memory_order_relaxed);
    /* The lock orders the flag before `cancels`, by which the engine knows to look. */
    pthread_mutex_lock(&r->mail->lock);
    r->mail->cancels = true;
    pthread_cond_signal(&r->mail->wake);
    pthread_mutex_unlock(&r->mail->lock);
}

void ea_request_wait(ea_request *r)
{
    pthread_mutex_lock(&r->mail->lock);
    while (!r->done)
        pthread_cond_wait(&r->mail->done, &r->mail->lock);
    pthread_mutex_unlock(&r->mail->lock);
}

const int32_t *ea_request_tokens(const ea_request *r, size_t *n_tokens)
{
    *n_tokens = (size_t)r->n_tokens;
    return r->tokens;
}

void ea_request_unref(ea_request *r)
{
    /* acq_rel: whoever frees it sees all that the other side did. */
    if (r && atomic_fetch_sub_explicit(&r->n_ref, 1, memory_order_acq_rel) == 1)
        request_free(r);
}
