/* affinity.h: binding threads to cores: a scheduler may leave two threads on one core while
 * low-priority work has the other. */
#ifndef EA_BASE_AFFINITY_H
#define EA_BASE_AFFINITY_H

#include <sched.h>
#include <stdbool.h>

/* One logical processor of each physical core that our affinity mask allows, fastest kind of core
 * first. Fills up to n (cpus may be NULL if n is 0); returns how many there are, 0 if unknown.
 * *n_fast (may be NULL): those of the fastest kind that we may use, with the next kind's if that is
 * one core only; all where the system does not rank its kinds. */
int ea_affinity_cores(int *cpus, int n, int *n_fast);

/* Bind the calling thread to one logical processor. *old (may be NULL): its mask before. False, and
 * nothing changed, where the system refuses. */
bool ea_affinity_bind(int cpu, cpu_set_t *old);
void ea_affinity_restore(const cpu_set_t *old);

#endif
