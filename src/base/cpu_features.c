/* cpu_features.c: what the processor says of itself, flag by flag, and what the system adds to it.
 * Whether a level is used is cpu.c's decision. CPUID leaves: Intel SDM vol. 2A, CPUID; the names
 * are Linux's (arch/x86/include/asm/cpufeatures.h). */
#include "base/machine.h"

#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/cpu.h"

#if defined(__x86_64__)

enum { EAX, EBX, ECX, EDX };

typedef struct flag {
    const char *name;
    uint32_t leaf, sub;
    int reg, bit;
} flag;

static const flag flags[] = {
    {"sse4_2", 1, 0, ECX, 20},     {"fma", 1, 0, ECX, 12},         {"f16c", 1, 0, ECX, 29},
    {"bmi2", 7, 0, EBX, 8},        {"avx2", 7, 0, EBX, 5},         {"avx_vnni", 7, 1, EAX, 4},
    {"avx512f", 7, 0, EBX, 16},    {"avx512dq", 7, 0, EBX, 17},    {"avx512cd", 7, 0, EBX, 28},
    {"avx512bw", 7, 0, EBX, 30},   {"avx512vl", 7, 0, EBX, 31},    {"avx512_vnni", 7, 0, ECX, 11},
    {"avx512_bf16", 7, 1, EAX, 5}, {"avx512_fp16", 7, 0, EDX, 23}, {"amx_bf16", 7, 0, EDX, 22},
    {"amx_tile", 7, 0, EDX, 24},   {"amx_int8", 7, 0, EDX, 25},
};

static bool has_flag(const flag *f)
{
    uint32_t r[4], top[4] = {0};
    if (f->sub > 0 && (!__get_cpuid_count(f->leaf, 0, &top[EAX], &top[EBX], &top[ECX], &top[EDX]) ||
                       top[EAX] < f->sub))
        return false;
    return __get_cpuid_count(f->leaf, f->sub, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) &&
           (r[f->reg] >> f->bit & 1);
}

size_t ea_cpu_features(ea_cpu_feature *out, size_t n)
{
    for (size_t i = 0; i < EA_MIN(n, EA_ARRAY_LEN(flags)); i++)
        out[i] = (ea_cpu_feature){flags[i].name, has_flag(&flags[i])};
    return EA_ARRAY_LEN(flags);
}

/* Registers that the system saves for us (XCR0: SDM vol. 1, 13.3). */
static uint64_t read_xcr0(void)
{
    static const flag osxsave = {"osxsave", 1, 0, ECX, 27};
    uint32_t lo, hi;
    if (!has_flag(&osxsave))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* Has Linux given this process the matrix unit's registers? ARCH_GET_XCOMP_PERM, feature 18; they
 * are asked for when levels are detected (cpu.c). */
static bool amx_granted(void)
{
#ifdef SYS_arch_prctl
    uint64_t granted = 0;
    (void)ea_cpu_has(EA_CPU_AMX);
    return syscall(SYS_arch_prctl, 0x1022, &granted) == 0 && (granted >> 18 & 1);
#else
    return false;
#endif
}

static ea_permission permission(bool present, bool granted)
{
    return !present  ? EA_PERMISSION_ABSENT
           : granted ? EA_PERMISSION_GRANTED
                     : EA_PERMISSION_REFUSED;
}

void ea_machine_read_registers(ea_machine *m)
{
    static const flag avx = {"avx", 1, 0, ECX, 28}, avx512 = {"avx512f", 7, 0, EBX, 16},
                      amx = {"amx_tile", 7, 0, EDX, 24}, hypervisor = {"hypervisor", 1, 0, ECX, 31};
    uint64_t xcr0 = read_xcr0();
    m->is_virtual = has_flag(&hypervisor);
    m->avx = permission(has_flag(&avx), (xcr0 & 0x6) == 0x6);
    m->avx512 = permission(has_flag(&avx512), (xcr0 & 0xe6) == 0xe6);
    m->amx = permission(has_flag(&amx), (xcr0 & 0x60000) == 0x60000 && amx_granted());
}

#else

size_t ea_cpu_features(ea_cpu_feature *out, size_t n)
{
    (void)out;
    (void)n;
    return 0;
}

void ea_machine_read_registers(ea_machine *m)
{
    (void)m;
}

#endif
