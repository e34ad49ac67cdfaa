/* agents.c: see agents.h. A chained hash table by name, and one list by last activity. */
#include "agent/agents.h"

#include <string.h>
#include <xxhash.h>

#include "base/mem.h"

struct ea_agent_rec {
    uint64_t name_lo, name_hi;        /* XXH3_128 of the whole name */
    ea_agent_rec *bucket_next;        /* hash chain */
    ea_agent_rec *newer, *older;      /* list by activity */
    int n_live[EA_AGENT_RUNNING + 1]; /* requests in QUEUED, PREFILL, RUNNING */
    bool suspended;
    uint64_t last_ns; /* last token, or submission */
    ea_agent_info info;
};

struct ea_agents {
    int max_records, n_records;
    uint64_t mask; /* buckets - 1 */
    ea_agent_rec **buckets;
    ea_agent_rec *newest, *oldest;
};

const char *ea_agent_state_name(ea_agent_state state)
{
    switch (state) {
    case EA_AGENT_QUEUED: return "queued";
    case EA_AGENT_PREFILL: return "prefill";
    case EA_AGENT_RUNNING: return "running";
    case EA_AGENT_SUSPENDED: return "suspended";
    case EA_AGENT_IDLE: return "idle";
    case EA_AGENT_CLOSED: return "closed";
    }
    return "unknown";
}

ea_status ea_agents_create(int max_records, ea_agents **out, ea_error *err)
{
    uint64_t n_buckets = 16;
    while (n_buckets < 2 * (uint64_t)max_records)
        n_buckets *= 2;
    ea_agents *agents = ea_calloc(1, sizeof *agents);
    ea_agent_rec **buckets = ea_calloc(n_buckets, sizeof(ea_agent_rec *));
    if (!agents || !buckets) {
        ea_free(agents);
        ea_free(buckets);
        return ea_fail(err, EA_ENOMEM, "out of memory: table of %d agents", max_records);
    }
    agents->max_records = max_records;
    agents->mask = n_buckets - 1;
    agents->buckets = buckets;
    *out = agents;
    return EA_OK;
}

void ea_agents_destroy(ea_agents *agents)
{
    if (!agents)
        return;
    for (ea_agent_rec *rec = agents->newest, *next; rec; rec = next) {
        next = rec->older;
        ea_free(rec);
    }
    ea_free(agents->buckets);
    ea_free(agents);
}

static void list_remove(ea_agents *agents, ea_agent_rec *rec)
{
    *(rec->newer ? &rec->newer->older : &agents->newest) = rec->older;
    *(rec->older ? &rec->older->newer : &agents->oldest) = rec->newer;
    rec->newer = rec->older = NULL;
}

static void list_push(ea_agents *agents, ea_agent_rec *rec)
{
    rec->older = agents->newest;
    rec->newer = NULL;
    *(rec->older ? &rec->older->newer : &agents->oldest) = rec;
    agents->newest = rec;
}

static void touch(ea_agents *agents, ea_agent_rec *rec, uint64_t now_ns)
{
    rec->last_ns = now_ns;
    if (agents->newest != rec) {
        list_remove(agents, rec);
        list_push(agents, rec);
    }
}

static bool is_live(const ea_agent_rec *rec)
{
    return rec->n_live[EA_AGENT_QUEUED] + rec->n_live[EA_AGENT_PREFILL] +
               rec->n_live[EA_AGENT_RUNNING] >
           0;
}

static ea_agent_rec *find(const ea_agents *agents, const char *name)
{
    XXH128_hash_t h = XXH3_128bits(name, strlen(name));
    ea_agent_rec *rec = agents->buckets[h.low64 & agents->mask];
    while (rec && (rec->name_lo != h.low64 || rec->name_hi != h.high64))
        rec = rec->bucket_next;
    return rec;
}

/* Forget the record that was inactive longest; false if all have requests. */
static bool forget_one(ea_agents *agents)
{
    ea_agent_rec *rec = agents->oldest;
    while (rec && is_live(rec))
        rec = rec->newer;
    if (!rec)
        return false;
    ea_agent_rec **at = &agents->buckets[rec->name_lo & agents->mask];
    while (*at != rec)
        at = &(*at)->bucket_next;
    *at = rec->bucket_next;
    list_remove(agents, rec);
    ea_free(rec);
    agents->n_records--;
    return true;
}

