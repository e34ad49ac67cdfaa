/* parse.c: one GGUF file's bytes -> keys and tensors. Everything read is hostile: each length is
 * compared with what is left of the file before it is used, each count with the number of records
 * that could fit in the rest, so memory stays within a small multiple of the file's size.
 *
 * Layout (v2 and v3): magic u32, version u32, tensor count u64, key count u64; keys: name, type
 * u32, value; tensors: name, number of dimensions u32, that many u64, type u32, offset u64; padding
 * to the alignment; data. Strings are a u64 length and bytes. */
#include "gguf/internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"

enum {
    MIN_KV_BYTES = 8 + 1 + 4 + 1,         /* one-byte name, one-byte value */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8, /* one-byte name, no dimension */
};

/* Position in a file, and the record being read, for messages. */
typedef struct cursor {
    ea_gguf_file *file;
    const char *path;
    const uint8_t *data;
    size_t n, pos;
    size_t n_have;      /* of n; the rest is fetched from the file when it is asked for */
    const char *record; /* "key", "tensor", or NULL in the header */
    uint64_t index;
    ea_str name; /* of the record, once known */
    ea_error *err;
} cursor;

/* "PATH: key 3 'general.name': MESSAGE" */
static ea_status EA_PRINTF(3, 4) refuse(const cursor *c, ea_status code, const char *fmt, ...)
{
    char what[256], where[160] = "";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (c->record && c->name.n)
        snprintf(where, sizeof where, "%s '%.*s': ", c->record, (int)EA_MIN(c->name.n, 96u),
                 c->name.s);
    else if (c->record)
        snprintf(where, sizeof where, "%s %" PRIu64 ": ", c->record, c->index);
    return ea_fail(c->err, code, "%s: %s%s", c->path, where, what);
}

static size_t left(const cursor *c)
{
    return c->n - c->pos;
}

/* The next n bytes of the file. */
static ea_status take(cursor *c, uint64_t n, const char *what, const uint8_t **out)
{
    if (n > left(c))
        return refuse(c, EA_EFORMAT,
                      "%s of %" PRIu64 " bytes at byte %zu does not fit in the file of %zu bytes",
                      what, n, c->pos, c->n);
    if (n > c->n_have - c->pos) {
        EA_TRY(ea_gguf_head_fetch(c->file, c->pos + (size_t)n, c->err));
        c->n_have = c->file->n_head;
    }
    *out = c->data + c->pos;
    c->pos += (size_t)n;
    return EA_OK;
}

static ea_status take_u32(cursor *c, const char *what, uint32_t *out)
{
    const uint8_t *p = NULL;
    EA_TRY(take(c, 4, what, &p));
    *out = ea_load_u32(p);
    return EA_OK;
}

static ea_status take_u64(cursor *c, const char *what, uint64_t *out)
{
    const uint8_t *p = NULL;
    EA_TRY(take(c, 8, what, &p));
    *out = ea_load_u64(p);
    return EA_OK;
}

static ea_status take_str(cursor *c, const char *what, ea_str *out)
{
    uint64_t n;
    const uint8_t *p = NULL;
    EA_TRY(take_u64(c, "string length", &n));
    EA_TRY(take(c, n, what, &p));
    *out = (ea_str){(const char *)p, (size_t)n};
    return EA_OK;
}

/* Names end up in messages and tables: text without control characters, of bounded length. */
static ea_status take_name(cursor *c, size_t max, ea_str *out)
{
    ea_str name;
    EA_TRY(take_str(c, "name", &name));
    if (name.n == 0)
        return refuse(c, EA_EFORMAT, "empty name");
    if (name.n > max)
        return refuse(c, EA_EFORMAT, "name of %zu bytes is longer than %zu", name.n, max);
    for (size_t i = 0; i < name.n;) {
        size_t len = ea_utf8_valid_len(name.s + i, name.n - i);
        if (!len || (unsigned char)name.s[i] < 0x20 || name.s[i] == 0x7f)
            return refuse(c, EA_EFORMAT, "byte 0x%02x at %zu of the name is not text",
                          (unsigned char)name.s[i], i);
        i += len;
    }
    *out = name;
    return EA_OK;
}

