/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers: text to numbers and back, and malformed text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/data.h>
#include <oarsong/memory.h>

#include "support/leak_check.h"
#include "support/last_error.h"

/* Four lengths: a, e acute, the euro, a grin. */
static const char mixed[] = "ba\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"
                            "a\xc3\xa9";

static oar_tokenizer *of_text(const char *text)
{
    oar_tokenizer *t;

    OK(oar_tokenizer_characters(text, strlen(text), &t));
    return t;
}

static void there_and_back(const oar_tokenizer *t, const char *text,
                           size_t bytes)
{
    int64_t *token;
    size_t count, length;
    char *again;

    OK(oar_tokenizer_encode(t, text, bytes, &token, &count));
    OK(oar_tokenizer_decode(t, token, count, &again, &length));
    assert_int_equal(length, bytes);
    assert_memory_equal(again, text, bytes);
    assert_int_equal(again[bytes], 0);
    oar_free(again);
    OK(oar_tokenizer_decode(t, token, count, &again, NULL));
    oar_free(again);
    oar_free(token);
}

static void every_byte_is_a_token(void **state)
{
    char text[256];
    oar_tokenizer *t;
    int64_t *token;
    size_t count;

    for (int i = 0; i < 256; i++)
        text[i] = (char)(255 - i);
    OK(oar_tokenizer_bytes(&t));
    assert_int_equal(oar_tokenizer_count(t), 256);
    OK(oar_tokenizer_encode(t, text, sizeof text, &token, &count));
    assert_int_equal(count, 256);
    for (int i = 0; i < 256; i++)
        assert_int_equal(token[i], 255 - i);
    oar_free(token);
    there_and_back(t, text, sizeof text);
    there_and_back(t, NULL, 0);
    oar_tokenizer_destroy(t);
}

static void characters_are_numbered_by_code_point(void **state)
{
    const int64_t want[] = { 1, 0, 2, 3, 4, 0, 2 };
    oar_tokenizer *t = of_text(mixed);
    int64_t *token;
    size_t count;

    assert_int_equal(oar_tokenizer_count(t), 5);
    OK(oar_tokenizer_encode(t, mixed, strlen(mixed), &token, &count));
    assert_int_equal(count, 7);
    assert_memory_equal(token, want, sizeof want);
    oar_free(token);
    there_and_back(t, mixed, strlen(mixed));
    there_and_back(t, "", 0);
    oar_tokenizer_destroy(t);
}

static void a_zero_byte_is_a_character_too(void **state)
{
    oar_tokenizer *t;

    OK(oar_tokenizer_characters("a\0b", 3, &t));
    assert_int_equal(oar_tokenizer_count(t), 3);
    there_and_back(t, "\0ab\0", 4);
    oar_tokenizer_destroy(t);
}

/* The first and last code points of each length. */
static void the_borders_of_utf8_are_inside(void **state)
{
    const char text[] = "\x01\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf"
                        "\xee\x80\x80\xef\xbf\xbf\xf0\x90\x80\x80"
                        "\xf4\x8f\xbf\xbf";
    oar_tokenizer *t = of_text(text);

    assert_int_equal(oar_tokenizer_count(t), 10);
    there_and_back(t, text, strlen(text));
    oar_tokenizer_destroy(t);
}

static void malformed_text_is_refused_with_its_place(void **state)
{
    static const char *const bad[] = {
        "\x80",     /* begins in the middle */
        "\xc3",     /* cut short */
        "\xc3\x28", /* no continuation */
        "\xc0\xaf", /* overlong, of each length */
        "\xe0\x80\xaf",
        "\xf0\x80\x80\xaf",
        "\xe2\x82",
        "\xed\xa0\x80",     /* a surrogate */
        "\xf4\x90\x80\x80", /* above U+10FFFF */
        "\xf8\x88\x80\x80\x80",
        "\xfe",
        "\xff",
    };
    oar_tokenizer *t = of_text(mixed), *none = NULL;
    int64_t *token = NULL;
    size_t count = 77;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[16] = "ba";

        strcat(text, bad[i]);
        assert_fails_with(oar_tokenizer_characters(text, strlen(text), &none),
                          OAR_E_DATA, "byte 2");
        assert_fails_with(
            oar_tokenizer_encode(t, text, strlen(text), &token, &count),
            OAR_E_DATA, "byte 2");
    }
    assert_null(none);
    assert_null(token);
    assert_int_equal(count, 77);
    oar_tokenizer_destroy(t);
}

