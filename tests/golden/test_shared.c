/* test_shared.c: agents whose page tables begin with the same pages, and stored KV of every type: a
 * row's logits are the same bits when its shared spans are read together with others', cut into
 * pieces for many threads, or computed alone, one after another, on pages of its own. */
#include <string.h>

#include "base/mem.h"
#include "golden/model_run.h"
#include "model/synthetic.h"

/* 704 shared positions are two whole spans of 256 and a part of the third; then the agents part. */
enum { N_AGENTS = 7, SHARED = 704, OWN = 170, N_TOKENS = SHARED + OWN, PAGES_A_SEQ = 28 };
enum { N_PAGES = (N_AGENTS + 1) * PAGES_A_SEQ, MAX_ROWS = 320, N_VOCAB = 280 };

typedef struct fixture {
    void *bytes;
    size_t n_bytes;
    test_model m;
    int32_t tokens[N_AGENTS][N_TOKENS];
    float *expected; /* [N_AGENTS][OWN][N_VOCAB] */
} fixture;

static float *expected_row(const fixture *f, int agent, int pos)
{
    return f->expected + ((size_t)agent * OWN + (size_t)(pos - SHARED)) * N_VOCAB;
}

static void open_fixture(fixture *f, const char *spec)
{
    ea_error err = {0};
    uint32_t random = 5;
    assert_ok(ea_synthetic_model(spec, 11, 1, &f->bytes, &f->n_bytes, &err), &err);
    test_model_open_memory(&f->m, f->bytes, f->n_bytes);
    assert_int_equal(f->m.def->hp.n_vocab, N_VOCAB);
    for (int a = 0; a < N_AGENTS; a++)
        for (int i = 0; i < N_TOKENS; i++) {
            random = random * 1664525u + 1013904223u;
            f->tokens[a][i] =
                i < SHARED && a ? f->tokens[0][i] : (int32_t)((random >> 8) % N_VOCAB);
        }
    f->expected = malloc((size_t)N_AGENTS * OWN * N_VOCAB * sizeof *f->expected);
    assert_non_null(f->expected);
}

static void close_fixture(fixture *f)
{
    free(f->expected);
    test_model_close(&f->m);
    ea_pages_free(f->bytes, f->n_bytes);
}

/* Each agent alone on one thread: its prompt in chunks, then a row a step. */
static void compute_alone(fixture *f, ea_kv_type type)
{
    for (int a = 0; a < N_AGENTS; a++) {
        ea_device *dev = test_device_kv(&f->m, 1, PAGES_A_SEQ, MAX_ROWS, MAX_ROWS, type);
        test_seq seq;
        test_seq_init(&seq, PAGES_A_SEQ - 1, -1, PAGES_A_SEQ);
        while (seq.n_tokens < SHARED)
            test_feed(dev, &seq, f->tokens[a] + seq.n_tokens, 64, EA_WANT_NONE, NULL);
        while (seq.n_tokens < N_TOKENS) {
            int pos = seq.n_tokens;
            ea_row row;
            test_feed(dev, &seq, f->tokens[a] + pos, 1, EA_WANT_LOGITS, &row);
            memcpy(expected_row(f, a, pos), row.logits, N_VOCAB * sizeof(float));
        }
        ea_device_destroy(dev);
    }
}

/* One step in which every agent has rows_of(agent, step) rows; all logits are compared. */
static void step_all(const fixture *f, ea_device *dev, test_seq *seqs, int step, int n_threads)
{
    static ea_row rows[MAX_ROWS];
    ea_seq table[N_AGENTS];
    int n_rows = 0;
    for (int a = 0; a < N_AGENTS; a++) {
        /* One row a step, now and then a few as if drafts were checked, now and then a chunk. */
        int n = step % 5 == 4 ? 1 + (a + step) % 6 : step % 11 == 6 && a == 2 ? 40 : 1;
        table[a] = (ea_seq){seqs[a].pages, seqs[a].n_pages};
        for (int i = 0; i < n && seqs[a].n_tokens < N_TOKENS; i++) {
            int pos = seqs[a].n_tokens++;
            rows[n_rows++] = (ea_row){.token = f->tokens[a][pos],
                                      .pos = {pos, pos, pos},
                                      .seq = a,
                                      .parent = -1,
                                      .want = EA_WANT_LOGITS};
        }
    }
    ea_batch batch = {rows, n_rows, table, N_AGENTS};
    ea_error err = {0};
    ea_alloc_guard_begin(true); /* aborts if a step allocates */
    ea_status status = dev->ops->step(dev, &batch, &err);
    assert_int_equal(ea_alloc_guard_end(), 0);
    assert_ok(status, &err);
    for (int i = 0; i < n_rows; i++)
        if (memcmp(rows[i].logits, expected_row(f, rows[i].seq, rows[i].pos[0]),
                   N_VOCAB * sizeof(float)) != 0)
            fail_msg("%d threads, step %d: agent %d, position %d differs from alone", n_threads,
                     step, rows[i].seq, rows[i].pos[0]);
}

static void compute_together(const fixture *f, ea_kv_type type, int n_threads)
{
    ea_device *dev = test_device_kv(&f->m, n_threads, N_PAGES, MAX_ROWS, MAX_ROWS, type);
    test_seq seqs[N_AGENTS];
    test_seq_init(&seqs[0], 0, 1, PAGES_A_SEQ);
    test_feed(dev, &seqs[0], f->tokens[0], 200, EA_WANT_NONE, NULL);
    while (seqs[0].n_tokens < SHARED)
        test_feed(dev, &seqs[0], f->tokens[0] + seqs[0].n_tokens, 56, EA_WANT_NONE, NULL);
    for (int a = 1; a < N_AGENTS; a++) { /* the same whole pages, then pages of its own */
        test_seq_init(&seqs[a], a * PAGES_A_SEQ, 1, PAGES_A_SEQ);
        for (int p = 0; p < SHARED / 32; p++)
            seqs[a].pages[p] = seqs[0].pages[p];
        seqs[a].n_tokens = SHARED;
    }
    for (int step = 0; seqs[N_AGENTS - 1].n_tokens < N_TOKENS; step++)
        step_all(f, dev, seqs, step, n_threads);
    ea_device_destroy(dev);
}

static void check(const char *spec, ea_kv_type type)
{
    fixture f;
    open_fixture(&f, spec);
    compute_alone(&f, type);
    for (int n_threads = 1; n_threads <= 3; n_threads++)
        compute_together(&f, type, n_threads);
    close_fixture(&f);
}

static void shared_f16(void **state)
{
    (void)state;
    check("layers=2,embd=96,ff=64,heads=6,kv=2,vocab=280:Q8_0", EA_KV_F16);
}

static void shared_f16_padded_heads(void **state)
{
    (void)state; /* heads of 12 */
    check("layers=1,embd=96,ff=64,heads=8,kv=2,vocab=280:Q8_0", EA_KV_F16);
}

static void shared_q8_0(void **state)
{
    (void)state;
    check("layers=2,embd=128,ff=64,heads=4,kv=2,vocab=280:Q8_0", EA_KV_Q8_0);
}

static void shared_q4_0(void **state)
{
    (void)state;
    check("layers=2,embd=128,ff=64,heads=4,kv=2,vocab=280:Q8_0", EA_KV_Q4_0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_f16),
        cmocka_unit_test(shared_f16_padded_heads),
        cmocka_unit_test(shared_q8_0),
        cmocka_unit_test(shared_q4_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
