/* test_engine_threads.c: many threads submit, cancel, wait and look at once. Made for the thread
 * sanitizer, but the answers are checked too. */
#include "support.h"

#include <string.h>

#include "base/clock.h"
#include "harness.h"

enum { N_THREADS = 6, N_EACH = 60 };

typedef struct client {
    harness *h;
    int index;
    pthread_t thread;
    int n_done, n_cancelled, n_busy;
} client;

static void one_request(client *me, int round)
{
    int32_t prompt[40];
    char name[16];
    int n = 20 + (me->index * 7 + round) % 20;
    fill_tokens(prompt, 0, 12, 1); /* all begin alike */
    fill_tokens(prompt, 12, n, (uint64_t)(me->index * 1000 + round));
    collector *c = collector_new(me->h);
    ea_request_params params = plain_request(c, prompt, n, 10 + round % 20);
    ea_error err = {0};
    snprintf(name, sizeof name, "agent %d", me->index);
    params.agent = round % 3 ? name : NULL;
    while (ea_request_submit(me->h->engine, &params, &c->request, &err) != EA_OK) {
        EA_ASSERT(err.code == EA_EBUSY);
        err = (ea_error){0};
        me->n_busy++;
        ea_sleep_ns(100000);
    }
    if (round % 5 == 4) {
        ea_sleep_ns((uint64_t)(round % 7) * 50000);
        ea_request_cancel(c->request);
    }
    ea_request_wait(c->request);
    EA_ASSERT(c->n_done == 1);
    if (c->finish == EA_FINISH_LENGTH) {
        int32_t expected[40];
        int n_expected = fake_expect(&me->h->world, prompt, n, 10 + round % 20, expected);
        EA_ASSERT(c->n == n_expected);
        EA_ASSERT(memcmp(c->tokens, expected, sizeof(int32_t) * (size_t)n_expected) == 0);
        me->n_done++;
    } else {
        EA_ASSERT(c->finish == EA_FINISH_CANCELLED);
        me->n_cancelled++;
    }
    if (round % 3)
        ea_agent_suspend(me->h->engine, name);
    collector_free(c);
}

static void *client_main(void *arg)
{
    client *me = arg;
    for (int round = 0; round < N_EACH; round++)
        one_request(me, round);
    return NULL;
}

static void test_many_threads(void **state)
{
    (void)state;
    harness h;
    client clients[N_THREADS];
    ea_agent_info info[32];
    int n_done = 0, n_cancelled = 0;
    harness_init(&h);
    h.world.n_pages = 30;
    h.params.n_parallel = 3;
    h.params.n_queue = 2;
    harness_start(&h);
    for (int i = 0; i < N_THREADS; i++) {
        clients[i] = (client){.h = &h, .index = i};
        assert_int_equal(pthread_create(&clients[i].thread, NULL, client_main, &clients[i]), 0);
    }
    for (int i = 0; i < 200; i++) {
        ea_engine_stats stats = harness_stats(&h);
        assert_true(stats.n_running <= 3);
        size_t n = ea_engine_agents(h.engine, info, 32);
        assert_true(n <= N_THREADS);
        ea_sleep_ns(200000);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(clients[i].thread, NULL);
        n_done += clients[i].n_done;
        n_cancelled += clients[i].n_cancelled;
    }
    assert_int_equal(n_done + n_cancelled, N_THREADS * N_EACH);
    ea_engine_stats stats = harness_stats(&h);
    assert_int_equal(stats.n_requests_done, n_done);
    assert_int_equal(stats.n_requests_cancelled, n_cancelled);
    assert_int_equal(stats.n_queued, 0);
    assert_int_equal(ea_engine_agents(h.engine, info, 32), N_THREADS);
    harness_done(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
