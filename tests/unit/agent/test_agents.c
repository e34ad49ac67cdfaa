/* test_agents.c: records of named timelines, and the admission queue. */
#include "support.h"

#include <string.h>

#include "agent/agents.h"
#include "agent/queue.h"

static ea_agents *make(int max_records)
{
    ea_error err = {0};
    ea_agents *agents = NULL;
    assert_ok(ea_agents_create(max_records, &agents, &err), &err);
    return agents;
}

static ea_agent_info only(const ea_agents *agents, uint64_t now_ns)
{
    ea_agent_info info;
    assert_int_equal(ea_agents_list(agents, &info, 1, now_ns), 1);
    return info;
}

static void test_life_of_a_record(void **state)
{
    (void)state;
    ea_agents *agents = make(8);
    ea_agent_rec *rec = ea_agents_open(agents, "coder", "code", 1000000000);
    assert_int_equal(only(agents, 0).state, EA_AGENT_QUEUED);
    ea_agent_move(agents, rec, EA_AGENT_QUEUED, EA_AGENT_PREFILL);
    ea_agent_started(rec, 100);
    ea_agent_cached(rec, 45);
    ea_agent_cached(rec, 15);
    assert_int_equal(only(agents, 0).state, EA_AGENT_PREFILL);
    ea_agent_move(agents, rec, EA_AGENT_PREFILL, EA_AGENT_RUNNING);
    ea_agent_token(agents, rec, 101, 12.5, 2000000000);
    ea_agent_info info = only(agents, 5000000000);
    assert_int_equal(info.state, EA_AGENT_RUNNING);
    assert_string_equal(info.id, "coder");
    assert_string_equal(info.role, "code");
    assert_int_equal(info.n_ctx, 101);
    assert_int_equal(info.n_prompt, 100);
    assert_int_equal(info.n_cached, 60);
    assert_int_equal(info.n_generated, 1);
    assert_true(info.tokens_per_s == 12.5);
    assert_true(info.idle_s == 3.0);
    assert_false(ea_agents_suspend(agents, "coder")); /* it runs */
    ea_agent_ended(agents, rec, EA_AGENT_RUNNING, 101, 6000000000);
    assert_int_equal(only(agents, 0).state, EA_AGENT_IDLE);
    assert_true(ea_agents_suspend(agents, "coder"));
    assert_int_equal(only(agents, 0).state, EA_AGENT_SUSPENDED);
    assert_ptr_equal(ea_agents_open(agents, "coder", NULL, 7000000000), rec);
    info = only(agents, 0);
    assert_int_equal(info.state, EA_AGENT_QUEUED);
    assert_int_equal(info.n_requests, 2);
    ea_agents_destroy(agents);
}

static void test_a_fork_shows_the_livelier(void **state)
{
    (void)state;
    ea_agents *agents = make(8);
    ea_agent_rec *a = ea_agents_open(agents, "x", NULL, 1),
                 *b = ea_agents_open(agents, "x", NULL, 2);
    assert_ptr_equal(a, b);
    ea_agent_move(agents, a, EA_AGENT_QUEUED, EA_AGENT_RUNNING);
    assert_int_equal(only(agents, 0).state, EA_AGENT_RUNNING);
    ea_agent_ended(agents, a, EA_AGENT_RUNNING, 5, 3);
    assert_int_equal(only(agents, 0).state, EA_AGENT_QUEUED);
    ea_agent_ended(agents, b, EA_AGENT_QUEUED, 5, 3);
    assert_int_equal(only(agents, 0).state, EA_AGENT_IDLE);
    ea_agents_destroy(agents);
}

static void test_number_is_bounded(void **state)
{
    (void)state;
    ea_agents *agents = make(3);
    ea_agent_info info[8];
    char name[16];
    ea_agent_rec *busy = ea_agents_open(agents, "busy", NULL, 1);
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "n%d", i);
        ea_agent_rec *rec = ea_agents_open(agents, name, NULL, (uint64_t)i + 2);
        ea_agent_ended(agents, rec, EA_AGENT_QUEUED, 0, (uint64_t)i + 2);
    }
    assert_int_equal(ea_agents_list(agents, info, 8, 0), 3);
    assert_string_equal(info[0].id, "n99");
    assert_string_equal(info[1].id, "n98");
    assert_string_equal(info[2].id, "busy"); /* has a request, so it stays */
    ea_agents_open(agents, "n98", NULL, 200);
    ea_agents_open(agents, "n99", NULL, 201);
    assert_null(ea_agents_open(agents, "more", NULL, 202));
    ea_agent_ended(agents, busy, EA_AGENT_QUEUED, 0, 203);
    assert_non_null(ea_agents_open(agents, "more", NULL, 204));
    ea_agents_destroy(agents);
}

static void test_names_are_cut_but_not_confused(void **state)
{
    (void)state;
    ea_agents *agents = make(8);
    char a[200], b[200];
    memset(a, 'a', sizeof a);
    a[62] = (char)0xc3; /* a character of two bytes across the cut */
    a[63] = (char)0xa9;
    a[199] = '\0';
    memcpy(b, a, sizeof b);
    b[198] = 'b';
    ea_agent_rec *rec_a = ea_agents_open(agents, a, "line\nbreak", 1);
    assert_ptr_not_equal(rec_a, ea_agents_open(agents, b, NULL, 2));
    ea_agent_info info[2];
    assert_int_equal(ea_agents_list(agents, info, 2, 0), 2);
    assert_int_equal(strlen(info[1].id), 62);
    assert_string_equal(info[1].role, "line?break");
    assert_null(ea_agents_open(agents, "", NULL, 3));
    assert_null(ea_agents_open(agents, NULL, NULL, 3));
    ea_agents_destroy(agents);
}

static void expect_order(const ea_queue *queue, const uint64_t *serials, int n)
{
    const ea_queue_item *item = queue->first;
    assert_int_equal(queue->n, n);
    for (int i = 0; i < n; i++, item = item->next)
        assert_int_equal(item->serial, serials[i]);
    assert_null(item);
}

static void test_queue_keeps_serial_order(void **state)
{
    (void)state;
    ea_queue queue = {0};
    ea_queue_item item[6];
    memset(item, 0, sizeof item);
    for (int i = 0; i < 6; i++)
        item[i].serial = (uint64_t)i;
    for (int i = 2; i < 6; i++)
        ea_queue_insert(&queue, &item[i]);
    ea_queue_insert(&queue, &item[1]); /* put back, the newest first */
    ea_queue_insert(&queue, &item[0]);
    expect_order(&queue, (uint64_t[]){0, 1, 2, 3, 4, 5}, 6);
    ea_queue_remove(&queue, &item[3]);
    ea_queue_remove(&queue, &item[0]);
    ea_queue_remove(&queue, &item[5]);
    expect_order(&queue, (uint64_t[]){1, 2, 4}, 3);
    ea_queue_insert(&queue, &item[3]);
    expect_order(&queue, (uint64_t[]){1, 2, 3, 4}, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life_of_a_record),
        cmocka_unit_test(test_a_fork_shows_the_livelier),
        cmocka_unit_test(test_number_is_bounded),
        cmocka_unit_test(test_names_are_cut_but_not_confused),
        cmocka_unit_test(test_queue_keeps_serial_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
