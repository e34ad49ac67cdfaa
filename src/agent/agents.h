/* agents.h: the named timelines as the outside sees them: who they are, what they do now, what they
 * did so far. A record outlives its requests; the KV of the timeline is found again by its tokens
 * (kv/), so a record that is forgotten costs its figures, never its text.
 *
 * Two requests of one name at once are a fork: both run, the record shows the livelier one. The
 * number of records is bounded: past it the one that was inactive longest is forgotten.
 *
 * Not thread-safe: the engine's lock is held around every call. Memory is taken by _create and
 * _open only. */
#ifndef EA_AGENT_AGENTS_H
#define EA_AGENT_AGENTS_H

#include "base/error.h"

typedef struct ea_agents ea_agents;
typedef struct ea_agent_rec ea_agent_rec;

ea_status ea_agents_create(int max_records, ea_agents **out, ea_error *err) EA_MUST_CHECK;
void ea_agents_destroy(ea_agents *agents); /* NULL is fine */

/* A request of that name was queued. Names are compared in full; what is shown is cut. NULL or ""
 * as name, or when all records are busy or memory is out: NULL, which every call below accepts and
 * ignores. */
ea_agent_rec *ea_agents_open(ea_agents *agents, const char *name, const char *role,
                             uint64_t now_ns);

/* A request of this timeline went from one state to another (of QUEUED, PREFILL, RUNNING). */
void ea_agent_move(ea_agents *agents, ea_agent_rec *rec, ea_agent_state from, ea_agent_state to);

/* It left the queue for the first time. */
void ea_agent_started(ea_agent_rec *rec, int n_prompt);

/* n further prompt tokens need not be computed. */
void ea_agent_cached(ea_agent_rec *rec, int n);

/* It has n_ctx tokens now, one more generated, at a speed of tokens_per_s (0: not known yet). */
void ea_agent_token(ea_agents *agents, ea_agent_rec *rec, int n_ctx, double tokens_per_s,
                    uint64_t now_ns);

/* The request ended in state `from`. Without another one the timeline is idle. */
void ea_agent_ended(ea_agents *agents, ea_agent_rec *rec, ea_agent_state from, int n_ctx,
                    uint64_t now_ns);

/* Show an idle timeline of that name as suspended; false if there is none. */
bool ea_agents_suspend(ea_agents *agents, const char *name);

/* As ea_engine_agents. */
size_t ea_agents_list(const ea_agents *agents, ea_agent_info *out, size_t n, uint64_t now_ns);

#endif
