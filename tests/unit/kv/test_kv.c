/* test_kv.c: page tables and prefix tree. The "device" is an array that holds for every position
 * the token and position written there, so that a page that was overwritten, not copied or mixed up
 * shows at once. */
#include "support.h"

#include <string.h>

#include "base/mem.h"
#include "kv/kv.h"

enum { PAGE = 4, MAX_PAGES = 64, MAX_TOKENS = PAGE * MAX_PAGES };

typedef struct fixture {
    ea_kv *kv;
    int32_t memory[MAX_PAGES * PAGE]; /* token * 1000 + position; -1 = garbage */
    const ea_kv_seq *seqs[16];
    int n_seqs;
    size_t n_checks;
} fixture;

static void copy_page(void *user, int32_t dst, int32_t src, int n_pos)
{
    fixture *f = user;
    for (int i = 0; i < PAGE; i++)
        f->memory[dst * PAGE + i] = i < n_pos ? f->memory[src * PAGE + i] : -1;
}

static void fixture_init(fixture *f, int n_pages)
{
    ea_error err = {0};
    memset(f, 0, sizeof *f);
    memset(f->memory, 0xff, sizeof f->memory);
    ea_kv_params params = {
        .n_pages = n_pages, .page_tokens = PAGE, .copy = copy_page, .copy_user = f};
    assert_ok(ea_kv_create(&params, &f->kv, &err), &err);
}

static void seq_init(fixture *f, ea_kv_seq *seq)
{
    ea_error err = {0};
    assert_ok(ea_kv_seq_init(seq, MAX_PAGES, &err), &err);
    ea_kv_seq_start(seq, ea_key_root(1, 0, 0));
    f->seqs[f->n_seqs++] = seq;
}

static void seq_drop(fixture *f, ea_kv_seq *seq)
{
    ea_kv_release(f->kv, seq);
    ea_kv_seq_start(seq, ea_key_root(1, 0, 0));
}

static void check(fixture *f)
{
    f->n_checks++;
    ea_kv_check(f->kv, f->seqs, f->n_seqs);
}

/* Every position of the sequence holds its own token. */
static void check_content(const fixture *f, const ea_kv_seq *seq, const int32_t *tokens)
{
    for (int p = 0; p < seq->n_tokens; p++)
        assert_int_equal(f->memory[seq->pages[p / PAGE] * PAGE + p % PAGE], tokens[p] * 1000 + p);
}

/* As a step does: reserve, write, commit. Returns how many positions got in. */
static int compute(fixture *f, ea_kv_seq *seq, const int32_t *tokens, int n)
{
    n = ea_kv_reserve(f->kv, seq, n);
    for (int p = seq->n_tokens; p < seq->n_tokens + n; p++)
        f->memory[seq->pages[p / PAGE] * PAGE + p % PAGE] = tokens[p] * 1000 + p;
    ea_kv_commit(f->kv, seq, tokens, n);
    check_content(f, seq, tokens);
    check(f);
    return n;
}

/* Match all that is there; returns the length. */
static int match(fixture *f, ea_kv_seq *seq, const int32_t *tokens, int limit)
{
    ea_kv_match m;
    ea_kv_match_full(f->kv, seq, tokens, limit, &m);
    check(f);
    ea_kv_match_part(f->kv, seq, tokens, &m);
    check_content(f, seq, tokens);
    check(f);
    return seq->n_tokens;
}

static void fill(int32_t *tokens, int from, int n, int32_t base)
{
    for (int i = from; i < n; i++)
        tokens[i] = base + i;
}

static void fixture_done(fixture *f)
{
    for (int i = 0; i < f->n_seqs; i++) {
        ea_kv_seq *seq = (ea_kv_seq *)f->seqs[i];
        ea_kv_release(f->kv, seq);
        ea_kv_seq_done(seq);
    }
    ea_kv_destroy(f->kv);
}

