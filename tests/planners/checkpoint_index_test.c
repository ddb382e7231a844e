/* SPDX-License-Identifier: Apache-2.0 */
/* index.json of a generation: what is written is read again; every damage of
 * it is noticed; an index that is well-formed but lies is refused. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/checkpoint/generation_index.h"
#include "support/last_error.h"
#include "support/leak_check.h"

/* An index of two files, three tensors, an alias and values of all kinds. */
static uint64_t sums[] = { 1, 0xfedcba9876543210, 3, 4 };
static oari_ckpt_index_file files[] = {
    { "model/model-00001-of-00001.safetensors", 4096 + 65 * 7 * 4, 4096, 2,
      sums },
    { "optim/shard-00001-optim-00001-of-00001.safetensors", 4100, 4096, 2,
      sums + 2 }
};
static int64_t dims[] = { 65, 7,        /* tok */
                          0,  0, 65, 7, /* its chunk */
                          4,            /* line */
                          0,  1, 1,  3 };
static oari_ckpt_index_chunk chunks[] = {
    { 4096, 0, 0 }, { 4096, 0, 2 }, { 4096, 1, 7 }, { 4097, 1, 9 }
};
static oari_ckpt_index_tensor tensors[] = {
    { "model", "number", OAR_F64, 0, 0, 0, 1 },
    { "model", "tok \"é\\", OAR_F32, 2, 0, 1, 1 },
    { "optim", "line", OAR_U8, 1, 6, 2, 2 }
};
static oari_ckpt_alias aliases[] = { { "model", "head", "number" } };
static oari_ckpt_value values[] = { { "a", "-7", 0 },
                                    { "lr", "0x1.8p-10", 1 },
                                    { "z", "0", 0 } };

static oari_ckpt_index example(void)
{
    return (oari_ckpt_index){ .id = "0123456789abcdef",
                              .note = "a \"note\"",
                              .step = 100,
                              .saved_unix_s = 1794816000,
                              .ranks = 4,
                              .keep = 1,
                              .block_bytes = 4096,
                              .files = 2,
                              .tensors = 3,
                              .chunks = 4,
                              .dims = 11,
                              .aliases = 1,
                              .values = 3,
                              .sums = 4,
                              .file = files,
                              .tensor = tensors,
                              .chunk = chunks,
                              .dim = dims,
                              .alias = aliases,
                              .value = values,
                              .sum = sums };
}

static void write_example(oari_json_writer *w)
{
    oari_ckpt_index index = example();

    *w = (oari_json_writer){ 0 };
    oari_ckpt_index_write(w, &index);
    assert_int_equal(w->status, OAR_OK);
}

/* A copy that the reader may take. */
static char *copy_text(const char *text, size_t bytes)
{
    char *copy = oari_alloc(bytes + 1, 1);

    assert_non_null(copy);
    memcpy(copy, text, bytes);
    return copy;
}

static void what_is_written_is_read_again(void **state)
{
    oari_ckpt_index index;
    oari_json_writer w, again = { 0 };
    const oari_ckpt_index_tensor *t;
    leak_check before = leak_check_begin();

    (void)state;
    write_example(&w);
    OK(oari_ckpt_index_read("index.json",
                            copy_text(w.text.data, (size_t)w.text.count),
                            (size_t)w.text.count, &index));
    oari_ckpt_index_write(&again, &index);
    assert_int_equal(again.text.count, w.text.count);
    assert_memory_equal(again.text.data, w.text.data, (size_t)w.text.count);
    assert_int_equal(index.step, 100);
    assert_string_equal(index.note, "a \"note\"");
    t = oari_ckpt_index_find(&index, "model", "tok \"é\\");
    assert_non_null(t);
    assert_int_equal(oari_ckpt_index_shape(&index, t).dim[1], 7);
    assert_int_equal(
        oari_ckpt_index_box(&index, t, &index.chunk[t->first]).extent[0], 65);
    assert_ptr_equal(oari_ckpt_index_find(&index, "model", "head"),
                     oari_ckpt_index_find(&index, "model", "number"));
    assert_null(oari_ckpt_index_find(&index, "optim", "head"));
    assert_string_equal(oari_ckpt_index_value(&index, "a")->text, "-7");
    assert_string_equal(oari_ckpt_index_value(&index, "lr")->text, "0x1.8p-10");
    assert_null(oari_ckpt_index_value(&index, "b"));
    oari_ckpt_index_free(&index);
    oari_vec_free(&again.text);
    oari_vec_free(&w.text);
    leak_check_end(&before);
}

static void every_damage_is_noticed(void **state)
{
    oari_ckpt_index index;
    oari_json_writer w;
    leak_check before = leak_check_begin();

    (void)state;
    write_example(&w);
    for (int64_t i = 0; i < w.text.count; i++)
        for (int bit = 0; bit < 8; bit++) {
            char *copy = copy_text(w.text.data, (size_t)w.text.count);

            copy[i] ^= (char)(1 << bit);
            assert_int_equal(oari_ckpt_index_read("index.json", copy,
                                                  (size_t)w.text.count, &index),
                             OAR_E_DATA);
        }
    for (int64_t i = 0; i < w.text.count; i++)
        assert_int_equal(oari_ckpt_index_read("index.json",
                                              copy_text(w.text.data, (size_t)i),
                                              (size_t)i, &index),
                         OAR_E_DATA);
    oari_vec_free(&w.text);
    leak_check_end(&before);
}

