/* attn_plan.c: see attn_plan.h. Engine thread only; allocates nothing after the device's creation.
 */
#include "device/cpu/attn_plan.h"

#include <string.h>

#include "device/cpu/internal.h"

enum {
    /* A step with this many pieces for each worker is not cut for the sake of more. */
    ENOUGH_PIECES = 8,
    SPAN_PAGES = EA_ATTN_SPAN / EA_PAGE_TOKENS,
    MAX_CHUNK = 8,
};
/* A piece should take about this long: far more than a claim and the packing of its queries. */
static const double piece_ns = 30000;

static int max_units(const ea_cpu_device *d)
{
    return d->base.info.max_rows + EA_CPU_ATTN_PARTS;
}

/* Pieces of one unit. */
static int items(const ea_cpu_device *d, int group)
{
    return d->plan->groups[group].n_head_kv * d->groups[group].parts;
}

void ea_cpu_attn_carve(ea_cpu_device *d, int group, void *(*take)(void *user, size_t n), void *user)
{
    ea_cpu_attn_plan *p = &d->groups[group].attn;
    size_t max_rows = (size_t)d->base.info.max_rows, units = (size_t)max_units(d);
    size_t cuts = EA_MIN(max_rows, EA_CPU_ATTN_PARTS / 2); /* each has two spans at least */
    p->units = take(user, units * sizeof *p->units);
    p->members = take(user, units * sizeof *p->members);
    p->runs = take(user, max_rows * sizeof *p->runs);
    p->left = take(user, cuts * (size_t)items(d, group) * sizeof *p->left);
    p->order = take(user, max_rows * sizeof *p->order);
    p->open = take(user, max_rows * sizeof *p->open);
    p->begins = take(user, max_rows * sizeof *p->begins);
}

/* ---- which runs are cut ---- */

static const int32_t *span_table(const ea_cpu_device *d, int run, int span)
{
    return d->spans[run].pages + span * SPAN_PAGES;
}

/* Do both see the whole of this span, on the same pages? */
static bool same_pages(const ea_cpu_device *d, const ea_cpu_attn_plan *p, int a, int b, int span)
{
    if (span < p->runs[a].span0 || span >= p->runs[a].span1 || span < p->runs[b].span0 ||
        span >= p->runs[b].span1)
        return false;
    int pages = (span + 1) * SPAN_PAGES;
    if (d->seqs[d->rows[d->spans[a].row0].seq].n_pages < pages ||
        d->seqs[d->rows[d->spans[b].row0].seq].n_pages < pages)
        return false;
    return memcmp(span_table(d, a, span), span_table(d, b, span), SPAN_PAGES * sizeof(int32_t)) ==
           0;
}

/* Put the runs of order[from .. to) with the pages of the first of them in front; returns where
 * they end. */
static int gather(const ea_cpu_device *d, ea_cpu_attn_plan *p, int from, int to, int span)
{
    int end = from + 1;
    for (int i = from + 1; i < to; i++)
        if (same_pages(d, p, p->order[from], p->order[i], span)) {
            int32_t run = p->order[i];
            p->order[i] = p->order[end];
            p->order[end++] = run;
        }
    return end;
}

static int group_end(const ea_cpu_attn_plan *p, int from, int n)
{
    int end = from + 1;
    while (end < n && !p->begins[end])
        end++;
    return end;
}

static void see(const ea_cpu_device *d, int group, int run, ea_cpu_attn_run *out)
{
    const ea_cpu_span *s = &d->spans[run];
    int window = d->plan->groups[group].window;
    int first = d->rows[s->row0].pos[0], last = d->rows[s->row0 + s->n_rows - 1].pos[0];
    *out = (ea_cpu_attn_run){.part0 = -1};
    out->span0 = window > 0 && first >= window ? (first - window + 1) / EA_ATTN_SPAN : 0;
    out->span1 = last / EA_ATTN_SPAN + 1;
}

/* The runs that may be cut to order[0 .. n), those with the same pages in their first span side by
 * side; returns n. All of them where pieces are few, else those that have something to share. */
static int choose(ea_cpu_device *d, int group)
{
    ea_cpu_attn_plan *p = &d->groups[group].attn;
    bool all = d->n_spans * items(d, group) < ENOUGH_PIECES * d->n_workers;
    int n = 0, kept = 0, most = d->groups[group].span_rows;
    for (int run = 0; run < d->n_spans; run++) {
        const ea_cpu_attn_run *r = &p->runs[run];
        if (r->span1 - r->span0 > 1 && (all || d->spans[run].n_rows * 2 <= most))
            p->order[n++] = run;
    }
    for (int from = 0, end; from < n; from = end) {
        end = gather(d, p, from, n, p->runs[p->order[from]].span0);
        if (!all && end - from < 2)
            continue;
        for (int i = from; i < end; i++) {
            p->begins[kept] = i == from;
            p->order[kept++] = p->order[i];
        }
    }
    return kept;
}

