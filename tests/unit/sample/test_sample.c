/* test_sample.c: the sampler chain against hand-computed cases and the distribution that it
 * promises. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "sample/sample.h"

static const ea_sampling plain = {.temperature = 1,
                                  .top_k = 0,
                                  .top_p = 1,
                                  .min_p = 0,
                                  .repeat_penalty = 1,
                                  .repeat_last_n = 64,
                                  .seed = 7};

static ea_sampler *make(const ea_sampling *p, int n_vocab)
{
    ea_sampler *s = NULL;
    ea_error err = {0};
    assert_ok(ea_sampler_create(p, n_vocab, &s, &err), &err);
    return s;
}

static void greedy_takes_the_lowest_id_among_equals(void **state)
{
    (void)state;
    ea_sampling p = plain;
    p.temperature = 0;
    ea_sampler *s = make(&p, 5);
    float logits[] = {1, 3, NAN, 3, -INFINITY};
    assert_true(ea_sampler_is_argmax(s));
    assert_int_equal(ea_sampler_draw(s, logits, NULL, 0, 0, NULL, 0), 1);
    int32_t banned[] = {1, 3};
    assert_int_equal(ea_sampler_draw(s, logits, NULL, 0, 0, banned, 2), 0);
    ea_sampler_destroy(s);
}

static void nothing_allowed_still_gives_a_token(void **state)
{
    (void)state;
    float logits[] = {NAN, -INFINITY, NAN};
    int32_t banned[] = {0};
    for (int greedy = 0; greedy < 2; greedy++) {
        ea_sampling p = plain;
        p.temperature = greedy ? 0 : 1;
        ea_sampler *s = make(&p, 3);
        assert_int_equal(ea_sampler_draw(s, logits, NULL, 0, 0, banned, 1), 1);
        ea_sampler_destroy(s);
    }
}

static void penalties_follow_the_counts(void **state)
{
    (void)state;
    ea_sampling p = plain;
    p.temperature = 0;
    p.repeat_penalty = 2;
    p.presence_penalty = 0.5f;
    p.frequency_penalty = 0.25f;
    ea_sampler *s = make(&p, 3);
    assert_false(ea_sampler_is_argmax(s));
    int32_t history[] = {0, 0, 2};
    /* token 0: 4 / 2 - 2 * 0.25 - 0.5 = 1; token 2: -1 * 2 - 0.25 - 0.5 = -2.75 */
    float wins[] = {4, 0.99f, -1}, loses[] = {4, 1.01f, -1};
    for (int again = 0; again < 2; again++) { /* the counts must be clean the second time */
        assert_int_equal(ea_sampler_draw(s, wins, history, 3, 3, NULL, 0), 0);
        assert_int_equal(ea_sampler_draw(s, loses, history, 3, 3, NULL, 0), 1);
    }
    ea_sampler_destroy(s);
}

static void penalty_window_is_the_last_tokens(void **state)
{
    (void)state;
    ea_sampling p = plain;
    p.temperature = 0;
    p.presence_penalty = 2;
    p.repeat_last_n = 1;
    float logits[] = {1.5f, 1, 0};
    int32_t history[] = {0, 2};
    ea_sampler *s = make(&p, 3);
    assert_int_equal(ea_sampler_draw(s, logits, history, 2, 2, NULL, 0), 0);
    ea_sampler_destroy(s);
    p.repeat_last_n = -1;
    s = make(&p, 3);
    assert_int_equal(ea_sampler_draw(s, logits, history, 2, 2, NULL, 0), 1);
    ea_sampler_destroy(s);
}

static void bias_forbids_and_forces(void **state)
{
    (void)state;
    ea_logit_bias bias[] = {{0, -INFINITY}, {2, 100}};
    ea_sampling p = plain;
    p.logit_bias = bias;
    p.n_logit_bias = 2;
    ea_sampler *s = make(&p, 3);
    float logits[] = {50, 1, 0};
    for (int pos = 0; pos < 50; pos++)
        assert_int_equal(ea_sampler_draw(s, logits, NULL, 0, pos, NULL, 0), 2);
    ea_sampler_destroy(s);
}

