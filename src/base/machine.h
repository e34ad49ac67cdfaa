/* machine.h: what the machine and the system give this process, read when asked, for reports:
 * nothing here decides anything. What cannot be read is 0, -1 or "" as said with each field. Any
 * thread. */
#ifndef EA_BASE_MACHINE_H
#define EA_BASE_MACHINE_H

#include "base/cgroup.h"
#include "base/error.h"

/* A feature by the name that Linux gives it in /proc/cpuinfo: what the processor says, whatever the
 * system permits. */
typedef struct ea_cpu_feature {
    const char *name; /* "avx512_vnni" */
    bool present;
} ea_cpu_feature;

/* The features that kernels need, in a fixed order; returns how many there are, fills up to n. */
size_t ea_cpu_features(ea_cpu_feature *out, size_t n);

/* May this process use wider registers than the baseline's? */
typedef enum ea_permission {
    EA_PERMISSION_ABSENT,  /* the processor does not have them */
    EA_PERMISSION_REFUSED, /* it has, the system does not let us */
    EA_PERMISSION_GRANTED,
} ea_permission;

enum { EA_MACHINE_KINDS = 4 };

/* Cores of one kind, slowest first; hwloc's ranking. */
typedef struct ea_core_kind {
    int n_cores, n_allowed; /* physical cores; those with a processor in our affinity mask */
    int mhz;                /* 0 if unknown */
} ea_core_kind;

typedef struct ea_machine {
    /* processors: logical ones, and those in our affinity mask */
    int n_cpus, n_cpus_allowed;
    int n_cores, n_cores_allowed; /* physical; 0 if hwloc cannot tell */
    int n_numa;
    int n_kinds; /* 0 if hwloc cannot tell */
    ea_core_kind kinds[EA_MACHINE_KINDS];
    uint64_t cache_bytes[3]; /* of one core's way to memory: L1d, L2, L3 */
    ea_cgroup group;
    double load;       /* runnable threads, mean of a minute; -1 if unknown */
    bool is_virtual;   /* the processor says that it is a guest's */
    char governor[32]; /* of cpufreq, "" if there is none */
    char driver[32];
    ea_permission avx, avx512, amx;
    const char *mask; /* EA_CPU, "" if not set */
    bool mask_known;  /* it names a level */

    /* memory, in bytes */
    uint64_t memory_total, memory_available; /* cgroup limits respected */
    uint64_t swap_total, swap_used;
    uint64_t huge_bytes;                  /* size of an explicit huge page */
    uint64_t huge_total, huge_free;       /* explicit huge pages: how many */
    char thp_enabled[16], thp_defrag[16]; /* the word in force: "madvise"; "" if unknown */
    uint64_t page_bytes;

    /* limits of the process; UINT64_MAX = none */
    uint64_t open_files, locked_bytes, address_bytes;

    /* how this library was compiled */
    bool optimised;
    const char *sanitizer; /* "" if none */
} ea_machine;

/* root: put in front of the names of files (/proc, /sys), "" for the machine itself; tests have a
 * tree of their own. */
void ea_machine_read(ea_machine *out, const char *root);
/* Its part about registers (cpu_features.c): is_virtual, avx, avx512, amx. */
void ea_machine_read_registers(ea_machine *out);

#endif