static void test_full_pages_are_shared(void **state)
{
    (void)state;
    fixture f;
    ea_kv_seq a, b;
    int32_t tokens[40];
    fill(tokens, 0, 40, 0);
    fixture_init(&f, 20);
    seq_init(&f, &a);
    seq_init(&f, &b);
    assert_int_equal(compute(&f, &a, tokens, 12), 12);
    assert_int_equal(match(&f, &b, tokens, 40), 12); /* while a still runs */
    for (int i = 0; i < 3; i++)
        assert_int_equal(a.pages[i], b.pages[i]);
    assert_int_equal(ea_kv_count(f.kv).n_free, 17);
    assert_int_equal(ea_kv_count(f.kv).n_copied, 0);
    /* Both go on with the same tokens: the page that fills second is given up for the first. */
    assert_int_equal(compute(&f, &a, tokens, 4), 4);
    assert_int_equal(compute(&f, &b, tokens, 4), 4);
    assert_int_equal(a.pages[3], b.pages[3]);
    assert_int_equal(ea_kv_count(f.kv).n_merged, 1);
    assert_int_equal(ea_kv_count(f.kv).n_free, 16);
    fixture_done(&f);
}

static void test_partial_page_is_copied(void **state)
{
    (void)state;
    fixture f;
    ea_kv_seq a, b;
    int32_t ta[40], tb[40];
    fill(ta, 0, 40, 0);
    fill(tb, 0, 40, 0);
    fill(tb, 6, 40, 500); /* parts from a inside the second page */
    fixture_init(&f, 20);
    seq_init(&f, &a);
    seq_init(&f, &b);
    compute(&f, &a, ta, 7);
    assert_int_equal(match(&f, &b, tb, 40), 6);
    assert_int_equal(a.pages[0], b.pages[0]);
    assert_int_not_equal(a.pages[1], b.pages[1]);
    assert_int_equal(ea_kv_count(f.kv).n_copied, 1);
    compute(&f, &b, tb, 10);
    compute(&f, &a, ta, 10);
    fixture_done(&f);
}

static void test_return_continues_in_place(void **state)
{
    (void)state;
    fixture f;
    ea_kv_seq a, b;
    int32_t tokens[40], other[40];
    fill(tokens, 0, 40, 0);
    fill(other, 0, 40, 0);
    fill(other, 10, 40, 300);
    fixture_init(&f, 20);
    seq_init(&f, &a);
    seq_init(&f, &b);
    compute(&f, &a, tokens, 10);
    int32_t last = a.pages[2];
    seq_drop(&f, &a);
    assert_int_equal(ea_kv_count(f.kv).n_cached, 3);
    assert_int_equal(match(&f, &a, tokens, 40), 10);
    assert_int_equal(a.pages[2], last);
    assert_int_equal(ea_kv_count(f.kv).n_copied, 0);
    /* Only one may have it: a fork gets a copy. */
    assert_int_equal(match(&f, &b, other, 40), 10);
    assert_int_not_equal(b.pages[2], last);
    compute(&f, &a, tokens, 5);
    compute(&f, &b, other, 5);
    fixture_done(&f);
}

static void test_limit_leaves_the_last_token(void **state)
{
    (void)state;
    fixture f;
    ea_kv_seq a, b;
    int32_t tokens[40];
    fill(tokens, 0, 40, 0);
    fixture_init(&f, 20);
    seq_init(&f, &a);
    seq_init(&f, &b);
    compute(&f, &a, tokens, 8);
    assert_int_equal(match(&f, &b, tokens, 7), 7); /* half of a full page: a copy */
    assert_int_not_equal(a.pages[1], b.pages[1]);
    compute(&f, &b, tokens, 1); /* full now, and the same: merged */
    assert_int_equal(a.pages[1], b.pages[1]);
    /* What is wholly held elsewhere is not kept twice. */
    seq_drop(&f, &b);
    assert_int_equal(match(&f, &b, tokens, 7), 7);
    seq_drop(&f, &b);
    assert_int_equal(ea_kv_count(f.kv).n_cached, 0);
    assert_int_equal(ea_kv_count(f.kv).n_free, 18);
    fixture_done(&f);
}

