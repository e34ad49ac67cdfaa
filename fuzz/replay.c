/* replay.c: runs a fuzz target over files, without a fuzzer: so corpora, and inputs that once
 * failed, are ordinary tests on any compiler.
 *
 *   fuzz_NAME PATH...    each a file or a folder (all files in it); a path that is not absolute
 *                        is looked up in the third-party data (EA_SHARED_DATA, default
 *                        <source>/../shared/data)
 *
 * Exit status: 0 all ran (a failure crashes), 77 a path is not there (named), 1 otherwise. */
#include "fuzz.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SKIPPED = 77 };

/* The input gets a buffer of exactly its size, so that a sanitizer sees the first byte past it. */
static int run_file(const char *path, size_t n_bytes)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(n_bytes ? n_bytes : 1);
    int ok = f && data && fread(data, 1, n_bytes, f) == n_bytes;
    if (f)
        fclose(f);
    if (ok) {
        /* Said before, so that a crash names its input. */
        if (getenv("EA_TEST_VERBOSE"))
            fprintf(stderr, "%s\n", path);
        LLVMFuzzerTestOneInput(data, n_bytes);
    } else {
        fprintf(stderr, "%s: cannot read\n", path);
    }
    free(data);
    return ok;
}

/* Files run, or -1. */
static int run_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return -1;
    if (!S_ISDIR(st.st_mode))
        return run_file(path, (size_t)st.st_size) ? 1 : -1;
    DIR *dir = opendir(path);
    if (!dir)
        return -1;
    int n = 0;
    for (struct dirent *entry; n >= 0 && (entry = readdir(dir)) != NULL;) {
        char child[PATH_MAX];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(child, sizeof child, "%s/%s", path, entry->d_name);
        int ran = run_path(child);
        n = ran < 0 ? -1 : n + ran;
    }
    closedir(dir);
    return n;
}

int main(int argc, char **argv)
{
    const char *shared = getenv("EA_SHARED_DATA"), *source = getenv("EA_SOURCE_DIR");
    int n = 0;
    for (int i = 1; i < argc; i++) {
        char path[PATH_MAX];
        struct stat st;
        if (argv[i][0] == '/')
            snprintf(path, sizeof path, "%s", argv[i]);
        else if (shared && *shared)
            snprintf(path, sizeof path, "%s/%s", shared, argv[i]);
        else
            snprintf(path, sizeof path, "%s/../shared/data/%s", source && *source ? source : ".",
                     argv[i]);
        if (stat(path, &st) != 0) {
            printf("SKIPPED: %s is not there\n", path);
            return SKIPPED;
        }
        int ran = run_path(path);
        if (ran < 0)
            return 1;
        n += ran;
    }
    printf("%d inputs\n", n);
    return n > 0 ? 0 : 1;
}
