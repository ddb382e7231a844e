/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of parts: their bytes on the wire, what is refused, and lists that
 * ranks have in common. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "planners/checkpoint_catalog.h"
#include "support/leak_check.h"

static oari_ckpt_tensor tensor(const char *section, const char *name,
                               oar_shape whole)
{
    return (oari_ckpt_tensor){
        .section = section, .name = name, .dtype = OAR_F32, .whole = whole
    };
}

static oar_status add_whole(oari_ckpt_part_list *list, oari_ckpt_tensor t)
{
    oari_box box = oari_box_whole(t.whole);

    return oari_ckpt_part_list_add_box(list, &t, &box);
}

/* ---- adding -------------------------------------------------------------- */

static void what_cannot_be_is_not_added(void **state)
{
    static char longest[OARI_CKPT_LONGEST_NAME + 2], section[66];
    oari_ckpt_tensor t = tensor("model", "w", OAR_SHAPE(4, 6));
    oari_box box = { 2, { 2, 0 }, { 3, 6 } };
    oari_ckpt_part_list list = { 0 };

    memset(longest, 'n', sizeof longest - 1);
    memset(section, 's', sizeof section - 1);
    assert_fails_with(add_whole(&list, tensor("mo del", "w", OAR_SCALAR)),
                      OAR_E_ARG, "\"mo del\"");
    assert_fails_with(add_whole(&list, tensor(".", "w", OAR_SCALAR)), OAR_E_ARG,
                      "section");
    assert_fails_with(add_whole(&list, tensor("", "w", OAR_SCALAR)), OAR_E_ARG,
                      "section");
    assert_fails_with(add_whole(&list, tensor(NULL, "w", OAR_SCALAR)),
                      OAR_E_ARG, "section");
    assert_fails_with(add_whole(&list, tensor(section, "w", OAR_SCALAR)),
                      OAR_E_ARG, "1 to 64");
    assert_fails_with(add_whole(&list, tensor("model", "", OAR_SCALAR)),
                      OAR_E_ARG, "no name");
    assert_fails_with(add_whole(&list, tensor("model", NULL, OAR_SCALAR)),
                      OAR_E_ARG, "no name");
    assert_fails_with(add_whole(&list, tensor("model", longest, OAR_SCALAR)),
                      OAR_E_ARG, "nnn...\" has 1001 bytes; 1000 are allowed");
    assert_fails_with(
        add_whole(&list, tensor("model", "a\xc0\x80", OAR_SCALAR)), OAR_E_ARG,
        "not UTF-8");
    assert_fails_with(add_whole(&list, tensor("model", "w", OAR_SHAPE(4, -1))),
                      OAR_E_ARG, "cannot have the shape [4, -1]");
    assert_fails_with(
        add_whole(&list, tensor("model", "w", OAR_SHAPE(INT64_MAX, 2))),
        OAR_E_ARG, "cannot have the shape");
    assert_fails_with(oari_ckpt_part_list_add_box(&list, &t, &box), OAR_E_ARG,
                      "\"model/w\": the part [2:5, 0:6] is not within [4, 6]");
    box.ndim = 1;
    assert_fails_with(oari_ckpt_part_list_add_box(&list, &t, &box), OAR_E_ARG,
                      "has 2 dims, and its part has 1");
    assert_fails_with(oari_ckpt_part_list_add_flat(&list, &t, 20, 5), OAR_E_ARG,
                      "5 elements from element 20 on are not within [4, 6]");
    t.flags = 4;
    assert_fails_with(oari_ckpt_part_list_add_flat(&list, &t, 0, 5), OAR_E_ARG,
                      "no flags 0x4");
    t.dtype = OAR_DTYPE_COUNT_ALL;
    assert_fails_with(oari_ckpt_part_list_add_flat(&list, &t, 0, 5), OAR_E_ARG,
                      "no dtype 15");
    t.whole.ndim = 9;
    t.dtype = OAR_F32;
    t.flags = 0;
    assert_fails_with(oari_ckpt_part_list_add_flat(&list, &t, 0, 5), OAR_E_ARG,
                      "9 dims; 0 to 8 are allowed");
    longest[OARI_CKPT_LONGEST_NAME] = 0;
    section[OARI_CKPT_LONGEST_SECTION] = 0;
    assert_int_equal(list.part.count, 0);
    OK(add_whole(&list, tensor(section, longest, OAR_SCALAR)));
    oari_ckpt_part_list_free(&list);
}

