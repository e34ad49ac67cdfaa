/* fake_device.c: see fake_device.h. */
#include "fake_device.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

typedef struct cell {
    int32_t pos, token; /* pos -1: garbage */
    uint64_t chain;
} cell;

typedef struct fake_device {
    ea_device base;
    fake_world *world;
    cell *memory;   /* [n_pages][page_tokens] */
    int *writer;    /* [n_pages] sequence that writes the page in this step, -1 = none */
    int *n_readers; /* [n_pages] sequences of this step that have it in use */
    float *logits;  /* [max_logit_rows][n_vocab] */
} fake_device;

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u ^ (b + 0x7f4a7c15u);
    x ^= x >> 31;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 29;
    return x;
}

static int32_t predict(const fake_world *w, uint64_t chain)
{
    if (w->eog_every && mix(chain, 77) % (uint64_t)w->eog_every == 0)
        return FAKE_EOG;
    return 1 + (int32_t)(mix(chain, 1) % (uint64_t)(w->n_vocab - 1));
}

int fake_expect(const fake_world *w, const int32_t *prompt, int n_prompt, int n, int32_t *out)
{
    uint64_t chain = 0;
    for (int i = 0; i < n_prompt; i++)
        chain = mix(chain, (uint64_t)prompt[i]);
    for (int i = 0; i < n; i++) {
        out[i] = predict(w, chain);
        if (out[i] == FAKE_EOG)
            return i + 1;
        chain = mix(chain, (uint64_t)out[i]);
    }
    return n;
}

static cell *cell_at(const fake_device *d, const ea_seq *seq, int pos)
{
    int size = d->world->page_tokens, page;
    EA_ASSERT(pos / size < seq->n_pages);
    page = seq->pages[pos / size];
    EA_ASSERT(page >= 0 && page < d->world->n_pages);
    return &d->memory[page * size + pos % size];
}

/* Count who uses which page in this step, and who writes it. */
static void check_pages(fake_device *d, const ea_batch *batch)
{
    const fake_world *w = d->world;
    int size = w->page_tokens;
    for (int p = 0; p < w->n_pages; p++) {
        d->writer[p] = -1;
        d->n_readers[p] = 0;
    }
    for (int i = 0; i < batch->n_rows; i++) {
        const ea_row *row = &batch->rows[i];
        const ea_seq *seq = &batch->seqs[row->seq];
        bool last = i + 1 == batch->n_rows || batch->rows[i + 1].seq != row->seq;
        int page = seq->pages[row->pos[0] / size];
        EA_ASSERT(d->writer[page] < 0 || d->writer[page] == row->seq);
        d->writer[page] = row->seq;
        if (last)
            for (int k = 0; k <= row->pos[0] / size; k++)
                d->n_readers[seq->pages[k]]++;
    }
    for (int p = 0; p < w->n_pages; p++)
        EA_ASSERT(d->writer[p] < 0 || d->n_readers[p] == 1);
}

/* Everything before the sequence's first row must be an unbroken chain; returns its end. */
static uint64_t check_chain(const fake_device *d, const ea_seq *seq, int n)
{
    uint64_t chain = 0;
    for (int pos = 0; pos < n; pos++) {
        const cell *c = cell_at(d, seq, pos);
        EA_ASSERT(c->pos == pos);
        chain = mix(chain, (uint64_t)c->token);
        EA_ASSERT(c->chain == chain);
    }
    return chain;
}

static uint64_t chain_before(const fake_device *d, const ea_seq *seq, int n, bool check)
{
    if (check || n == 0)
        return check_chain(d, seq, n);
    EA_ASSERT(cell_at(d, seq, n - 1)->pos == n - 1);
    return cell_at(d, seq, n - 1)->chain;
}

static void run_rows(fake_device *d, ea_batch *batch, uint64_t *n_attn, int *n_out)
{
    const fake_world *w = d->world;
    uint64_t chain = 0;
    int seq_before = -1;
    bool check = atomic_load(&w->n_steps) % (unsigned)w->check_every == 0;
    for (int i = 0; i < batch->n_rows; i++) {
        ea_row *row = &batch->rows[i];
        const ea_seq *seq = &batch->seqs[row->seq];
        EA_ASSERT(row->seq == seq_before || row->seq == seq_before + 1);
        if (row->seq != seq_before)
            chain = chain_before(d, seq, row->pos[0], check);
        else
            EA_ASSERT(row->pos[0] == batch->rows[i - 1].pos[0] + 1);
        seq_before = row->seq;
        EA_ASSERT(row->token >= 0 && row->token < w->n_vocab);
        chain = mix(chain, (uint64_t)row->token);
        *cell_at(d, seq, row->pos[0]) = (cell){row->pos[0], row->token, chain};
        *n_attn += (uint64_t)row->pos[0] + 1;
        if (row->want == EA_WANT_NONE)
            continue;
        EA_ASSERT(*n_out < w->max_logit_rows);
        row->argmax = predict(w, chain);
        if (row->want == EA_WANT_LOGITS) {
            float *logits = d->logits + (size_t)*n_out * (size_t)w->n_vocab;
            for (int t = 0; t < w->n_vocab; t++)
                logits[t] = (float)(mix(chain, 1000u + (uint64_t)t) % 4096) / 1024;
            logits[row->argmax] = 8;
            row->logits = logits;
        }
        ++*n_out;
    }
}

