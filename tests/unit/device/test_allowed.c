/* test_allowed.c: rows that allow only some tokens: the logits of those are the bits of the whole
 * product, the others -INFINITY, and the argmax is of what is allowed; whatever other rows of the
 * step want. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "kernel/kernel.h"
#include "model/model.h"
#include "model/synthetic.h"
#include "support.h"

/* Several pieces of the vocabulary, the last tile and the last word in part. */
enum { N_VOCAB = 3001, N_WORDS = (N_VOCAB + 31) / 32, N_ROWS = 12 };

typedef struct fixture {
    void *bytes;
    size_t n_bytes;
    ea_gguf *g;
    ea_model_def *def;
    ea_cpu_weights *w;
    float logits[N_ROWS][N_VOCAB]; /* everything allowed, one row a step, one thread */
} fixture;

static ea_device *open_device(const fixture *f, int n_threads)
{
    ea_error err = {0};
    ea_device *dev;
    ea_cpu_device_params params = {n_threads, 4, N_ROWS, N_ROWS, EA_KV_F16, false};
    assert_ok(ea_cpu_device_create(f->w, &params, &dev, &err), &err);
    return dev;
}

/* Row i: token 5 * i at position i of the one sequence. */
static ea_row make_row(int i, ea_want want, const uint32_t *allowed)
{
    return (ea_row){
        .token = 5 * i, .pos = {i, i, i}, .parent = -1, .want = want, .allowed = allowed};
}

static void run(ea_device *dev, ea_row *rows, int n_rows)
{
    ea_error err = {0};
    int32_t page = 1;
    ea_seq seq = {&page, 1};
    ea_batch batch = {rows, n_rows, &seq, 1};
    assert_ok(dev->ops->step(dev, &batch, &err), &err);
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    ea_error err = {0};
    ea_cpu_weights_params params = {.n_threads = 2};
    if (!f ||
        ea_synthetic_model("layers=1,embd=64,ff=96,heads=4,kv=2,vocab=3001:Q8_0", 3, 1, &f->bytes,
                           &f->n_bytes, &err) != EA_OK ||
        ea_gguf_open_memory("made.gguf", f->bytes, f->n_bytes, &f->g, &err) != EA_OK ||
        ea_model_def_load(f->g, &f->def, &err) != EA_OK ||
        ea_cpu_weights_create(&f->def->plan, &params, &f->w, &err) != EA_OK) {
        printf("%s\n", err.text);
        return -1;
    }
    ea_device *dev = open_device(f, 1);
    for (int i = 0; i < N_ROWS; i++) {
        ea_row row = make_row(i, EA_WANT_LOGITS, NULL);
        run(dev, &row, 1);
        memcpy(f->logits[i], row.logits, sizeof f->logits[i]);
    }
    ea_device_destroy(dev);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    ea_cpu_weights_destroy(f->w);
    ea_model_def_destroy(f->def);
    ea_gguf_close(f->g);
    ea_pages_free(f->bytes, f->n_bytes);
    free(f);
    return 0;
}

typedef struct token_set {
    uint32_t words[N_WORDS];
} token_set;

static bool has(const token_set *set, int token)
{
    return !set || (set->words[token / 32] >> (token % 32) & 1);
}

static void add(token_set *set, int token)
{
    set->words[token / 32] |= 1u << (token % 32);
}

/* The results of row i are those that `set` (NULL: all) leaves of the whole product. */
static void check_row(const fixture *f, int i, const ea_row *row, const token_set *set)
{
    int32_t best = -1;
    for (int t = 0; t < N_VOCAB; t++) {
        if (has(set, t) && (best < 0 || f->logits[i][t] > f->logits[i][best]))
            best = t;
        float want = has(set, t) ? f->logits[i][t] : -INFINITY;
        if (row->logits && memcmp(&row->logits[t], &want, sizeof want) != 0)
            fail_msg("row %d: logit %d is %a, not %a", i, t, (double)row->logits[t], (double)want);
    }
    assert_int_equal(row->argmax, best);
    assert_int_equal(row->logits != NULL, row->want == EA_WANT_LOGITS);
}

