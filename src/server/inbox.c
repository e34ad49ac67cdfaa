/* inbox.c: the mailbox between the engine thread and a connection.
 *
 * The engine thread copies each event into a byte buffer and wakes the connection; all rendering
 * happens later, on the connection's thread. The buffer is bounded by what a request may generate,
 * so a slow reader costs memory, never a step.
 *
 * A record: struct record, then n_top ea_token_prob, then (STARTED, DONE) ea_usage, then n_text
 * bytes of text and n_error of error text with its NUL; padded to 8 bytes, so that all parts are
 * aligned. */
#include "server/internal.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

typedef struct record {
    uint32_t n_bytes; /* the whole record, padded */
    uint32_t n_text, n_error;
    int32_t choice, token, pos, n_top, status;
    float logprob;
    uint8_t kind, finish;
    uint16_t by_stop; /* ended by a stop string */
} record;

_Static_assert(sizeof(record) % 8 == 0, "parts after the record head stay aligned");
_Static_assert(sizeof(ea_usage) % 8 == 0 && sizeof(ea_token_prob) == 8, "and so do theirs");

ea_inbox *ea_inbox_create(struct MHD_Connection *conn, int n_choices, bool wake_each,
                          bool keep_empty)
{
    size_t n = (size_t)n_choices;
    ea_inbox *inbox = ea_calloc(1, sizeof *inbox + n * sizeof inbox->slots[0]);
    if (!inbox)
        return NULL;
    if (pthread_mutex_init(&inbox->lock, NULL) != 0) {
        ea_free(inbox);
        return NULL;
    }
    atomic_init(&inbox->refs, 1);
    inbox->wake_each = wake_each;
    inbox->keep_empty = keep_empty;
    inbox->conn = conn;
    for (size_t i = 0; i < n; i++)
        inbox->slots[i] = (ea_inbox_slot){inbox, (int)i};
    return inbox;
}

/* Called before the request that will hold the reference is submitted. */
void ea_inbox_ref(ea_inbox *inbox)
{
    atomic_fetch_add_explicit(&inbox->refs, 1, memory_order_relaxed);
    pthread_mutex_lock(&inbox->lock);
    inbox->n_live++;
    pthread_mutex_unlock(&inbox->lock);
}

void ea_inbox_forget(ea_inbox *inbox)
{
    pthread_mutex_lock(&inbox->lock);
    inbox->n_live--;
    pthread_mutex_unlock(&inbox->lock);
    ea_inbox_unref(inbox);
}

