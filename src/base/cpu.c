/* cpu.c: see cpu.h. CPUID leaves and XCR0 bits: Intel SDM vol. 2A, CPUID; vol. 1, 13.3. */
#include "base/cpu.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/affinity.h"
#include "base/cgroup.h"
#include "base/error.h"
#include "base/limits.h"

static struct {
    bool has[EA_CPU_N_LEVELS];
    char name[64];
} cpu;
static pthread_once_t detect_once = PTHREAD_ONCE_INIT;

static const char *const level_names[EA_CPU_N_LEVELS] = {
    "ref", "avx2", "avx2vnni", "avx512", "avx512vnni", "avx512bf16", "amx"};

const char *ea_cpu_level_name(ea_cpu_level level)
{
    return level_names[level];
}

#if defined(__x86_64__)
static uint64_t read_xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* Linux gives AMX tile data only to a process that asks (arch_prctl ARCH_REQ_XCOMP_PERM, feature
 * 18). */
static bool amx_permitted(void)
{
#ifdef SYS_arch_prctl
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
    return false;
#endif
}

static void detect_x86(void)
{
    uint32_t a, b, c, d, b7 = 0, c7 = 0, d7 = 0, a71 = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return;
    uint32_t c1 = c;
    bool osxsave = c1 >> 27 & 1;
    uint64_t xcr0 = osxsave ? read_xcr0() : 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        b7 = b, c7 = c, d7 = d;
        uint32_t max_sub = a;
        if (max_sub >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
            a71 = a;
    }
    bool ymm = (xcr0 & 0x6) == 0x6, zmm = (xcr0 & 0xe6) == 0xe6, tile = (xcr0 & 0x60000) == 0x60000;
    bool fma = c1 >> 12 & 1, f16c = c1 >> 29 & 1;
    cpu.has[EA_CPU_AVX2] = ymm && fma && f16c && (b7 >> 5 & 1) && (b7 >> 8 & 1);
    cpu.has[EA_CPU_AVX2VNNI] = cpu.has[EA_CPU_AVX2] && (a71 >> 4 & 1);
    cpu.has[EA_CPU_AVX512] = cpu.has[EA_CPU_AVX2] && zmm && (b7 >> 16 & 1) && (b7 >> 17 & 1) &&
                             (b7 >> 28 & 1) && (b7 >> 30 & 1) && (b7 >> 31 & 1);
    cpu.has[EA_CPU_AVX512VNNI] = cpu.has[EA_CPU_AVX512] && (c7 >> 11 & 1);
    cpu.has[EA_CPU_AVX512BF16] = cpu.has[EA_CPU_AVX512VNNI] && (a71 >> 5 & 1);
    cpu.has[EA_CPU_AMX] = cpu.has[EA_CPU_AVX512BF16] && tile && (d7 >> 22 & 1) && (d7 >> 24 & 1) &&
                          (d7 >> 25 & 1) && amx_permitted();
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t regs[4];
        if (!__get_cpuid(0x80000002u + i, &regs[0], &regs[1], &regs[2], &regs[3]))
            break;
        memcpy(cpu.name + 16 * i, regs, 16);
    }
}
#endif

static void detect(void)
{
    cpu.has[EA_CPU_REF] = true;
#if defined(__x86_64__)
    detect_x86();
#endif
    if (!cpu.name[0])
        snprintf(cpu.name, sizeof cpu.name, "unknown processor");
    const char *mask = getenv("EA_CPU");
    if (mask && *mask) {
        int top = -1;
        for (int i = 0; i < EA_CPU_N_LEVELS; i++)
            if (strcmp(mask, level_names[i]) == 0)
                top = i;
        for (int i = top + 1; top >= 0 && i < EA_CPU_N_LEVELS; i++)
            cpu.has[i] = false;
    }
}

bool ea_cpu_has(ea_cpu_level level)
{
    pthread_once(&detect_once, detect);
    return cpu.has[level];
}

const char *ea_cpu_name(void)
{
    pthread_once(&detect_once, detect);
    const char *name = cpu.name;
    while (*name == ' ')
        name++;
    return name;
}

int ea_cpu_default_threads(void)
{
    int n = 0;
    if (ea_affinity_cores(NULL, 0, &n) <= 0) {
        cpu_set_t set;
        n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    }
    ea_cgroup group;
    ea_cgroup_read(&group, "");
    if (group.cpus > 0 && group.cpus < n)
        n = (int)ceil(group.cpus);
    return EA_MIN(EA_MAX(n, 1), EA_MAX_THREADS);
}
