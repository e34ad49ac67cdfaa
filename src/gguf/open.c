/* open.c: an ea_gguf from one file, a split set, or bytes in memory; its tensors' bytes.
 *
 * Files. Keys, names and tensor descriptions are copied into memory of ours as the parser reaches
 * them, so that nothing that happens to the file later can reach them. Tensors' data is mapped, but
 * whoever loads a model reads it through ea_gguf_tensor_read: a file that is cut short meanwhile is
 * then an error and not a signal.
 *
 * Split sets: every file has split.no (0-based) and split.count; the first one's keys are the
 * model's; files are named NAME-00001-of-0000N.gguf (1-based). */
#include "gguf/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

/* Length of "-00001-of-00003.gguf". */
enum { SPLIT_SUFFIX = 20 };

/* Bytes of a header that are read at once. */
enum { HEAD_STEP = 1 << 20 };

static void file_done(ea_gguf_file *file)
{
    if (file->source == EA_GGUF_FILE) {
        ea_pages_free(file->head, file->map.n_bytes);
        ea_file_unmap(&file->map);
    } else if (file->source == EA_GGUF_PAGES) {
        ea_pages_free((void *)(uintptr_t)file->map.data, file->map.n_bytes);
    }
    ea_free(file->path);
}

/* Map the file at file->path. On failure the object is still to be done with file_done. */
static ea_status file_open(ea_gguf_file *file, ea_error *err)
{
    EA_TRY(ea_file_map(file->path, &file->map, err));
    file->source = EA_GGUF_FILE;
    file->head = ea_pages_reserve(file->map.n_bytes);
    if (!file->head)
        return ea_fail(err, EA_ENOMEM, "%s: out of memory: addresses for %zu bytes", file->path,
                       file->map.n_bytes);
    return EA_OK;
}

ea_status ea_gguf_head_fetch(ea_gguf_file *file, size_t n_bytes, ea_error *err)
{
    /* At least as much as a disk reads at once; a vocabulary of 150,000 words has 6 MB. */
    size_t want = EA_MAX(n_bytes, file->n_head + HEAD_STEP);
    size_t to = EA_MIN(want, file->map.n_bytes);
    if (to <= file->n_head)
        return EA_OK;
    if (!ea_pages_commit(file->head, to))
        return ea_fail(err, EA_ENOMEM, "%s: out of memory: header of %zu bytes", file->path, to);
    EA_TRY(ea_file_read_at(&file->map, file->path, file->n_head, file->head + file->n_head,
                           to - file->n_head, err));
    file->n_head = to;
    return EA_OK;
}

void ea_gguf_close(ea_gguf *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_kvs; i++)
        ea_free(g->kvs[i].str_offs);
    ea_free(g->kvs);
    ea_gguf_table_done(&g->kv_table);
    ea_free(g->tensors);
    ea_gguf_table_done(&g->tensor_table);
    for (size_t i = 0; i < g->n_files; i++)
        file_done(&g->files[i]);
    ea_free(g->files);
    ea_free(g);
}

/* Put the tensors of a parsed file behind those that are there. */
static ea_status append_tensors(ea_gguf *g, const ea_gguf_part *part, ea_error *err)
{
    size_t n = g->n_tensors + part->n_tensors;
    if (n > EA_MAX_GGUF_TENSORS)
        return ea_fail(err, EA_EFORMAT, "%s: tensor count %zu of the split set is more than %d",
                       ea_gguf_path(g), n, EA_MAX_GGUF_TENSORS);
    ea_gguf_tensor *grown = ea_realloc(g->tensors, n * sizeof *grown);
    if (!grown)
        return ea_fail(err, EA_ENOMEM, "%s: out of memory: %zu tensors", ea_gguf_path(g), n);
    if (part->n_tensors)
        memcpy(grown + g->n_tensors, part->tensors, part->n_tensors * sizeof *grown);
    g->tensors = grown;
    g->n_tensors = n;
    return EA_OK;
}

static ea_status index_tensors(ea_gguf *g, ea_error *err)
{
    EA_TRY(ea_gguf_table_init(&g->tensor_table, g->n_tensors, err));
    for (size_t i = 0; i < g->n_tensors; i++) {
        const ea_gguf_tensor *t = &g->tensors[i];
        int64_t other = ea_gguf_table_insert(&g->tensor_table, g->tensors, sizeof *t, i);
        if (other >= 0)
            return ea_fail(err, EA_EFORMAT, "%s: tensor '%.*s': %s has it too",
                           g->files[t->file].path, (int)t->name.n, t->name.s,
                           g->files[g->tensors[other].file].path);
    }
    return EA_OK;
}

