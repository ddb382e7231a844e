/* SPDX-License-Identifier: Apache-2.0 */
/* A job's secret: where it comes from, the keys and proofs made of it, and how
 * connections must be protected. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/seal.h"
#include "net/secret.h"

static oari_secret_part text(const char *t)
{
    return (oari_secret_part){ t, strlen(t) };
}

static void to_hex(const unsigned char *bytes, size_t count, char *hex)
{
    for (size_t i = 0; i < count; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
}

static void assert_hex(const unsigned char *bytes, size_t count,
                       const char *expected)
{
    char hex[256];

    to_hex(bytes, count, hex);
    assert_string_equal(hex, expected);
}

/* ---- arithmetic ---------------------------------------------------------- */

static void hmac_is_that_of_rfc_4231(void **state)
{
    unsigned char key[131], mac[32];
    oari_secret_part hi = text("Hi There"), parts[3];

    memset(key, 0x0b, 20);
    assert_int_equal(
        oari_secret_hmac((oari_secret_part){ key, 20 }, &hi, 1, mac), OAR_OK);
    assert_hex(
        mac, 32,
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    parts[0] = text("what do ya ");
    parts[1] = text("");
    parts[2] = text("want for nothing?");
    assert_int_equal(oari_secret_hmac(text("Jefe"), parts, 3, mac), OAR_OK);
    assert_hex(
        mac, 32,
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    parts[0] = text("Test Using Larger Than Block-Size Key - Hash Key First");
    assert_int_equal(
        oari_secret_hmac((oari_secret_part){ key, sizeof key }, parts, 1, mac),
        OAR_OK);
    assert_hex(
        mac, 32,
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void hkdf_is_that_of_rfc_5869(void **state)
{
    unsigned char key[22], salt[13], info[10], out[42];

    memset(key, 0x0b, sizeof key);
    for (size_t i = 0; i < sizeof salt; i++)
        salt[i] = (unsigned char)i;
    for (size_t i = 0; i < sizeof info; i++)
        info[i] = (unsigned char)(0xf0 + i);
    assert_int_equal(oari_secret_hkdf((oari_secret_part){ key, sizeof key },
                                      (oari_secret_part){ salt, sizeof salt },
                                      (oari_secret_part){ info, sizeof info },
                                      out, sizeof out),
                     OAR_OK);
    assert_hex(out, sizeof out,
               "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5b"
               "f34007208d5b887185865");
}

static const oari_secret sample = {
    .bytes = { 1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16,
               17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32 },
    .known = 1
};

/* Computed by another program (Python's hmac): other builds and other machines
 * of a job must compute the same. */
static void a_key_and_a_proof_are_the_same_everywhere(void **state)
{
    const void *part[] = { "ab", "" };
    const size_t bytes[] = { 2, 0 };
    unsigned char key[32], proof[32];

    assert_int_equal(oari_secret_key(&sample, "link", 7, -1, 3, key), OAR_OK);
    assert_hex(
        key, 32,
        "eb2ab2389391f7baa7419ca392f9bc53978ec8169cf82a433f46825c79ec9df2");
    assert_int_equal(oari_secret_mac(key, part, bytes, 2, proof), OAR_OK);
    assert_hex(
        proof, 32,
        "d063a75e1ee1afca46390e361882286d36f8691df642950336e70fb4b35a7103");
}

static void another_purpose_context_or_direction_is_another_key(void **state)
{
    static const struct {
        const char *purpose;
        uint64_t context;
        int64_t caller, answerer;
    } cases[] = { { "link", 7, 2, 3 },         { "link", 7, 3, 2 },
                  { "link", 7, 2, 4 },         { "link", 7, 1, 3 },
                  { "link", 8, 2, 3 },         { "links", 7, 2, 3 },
                  { "tls", 7, 2, 3 },          { "link", 7, -1, 3 },
                  { "link", 2, 7, 3 },         { "", 7, 2, 3 },
                  { "link", 7ull << 32, 2, 3 } };
    enum { CASES = sizeof cases / sizeof *cases };
    unsigned char key[CASES + 1][32];
    oari_secret other = sample;

    for (int i = 0; i < CASES; i++)
        assert_int_equal(oari_secret_key(&sample, cases[i].purpose,
                                         cases[i].context, cases[i].caller,
                                         cases[i].answerer, key[i]),
                         OAR_OK);
    other.bytes[31] ^= 0x80;
    assert_int_equal(oari_secret_key(&other, "link", 7, 2, 3, key[CASES]),
                     OAR_OK);
    for (int i = 0; i <= CASES; i++)
        for (int j = 0; j < i; j++)
            assert_false(oari_secret_mac_equal(key[i], key[j]));
}

/* The receiver of a proof cannot send it back as its own, nor move bytes from
 * one part to the next. */
static void a_proof_is_good_for_its_key_and_its_parts_only(void **state)
{
    const void *part[] = { "ab", "c" }, *moved[] = { "a", "bc" };
    const size_t bytes[] = { 2, 1 }, moved_bytes[] = { 1, 2 };
    unsigned char there[32], back[32], proof[4][32];

    assert_int_equal(oari_secret_key(&sample, "link", 7, 2, 3, there), OAR_OK);
    assert_int_equal(oari_secret_key(&sample, "link", 7, 3, 2, back), OAR_OK);
    oari_secret_mac(there, part, bytes, 2, proof[0]);
    oari_secret_mac(back, part, bytes, 2, proof[1]);
    oari_secret_mac(there, moved, moved_bytes, 2, proof[2]);
    oari_secret_mac(there, part, bytes, 2, proof[3]);
    assert_false(oari_secret_mac_equal(proof[0], proof[1]));
    assert_false(oari_secret_mac_equal(proof[0], proof[2]));
    assert_true(oari_secret_mac_equal(proof[0], proof[3]));
    for (int bit = 0; bit < 256; bit++) {
        proof[3][bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_false(oari_secret_mac_equal(proof[0], proof[3]));
        proof[3][bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
}

static void without_a_secret_there_is_no_key(void **state)
{
    oari_secret none = sample;
    unsigned char key[32];

    none.known = 0;
    assert_int_equal(oari_secret_key(&none, "link", 0, 0, 1, key),
                     OAR_E_INTERNAL);
}

/* ---- where it comes from ------------------------------------------------- */

static void clear_environment(void)
{
    unsetenv("OARSONG_SECRET");
    unsetenv("OARSONG_SECRET_FILE");
    unsetenv("OARSONG_WIRE");
}

static int fresh(void **state)
{
    clear_environment();
    return 0;
}

static void secrets_that_are_made_differ(void **state)
{
    oari_secret a, b;

    assert_int_equal(oari_secret_make(&a), OAR_OK);
    assert_int_equal(oari_secret_make(&b), OAR_OK);
    assert_true(a.known && b.known);
    assert_memory_not_equal(a.bytes, b.bytes, sizeof a.bytes);
}

static void the_environment_gives_a_secret_or_none(void **state)
{
    oari_secret found = sample;
    char hex[OARI_SECRET_HEX];

    assert_int_equal(oari_secret_find(&found), OAR_OK);
    assert_int_equal(found.known, 0);
    oari_secret_text(&sample, hex);
    setenv("OARSONG_SECRET", hex, 1);
    assert_int_equal(oari_secret_find(&found), OAR_OK);
    assert_int_equal(found.known, 1);
    assert_memory_equal(found.bytes, sample.bytes, 32);
    hex[20] = 'A';
    setenv("OARSONG_SECRET", hex, 1);
    assert_int_equal(oari_secret_find(&found), OAR_OK);
}

static void an_adopted_one_counts_where_the_environment_has_none(void **state)
{
    static const oari_secret none;
    oari_secret found, made;

    assert_int_equal(oari_secret_make(&made), OAR_OK);
    oari_secret_adopt(&made);
    assert_int_equal(oari_secret_find(&found), OAR_OK);
    assert_int_equal(found.known, 1);
    assert_memory_equal(found.bytes, made.bytes, 32);
    {
        char hex[OARI_SECRET_HEX];
        oari_secret_text(&sample, hex);
        setenv("OARSONG_SECRET", hex, 1);
    }
    assert_int_equal(oari_secret_find(&found), OAR_OK);
    assert_memory_equal(found.bytes, sample.bytes, 32);
    oari_secret_adopt(&none);
}

static void what_is_no_secret_is_refused(void **state)
{
    char hex[OARI_SECRET_HEX + 1] = { 0 };
    oari_secret found = { .known = 0 };

    for (int broken = 0; broken < 3; broken++) {
        oari_secret_text(&sample, hex);
        if (broken == 0)
            hex[63] = 0;
        else if (broken == 1)
            hex[64] = '0';
        else
            hex[31] = 'g';
        setenv("OARSONG_SECRET", hex, 1);
        assert_int_equal(oari_secret_find(&found), OAR_E_ARG);
        assert_non_null(strstr(oar_last_error_text(), "OARSONG_SECRET"));
        assert_int_equal(found.known, 0);
    }
}

/* A file of so many bytes, with this mode; sets the variable. */
static void put_file(char path[64], size_t bytes, mode_t mode)
{
    char *content = calloc(1, bytes + 1);
    int fd;

    assert_non_null(content);
    memset(content, 'x', bytes);
    snprintf(path, 64, "/tmp/oarsong-secret-XXXXXX");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, bytes), (ssize_t)bytes);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
    free(content);
    setenv("OARSONG_SECRET_FILE", path, 1);
}

static void a_file_gives_the_secret_of_its_content(void **state)
{
    oari_secret a, b, c;
    char first[64], second[64], third[64];

    put_file(first, 32, 0600);
    assert_int_equal(oari_secret_find(&a), OAR_OK);
    put_file(second, 32, 0400);
    assert_int_equal(oari_secret_find(&b), OAR_OK);
    put_file(third, 33, 0600);
    assert_int_equal(oari_secret_find(&c), OAR_OK);
    unlink(first);
    unlink(second);
    unlink(third);
    assert_true(a.known && b.known && c.known);
    assert_memory_equal(a.bytes, b.bytes, 32);
    assert_memory_not_equal(a.bytes, c.bytes, 32);
}

static void a_file_that_others_may_touch_is_refused(void **state)
{
    static const mode_t modes[] = { 0640, 0604, 0620, 0602, 0610, 0777 };
    oari_secret found = { .known = 0 };
    char path[64];

    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        put_file(path, 40, modes[i]);
        assert_int_equal(oari_secret_find(&found), OAR_E_AUTH);
        assert_non_null(strstr(oar_last_error_text(), path));
        unlink(path);
    }
    assert_int_equal(found.known, 0);
}

static void a_file_of_the_wrong_size_or_kind_is_refused(void **state)
{
    oari_secret found = { .known = 0 };
    char path[64];

    put_file(path, 31, 0600);
    assert_int_equal(oari_secret_find(&found), OAR_E_ARG);
    unlink(path);
    put_file(path, (1 << 16) + 1, 0600);
    assert_int_equal(oari_secret_find(&found), OAR_E_ARG);
    unlink(path);
    assert_int_equal(oari_secret_find(&found), OAR_E_SYSTEM);
    setenv("OARSONG_SECRET_FILE", "/dev/null", 1);
    assert_int_equal(oari_secret_find(&found), OAR_E_ARG);
    assert_int_equal(found.known, 0);
}

/* ---- what a connection has to be ----------------------------------------- */

enum { REFUSED = 99 };

static void the_wire_is_what_the_table_says(void **state)
{
    static const struct {
        const char *setting;
        int known, loopback, wire;
    } table[] = {
        { NULL, 0, 1, OARI_WIRE_PLAIN },    { NULL, 0, 0, REFUSED },
        { NULL, 1, 1, OARI_WIRE_AUTH },     { NULL, 1, 0, OARI_WIRE_TLS },
        { "auto", 0, 1, OARI_WIRE_PLAIN },  { "auto", 0, 0, REFUSED },
        { "auto", 1, 1, OARI_WIRE_AUTH },   { "auto", 1, 0, OARI_WIRE_TLS },
        { "plain", 0, 1, OARI_WIRE_PLAIN }, { "plain", 0, 0, OARI_WIRE_PLAIN },
        { "plain", 1, 1, OARI_WIRE_PLAIN }, { "plain", 1, 0, OARI_WIRE_PLAIN },
        { "auth", 0, 1, REFUSED },          { "auth", 0, 0, REFUSED },
        { "auth", 1, 1, OARI_WIRE_AUTH },   { "auth", 1, 0, OARI_WIRE_AUTH },
        { "tls", 0, 1, REFUSED },           { "tls", 0, 0, REFUSED },
        { "tls", 1, 1, OARI_WIRE_TLS },     { "tls", 1, 0, OARI_WIRE_TLS },
    };

    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        oari_secret secret = { .known = table[i].known };
        oari_wire wire = (oari_wire)REFUSED;
        oar_status status;

        clear_environment();
        if (table[i].setting != NULL)
            setenv("OARSONG_WIRE", table[i].setting, 1);
        status = oari_wire_for(&secret, table[i].loopback, &wire);
        assert_int_equal(wire, table[i].wire);
        assert_int_equal(status,
                         wire == (oari_wire)REFUSED ? OAR_E_AUTH : OAR_OK);
    }
}

static void a_refusal_says_what_to_do(void **state)
{
    static const char *const words[] = { "oarsong run", "OARSONG_SECRET_FILE",
                                         "OARSONG_WIRE=plain" };
    oari_secret none = { .known = 0 };
    oari_wire wire;

    assert_int_equal(oari_wire_for(&none, 0, &wire), OAR_E_AUTH);
    for (int i = 0; i < 3; i++)
        assert_non_null(strstr(oar_last_error_text(), words[i]));
}

static void another_word_for_the_wire_is_refused(void **state)
{
    oari_wire wire;

    setenv("OARSONG_WIRE", "ssl", 1);
    assert_int_equal(oari_wire_for(&sample, 1, &wire), OAR_E_ARG);
    assert_non_null(strstr(oar_last_error_text(), "ssl"));
}

/* ---- without memory ------------------------------------------------------ */

static int starving; /* OpenSSL gets no memory */

static void *give(size_t bytes, const char *file, int line)
{
    return starving ? NULL : malloc(bytes);
}

static void *give_more(void *old, size_t bytes, const char *file, int line)
{
    return starving ? NULL : realloc(old, bytes);
}

static void take_back(void *old, const char *file, int line)
{
    free(old);
}

static void a_failed_allocation_is_not_reported_as_a_wrong_secret(void **state)
{
    unsigned char key[OARI_SEAL_KEY] = { 7 }, tag[OARI_SEAL_TAG];
    unsigned char data[17] = { 1 };
    unsigned char out[OARI_MAC_BYTES];
    oari_secret_part word = text("word");
    oar_status status[4];

    for (int i = 0; i < 2; i++) {
        starving = i;
        status[0] = oari_secret_hmac(word, &word, 1, out);
        status[1] = oari_secret_hkdf(word, word, word, out, sizeof out);
        status[2] = oari_seal(key, 3, data, sizeof data, tag);
        status[3] = oari_unseal(key, 3, data, sizeof data, tag);
        starving = 0;
        for (int k = 0; k < 4; k++)
            assert_int_equal(status[k], i == 1 ? OAR_E_NOMEM : OAR_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hmac_is_that_of_rfc_4231),
        cmocka_unit_test(a_failed_allocation_is_not_reported_as_a_wrong_secret),
        cmocka_unit_test(hkdf_is_that_of_rfc_5869),
        cmocka_unit_test(a_key_and_a_proof_are_the_same_everywhere),
        cmocka_unit_test(another_purpose_context_or_direction_is_another_key),
        cmocka_unit_test(a_proof_is_good_for_its_key_and_its_parts_only),
        cmocka_unit_test(without_a_secret_there_is_no_key),
        cmocka_unit_test(secrets_that_are_made_differ),
        cmocka_unit_test_setup(the_environment_gives_a_secret_or_none, fresh),
        cmocka_unit_test_setup(
            an_adopted_one_counts_where_the_environment_has_none, fresh),
        cmocka_unit_test_setup(what_is_no_secret_is_refused, fresh),
        cmocka_unit_test_setup(a_file_gives_the_secret_of_its_content, fresh),
        cmocka_unit_test_setup(a_file_that_others_may_touch_is_refused, fresh),
        cmocka_unit_test_setup(a_file_of_the_wrong_size_or_kind_is_refused,
                               fresh),
        cmocka_unit_test_setup(the_wire_is_what_the_table_says, fresh),
        cmocka_unit_test_setup(a_refusal_says_what_to_do, fresh),
        cmocka_unit_test_setup(another_word_for_the_wire_is_refused, fresh),
    };

    if (!CRYPTO_set_mem_functions(give, give_more, take_back))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
