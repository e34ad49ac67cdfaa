/* write.c: GGUF v3 files of keys and tensors whose rows a callback makes. Offsets and sizes are
 * known before a single row is made, so rows can be made in any order and by any thread. */
#include "gguf/internal.h"

#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/pool.h"

/* Rows that one worker claims at a time in write_memory: small enough to balance, large enough that
 * claiming costs nothing. */
enum { CHUNK_BYTES = 256 * 1024 };

typedef struct writer_tensor {
    char name[EA_MAX_GGUF_NAME + 1];
    ea_dtype type;
    int n_dims;
    int64_t ne[EA_MAX_TENSOR_DIMS];
    int64_t n_rows;
    size_t row_bytes;
    uint64_t offset; /* in the data section */
    ea_gguf_fill_fn fill;
    void *user;
    int first_chunk; /* write_memory: number of its first chunk, and rows of each */
    int64_t chunk_rows;
} writer_tensor;

struct ea_gguf_writer {
    ea_buf keys; /* encoded */
    uint64_t n_keys;
    writer_tensor *tensors;
    size_t n_tensors, cap_tensors;
    uint64_t data_bytes; /* padded */
    uint32_t alignment;
    ea_error err; /* first error of a put */
};

ea_status ea_gguf_writer_create(ea_gguf_writer **out, ea_error *err)
{
    ea_gguf_writer *w = ea_calloc(1, sizeof *w);
    if (!w)
        return ea_fail(err, EA_ENOMEM, "out of memory: GGUF writer");
    w->alignment = EA_GGUF_DEFAULT_ALIGNMENT;
    *out = w;
    return EA_OK;
}

void ea_gguf_writer_destroy(ea_gguf_writer *w)
{
    if (!w)
        return;
    ea_buf_done(&w->keys);
    ea_free(w->tensors);
    ea_free(w);
}

/* ---- keys ---- */

static void add_u32(ea_buf *buf, uint32_t v)
{
    ea_buf_add(buf, &v, sizeof v);
}

static void add_u64(ea_buf *buf, uint64_t v)
{
    ea_buf_add(buf, &v, sizeof v);
}

static void add_str(ea_buf *buf, const char *s)
{
    add_u64(buf, strlen(s));
    ea_buf_add(buf, s, strlen(s));
}

static void begin_key(ea_gguf_writer *w, const char *key, ea_gguf_type type)
{
    if (!*key || strlen(key) > EA_MAX_GGUF_KEY)
        (void)ea_fail(&w->err, EA_EINVAL, "GGUF writer: key '%s': its length is not in 1..%d", key,
                      EA_MAX_GGUF_KEY);
    add_str(&w->keys, key);
    add_u32(&w->keys, (uint32_t)type);
    w->n_keys++;
}

/* The low bytes of the value, once it is known to fit the type. */
static void add_int(ea_gguf_writer *w, const char *key, ea_gguf_type type, int64_t value)
{
    static const struct {
        int64_t min, max;
    } ranges[] = {
        [EA_GGUF_U8] = {0, UINT8_MAX},
        [EA_GGUF_I8] = {INT8_MIN, INT8_MAX},
        [EA_GGUF_U16] = {0, UINT16_MAX},
        [EA_GGUF_I16] = {INT16_MIN, INT16_MAX},
        [EA_GGUF_U32] = {0, UINT32_MAX},
        [EA_GGUF_I32] = {INT32_MIN, INT32_MAX},
        [EA_GGUF_BOOL] = {0, 1},
        [EA_GGUF_U64] = {0, INT64_MAX},
        [EA_GGUF_I64] = {INT64_MIN, INT64_MAX},
    };
    if ((size_t)type >= EA_ARRAY_LEN(ranges) || ranges[type].max == 0)
        (void)ea_fail(&w->err, EA_EINVAL, "GGUF writer: key '%s': type %d is no integer type", key,
                      (int)type);
    else if (value < ranges[type].min || value > ranges[type].max)
        (void)ea_fail(&w->err, EA_EINVAL, "GGUF writer: key '%s': %" PRId64 " does not fit %s", key,
                      value, ea_gguf_type_name(type));
    else
        ea_buf_add(&w->keys, &value, ea_gguf_type_bytes(type));
}

