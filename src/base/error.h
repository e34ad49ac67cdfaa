/* error.h: helpers around ea_status and ea_error (declared in the public header). Pure functions;
 * thread-safe. */
#ifndef EA_BASE_ERROR_H
#define EA_BASE_ERROR_H

#include "edgeagent.h"

/* Record code and formatted text in *err (may be NULL) unless an earlier error is already there;
 * returns code, so that `return ea_fail(err, EA_EINVAL, "...")` reads well. */
ea_status ea_fail(ea_error *err, ea_status code, const char *fmt, ...) EA_PRINTF(3, 4);

/* Put "prefix: " before the text of an error that is already there (file name, field). Keeps the
 * code. */
void ea_error_prefix(ea_error *err, const char *fmt, ...) EA_PRINTF(2, 3);

/* Return from the calling function when expr fails. */
#define EA_TRY(expr)                       \
    do {                                   \
        ea_status ea_try_status_ = (expr); \
        if (ea_try_status_ != EA_OK)       \
            return ea_try_status_;         \
    } while (0)

/* As EA_TRY, but leave through the label `fail`, with `status` set. */
#define EA_TRY_GOTO(expr)    \
    do {                     \
        status = (expr);     \
        if (status != EA_OK) \
            goto fail;       \
    } while (0)

/* For our own bugs, always on: prints file, line and condition, then aborts. */
#define EA_ASSERT(cond) ((cond) ? (void)0 : ea_assert_failed(#cond, __FILE__, __LINE__))
_Noreturn void ea_assert_failed(const char *cond, const char *file, int line);

#define EA_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define EA_MIN(a, b) ((a) < (b) ? (a) : (b))
#define EA_MAX(a, b) ((a) > (b) ? (a) : (b))

#endif
