/* test_attn_plan.c: every span of every run is in exactly one unit, units fit a kernel call, and
 * agents with the same pages share them. */
#include "support.h"

#include <string.h>

#include "device/cpu/internal.h"

enum { MAX_ROWS = 600, MAX_SEQS = 64, MAX_PAGES = 8200 };

/* A device with nothing but what planning looks at. */
typedef struct fixture {
    ea_cpu_device d;
    ea_plan plan;
    ea_kv_group kv_group;
    ea_cpu_group group;
    ea_row rows[MAX_ROWS];
    ea_cpu_span spans[MAX_ROWS];
    ea_seq seqs[MAX_SEQS];
    int32_t *pages[MAX_SEQS];
    int n_seqs;
    void *taken[16];
    int n_taken;
} fixture;

static void *take(void *user, size_t n)
{
    fixture *f = user;
    assert_true(f->n_taken < 16);
    return f->taken[f->n_taken++] = calloc(1, n);
}

static fixture *fixture_make(int n_workers, int n_head, int n_head_kv, int window)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    int heads = n_head / n_head_kv;
    f->kv_group =
        (ea_kv_group){.n_head = n_head, .n_head_kv = n_head_kv, .head_dim = 64, .window = window};
    f->group = (ea_cpu_group){.head_dim = 64,
                              .block_bytes = ea_kv_block_bytes(EA_KV_F16, 64),
                              .heads = heads,
                              .parts = 1,
                              .span_rows = EA_ATTN_QUERIES / heads};
    f->plan = (ea_plan){.n_groups = 1, .groups = &f->kv_group};
    f->d.plan = &f->plan;
    f->d.groups = &f->group;
    f->d.n_workers = n_workers;
    f->d.base.info.max_rows = MAX_ROWS;
    f->d.rows = f->rows;
    f->d.spans = f->spans;
    f->d.seqs = f->seqs;
    ea_cpu_attn_carve(&f->d, 0, take, f);
    return f;
}

static void fixture_free(fixture *f)
{
    for (int i = 0; i < f->n_taken; i++)
        free(f->taken[i]);
    for (int i = 0; i < f->n_seqs; i++)
        free(f->pages[i]);
    free(f);
}

/* A sequence of which n_rows rows end at position `last`; its first `shared` pages are those of
 * family `family`, the others its own. The table is as long as it must be. */
static void add(fixture *f, int n_rows, int last, int family, int shared)
{
    int s = f->n_seqs++, n_pages = last / EA_PAGE_TOKENS + 1;
    assert_true(s < MAX_SEQS);
    f->pages[s] = malloc((size_t)n_pages * sizeof(int32_t));
    for (int i = 0; i < n_pages; i++)
        f->pages[s][i] = i < shared ? family * MAX_PAGES + i : (1000 + s) * MAX_PAGES + i;
    f->seqs[s] = (ea_seq){f->pages[s], n_pages};
    for (int i = 0; i < n_rows; i++) {
        int row = f->d.n_rows++;
        assert_true(row < MAX_ROWS);
        f->rows[row] = (ea_row){.pos = {last - n_rows + 1 + i}, .seq = s};
        if (i % f->group.span_rows == 0)
            f->spans[f->d.n_spans++] = (ea_cpu_span){row, 0, f->pages[s]};
        f->spans[f->d.n_spans - 1].n_rows++;
    }
}

static int n_rows_of(const fixture *f, const ea_cpu_attn_unit *u)
{
    int n = 0;
    for (int i = 0; i < u->n_runs; i++)
        n += f->spans[f->group.attn.members[u->run0 + i]].n_rows;
    return n;
}

static void check_unit(const fixture *f, const ea_cpu_attn_unit *u, int *covered)
{
    const ea_cpu_attn_plan *p = &f->group.attn;
    assert_true(u->n_runs >= 1);
    assert_true(n_rows_of(f, u) <= f->group.span_rows);
    int first = p->members[u->run0];
    for (int i = 0; i < u->n_runs; i++) {
        int run = p->members[u->run0 + i];
        const ea_cpu_attn_run *r = &p->runs[run];
        if (u->n_spans == 0) {
            assert_int_equal(u->n_runs, 1);
            assert_int_equal(r->part0, -1);
            covered[run] = r->span1 - r->span0;
            continue;
        }
        assert_true(r->part0 >= 0 && u->span0 >= r->span0 && u->span0 + u->n_spans <= r->span1);
        covered[run] += u->n_spans;
        if (i > 0) /* whole spans, the same pages */
            assert_memory_equal(f->spans[run].pages + u->span0 * 8,
                                f->spans[first].pages + u->span0 * 8,
                                (size_t)u->n_spans * 8 * sizeof(int32_t));
    }
}

