/* SPDX-License-Identifier: Apache-2.0 */
/* Files of named tensors: what is written is read again, whole and in parts;
 * files that lie are refused; a save that fails leaves the old file. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <oarsong/ops.h>
#include <oarsong/safetensors.h>

#include "support/leak_check.h"
#include "support/faulty_disk.h"
#include "support/last_error.h"

static char folder[FOLDER_PATH], path[FOLDER_PATH + 32];

static int open_folder(void **state)
{
    (void)state;
    folder_make(folder);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    folder_remove(folder);
    return 0;
}

/* Writes a file of that header and that many bytes 0, 1, 2, ... of data. */
static void write_raw(const char *header, size_t header_bytes, size_t data)
{
    uint64_t length = header_bytes;
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        fputc((int)(length >> (8 * i) & 255), file);
    fwrite(header, 1, header_bytes, file);
    for (size_t i = 0; i < data; i++)
        fputc((int)(i & 255), file);
    assert_int_equal(fclose(file), 0);
}

static oar_safetensors *open_raw(void)
{
    oar_safetensors *file;

    OK(oar_safetensors_open(path, NULL, &file));
    return file;
}

static void save_one(const char *name, oar_tensor *tensor)
{
    OK(oar_safetensors_save(path, 1, &name, &tensor, 0, NULL));
}

static void assert_numbers(oar_tensor *tensor, int count, const double *want)
{
    double got[32];

    assert_int_equal(oar_tensor_count(tensor), count);
    OK(oar_tensor_read(tensor, OAR_F64, got));
    for (int i = 0; i < count; i++)
        if (got[i] != want[i])
            fail_msg("element %d is %g, not %g", i, got[i], want[i]);
}

/* ---- what is written is read again --------------------------------------- */

static void every_dtype_and_shape_comes_back_bitwise(void **state)
{
    static const oar_shape shapes[] = {
        { 0, { 0 } },    { 1, { 0 } },       { 1, { 7 } },
        { 2, { 3, 5 } }, { 3, { 2, 0, 4 } }, { 4, { 2, 1, 3, 2 } }
    };
    enum { SHAPES = sizeof shapes / sizeof shapes[0] };
    char name[OAR_DTYPE_COUNT * SHAPES][32];
    const char *names[OAR_DTYPE_COUNT * SHAPES];
    oar_tensor *tensor[OAR_DTYPE_COUNT * SHAPES];
    const char *metadata[2][2] = { { "format", "pt" },
                                   { "quoted", "a \"b\"\\\n\xc3\xa9" } };
    oar_safetensors *file;
    int count = 0;

    (void)state;
    for (int d = 0; d < OAR_DTYPE_COUNT; d++)
        for (int s = 0; s < SHAPES; s++, count++) {
            snprintf(name[count], sizeof name[count], "t.%d.%d", d, s);
            names[count] = name[count];
            tensor[count] = oar_uniform(NULL, (oar_dtype)d, shapes[s],
                                        (uint64_t)count, 0, 2);
            assert_non_null(tensor[count]);
        }
    OK(oar_safetensors_save(path, count, names, tensor, 2,
                            (const char *const(*)[2])metadata));
    file = open_raw();
    assert_int_equal(oar_safetensors_count(file), count);
    assert_string_equal(oar_safetensors_metadata(file, "format"), "pt");
    assert_string_equal(oar_safetensors_metadata(file, "quoted"),
                        metadata[1][1]);
    assert_null(oar_safetensors_metadata(file, "other"));
    for (int i = 0; i < count; i++) {
        oar_tensor *got = oar_safetensors_tensor(NULL, file, names[i]);
        oar_safetensors_entry entry = { .size = sizeof entry };

        assert_non_null(got);
        assert_int_equal(oar_tensor_dtype(got), oar_tensor_dtype(tensor[i]));
        assert_int_equal(oar_tensor_shape(got).ndim,
                         oar_tensor_shape(tensor[i]).ndim);
        assert_memory_equal(oar_tensor_data(got), oar_tensor_data(tensor[i]),
                            (size_t)oar_tensor_count(got) *
                                oar_dtype_size(oar_tensor_dtype(got)));
        OK(oar_safetensors_find(file, names[i], &entry));
        assert_true(entry.known);
        assert_int_equal(entry.offset % oar_dtype_size(entry.dtype), 0);
        oar_tensor_release(got);
        oar_tensor_release(tensor[i]);
    }
    oar_safetensors_close(file);
}

