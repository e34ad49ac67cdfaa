/* matmul.c: packed matrices and activation buffers, whatever the instruction set: geometry, checks,
 * memory layout. The products themselves are in the instruction-set folders. */
#include "kernel/matmul.h"

#include <string.h>

#include "base/limits.h"
#include "kernel/table.h"

/* Bytes of a tile over k inputs, a multiple of 64. */
static size_t tile_bytes(const ea_tile_layout *l, int k)
{
    size_t n;
    if (l->form != EA_FORM_F32)
        n = ea_layout_front(l, k) + ea_layout_n_sb(l, k) * ea_layout_sb_bytes(l);
    else
        n = ea_dtype_row_bytes(l->type, k) * EA_TILE_N;
    return (n + 63) / 64 * 64;
}

double ea_matrix_cut(const ea_matrix *m, int n_rows, int *unit)
{
    const ea_matmul_impl *impl = m->impl;
    bool matrix_unit = impl->unit_rows && n_rows >= impl->unit_rows;
    *unit = matrix_unit ? impl->unit_tiles : 1;
    /* Right orders of magnitude on any machine: 10 bytes of weights, 60 multiply-adds. */
    double read_ns = (double)m->tile_bytes / 10.0;
    double compute_ns = (double)n_rows * EA_TILE_N * m->k / (matrix_unit ? impl->unit_speed : 60);
    return EA_MAX(read_ns, compute_ns);
}

void ea_matrix_init_impl(ea_matrix *m, const ea_matmul_impl *impl, int n, int k, size_t *n_bytes)
{
    /* No overflow within the limits of ea_matrix_init: tiles <= 2^18, bytes of a tile <= 2^24. */
    *m = (ea_matrix){.type = impl->layout->type,
                     .n = n,
                     .k = k,
                     .n_tiles = (n + EA_TILE_N - 1) / EA_TILE_N,
                     .tile_bytes = tile_bytes(impl->layout, k),
                     .impl = impl};
    *n_bytes = (size_t)m->n_tiles * m->tile_bytes;
}

ea_status ea_matrix_init(ea_matrix *m, ea_dtype type, int n, int k, size_t *n_bytes, ea_error *err)
{
    const ea_dtype_info *info = ea_dtype_find((uint32_t)type);
    const ea_matmul_impl *impl = ea_kernel_matmul(ea_kernel(), type);
    if (!info || !impl)
        return ea_fail(err, EA_EUNSUPPORTED, "type %s (%d) has no matrix kernel",
                       info ? info->name : "unknown", (int)type);
    if (n < 1 || k < 1 || n > EA_MAX_VOCAB || k > EA_MAX_EMBD)
        return ea_fail(err, EA_EUNSUPPORTED, "matrix of %d x %d is not in 1..%d x 1..%d", n, k,
                       EA_MAX_VOCAB, EA_MAX_EMBD);
    if (k % info->block != 0)
        return ea_fail(err, EA_EUNSUPPORTED, "%d inputs are no multiple of %s's block of %d", k,
                       info->name, info->block);
    ea_matrix_init_impl(m, impl, n, k, n_bytes);
    return EA_OK;
}

/* Zero what the packer will not write: columns and blocks that are missing, and gaps. */
static void clear_unwritten(const ea_matrix *m, int n_cols, uint8_t *dst)
{
    const ea_tile_layout *l = m->impl->layout;
    bool blocks = l->form != EA_FORM_F32;
    if (n_cols < EA_TILE_N || (blocks && m->k / EA_Q8_K % l->sb_blocks)) {
        memset(dst, 0, m->tile_bytes);
        return;
    }
    size_t front = 0, front_used = 0, end = ea_dtype_row_bytes(m->type, m->k) * EA_TILE_N;
    if (blocks) {
        front = ea_layout_front(l, m->k);
        front_used = ea_layout_n_sb(l, m->k) * (size_t)l->front_bytes;
        end = front + ea_layout_n_sb(l, m->k) * ea_layout_sb_bytes(l);
    }
    memset(dst + front_used, 0, front - front_used);
    memset(dst + end, 0, m->tile_bytes - end);
}

void ea_matrix_pack_tile(const ea_matrix *m, int tile, const void *rows)
{
    EA_ASSERT(tile >= 0 && tile < m->n_tiles);
    size_t row_bytes = ea_dtype_row_bytes(m->type, m->k);
    int col0 = tile * EA_TILE_N, n_cols = EA_MIN(EA_TILE_N, m->n - col0);
    uint8_t *dst = m->data + (size_t)tile * m->tile_bytes;
    clear_unwritten(m, n_cols, dst);
    m->impl->layout->pack(m->k, n_cols, (const uint8_t *)rows + (size_t)col0 * row_bytes, row_bytes,
                          dst);
}

ea_acts_form ea_matrix_form(const ea_matrix *m)
{
    return m->impl->layout->form;
}

void ea_matmul(const ea_matmul_args *args)
{
    args->w->impl->run(args);
}

/* ---- activations ---- */

static size_t round_up(size_t n, size_t step)
{
    return (n + step - 1) / step * step;
}

static size_t f32_bytes(int max_rows, int k)
{
    return round_up((size_t)max_rows * round_up((size_t)k, EA_Q8_K) * sizeof(float), 64);
}

/* Bytes of one int8 form. */
static size_t q8_bytes(int max_rows, int k)
{
    size_t chunks = (round_up((size_t)k, EA_Q8_CHUNK) / EA_Q8_CHUNK);
    return round_up((size_t)max_rows, EA_ACTS_GROUP) * chunks * sizeof(struct ea_q8_chunk);
}

size_t ea_acts_bytes(int max_rows, int k, unsigned forms)
{
    size_t n = f32_bytes(max_rows, k);
    for (int form = EA_FORM_Q8; form < EA_N_FORMS; form++)
        if (forms >> form & 1)
            n += q8_bytes(max_rows, k);
    return n;
}

void ea_acts_init(ea_acts *a, int max_rows, int k, unsigned forms, void *mem)
{
    EA_ASSERT(!(forms >> EA_FORM_Q8K & 1) || k % EA_Q8_CHUNK == 0);
    *a = (ea_acts){.k = k,
                   .k_pad = (int)round_up((size_t)k, EA_Q8_K),
                   .max_rows = max_rows,
                   .forms = forms,
                   .f32 = mem};
    uint8_t *at = (uint8_t *)mem + f32_bytes(max_rows, k);
    for (int form = EA_FORM_Q8; form < EA_N_FORMS; form++)
        if (forms >> form & 1) {
            a->q8[form] = (struct ea_q8_chunk *)at;
            at += q8_bytes(max_rows, k);
        }
}
