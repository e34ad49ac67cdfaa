/* api_engine.c: looking at an engine from outside. Any thread: everything comes out of the mailbox,
 * under its lock. */
#include "engine/state.h"

void ea_engine_params_default(ea_engine_params *params)
{
    *params = (ea_engine_params){.size = sizeof *params};
}

void ea_agent_suspend(ea_engine *e, const char *agent)
{
    pthread_mutex_lock(&e->mail->lock);
    (void)ea_agents_suspend(e->mail->agents, agent); /* it may have gone on already */
    pthread_mutex_unlock(&e->mail->lock);
}

size_t ea_engine_agents(ea_engine *e, ea_agent_info *out, size_t n)
{
    uint64_t now = ea_engine_now(e);
    pthread_mutex_lock(&e->mail->lock);
    size_t n_all = ea_agents_list(e->mail->agents, out, n, now);
    pthread_mutex_unlock(&e->mail->lock);
    return n_all;
}

void ea_engine_stats_get(ea_engine *e, ea_engine_stats *out)
{
    uint64_t now = ea_engine_now(e);
    pthread_mutex_lock(&e->mail->lock);
    *out = e->mail->stats;
    /* Also those that the engine thread has not taken yet. */
    out->n_queued = EA_MAX(0, e->mail->n_live - out->n_running);
    out->since_progress_ms = ea_ms_between(e->mail->progress_ns, now);
    pthread_mutex_unlock(&e->mail->lock);
}