static void test_match_again_while_filling(void **state)
{
    (void)state;
    fixture f;
    ea_kv_seq a, b;
    int32_t tokens[40];
    fill(tokens, 0, 40, 0);
    fixture_init(&f, 20);
    seq_init(&f, &a);
    seq_init(&f, &b);
    compute(&f, &a, tokens, 2);
    assert_int_equal(match(&f, &b, tokens, 40), 2);
    compute(&f, &a, tokens, 1);
    assert_int_equal(match(&f, &b, tokens, 40), 3); /* more of the same page */
    compute(&f, &a, tokens, 6);
    assert_int_equal(match(&f, &b, tokens, 40), 9); /* the copy is dropped for the full page */
    assert_int_equal(a.pages[0], b.pages[0]);
    fixture_done(&f);
}

static void test_eviction_takes_the_oldest_leaves(void **state)
{
    (void)state;
    fixture f;
    ea_kv_seq a;
    int32_t t1[40], t2[40], t3[40];
    fill(t1, 0, 40, 0);
    fill(t2, 0, 40, 100);
    fill(t3, 0, 40, 200);
    fixture_init(&f, 6);
    seq_init(&f, &a);
    compute(&f, &a, t1, 12);
    seq_drop(&f, &a);
    compute(&f, &a, t2, 12);
    seq_drop(&f, &a);
    assert_int_equal(ea_kv_count(f.kv).n_free, 0);
    compute(&f, &a, t3, 8); /* takes the last two pages of t1 */
    seq_drop(&f, &a);
    assert_int_equal(ea_kv_count(f.kv).n_evicted, 2);
    assert_int_equal(match(&f, &a, t2, 40), 12);
    seq_drop(&f, &a);
    assert_int_equal(match(&f, &a, t1, 40), 4);
    fixture_done(&f);
}

static void test_referenced_pages_are_never_evicted(void **state)
{
    (void)state;
    fixture f;
    ea_kv_seq a, b;
    int32_t t1[40], t2[40];
    fill(t1, 0, 40, 0);
    fill(t2, 0, 40, 100);
    fixture_init(&f, 4);
    seq_init(&f, &a);
    seq_init(&f, &b);
    compute(&f, &a, t1, 12);
    assert_int_equal(compute(&f, &b, t2, 12), 4);
    assert_int_equal(compute(&f, &b, t2, 1), 0);
    assert_int_equal(compute(&f, &a, t1, 1), 0);
    seq_drop(&f, &b);
    assert_int_equal(compute(&f, &a, t1, 4), 4);
    fixture_done(&f);
}

/* A timeline that fills the whole pool comes back: the copy that its last page needs has no room,
 * so the page is cut and taken over. */
static void test_whole_pool_matched_again(void **state)
{
    (void)state;
    fixture f;
    ea_kv_seq a;
    int32_t tokens[40];
    fill(tokens, 0, 40, 0);
    fixture_init(&f, 4);
    seq_init(&f, &a);
    compute(&f, &a, tokens, 16);
    seq_drop(&f, &a);
    assert_int_equal(match(&f, &a, tokens, 15), 15);
    assert_int_equal(compute(&f, &a, tokens, 1), 1);
    assert_int_equal(ea_kv_count(f.kv).n_evicted, 0);
    fixture_done(&f);
}

static void test_roots_do_not_meet(void **state)
{
    (void)state;
    fixture f;
    ea_kv_seq a, b;
    int32_t tokens[40];
    fill(tokens, 0, 40, 0);
    fixture_init(&f, 20);
    seq_init(&f, &a);
    seq_init(&f, &b);
    ea_kv_seq_start(&b, ea_key_root(1, 0, 9));
    compute(&f, &a, tokens, 12);
    assert_int_equal(match(&f, &b, tokens, 40), 0);
    fixture_done(&f);
}

