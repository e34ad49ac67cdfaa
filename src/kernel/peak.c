/* peak.c: the list of the levels' loops; see peak.h. */
#include "kernel/peak.h"

#include "base/error.h"

static const ea_peak_loops loops[] = {
    {EA_CPU_REF, ea_peak_int8__ref, ea_peak_f32__ref, ea_peak_read__ref},
#if defined(__x86_64__)
    {EA_CPU_AVX2, ea_peak_int8__avx2, ea_peak_f32__avx2, ea_peak_read__avx2},
    {EA_CPU_AVX2VNNI, ea_peak_int8__avx2vnni, NULL, NULL},
    {EA_CPU_AVX512, ea_peak_int8__avx512, ea_peak_f32__avx512, ea_peak_read__avx512},
    {EA_CPU_AVX512VNNI, ea_peak_int8__avx512vnni, NULL, NULL},
    {EA_CPU_AMX, ea_peak_int8__amx, NULL, NULL},
#endif
};

const ea_peak_loops *ea_peak_loops_all(size_t *n)
{
    *n = EA_ARRAY_LEN(loops);
    return loops;
}