static void a_file_without_tensors_is_fine(void **state)
{
    oar_safetensors *file;

    (void)state;
    OK(oar_safetensors_save(path, 0, NULL, NULL, 0, NULL));
    file = open_raw();
    assert_int_equal(oar_safetensors_count(file), 0);
    oar_safetensors_close(file);
}

static void a_strided_tensor_is_written_row_by_row(void **state)
{
    oar_tensor *a = oar_arange(NULL, OAR_I32, 6, 0, 1);
    oar_tensor *b = oar_reshape(NULL, a, OAR_SHAPE(2, 3));
    oar_tensor *c = oar_transpose(NULL, b, 0, 1), *got;
    oar_safetensors *file;

    (void)state;
    save_one("t", c);
    file = open_raw();
    got = oar_safetensors_tensor(NULL, file, "t");
    assert_numbers(got, 6, (double[]){ 0, 3, 1, 4, 2, 5 });
    oar_safetensors_close(file);
    oar_tensor_release(got);
    oar_tensor_release(c);
    oar_tensor_release(b);
    oar_tensor_release(a);
}

/* The bytes that the Python package writes for
 * {"b": tensor([1, 2], dtype=int16), "a": tensor([[0.5]])}. */
static void a_file_of_others_is_read(void **state)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\","
        "\"shape\":[1,1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"I16\","
        "\"shape\":[2],\"data_offsets\":[4,8]}}   ";
    static const unsigned char data[] = { 0, 0, 0, 0x3f, 1, 0, 2, 0 };
    oar_safetensors *file;
    oar_tensor *got;
    FILE *raw;

    (void)state;
    write_raw(header, sizeof header - 1, 0);
    raw = fopen(path, "ab");
    assert_int_equal(fwrite(data, 1, sizeof data, raw), sizeof data);
    fclose(raw);
    file = open_raw();
    got = oar_safetensors_tensor(NULL, file, "a");
    assert_numbers(got, 1, (double[]){ 0.5 });
    oar_tensor_release(got);
    got = oar_safetensors_tensor(NULL, file, "b");
    assert_numbers(got, 2, (double[]){ 1, 2 });
    oar_tensor_release(got);
    oar_safetensors_close(file);
}

/* ---- parts --------------------------------------------------------------- */

static void read_numbers(const oar_safetensors *file, oar_shape shape,
                         const int64_t *offset, const double *want)
{
    oar_tensor *into = oar_zeros(NULL, OAR_F32, shape);

    OK(oar_safetensors_read(file, "t", offset, into));
    assert_numbers(into, (int)oar_tensor_count(into), want);
    oar_tensor_release(into);
}

static void parts_are_read_by_offset_and_shape(void **state)
{
    oar_tensor *line = oar_arange(NULL, OAR_F32, 5, 1, 1);
    oar_tensor *flat = oar_arange(NULL, OAR_F32, 12, 1, 1);
    oar_tensor *rows = oar_reshape(NULL, flat, OAR_SHAPE(4, 3));
    oar_tensor *wide = oar_reshape(NULL, flat, OAR_SHAPE(3, 4));
    oar_safetensors *file;

    (void)state;
    save_one("t", line);
    file = open_raw();
    read_numbers(file, OAR_SHAPE(2), NULL, (double[]){ 1, 2 });
    read_numbers(file, OAR_SHAPE(3), (int64_t[]){ 2 }, (double[]){ 3, 4, 5 });
    read_numbers(file, OAR_SHAPE(0), (int64_t[]){ 5 }, NULL);
    oar_safetensors_close(file);
    save_one("t", rows);
    file = open_raw();
    read_numbers(file, OAR_SHAPE(2, 3), (int64_t[]){ 1, 0 },
                 (double[]){ 4, 5, 6, 7, 8, 9 });
    oar_safetensors_close(file);
    save_one("t", wide);
    file = open_raw();
    read_numbers(file, OAR_SHAPE(2, 2), (int64_t[]){ 0, 1 },
                 (double[]){ 2, 3, 6, 7 });
    oar_safetensors_close(file);
    oar_tensor_release(wide);
    oar_tensor_release(rows);
    oar_tensor_release(flat);
    oar_tensor_release(line);
}

