/* test_identity.c: a row's logits are the same bits whatever runs beside it, on how many threads,
 * in which chunks its prompt came, and where its pages lie (design: numerics). Every comparison is
 * memcmp against the plainest run: one thread, alone, one row a step. */
#include <string.h>

#include "base/mem.h"
#include "golden/model_run.h"
#include "model/synthetic.h"

/* Past EA_ATTN_SPAN (256), so that spans are merged, and past nine pages. */
enum { N_TOKENS = 300, N_CHECKED = 40, MAX_ROWS = 320, N_OTHERS = 8, PAGES_A_SEQ = 10 };
enum { N_PAGES = (N_OTHERS + 2) * PAGES_A_SEQ };

typedef struct fixture {
    void *bytes;
    size_t n_bytes;
    test_model m;
    int32_t tokens[N_TOKENS];
    float *expected; /* [N_TOKENS][n_vocab] */
    size_t row_bytes;
} fixture;

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u; /* Numerical Recipes' generator */
    return *state >> 8;
}

static const float *expected_row(const fixture *f, int pos)
{
    return f->expected + (size_t)pos * (f->row_bytes / sizeof(float));
}

static void check_row(const fixture *f, int pos, const ea_row *row, const char *what, int detail)
{
    const float *want = expected_row(f, pos);
    if (memcmp(row->logits, want, f->row_bytes) == 0)
        return;
    for (int t = 0; t < f->m.def->hp.n_vocab; t++)
        if (memcmp(&row->logits[t], &want[t], sizeof *want) != 0)
            fail_msg("%s (%d), position %d: logit %d is %.9g, alone %.9g", what, detail, pos, t,
                     (double)row->logits[t], (double)want[t]);
}

/* Feed tokens pos .. pos+n-1 and compare all their logits. */
static void feed_and_check(const fixture *f, ea_device *dev, test_seq *seq, int n, const char *what,
                           int detail)
{
    static ea_row rows[MAX_ROWS];
    int pos = seq->n_tokens;
    test_feed(dev, seq, f->tokens + pos, n, EA_WANT_LOGITS, rows);
    for (int i = 0; i < n; i++)
        check_row(f, pos + i, &rows[i], what, detail);
}

static void open_fixture(fixture *f, const char *spec)
{
    ea_error err = {0};
    uint32_t random = 5;
    assert_ok(ea_synthetic_model(spec, 11, 1, &f->bytes, &f->n_bytes, &err), &err);
    test_model_open_memory(&f->m, f->bytes, f->n_bytes);
    int n_vocab = f->m.def->hp.n_vocab;
    for (int i = 0; i < N_TOKENS; i++)
        f->tokens[i] = (int32_t)(next_random(&random) % (uint32_t)n_vocab);
    f->row_bytes = (size_t)n_vocab * sizeof(float);
    f->expected = malloc(N_TOKENS * f->row_bytes);
    assert_non_null(f->expected);
    ea_device *dev = test_device(&f->m, 1, N_PAGES, MAX_ROWS, MAX_ROWS);
    test_seq seq;
    test_seq_init(&seq, 0, 1, PAGES_A_SEQ);
    for (int i = 0; i < N_TOKENS; i++) {
        ea_row row;
        test_feed(dev, &seq, f->tokens + i, 1, EA_WANT_LOGITS, &row);
        memcpy(f->expected + (size_t)i * (size_t)n_vocab, row.logits, f->row_bytes);
    }
    ea_device_destroy(dev);
}

static void close_fixture(fixture *f)
{
    free(f->expected);
    test_model_close(&f->m);
    ea_pages_free(f->bytes, f->n_bytes);
}

static void check_threads_and_chunks(const fixture *f)
{
    for (int threads = 1; threads <= 3; threads++) {
        ea_device *dev = test_device(&f->m, threads, N_PAGES, MAX_ROWS, MAX_ROWS);
        for (int chunk = 1; chunk <= N_CHECKED; chunk++) {
            test_seq seq;
            test_seq_init(&seq, 0, 1, PAGES_A_SEQ);
            while (seq.n_tokens < N_CHECKED)
                feed_and_check(f, dev, &seq,
                               chunk < N_CHECKED - seq.n_tokens ? chunk : N_CHECKED - seq.n_tokens,
                               "chunk", chunk);
        }
        test_seq whole;
        test_seq_init(&whole, 0, 1, PAGES_A_SEQ);
        feed_and_check(f, dev, &whole, N_TOKENS, "whole prompt, threads", threads);
        ea_device_destroy(dev);
    }
}