void ea_inbox_unref(ea_inbox *inbox)
{
    /* acq_rel: the thread that frees must see what the others wrote before they let go. */
    if (atomic_fetch_sub_explicit(&inbox->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_destroy(&inbox->lock);
    ea_buf_done(&inbox->records);
    ea_free(inbox);
}

/* Under the lock, also across the call into libmicrohttpd (which only writes to an event
 * descriptor): whoever saw `suspended` must have resumed before anyone may stop the daemon. */
static void wake(ea_inbox *inbox)
{
    if (!inbox->suspended)
        return;
    inbox->suspended = false;
    MHD_resume_connection(inbox->conn);
}

static bool is_interesting(const ea_inbox *inbox, const ea_event *ev)
{
    return ev->kind != EA_EVENT_TOKEN || ev->n_bytes > 0 || inbox->keep_empty;
}

static void append(ea_inbox *inbox, int choice, const ea_event *ev)
{
    bool has_usage = ev->kind == EA_EVENT_STARTED || ev->kind == EA_EVENT_DONE;
    size_t n_error = ev->error ? strnlen(ev->error, EA_ERROR_TEXT) + 1 : 0; /* with its NUL */
    size_t n_top = ev->n_top > 0 && ev->top ? (size_t)ev->n_top : 0;
    size_t n_text = ev->text ? ev->n_bytes : 0;
    size_t n = sizeof(record) + n_top * sizeof(ea_token_prob) + (has_usage ? sizeof(ea_usage) : 0) +
               n_text + n_error;
    size_t padded = (n + 7) & ~(size_t)7;
    record r = {.n_bytes = (uint32_t)padded,
                .n_text = (uint32_t)n_text,
                .n_error = (uint32_t)n_error,
                .choice = choice,
                .token = ev->token,
                .pos = ev->pos,
                .n_top = (int32_t)n_top,
                .status = ev->status,
                .logprob = ev->logprob,
                .by_stop = ev->stop != NULL,
                .kind = (uint8_t)ev->kind,
                .finish = (uint8_t)ev->finish};
    if (!ea_buf_reserve(&inbox->records, padded))
        return; /* the buffer remembers; the connection's thread reports it */
    ea_buf_add(&inbox->records, &r, sizeof r);
    ea_buf_add(&inbox->records, ev->top, n_top * sizeof(ea_token_prob));
    if (has_usage)
        ea_buf_add(&inbox->records, &ev->usage, sizeof ev->usage);
    ea_buf_add(&inbox->records, ev->text, n_text);
    if (n_error) {
        ea_buf_add(&inbox->records, ev->error, n_error - 1);
        ea_buf_putc(&inbox->records, '\0');
    }
    ea_buf_add(&inbox->records, "\0\0\0\0\0\0\0", padded - n);
}

bool ea_inbox_on_event(void *user, const ea_event *ev)
{
    ea_inbox_slot *slot = user;
    ea_inbox *inbox = slot->inbox;
    pthread_mutex_lock(&inbox->lock);
    bool wanted = is_interesting(inbox, ev);
    if (!inbox->closed && wanted)
        append(inbox, slot->choice, ev);
    bool done = ev->kind == EA_EVENT_DONE;
    if (done)
        inbox->n_live--;
    if ((inbox->wake_each && wanted) || inbox->n_live == 0)
        wake(inbox);
    bool go_on = !inbox->closed && inbox->gone == EA_GONE_NOT && !inbox->records.failed;
    pthread_mutex_unlock(&inbox->lock);
    if (done)
        ea_inbox_unref(inbox);
    return go_on;
}

ea_inbox_state ea_inbox_take(ea_inbox *inbox, ea_buf *records, ea_gone *gone)
{
    ea_inbox_state state;
    pthread_mutex_lock(&inbox->lock);
    if (inbox->gone != EA_GONE_NOT) {
        *gone = inbox->gone;
        state = EA_INBOX_GONE;
    } else if ((inbox->records.n > 0 && (inbox->wake_each || inbox->n_live == 0)) ||
               inbox->records.failed) {
        ea_buf old = *records;
        *records = inbox->records;
        inbox->records = old; /* emptied by the caller: its memory serves again */
        state = EA_INBOX_RECORDS;
    } else if (inbox->keepalive) {
        state = EA_INBOX_KEEPALIVE;
    } else {
        inbox->suspended = true;
        inbox->asleep_ns = ea_now_ns();
        MHD_suspend_connection(inbox->conn);
        state = EA_INBOX_ASLEEP;
    }
    inbox->keepalive = false;
    pthread_mutex_unlock(&inbox->lock);
    return state;
}

bool ea_inbox_next(const ea_buf *records, size_t *at, ea_event *ev, int *choice)
{
    record r;
    if (records->n - *at < sizeof r)
        return false;
    const char *p = records->data + *at;
    memcpy(&r, p, sizeof r);
    p += sizeof r;
    *ev = (ea_event){.kind = (ea_event_kind)r.kind,
                     .n_bytes = r.n_text,
                     .token = r.token,
                     .logprob = r.logprob,
                     .n_top = r.n_top,
                     .pos = r.pos,
                     .stop = r.by_stop ? "" : NULL, /* which one, nobody asks */
                     .finish = (ea_finish)r.finish,
                     .status = (ea_status)r.status};
    ev->top = (const ea_token_prob *)(const void *)p;
    p += (size_t)r.n_top * sizeof(ea_token_prob);
    if (ev->kind == EA_EVENT_STARTED || ev->kind == EA_EVENT_DONE) {
        memcpy(&ev->usage, p, sizeof ev->usage);
        p += sizeof ev->usage;
    }
    ev->text = p;
    ev->error = r.n_error ? p + r.n_text : NULL;
    *choice = r.choice;
    *at += r.n_bytes;
    return true;
}

void ea_inbox_set_gone(ea_inbox *inbox, ea_gone gone)
{
    pthread_mutex_lock(&inbox->lock);
    if (inbox->gone == EA_GONE_NOT && !inbox->closed)
        inbox->gone = gone;
    wake(inbox);
    pthread_mutex_unlock(&inbox->lock);
}

void ea_inbox_keepalive(ea_inbox *inbox, uint64_t then_ns)
{
    pthread_mutex_lock(&inbox->lock);
    if (inbox->suspended && inbox->asleep_ns < then_ns) {
        inbox->keepalive = true;
        wake(inbox);
    }
    pthread_mutex_unlock(&inbox->lock);
}

void ea_inbox_close(ea_inbox *inbox)
{
    pthread_mutex_lock(&inbox->lock);
    inbox->closed = true;
    inbox->suspended = false;
    inbox->conn = NULL;
    pthread_mutex_unlock(&inbox->lock);
}
