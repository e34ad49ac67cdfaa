/* cpu.h: which instructions and how many cores this process may use. Detection runs once; results
 * are immutable. */
#ifndef EA_BASE_CPU_H
#define EA_BASE_CPU_H

#include <stdbool.h>

/* Instruction-set levels, ascending; a level means all bits of its group and the system's
 * permission to use the registers. The kernel folder of the same name needs exactly that. */
typedef enum ea_cpu_level {
    EA_CPU_REF,
    EA_CPU_AVX2,       /* avx2 fma f16c bmi2 */
    EA_CPU_AVX2VNNI,   /* + avx_vnni */
    EA_CPU_AVX512,     /* avx512 f bw dq vl cd */
    EA_CPU_AVX512VNNI, /* + vnni */
    EA_CPU_AVX512BF16, /* + bf16 */
    EA_CPU_AMX,        /* + amx tile, int8, bf16 */
    EA_CPU_N_LEVELS,
} ea_cpu_level;

const char *ea_cpu_level_name(ea_cpu_level level);

/* True if the machine has the level and EA_CPU (an environment variable naming the highest level to
 * use, for tests and bug reports) does not mask it. AVX2VNNI is a side branch: AVX512 does not
 * imply it. */
bool ea_cpu_has(ea_cpu_level level);

/* As the processor calls itself; static storage. */
const char *ea_cpu_name(void);

/* Worker threads to start by default: physical (performance) cores in our affinity mask, cut by the
 * cgroup's quota; at least 1. */
int ea_cpu_default_threads(void);

#endif
