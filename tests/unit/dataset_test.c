/* SPDX-License-Identifier: Apache-2.0 */
/* Data sets of tensors and of token files, and files that are not what they
 * should be. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <oarsong/data.h>
#include <oarsong/memory.h>
#include <oarsong/ops.h>

#include "support/leak_check.h"
#include "support/last_error.h"

static char folder[FOLDER_PATH], path[FOLDER_PATH + 16];

static int open_folder(void **state)
{
    folder_make(folder);
    snprintf(path, sizeof path, "%s/tokens", folder);
    return 0;
}

static int close_folder(void **state)
{
    folder_remove(folder);
    return 0;
}

static void file_write(const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* The numbers of a field, which must be of this dtype and shape. */
static void field_is(oar_tensor *field, oar_dtype dtype, oar_shape shape,
                     const void *want)
{
    oar_shape got = oar_tensor_shape(field);

    assert_int_equal(oar_tensor_dtype(field), dtype);
    assert_int_equal(got.ndim, shape.ndim);
    for (int i = 0; i < shape.ndim; i++)
        assert_int_equal(got.dim[i], shape.dim[i]);
    assert_memory_equal(oar_tensor_data(field), want,
                        (size_t)oar_tensor_count(field) *
                            oar_dtype_size(dtype));
    oar_tensor_release(field);
}

/* ---- tensors ------------------------------------------------------------- */

static void a_batch_gathers_slices_of_all_tensors(void **state)
{
    const float x[] = { 0, 1, 10, 11, 20, 21, 30, 31, 40, 41 };
    const int64_t y[] = { 5, 6, 7, 8, 9 };
    oar_tensor *tensor[2] = { oar_from_data(NULL, OAR_F32, OAR_SHAPE(5, 2), x),
                              oar_from_data(NULL, OAR_I64, OAR_SHAPE(5), y) };
    oar_tensor *field[2];
    oar_dataset *set;

    OK(oar_dataset_tensors(2, tensor, &set));
    oar_tensor_release(tensor[0]); /* the set has its own references */
    oar_tensor_release(tensor[1]);
    assert_int_equal(oar_dataset_count(set), 5);
    assert_int_equal(oar_dataset_fields(set), 2);
    OK(oar_dataset_batch(set, 3, (int64_t[]){ 4, 0, 4 }, field));
    field_is(field[0], OAR_F32, OAR_SHAPE(3, 2),
             (float[]){ 40, 41, 0, 1, 40, 41 });
    field_is(field[1], OAR_I64, OAR_SHAPE(3), (int64_t[]){ 9, 5, 9 });
    OK(oar_dataset_batch(set, 0, NULL, field));
    field_is(field[0], OAR_F32, OAR_SHAPE(0, 2), x);
    field_is(field[1], OAR_I64, OAR_SHAPE(0), y);
    oar_dataset_destroy(set);
}

static void tensors_may_have_any_strides(void **state)
{
    const int32_t x[] = { 0, 1, 2, 10, 11, 12 };
    oar_tensor *rows = oar_from_data(NULL, OAR_I32, OAR_SHAPE(2, 3), x);
    oar_tensor *columns = oar_transpose(NULL, rows, 0, 1);
    oar_tensor *field[1];
    oar_dataset *set;

    OK(oar_dataset_tensors(1, &columns, &set));
    assert_int_equal(oar_dataset_count(set), 3);
    OK(oar_dataset_batch(set, 2, (int64_t[]){ 2, 1 }, field));
    field_is(field[0], OAR_I32, OAR_SHAPE(2, 2), (int32_t[]){ 2, 12, 1, 11 });
    oar_dataset_destroy(set);
    oar_tensor_release(columns);
    oar_tensor_release(rows);
}

