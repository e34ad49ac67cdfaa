/* cgroup.c: see cgroup.h. The files: Linux, Documentation/admin-guide/cgroup-v2.rst. */
#include "base/cgroup.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

enum { MAX_PATH_BYTES = 4096 };

/* First line of folder/name; false if there is none. */
static bool read_line(const char *folder, const char *name, char *line, int size)
{
    char path[MAX_PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "re");
    bool good = f && fgets(line, size, f);
    if (f)
        fclose(f);
    return good;
}

/* A number of bytes; `fallback` where there is none ("max"). */
static uint64_t read_bytes(const char *folder, const char *name, uint64_t fallback)
{
    char line[64];
    unsigned long long value;
    return read_line(folder, name, line, sizeof line) && sscanf(line, "%llu", &value) == 1
               ? (uint64_t)value
               : fallback;
}

/* One group's own limits. */
static void add_group(ea_cgroup *out, const char *folder)
{
    char line[64];
    double quota, period; /* microseconds; the quota may be the word "max" */
    if (read_line(folder, "cpu.max", line, sizeof line) &&
        sscanf(line, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0 &&
        (out->cpus == 0 || quota / period < out->cpus))
        out->cpus = quota / period;
    uint64_t max = read_bytes(folder, "memory.max", UINT64_MAX);
    if (max == UINT64_MAX)
        return;
    uint64_t used = read_bytes(folder, "memory.current", 0);
    out->memory_max = EA_MIN(out->memory_max, max);
    out->memory_left = EA_MIN(out->memory_left, max > used ? max - used : 0);
}

/* The line "0::/path" of /proc/self/cgroup; "" if we are in the root group or it is unknown. */
static void read_own_path(const char *root, char *path, size_t size)
{
    char name[MAX_PATH_BYTES], line[MAX_PATH_BYTES];
    path[0] = '\0';
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *f = fopen(name, "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "0::/", 4) == 0)
            snprintf(path, size, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    if (f)
        fclose(f);
}

void ea_cgroup_read(ea_cgroup *out, const char *root)
{
    char own[MAX_PATH_BYTES / 2], folder[MAX_PATH_BYTES];
    *out = (ea_cgroup){.memory_max = UINT64_MAX, .memory_left = UINT64_MAX};
    read_own_path(root, own, sizeof own);
    int top = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup", root);
    if (top < 0 || (size_t)top + strlen(own) >= sizeof folder)
        return;
    snprintf(folder + top, sizeof folder - (size_t)top, "%s", own);
    /* In a container the path may be the host's, whose lower folders are not here: then only the
     * root's limits are found, which are the container's. */
    for (;;) {
        add_group(out, folder);
        char *slash = strrchr(folder + top, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
}