void ea_gguf_put_int(ea_gguf_writer *w, const char *key, ea_gguf_type type, int64_t value)
{
    begin_key(w, key, type);
    add_int(w, key, type, value);
    if (strcmp(key, "general.alignment") != 0)
        return;
    if (value <= 0 || value > EA_MAX_GGUF_ALIGNMENT || (value & (value - 1)) || w->n_tensors)
        (void)ea_fail(&w->err, EA_EINVAL,
                      "GGUF writer: general.alignment %" PRId64
                      ": not a power of two up to %u, or tensors were declared before",
                      value, EA_MAX_GGUF_ALIGNMENT);
    else
        w->alignment = (uint32_t)value;
}

void ea_gguf_put_float(ea_gguf_writer *w, const char *key, float value)
{
    begin_key(w, key, EA_GGUF_F32);
    ea_buf_add(&w->keys, &value, sizeof value);
}

void ea_gguf_put_bool(ea_gguf_writer *w, const char *key, bool value)
{
    begin_key(w, key, EA_GGUF_BOOL);
    ea_buf_putc(&w->keys, value ? 1 : 0);
}

void ea_gguf_put_str(ea_gguf_writer *w, const char *key, const char *value)
{
    begin_key(w, key, EA_GGUF_STRING);
    add_str(&w->keys, value);
}

static void begin_array(ea_gguf_writer *w, const char *key, ea_gguf_type elem, size_t n)
{
    begin_key(w, key, EA_GGUF_ARRAY);
    add_u32(&w->keys, (uint32_t)elem);
    add_u64(&w->keys, n);
}