static void tensors_that_do_not_fit_are_refused(void **state)
{
    oar_tensor *a = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3, 2));
    oar_tensor *b = oar_zeros(NULL, OAR_F32, OAR_SHAPE(4));
    oar_tensor *number = oar_zeros(NULL, OAR_F32, OAR_SCALAR);
    oar_tensor *field[4] = { 0 };
    oar_dataset *set = NULL;

    assert_fails_with(oar_dataset_tensors(2, (oar_tensor *[]){ a, b }, &set),
                      OAR_E_SHAPE, "[3, 2] and [4]");
    assert_fails_with(oar_dataset_tensors(1, &number, &set), OAR_E_SHAPE,
                      "dim 0");
    assert_fails_with(oar_dataset_tensors(0, &a, &set), OAR_E_ARG, "0 tensors");
    assert_fails_with(oar_dataset_tensors(5, &a, &set), OAR_E_ARG, "5 tensors");
    assert_fails_with(oar_dataset_tensors(1, &a, NULL), OAR_E_ARG, "nowhere");
    assert_null(set);
    oar_clear_error();
    assert_fails_with(oar_dataset_tensors(1, (oar_tensor *[]){ NULL }, &set),
                      OAR_E_ARG, "NULL");
    OK(oar_dataset_tensors(1, &a, &set));
    assert_fails_with(oar_dataset_batch(set, 1, (int64_t[]){ 3 }, field),
                      OAR_E_ARG, "sample 3");
    assert_fails_with(oar_dataset_batch(set, 1, (int64_t[]){ -1 }, field),
                      OAR_E_ARG, "sample -1");
    assert_fails_with(oar_dataset_batch(set, -1, NULL, field), OAR_E_ARG, "-1");
    assert_fails_with(oar_dataset_batch(set, 1, NULL, field), OAR_E_ARG,
                      "none");
    assert_fails_with(oar_dataset_batch(NULL, 0, NULL, field), OAR_E_ARG,
                      "no data");
    assert_fails_with(oar_dataset_batch(set, 0, NULL, NULL), OAR_E_ARG,
                      "nowhere");
    OK(oar_storage_detach(oar_tensor_storage(a)));
    assert_fails_with(oar_dataset_batch(set, 1, (int64_t[]){ 0 }, field),
                      OAR_E_STATE, "detached");
    assert_null(field[0]);
    assert_int_equal(oar_dataset_count(NULL), 0);
    assert_int_equal(oar_dataset_fields(NULL), 0);
    oar_dataset_destroy(NULL);
    oar_dataset_destroy(set);
    oar_tensor_release(a);
    oar_tensor_release(b);
    oar_tensor_release(number);
}

/* ---- tokens -------------------------------------------------------------- */

static void windows_of(oar_dtype dtype)
{
    oar_tensor *field[2];
    oar_dataset *set;

    OK(oar_dataset_tokens(path, dtype, 3, 0, &set)); /* 10 tokens */
    assert_int_equal(oar_dataset_count(set), 3);
    assert_int_equal(oar_dataset_fields(set), 2);
    OK(oar_dataset_batch(set, 2, (int64_t[]){ 2, 0 }, field));
    field_is(field[0], OAR_I64, OAR_SHAPE(2, 3),
             (int64_t[]){ 106, 107, 108, 100, 101, 102 });
    field_is(field[1], OAR_I64, OAR_SHAPE(2, 3),
             (int64_t[]){ 107, 108, 109, 101, 102, 103 });
    oar_dataset_destroy(set);
    OK(oar_dataset_tokens(path, dtype, 3, 2, &set));
    assert_int_equal(oar_dataset_count(set), 4); /* from 0, 2, 4, 6 */
    oar_dataset_destroy(set);
    OK(oar_dataset_tokens(path, dtype, 9, 100, &set));
    assert_int_equal(oar_dataset_count(set), 1);
    oar_dataset_destroy(set);
    assert_fails_with(oar_dataset_tokens(path, dtype, 10, 1, &set), OAR_E_DATA,
                      "10 tokens");
}

static void tokens_of_every_width_come_in_windows(void **state)
{
    uint8_t u8[10];
    uint16_t u16[10];
    int32_t i32[10];

    for (int i = 0; i < 10; i++)
        i32[i] = u16[i] = u8[i] = (uint8_t)(100 + i);
    file_write(u8, sizeof u8);
    windows_of(OAR_U8);
    file_write(u16, sizeof u16);
    windows_of(OAR_U16);
    file_write(i32, sizeof i32);
    windows_of(OAR_I32);
}

