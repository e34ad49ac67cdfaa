/* keys.c: typed access to keys; every message names file, key and value. */
#include "gguf/internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const ea_gguf_kv *find(const ea_gguf *g, const char *key)
{
    int64_t i =
        ea_gguf_table_find(&g->kv_table, g->kvs, sizeof *g->kvs, (ea_str){key, strlen(key)});
    return i < 0 ? NULL : &g->kvs[i];
}

static ea_status find_or_fail(const ea_gguf *g, const char *key, const ea_gguf_kv **out,
                              ea_error *err)
{
    *out = find(g, key);
    if (!*out)
        return ea_fail(err, EA_ENOTFOUND, "%s: key '%s' is missing", ea_gguf_path(g), key);
    return EA_OK;
}

static ea_status wrong_type(const ea_gguf *g, const ea_gguf_kv *kv, const char *want, ea_error *err)
{
    return ea_fail(err, EA_EFORMAT, "%s: key '%.*s' has type %s, expected %s", ea_gguf_path(g),
                   (int)kv->key.n, kv->key.s, ea_gguf_type_name(kv->type), want);
}

bool ea_gguf_has(const ea_gguf *g, const char *key)
{
    return find(g, key) != NULL;
}

#define LOAD(type, p)                                  \
    (__extension__({                                   \
        type load_value_;                              \
        memcpy(&load_value_, (p), sizeof load_value_); \
        load_value_;                                   \
    }))

static bool is_integer(ea_gguf_type type)
{
    return type != EA_GGUF_F32 && type != EA_GGUF_F64 && type != EA_GGUF_BOOL &&
           ea_gguf_type_bytes(type) != 0;
}

/* An integer or bool; u64 past INT64_MAX becomes INT64_MAX, which no range of ours reaches. */
static int64_t load_int(ea_gguf_type type, const uint8_t *p)
{
    switch (type) {
    case EA_GGUF_U8:
    case EA_GGUF_BOOL: return *p;
    case EA_GGUF_I8: return LOAD(int8_t, p);
    case EA_GGUF_U16: return LOAD(uint16_t, p);
    case EA_GGUF_I16: return LOAD(int16_t, p);
    case EA_GGUF_U32: return LOAD(uint32_t, p);
    case EA_GGUF_I32: return LOAD(int32_t, p);
    case EA_GGUF_U64: return (int64_t)EA_MIN(LOAD(uint64_t, p), (uint64_t)INT64_MAX);
    case EA_GGUF_I64: return LOAD(int64_t, p);
    default: EA_ASSERT(type == EA_GGUF_I64); return 0;
    }
}

static double load_float(ea_gguf_type type, const uint8_t *p)
{
    if (type == EA_GGUF_F32)
        return (double)LOAD(float, p);
    if (type == EA_GGUF_F64)
        return LOAD(double, p);
    return (double)load_int(type, p);
}

ea_status ea_gguf_get_int(const ea_gguf *g, const char *key, int64_t min, int64_t max, int64_t *out,
                          ea_error *err)
{
    const ea_gguf_kv *kv;
    EA_TRY(find_or_fail(g, key, &kv, err));
    if (!is_integer(kv->type))
        return wrong_type(g, kv, "an integer", err);
    int64_t value = load_int(kv->type, kv->value);
    bool wrapped = kv->type == EA_GGUF_U64 && ea_load_u64(kv->value) > INT64_MAX;
    if (wrapped)
        return ea_fail(err, EA_EFORMAT, "%s: key '%s' is %" PRIu64 ", not in %" PRId64 "..%" PRId64,
                       ea_gguf_path(g), key, ea_load_u64(kv->value), min, max);
    if (value < min || value > max)
        return ea_fail(err, EA_EFORMAT, "%s: key '%s' is %" PRId64 ", not in %" PRId64 "..%" PRId64,
                       ea_gguf_path(g), key, value, min, max);
    *out = value;
    return EA_OK;
}

ea_status ea_gguf_get_float(const ea_gguf *g, const char *key, double *out, ea_error *err)
{
    const ea_gguf_kv *kv;
    EA_TRY(find_or_fail(g, key, &kv, err));
    if (kv->type != EA_GGUF_F32 && kv->type != EA_GGUF_F64)
        return wrong_type(g, kv, "f32", err);
    double value = load_float(kv->type, kv->value);
    if (!isfinite(value))
        return ea_fail(err, EA_EFORMAT, "%s: key '%s' is %g, expected a finite number",
                       ea_gguf_path(g), key, value);
    *out = value;
    return EA_OK;
}

ea_status ea_gguf_get_bool(const ea_gguf *g, const char *key, bool *out, ea_error *err)
{
    const ea_gguf_kv *kv;
    EA_TRY(find_or_fail(g, key, &kv, err));
    if (kv->type != EA_GGUF_BOOL)
        return wrong_type(g, kv, "bool", err);
    *out = *kv->value != 0;
    return EA_OK;
}

ea_status ea_gguf_get_str(const ea_gguf *g, const char *key, ea_str *out, ea_error *err)
{
    const ea_gguf_kv *kv;
    EA_TRY(find_or_fail(g, key, &kv, err));
    if (kv->type != EA_GGUF_STRING)
        return wrong_type(g, kv, "string", err);
    *out = (ea_str){(const char *)kv->value, (size_t)kv->n};
    return EA_OK;
}

ea_status ea_gguf_get_int_or(const ea_gguf *g, const char *key, int64_t min, int64_t max,
                             int64_t fallback, int64_t *out, ea_error *err)
{
    if (find(g, key))
        return ea_gguf_get_int(g, key, min, max, out, err);
    *out = fallback;
    return EA_OK;
}

ea_status ea_gguf_get_float_or(const ea_gguf *g, const char *key, double fallback, double *out,
                               ea_error *err)
{
    if (find(g, key))
        return ea_gguf_get_float(g, key, out, err);
    *out = fallback;
    return EA_OK;
}

ea_status ea_gguf_get_bool_or(const ea_gguf *g, const char *key, bool fallback, bool *out,
                              ea_error *err)
{
    if (find(g, key))
        return ea_gguf_get_bool(g, key, out, err);
    *out = fallback;
    return EA_OK;
}

ea_status ea_gguf_get_array(const ea_gguf *g, const char *key, ea_gguf_array *out, ea_error *err)
{
    const ea_gguf_kv *kv;
    EA_TRY(find_or_fail(g, key, &kv, err));
    if (kv->type != EA_GGUF_ARRAY)
        return wrong_type(g, kv, "array", err);
    *out = (ea_gguf_array){kv->elem, kv->n, kv->value, kv->str_offs};
    return EA_OK;
}

ea_str ea_gguf_array_str(const ea_gguf_array *a, uint64_t i)
{
    EA_ASSERT(a->type == EA_GGUF_STRING && i < a->n);
    const uint8_t *p = a->data + a->str_offs[i];
    return (ea_str){(const char *)p + 8, (size_t)ea_load_u64(p)};
}

int64_t ea_gguf_array_int(const ea_gguf_array *a, uint64_t i)
{
    EA_ASSERT((is_integer(a->type) || a->type == EA_GGUF_BOOL) && i < a->n);
    return load_int(a->type, a->data + i * ea_gguf_type_bytes(a->type));
}

double ea_gguf_array_float(const ea_gguf_array *a, uint64_t i)
{
    EA_ASSERT(ea_gguf_type_bytes(a->type) != 0 && i < a->n);
    return load_float(a->type, a->data + i * ea_gguf_type_bytes(a->type));
}