void ea_gguf_put_str_array(ea_gguf_writer *w, const char *key, const char *const *values, size_t n)
{
    begin_array(w, key, EA_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        add_str(&w->keys, values[i]);
}

void ea_gguf_put_int_array(ea_gguf_writer *w, const char *key, ea_gguf_type type,
                           const int64_t *values, size_t n)
{
    begin_array(w, key, type, n);
    for (size_t i = 0; i < n; i++)
        add_int(w, key, type, values[i]);
}

void ea_gguf_put_float_array(ea_gguf_writer *w, const char *key, const float *values, size_t n)
{
    begin_array(w, key, EA_GGUF_F32, n);
    ea_buf_add(&w->keys, values, n * sizeof *values);
}

/* ---- tensors ---- */

static uint64_t pad(uint64_t n, uint32_t alignment)
{
    return (n + alignment - 1) & ~(uint64_t)(alignment - 1);
}

/* Name, dimensions and type of t are right and its bytes can be counted. */
static ea_status check_tensor(const char *name, ea_dtype type, int n_dims, const int64_t *ne,
                              writer_tensor *t, uint64_t *n_bytes, ea_error *err)
{
    const ea_dtype_info *info = ea_dtype_find((uint32_t)type);
    if (!*name || strlen(name) > EA_MAX_GGUF_NAME)
        return ea_fail(err, EA_EINVAL, "GGUF writer: tensor '%s': its name is not 1..%d bytes long",
                       name, EA_MAX_GGUF_NAME);
    if (!info || n_dims < 1 || n_dims > EA_MAX_TENSOR_DIMS)
        return ea_fail(err, EA_EINVAL, "GGUF writer: tensor '%s': type %d or %d dimensions", name,
                       (int)type, n_dims);
    *t = (writer_tensor){.type = type, .n_dims = n_dims, .n_rows = 1, .ne = {1, 1, 1, 1}};
    memcpy(t->name, name, strlen(name) + 1);
    for (int d = 0; d < n_dims; d++) {
        t->ne[d] = ne[d];
        if (ne[d] < 1 || (d > 0 && __builtin_mul_overflow(t->n_rows, ne[d], &t->n_rows)))
            return ea_fail(err, EA_EINVAL, "GGUF writer: tensor '%s': dimension %d of %" PRId64,
                           name, d, ne[d]);
    }
    if (ne[0] % info->block)
        return ea_fail(err, EA_EINVAL,
                       "GGUF writer: tensor '%s': rows of %" PRId64
                       " are no multiple of %s's block of %d",
                       name, ne[0], info->name, info->block);
    if (__builtin_mul_overflow((size_t)(ne[0] / info->block), (size_t)info->block_bytes,
                               &t->row_bytes) ||
        __builtin_mul_overflow((uint64_t)t->row_bytes, (uint64_t)t->n_rows, n_bytes) ||
        *n_bytes > UINT64_MAX / 2)
        return ea_fail(err, EA_EINVAL, "GGUF writer: tensor '%s': too many bytes", name);
    return EA_OK;
}

void ea_gguf_put_tensor(ea_gguf_writer *w, const char *name, ea_dtype type, int n_dims,
                        const int64_t *ne, ea_gguf_fill_fn fill, void *user)
{
    writer_tensor t;
    uint64_t n_bytes = 0;
    if (w->err.code != EA_OK)
        return;
    if (check_tensor(name, type, n_dims, ne, &t, &n_bytes, &w->err) != EA_OK)
        return;
    t.offset = w->data_bytes;
    t.fill = fill;
    t.user = user;
    uint64_t end;
    if (w->n_tensors == EA_MAX_GGUF_TENSORS ||
        __builtin_add_overflow(w->data_bytes, n_bytes, &end) || end > UINT64_MAX / 2) {
        (void)ea_fail(&w->err, EA_EINVAL,
                      "GGUF writer: tensor '%s': too many bytes or tensors in all", name);
        return;
    }
    if (ea_grow((void **)&w->tensors, &w->cap_tensors, w->n_tensors + 1, sizeof *w->tensors,
                &w->err) != EA_OK)
        return;
    w->tensors[w->n_tensors++] = t;
    w->data_bytes = pad(end, w->alignment);
}

/* Everything up to the data section, padding included. */
static ea_status encode_header(const ea_gguf_writer *w, ea_buf *out, ea_error *err)
{
    if (w->err.code != EA_OK)
        return ea_fail(err, w->err.code, "%s", w->err.text);
    add_u32(out, EA_GGUF_MAGIC);
    add_u32(out, 3);
    add_u64(out, w->n_tensors);
    add_u64(out, w->n_keys);
    ea_buf_add(out, w->keys.data, w->keys.n);
    for (size_t i = 0; i < w->n_tensors; i++) {
        const writer_tensor *t = &w->tensors[i];
        add_str(out, t->name);
        add_u32(out, (uint32_t)t->n_dims);
        for (int d = 0; d < t->n_dims; d++)
            add_u64(out, (uint64_t)t->ne[d]);
        add_u32(out, (uint32_t)t->type);
        add_u64(out, t->offset);
    }
    while (out->n % w->alignment && !out->failed)
        ea_buf_putc(out, '\0');
    if (w->keys.failed || out->failed)
        return ea_fail(err, EA_ENOMEM, "out of memory: GGUF header");
    return EA_OK;
}

static ea_status write_rows(const ea_gguf_writer *w, ea_file_out *out, ea_error *err)
{
    static const char zeros[64] = {0};
    size_t max = 1;
    for (size_t i = 0; i < w->n_tensors; i++)
        max = EA_MAX(max, w->tensors[i].row_bytes);
    char *row = ea_malloc(max);
    if (!row)
        return ea_fail(err, EA_ENOMEM, "out of memory: GGUF row of %zu bytes", max);
    for (size_t i = 0; i < w->n_tensors && !out->failed; i++) {
        const writer_tensor *t = &w->tensors[i];
        for (int64_t r = 0; r < t->n_rows && !out->failed; r++) {
            t->fill(t->user, r, row, t->row_bytes);
            ea_file_write(out, row, t->row_bytes, err);
        }
        uint64_t end = (uint64_t)t->row_bytes * (uint64_t)t->n_rows;
        for (uint64_t n = pad(end, w->alignment) - end; n > 0;) {
            size_t step = (size_t)EA_MIN(n, sizeof zeros);
            ea_file_write(out, zeros, step, err);
            n -= step;
        }
    }
    ea_free(row);
    return EA_OK; /* write errors stick in out */
}

ea_status ea_gguf_write_file(ea_gguf_writer *w, const char *path, ea_error *err)
{
    ea_buf header = EA_BUF_INIT;
    ea_file_out out;
    ea_status status;
    EA_TRY_GOTO(encode_header(w, &header, err));
    EA_TRY_GOTO(ea_file_create(path, &out, err));
    ea_file_write(&out, header.data, header.n, err);
    status = write_rows(w, &out, err);
    if (status != EA_OK)
        ea_file_abandon(&out);
    else
        status = ea_file_commit(&out, err);
fail:
    ea_buf_done(&header);
    return status;
}

/* ---- to memory ---- */

typedef struct memory_job {
    const ea_gguf_writer *w;
    uint8_t *data; /* start of the data section */
} memory_job;

/* Give each tensor its run of chunk numbers; returns how many there are in all. */
static int count_chunks(ea_gguf_writer *w)
{
    int64_t n = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        writer_tensor *t = &w->tensors[i];
        t->first_chunk = (int)n;
        t->chunk_rows = EA_MAX((int64_t)(CHUNK_BYTES / t->row_bytes), 1);
        /* A tensor of very many rows gets larger chunks rather than more than an int can count. */
        while ((t->n_rows - 1) / t->chunk_rows > INT32_MAX / EA_MAX_GGUF_TENSORS / 2)
            t->chunk_rows *= 2;
        n += (t->n_rows + t->chunk_rows - 1) / t->chunk_rows;
    }
    EA_ASSERT(n <= INT32_MAX);
    return (int)n;
}