/* An object around the first file, of which only the path is known. */
static ea_status create(const char *path, ea_gguf **out, ea_error *err)
{
    ea_gguf *g = ea_calloc(1, sizeof *g);
    ea_gguf_file *files = ea_calloc(1, sizeof *files);
    char *copy = ea_strdup(path);
    if (!g || !files || !copy) {
        ea_free(g);
        ea_free(files);
        ea_free(copy);
        return ea_fail(err, EA_ENOMEM, "%s: out of memory", path);
    }
    files[0].path = copy;
    g->files = files;
    g->n_files = 1;
    *out = g;
    return EA_OK;
}

static ea_status load_first(ea_gguf *g, ea_error *err)
{
    ea_gguf_part part;
    EA_TRY(ea_gguf_parse(&g->files[0], 0, &part, err));
    g->kvs = part.kvs;
    g->n_kvs = part.n_kvs;
    g->kv_table = part.kv_table;
    g->tensors = part.tensors;
    g->n_tensors = part.n_tensors;
    return EA_OK;
}

/* split.count and split.no of a file's keys, seen through an ea_gguf that borrows them. */
static ea_status split_keys(const ea_gguf *g, int64_t *count, int64_t *no, ea_error *err)
{
    EA_TRY(ea_gguf_get_int_or(g, "split.count", 0, EA_MAX_GGUF_SPLITS, 0, count, err));
    return ea_gguf_get_int_or(g, "split.no", 0, EA_MAX_GGUF_SPLITS - 1, 0, no, err);
}

/* Open and check file `index` of the set, whose name differs from the first one's in its number.
 */
static ea_status add_split(ea_gguf *g, size_t index, int64_t count, ea_error *err)
{
    const char *first = g->files[0].path;
    size_t stem = strlen(first) - SPLIT_SUFFIX, size = strlen(first) + 1;
    char *path = ea_malloc(size);
    if (!path)
        return ea_fail(err, EA_ENOMEM, "%s: out of memory", first);
    snprintf(path, size, "%.*s-%05zu-of-%05" PRId64 ".gguf", (int)stem, first, index + 1, count);
    ea_gguf_file *file = &g->files[g->n_files];
    *file = (ea_gguf_file){.path = path};
    g->n_files++; /* closed with the rest from here on */
    EA_TRY(file_open(file, err));

    ea_gguf_part part;
    EA_TRY(ea_gguf_parse(file, (int)index, &part, err));
    ea_gguf view = {.files = file,
                    .n_files = 1,
                    .kvs = part.kvs,
                    .n_kvs = part.n_kvs,
                    .kv_table = part.kv_table};
    int64_t own_count = 0, own_no = 0;
    ea_status status = split_keys(&view, &own_count, &own_no, err);
    if (status == EA_OK && own_count != count)
        status = ea_fail(err, EA_EFORMAT,
                         "%s: key 'split.count' is %" PRId64 ", the first file has %" PRId64, path,
                         own_count, count);
    if (status == EA_OK && own_no != (int64_t)index)
        status = ea_fail(err, EA_EFORMAT, "%s: key 'split.no' is %" PRId64 ", expected %zu", path,
                         own_no, index);
    if (status == EA_OK)
        status = append_tensors(g, &part, err);
    ea_gguf_part_done(&part);
    return status;
}

/* If the first file says that it is one of several, find and add the others. */
static ea_status load_splits(ea_gguf *g, bool in_memory, ea_error *err)
{
    const char *path = g->files[0].path;
    int64_t count = 0, no = 0, n_tensors = 0;
    EA_TRY(split_keys(g, &count, &no, err));
    if (count <= 1)
        return EA_OK;
    if (no != 0)
        return ea_fail(err, EA_EINVAL,
                       "%s: key 'split.no' is %" PRId64 ": open the first file of the split set",
                       path, no);
    if (in_memory)
        return ea_fail(err, EA_EUNSUPPORTED,
                       "%s: key 'split.count' is %" PRId64 ": a split set in memory", path, count);
    char suffix[64]; /* room for any number, so that the compiler need not know its range */
    snprintf(suffix, sizeof suffix, "-00001-of-%05" PRId64 ".gguf", count);
    size_t len = strlen(path);
    if (len < SPLIT_SUFFIX || strcmp(path + len - SPLIT_SUFFIX, suffix) != 0)
        return ea_fail(err, EA_EFORMAT,
                       "%s: key 'split.count' is %" PRId64
                       ", but the file's name does not end in '%s'",
                       path, count, suffix);
    ea_gguf_file *files = ea_realloc(g->files, (size_t)count * sizeof *files);
    if (!files)
        return ea_fail(err, EA_ENOMEM, "%s: out of memory", path);
    g->files = files;
    for (size_t i = 1; i < (size_t)count; i++)
        EA_TRY(add_split(g, i, count, err));
    EA_TRY(ea_gguf_get_int_or(g, "split.tensors.count", 0, INT64_MAX, (int64_t)g->n_tensors,
                              &n_tensors, err));
    if (n_tensors != (int64_t)g->n_tensors)
        return ea_fail(err, EA_EFORMAT,
                       "%s: key 'split.tensors.count' is %" PRId64 ", the files have %zu tensors",
                       g->files[0].path, n_tensors, g->n_tensors);
    return EA_OK;
}

