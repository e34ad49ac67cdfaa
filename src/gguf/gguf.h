/* gguf.h: bounds-checked reader of GGUF files (v2, v3, split sets) over read-only mappings.
 * Specification: ggml docs/gguf.md. Every count, length, offset and product of the file is checked
 * before it is used; nothing is allocated from a number in the file that the file's own size does
 * not back. Errors name file, field and value. An open ea_gguf is immutable and may be shared
 * between threads; strings point into memory of its own. */
#ifndef EA_GGUF_GGUF_H
#define EA_GGUF_GGUF_H

#include "base/error.h"
#include "quant/quant.h"

typedef struct ea_gguf ea_gguf;

typedef enum ea_gguf_type {
    EA_GGUF_U8 = 0,
    EA_GGUF_I8,
    EA_GGUF_U16,
    EA_GGUF_I16,
    EA_GGUF_U32,
    EA_GGUF_I32,
    EA_GGUF_F32,
    EA_GGUF_BOOL,
    EA_GGUF_STRING,
    EA_GGUF_ARRAY,
    EA_GGUF_U64,
    EA_GGUF_I64,
    EA_GGUF_F64,
} ea_gguf_type;

typedef struct ea_str {
    const char *s;
    size_t n;
} ea_str; /* a view; not terminated */

typedef struct ea_gguf_tensor {
    ea_str name;
    ea_dtype type;
    int n_dims;
    int64_t ne[4]; /* ne[0] is the fastest dimension (a matrix has ne[0] = columns in, ne[1] = rows
                      out); rest 1 */
    const uint8_t *data; /* in the mapping: may be touched only where it is certain that nobody cuts
                            the file short; loading uses ea_gguf_tensor_read */
    uint64_t n_bytes;
    int file; /* which file of a split set, 0-based */
} ea_gguf_tensor;

/* Open path; if it is the first of a split set (split.count > 1), the others are found beside it by
 * the naming rule NAME-00001-of-0000N.gguf and all tensors appear as one. */
ea_status ea_gguf_open(const char *path, ea_gguf **out, ea_error *err) EA_MUST_CHECK;
/* The same over bytes in memory, which must stay until close. `name` stands for the path in errors.
 */
ea_status ea_gguf_open_memory(const char *name, const void *data, size_t n_bytes, ea_gguf **out,
                              ea_error *err) EA_MUST_CHECK;
/* The same; on success the bytes, which came from ea_pages_alloc, belong to the ea_gguf. */
ea_status ea_gguf_open_take(const char *name, void *pages, size_t n_bytes, ea_gguf **out,
                            ea_error *err) EA_MUST_CHECK;
void ea_gguf_close(ea_gguf *g);
size_t ea_gguf_taken_bytes(const ea_gguf *g); /* size of what was taken; 0 otherwise */
const char *ea_gguf_path(const ea_gguf *g);

size_t ea_gguf_n_tensors(const ea_gguf *g);
const ea_gguf_tensor *ea_gguf_tensor_at(const ea_gguf *g, size_t i);
const ea_gguf_tensor *ea_gguf_tensor_find(const ea_gguf *g, const char *name); /* NULL if absent */

/* n_bytes of the tensor from offset on: *out is buf (of n_bytes, filled from the file), or, where
 * the bytes are in memory anyway, where they lie (buf is not used). EA_EIO where the file cannot be
 * read or has become shorter since it was opened. Any thread. */
ea_status ea_gguf_tensor_read(const ea_gguf *g, const ea_gguf_tensor *t, size_t offset,
                              size_t n_bytes, void *buf, const uint8_t **out,
                              ea_error *err) EA_MUST_CHECK;
/* These bytes will be read soon: let the system fetch them meanwhile. */
void ea_gguf_tensor_prefetch(const ea_gguf *g, const ea_gguf_tensor *t, size_t offset,
                             size_t n_bytes);
/* These bytes will not be read again: let the system drop them. After ea_gguf_open_take they are
 * lost. */
void ea_gguf_tensor_release(const ea_gguf *g, const ea_gguf_tensor *t, size_t offset,
                            size_t n_bytes);

bool ea_gguf_has(const ea_gguf *g, const char *key);

/* Getters. EA_ENOTFOUND if absent, EA_EFORMAT if of another type or out of range; integers of any
 * width convert when the value fits. `reterr` style: *out is untouched on failure. */