/* Longer than one block of reading, at and around its size. */
static void long_samples_are_read_whole(void **state)
{
    enum { TOKENS = 5000 };
    static uint16_t token[TOKENS];

    for (int i = 0; i < TOKENS; i++)
        token[i] = (uint16_t)(i * 13);
    file_write(token, sizeof token);
    for (int64_t length = 1022; length <= 4998; length = length * 2 - 1021) {
        oar_tensor *field[2];
        const int64_t *x, *y;
        oar_dataset *set;

        OK(oar_dataset_tokens(path, OAR_U16, length, 1, &set));
        OK(oar_dataset_batch(set, 1, (int64_t[]){ 1 }, field));
        x = oar_tensor_data(field[0]);
        y = oar_tensor_data(field[1]);
        for (int64_t i = 0; i < length; i++) {
            assert_int_equal(x[i], token[i + 1]);
            assert_int_equal(y[i], token[i + 2]);
        }
        oar_tensor_release(field[0]);
        oar_tensor_release(field[1]);
        oar_dataset_destroy(set);
    }
}

static void files_of_the_wrong_size_are_refused(void **state)
{
    oar_dataset *set = NULL;

    file_write("", 0);
    assert_fails_with(oar_dataset_tokens(path, OAR_U8, 1, 0, &set), OAR_E_DATA,
                      "0 tokens");
    file_write("abc", 3);
    assert_fails_with(oar_dataset_tokens(path, OAR_U16, 1, 0, &set), OAR_E_DATA,
                      "3 bytes");
    assert_fails_with(oar_dataset_tokens(path, OAR_I32, 1, 0, &set), OAR_E_DATA,
                      "multiple");
    assert_fails_with(oar_dataset_tokens(path, OAR_U8, 3, 0, &set), OAR_E_DATA,
                      "3 tokens");
    assert_fails_with(
        oar_dataset_tokens(path, OAR_U8, INT64_MAX, INT64_MAX, &set),
        OAR_E_DATA, "3 tokens");
    assert_null(set);
}

static void a_file_truncated_while_open_is_an_error_not_a_crash(void **state)
{
    static uint16_t token[10000];
    oar_tensor *field[2] = { 0 };
    oar_dataset *set;

    file_write(token, sizeof token);
    OK(oar_dataset_tokens(path, OAR_U16, 100, 0, &set));
    assert_int_equal(truncate(path, 4001), 0);
    assert_fails_with(oar_dataset_batch(set, 1, (int64_t[]){ 90 }, field),
                      OAR_E_STATE, "4001 bytes");
    assert_fails_with(oar_dataset_batch(set, 1, (int64_t[]){ 0 }, field),
                      OAR_E_STATE, "had 20000");
    assert_null(field[0]);
    file_write(token, sizeof token); /* as long as before: it goes on */
    OK(oar_dataset_batch(set, 1, (int64_t[]){ 90 }, field));
    oar_tensor_release(field[0]);
    oar_tensor_release(field[1]);
    oar_dataset_destroy(set);
}

/* Nothing was copied when the file was opened: what is written to it later is
 * seen. And a file renamed over it is another one, which is not. */
static void a_token_set_is_the_file_itself(void **state)
{
    uint8_t token[7] = { 1, 2, 3, 4, 5, 6, 7 };
    oar_tensor *field[2] = { 0 };
    oar_dataset *set;
    char other[600];
    int fd;

    file_write(token, sizeof token);
    OK(oar_dataset_tokens(path, OAR_U8, 3, 0, &set));
    fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "\x63", 1, 4), 1);
    close(fd);
    snprintf(other, sizeof other, "%s.other", path);
    assert_int_equal(rename(path, other), 0);
    file_write(token, 2);
    OK(oar_dataset_batch(set, 1, (int64_t[]){ 1 }, field));
    assert_memory_equal(oar_tensor_data(field[0]), ((int64_t[]){ 4, 0x63, 6 }),
                        3 * sizeof(int64_t));
    assert_memory_equal(oar_tensor_data(field[1]), ((int64_t[]){ 0x63, 6, 7 }),
                        3 * sizeof(int64_t));
    oar_tensor_release(field[0]);
    oar_tensor_release(field[1]);
    oar_dataset_destroy(set);
    unlink(other);
}

