/* mem.h: allocation. Wrappers exist for two reasons: a guard that catches allocation inside a
 * decode step, and fault injection in tests. Memory from here is freed with ea_free (public
 * header). Thread-safe. */
#ifndef EA_BASE_MEM_H
#define EA_BASE_MEM_H

#include "base/error.h"

/* NULL when memory is out or the size overflows; zero-sized requests give a valid pointer. */
void *ea_malloc(size_t n_bytes) __attribute__((malloc));
void *ea_calloc(size_t n, size_t n_bytes) __attribute__((malloc));
void *ea_realloc(void *ptr, size_t n_bytes);
char *ea_strdup(const char *s);
char *ea_strndup(const char *s, size_t n);

/* Grow *ptr (n_cap elements of size) to hold at least n_want, doubling. */
ea_status ea_grow(void **ptr, size_t *n_cap, size_t n_want, size_t size,
                  ea_error *err) EA_MUST_CHECK;

/* Zeroed pages from the system, 64-byte aligned at least, huge pages advised when large; freed by
 * ea_pages_free with the same size. Not counted by the guard's hook on malloc, but refused while it
 * is armed. */
void *ea_pages_alloc(size_t n_bytes);
void ea_pages_free(void *ptr, size_t n_bytes);
/* Give the whole pages inside this range back to the system: they read as zeros from now on. */
void ea_pages_release(void *ptr, size_t n_bytes);

/* Addresses without memory behind them, NULL if there are none left; freed by ea_pages_free. Bytes
 * from the start up to n_bytes can be used, and are zero at first, once commit said true. */
void *ea_pages_reserve(size_t n_bytes);
bool ea_pages_commit(void *ptr, size_t n_bytes);

/* Allocation guard. Between _begin and _end on one thread every ea_* allocation of that thread is
 * counted; with `abort_on_alloc` (tests) it aborts at once. Nested calls are an error. */
void ea_alloc_guard_begin(bool abort_on_alloc);
size_t ea_alloc_guard_end(void); /* number of allocations seen */

/* Fault injection for tests: the n-th allocation from now on this thread fails (0 = off). */
void ea_alloc_fail_at(size_t n);

/* Physical memory of the machine and what is available now (cgroup limits respected), in bytes; 0
 * if unknown. */
uint64_t ea_memory_total(void);
uint64_t ea_memory_available(void);

#endif