/* Plan and check; returns how many units hold several runs. */
static int check_plan(fixture *f)
{
    const ea_cpu_attn_plan *p = &f->group.attn;
    static int covered[MAX_ROWS], units[MAX_ROWS];
    static bool part[EA_CPU_ATTN_PARTS];
    int n_shared = 0, n_heads = f->kv_group.n_head_kv;
    memset(covered, 0, sizeof covered);
    memset(units, 0, sizeof units);
    memset(part, 0, sizeof part);
    ea_cpu_attn_plan_step(&f->d, 0);
    for (int i = 0; i < p->n_units; i++) {
        check_unit(f, &p->units[i], covered);
        n_shared += p->units[i].n_runs > 1;
        for (int k = 0; k < p->units[i].n_runs; k++)
            units[p->members[p->units[i].run0 + k]]++;
    }
    for (int run = 0; run < f->d.n_spans; run++) {
        const ea_cpu_attn_run *r = &p->runs[run];
        assert_int_equal(covered[run], r->span1 - r->span0);
        if (r->part0 < 0)
            continue;
        assert_int_equal(units[run], r->n_units);
        for (int h = 0; h < n_heads; h++)
            assert_int_equal(atomic_load(&p->left[r->cut * n_heads + h]), r->n_units);
        for (int k = 0; k < f->spans[run].n_rows * (r->span1 - r->span0); k++) {
            assert_true(r->part0 + k < EA_CPU_ATTN_PARTS && !part[r->part0 + k]);
            part[r->part0 + k] = true;
        }
    }
    return n_shared;
}

static void one_long_sequence_is_cut(void **state)
{
    (void)state;
    fixture *f = fixture_make(2, 9, 3, 0);
    add(f, 1, 4096, 0, 0);
    assert_int_equal(check_plan(f), 0);
    /* 17 spans: pieces for all workers, and not one for each span */
    assert_true(f->group.attn.n_units >= 4 && f->group.attn.n_units <= 9);
    fixture_free(f);
}

static void short_sequences_are_not_cut(void **state)
{
    (void)state;
    fixture *f = fixture_make(2, 4, 2, 0);
    for (int i = 0; i < 10; i++)
        add(f, 1 + i % 3, 100 + i, 1, 3);
    assert_int_equal(check_plan(f), 0);
    assert_int_equal(f->group.attn.n_units, 10);
    fixture_free(f);
}

static void a_prompt_is_not_cut(void **state)
{
    (void)state;
    fixture *f = fixture_make(2, 12, 2, 0);
    add(f, 512, 2047, 0, 0);
    assert_int_equal(check_plan(f), 0);
    assert_int_equal(f->group.attn.n_units, f->d.n_spans);
    fixture_free(f);
}

static void shared_prefixes_are_read_together(void **state)
{
    (void)state;
    fixture *f = fixture_make(2, 12, 2, 0);
    for (int i = 0; i < 8; i++) /* seven whole spans in common, and a part of the next */
        add(f, 1, 2000 + 60 * i, 1, 60);
    for (int i = 0; i < 3; i++) /* two more families, drafts, and somebody alone */
        add(f, 4, 900 + 300 * i, 2, 24);
    add(f, 1, 5000, 3, 0);
    assert_true(check_plan(f) > 0);
    int rows_in_common = 0;
    for (int i = 0; i < f->group.attn.n_units; i++) {
        const ea_cpu_attn_unit *u = &f->group.attn.units[i];
        if (u->n_runs == 8 && n_rows_of(f, u) == 8)
            rows_in_common += u->n_spans;
    }
    assert_int_equal(rows_in_common, 7);
    fixture_free(f);
}

/* More agents than a kernel call takes rows; more results than there is room for. */
static void many_agents(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 64; workers *= 8) {
        fixture *f = fixture_make(workers, 12, 2, 0);
        for (int i = 0; i < 64; i++)
            add(f, 1 + i % 5, 6000 + 40 * (i % 9), i % 2, 150 + i % 3);
        assert_true(check_plan(f) > 0);
        int walked = 0;
        for (int run = 0; run < f->d.n_spans; run++)
            walked += f->group.attn.runs[run].part0 < 0;
        assert_true(walked > 0 && walked < f->d.n_spans);
        fixture_free(f);
    }
}

static void windows(void **state)
{
    (void)state;
    for (int window = 1; window < 2000; window = window * 3 + 1) {
        fixture *f = fixture_make(3, 4, 2, window);
        for (int i = 0; i < 6; i++)
            add(f, 1 + i, 1500 + 200 * i, 1, 40);
        check_plan(f);
        for (int run = 0; run < f->d.n_spans; run++) {
            int first = 1500 + 200 * run - run - window + 1; /* what its first row sees */
            assert_int_equal(f->group.attn.runs[run].span0, (first > 0 ? first : 0) / 256);
        }
        fixture_free(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_long_sequence_is_cut),
        cmocka_unit_test(short_sequences_are_not_cut),
        cmocka_unit_test(a_prompt_is_not_cut),
        cmocka_unit_test(shared_prefixes_are_read_together),
        cmocka_unit_test(many_agents),
        cmocka_unit_test(windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