static void a_name_that_is_added_twice_is_refused(void **state)
{
    oari_ckpt_part_list list = { 0 };

    OK(add_whole(&list, tensor("model", "w", OAR_SHAPE(3))));
    OK(add_whole(&list, tensor("optim", "w", OAR_SHAPE(3))));
    OK(add_whole(&list, tensor("model", "w", OAR_SHAPE(4))));
    assert_fails_with(oari_ckpt_part_list_seal(&list), OAR_E_ARG,
                      "tensor \"model/w\" was added twice");
    oari_ckpt_part_list_free(&list);
}

static void too_many_sections_are_refused(void **state)
{
    static char section[256][16];
    oari_ckpt_part_list list = { 0 };

    for (int i = 0; i < 256; i++) {
        snprintf(section[i], sizeof section[i], "s%d", i);
        OK(add_whole(&list, tensor(section[i], "w", OAR_SHAPE(3))));
    }
    assert_fails_with(oari_ckpt_part_list_seal(&list), OAR_E_ARG,
                      "256 sections; 255 are allowed");
    oari_ckpt_part_list_free(&list);
}

/* A name is cut short between characters. */
static void a_long_name_is_shown_short(void **state)
{
    static char name[201];
    oari_ckpt_tensor t = tensor("model", name, OAR_SCALAR);

    for (int i = 0; i < 100; i++)
        memcpy(name + 2 * i, "\xc3\xa9", 2);
    memmove(name + 1, name, 199);
    name[0] = 'x';
    assert_int_equal(strlen(oari_ckpt_name_text(&t).text),
                     strlen("\"model/...\"") + 149);
}

/* ---- the wire ------------------------------------------------------------ */

static const unsigned char golden[] =
    "OARC\1\0\0\0\3\0\0\0"
    /* section 0, u64, no dims, a counter; "n" */
    "\0\x0b\0\1"
    "\1\0n"
    /* section 1, f32, 2 dims; whole 2, 3; offset 0, 1; extent 1, 2; "ab" */
    "\1\0\2\0"
    "\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0"
    "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0"
    "\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"
    "\2\0ab"
    /* the same, offset 1, 0; extent 1, 1 */
    "\1\0\2\0"
    "\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0"
    "\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
    "\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0"
    "\2\0ab"
    "\2\5extra\5model";

/* Elements 1, 2 and 3 of a tensor of 2 rows of 3, and a counter. */
static oar_status make_golden(oari_ckpt_part_list *list)
{
    oari_ckpt_tensor t = tensor("model", "ab", OAR_SHAPE(2, 3));

    *list = (oari_ckpt_part_list){ 0 };
    OARI_TRY(oari_ckpt_part_list_add_flat(list, &t, 1, 3));
    t = tensor("extra", "n", OAR_SCALAR);
    t.dtype = OAR_U64;
    t.flags = OARI_CKPT_COUNTER;
    OARI_TRY(add_whole(list, t));
    return oari_ckpt_part_list_seal(list);
}

static void the_wire_is_what_it_is_said_to_be(void **state)
{
    oari_ckpt_part_list list;

    OK(make_golden(&list));
    assert_int_equal(list.wire.count, sizeof golden - 1);
    assert_memory_equal(list.wire.data, golden, sizeof golden - 1);
    assert_string_equal(list.part.data[0].tensor.name, "n");
    assert_int_equal(list.part.data[0].item, 1);
    assert_int_equal(list.part.data[2].item, 0);
    assert_int_equal(list.part.data[2].first, 2);
    oari_ckpt_part_list_free(&list);
}

