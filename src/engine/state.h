/* state.h: the engine's own objects. Who owns what:
 *  - ea_mailbox: shared by the engine, its requests and all threads; everything in it is under its
 *    lock. Reference-counted, so that a request may be cancelled and released after its engine.
 *  - ea_request: written by the submitting thread until it is in the mailbox, by the engine thread
 *    from then on, except `cancel`. Freed with the last of its two references.
 *  - ea_engine: the engine thread's, except what is immutable after creation.
 * The lock is never held over a callback, a step or a system call. */
#ifndef EA_ENGINE_STATE_H
#define EA_ENGINE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "agent/agents.h"
#include "agent/queue.h"
#include "base/clock.h"
#include "base/limits.h"
#include "engine/cost.h"
#include "engine/hooks.h"
#include "engine/stream.h"
#include "kv/kv.h"
#include "sample/sample.h"

typedef struct ea_mailbox {
    atomic_int n_ref;
    pthread_mutex_t lock;
    pthread_cond_t wake;      /* the engine thread sleeps on it (monotonic clock) */
    pthread_cond_t done;      /* a request ended */
    ea_request *first, *last; /* submitted, oldest first; linked by next_mail */
    uint64_t next_serial;
    int n_live;   /* requests submitted and not done */
    bool cancels; /* some request's cancel flag was set since this was last cleared */
    bool stopping;
    ea_agents *agents;
    ea_engine_stats stats; /* since_progress_ms unused */
    uint64_t progress_ns;
} ea_mailbox;

struct ea_request {
    atomic_int n_ref; /* the caller's and the engine's */
    ea_mailbox *mail; /* a reference */
    atomic_bool cancel;
    bool done; /* under the mailbox's lock */
    ea_request *next_mail;
    ea_agent_rec *rec; /* NULL for anonymous ones; used under the lock, until done */

    /* Set at submission. */
    int n_prompt;
    int max_tokens; /* -1: none */
    int n_top;      /* -1: no logprobs */
    bool prompt_logprobs, ignore_eos;
    bool needs_logits; /* for sampling; else the argmax is the token */
    uint64_t seed;
    ea_sampler *sampler;
    ea_event_fn on_event;
    void *user;
    uint64_t submit_ns;

    /* Engine thread. */
    ea_queue_item link;   /* while queued; its serial number all the time */
    ea_agent_state phase; /* QUEUED, PREFILL (also of what preemption made it lose), RUNNING */
    int32_t *tokens;      /* the timeline: n_tokens of room for n_max */
    int n_tokens, n_max;
    int n_generated;  /* the end token included */
    int n_cached;     /* prompt positions that were taken from the tree, not computed */
    int n_seen;       /* most positions ever held: after a preemption nothing counts twice */
    int next_logprob; /* prompt_logprobs: events for positions up to this one were sent */
    bool started;     /* STARTED was sent */
    ea_stream stream;
    uint64_t admit_ns, first_ns, last_ns; /* 0 = not yet */
    int seq;                              /* index into the engine's sequences while active */
    int64_t prefill_order;                /* see schedule.c */
    int first_row, n_rows;                /* in the step being built; n_rows 0: not in it */
};

/* The keys that rows of the step being built will make, one a sequence: its first new position. A
 * request that wants the same position waits for it. */
typedef struct ea_pending {
    ea_key128 *keys; /* [n_parallel] */
    int n;
} ea_pending;

struct ea_engine {
    ea_mailbox *mail;
    ea_device *dev;
    ea_engine_vocab vocab;
    ea_engine_hooks hooks;
    ea_log_fn log;
    void *log_user;
    pthread_t thread;
    bool thread_started;

    /* In force, immutable. */
    int n_parallel, n_ctx_agent, n_batch, n_queue;
    double max_gap_ms;
    ea_key128 root; /* of every timeline: one model, no adapters yet */
    int32_t *eog;   /* the end tokens */
    int n_eog;
    size_t max_token_bytes;

    ea_kv *kv;
    ea_kv_seq *seqs; /* [n_parallel] */
    int *free_seqs;
    int n_free_seqs;
    ea_queue queue;
    ea_request **active; /* [n_parallel] oldest (lowest serial) first */
    int n_active;
    bool admit_again; /* something changed since the head of the queue did not fit */
    int64_t prefill_clock;
    ea_cost cost;

    /* The step. */
    ea_row *rows;            /* [n_batch] */
    ea_seq *tables;          /* [n_parallel] */
    ea_request **in_batch;   /* [n_parallel] */
    ea_request **prefilling; /* [n_parallel] scratch */
    int n_rows, n_in_batch, n_logit_rows;
    ea_cost_load load;
    ea_pending pending;
    ea_token_prob top[EA_MAX_TOP_LOGPROBS];
    char *text;            /* ea_stream_max_out */
    ea_engine_stats stats; /* counters; copied to the mailbox by ea_engine_publish */
    bool guarded;          /* the allocation guard is armed */
};

static inline uint64_t ea_engine_now(const ea_engine *e)
{
    return e->hooks.now_ns ? e->hooks.now_ns(e->hooks.user) : ea_now_ns();
}

static inline double ea_ms_between(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-6 : 0;
}

static inline ea_request *ea_request_of(ea_queue_item *item)
{
    return (ea_request *)(void *)((char *)item - offsetof(ea_request, link));
}

/* mailbox.c */
ea_status ea_mailbox_create(ea_mailbox **out, ea_error *err) EA_MUST_CHECK;
ea_mailbox *ea_mailbox_ref(ea_mailbox *mail);
void ea_mailbox_unref(ea_mailbox *mail);
/* Sleep until there is an event, at most a second. */
void ea_mailbox_sleep(ea_mailbox *mail);

/* events.c: what a request's owner hears. All of them honour the callback's answer. */
void ea_request_emit_started(ea_engine *e, ea_request *r);
/* The sequence may have got positions from the tree: count those of the prompt as cached. */
void ea_request_note_matched(ea_engine *e, ea_request *r);
void ea_request_emit_prompt_logprob(ea_engine *e, ea_request *r, int pos, const float *logits);
/* Take one sampled token into the timeline, show it, and end the request where that is due. */
void ea_request_accept(ea_engine *e, ea_request *r, int32_t token, const float *logits);
/* End a request in any phase: pages back to the tree, DONE to the owner, the engine's reference
 * dropped. */
void ea_request_finish(ea_engine *e, ea_request *r, ea_finish why, const char *stop,
                       ea_status status, const char *error);

/* schedule.c */
void ea_engine_admit(ea_engine *e);
/* Make the step's batch; n_rows 0: nothing could run (the requests that needed no step are done).
 */
void ea_engine_build(ea_engine *e);
/* Out of the active ones: pages to the tree, place in `active` closed. */
void ea_engine_deactivate(ea_engine *e, ea_request *r);
void ea_request_set_phase(ea_engine *e, ea_request *r, ea_agent_state phase);

/* step.c */
void ea_engine_step(ea_engine *e);
void ea_engine_publish(ea_engine *e, bool progress);

#endif