/* A count from the header, before anything is allocated for it. */
static ea_status check_count(const cursor *c, const char *what, uint64_t n, uint64_t max,
                             uint64_t min_bytes)
{
    if (n > left(c) / min_bytes)
        return refuse(c, EA_EFORMAT, "%s count %" PRIu64 " does not fit in the file of %zu bytes",
                      what, n, c->n);
    if (n > max)
        return refuse(c, EA_EFORMAT, "%s count %" PRIu64 " is more than %" PRIu64, what, n, max);
    return EA_OK;
}

/* ---- keys ---- */

static ea_status check_bools(const cursor *c, const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] > 1)
            return refuse(c, EA_EFORMAT, "bool value %u is neither 0 nor 1", p[i]);
    return EA_OK;
}

/* The offsets are what makes strings of an array reachable by index. Each string takes at least its
 * length field, so they are backed by the file. */
static ea_status parse_str_array(cursor *c, ea_gguf_kv *kv)
{
    if (kv->n > left(c) / 8)
        return refuse(c, EA_EFORMAT,
                      "array of %" PRIu64
                      " strings at byte %zu does not fit in the file of %zu bytes",
                      kv->n, c->pos, c->n);
    kv->str_offs = ea_malloc((size_t)kv->n * sizeof *kv->str_offs);
    if (!kv->str_offs)
        return refuse(c, EA_ENOMEM, "out of memory: array of %" PRIu64 " strings", kv->n);
    kv->value = c->data + c->pos;
    for (uint64_t i = 0; i < kv->n; i++) {
        ea_str s;
        kv->str_offs[i] = (uint64_t)(c->data + c->pos - kv->value);
        EA_TRY(take_str(c, "array string", &s));
    }
    return EA_OK;
}

static ea_status parse_array(cursor *c, ea_gguf_kv *kv)
{
    uint32_t elem;
    EA_TRY(take_u32(c, "array type", &elem));
    EA_TRY(take_u64(c, "array count", &kv->n));
    kv->elem = (ea_gguf_type)elem;
    if (elem == EA_GGUF_STRING)
        return parse_str_array(c, kv);
    if (elem == EA_GGUF_ARRAY)
        return refuse(c, EA_EUNSUPPORTED, "arrays of arrays are not supported");
    size_t size = ea_gguf_type_bytes(elem);
    if (!size)
        return refuse(c, EA_EFORMAT, "array element type %" PRIu32 " is unknown", elem);
    if (kv->n > left(c) / size)
        return refuse(c, EA_EFORMAT,
                      "array of %" PRIu64 " %s at byte %zu does not fit in the file of %zu bytes",
                      kv->n, ea_gguf_type_name(elem), c->pos, c->n);
    EA_TRY(take(c, kv->n * size, "array", &kv->value));
    return elem == EA_GGUF_BOOL ? check_bools(c, kv->value, kv->n) : EA_OK;
}

static ea_status parse_kv(cursor *c, ea_gguf_kv *kv)
{
    uint32_t type;
    EA_TRY(take_name(c, EA_MAX_GGUF_KEY, &kv->key));
    c->name = kv->key;
    EA_TRY(take_u32(c, "value type", &type));
    kv->type = (ea_gguf_type)type;
    if (type == EA_GGUF_ARRAY)
        return parse_array(c, kv);
    if (type == EA_GGUF_STRING) {
        ea_str s;
        EA_TRY(take_str(c, "string", &s));
        kv->value = (const uint8_t *)s.s;
        kv->n = s.n;
        return EA_OK;
    }
    size_t size = ea_gguf_type_bytes(type);
    if (!size)
        return refuse(c, EA_EFORMAT, "value type %" PRIu32 " is unknown", type);
    EA_TRY(take(c, size, "value", &kv->value));
    return type == EA_GGUF_BOOL ? check_bools(c, kv->value, 1) : EA_OK;
}