/* Copy text cut to size - 1 bytes, not inside a UTF-8 character; control characters become '?'. */
static void copy_cut(char *dst, size_t size, const char *src)
{
    size_t n = strnlen(src, size);
    if (n == size)
        for (n = size - 1; n > 0 && ((unsigned char)src[n] & 0xc0) == 0x80; n--)
            ;
    for (size_t i = 0; i < n; i++)
        dst[i] = (unsigned char)src[i] < 0x20 || src[i] == 0x7f ? '?' : src[i];
    dst[n] = '\0';
}

ea_agent_rec *ea_agents_open(ea_agents *agents, const char *name, const char *role, uint64_t now_ns)
{
    if (!name || !*name)
        return NULL;
    ea_agent_rec *rec = find(agents, name);
    if (!rec) {
        if (agents->n_records == agents->max_records && !forget_one(agents))
            return NULL;
        rec = ea_calloc(1, sizeof *rec);
        if (!rec)
            return NULL;
        XXH128_hash_t h = XXH3_128bits(name, strlen(name));
        rec->name_lo = h.low64;
        rec->name_hi = h.high64;
        rec->bucket_next = agents->buckets[h.low64 & agents->mask];
        agents->buckets[h.low64 & agents->mask] = rec;
        copy_cut(rec->info.id, sizeof rec->info.id, name);
        list_push(agents, rec);
        agents->n_records++;
    }
    if (role && *role)
        copy_cut(rec->info.role, sizeof rec->info.role, role);
    rec->n_live[EA_AGENT_QUEUED]++;
    rec->suspended = false;
    rec->info.n_requests++;
    touch(agents, rec, now_ns);
    return rec;
}

void ea_agent_move(ea_agents *agents, ea_agent_rec *rec, ea_agent_state from, ea_agent_state to)
{
    (void)agents;
    if (!rec)
        return;
    EA_ASSERT(from <= EA_AGENT_RUNNING && to <= EA_AGENT_RUNNING && rec->n_live[from] > 0);
    rec->n_live[from]--;
    rec->n_live[to]++;
}

void ea_agent_started(ea_agent_rec *rec, int n_prompt)
{
    if (!rec)
        return;
    rec->info.n_prompt += (uint64_t)n_prompt;
    rec->info.n_ctx = n_prompt;
}

void ea_agent_cached(ea_agent_rec *rec, int n)
{
    if (rec)
        rec->info.n_cached += (uint64_t)n;
}

void ea_agent_token(ea_agents *agents, ea_agent_rec *rec, int n_ctx, double tokens_per_s,
                    uint64_t now_ns)
{
    if (!rec)
        return;
    rec->info.n_generated++;
    rec->info.n_ctx = n_ctx;
    if (tokens_per_s > 0)
        rec->info.tokens_per_s = tokens_per_s;
    touch(agents, rec, now_ns);
}

void ea_agent_ended(ea_agents *agents, ea_agent_rec *rec, ea_agent_state from, int n_ctx,
                    uint64_t now_ns)
{
    if (!rec)
        return;
    EA_ASSERT(from <= EA_AGENT_RUNNING && rec->n_live[from] > 0);
    rec->n_live[from]--;
    rec->info.n_ctx = n_ctx;
    touch(agents, rec, now_ns);
}

bool ea_agents_suspend(ea_agents *agents, const char *name)
{
    ea_agent_rec *rec = name && *name ? find(agents, name) : NULL;
    if (!rec || is_live(rec))
        return false;
    rec->suspended = true;
    return true;
}

static ea_agent_state state_of(const ea_agent_rec *rec)
{
    for (int s = EA_AGENT_RUNNING; s >= EA_AGENT_QUEUED; s--)
        if (rec->n_live[s] > 0)
            return (ea_agent_state)s;
    return rec->suspended ? EA_AGENT_SUSPENDED : EA_AGENT_IDLE;
}

size_t ea_agents_list(const ea_agents *agents, ea_agent_info *out, size_t n, uint64_t now_ns)
{
    size_t i = 0;
    for (const ea_agent_rec *rec = agents->newest; rec && i < n; rec = rec->older, i++) {
        out[i] = rec->info;
        out[i].state = state_of(rec);
        out[i].idle_s = now_ns > rec->last_ns ? (double)(now_ns - rec->last_ns) * 1e-9 : 0;
    }
    return (size_t)agents->n_records;
}
