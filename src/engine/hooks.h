/* hooks.h: what tests put in place of the world: the clock, the text of tokens, and calls at fixed
 * points of the loop. Not part of the public interface. */
#ifndef EA_ENGINE_HOOKS_H
#define EA_ENGINE_HOOKS_H

#include "device/device.h"

/* What the engine asks of a vocabulary. */
typedef struct ea_engine_vocab {
    const void *ctx;
    /* As ea_token_bytes with special = false. NULL: tokens have no text. */
    size_t (*token_bytes)(const void *ctx, int32_t token, char *buf, size_t size);
    bool (*is_eog)(const void *ctx, int32_t token); /* NULL: no token ends a generation */
} ea_engine_vocab;

typedef struct ea_engine_hooks {
    void *user;
    uint64_t (*now_ns)(void *user); /* NULL: ea_now_ns. Called from any thread */
    /* On the engine thread, before events are taken; it may submit and cancel. True: do not sleep
     * when there is nothing to do, ask again. */
    bool (*on_loop)(void *user, ea_engine *engine);
    /* On the engine thread, after each step and what came of it. */
    void (*after_step)(void *user, ea_engine *engine);
    bool guard_allocs; /* abort when a step allocates (callbacks of requests excepted) */
} ea_engine_hooks;

/* As ea_engine_create_on. vocab and hooks are copied; hooks may be NULL. n_ctx_train: bound on a
 * timeline's default, 0 = none. */
ea_status ea_engine_create_hooked(const ea_engine_vocab *vocab, int n_ctx_train, ea_device *dev,
                                  const ea_engine_params *params, const ea_engine_hooks *hooks,
                                  ea_engine **out, ea_error *err) EA_MUST_CHECK;

/* Recompute every invariant of the engine and its KV; aborts at the first that is broken. From a
 * hook. */
void ea_engine_check(const ea_engine *engine);

#endif