/* Writes a list that was read. */
static void write_again(const oari_ckpt_part_list *list,
                        oari_ckpt_part_list *again)
{
    *again = (oari_ckpt_part_list){ 0 };
    for (int64_t i = 0; i < list->part.count; i++) {
        oari_ckpt_part part = list->part.data[i];
        assert_int_equal(part.item, -1);
        part.item = 0;
        OK(oari_vec_push(&again->part, part));
    }
    OK(oari_ckpt_part_list_seal(again));
}

/* Bytes are refused, or are a list that is written as it was read. */
static int is_refused(const unsigned char *bytes, size_t count)
{
    unsigned char *exact = malloc(count > 0 ? count : 1);
    oari_ckpt_part_list list, again;
    oar_status status;

    assert_non_null(exact);
    memcpy(exact, bytes, count);
    status = oari_ckpt_part_list_read(exact, count, &list);
    if (status == OAR_OK) {
        write_again(&list, &again);
        assert_int_equal(again.wire.count, count);
        assert_memory_equal(again.wire.data, exact, count);
        assert_memory_equal(again.hash, list.hash, sizeof list.hash);
        oari_ckpt_part_list_free(&list);
        oari_ckpt_part_list_free(&again);
    } else {
        assert_int_equal(status, OAR_E_DATA);
    }
    free(exact);
    return status != OAR_OK;
}

static void damaged_bytes_are_refused_or_another_list(void **state)
{
    leak_check before = leak_check_begin();
    unsigned char bytes[sizeof golden];
    int refused = 0, other = 0;

    memcpy(bytes, golden, sizeof golden);
    assert_int_equal(is_refused(bytes, sizeof golden - 1), 0);
    for (size_t n = 0; n < sizeof golden - 1; n++)
        assert_int_equal(is_refused(bytes, n), 1);
    assert_int_equal(is_refused(bytes, sizeof golden), 1);
    for (size_t i = 0; i < sizeof golden - 1; i++)
        for (int value = 0; value < 256; value++) {
            bytes[i] = (unsigned char)value;
            if (is_refused(bytes, sizeof golden - 1))
                refused++;
            else
                other++;
            bytes[i] = golden[i];
        }
    print_message("one byte changed: %d refused, %d read\n", refused, other);
    assert_true(refused > other);
    leak_check_end(&before);
}

typedef struct hostile {
    const char *bytes;
    size_t count;
    const char *says;
} hostile;

#define HOSTILE(bytes, says)           \
    {                                  \
        bytes, sizeof(bytes) - 1, says \
    }
#define HEAD(entries) "OARC\1\0\0\0" entries "\0\0\0"
#define SECTION       "\1\1m"

/* One entry of no dims and the name "n". */
#define ENTRY "\0\0\0\0\1\0n"