static void check_set(const fixture *f, ea_device *dev, const token_set *set)
{
    for (int want = EA_WANT_ARGMAX; want <= EA_WANT_LOGITS; want++) {
        ea_row row = make_row(0, (ea_want)want, set->words);
        run(dev, &row, 1);
        check_row(f, 0, &row, set);
    }
}

static void one_row_of_each_size(void **state)
{
    const fixture *f = *state;
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        ea_device *dev = open_device(f, n_threads);
        static const int steps[] = {1, 2, 7, 16, 33, 500, 2999, 3001};
        for (size_t s = 0; s < EA_ARRAY_LEN(steps); s++)
            for (int first = 0; first < N_VOCAB; first += 1000) {
                token_set set = {{0}};
                for (int t = first; t < N_VOCAB; t += steps[s])
                    add(&set, t);
                check_set(f, dev, &set);
            }
        ea_device_destroy(dev);
    }
}

/* Alone at either end of a tile and of the vocabulary; the padding of the last word means nothing.
 */
static void single_tokens(void **state)
{
    const fixture *f = *state;
    static const int tokens[] = {0, 15, 16, 31, 32, 1023, 1024, 2991, 2992, 3000};
    ea_device *dev = open_device(f, 2);
    for (size_t i = 0; i < EA_ARRAY_LEN(tokens); i++) {
        token_set set = {{0}};
        add(&set, tokens[i]);
        set.words[N_WORDS - 1] |= 0xffffffffu << (N_VOCAB % 32);
        check_set(f, dev, &set);
    }
    ea_device_destroy(dev);
}

/* All rows of a step, wants and sets dealt out by the bits of `deal`, two a row. */
static void check_mixed(const fixture *f, ea_device *dev, const token_set sets[3], uint32_t deal)
{
    ea_row rows[N_ROWS];
    const token_set *of[N_ROWS];
    for (int i = 0; i < N_ROWS; i++) {
        int set = (int)(deal >> (2 * i) & 3);
        of[i] = set < 3 ? &sets[set] : NULL;
        rows[i] = make_row(i, (deal >> (i + 11) & 1) ? EA_WANT_LOGITS : EA_WANT_ARGMAX,
                           of[i] ? of[i]->words : NULL);
    }
    run(dev, rows, N_ROWS);
    for (int i = 0; i < N_ROWS; i++)
        check_row(f, i, &rows[i], of[i]);
}

static void nothing_allowed(void **state)
{
    const fixture *f = *state;
    ea_device *dev = open_device(f, 2);
    const token_set none[3] = {{{0}}};
    check_set(f, dev, &none[0]);           /* argmax -1 */
    check_mixed(f, dev, none, 0x00c30c3c); /* beside rows that allow all */
    ea_device_destroy(dev);
}

static void rows_with_different_sets(void **state)
{
    const fixture *f = *state;
    token_set sets[3] = {{{0}}};
    for (int t = 0; t < 3; t++)
        add(&sets[0], 100 + 900 * t);
    for (int t = 64; t < 1500; t++)
        add(&sets[1], t);
    for (int t = 3; t < N_VOCAB; t += 3)
        add(&sets[2], t);
    for (int n_threads = 1; n_threads <= 2; n_threads++) {
        ea_device *dev = open_device(f, n_threads);
        for (uint32_t deal = 1, i = 0; i < 40; i++, deal = deal * 1664525u + 1013904223u)
            check_mixed(f, dev, sets, deal);
        check_mixed(f, dev, sets, 0); /* nobody allows all */
        check_mixed(f, dev, sets, 0x00aaaaaa);
        ea_device_destroy(dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_row_of_each_size),
        cmocka_unit_test(single_tokens),
        cmocka_unit_test(nothing_allowed),
        cmocka_unit_test(rows_with_different_sets),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
