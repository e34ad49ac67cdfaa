/* internal.h: what the files of gguf/ share; not for other folders. */
#ifndef EA_GGUF_INTERNAL_H
#define EA_GGUF_INTERNAL_H

#include "base/file.h"
#include "gguf/gguf.h"

#define EA_GGUF_MAGIC 0x46554747u /* "GGUF" read as little-endian u32 */
enum { EA_GGUF_DEFAULT_ALIGNMENT = 32 };

/* One key of the first file. Values lie in the mapping, unaligned. */
typedef struct ea_gguf_kv {
    ea_str key;
    ea_gguf_type type;
    ea_gguf_type elem;    /* ARRAY: type of the elements */
    const uint8_t *value; /* STRING: its bytes, ARRAY: the first element */
    uint64_t n;           /* STRING: bytes, ARRAY: elements */
    uint64_t *str_offs;   /* ARRAY of STRING: see ea_gguf_array; owned */
} ea_gguf_kv;

/* Name -> index, open addressing. The hash is seeded at random, so that a file cannot be made of
 * names that all collide. */
typedef struct ea_gguf_table {
    uint32_t *slots; /* index + 1; 0 = free */
    uint32_t *hashes;
    size_t mask;
    uint64_t seed;
} ea_gguf_table;

/* Where the bytes of a file come from. */
typedef enum ea_gguf_source {
    EA_GGUF_BORROWED, /* memory of the caller's */
    EA_GGUF_PAGES,    /* memory of ours, from ea_pages_alloc */
    EA_GGUF_FILE,     /* an open file, mapped */
} ea_gguf_source;

typedef struct ea_gguf_file {
    char *path;
    ea_file map; /* of sources in memory: data and n_bytes only */
    ea_gguf_source source;
    uint8_t *head; /* FILE: our copy of what comes before the tensors' data, filled as far as the
                      parser went; else NULL */
    size_t n_head; /* bytes of it that are there */
} ea_gguf_file;

struct ea_gguf {
    ea_gguf_file *files;
    size_t n_files;
    ea_gguf_kv *kvs;
    size_t n_kvs;
    ea_gguf_table kv_table;
    ea_gguf_tensor *tensors; /* of all files, in file order */
    size_t n_tensors;
    ea_gguf_table tensor_table;
};

/* What one file holds, before it becomes part of an ea_gguf. */
typedef struct ea_gguf_part {
    ea_gguf_kv *kvs;
    size_t n_kvs;
    ea_gguf_table kv_table;
    ea_gguf_tensor *tensors;
    size_t n_tensors;
} ea_gguf_part;

/* Room for n names. */
ea_status ea_gguf_table_init(ea_gguf_table *t, size_t n, ea_error *err) EA_MUST_CHECK;
void ea_gguf_table_done(ea_gguf_table *t);
/* Names are read as *(const ea_str *)(items + i * stride): both item structs begin with theirs.
 * Returns the index found, or -1. */
int64_t ea_gguf_table_find(const ea_gguf_table *t, const void *items, size_t stride, ea_str name);
/* Insert item i; returns the index of an item that already has its name, or -1 when it went in. */
int64_t ea_gguf_table_insert(ea_gguf_table *t, const void *items, size_t stride, size_t i);

/* Parse one file. Names and values point into its head, or into its bytes where these are in
 * memory; tensors' data into its mapping. On failure nothing is left in *out. */
ea_status ea_gguf_parse(ea_gguf_file *file, int file_index, ea_gguf_part *out,
                        ea_error *err) EA_MUST_CHECK;
/* Make the first n_bytes of the head readable, if they are not (source FILE). */
ea_status ea_gguf_head_fetch(ea_gguf_file *file, size_t n_bytes, ea_error *err) EA_MUST_CHECK;
void ea_gguf_part_done(ea_gguf_part *part);

/* Bytes of one element; 0 for STRING, ARRAY and unknown types. */
size_t ea_gguf_type_bytes(uint32_t type);
const char *ea_gguf_type_name(uint32_t type);

/* Little-endian loads from any address. */
static inline uint32_t ea_load_u32(const uint8_t *p)
{
    uint32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t ea_load_u64(const uint8_t *p)
{
    uint64_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF values are read as they lie");

#endif
