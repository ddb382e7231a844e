/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed records: only the holder of the key can read or make them. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

#include "net/seal.h"
#include "support/last_error.h"

/* Case 14 of the specification of GCM: a key and a nonce of zeros. */
static void sealing_is_aes_256_gcm(void **state)
{
    static const unsigned char cipher[16] = {
        0xce, 0xa7, 0x40, 0x3d, 0x4d, 0x60, 0x6b, 0x6e,
        0x07, 0x4e, 0xc5, 0xd3, 0xba, 0xf3, 0x9d, 0x18,
    };
    static const unsigned char expected[OARI_SEAL_TAG] = {
        0xd0, 0xd1, 0xc8, 0xa7, 0x99, 0x99, 0x6b, 0xf0,
        0x26, 0x5b, 0x98, 0xb5, 0xd4, 0x8a, 0xb9, 0x19,
    };
    unsigned char key[OARI_SEAL_KEY] = { 0 }, data[16] = { 0 };
    unsigned char tag[OARI_SEAL_TAG];

    OK(oari_seal(key, 0, data, sizeof data, tag));
    assert_memory_equal(data, cipher, sizeof data);
    assert_memory_equal(tag, expected, sizeof tag);
}

static void what_is_sealed_is_read(void **state)
{
    unsigned char key[OARI_SEAL_KEY] = { 5 }, data[803], was[803];
    unsigned char tag[OARI_SEAL_TAG];

    for (size_t bytes = 0; bytes <= sizeof data; bytes += 73) {
        memset(data, 0x11, sizeof data);
        memcpy(was, data, sizeof was);
        OK(oari_seal(key, 9, data, bytes, tag));
        OK(oari_unseal(key, 9, data, bytes, tag));
        assert_memory_equal(data, was, sizeof data);
    }
}

/* Another key, another number, any bit of the record or of its tag. */
static void nothing_else_is_read(void **state)
{
    unsigned char key[OARI_SEAL_KEY] = { 5 }, data[33] = { 1 };
    unsigned char sealed[33], tag[OARI_SEAL_TAG];

    OK(oari_seal(key, 9, data, sizeof data, tag));
    for (size_t bit = 0; bit < 8 * (sizeof data + sizeof tag); bit++) {
        unsigned char other[OARI_SEAL_TAG];
        memcpy(sealed, data, sizeof data);
        memcpy(other, tag, sizeof tag);
        if (bit < 8 * sizeof data)
            sealed[bit / 8] ^= (unsigned char)(1 << bit % 8);
        else
            other[bit / 8 - sizeof data] ^= (unsigned char)(1 << bit % 8);
        assert_fails_with(oari_unseal(key, 9, sealed, sizeof sealed, other),
                          OAR_E_AUTH, "was not sealed");
    }
    memcpy(sealed, data, sizeof data);
    assert_int_equal(oari_unseal(key, 10, sealed, sizeof sealed, tag),
                     OAR_E_AUTH);
    key[31] = 1;
    memcpy(sealed, data, sizeof data);
    assert_int_equal(oari_unseal(key, 9, sealed, sizeof sealed, tag),
                     OAR_E_AUTH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sealing_is_aes_256_gcm),
        cmocka_unit_test(what_is_sealed_is_read),
        cmocka_unit_test(nothing_else_is_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