/* Frequencies of 20,000 draws are within 5 standard deviations of the expected probabilities. */
static void check_distribution(const ea_sampling *p, const float *logits, int n,
                               const double *expect)
{
    enum { DRAWS = 20000 };
    int seen[64] = {0};
    ea_sampler *s = make(p, n);
    for (int pos = 0; pos < DRAWS; pos++)
        seen[ea_sampler_draw(s, logits, NULL, 0, pos, NULL, 0)]++;
    ea_sampler_destroy(s);
    for (int i = 0; i < n; i++) {
        double sd = sqrt(DRAWS * expect[i] * (1 - expect[i]));
        assert_true(fabs(seen[i] - DRAWS * expect[i]) <= 5 * sd + 1e-9);
    }
}

static void draws_follow_the_softmax(void **state)
{
    (void)state;
    float logits[] = {logf(0.1f), logf(0.2f), logf(0.3f), logf(0.4f)};
    double expect[] = {0.1, 0.2, 0.3, 0.4};
    check_distribution(&plain, logits, 4, expect);
    ea_sampling p = plain;
    p.temperature = 0.5f; /* probabilities squared, normalised by 0.3 */
    double sharper[] = {0.01 / 0.3, 0.04 / 0.3, 0.09 / 0.3, 0.16 / 0.3};
    check_distribution(&p, logits, 4, sharper);
}

static void truncations_cut_where_they_should(void **state)
{
    (void)state;
    float logits[] = {logf(0.1f), logf(0.2f), logf(0.3f), logf(0.4f)};
    ea_sampling p = plain;
    p.top_k = 2;
    check_distribution(&p, logits, 4, (double[]){0, 0, 3.0 / 7, 4.0 / 7});
    p = plain;
    p.top_p = 0.65f; /* 0.4 + 0.3 reach it */
    check_distribution(&p, logits, 4, (double[]){0, 0, 3.0 / 7, 4.0 / 7});
    p = plain;
    p.min_p = 0.45f; /* 0.45 * 0.4 = 0.18 */
    check_distribution(&p, logits, 4, (double[]){0, 2.0 / 9, 3.0 / 9, 4.0 / 9});
    p = plain;
    p.top_k = 3;
    p.top_p = 0.7f; /* of 0.9: 0.4 + 0.3 = 0.78 of it */
    check_distribution(&p, logits, 4, (double[]){0, 0, 3.0 / 7, 4.0 / 7});
}

/* A flat vocabulary: the nucleus must widen its reach beyond the first guess and still be exact. */
static void nucleus_without_top_k_is_exact(void **state)
{
    (void)state;
    enum { N = 5000 };
    float *logits = malloc(N * sizeof *logits);
    for (int i = 0; i < N; i++)
        logits[i] = i == 17 ? 12.0f : -0.001f * (float)i;
    ea_sampling p = plain;
    p.top_p = 0.99f;
    ea_sampler *s = make(&p, N);
    double total = 0, sum = 0;
    for (int i = 0; i < N; i++)
        total += exp((double)logits[i]);
    int last = -1; /* the ids 0.. are sorted by logit already, after token 17 */
    sum = exp(12.0);
    while (sum < p.top_p * total) {
        last++;
        sum += last == 17 ? 0 : exp((double)logits[last]);
    }
    int highest = -1;
    for (int pos = 0; pos < 3000; pos++) {
        int id = ea_sampler_draw(s, logits, NULL, 0, pos, NULL, 0);
        if (id != 17 && id > highest)
            highest = id;
    }
    assert_true(highest <= last);
    ea_sampler_destroy(s);
    free(logits);
}