static void a_header_is_skipped(void **state)
{
    enum { HEADER = 1024 };
    uint16_t word[HEADER / 2 + 10] = { 0 };
    oar_tensor *field[2];
    oar_dataset *set = NULL;
    oar_tokens_opts o = oar_tokens_opts_init();

    memset(word, 0xff, HEADER);
    for (int i = 0; i < 10; i++)
        word[HEADER / 2 + i] = (uint16_t)(100 + i);
    file_write(word, sizeof word);
    o.header_bytes = HEADER;
    o.stride = 2;
    OK(oar_dataset_tokens_with(path, OAR_U16, 3, &o, &set));
    assert_int_equal(oar_dataset_count(set), 4);
    OK(oar_dataset_batch(set, 2, (int64_t[]){ 3, 0 }, field));
    field_is(field[0], OAR_I64, OAR_SHAPE(2, 3),
             (int64_t[]){ 106, 107, 108, 100, 101, 102 });
    field_is(field[1], OAR_I64, OAR_SHAPE(2, 3),
             (int64_t[]){ 107, 108, 109, 101, 102, 103 });
    oar_dataset_destroy(set);
    set = NULL;
    assert_fails_with(oar_dataset_tokens_with(path, OAR_U16, 10, &o, &set),
                      OAR_E_DATA, "10 tokens");
    o.header_bytes = sizeof word;
    assert_fails_with(oar_dataset_tokens_with(path, OAR_U16, 1, &o, &set),
                      OAR_E_DATA, "0 tokens");
    o.header_bytes = sizeof word + 2;
    assert_fails_with(oar_dataset_tokens_with(path, OAR_U16, 1, &o, &set),
                      OAR_E_DATA, "header of 1046");
    o.header_bytes = SIZE_MAX - 1;
    assert_fails_with(oar_dataset_tokens_with(path, OAR_U16, 1, &o, &set),
                      OAR_E_DATA, "header");
    o.header_bytes = 3;
    assert_fails_with(oar_dataset_tokens_with(path, OAR_U16, 1, &o, &set),
                      OAR_E_ARG, "header of 3");
    o.size = 0;
    assert_fails_with(oar_dataset_tokens_with(path, OAR_U16, 1, &o, &set),
                      OAR_E_ARG, "size 0");
    assert_null(set);
    OK(oar_dataset_tokens_with(path, OAR_U16, 3, NULL, &set));
    oar_dataset_destroy(set);
}

static void a_token_below_zero_is_an_error_with_its_place(void **state)
{
    const int32_t token[] = { 1, 2, 3, -7, 5 };
    oar_tensor *field[2] = { 0 };
    oar_dataset *set;

    file_write(token, sizeof token);
    OK(oar_dataset_tokens(path, OAR_I32, 2, 0, &set));
    assert_fails_with(oar_dataset_batch(set, 2, (int64_t[]){ 0, 1 }, field),
                      OAR_E_DATA, "token 3 is -7");
    assert_null(field[0]);
    oar_dataset_destroy(set);
}

