/* file.h: files: mapped, read at any place, read whole, or written so that they are never half
 * there. */
#ifndef EA_BASE_FILE_H
#define EA_BASE_FILE_H

#include "base/error.h"

/* A file mapped read-only. Immutable after open; may be shared between threads. Another program may
 * cut the file short while it is open: reading what is gone through `data` is then a fatal signal,
 * through ea_file_read_at an error. */
typedef struct ea_file {
    const uint8_t *data; /* NULL for an empty file */
    size_t n_bytes;      /* when it was opened */
    int fd;
} ea_file;

/* Errors name path and reason. Directories and other non-files are refused. */
ea_status ea_file_map(const char *path, ea_file *out, ea_error *err) EA_MUST_CHECK;
void ea_file_unmap(ea_file *file);
/* Tell the system that this range of the mapping is not needed any more (its pages may be dropped).
 */
void ea_file_release(const ea_file *file, size_t offset, size_t n_bytes);

/* Copy n_bytes from offset on to dst, without touching the mapping. EA_EIO, naming `path`, where
 * the file cannot be read or has become shorter. Any thread. */
ea_status ea_file_read_at(const ea_file *file, const char *path, size_t offset, void *dst,
                          size_t n_bytes, ea_error *err) EA_MUST_CHECK;
/* This range will be read soon: let the system begin. Cheap where it is in memory already. */
void ea_file_prefetch(const ea_file *file, size_t offset, size_t n_bytes);

/* Read a whole file (or standard input, path "-") of at most max_bytes; NUL-terminated, freed by
 * ea_free. */
ea_status ea_file_read(const char *path, size_t max_bytes, char **out, size_t *n_out,
                       ea_error *err) EA_MUST_CHECK;

/* A new file under a temporary name beside `path`: it appears under its own name, whole, on commit
 * (replacing what was there), or never. One thread. */
typedef struct ea_file_out {
    int fd;
    char *path, *temporary;
    char *buf; /* bytes not yet handed to the system */
    size_t n;
    bool failed;
} ea_file_out;

ea_status ea_file_create(const char *path, ea_file_out *out, ea_error *err) EA_MUST_CHECK;
/* Errors stick; commit reports them. */
void ea_file_write(ea_file_out *out, const void *bytes, size_t n, ea_error *err);
/* Either way the object is done afterwards. */
ea_status ea_file_commit(ea_file_out *out, ea_error *err) EA_MUST_CHECK;
void ea_file_abandon(ea_file_out *out);

/* The directory for our cached files: $EDGEAGENT_CACHE, $XDG_CACHE_HOME/edgeagent or
 * ~/.cache/edgeagent; created. */
ea_status ea_cache_dir(char *buf, size_t size, ea_error *err) EA_MUST_CHECK;

#endif
