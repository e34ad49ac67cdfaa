/* cgroup.h: what the control groups that this process is in (Linux, version 2) leave to it. Read
 * when asked; any thread. */
#ifndef EA_BASE_CGROUP_H
#define EA_BASE_CGROUP_H

#include <stdint.h>

/* A group's limits hold for all groups below it, so each figure is the least of our own group and
 * those above. */
typedef struct ea_cgroup {
    double cpus;          /* processors' worth of time, e.g. 1.5; 0 = no quota */
    uint64_t memory_max;  /* bytes; UINT64_MAX = no limit */
    uint64_t memory_left; /* bytes until a limit is reached; UINT64_MAX = no limit */
} ea_cgroup;

/* root: put in front of /proc and /sys, "" for the machine itself; tests have a tree of their own.
 * No limits where there are no such groups. */
void ea_cgroup_read(ea_cgroup *out, const char *root);

#endif