/* Give each chosen run its room in `parts`; those that find none are not cut. */
static int give_parts(ea_cpu_device *d, int group, int n)
{
    ea_cpu_attn_plan *p = &d->groups[group].attn;
    int n_parts = 0, kept = 0;
    bool begins = false;
    for (int i = 0; i < n; i++) {
        ea_cpu_attn_run *r = &p->runs[p->order[i]];
        int need = d->spans[p->order[i]].n_rows * (r->span1 - r->span0);
        begins = begins || p->begins[i];
        if (n_parts + need > EA_CPU_ATTN_PARTS)
            continue;
        r->part0 = n_parts;
        r->cut = kept;
        n_parts += need;
        p->begins[kept] = begins;
        p->order[kept++] = p->order[i];
        begins = false;
    }
    return kept;
}

/* ---- units ---- */

static int new_unit(ea_cpu_attn_plan *p, int *n_members, int run, int span)
{
    p->units[p->n_units] = (ea_cpu_attn_unit){*n_members, 1, span, span >= 0};
    p->members[(*n_members)++] = run;
    return p->n_units++;
}

/* Spans that a unit of this many rows should cover. */
static int chunk_spans(const ea_cpu_device *d, int group, int n_rows, int most)
{
    const ea_cpu_group *g = &d->groups[group];
    double read_ns = 2.0 * (double)g->block_bytes * SPAN_PAGES / 10;
    double compute_ns = 2.0 * n_rows * g->heads * EA_ATTN_SPAN * g->head_dim / 60;
    double n = piece_ns / EA_MAX(read_ns, compute_ns);
    return n >= most ? most : n < 1 ? 1 : (int)n;
}

/* Units for one span of the runs order[from .. end), which have the same pages there: as many runs
 * in each as fit into a kernel call. */
static void add_units(ea_cpu_device *d, int group, int from, int end, int span, int *n_members)
{
    ea_cpu_attn_plan *p = &d->groups[group].attn;
    int rows = 0, unit = -1;
    for (int i = from; i < end; i++) {
        int run = p->order[i], n_rows = d->spans[run].n_rows;
        if (unit < 0 || rows + n_rows > d->groups[group].span_rows) {
            unit = new_unit(p, n_members, run, span);
            rows = 0;
        } else {
            p->members[(*n_members)++] = run;
            p->units[unit].n_runs++;
        }
        if (i == from)
            p->open[from] = unit;
        rows += n_rows;
        p->runs[run].n_units++;
    }
}

/* The units of the group that begins at order[from] take in one span more, if they are not long
 * enough yet. */
static bool extend_units(ea_cpu_device *d, int group, int from, int end, int span, int most)
{
    ea_cpu_attn_plan *p = &d->groups[group].attn;
    int first = p->open[from], n = 0;
    if (first < 0 || p->units[first].span0 + p->units[first].n_spans != span)
        return false;
    int rows = 0;
    for (int i = from; i < end; i++)
        rows += d->spans[p->order[i]].n_rows;
    rows = EA_MIN(rows, d->groups[group].span_rows);
    if (p->units[first].n_spans >= chunk_spans(d, group, rows, most))
        return false;
    for (int unit = first; n < end - from; unit++) {
        p->units[unit].n_spans++;
        n += p->units[unit].n_runs;
    }
    return true;
}

static void cut_runs(ea_cpu_device *d, int group, int n, int *n_members)
{
    ea_cpu_attn_plan *p = &d->groups[group].attn;
    int span0 = INT32_MAX, span1 = 0, total = 0;
    for (int i = 0; i < n; i++) {
        const ea_cpu_attn_run *r = &p->runs[p->order[i]];
        span0 = EA_MIN(span0, r->span0);
        span1 = EA_MAX(span1, r->span1);
        total += (r->span1 - r->span0) * items(d, group);
        p->open[i] = -1;
    }
    int most = EA_MIN(EA_MAX(total / (4 * d->n_workers), 1), MAX_CHUNK);
    for (int span = span0; span < span1; span++)
        for (int from = 0, end; from < n; from = end) {
            int group_to = group_end(p, from, n);
            end = gather(d, p, from, group_to, span);
            if (end < group_to && !p->begins[end]) { /* they part here */
                p->begins[end] = true;
                p->open[from] = p->open[end] = -1;
            }
            const ea_cpu_attn_run *r = &p->runs[p->order[from]];
            if (span >= r->span0 && span < r->span1 &&
                !extend_units(d, group, from, end, span, most))
                add_units(d, group, from, end, span, n_members);
        }
}

void ea_cpu_attn_plan_step(ea_cpu_device *d, int group)
{
    ea_cpu_attn_plan *p = &d->groups[group].attn;
    int n_members = 0;
    p->n_units = 0;
    for (int run = 0; run < d->n_spans; run++)
        see(d, group, run, &p->runs[run]);
    int n = give_parts(d, group, choose(d, group));
    /* Last runs first: of a prompt they see most, so the short ones fill up the end. */
    for (int run = d->n_spans - 1; run >= 0; run--)
        if (p->runs[run].part0 < 0)
            new_unit(p, &n_members, run, -1);
    if (n > 0)
        cut_runs(d, group, n, &n_members);
    for (int i = 0; i < n; i++) {
        const ea_cpu_attn_run *r = &p->runs[p->order[i]];
        for (int k = 0; k < items(d, group); k++)
            atomic_store_explicit(&p->left[r->cut * items(d, group) + k], r->n_units,
                                  memory_order_relaxed); /* the run's start publishes it */
    }
}
