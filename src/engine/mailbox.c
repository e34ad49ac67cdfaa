/* mailbox.c: the one object that all threads share. See state.h. */
#include "engine/state.h"

#include <time.h>

#include "base/mem.h"

/* The engine wakes up this often without work, so that a stuck thread can be told from an idle one.
 */
enum { HEARTBEAT_S = 1 };

/* Named timelines remembered. */
enum { MAX_AGENT_RECORDS = 4096 };

ea_status ea_mailbox_create(ea_mailbox **out, ea_error *err)
{
    ea_mailbox *mail = ea_calloc(1, sizeof *mail);
    if (!mail)
        return ea_fail(err, EA_ENOMEM, "out of memory: mailbox");
    ea_status status = ea_agents_create(MAX_AGENT_RECORDS, &mail->agents, err);
    if (status != EA_OK) {
        ea_free(mail);
        return status;
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&mail->lock, NULL);
    pthread_cond_init(&mail->wake, &attr);
    pthread_cond_init(&mail->done, NULL);
    pthread_condattr_destroy(&attr);
    atomic_init(&mail->n_ref, 1);
    *out = mail;
    return EA_OK;
}

ea_mailbox *ea_mailbox_ref(ea_mailbox *mail)
{
    atomic_fetch_add_explicit(&mail->n_ref, 1, memory_order_relaxed);
    return mail;
}

void ea_mailbox_unref(ea_mailbox *mail)
{
    /* acq_rel: the last one out sees what the others did before they left. */
    if (!mail || atomic_fetch_sub_explicit(&mail->n_ref, 1, memory_order_acq_rel) > 1)
        return;
    ea_agents_destroy(mail->agents);
    pthread_cond_destroy(&mail->done);
    pthread_cond_destroy(&mail->wake);
    pthread_mutex_destroy(&mail->lock);
    ea_free(mail);
}

void ea_mailbox_sleep(ea_mailbox *mail)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += HEARTBEAT_S;
    pthread_mutex_lock(&mail->lock);
    int r = 0;
    while (r == 0 && !mail->first && !mail->cancels && !mail->stopping)
        r = pthread_cond_timedwait(&mail->wake, &mail->lock, &until);
    pthread_mutex_unlock(&mail->lock);
}