static ea_status parse_kvs(cursor *c, uint64_t n, ea_gguf_part *part)
{
    EA_TRY(check_count(c, "key", n, EA_MAX_GGUF_KEYS, MIN_KV_BYTES));
    part->kvs = ea_calloc((size_t)n, sizeof *part->kvs);
    if (!part->kvs)
        return refuse(c, EA_ENOMEM, "out of memory: %" PRIu64 " keys", n);
    EA_TRY(ea_gguf_table_init(&part->kv_table, (size_t)n, c->err));
    c->record = "key";
    for (size_t i = 0; i < n; i++) {
        c->index = i;
        c->name = (ea_str){NULL, 0};
        part->n_kvs = i + 1; /* a half-read key may already own its offsets */
        EA_TRY(parse_kv(c, &part->kvs[i]));
        if (ea_gguf_table_insert(&part->kv_table, part->kvs, sizeof *part->kvs, i) >= 0)
            return refuse(c, EA_EFORMAT, "the file has this key twice");
    }
    c->record = NULL;
    return EA_OK;
}

static ea_status find_alignment(const cursor *c, const ea_gguf_part *part, uint32_t *out)
{
    static const char key[] = "general.alignment";
    int64_t i = ea_gguf_table_find(&part->kv_table, part->kvs, sizeof *part->kvs,
                                   (ea_str){key, sizeof key - 1});
    if (i < 0) {
        *out = EA_GGUF_DEFAULT_ALIGNMENT;
        return EA_OK;
    }
    const ea_gguf_kv *kv = &part->kvs[i];
    if (kv->type != EA_GGUF_U32)
        return refuse(c, EA_EFORMAT, "key '%s' has type %s, expected u32", key,
                      ea_gguf_type_name(kv->type));
    uint32_t alignment = ea_load_u32(kv->value);
    if (alignment == 0 || (alignment & (alignment - 1)) || alignment > EA_MAX_GGUF_ALIGNMENT)
        return refuse(c, EA_EFORMAT, "key '%s': %" PRIu32 " is not a power of two up to %u", key,
                      alignment, EA_MAX_GGUF_ALIGNMENT);
    *out = alignment;
    return EA_OK;
}

/* ---- tensors ---- */

/* Formats that exist but that this build has no conversions for, so that the message says more than
 * a number. */
