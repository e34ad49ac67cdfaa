/* harness.h: an engine over the fake device, and collectors of what its requests say. */
#ifndef EA_TESTS_ENGINE_HARNESS_H
#define EA_TESTS_ENGINE_HARNESS_H

#include <pthread.h>

#include "fake_device.h"
#include "engine/hooks.h"

enum { MAX_OUT = 8192, MAX_TEXT = 32768 };

typedef struct harness {
    fake_world world;
    ea_engine_params params;
    ea_engine_hooks hooks;
    ea_engine_vocab vocab;
    ea_engine *engine;
    pthread_mutex_t gate;
    atomic_bool at_gate;
    bool check_each_step;
} harness;

/* Sets the defaults above, to be changed before harness_start. By default: every step is guarded
 * against allocation and followed by ea_engine_check, token t has the text of one letter. */
void harness_init(harness *h);
void harness_start(harness *h);
void harness_stop(harness *h); /* destroys the engine */
void harness_done(harness *h); /* and everything else */
/* The engine stands still between two steps, and takes no events. */
void harness_hold(harness *h);
void harness_release(harness *h);
ea_engine_stats harness_stats(harness *h);

/* All that one request said. */
typedef struct collector {
    harness *h;
    ea_request *request;
    int32_t tokens[MAX_OUT];
    int n;
    char text[MAX_TEXT];
    size_t n_text;
    int n_started, n_done, n_prompt_logprobs;
    ea_finish finish;
    char stop[64];
    ea_status status;
    char error[128];
    ea_usage usage;
    uint64_t done_at, max_gap_ns, last_ns;
    int cancel_after; /* the callback returns false at this token; 0 = never */
    int order;        /* place among all that started; see next_order */
    atomic_int *next_order;
    atomic_int n_seen; /* tokens so far, for other threads */
    atomic_bool started;
} collector;

collector *collector_new(harness *h);
void collector_free(collector *c);

/* Greedy, no stop, no end. */
ea_request_params plain_request(collector *c, const int32_t *tokens, int n, int max_tokens);
void submit(collector *c, const ea_request_params *params);
void wait_done(collector *c);
/* plain_request, submit. */
void start(collector *c, const int32_t *tokens, int n, int max_tokens);

/* tokens[i] = 1 + (some function of seed and i) % 90. */
void fill_tokens(int32_t *tokens, int from, int n, uint64_t seed);
/* The tokens are those that the fake device says. */
void expect_greedy(const collector *c, const int32_t *prompt, int n_prompt, int n);

#endif
