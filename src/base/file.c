/* file.c: see file.h. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"

ea_status ea_file_map(const char *path, ea_file *out, ea_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return ea_fail(err, EA_EIO, "%s: cannot open: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return ea_fail(err, EA_EIO, "%s: not a regular file", path);
    }
    size_t n_bytes = (size_t)st.st_size;
    void *data = NULL;
    if (n_bytes) {
        data = mmap(NULL, n_bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            int why = errno;
            close(fd);
            return ea_fail(err, EA_EIO, "%s: cannot map %zu bytes: %s", path, n_bytes,
                           strerror(why));
        }
    }
    *out = (ea_file){data, n_bytes, fd};
    return EA_OK;
}

void ea_file_unmap(ea_file *file)
{
    if (file->data)
        munmap((void *)(uintptr_t)file->data, file->n_bytes);
    if (file->fd >= 0)
        close(file->fd);
    *file = (ea_file){NULL, 0, -1};
}

void ea_file_release(const ea_file *file, size_t offset, size_t n_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t from = (offset + page - 1) / page * page, to = (offset + n_bytes) / page * page;
    if (from < to && to <= file->n_bytes)
        (void)madvise((void *)(uintptr_t)(file->data + from), to - from, MADV_DONTNEED);
}

ea_status ea_file_read_at(const ea_file *file, const char *path, size_t offset, void *dst,
                          size_t n_bytes, ea_error *err)
{
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = pread(file->fd, (char *)dst + done, n_bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ea_fail(err, EA_EIO, "%s: cannot read at byte %zu: %s", path, offset + done,
                           strerror(errno));
        if (n == 0)
            return ea_fail(err, EA_EIO,
                           "%s: the file ends at byte %zu, it had %zu bytes when it was opened",
                           path, offset + done, file->n_bytes);
        done += (size_t)n;
    }
    return EA_OK;
}

void ea_file_prefetch(const ea_file *file, size_t offset, size_t n_bytes)
{
    (void)posix_fadvise(file->fd, (off_t)offset, (off_t)n_bytes, POSIX_FADV_WILLNEED);
}

ea_status ea_file_read(const char *path, size_t max_bytes, char **out, size_t *n_out, ea_error *err)
{
    bool standard_input = strcmp(path, "-") == 0;
    int fd = standard_input ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return ea_fail(err, EA_EIO, "%s: cannot open: %s", path, strerror(errno));
    ea_status status = EA_OK;
    ea_buf buf = EA_BUF_INIT;
    for (;;) {
        if (!ea_buf_reserve(&buf, 65536)) {
            status = ea_fail(err, EA_ENOMEM, "%s: out of memory", path);
            break;
        }
        ssize_t n = read(fd, buf.data + buf.n, 65536);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            status = ea_fail(err, EA_EIO, "%s: cannot read: %s", path, strerror(errno));
            break;
        }
        if (n == 0)
            break;
        buf.n += (size_t)n;
        buf.data[buf.n] = '\0';
        if (buf.n > max_bytes) {
            status = ea_fail(err, EA_ETOOLONG, "%s: larger than the limit of %zu bytes", path,
                             max_bytes);
            break;
        }
    }
    if (!standard_input)
        close(fd);
    if (status != EA_OK) {
        ea_buf_done(&buf);
        return status;
    }
    size_t n_bytes = buf.n;
    char *data = ea_buf_take(&buf);
    if (!data)
        return ea_fail(err, EA_ENOMEM, "%s: out of memory", path);
    *out = data;
    *n_out = n_bytes;
    return EA_OK;
}

/* ---- writing ---- */

enum { OUT_BUFFER = 256 * 1024 };

static void file_out_done(ea_file_out *out)
{
    ea_free(out->path);
    ea_free(out->temporary);
    ea_free(out->buf);
    *out = (ea_file_out){-1, NULL, NULL, NULL, 0, true};
}

