/* table.c: names to indices, and the small facts about value types; see internal.h. */
#include "gguf/internal.h"

#include <string.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"

ea_status ea_gguf_table_init(ea_gguf_table *t, size_t n, ea_error *err)
{
    size_t n_slots = 4;
    while (n_slots < n + n / 2) /* at most two thirds full */
        n_slots *= 2;
    *t = (ea_gguf_table){.slots = ea_calloc(n_slots, sizeof *t->slots),
                         .hashes = ea_calloc(n_slots, sizeof *t->hashes),
                         .mask = n_slots - 1,
                         .seed = ea_random_u64()};
    if (!t->slots || !t->hashes) {
        ea_gguf_table_done(t);
        return ea_fail(err, EA_ENOMEM, "out of memory: table of %zu names", n);
    }
    return EA_OK;
}

void ea_gguf_table_done(ea_gguf_table *t)
{
    ea_free(t->slots);
    ea_free(t->hashes);
    *t = (ea_gguf_table){NULL, NULL, 0, 0};
}

static ea_str name_at(const void *items, size_t stride, size_t i)
{
    ea_str name;
    memcpy(&name, (const char *)items + i * stride, sizeof name);
    return name;
}

/* The slot where the name is, or the free one where it would go. */
static size_t probe(const ea_gguf_table *t, const void *items, size_t stride, ea_str name,
                    uint32_t *hash)
{
    uint64_t h = XXH3_64bits_withSeed(name.s, name.n, t->seed);
    *hash = (uint32_t)(h >> 32);
    for (size_t slot = (size_t)h & t->mask;; slot = (slot + 1) & t->mask) {
        if (!t->slots[slot])
            return slot;
        if (t->hashes[slot] != *hash)
            continue;
        ea_str have = name_at(items, stride, t->slots[slot] - 1u);
        if (have.n == name.n && memcmp(have.s, name.s, name.n) == 0)
            return slot;
    }
}

int64_t ea_gguf_table_find(const ea_gguf_table *t, const void *items, size_t stride, ea_str name)
{
    uint32_t hash;
    if (!t->slots)
        return -1;
    return (int64_t)t->slots[probe(t, items, stride, name, &hash)] - 1;
}

int64_t ea_gguf_table_insert(ea_gguf_table *t, const void *items, size_t stride, size_t i)
{
    uint32_t hash;
    size_t slot = probe(t, items, stride, name_at(items, stride, i), &hash);
    if (t->slots[slot])
        return (int64_t)t->slots[slot] - 1;
    t->slots[slot] = (uint32_t)i + 1;
    t->hashes[slot] = hash;
    return -1;
}

static const struct {
    const char *name;
    size_t n_bytes;
} types[] = {
    [EA_GGUF_U8] = {"u8", 1},       [EA_GGUF_I8] = {"i8", 1},     [EA_GGUF_U16] = {"u16", 2},
    [EA_GGUF_I16] = {"i16", 2},     [EA_GGUF_U32] = {"u32", 4},   [EA_GGUF_I32] = {"i32", 4},
    [EA_GGUF_F32] = {"f32", 4},     [EA_GGUF_BOOL] = {"bool", 1}, [EA_GGUF_STRING] = {"string", 0},
    [EA_GGUF_ARRAY] = {"array", 0}, [EA_GGUF_U64] = {"u64", 8},   [EA_GGUF_I64] = {"i64", 8},
    [EA_GGUF_F64] = {"f64", 8},
};

size_t ea_gguf_type_bytes(uint32_t type)
{
    return type < EA_ARRAY_LEN(types) ? types[type].n_bytes : 0;
}

const char *ea_gguf_type_name(uint32_t type)
{
    return type < EA_ARRAY_LEN(types) ? types[type].name : "unknown";
}