static void a_draw_depends_on_seed_and_position_only(void **state)
{
    (void)state;
    float logits[32] = {0};
    ea_sampler *a = make(&plain, 32), *b = make(&plain, 32);
    for (int pos = 0; pos < 100; pos++)
        (void)ea_sampler_draw(a, logits, NULL, 0, pos, NULL, 0);
    for (int pos = 99; pos >= 0; pos--)
        assert_int_equal(ea_sampler_draw(a, logits, NULL, 0, pos, NULL, 0),
                         ea_sampler_draw(b, logits, NULL, 0, pos, NULL, 0));
    ea_sampler_destroy(a);
    ea_sampler_destroy(b);
    int same = 0;
    for (uint64_t i = 0; i < 1000; i++)
        same += ea_random_uniform(i, 5) == ea_random_uniform(i + 1, 4);
    assert_int_equal(same, 0);
}

static void log_probabilities_sum_to_one(void **state)
{
    (void)state;
    float logits[] = {2, -1, 0.5f, -INFINITY, 700};
    double sum = 0;
    for (int i = 0; i < 5; i++)
        sum += exp(ea_logprob(logits, 5, i));
    assert_true(fabs(sum - 1) < 1e-6);
    ea_token_prob top[3];
    assert_int_equal(ea_top_logprobs(logits, 5, 3, top), 3);
    assert_int_equal(top[0].token, 4);
    assert_int_equal(top[1].token, 0);
    assert_int_equal(top[2].token, 2);
    assert_int_equal(ea_top_logprobs(logits, 5, 0, top), 0);
}

static void bad_parameters_are_named(void **state)
{
    (void)state;
    ea_logit_bias bad_token = {9, 1};
    ea_sampling cases[7];
    for (int i = 0; i < 7; i++)
        cases[i] = plain;
    cases[0].top_p = 1.5f;
    cases[1].temperature = NAN;
    cases[2].min_p = -1;
    cases[3].repeat_penalty = 0;
    cases[4].logit_bias = &bad_token;
    cases[4].n_logit_bias = 1;
    cases[5].top_k = -2;
    cases[6].frequency_penalty = INFINITY;
    const char *names[] = {"top_p", "temperature",      "min_p", "repeat_penalty", "logit_bias",
                           "top_k", "frequency_penalty"};
    for (int i = 0; i < 7; i++) {
        ea_sampler *s = NULL;
        ea_error err = {0};
        assert_int_equal(ea_sampler_create(&cases[i], 4, &s, &err), EA_EINVAL);
        assert_null(s);
        assert_non_null(strstr(err.text, names[i]));
    }
}

static void out_of_memory_leaks_nothing(void **state)
{
    (void)state;
    ea_logit_bias bias = {0, 1};
    ea_sampling p = plain;
    p.presence_penalty = 1;
    p.logit_bias = &bias;
    p.n_logit_bias = 1;
    ea_sampler *s = NULL;
    size_t n = 1;
    for (;; n++) {
        ea_error err = {0};
        ea_alloc_fail_at(n);
        ea_status status = ea_sampler_create(&p, 8, &s, &err);
        ea_alloc_fail_at(0);
        if (status == EA_OK)
            break;
        assert_int_equal(status, EA_ENOMEM);
        assert_null(s);
    }
    assert_true(n > 4); /* each of its allocations was refused once */
    ea_sampler_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_lowest_id_among_equals),
        cmocka_unit_test(nothing_allowed_still_gives_a_token),
        cmocka_unit_test(penalties_follow_the_counts),
        cmocka_unit_test(penalty_window_is_the_last_tokens),
        cmocka_unit_test(bias_forbids_and_forces),
        cmocka_unit_test(draws_follow_the_softmax),
        cmocka_unit_test(truncations_cut_where_they_should),
        cmocka_unit_test(nucleus_without_top_k_is_exact),
        cmocka_unit_test(a_draw_depends_on_seed_and_position_only),
        cmocka_unit_test(log_probabilities_sum_to_one),
        cmocka_unit_test(bad_parameters_are_named),
        cmocka_unit_test(out_of_memory_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