static void fill_chunk(int chunk, void *arg)
{
    const memory_job *job = arg;
    size_t lo = 0, hi = job->w->n_tensors; /* the last tensor that starts at or before chunk */
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (job->w->tensors[mid].first_chunk <= chunk)
            lo = mid;
        else
            hi = mid;
    }
    const writer_tensor *t = &job->w->tensors[lo];
    int64_t row = (chunk - t->first_chunk) * t->chunk_rows;
    int64_t end = EA_MIN(row + t->chunk_rows, t->n_rows);
    for (; row < end; row++)
        t->fill(t->user, row, job->data + t->offset + (uint64_t)row * t->row_bytes, t->row_bytes);
}

ea_status ea_gguf_write_memory(ea_gguf_writer *w, int n_threads, void **out, size_t *n_bytes,
                               ea_error *err)
{
    ea_buf header = EA_BUF_INIT;
    ea_pool *pool = NULL;
    uint8_t *bytes = NULL;
    size_t n = 0;
    ea_status status;
    EA_TRY_GOTO(encode_header(w, &header, err));
    EA_TRY_GOTO(ea_pool_create(n_threads, &pool, err));
    n = header.n + (size_t)w->data_bytes;
    bytes = ea_pages_alloc(n);
    if (!bytes) {
        status = ea_fail(err, EA_ENOMEM, "out of memory: GGUF of %zu bytes", n);
        goto fail;
    }
    memcpy(bytes, header.data, header.n);
    memory_job job = {w, bytes + header.n};
    ea_pool_for(pool, count_chunks(w), 1, fill_chunk, &job);
    *out = bytes;
    *n_bytes = n;
fail:
    ea_pool_destroy(pool);
    ea_buf_done(&header);
    return status;
}