static void
an_unknown_character_or_token_is_an_error_with_its_place(void **state)
{
    oar_tokenizer *t = of_text(mixed), *bytes;
    int64_t *token = NULL;
    size_t count;
    char *text = NULL;

    assert_fails_with(oar_tokenizer_encode(t, "\xc3\xa9z", 3, &token, &count),
                      OAR_E_DATA, "U+007A at byte 2");
    assert_null(token);
    assert_fails_with(
        oar_tokenizer_decode(t, (int64_t[]){ 0, 4, 5 }, 3, &text, NULL),
        OAR_E_DATA, "token 5, number 2");
    OK(oar_tokenizer_bytes(&bytes));
    assert_fails_with(
        oar_tokenizer_decode(bytes, (int64_t[]){ -1 }, 1, &text, NULL),
        OAR_E_DATA, "token -1");
    assert_fails_with(
        oar_tokenizer_decode(bytes, (int64_t[]){ 256 }, 1, &text, NULL),
        OAR_E_DATA, "token 256");
    assert_null(text);
    oar_tokenizer_destroy(bytes);
    oar_tokenizer_destroy(t);
}

static void bad_arguments_are_refused_with_a_sentence(void **state)
{
    oar_tokenizer *t = of_text("a"), *none = NULL;
    int64_t *token = NULL;
    size_t count;
    char *text = NULL;

    assert_fails_with(oar_tokenizer_bytes(NULL), OAR_E_ARG, "nowhere");
    assert_fails_with(oar_tokenizer_characters("a", 1, NULL), OAR_E_ARG,
                      "nowhere");
    assert_fails_with(oar_tokenizer_characters(NULL, 1, &none), OAR_E_ARG,
                      "no text");
    assert_fails_with(oar_tokenizer_characters("", 0, &none), OAR_E_ARG,
                      "empty");
    assert_fails_with(oar_tokenizer_encode(NULL, "a", 1, &token, &count),
                      OAR_E_ARG, "no tokenizer");
    assert_fails_with(oar_tokenizer_encode(t, NULL, 1, &token, &count),
                      OAR_E_ARG, "no text");
    assert_fails_with(oar_tokenizer_encode(t, "a", 1, NULL, &count), OAR_E_ARG,
                      "nowhere");
    assert_fails_with(oar_tokenizer_decode(NULL, NULL, 0, &text, NULL),
                      OAR_E_ARG, "no tokenizer");
    assert_fails_with(oar_tokenizer_decode(t, NULL, 1, &text, NULL), OAR_E_ARG,
                      "no tokens");
    assert_int_equal(oar_tokenizer_count(NULL), 0);
    oar_tokenizer_destroy(NULL);
    oar_tokenizer_destroy(t);
}

static oar_status all_of_it(void *arg)
{
    oar_tokenizer *bytes = NULL, *t = NULL;
    int64_t *token = NULL;
    size_t count = 0;
    char *text = NULL;
    oar_status status = oar_tokenizer_bytes(&bytes);

    if (status == OAR_OK)
        status = oar_tokenizer_characters(mixed, strlen(mixed), &t);
    if (status == OAR_OK)
        status = oar_tokenizer_encode(t, mixed, strlen(mixed), &token, &count);
    if (status == OAR_OK)
        status = oar_tokenizer_decode(t, token, count, &text, NULL);
    oar_free(text);
    oar_free(token);
    oar_tokenizer_destroy(t);
    oar_tokenizer_destroy(bytes);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    fail_each_allocation(all_of_it, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_a_token),
        cmocka_unit_test(characters_are_numbered_by_code_point),
        cmocka_unit_test(a_zero_byte_is_a_character_too),
        cmocka_unit_test(the_borders_of_utf8_are_inside),
        cmocka_unit_test(malformed_text_is_refused_with_its_place),
        cmocka_unit_test(
            an_unknown_character_or_token_is_an_error_with_its_place),
        cmocka_unit_test(bad_arguments_are_refused_with_a_sentence),
        cmocka_unit_test(every_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
