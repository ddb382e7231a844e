/* SPDX-License-Identifier: Apache-2.0 */
/* hash: the same bytes give the same hash, whatever type they were written as.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/hash.h"

/* Longer than what XXH3 reads word by word: the rest is read by vectors. */
typedef struct mixed {
    int64_t wide;
    int narrow;
    int64_t number[40];
} mixed;

static void known_values(void **state)
{
    uint64_t hash[2];

    (void)state;
    /* From the test vectors of xxHash. */
    assert_true(oari_hash64("", 0, 0) == UINT64_C(0x2D06800538D394C2));
    oari_hash128("", 0, hash);
    assert_true(hash[0] == UINT64_C(0x6001C324468D497F));
    assert_true(hash[1] == UINT64_C(0x99AA06D3014798D8));
}

static void what_was_just_written_is_hashed(void **state)
{
    uint64_t before[2] = { 0 };

    (void)state;
    for (int i = 0; i < 100; i++) {
        mixed what;
        unsigned char copy[sizeof what];
        uint64_t hash[2], of_copy[2];

        memset(&what, 0, sizeof what);
        what.wide = i / 2;
        what.narrow = i % 2;
        for (int k = 0; k < 40; k++)
            what.number[k] = k % 7;
        oari_hash128(&what, sizeof what, hash);
        for (size_t k = 0; k < sizeof what; k++)
            copy[k] = ((volatile unsigned char *)&what)[k];
        oari_hash128(copy, sizeof copy, of_copy);
        assert_memory_equal(hash, of_copy, sizeof hash);
        assert_true(oari_hash64(&what, sizeof what, 3) ==
                    oari_hash64(copy, sizeof copy, 3));
        assert_memory_not_equal(hash, before, sizeof hash);
        memcpy(before, hash, sizeof hash);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_values),
        cmocka_unit_test(what_was_just_written_is_hashed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