static void what_is_no_token_file_is_refused_with_a_sentence(void **state)
{
    char pipe_path[FOLDER_PATH + 16];
    oar_dataset *set = NULL;
    leak_check before = leak_check_begin();

    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", folder);
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    assert_fails_with(oar_dataset_tokens(pipe_path, OAR_U8, 1, 0, &set),
                      OAR_E_DATA, "plain file");
    assert_fails_with(oar_dataset_tokens(folder, OAR_U8, 1, 0, &set),
                      OAR_E_DATA, "plain file");
    assert_fails_with(oar_dataset_tokens("/none/such", OAR_U8, 1, 0, &set),
                      OAR_E_SYSTEM, "/none/such");
    assert_fails_with(oar_dataset_tokens(path, OAR_F32, 1, 0, &set),
                      OAR_E_DTYPE, "f32");
    assert_fails_with(oar_dataset_tokens(path, OAR_U8, 0, 0, &set), OAR_E_ARG,
                      "of 0 tokens");
    assert_fails_with(oar_dataset_tokens(path, OAR_U8, 1, -1, &set), OAR_E_ARG,
                      "-1 apart");
    assert_fails_with(oar_dataset_tokens(NULL, OAR_U8, 1, 0, &set), OAR_E_ARG,
                      "no path");
    assert_fails_with(oar_dataset_tokens(path, OAR_U8, 1, 0, NULL), OAR_E_ARG,
                      "nowhere");
    assert_null(set);
    leak_check_end(&before);
}

/* ---- which data set it is ------------------------------------------------ */

/* Whether the identity of a set is, or is not, this text. Destroys the set. */
static void identity_is(oar_dataset *set, int same, const char *want)
{
    char *got;

    OK(oar_dataset_identity(set, &got));
    if ((strcmp(got, want) == 0) != same)
        fail_msg("\"%s\" and \"%s\"", got, want);
    oar_free(got);
    oar_dataset_destroy(set);
}

static oar_dataset *token_set(int64_t length, int64_t stride, size_t header)
{
    oar_dataset *set;

    OK(oar_dataset_tokens_with(
        path, OAR_U8, length,
        OAR_OPTS(oar_tokens_opts, .stride = stride, .header_bytes = header),
        &set));
    return set;
}

static void the_identity_of_a_file_is_its_ends_and_how_it_is_cut(void **state)
{
    enum { BYTES = 200000, END = 64 * 1024 };
    static const int changed[] = { 0, END - 1, BYTES - END, BYTES - 1 };
    static uint8_t token[BYTES];
    oar_dataset *set;
    char *first;

    for (int i = 0; i < BYTES; i++)
        token[i] = (uint8_t)(i * 7 % 251);
    file_write(token, BYTES);
    set = token_set(16, 8, 4);
    OK(oar_dataset_identity(set, &first));
    assert_non_null(strstr(first, "tokens u8, 24998 samples of 16, 8 apart, "
                                  "after a header of 4, 200000 bytes, xxh3 "));
    oar_dataset_destroy(set);
    identity_is(token_set(16, 8, 4), 1, first);
    identity_is(token_set(16, 9, 4), 0, first);
    identity_is(token_set(17, 8, 4), 0, first);
    identity_is(token_set(16, 8, 5), 0, first);
    for (int i = 0; i < 4; i++) {
        token[changed[i]] ^= 1;
        file_write(token, BYTES);
        identity_is(token_set(16, 8, 4), 0, first);
        token[changed[i]] ^= 1;
    }
    file_write(token, BYTES - 1);
    identity_is(token_set(16, 8, 4), 0, first);
    file_write(token, BYTES);
    identity_is(token_set(16, 8, 4), 1, first);
    set = token_set(16, 8, 4);
    assert_int_equal(truncate(path, 10), 0);
    assert_fails_with(oar_dataset_identity(set, &first), OAR_E_STATE,
                      "10 bytes");
    oar_dataset_destroy(set);
    oar_free(first);
}