/* Random parts of random tensors, into other dtypes and strides, are what
 * narrowing in memory gives. */
static void random_parts_are_those_of_memory(void **state)
{
    (void)state;
    srandom(7);
    for (int round = 0; round < 60; round++) {
        oar_shape shape = { .ndim = (int)(random() % 5) };
        oar_shape part = { .ndim = shape.ndim };
        int64_t offset[OAR_MAX_DIMS] = { 0 };
        oar_dtype dtype = round % 3 == 0 ? OAR_F64 : OAR_F32;
        oar_tensor *whole, *want, *into, *turned;
        oar_safetensors *file;
        double a[4096], b[4096];

        for (int i = 0; i < shape.ndim; i++) {
            shape.dim[i] = 1 + random() % 8;
            offset[i] = random() % shape.dim[i];
            part.dim[i] = 1 + random() % (shape.dim[i] - offset[i]);
        }
        whole = oar_uniform(NULL, OAR_F32, shape, (uint64_t)round, -1, 1);
        want = oar_tensor_retain(whole);
        for (int i = 0; i < shape.ndim; i++) {
            oar_tensor *next =
                oar_narrow(NULL, want, i, offset[i], part.dim[i]);

            oar_tensor_release(want);
            want = next;
        }
        save_one("t", whole);
        file = open_raw();
        into = oar_empty(NULL, dtype, part);
        turned = oar_tensor_retain(into);
        if (part.ndim == 2 && round % 2 == 0) { /* columns lie together */
            oar_tensor *other =
                oar_empty(NULL, dtype, OAR_SHAPE(part.dim[1], part.dim[0]));

            oar_tensor_release(turned);
            turned = oar_transpose(NULL, other, 0, 1);
            oar_tensor_release(other);
        }
        OK(oar_safetensors_read(file, "t", offset, turned));
        OK(oar_tensor_read(turned, OAR_F64, a));
        OK(oar_tensor_read(want, OAR_F64, b));
        assert_memory_equal(a, b, (size_t)oar_tensor_count(want) * sizeof *a);
        oar_safetensors_close(file);
        oar_tensor_release(turned);
        oar_tensor_release(into);
        oar_tensor_release(want);
        oar_tensor_release(whole);
    }
}

static void wrong_parts_and_names_are_refused(void **state)
{
    oar_tensor *a = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3, 4));
    oar_tensor *into = oar_zeros(NULL, OAR_F32, OAR_SHAPE(2, 4));
    oar_tensor *line = oar_zeros(NULL, OAR_F32, OAR_SHAPE(2));
    oar_safetensors *file;

    (void)state;
    save_one("t", a);
    file = open_raw();
    assert_fails_with(
        oar_safetensors_read(file, "t", (int64_t[]){ 2, 0 }, into), OAR_E_SHAPE,
        "\"t\" is [3, 4]; there is no part [2, 4] at");
    assert_fails_with(
        oar_safetensors_read(file, "t", (int64_t[]){ -1, 0 }, into),
        OAR_E_SHAPE, "no part");
    assert_fails_with(oar_safetensors_read(file, "t", NULL, line), OAR_E_SHAPE,
                      "no part [2]");
    assert_fails_with(oar_safetensors_read(file, "u", NULL, into),
                      OAR_E_NOT_FOUND, "no tensor \"u\"");
    assert_null(oar_safetensors_tensor(NULL, file, "u"));
    oar_safetensors_close(file);
    assert_fails_with(oar_safetensors_open("/nowhere/x", NULL, &file),
                      OAR_E_NOT_FOUND, "open /nowhere/x");
    assert_fails_with(oar_safetensors_open(folder, NULL, &file), OAR_E_SYSTEM,
                      folder);
    assert_fails_with(
        oar_safetensors_save(path, 2, (const char *[]){ "t", "t" },
                             (oar_tensor *[]){ a, line }, 0, NULL),
        OAR_E_ARG, "\"t\" is there twice");
    assert_fails_with(oar_safetensors_save(path, 1, (const char *[]){ "\xff" },
                                           (oar_tensor *[]){ a }, 0, NULL),
                      OAR_E_ARG, "is not UTF-8");
    oar_tensor_release(line);
    oar_tensor_release(into);
    oar_tensor_release(a);
}

