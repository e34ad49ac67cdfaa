/* test_kv_parts.c: keys, the key index and the eviction heap, each against a naive model. */
#include "support.h"

#include "kv/heap.h"
#include "kv/index.h"
#include "kv/key.h"

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void test_keys_depend_on_everything(void **state)
{
    (void)state;
    ea_key128 root = ea_key_root(1, 0, 0);
    assert_true(ea_key_equal(root, ea_key_root(1, 0, 0)));
    assert_false(ea_key_equal(root, ea_key_root(2, 0, 0)));
    assert_false(ea_key_equal(root, ea_key_root(1, 1, 0)));
    assert_false(ea_key_equal(root, ea_key_root(1, 0, 1)));
    ea_key128 ab = ea_key_next(ea_key_next(root, 'a'), 'b');
    assert_true(ea_key_equal(ab, ea_key_next(ea_key_next(root, 'a'), 'b')));
    assert_false(ea_key_equal(ab, ea_key_next(ea_key_next(root, 'b'), 'a')));
    assert_false(ea_key_equal(ab, ea_key_next(root, 'b')));
}

enum { N_ENTRIES = 64, N_KEYS = 24 };

static void compare_index(const ea_kv_index *ix, const int *key_of, const ea_key128 *keys)
{
    for (int k = 0; k < N_KEYS; k++) {
        int expected = 0, found = 0;
        for (int e = 0; e < N_ENTRIES; e++)
            expected += key_of[e] == k;
        for (int32_t e = ea_kv_index_find(ix, keys[k]); e >= 0; e = ix->dup_next[e]) {
            assert_int_equal(key_of[e], k);
            assert_int_equal(ea_kv_index_has_twin(ix, e), expected > 1);
            found++;
        }
        assert_int_equal(found, expected);
    }
}

static void test_index_matches_naive(void **state)
{
    (void)state;
    ea_error err = {0};
    ea_kv_index ix;
    assert_ok(ea_kv_index_init(&ix, N_ENTRIES, &err), &err);
    ea_key128 keys[N_KEYS];
    int key_of[N_ENTRIES];
    uint64_t rng = 7;
    for (int k = 0; k < N_KEYS; k++) /* three buckets only: long chains */
        keys[k] = (ea_key128){(uint64_t)(k % 3), (uint64_t)k};
    for (int e = 0; e < N_ENTRIES; e++)
        key_of[e] = -1;
    for (int round = 0; round < 5000; round++) {
        int e = (int)(next_random(&rng) % N_ENTRIES);
        if (key_of[e] >= 0) {
            ea_kv_index_remove(&ix, e);
            key_of[e] = -1;
        } else {
            key_of[e] = (int)(next_random(&rng) % N_KEYS);
            ea_kv_index_insert(&ix, e, keys[key_of[e]]);
        }
        compare_index(&ix, key_of, keys);
    }
    ea_kv_index_done(&ix);
}

static void test_heap_gives_the_oldest(void **state)
{
    (void)state;
    ea_error err = {0};
    ea_kv_heap heap;
    enum { N = 50 };
    uint64_t time_of[N] = {0}, rng = 3; /* 0 = not in the heap */
    assert_ok(ea_kv_heap_init(&heap, N, &err), &err);
    assert_int_equal(ea_kv_heap_oldest(&heap), -1);
    for (int round = 0; round < 20000; round++) {
        int p = (int)(next_random(&rng) % N);
        if (next_random(&rng) % 3 == 0) {
            ea_kv_heap_remove(&heap, p);
            time_of[p] = 0;
        } else {
            time_of[p] = 1 + next_random(&rng) % 1000;
            ea_kv_heap_put(&heap, p, time_of[p]);
        }
        uint64_t oldest = UINT64_MAX;
        int n = 0;
        for (int i = 0; i < N; i++)
            if (time_of[i]) {
                oldest = EA_MIN(oldest, time_of[i]);
                n++;
            }
        assert_int_equal(heap.n, n);
        int32_t got = ea_kv_heap_oldest(&heap);
        if (n)
            assert_int_equal(time_of[got], oldest);
        else
            assert_int_equal(got, -1);
    }
    ea_kv_heap_done(&heap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_depend_on_everything),
        cmocka_unit_test(test_index_matches_naive),
        cmocka_unit_test(test_heap_gives_the_oldest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