/* Rows that want nothing are left out of the last layer, but for their K and V: prompts of which
 * only some row is wanted, or none. */
static void check_unwanted_rows(const fixture *f)
{
    static ea_row rows[MAX_ROWS];
    ea_device *dev = test_device(&f->m, 2, N_PAGES, MAX_ROWS, MAX_ROWS);
    for (int n = 1; n <= 100; n += n < 10 ? 1 : 30)
        for (int wanted = -1; wanted < n; wanted += n < 10 ? 1 : 29) {
            test_seq seq;
            test_seq_init(&seq, 0, 1, PAGES_A_SEQ);
            ea_seq table = {seq.pages, seq.n_pages};
            ea_batch batch = {rows, n, &table, 1};
            ea_error err = {0};
            for (int i = 0; i < n; i++)
                rows[i] = (ea_row){.token = f->tokens[i],
                                   .pos = {i, i, i},
                                   .parent = -1,
                                   .want = i == wanted ? EA_WANT_LOGITS : EA_WANT_NONE};
            assert_ok(dev->ops->step(dev, &batch, &err), &err);
            if (wanted >= 0)
                check_row(f, wanted, &rows[wanted], "only one row wanted of", n);
            seq.n_tokens = n;
            feed_and_check(f, dev, &seq, 2, "after a prompt with one row wanted", wanted);
        }
    ea_device_destroy(dev);
}

/* Pages in any order, and a page table that continues on copies of another's pages. */
static void check_pages(const fixture *f)
{
    ea_device *dev = test_device(&f->m, 2, N_PAGES, MAX_ROWS, MAX_ROWS);
    test_seq seq, copy;
    test_seq_init(&seq, N_PAGES - 1, -7, PAGES_A_SEQ);
    feed_and_check(f, dev, &seq, 201, "scattered pages", 0);
    feed_and_check(f, dev, &seq, 1, "scattered pages", 1);
    for (int n = 1; n <= 70; n += 23) { /* cut at n and go on elsewhere */
        test_seq_init(&copy, 1, 7, PAGES_A_SEQ);
        for (int p = 0; p * 32 < n; p++)
            dev->ops->copy_page(dev, copy.pages[p], seq.pages[p],
                                n - p * 32 < 32 ? n - p * 32 : 32);
        copy.n_tokens = n;
        feed_and_check(f, dev, &copy, 90, "copied pages, cut at", n);
    }
    feed_and_check(f, dev, &seq, N_TOKENS - 202, "after others copied it", 0);
    ea_device_destroy(dev);
}

/* One step's rows: `n` tokens of the sequence under test among N_OTHERS other sequences, each with
 * 1 .. 24 rows of its own that want this and that. */
static void step_among_others(const fixture *f, ea_device *dev, test_seq *seqs, int mine, int n,
                              uint32_t *random)
{
    static ea_row rows[MAX_ROWS];
    ea_seq table[N_OTHERS + 1];
    int n_rows = 0, my_first = 0, my_pos = seqs[mine].n_tokens;
    for (int s = 0; s <= N_OTHERS; s++) {
        int n_here = s == mine ? n : 1 + (int)(next_random(random) % 24);
        if (s == mine)
            my_first = n_rows;
        if (seqs[s].n_tokens + n_here > PAGES_A_SEQ * 32)
            seqs[s].n_tokens = 0; /* others start over */
        table[s] = (ea_seq){seqs[s].pages, seqs[s].n_pages};
        for (int i = 0; i < n_here; i++) {
            int pos = seqs[s].n_tokens++;
            uint32_t r = next_random(random);
            rows[n_rows++] =
                (ea_row){.token = s == mine ? f->tokens[pos]
                                            : (int32_t)(r / 4 % (uint32_t)f->m.def->hp.n_vocab),
                         .pos = {pos, pos, pos},
                         .seq = s,
                         .parent = -1,
                         .want = s == mine ? EA_WANT_LOGITS : (ea_want)(r % 3)};
        }
    }
    ea_batch batch = {rows, n_rows, table, N_OTHERS + 1};
    ea_error err = {0};
    ea_alloc_guard_begin(true); /* aborts if a step allocates */
    ea_status status = dev->ops->step(dev, &batch, &err);
    assert_int_equal(ea_alloc_guard_end(), 0);
    assert_ok(status, &err);
    for (int i = 0; i < n; i++)
        check_row(f, my_pos + i, &rows[my_first + i], "among others, rows of the step", n_rows);
    for (int i = 0; i < n_rows; i++) {
        assert_true((rows[i].logits != NULL) == (rows[i].want == EA_WANT_LOGITS));
        if (rows[i].want == EA_WANT_NONE)
            continue;
        assert_in_range(rows[i].argmax, 0, f->m.def->hp.n_vocab - 1);
        for (int t = 0; rows[i].logits && t < f->m.def->hp.n_vocab; t++)
            assert_true(t < rows[i].argmax ? rows[i].logits[t] < rows[i].logits[rows[i].argmax]
                                           : rows[i].logits[t] <= rows[i].logits[rows[i].argmax]);
    }
}