static ea_status fake_step(ea_device *dev, ea_batch *batch, ea_error *err)
{
    fake_device *d = (fake_device *)dev;
    fake_world *w = d->world;
    uint64_t n_attn = 0;
    int n_out = 0;
    EA_ASSERT(batch->n_rows > 0 && batch->n_rows <= w->max_rows);
    check_pages(d, batch);
    run_rows(d, batch, &n_attn, &n_out);
    EA_ASSERT(batch->rows[batch->n_rows - 1].seq == batch->n_seqs - 1);
    uint64_t n = (uint64_t)batch->n_rows, step = atomic_fetch_add(&w->n_steps, 1) + 1;
    atomic_fetch_add(&w->now_ns, w->base_ns + n * w->row_ns + n_attn * w->attn_ns +
                                     (uint64_t)n_out * w->out_ns);
    atomic_fetch_add(&w->n_rows, n);
    atomic_fetch_add(&w->n_out_rows, (uint64_t)n_out);
    atomic_store(&w->n_seqs_last, batch->n_seqs);
    if (batch->n_rows > atomic_load(&w->max_rows_of_step))
        atomic_store(&w->max_rows_of_step, batch->n_rows);
    if (w->real_ns)
        ea_sleep_ns(w->real_ns);
    if ((long long)step == atomic_load(&w->fail_step)) {
        /* As the contract says: what the rows wrote is undefined. */
        for (int i = 0; i < batch->n_rows; i++)
            cell_at(d, &batch->seqs[batch->rows[i].seq], batch->rows[i].pos[0])->pos = -1;
        return ea_fail(err, EA_EIO, "fake device: step %llu fails", (unsigned long long)step);
    }
    return EA_OK;
}

static void fake_copy_page(ea_device *dev, int32_t dst, int32_t src, int n_pos)
{
    fake_device *d = (fake_device *)dev;
    int size = d->world->page_tokens;
    EA_ASSERT(dst != src && n_pos > 0 && n_pos <= size);
    for (int i = 0; i < size; i++)
        d->memory[dst * size + i] = i < n_pos ? d->memory[src * size + i] : (cell){-1, -1, 0};
    atomic_fetch_add(&d->world->n_copies, 1);
}

static void fake_destroy(ea_device *dev)
{
    fake_device *d = (fake_device *)dev;
    ea_free(d->memory);
    ea_free(d->writer);
    ea_free(d->n_readers);
    ea_free(d->logits);
    ea_free(d);
}

static const ea_device_ops OPS = {fake_step, fake_copy_page, fake_destroy};

ea_device *fake_device_create(fake_world *w)
{
    fake_device *d = ea_calloc(1, sizeof *d);
    size_t n_pages = (size_t)w->n_pages;
    EA_ASSERT(d);
    d->base.ops = &OPS;
    d->base.info = (ea_device_info){.name = "fake",
                                    .n_vocab = w->n_vocab,
                                    .n_embd = 1,
                                    .page_tokens = w->page_tokens,
                                    .n_pages = w->n_pages,
                                    .page_bytes = sizeof(cell) * (size_t)w->page_tokens,
                                    .max_rows = w->max_rows,
                                    .max_logit_rows = w->max_logit_rows,
                                    .n_threads = 1};
    d->world = w;
    d->memory = ea_malloc(n_pages * (size_t)w->page_tokens * sizeof *d->memory);
    d->writer = ea_calloc(n_pages, sizeof *d->writer);
    d->n_readers = ea_calloc(n_pages, sizeof *d->n_readers);
    d->logits = ea_calloc((size_t)w->max_logit_rows * (size_t)w->n_vocab, sizeof *d->logits);
    EA_ASSERT(d->memory && d->writer && d->n_readers && d->logits);
    memset(d->memory, 0xff, n_pages * (size_t)w->page_tokens * sizeof *d->memory);
    return &d->base;
}

fake_world fake_world_default(void)
{
    return (fake_world){.n_vocab = 97,
                        .check_every = 1,
                        .page_tokens = 8,
                        .n_pages = 64,
                        .max_rows = 512,
                        .max_logit_rows = 32,
                        .base_ns = 5000000,
                        .row_ns = 1000000,
                        .attn_ns = 500,
                        .out_ns = 100000};
}
