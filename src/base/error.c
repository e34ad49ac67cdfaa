/* error.c: see error.h. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ea_status_name(ea_status status)
{
    switch (status) {
    case EA_OK: return "ok";
    case EA_EINVAL: return "invalid argument";
    case EA_ENOMEM: return "out of memory";
    case EA_EIO: return "input/output error";
    case EA_EFORMAT: return "malformed input";
    case EA_EUNSUPPORTED: return "unsupported";
    case EA_ETOOLONG: return "too long";
    case EA_EBUSY: return "busy";
    case EA_ECANCELLED: return "cancelled";
    case EA_ECLOSED: return "closed";
    case EA_ENOTFOUND: return "not found";
    case EA_EINTERNAL: return "internal error";
    }
    return "unknown status";
}

const char *ea_version(void)
{
    return EA_VERSION;
}

/* Messages are one line by contract; bytes from hostile files must not break that, nor drive a
 * terminal. */
static void make_one_line(char *text)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

ea_status ea_fail(ea_error *err, ea_status code, const char *fmt, ...)
{
    if (err && err->code == EA_OK) {
        err->code = code;
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
        make_one_line(err->text);
    }
    return code;
}

void ea_error_prefix(ea_error *err, const char *fmt, ...)
{
    if (!err || err->code == EA_OK)
        return;
    char old[EA_ERROR_TEXT];
    memcpy(old, err->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof err->text)
        snprintf(err->text + n, sizeof err->text - (size_t)n, ": %.400s", old);
    make_one_line(err->text);
}

void ea_assert_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "edgeagent: bug: assertion failed: %s (%s:%d)\n", cond, file, line);
    abort();
}