ea_status ea_gguf_get_int(const ea_gguf *g, const char *key, int64_t min, int64_t max, int64_t *out,
                          ea_error *err) EA_MUST_CHECK;
ea_status ea_gguf_get_float(const ea_gguf *g, const char *key, double *out,
                            ea_error *err) EA_MUST_CHECK; /* finite */
ea_status ea_gguf_get_bool(const ea_gguf *g, const char *key, bool *out,
                           ea_error *err) EA_MUST_CHECK;
ea_status ea_gguf_get_str(const ea_gguf *g, const char *key, ea_str *out,
                          ea_error *err) EA_MUST_CHECK;

/* The same with a default where the key is absent; still an error where it is present and wrong. */
ea_status ea_gguf_get_int_or(const ea_gguf *g, const char *key, int64_t min, int64_t max,
                             int64_t fallback, int64_t *out, ea_error *err) EA_MUST_CHECK;
ea_status ea_gguf_get_float_or(const ea_gguf *g, const char *key, double fallback, double *out,
                               ea_error *err) EA_MUST_CHECK;
ea_status ea_gguf_get_bool_or(const ea_gguf *g, const char *key, bool fallback, bool *out,
                              ea_error *err) EA_MUST_CHECK;

/* Arrays. Element type and count; then elements one at a time (strings by view, numbers converted).
 */
typedef struct ea_gguf_array {
    ea_gguf_type type;
    uint64_t n;
    const uint8_t *data;      /* packed elements of fixed-size types, little-endian, unaligned */
    const uint64_t *str_offs; /* STRING: offset of each element's length field from data */
} ea_gguf_array;

ea_status ea_gguf_get_array(const ea_gguf *g, const char *key, ea_gguf_array *out,
                            ea_error *err) EA_MUST_CHECK;
ea_str ea_gguf_array_str(const ea_gguf_array *a, uint64_t i);   /* a->type is STRING, i < n */
int64_t ea_gguf_array_int(const ea_gguf_array *a, uint64_t i);  /* integer and bool types */
double ea_gguf_array_float(const ea_gguf_array *a, uint64_t i); /* F32, F64 and integer types */

/* ---- writer: tests and synthetic models ---- */

typedef struct ea_gguf_writer ea_gguf_writer;

ea_status ea_gguf_writer_create(ea_gguf_writer **out, ea_error *err) EA_MUST_CHECK;
void ea_gguf_writer_destroy(ea_gguf_writer *w);
/* Errors stick and are reported by the write calls. Strings are copied. */
void ea_gguf_put_int(ea_gguf_writer *w, const char *key, ea_gguf_type type, int64_t value);
void ea_gguf_put_float(ea_gguf_writer *w, const char *key, float value);
void ea_gguf_put_bool(ea_gguf_writer *w, const char *key, bool value);
void ea_gguf_put_str(ea_gguf_writer *w, const char *key, const char *value);
void ea_gguf_put_str_array(ea_gguf_writer *w, const char *key, const char *const *values, size_t n);
void ea_gguf_put_int_array(ea_gguf_writer *w, const char *key, ea_gguf_type type,
                           const int64_t *values, size_t n);
void ea_gguf_put_float_array(ea_gguf_writer *w, const char *key, const float *values, size_t n);
/* Declare a tensor; its bytes come from fill(user, row, dst, row_bytes), called row by row (a row
 * has ne[0] elements) while writing, possibly from several threads, so that models larger than
 * memory need no second copy. */
typedef void (*ea_gguf_fill_fn)(void *user, int64_t row, void *dst, size_t row_bytes);
void ea_gguf_put_tensor(ea_gguf_writer *w, const char *name, ea_dtype type, int n_dims,
                        const int64_t *ne, ea_gguf_fill_fn fill, void *user);
/* Write to a file (temporary name, then renamed: never half-written), or to memory (ea_pages_alloc,
 * freed by ea_pages_free with *n_bytes). */
ea_status ea_gguf_write_file(ea_gguf_writer *w, const char *path, ea_error *err) EA_MUST_CHECK;
ea_status ea_gguf_write_memory(ea_gguf_writer *w, int n_threads, void **out, size_t *n_bytes,
                               ea_error *err) EA_MUST_CHECK;

#endif
