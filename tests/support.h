/* support.h: what every test program shares. */
#ifndef EA_TESTS_SUPPORT_H
#define EA_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above. */
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "edgeagent.h"

enum { EA_TEST_SKIPPED = 77 }; /* exit status that ctest reports as skipped */

/* Path of a third-party data file: $EA_SHARED_DATA/rel, default <source>/../shared/data/rel. Static
 * buffer. */
static inline const char *shared_data(const char *rel)
{
    static char path[4096];
    const char *root = getenv("EA_SHARED_DATA"), *source = getenv("EA_SOURCE_DIR");
    if (root && *root)
        snprintf(path, sizeof path, "%s/%s", root, rel);
    else
        snprintf(path, sizeof path, "%s/../shared/data/%s", source && *source ? source : ".", rel);
    return path;
}

/* The same if the file is there, else NULL after naming what is skipped. */
static inline const char *shared_data_or_skip(const char *rel)
{
    const char *path = shared_data(rel);
    if (access(path, R_OK) == 0)
        return path;
    printf("SKIPPED: %s is not there\n", path);
    return NULL;
}

/* Path of a real model fetched by tools/fetch-models, or NULL after naming what is skipped. Static
 * buffer. */
static inline const char *real_model_or_skip(const char *file)
{
    static char path[4096];
    const char *dir = getenv("EDGEAGENT_MODELS"), *home = getenv("HOME");
    if (dir && *dir)
        snprintf(path, sizeof path, "%s/%s", dir, file);
    else
        snprintf(path, sizeof path, "%s/.cache/edgeagent/models/%s", home ? home : "", file);
    if (access(path, R_OK) == 0)
        return path;
    printf("SKIPPED: %s is not there (tools/fetch-models)\n", path);
    return NULL;
}

#define assert_ok(expr, error)                        \
    do {                                              \
        if ((expr) != EA_OK)                          \
            fail_msg("%s: %s", #expr, (error)->text); \
    } while (0)

#endif