static void each_wrong_field_has_a_sentence(void **state)
{
    static const hostile wrong[] = {
        HOSTILE("", "no header of version 1"),
        HOSTILE("OARD\1\0\0\0\0\0\0\0\0", "no header"),
        HOSTILE("OARC\2\0\0\0\0\0\0\0\0", "no header"),
        HOSTILE(HEAD("\0"), "the sections are missing"),
        HOSTILE("OARC\1\0\0\0\xff\xff\xff\xff", "4294967295 entries in 0"),
        HOSTILE(HEAD("\1") "\0\0\0\0\0\0" SECTION, "has no name"),
        HOSTILE(HEAD("\1") "\0\0\0\0\x9\0n" SECTION, "cut short"),
        HOSTILE(HEAD("\1") "\0\0\0\0\1\0\xff" SECTION, "UTF-8"),
        HOSTILE(HEAD("\1") "\0\0\0\0\2\0n\0" SECTION, "UTF-8"),
        HOSTILE(HEAD("\1") "\0\x0f\0\0\1\0n" SECTION, "dtype"),
        HOSTILE(HEAD("\1") "\0\0\x09\0\1\0n" SECTION, "too many dims"),
        HOSTILE(HEAD("\1") "\0\0\0\4\1\0n" SECTION, "flags"),
        HOSTILE(HEAD("\1") ENTRY "\1\1/", "section 0 is malformed"),
        HOSTILE(HEAD("\1") ENTRY "\1\0", "section 0 is malformed"),
        HOSTILE(HEAD("\1") ENTRY "\1\2m", "section 0 is malformed"),
        HOSTILE(HEAD("\1") ENTRY "\2\1m\1m", "section 1 is malformed"),
        HOSTILE(HEAD("\1") ENTRY "\2\1m\1n", "a section has no part"),
        HOSTILE(HEAD("\1") ENTRY "\0", "section number"),
        HOSTILE(HEAD("\1") "\1\0\0\0\1\0n\2\1m\1n", "section number"),
        HOSTILE(HEAD("\1") ENTRY SECTION "\0", "bytes follow"),
        HOSTILE(HEAD("\2") ENTRY ENTRY SECTION, "entry 1 is not in order"),
        HOSTILE(HEAD("\1") "\0\0\1\0\xff\xff\xff\xff\xff\xff\xff\xff"
                           "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\0n" SECTION,
                "shape that cannot be"),
        HOSTILE(HEAD("\1") "\0\0\1\0\3\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0"
                           "\3\0\0\0\0\0\0\0\1\0n" SECTION,
                "outside of its tensor"),
    };
    oari_ckpt_part_list list = { 0 };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_fails_with(
            oari_ckpt_part_list_read(wrong[i].bytes, wrong[i].count, &list),
            OAR_E_DATA, wrong[i].says);
    assert_int_equal(list.part.count, 0);
    OK(oari_ckpt_part_list_read(HEAD("\1") ENTRY SECTION, 12 + 7 + 3, &list));
    oari_ckpt_part_list_free(&list);
}

/* A megabyte of entries that are all the same. */
static void bytes_that_are_no_list_take_little_memory(void **state)
{
    enum { ENTRIES = 150000, BYTES = 12 + 7 * ENTRIES };
    unsigned char *bytes = malloc(BYTES);
    oari_ckpt_part_list list = { 0 };
    oar_memory_stats before, after;

    assert_non_null(bytes);
    memcpy(bytes, "OARC\1\0\0\0\0\0\0\0", 12);
    for (int i = 0; i < 4; i++)
        bytes[8 + i] = (unsigned char)(ENTRIES >> 8 * i);
    for (int i = 0; i < ENTRIES; i++)
        memcpy(bytes + 12 + 7 * i, ENTRY, 7);
    before = memory_now();
    assert_fails_with(oari_ckpt_part_list_read(bytes, BYTES, &list), OAR_E_DATA,
                      "entry 1 is not in order");
    after = memory_now();
    assert_true(after.allocations - before.allocations <= 3);

    bytes[8]++; /* more entries than there is room for */
    assert_fails_with(oari_ckpt_part_list_read(bytes, BYTES, &list), OAR_E_DATA,
                      "150001 entries in");
    assert_true(memory_now().allocations == after.allocations);
    free(bytes);
}

static void what_is_written_is_read(void **state)
{
    catalog_random random = { 4 };
    catalog c;

    for (int i = 0; i < 200; i++) {
        int ranks = 1 + (int)catalog_below(&random, 8);
        oari_ckpt_part_list list, read, again;
        catalog_fill(&c, &random, (int)catalog_below(&random, CATALOG_MOST), 6);
        OK(catalog_list(&c, ranks / 2, ranks, &list, NULL));
        OK(oari_ckpt_part_list_read(list.wire.data, (size_t)list.wire.count,
                                    &read));
        assert_int_equal(read.part.count, list.part.count);
        assert_memory_equal(read.hash, list.hash, sizeof list.hash);
        write_again(&read, &again);
        assert_int_equal(again.wire.count, list.wire.count);
        assert_memory_equal(again.wire.data, list.wire.data,
                            (size_t)list.wire.count);
        oari_ckpt_part_list_free(&list);
        oari_ckpt_part_list_free(&read);
        oari_ckpt_part_list_free(&again);
    }
}

