/* kernel.c: dispatch. The tables of the levels that this machine has are overlaid in ascending
 * order, once; the public functions of kernel.h call through the result. The overlaid table is
 * written before any thread reads it (pthread_once) and never after. */
#include "kernel/kernel.h"

#include <pthread.h>

#include "base/buf.h"
#include "kernel/table.h"

static const ea_kernel_level levels[] = {
    {EA_CPU_REF, &ea_kernel_ref},
#if defined(__x86_64__)
    {EA_CPU_AVX2, &ea_kernel_avx2},     {EA_CPU_AVX2VNNI, &ea_kernel_avx2vnni},
    {EA_CPU_AVX512, &ea_kernel_avx512}, {EA_CPU_AVX512VNNI, &ea_kernel_avx512vnni},
    {EA_CPU_AMX, &ea_kernel_amx},
#endif
};

/* The chosen kernels, and for each slot the level that it came from. */
static struct {
    ea_kernel_table table;
    struct {
#define EA_SLOT(name, ret, args, names) const char *name;
#define EA_MATMUL(name, dtype) const char *matmul_##name;
#include "kernel/kernel_slots.def"
#undef EA_SLOT
#undef EA_MATMUL
    } from;
} chosen;
static pthread_once_t choose_once = PTHREAD_ONCE_INIT;

static void overlay(const ea_kernel_table *table, const char *level)
{
#define OVERLAY(slot)                    \
    if (table->slot) {                   \
        chosen.table.slot = table->slot; \
        chosen.from.slot = level;        \
    }
#define EA_SLOT(name, ret, args, names) OVERLAY(name)
#define EA_MATMUL(name, dtype) OVERLAY(matmul_##name)
#include "kernel/kernel_slots.def"
#undef EA_SLOT
#undef EA_MATMUL
#undef OVERLAY
}

static void choose(void)
{
    for (size_t i = 0; i < EA_ARRAY_LEN(levels); i++)
        if (ea_cpu_has(levels[i].level))
            overlay(levels[i].table, ea_cpu_level_name(levels[i].level));
}

const ea_kernel_level *ea_kernel_levels(size_t *n)
{
    *n = EA_ARRAY_LEN(levels);
    return levels;
}

const ea_kernel_table *ea_kernel(void)
{
    pthread_once(&choose_once, choose);
    return &chosen.table;
}

const ea_matmul_impl *ea_kernel_matmul(const ea_kernel_table *table, ea_dtype type)
{
    switch (type) {
#define EA_SLOT(name, ret, args, names)
#define EA_MATMUL(name, dtype) \
    case EA_DTYPE_##dtype:     \
        return table->matmul_##name;
#include "kernel/kernel_slots.def"
#undef EA_SLOT
#undef EA_MATMUL
    default: return NULL;
    }
}

/* The public row operators and attention. */
#define RETURN_void
#define RETURN_int return
#define EA_SLOT(name, ret, args, names)       \
    ret ea_##name args                        \
    {                                         \
        RETURN_##ret ea_kernel()->name names; \
    }
#define EA_MATMUL(name, dtype)
#include "kernel/kernel_slots.def"
#undef EA_SLOT
#undef EA_MATMUL

void ea_kernel_report(struct ea_buf *buf)
{
    ea_kernel();
#define REPORT(label, slot) \
    ea_buf_printf(buf, "  %-16s %s\n", label, chosen.from.slot ? chosen.from.slot : "missing");
#define EA_SLOT(name, ret, args, names) REPORT(#name, name)
#define EA_MATMUL(name, dtype) REPORT("matmul " #dtype, matmul_##name)
#include "kernel/kernel_slots.def"
#undef EA_SLOT
#undef EA_MATMUL
#undef REPORT
}

/* ---- the list for the public interface ---- */

/* Append the levels that have a slot, ascending. */
#define ADD_SLOT(op_, format_, slot)                                                 \
    for (size_t i = 0; i < EA_ARRAY_LEN(levels); i++)                                \
        if (levels[i].table->slot) {                                                 \
            const char *level = ea_cpu_level_name(levels[i].level);                  \
            if (count < n)                                                           \
                out[count] = (ea_kernel_info){.op = op_,                             \
                                              .format = format_,                     \
                                              .level = level,                        \
                                              .usable = ea_cpu_has(levels[i].level), \
                                              .used = chosen.from.slot == level};    \
            count++;                                                                 \
        }

size_t ea_kernels(ea_kernel_info *out, size_t n)
{
    size_t count = 0;
    ea_kernel();
#define EA_SLOT(name, ret, args, names) ADD_SLOT(#name, "", name)
#define EA_MATMUL(name, dtype) ADD_SLOT("matmul", #dtype, matmul_##name)
#include "kernel/kernel_slots.def"
#undef EA_SLOT
#undef EA_MATMUL
    return count;
}
#undef ADD_SLOT
