/* mem.c: see mem.h. The guard and the fault counter are thread-local: a test arms them for the
 * thread it looks at. */
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/huge.h"

static _Thread_local struct {
    bool armed, abort_on_alloc;
    size_t n_seen;
    size_t fail_in;
} guard;

/* Called before each allocation; false when it is to fail. */
static bool allocation_allowed(void)
{
    if (guard.armed) {
        guard.n_seen++;
        if (guard.abort_on_alloc)
            ea_assert_failed("no allocation inside a guarded step", __FILE__, __LINE__);
    }
    if (guard.fail_in && --guard.fail_in == 0)
        return false;
    return true;
}

void *ea_malloc(size_t n_bytes)
{
    return allocation_allowed() ? malloc(n_bytes ? n_bytes : 1) : NULL;
}

void *ea_calloc(size_t n, size_t n_bytes)
{
    if (n == 0 || n_bytes == 0)
        n = n_bytes = 1;
    return allocation_allowed() ? calloc(n, n_bytes) : NULL;
}

void *ea_realloc(void *ptr, size_t n_bytes)
{
    return allocation_allowed() ? realloc(ptr, n_bytes ? n_bytes : 1) : NULL;
}

void ea_free(void *ptr)
{
    free(ptr);
}

char *ea_strndup(const char *s, size_t n)
{
    size_t len = strnlen(s, n);
    char *copy = ea_malloc(len + 1);
    if (copy) {
        memcpy(copy, s, len);
        copy[len] = '\0';
    }
    return copy;
}

char *ea_strdup(const char *s)
{
    return ea_strndup(s, strlen(s));
}

ea_status ea_grow(void **ptr, size_t *n_cap, size_t n_want, size_t size, ea_error *err)
{
    if (n_want <= *n_cap)
        return EA_OK;
    size_t cap = *n_cap ? *n_cap : 16;
    while (cap < n_want)
        if (__builtin_mul_overflow(cap, (size_t)2, &cap))
            return ea_fail(err, EA_ENOMEM, "out of memory: %zu elements", n_want);
    size_t n_bytes;
    void *grown = __builtin_mul_overflow(cap, size, &n_bytes) ? NULL : ea_realloc(*ptr, n_bytes);
    if (!grown)
        return ea_fail(err, EA_ENOMEM, "out of memory: %zu elements of %zu bytes", cap, size);
    *ptr = grown;
    *n_cap = cap;
    return EA_OK;
}

static size_t round_to_page(size_t n_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (n_bytes + page - 1) / page * page;
}

void *ea_pages_alloc(size_t n_bytes)
{
    if (!allocation_allowed())
        return NULL;
    bool huge = n_bytes >= 2 * (size_t)EA_HUGE_BYTES;
    size_t slack = huge ? EA_HUGE_BYTES : 0, n = n_bytes ? n_bytes : 1;
    if (n > SIZE_MAX - 2 * (size_t)EA_HUGE_BYTES)
        return NULL;
    uint8_t *ptr =
        mmap(NULL, n + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ptr == MAP_FAILED)
        return NULL;
    if (!huge)
        return ptr;
    /* Begin at a huge page's border, which not every kernel sees to; give back what is around. */
    uint8_t *start = ptr + (EA_HUGE_BYTES - (uintptr_t)ptr % EA_HUGE_BYTES) % EA_HUGE_BYTES;
    uint8_t *end = start + round_to_page(n_bytes), *mapped_end = ptr + round_to_page(n + slack);
    if (start > ptr)
        munmap(ptr, (size_t)(start - ptr));
    if (mapped_end > end)
        munmap(end, (size_t)(mapped_end - end));
    (void)madvise(start, n_bytes, MADV_HUGEPAGE); /* a hint: the kernel may not have them */
    return start;
}

void ea_pages_free(void *ptr, size_t n_bytes)
{
    if (ptr)
        munmap(ptr, n_bytes ? n_bytes : 1);
}

void ea_pages_release(void *ptr, size_t n_bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)ptr;
    uintptr_t from = (at + page - 1) / page * page, to = (at + n_bytes) / page * page;
    if (from < to)
        (void)madvise((void *)from, to - from, MADV_DONTNEED);
}

void *ea_pages_reserve(size_t n_bytes)
{
    if (!allocation_allowed())
        return NULL;
    void *ptr = mmap(NULL, n_bytes ? n_bytes : 1, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return ptr == MAP_FAILED ? NULL : ptr;
}

bool ea_pages_commit(void *ptr, size_t n_bytes)
{
    return mprotect(ptr, n_bytes, PROT_READ | PROT_WRITE) == 0;
}

void ea_alloc_guard_begin(bool abort_on_alloc)
{
    EA_ASSERT(!guard.armed);
    guard.armed = true;
    guard.abort_on_alloc = abort_on_alloc;
    guard.n_seen = 0;
}

size_t ea_alloc_guard_end(void)
{
    EA_ASSERT(guard.armed);
    guard.armed = false;
    return guard.n_seen;
}

void ea_alloc_fail_at(size_t n)
{
    guard.fail_in = n;
}

uint64_t ea_memory_total(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    uint64_t total = pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
    ea_cgroup group;
    ea_cgroup_read(&group, "");
    return EA_MIN(total, group.memory_max);
}

uint64_t ea_memory_available(void)
{
    uint64_t available = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f)
        return 0;
    char line[128];
    unsigned long long kib;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            available = kib * 1024;
    fclose(f);
    ea_cgroup group;
    ea_cgroup_read(&group, "");
    return EA_MIN(available, group.memory_left);
}