static const char *unsupported_format(uint32_t id)
{
    static const struct {
        uint32_t id;
        const char *name;
    } known[] = {
        {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
        {19, "IQ1_S"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"}, {29, "IQ1_M"},
        {34, "TQ1_0"}, {35, "TQ2_0"}, {39, "MXFP4"},
    };
    for (size_t i = 0; i < EA_ARRAY_LEN(known); i++)
        if (known[i].id == id)
            return known[i].name;
    return NULL;
}

static ea_status check_type(const cursor *c, uint32_t id, const ea_dtype_info **out)
{
    *out = ea_dtype_find(id);
    if (*out)
        return EA_OK;
    const char *name = unsupported_format(id);
    if (name)
        return refuse(c, EA_EUNSUPPORTED, "type %" PRIu32 " (%s) is not supported", id, name);
    return refuse(c, EA_EFORMAT, "type %" PRIu32 " is unknown", id);
}

/* Dimensions, element count and bytes, none of which may wrap. */
static ea_status parse_shape(cursor *c, ea_gguf_tensor *t)
{
    uint32_t n_dims;
    EA_TRY(take_u32(c, "dimension count", &n_dims));
    if (n_dims > EA_MAX_TENSOR_DIMS)
        return refuse(c, EA_EFORMAT, "%" PRIu32 " dimensions, at most %d are possible", n_dims,
                      EA_MAX_TENSOR_DIMS);
    t->n_dims = (int)n_dims;
    int64_t n_elems = 1;
    for (uint32_t d = 0; d < EA_MAX_TENSOR_DIMS; d++) {
        t->ne[d] = 1;
        if (d >= n_dims)
            continue;
        uint64_t ne;
        EA_TRY(take_u64(c, "dimension", &ne));
        if (ne == 0 || ne > INT64_MAX)
            return refuse(c, EA_EFORMAT, "dimension %" PRIu32 " is %" PRIu64, d, ne);
        t->ne[d] = (int64_t)ne;
        if (__builtin_mul_overflow(n_elems, t->ne[d], &n_elems))
            return refuse(c, EA_EFORMAT,
                          "dimension %" PRIu32 " of %" PRIu64 " makes too many elements", d, ne);
    }
    uint32_t type;
    const ea_dtype_info *info;
    EA_TRY(take_u32(c, "type", &type));
    EA_TRY(check_type(c, type, &info));
    t->type = info->type;
    if (t->ne[0] % info->block)
        return refuse(c, EA_EFORMAT,
                      "rows of %" PRId64 " elements are no multiple of %s's block of %d", t->ne[0],
                      info->name, info->block);
    if (__builtin_mul_overflow((uint64_t)(n_elems / info->block), (uint64_t)info->block_bytes,
                               &t->n_bytes))
        return refuse(c, EA_EFORMAT, "%" PRId64 " elements of %s are too many bytes", n_elems,
                      info->name);
    return EA_OK;
}

/* t->data cannot be set before the data section's start is known: offset is returned apart. */
static ea_status parse_tensor(cursor *c, ea_gguf_tensor *t, uint64_t *offset)
{
    EA_TRY(take_name(c, EA_MAX_GGUF_NAME, &t->name));
    c->name = t->name;
    EA_TRY(parse_shape(c, t));
    return take_u64(c, "offset", offset);
}

typedef struct extent {
    uint64_t from, to; /* bytes of the data section */
    size_t tensor;
} extent;

static int compare_extents(const void *a, const void *b)
{
    const extent *x = a, *y = b;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to;
}

/* Every tensor lies inside the file, aligned, and no two overlap (gaps are fine). */
static ea_status place_tensors(cursor *c, ea_gguf_part *part, extent *extents, uint32_t alignment)
{
    size_t n = part->n_tensors;
    uint64_t start = ((uint64_t)c->pos + alignment - 1) & ~(uint64_t)(alignment - 1);
    c->record = "tensor";
    for (size_t i = 0; i < n; i++) {
        ea_gguf_tensor *t = &part->tensors[i];
        uint64_t from = extents[i].from, at, end;
        c->name = t->name;
        if (from % alignment)
            return refuse(c, EA_EFORMAT,
                          "offset %" PRIu64 " is no multiple of the alignment %" PRIu32, from,
                          alignment);
        if (__builtin_add_overflow(start, from, &at) ||
            __builtin_add_overflow(at, t->n_bytes, &end) || end > c->n)
            return refuse(c, EA_EFORMAT,
                          "%" PRIu64 " bytes at offset %" PRIu64
                          " of the data (which starts at byte "
                          "%" PRIu64 ") run past the end of the file of %zu bytes",
                          t->n_bytes, from, start, c->n);
        t->data = c->file->map.data + at;
        extents[i].to = from + t->n_bytes;
    }
    qsort(extents, n, sizeof *extents, compare_extents);
    for (size_t i = 1; i < n; i++)
        if (extents[i].from < extents[i - 1].to) {
            ea_str other = part->tensors[extents[i - 1].tensor].name;
            c->name = part->tensors[extents[i].tensor].name;
            return refuse(c, EA_EFORMAT, "offset %" PRIu64 " overlaps tensor '%.*s'",
                          extents[i].from, (int)other.n, other.s);
        }
    c->record = NULL;
    return EA_OK;
}

static ea_status parse_tensors(cursor *c, uint64_t n, int file_index, ea_gguf_part *part)
{
    EA_TRY(check_count(c, "tensor", n, EA_MAX_GGUF_TENSORS, MIN_TENSOR_BYTES));
    uint32_t alignment = 0;
    EA_TRY(find_alignment(c, part, &alignment));
    ea_status status = EA_OK;
    ea_gguf_table table = {NULL, NULL, 0, 0};
    extent *extents = ea_malloc((size_t)n * sizeof *extents);
    part->tensors = ea_calloc((size_t)n, sizeof *part->tensors);
    if (!extents || !part->tensors) {
        status = refuse(c, EA_ENOMEM, "out of memory: %" PRIu64 " tensors", n);
        goto fail;
    }
    EA_TRY_GOTO(ea_gguf_table_init(&table, (size_t)n, c->err));
    for (size_t i = 0; i < n; i++) {
        ea_gguf_tensor *t = &part->tensors[i];
        c->record = "tensor";
        c->index = i;
        c->name = (ea_str){NULL, 0};
        EA_TRY_GOTO(parse_tensor(c, t, &extents[i].from));
        extents[i].tensor = i;
        t->file = file_index;
        if (ea_gguf_table_insert(&table, part->tensors, sizeof *part->tensors, i) >= 0) {
            status = refuse(c, EA_EFORMAT, "the file has two tensors of this name");
            goto fail;
        }
    }
    part->n_tensors = (size_t)n;
    EA_TRY_GOTO(place_tensors(c, part, extents, alignment));
fail:
    ea_gguf_table_done(&table);
    ea_free(extents);
    return status;
}

/* ---- the file ---- */

static ea_status parse_header(cursor *c, uint64_t *n_tensors, uint64_t *n_kvs)
{
    uint32_t magic, version;
    EA_TRY(take_u32(c, "magic", &magic));
    if (magic != EA_GGUF_MAGIC)
        return refuse(c, EA_EFORMAT, "not a GGUF file: magic is 0x%08" PRIx32 ", expected 0x%08x",
                      magic, EA_GGUF_MAGIC);
    EA_TRY(take_u32(c, "version", &version));
    if (version != 2 && version != 3) {
        uint32_t swapped = __builtin_bswap32(version);
        if (swapped >= 1 && swapped <= 3)
            return refuse(c, EA_EUNSUPPORTED,
                          "version %" PRIu32
                          " in big-endian byte order: such files are not supported",
                          swapped);
        return refuse(c, EA_EUNSUPPORTED, "version %" PRIu32 " is not supported, only 2 and 3 are",
                      version);
    }
    EA_TRY(take_u64(c, "tensor count", n_tensors));
    return take_u64(c, "key count", n_kvs);
}

ea_status ea_gguf_parse(ea_gguf_file *file, int file_index, ea_gguf_part *out, ea_error *err)
{
    bool in_memory = file->source != EA_GGUF_FILE;
    cursor c = {.file = file,
                .path = file->path,
                .data = in_memory ? file->map.data : file->head,
                .n = file->map.n_bytes,
                .n_have = in_memory ? file->map.n_bytes : file->n_head,
                .err = err};
    ea_gguf_part part = {.kvs = NULL};
    uint64_t n_tensors, n_kvs;
    ea_status status;
    EA_TRY_GOTO(parse_header(&c, &n_tensors, &n_kvs));
    EA_TRY_GOTO(parse_kvs(&c, n_kvs, &part));
    EA_TRY_GOTO(parse_tensors(&c, n_tensors, file_index, &part));
    *out = part;
    return EA_OK;
fail:
    ea_gguf_part_done(&part);
    return status;
}

void ea_gguf_part_done(ea_gguf_part *part)
{
    for (size_t i = 0; i < part->n_kvs; i++)
        ea_free(part->kvs[i].str_offs);
    ea_free(part->kvs);
    ea_gguf_table_done(&part->kv_table);
    ea_free(part->tensors);
    *part = (ea_gguf_part){.kvs = NULL};
}