/* ---- mapped -------------------------------------------------------------- */

static void a_mapped_tensor_is_read_only_and_outlives_the_file(void **state)
{
    oar_tensor *a = oar_arange(NULL, OAR_F32, 6, 0, 1), *got;
    oar_safetensors_opts opts = { .size = sizeof opts, .map = 1 };
    oar_safetensors *file;

    (void)state;
    save_one("t", a);
    OK(oar_safetensors_open(path, &opts, &file));
    got = oar_safetensors_tensor(NULL, file, "t");
    oar_safetensors_close(file);
    assert_non_null(got);
    assert_true(oar_tensor_is_read_only(got));
    assert_numbers(got, 6, (double[]){ 0, 1, 2, 3, 4, 5 });
    assert_int_equal(oar_tensor_fill(got, 1), OAR_E_STATE);
    oar_tensor_release(got);
    oar_tensor_release(a);
}

static void a_tensor_that_is_not_aligned_is_copied(void **state)
{
    static const char header[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
        "\"b\":{\"dtype\":\"U16\",\"shape\":[2],\"data_offsets\":[1,5]}}";
    oar_safetensors_opts opts = { .size = sizeof opts, .map = 1 };
    oar_safetensors *file;
    oar_tensor *got;

    (void)state;
    write_raw(header, (sizeof header - 1) & ~(size_t)1, 5);
    if ((sizeof header - 1) % 2 != 0) /* keep the data at an even place */
        write_raw("{\"b\":{\"dtype\":\"U16\",\"shape\":[2],"
                  "\"data_offsets\":[1,5]},\"a\":{\"dtype\":\"U8\","
                  "\"shape\":[1],\"data_offsets\":[0,1]} }",
                  sizeof header, 5);
    OK(oar_safetensors_open(path, &opts, &file));
    got = oar_safetensors_tensor(NULL, file, "b");
    assert_false(oar_tensor_is_read_only(got));
    assert_numbers(got, 2, (double[]){ 0x0201, 0x0403 });
    oar_tensor_release(got);
    oar_safetensors_close(file);
}

/* ---- files that lie ------------------------------------------------------ */

#define ENTRY(name, dtype, shape, offsets)                    \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape \
    "],\"data_offsets\":[" offsets "]}"
#define A ENTRY("a", "U8", "4", "0,4")

static void what_is_wrong_in_a_header_is_said(void **state)
{
    static const struct {
        const char *header, *says;
    } table[] = {
        { "", "end" },
        { "[]", "'{'" },
        { "{", "end" },
        { "{}x", "after its end" },
        { "{" A, "end" },
        { "{" A ",}", "'\"'" },
        { "{" A A "}", "','" },
        { "{" A "," A "}", "begins at byte 0 of the data, where byte 4" },
        { "{" A "," ENTRY("a", "U8", "0", "4,4") "}", "\"a\" is there twice" },
        { "{\"\":" A "}", "a name of 0 bytes" },
        { "{" ENTRY("a", "U8", "5", "0,4") "}", "takes 5 bytes" },
        { "{" ENTRY("a", "U8", "4", "0,5") "}", "a number above 4" },
        { "{" ENTRY("a", "U8", "3", "0,3") "}", "tensors end at 3" },
        { "{" ENTRY("a", "U8", "3", "1,4") "}", "where byte 0 is next" },
        { "{" ENTRY("a", "U8", "4", "4,0") "}", "run backwards" },
        { "{" ENTRY("a", "U8", "-4", "0,4") "}", "whole number" },
        { "{" ENTRY("a", "U8", "4.0", "0,4") "}", "','" },
        { "{" ENTRY("a", "U8", "04", "0,4") "}", "whole number" },
        { "{" ENTRY("a", "U8", "4", "0") "}", "" },
        { "{" ENTRY("a", "U8", "4", "0,4,4") "}", "third offset" },
        { "{" ENTRY("a", "F64", "2305843009213693952,8", "0,4") "}",
          "too large" },
        { "{" ENTRY("a", "U8", "99999999999999999999", "0,4") "}",
          "a number above" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", "lacks" },
        { "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[4],"
          "\"data_offsets\":[0,4]}}",
          "there twice" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],"
          "\"x\":1}}",
          "unknown" },
        { "{\"__metadata__\":{\"k\":1}," A "}", "'\"'" },
        { "{\"__metadata__\":{},\"__metadata__\":{}," A "}", "second" },
        { "{\"__metadata__\":[]," A "}", "'{'" },
        { "{\"\\u0000\":1}", "well-formed text" },
        { "{\"\\ud800\":1}", "well-formed text" },
        { "{\"\xc3(\":1}", "well-formed text" },
        { "{\"a\n\":1}", "well-formed text" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        oar_safetensors *file = NULL;
        leak_check before = leak_check_begin();

        write_raw(table[i].header, strlen(table[i].header), 4);
        if (!fails_with(oar_safetensors_open(path, NULL, &file), OAR_E_DATA,
                        table[i].says))
            fail_msg("header %zu: %s", i, table[i].header);
        assert_null(file);
        leak_check_end(&before);
    }
}

static void lengths_that_lie_are_refused(void **state)
{
    static const uint64_t lengths[] = { UINT64_MAX, 1ull << 63, 100000001, 17 };
    oar_safetensors *file;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        FILE *raw = fopen(path, "wb");

        fwrite(&lengths[i], 1, 8, raw);
        fwrite("{}              ", 1, 16, raw);
        fclose(raw);
        assert_fails_with(oar_safetensors_open(path, NULL, &file), OAR_E_DATA,
                          "says that its header has");
    }
    assert_int_equal(truncate(path, 7), 0);
    assert_fails_with(oar_safetensors_open(path, NULL, &file), OAR_E_DATA,
                      "too few");
}

static void a_dtype_that_is_unknown_is_left_alone(void **state)
{
    static const char header[] = "{" ENTRY("c", "C64", "1", "0,8") "," ENTRY(
        "deep", "U8", "1,1,1,1,1,1,1,1,1",
        "8,9") "," ENTRY("e", "F8_E4M3", "2", "9,11") "," ENTRY("u", "U8", "1",
                                                                "11,12") "}";
    oar_safetensors_entry entry = { .size = sizeof entry };
    oar_safetensors *file;
    oar_tensor *got;

    (void)state;
    write_raw(header, sizeof header - 1, 12);
    file = open_raw();
    OK(oar_safetensors_entry_at(file, 0, &entry));
    assert_false(entry.known);
    assert_string_equal(entry.dtype_text, "C64");
    assert_null(oar_safetensors_tensor(NULL, file, "c"));
    assert_fails_with(oar_last_error()->status, OAR_E_UNSUPPORTED, "C64");
    assert_null(oar_safetensors_tensor(NULL, file, "deep"));
    assert_fails_with(oar_last_error()->status, OAR_E_UNSUPPORTED, "8 dims");
    assert_null(oar_safetensors_tensor(NULL, file, "e"));
    got = oar_safetensors_tensor(NULL, file, "u");
    assert_numbers(got, 1, (double[]){ 11 });
    oar_tensor_release(got);
    oar_safetensors_close(file);
}

/* ---- failures ------------------------------------------------------------ */

static void assert_file_is(double first)
{
    oar_safetensors *file = open_raw();
    oar_tensor *got = oar_safetensors_tensor(NULL, file, "t");

    assert_numbers(got, 3, (double[]){ first, first + 1, first + 2 });
    oar_tensor_release(got);
    oar_safetensors_close(file);
}

static void a_save_that_fails_leaves_the_old_file(void **state)
{
    static const disk_fault faults[] = { DISK_FAULT_ERROR,
                                         DISK_FAULT_ERROR_AFTER };
    oar_tensor *old = oar_arange(NULL, OAR_F32, 3, 1, 1);
    oar_tensor *new = oar_arange(NULL, OAR_F32, 3, 10, 1);
    const char *name = "t";
    int failures = 0;

    (void)state;
    for (int f = 0; f < 2; f++)
        for (long at = 1;; at++) {
            oar_status status;

            save_one("t", old);
            faulty_disk_use(faults[f], at, ENOSPC);
            status = oar_safetensors_save(path, 1, &name, &new, 0, NULL);
            faulty_disk_stop();
            if (faulty_disk_struck() == NULL) {
                OK(status);
                assert_file_is(10);
                break;
            }
            /* A close of a folder that was synced tells nothing. */
            if (status == OAR_OK) {
                assert_file_is(10);
                continue;
            }
            failures++;
            assert_fails_with(status, OAR_E_SYSTEM, "No space left");
            /* From the rename on the new one may be there. */
            if (at <= 6 && strcmp(faulty_disk_struck(), "rename") != 0)
                assert_file_is(1);
            assert_true(folder_entries(folder) <= 2);
        }
    assert_true(failures >= 10);
    oar_tensor_release(new);
    oar_tensor_release(old);
}

static void short_transfers_are_finished(void **state)
{
    oar_tensor *a = oar_arange(NULL, OAR_F32, 3, 5, 1);
    const char *name = "t";

    (void)state;
    for (long at = 1; at <= 8; at++) {
        faulty_disk_use(DISK_FAULT_SHORT, at, 0);
        OK(oar_safetensors_save(path, 1, &name, &a, 0, NULL));
        faulty_disk_use(DISK_FAULT_SHORT, at, 0);
        assert_file_is(5);
        faulty_disk_use(DISK_FAULT_ERROR, at, EINTR);
        (void)oar_safetensors_save(path, 1, &name, &a, 0, NULL);
        faulty_disk_stop();
        assert_file_is(5);
    }
    oar_tensor_release(a);
}

static oar_status save_and_read(void *arg)
{
    oar_tensor *a = arg, *got;
    const char *name = "t";
    oar_safetensors *file;
    oar_status status = oar_safetensors_save(
        path, 1, &name, &a, 1, (const char *const[][2]){ { "k", "v" } });

    if (status == OAR_OK)
        status = oar_safetensors_open(path, NULL, &file);
    if (status != OAR_OK)
        return status;
    got = oar_safetensors_tensor(NULL, file, "t");
    status = got != NULL ? OAR_OK : oar_last_error()->status;
    oar_tensor_release(got);
    oar_safetensors_close(file);
    return status;
}

static void every_failing_allocation_is_said(void **state)
{
    oar_tensor *a = oar_zeros(NULL, OAR_F32, OAR_SHAPE(4, 3));
    oar_tensor *turned = oar_transpose(NULL, a, 0, 1);

    (void)state;
    fail_each_allocation(save_and_read, turned);
    oar_tensor_release(turned);
    oar_tensor_release(a);
}

#define TEST(name) \
    cmocka_unit_test_setup_teardown(name, open_folder, close_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_dtype_and_shape_comes_back_bitwise),
        TEST(a_file_without_tensors_is_fine),
        TEST(a_strided_tensor_is_written_row_by_row),
        TEST(a_file_of_others_is_read),
        TEST(parts_are_read_by_offset_and_shape),
        TEST(random_parts_are_those_of_memory),
        TEST(wrong_parts_and_names_are_refused),
        TEST(a_mapped_tensor_is_read_only_and_outlives_the_file),
        TEST(a_tensor_that_is_not_aligned_is_copied),
        TEST(what_is_wrong_in_a_header_is_said),
        TEST(lengths_that_lie_are_refused),
        TEST(a_dtype_that_is_unknown_is_left_alone),
        TEST(a_save_that_fails_leaves_the_old_file),
        TEST(short_transfers_are_finished),
        TEST(every_failing_allocation_is_said),
    };

    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