static void test_peek_changes_nothing(void **state)
{
    (void)state;
    fixture f;
    ea_kv_seq a;
    int32_t tokens[40];
    int n_tokens, n_need;
    fill(tokens, 0, 40, 0);
    fixture_init(&f, 20);
    seq_init(&f, &a);
    compute(&f, &a, tokens, 10);
    ea_kv_peek(f.kv, ea_key_root(1, 0, 0), tokens, 30, &n_tokens, &n_need);
    assert_int_equal(n_tokens, 8);
    assert_int_equal(n_need, 8 - 2); /* 31 positions, two of whose pages are in use anyway */
    seq_drop(&f, &a);
    ea_kv_peek(f.kv, ea_key_root(1, 0, 0), tokens, 30, &n_tokens, &n_need);
    assert_int_equal(n_tokens, 8);
    assert_int_equal(n_need, 8);
    assert_int_equal(ea_kv_count(f.kv).n_cached, 3);
    check(&f);
    fixture_done(&f);
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Many sequences over few tokens, so that they share, part and meet again all the time. */
static void test_random_soak(void **state)
{
    (void)state;
    enum { N = 6, LEN = 40 };
    fixture f;
    ea_kv_seq seq[N];
    int32_t tokens[N][LEN];
    uint64_t rng = 42;
    fixture_init(&f, 24);
    for (int i = 0; i < N; i++)
        seq_init(&f, &seq[i]);
    memset(tokens, 0, sizeof tokens);
    ea_alloc_guard_begin(false); /* nothing of kv/ allocates; the checker does */
    f.n_checks = 0;
    for (int round = 0; round < 20000; round++) {
        int i = (int)(next_random(&rng) % N);
        switch (next_random(&rng) % 4) {
        case 0:
            seq_drop(&f, &seq[i]);
            for (int p = 0; p < LEN; p++) /* mostly one path, forks are rare */
                tokens[i][p] = next_random(&rng) % 8 == 0;
            break;
        case 1: match(&f, &seq[i], tokens[i], 1 + (int)(next_random(&rng) % LEN)); break;
        default:
            compute(&f, &seq[i], tokens[i],
                    (int)(next_random(&rng) % (uint64_t)EA_MIN(7, LEN - seq[i].n_tokens + 1)));
            break;
        }
        check(&f);
    }
    /* Two a check, and nothing else. */
    assert_int_equal(ea_alloc_guard_end(), 2 * f.n_checks);
    ea_kv_counts c = ea_kv_count(f.kv);
    assert_true(c.n_evicted > 100 && c.n_copied > 100 && c.n_merged > 10);
    fixture_done(&f);
}

static void test_bad_sizes_are_refused(void **state)
{
    (void)state;
    ea_kv *kv = NULL;
    ea_kv_params params = {.n_pages = 0, .page_tokens = 32, .copy = copy_page};
    ea_error err = {0};
    assert_int_equal(ea_kv_create(&params, &kv, &err), EA_EINVAL);
    params.n_pages = 1 << 30;
    assert_int_equal(ea_kv_create(&params, &kv, NULL), EA_EINVAL);
    params.n_pages = 10;
    for (size_t n = 1; n < 12; n++) {
        ea_alloc_fail_at(n);
        err = (ea_error){0};
        assert_int_equal(ea_kv_create(&params, &kv, &err), EA_ENOMEM);
        assert_int_equal(err.code, EA_ENOMEM);
    }
    ea_alloc_fail_at(0);
    assert_null(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_pages_are_shared),
        cmocka_unit_test(test_partial_page_is_copied),
        cmocka_unit_test(test_return_continues_in_place),
        cmocka_unit_test(test_limit_leaves_the_last_token),
        cmocka_unit_test(test_match_again_while_filling),
        cmocka_unit_test(test_eviction_takes_the_oldest_leaves),
        cmocka_unit_test(test_referenced_pages_are_never_evicted),
        cmocka_unit_test(test_whole_pool_matched_again),
        cmocka_unit_test(test_roots_do_not_meet),
        cmocka_unit_test(test_peek_changes_nothing),
        cmocka_unit_test(test_random_soak),
        cmocka_unit_test(test_bad_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