/* The order of adding does not change a list; anything else does. */
static void the_hash_is_of_what_is_held(void **state)
{
    oari_ckpt_part_list a = { 0 }, b = { 0 }, other = { 0 };

    OK(add_whole(&a, tensor("model", "w", OAR_SHAPE(3))));
    OK(add_whole(&a, tensor("model", "b", OAR_SHAPE(3))));
    OK(add_whole(&b, tensor("model", "b", OAR_SHAPE(3))));
    OK(add_whole(&b, tensor("model", "w", OAR_SHAPE(3))));
    OK(add_whole(&other, tensor("model", "b", OAR_SHAPE(3))));
    OK(add_whole(&other, tensor("model", "w", OAR_SHAPE(4))));
    OK(oari_ckpt_part_list_seal(&a));
    OK(oari_ckpt_part_list_seal(&b));
    OK(oari_ckpt_part_list_seal(&other));
    assert_memory_equal(a.hash, b.hash, sizeof a.hash);
    assert_true(a.hash[0] != other.hash[0] && a.hash[1] != other.hash[1]);
    oari_ckpt_part_list_free(&a);
    oari_ckpt_part_list_free(&b);
    oari_ckpt_part_list_free(&other);
}

/* ---- the lists of all ranks ---------------------------------------------- */

static void equal_lists_are_kept_once(void **state)
{
    oari_ckpt_lists lists = { .ranks = 3 };
    oari_ckpt_part_list list;

    OK(make_golden(&list));
    for (int r = 0; r < 3; r++)
        OK(oari_ckpt_lists_add(&lists, r, list.wire.data,
                               (size_t)list.wire.count));
    OK(oari_ckpt_lists_add(&lists, 1, HEAD("\0") "\0", 13));
    assert_int_equal(lists.list.count, 2);
    assert_int_equal(lists.holding.count, 4);
    assert_int_equal(lists.holding.data[2].list, 0);
    assert_int_equal(lists.holding.data[3].list, 1);
    assert_fails_with(oari_ckpt_lists_add(&lists, 3, HEAD("\0") "\0", 13),
                      OAR_E_RANK, "rank 3 of 3");
    assert_fails_with(oari_ckpt_lists_add(&lists, 2, "OARC", 4), OAR_E_DATA,
                      "header");
    assert_int_equal(oar_last_error()->peer, 2);
    oari_ckpt_part_list_free(&list);
    oari_ckpt_lists_free(&lists);
}

static oar_status make_without(void *arg)
{
    oari_ckpt_lists lists = { .ranks = 1 };
    oari_ckpt_part_list list;
    oar_status status = make_golden(&list);

    if (status == OAR_OK)
        status = oari_ckpt_lists_add(&lists, 0, list.wire.data,
                                     (size_t)list.wire.count);
    oari_ckpt_part_list_free(&list);
    oari_ckpt_lists_free(&lists);
    return status;
}

static void without_memory_a_list_fails_whole(void **state)
{
    fail_each_allocation(make_without, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_is_not_added),
        cmocka_unit_test(a_name_that_is_added_twice_is_refused),
        cmocka_unit_test(too_many_sections_are_refused),
        cmocka_unit_test(a_long_name_is_shown_short),
        cmocka_unit_test(the_wire_is_what_it_is_said_to_be),
        cmocka_unit_test(damaged_bytes_are_refused_or_another_list),
        cmocka_unit_test(each_wrong_field_has_a_sentence),
        cmocka_unit_test(bytes_that_are_no_list_take_little_memory),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(the_hash_is_of_what_is_held),
        cmocka_unit_test(equal_lists_are_kept_once),
        cmocka_unit_test(without_memory_a_list_fails_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