static ea_status load(ea_gguf *g, ea_error *err)
{
    EA_TRY(load_first(g, err));
    EA_TRY(load_splits(g, g->files[0].source != EA_GGUF_FILE, err));
    return index_tensors(g, err);
}

ea_status ea_gguf_open(const char *path, ea_gguf **out, ea_error *err)
{
    ea_gguf *g;
    ea_status status;
    EA_TRY(create(path, &g, err));
    EA_TRY_GOTO(file_open(&g->files[0], err));
    EA_TRY_GOTO(load(g, err));
    *out = g;
    return EA_OK;
fail:
    ea_gguf_close(g);
    return status;
}

static ea_status open_bytes(const char *name, const void *data, size_t n_bytes,
                            ea_gguf_source source, ea_gguf **out, ea_error *err)
{
    ea_gguf *g;
    EA_TRY(create(name, &g, err));
    g->files[0].map = (ea_file){data, n_bytes, -1};
    ea_status status = load(g, err);
    if (status != EA_OK) {
        ea_gguf_close(g);
        return status;
    }
    g->files[0].source = source; /* not earlier: a failure leaves the bytes with the caller */
    *out = g;
    return EA_OK;
}

ea_status ea_gguf_open_memory(const char *name, const void *data, size_t n_bytes, ea_gguf **out,
                              ea_error *err)
{
    return open_bytes(name, data, n_bytes, EA_GGUF_BORROWED, out, err);
}

ea_status ea_gguf_open_take(const char *name, void *pages, size_t n_bytes, ea_gguf **out,
                            ea_error *err)
{
    return open_bytes(name, pages, n_bytes, EA_GGUF_PAGES, out, err);
}

size_t ea_gguf_taken_bytes(const ea_gguf *g)
{
    return g->files[0].source == EA_GGUF_PAGES ? g->files[0].map.n_bytes : 0;
}

const char *ea_gguf_path(const ea_gguf *g)
{
    return g->files[0].path;
}

size_t ea_gguf_n_tensors(const ea_gguf *g)
{
    return g->n_tensors;
}

const ea_gguf_tensor *ea_gguf_tensor_at(const ea_gguf *g, size_t i)
{
    EA_ASSERT(i < g->n_tensors);
    return &g->tensors[i];
}

const ea_gguf_tensor *ea_gguf_tensor_find(const ea_gguf *g, const char *name)
{
    int64_t i = ea_gguf_table_find(&g->tensor_table, g->tensors, sizeof *g->tensors,
                                   (ea_str){name, strlen(name)});
    return i < 0 ? NULL : &g->tensors[i];
}

/* ---- tensors' bytes ---- */

static size_t offset_in_file(const ea_gguf_file *file, const ea_gguf_tensor *t, size_t offset)
{
    return (size_t)(t->data - file->map.data) + offset;
}

ea_status ea_gguf_tensor_read(const ea_gguf *g, const ea_gguf_tensor *t, size_t offset,
                              size_t n_bytes, void *buf, const uint8_t **out, ea_error *err)
{
    const ea_gguf_file *file = &g->files[t->file];
    EA_ASSERT(offset <= t->n_bytes && n_bytes <= t->n_bytes - offset);
    if (file->source != EA_GGUF_FILE) {
        *out = t->data + offset;
        return EA_OK;
    }
    ea_status status =
        ea_file_read_at(&file->map, file->path, offset_in_file(file, t, offset), buf, n_bytes, err);
    if (status != EA_OK) {
        ea_error_prefix(err, "tensor %.*s", (int)t->name.n, t->name.s);
        return status;
    }
    *out = buf;
    return EA_OK;
}

void ea_gguf_tensor_prefetch(const ea_gguf *g, const ea_gguf_tensor *t, size_t offset,
                             size_t n_bytes)
{
    const ea_gguf_file *file = &g->files[t->file];
    if (file->source == EA_GGUF_FILE)
        ea_file_prefetch(&file->map, offset_in_file(file, t, offset), n_bytes);
}

void ea_gguf_tensor_release(const ea_gguf *g, const ea_gguf_tensor *t, size_t offset,
                            size_t n_bytes)
{
    const ea_gguf_file *file = &g->files[t->file];
    if (file->source == EA_GGUF_FILE)
        ea_file_release(&file->map, offset_in_file(file, t, offset), n_bytes);
    else if (file->source == EA_GGUF_PAGES)
        ea_pages_release((void *)(uintptr_t)(t->data + offset), n_bytes);
}
