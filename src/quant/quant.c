/* quant.c: the table of formats; see quant.h. */
#include "quant/quant.h"

#include <strings.h>

#include "quant/convert.h"

#define WEIGHT(fn, type, block, bytes) \
    {EA_DTYPE_##type, #type, block, bytes, true, ea_dequantise_##fn, ea_quantise_##fn},
#define PLAIN(type, bytes)                                  \
    {                                                       \
        EA_DTYPE_##type, #type, 1, bytes, false, NULL, NULL \
    }

static const ea_dtype_info formats[] = {
    EA_WEIGHT_FORMATS(WEIGHT) /* and what may be in a file but is no matrix: */
    PLAIN(I8, 1),
    PLAIN(I16, 2),
    PLAIN(I32, 4),
    PLAIN(I64, 8),
    PLAIN(F64, 8),
};

const ea_dtype_info *ea_dtype_find(uint32_t id)
{
    for (size_t i = 0; i < EA_ARRAY_LEN(formats); i++)
        if ((uint32_t)formats[i].type == id)
            return &formats[i];
    return NULL;
}

const ea_dtype_info *ea_dtype_by_name(const char *name)
{
    for (size_t i = 0; i < EA_ARRAY_LEN(formats); i++)
        if (strcasecmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

size_t ea_dtype_row_bytes(ea_dtype type, int64_t n)
{
    const ea_dtype_info *info = ea_dtype_find((uint32_t)type);
    EA_ASSERT(info && n >= 0 && n % info->block == 0);
    return (size_t)(n / info->block) * (size_t)info->block_bytes;
}