/* A set of a matrix, whose number at `place` is one more, and of a vector. */
static oar_dataset *tensor_set(int64_t rows, int64_t columns, int64_t place,
                               int turned)
{
    oar_tensor *x = oar_arange(NULL, OAR_F32, rows * columns, 0, 1), *m;
    oar_tensor *pair[2] = { NULL, oar_arange(NULL, OAR_I64, rows, 0, 1) };
    oar_dataset *set;

    ((float *)oar_tensor_data(x))[place] += 1;
    m = oar_reshape(NULL, x, OAR_SHAPE(rows, columns));
    pair[0] = m;
    if (turned) { /* the same numbers with other strides */
        oar_tensor *t = oar_transpose(NULL, m, 0, 1);
        oar_tensor *copy = oar_contiguous(NULL, t);

        pair[0] = oar_transpose(NULL, copy, 0, 1);
        oar_tensor_release(t);
        oar_tensor_release(copy);
        oar_tensor_release(m);
    }
    OK(oar_dataset_tensors(2, pair, &set));
    oar_tensor_release(pair[0]);
    oar_tensor_release(pair[1]);
    oar_tensor_release(x);
    return set;
}

static void the_identity_of_tensors_is_their_shapes_and_ends(void **state)
{
    oar_dataset *set = tensor_set(30, 5, 0, 0), *none = NULL;
    oar_tensor *empty = oar_zeros(NULL, OAR_F32, OAR_SHAPE(0, 3));
    char *first;

    OK(oar_dataset_identity(set, &first));
    assert_non_null(strstr(first, "tensors f32 [30, 5], i64 [30], 30 samples, "
                                  "840 bytes, xxh3 "));
    oar_dataset_destroy(set);
    identity_is(tensor_set(30, 5, 0, 0), 1, first);
    identity_is(tensor_set(30, 5, 0, 1), 1, first);
    identity_is(tensor_set(30, 5, 1, 0), 0, first);
    identity_is(tensor_set(30, 5, 149, 0), 0, first);
    identity_is(tensor_set(29, 5, 0, 0), 0, first);
    identity_is(tensor_set(30, 6, 0, 0), 0, first);
    oar_free(first);
    OK(oar_dataset_tensors(1, &empty, &none));
    identity_is(none, 0, "");
    oar_tensor_release(empty);
    assert_fails_with(oar_dataset_identity(NULL, &first), OAR_E_ARG,
                      "no data set");
}

static oar_status batch_of(oar_dataset *set)
{
    oar_tensor *field[4] = { 0 };
    oar_status status = oar_dataset_batch(set, 2, (int64_t[]){ 1, 0 }, field);

    for (int i = 0; i < 4; i++)
        oar_tensor_release(field[i]);
    return status;
}

static oar_status both_kinds(void *tensor)
{
    oar_dataset *a = NULL, *b = NULL;
    char *text = NULL;
    oar_status status =
        oar_dataset_tensors(2, (oar_tensor *[]){ tensor, tensor }, &a);

    if (status == OAR_OK)
        status = batch_of(a);
    if (status == OAR_OK)
        status = oar_dataset_tokens(path, OAR_U8, 2, 0, &b);
    if (status == OAR_OK)
        status = batch_of(b);
    if (status == OAR_OK)
        status = oar_dataset_identity(a, &text);
    oar_free(text);
    oar_dataset_destroy(a);
    oar_dataset_destroy(b);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    oar_tensor *tensor = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3, 2));

    file_write("abcdef", 6);
    fail_each_allocation(both_kinds, tensor);
    oar_tensor_release(tensor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_gathers_slices_of_all_tensors),
        cmocka_unit_test(tensors_may_have_any_strides),
        cmocka_unit_test(tensors_that_do_not_fit_are_refused),
        cmocka_unit_test(tokens_of_every_width_come_in_windows),
        cmocka_unit_test(long_samples_are_read_whole),
        cmocka_unit_test(files_of_the_wrong_size_are_refused),
        cmocka_unit_test(a_file_truncated_while_open_is_an_error_not_a_crash),
        cmocka_unit_test(a_token_set_is_the_file_itself),
        cmocka_unit_test(a_header_is_skipped),
        cmocka_unit_test(the_identity_of_a_file_is_its_ends_and_how_it_is_cut),
        cmocka_unit_test(the_identity_of_tensors_is_their_shapes_and_ends),
        cmocka_unit_test(a_token_below_zero_is_an_error_with_its_place),
        cmocka_unit_test(what_is_no_token_file_is_refused_with_a_sentence),
        cmocka_unit_test(every_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