/* ---- lies ---------------------------------------------------------------- */

/* The example with one text of it replaced, and the right checksum. */
static oar_status read_changed(const char *old, const char *new)
{
    oari_ckpt_index index;
    oari_json_writer w, lie = { 0 };
    char *found;
    oar_status status;

    write_example(&w);
    oari_json_fill(&w, 0, 1);
    assert_int_equal(w.status, OAR_OK);
    found = strstr(w.text.data, old);
    if (found == NULL)
        fail_msg("\"%s\" is not in the index", old);
    *strstr(w.text.data, "\"end\":") = '\0';
    oari_json_add(&lie, "%.*s%s%s", (int)(found - w.text.data), w.text.data,
                  new, found + strlen(old));
    oari_json_add(&lie, "\"end\":\"%016" PRIx64 "\"}\n",
                  oari_block_sum(lie.text.data, (size_t)lie.text.count));
    status = oari_ckpt_index_read(
        "index.json", copy_text(lie.text.data, (size_t)lie.text.count),
        (size_t)lie.text.count, &index);
    if (status == OAR_OK)
        oari_ckpt_index_free(&index);
    oari_vec_free(&lie.text);
    oari_vec_free(&w.text);
    return status;
}

static void lies_with_the_right_checksum_are_refused(void **state)
{
    static const struct {
        const char *old, *new, *text;
    } lies[] = {
        { "model/model-", "../model-", "a file called \"../model-" },
        { "model/model-", "/etc/model-", "a file called" },
        { "model/model-", "model/.model-", "a file called" },
        { "model/model-", "model/x/model-", "a file called" },
        { "model/model-", "model-", "a file called" },
        { "\"block_bytes\":4096", "\"block_bytes\":0", "a block size of 0" },
        { "\"block_bytes\":4096", "\"block_bytes\":5000", "a block size" },
        { "\"bytes\":4100", "\"bytes\":9000", "2 checksums for 3 blocks" },
        { "\"data\":4096", "\"data\":9999", "checksums" },
        { "\"file\":0", "\"file\":2", "not one of" },
        { "\"at\":4096", "\"at\":99999", "not in its file" },
        { "\"at\":4096", "\"at\":4095", "not in its file" },
        { "\"shape\":[65,7],\"chunks\"", "\"shape\":[64,7],\"chunks\"",
          "not in it" },
        { "\"offset\":[0,0]", "\"offset\":[1,0]", "not in it" },
        { "\"offset\":[0,0]", "\"offset\":[0]", "not one of" },
        { "\"shape\":[65,7],\"chunks\"",
          "\"shape\":[4611686018427387904,7],\"chunks\"", "too large" },
        { "\"shape\":[65,7],\"chunks\"",
          "\"shape\":[1,1,1,1,1,1,1,1,1],\"chunks\"", "a dim too many" },
        { "\"dtype\":\"F64\"", "\"dtype\":\"F65\"", "lacks a dtype" },
        { "\"number\":{", "\"zzz\":{", "not in its order" },
        { "\"a\":-7", "\"n\":-7", "not in its order" },
        { "\"a\":-7", "\"a\":1.5", "no number" },
        { "\"a\":-7", "\"a\":[7]", "no number" },
        { "\"step\":100", "\"step\":-1", "whole number" },
        { "\"ranks\":4,", "", "where \"ranks\" belongs" },
        { "\"note\":", "\"nite\":", "where \"note\" belongs" },
        { "\"aliases\":{", "\"aliases\":[", "'{'" },
        { "fedcba98", "FEDCBA98", "not hexadecimal" },
    };
    leak_check before = leak_check_begin();

    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++)
        if (!fails_with(read_changed(lies[i].old, lies[i].new), OAR_E_DATA,
                        lies[i].text))
            fail_msg("%s -> %s", lies[i].old, lies[i].new);
    leak_check_end(&before);
}

static void a_newer_format_is_not_read(void **state)
{
    (void)state;
    assert_fails_with(
        read_changed("\"oarsong_checkpoint\":1", "\"oarsong_checkpoint\":2"),
        OAR_E_UNSUPPORTED, "is of format 2");
}

static oar_status write_and_read(void *arg)
{
    oari_ckpt_index source = example(), index;
    oari_json_writer w = { 0 };
    oar_status status;
    char *copy;

    (void)arg;
    oari_ckpt_index_write(&w, &source);
    status = w.status;
    if (status == OAR_OK) {
        copy = oari_alloc((size_t)w.text.count + 1, 1);
        status = copy == NULL ? OAR_E_NOMEM : OAR_OK;
    }
    if (status == OAR_OK) {
        memcpy(copy, w.text.data, (size_t)w.text.count);
        status = oari_ckpt_index_read("index.json", copy, (size_t)w.text.count,
                                      &index);
    }
    if (status == OAR_OK)
        oari_ckpt_index_free(&index);
    oari_vec_free(&w.text);
    return status;
}

static void every_failing_allocation_is_reported(void **state)
{
    (void)state;
    fail_each_allocation(write_and_read, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_again),
        cmocka_unit_test(every_damage_is_noticed),
        cmocka_unit_test(lies_with_the_right_checksum_are_refused),
        cmocka_unit_test(a_newer_format_is_not_read),
        cmocka_unit_test(every_failing_allocation_is_reported),
    };

    return cmocka_run_group_tests_name("checkpoint index", tests, NULL, NULL);
}