ea_status ea_file_create(const char *path, ea_file_out *out, ea_error *err)
{
    size_t size = strlen(path) + 32;
    ea_file_out made = {-1, ea_strdup(path), ea_malloc(size), ea_malloc(OUT_BUFFER), 0, false};
    if (!made.path || !made.temporary || !made.buf) {
        file_out_done(&made);
        return ea_fail(err, EA_ENOMEM, "%s: out of memory", path);
    }
    /* The number keeps apart several writers of one path; O_EXCL catches what it does not. */
    snprintf(made.temporary, size, "%s.%016llx.tmp", path, (unsigned long long)ea_random_u64());
    made.fd = open(made.temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (made.fd < 0) {
        ea_status status =
            ea_fail(err, EA_EIO, "%s: cannot create: %s", made.temporary, strerror(errno));
        file_out_done(&made);
        return status;
    }
    *out = made;
    return EA_OK;
}

static void file_out_send(ea_file_out *out, const char *bytes, size_t n, ea_error *err)
{
    while (n && !out->failed) {
        ssize_t sent = write(out->fd, bytes, n);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0) {
            out->failed = true;
            (void)ea_fail(err, EA_EIO, "%s: cannot write: %s", out->path, strerror(errno));
            return;
        }
        bytes += sent;
        n -= (size_t)sent;
    }
}

void ea_file_write(ea_file_out *out, const void *bytes, size_t n, ea_error *err)
{
    if (out->failed)
        return;
    if (n > OUT_BUFFER - out->n) {
        file_out_send(out, out->buf, out->n, err);
        out->n = 0;
    }
    if (n > OUT_BUFFER) {
        file_out_send(out, bytes, n, err);
    } else if (n) {
        memcpy(out->buf + out->n, bytes, n);
        out->n += n;
    }
}

ea_status ea_file_commit(ea_file_out *out, ea_error *err)
{
    file_out_send(out, out->buf, out->n, err);
    /* The data must be on the disk before the name is: else a power cut leaves an empty file. */
    if (!out->failed && (fsync(out->fd) != 0 || rename(out->temporary, out->path) != 0)) {
        out->failed = true;
        (void)ea_fail(err, EA_EIO, "%s: cannot finish writing: %s", out->path, strerror(errno));
    }
    if (out->failed) {
        ea_file_abandon(out);
        return EA_EIO;
    }
    close(out->fd);
    file_out_done(out);
    return EA_OK;
}

void ea_file_abandon(ea_file_out *out)
{
    if (out->fd >= 0) {
        close(out->fd);
        unlink(out->temporary);
    }
    file_out_done(out);
}

/* mkdir -p for an absolute path; an existing directory is fine. */
static bool make_dirs(char *path)
{
    for (char *c = path + 1; *c; c++)
        if (*c == '/') {
            *c = '\0';
            int r = mkdir(path, 0755);
            *c = '/';
            if (r != 0 && errno != EEXIST)
                return false;
        }
    return mkdir(path, 0755) == 0 || errno == EEXIST;
}

ea_status ea_cache_dir(char *buf, size_t size, ea_error *err)
{
    const char *own = getenv("EDGEAGENT_CACHE"), *xdg = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    int n;
    if (own && *own)
        n = snprintf(buf, size, "%s", own);
    else if (xdg && *xdg == '/')
        n = snprintf(buf, size, "%s/edgeagent", xdg);
    else if (home && *home)
        n = snprintf(buf, size, "%s/.cache/edgeagent", home);
    else
        n = snprintf(buf, size, "/tmp/edgeagent-cache");
    if (n < 0 || (size_t)n >= size)
        return ea_fail(err, EA_EINVAL, "cache directory: path too long");
    if (!make_dirs(buf))
        return ea_fail(err, EA_EIO, "%s: cannot create the cache directory: %s", buf,
                       strerror(errno));
    return EA_OK;
}