static void check_among_others(const fixture *f)
{
    for (int threads = 1; threads <= 3; threads++) {
        ea_device *dev = test_device(&f->m, threads, N_PAGES, MAX_ROWS, MAX_ROWS);
        test_seq seqs[N_OTHERS + 1];
        uint32_t random = 99;
        for (int s = 0; s <= N_OTHERS; s++)
            test_seq_init(&seqs[s], s, N_OTHERS + 1, PAGES_A_SEQ);
        int mine = 4, n = 1;
        while (seqs[mine].n_tokens + n <= N_TOKENS) {
            step_among_others(f, dev, seqs, mine, n, &random);
            n = n % 13 + 1; /* prompt chunks and single tokens by turns */
            if (n == 5)
                n = 70; /* more than one span of query rows; 6 is next */
        }
        ea_device_destroy(dev);
    }
}

/* The argmax of a row that wants no logits is the one of its logits; ties go to the lowest token.
 */
static void check_argmax(const fixture *f)
{
    ea_device *dev = test_device(&f->m, 2, N_PAGES, MAX_ROWS, MAX_ROWS);
    test_seq seq;
    static ea_row rows[N_TOKENS];
    test_seq_init(&seq, 0, 1, PAGES_A_SEQ);
    test_feed(dev, &seq, f->tokens, N_TOKENS, EA_WANT_ARGMAX, rows);
    for (int i = 0; i < N_TOKENS; i++) {
        const float *logits = expected_row(f, i);
        int best = 0;
        for (int t = 1; t < f->m.def->hp.n_vocab; t++)
            best = logits[t] > logits[best] ? t : best;
        assert_int_equal(rows[i].argmax, best);
        assert_null(rows[i].logits);
    }
    ea_device_destroy(dev);
}

static void check_model(const char *spec)
{
    fixture f;
    open_fixture(&f, spec);
    check_threads_and_chunks(&f);
    check_unwanted_rows(&f);
    check_pages(&f);
    check_among_others(&f);
    check_argmax(&f);
    close_fixture(&f);
}

static void quantised_super_blocks(void **state)
{
    (void)state;
    check_model("layers=2,embd=256,ff=512,heads=4,kv=2,vocab=300:Q4_K");
}

static void quantised_blocks_with_biases(void **state)
{
    (void)state; /* heads of 32 in groups of 3: attention's columns are whole blocks */
    check_model("layers=2,embd=96,ff=160,heads=3,kv=1,vocab=301,arch=qwen2:Q4_1");
}

static void heads_that_share_blocks(void **state)
{
    (void)state; /* heads of 12, padded, in blocks of 32 that several items write */
    check_model("layers=2,embd=96,ff=160,heads=8,kv=4,vocab=263:Q8_0");
}

static void half_precision(void **state)
{
    (void)state;
    check_model("layers=1,embd=64,ff=88,heads=4,kv=2,vocab=270:F16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantised_super_blocks),
        cmocka_unit_test(quantised_blocks_with_biases),
        cmocka_unit_test(heads_that_share_blocks),
        cmocka_unit_test(half_precision),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
