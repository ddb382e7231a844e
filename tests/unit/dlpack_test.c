/* SPDX-License-Identifier: Apache-2.0 */
/* DLPack: tensors exported and imported without a copy, the ownership of their
 * memory, what is refused, and that every deleter is called once. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/dlpack.h>
#include <oarsong/memory.h>
#include <oarsong/ops.h>
#include <oarsong/optim.h>
#include <oarsong/tape.h>

#include "support/leak_check.h"
#include "support/last_error.h"
#include "tensor/dlpack_abi.h"

/* The layout that dlpack.h gives its structs on 64-bit machines. */
_Static_assert(offsetof(oari_dl_managed, manager_ctx) == 8, "DLPack ABI");
_Static_assert(offsetof(oari_dl_managed, deleter) == 16, "DLPack ABI");
_Static_assert(offsetof(oari_dl_managed, flags) == 24, "DLPack ABI");
_Static_assert(offsetof(oari_dl_managed, tensor) == 32, "DLPack ABI");
_Static_assert(offsetof(oari_dl_tensor, ndim) == 16, "DLPack ABI");
_Static_assert(offsetof(oari_dl_tensor, dtype) == 20, "DLPack ABI");
_Static_assert(offsetof(oari_dl_tensor, byte_offset) == 40, "DLPack ABI");
_Static_assert(sizeof(oari_dl_managed) == 80, "DLPack ABI");
_Static_assert(offsetof(oari_dl_unversioned, manager_ctx) == 48, "DLPack ABI");
_Static_assert(offsetof(oari_dl_unversioned, deleter) == 56, "DLPack ABI");

/* ---- another library's tensor -------------------------------------------- */

typedef struct external {
    oari_dl_managed managed;
    int64_t shape[OAR_MAX_DIMS + 1], strides[OAR_MAX_DIMS];
    float number[12]; /* 0, 1, 2, ... */
    int deleted;
} external;

static void count_deletion(oari_dl_managed *self)
{
    ((external *)self->manager_ctx)->deleted++;
}

/* A matrix [3, 4], row by row. */
static void make_foreign(external *f)
{
    memset(f, 0, sizeof *f);
    for (int i = 0; i < 12; i++)
        f->number[i] = (float)i;
    f->managed = (oari_dl_managed){
        .version = { 1, 1 },
        .manager_ctx = f,
        .deleter = count_deletion,
        .tensor = { .data = f->number,
                    .device = { OARI_DL_CPU, 0 },
                    .ndim = 2,
                    .dtype = { OARI_DL_FLOAT, 32, 1 },
                    .shape = f->shape },
    };
    f->shape[0] = 3;
    f->shape[1] = 4;
}

/* ---- out ----------------------------------------------------------------- */

static void a_tensor_goes_out_with_its_strides(void **state)
{
    oar_tensor *a = oar_arange(NULL, OAR_F64, 24, 0, 1);
    oar_tensor *cube = oar_reshape(NULL, a, OAR_SHAPE(2, 3, 4));
    oar_tensor *view = oar_slice(NULL, cube, 2, 1, 4, 2);
    oari_dl_managed *out;

    OK(oar_dlpack_export(view, &out));
    assert_int_equal(out->version.major, 1);
    assert_int_equal(out->flags, 0);
    assert_int_equal(out->tensor.ndim, 3);
    assert_int_equal(out->tensor.device.type, OARI_DL_CPU);
    assert_int_equal(out->tensor.dtype.code, OARI_DL_FLOAT);
    assert_int_equal(out->tensor.dtype.bits, 64);
    assert_int_equal(out->tensor.dtype.lanes, 1);
    assert_int_equal(out->tensor.shape[2], 2);
    assert_int_equal(out->tensor.strides[0], 12);
    assert_int_equal(out->tensor.strides[2], 2);
    assert_ptr_equal((char *)out->tensor.data + out->tensor.byte_offset,
                     oar_tensor_data(view));
    oar_tensor_release(a);
    oar_tensor_release(cube);
    oar_tensor_release(view);
    assert_true(((double *)out->tensor.data)[2] == 3); /* still there */
    out->deleter(out);
}

static void every_dtype_goes_round(void **state)
{
    uint64_t before = leak_check_begin().live;

    for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
        oar_tensor *a = oar_ones(NULL, (oar_dtype)d, OAR_SHAPE(2, 3)), *b;
        oari_dl_managed *out;

        OK(oar_dlpack_export(a, &out));
        b = oar_dlpack_import(NULL, out);
        assert_non_null(b);
        assert_int_equal(oar_tensor_dtype(b), d);
        assert_ptr_equal(oar_tensor_data(a), oar_tensor_data(b));
        oar_tensor_release(a);
        assert_int_equal(oar_tensor_count(b), 6);
        oar_tensor_release(b);
    }
    assert_int_equal(leak_check_begin().live, before);
}

static void single_and_empty_tensors_go_round(void **state)
{
    oar_shape shapes[] = { OAR_SCALAR, OAR_SHAPE(1), OAR_SHAPE(0),
                           OAR_SHAPE(3, 0) };

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        oar_tensor *a = oar_full(NULL, OAR_F32, shapes[i], 5), *b;
        oari_dl_managed *out;

        OK(oar_dlpack_export(a, &out));
        assert_int_equal(out->tensor.ndim, shapes[i].ndim);
        b = oar_dlpack_import(NULL, out);
        assert_non_null(b);
        assert_int_equal(oar_tensor_count(b), oar_tensor_count(a));
        oar_tensor_release(b);
        oar_tensor_release(a);
    }
}

static void what_cannot_go_out_is_refused(void **state)
{
    oar_tensor *a = oar_ones(NULL, OAR_F32, OAR_SHAPE(3));
    oari_dl_managed *out = NULL;

    oar_clear_error();
    assert_int_equal(oar_dlpack_export(NULL, &out), OAR_E_ARG);
    assert_int_equal(oar_dlpack_export(a, NULL), OAR_E_ARG);
    OK(oar_storage_detach(oar_tensor_storage(a)));
    assert_int_equal(oar_dlpack_export(a, &out), OAR_E_STATE);
    assert_null(out);
    oar_tensor_release(a);
}

static void memory_that_a_consumer_reads_is_not_taken_away(void **state)
{
    oar_tensor *a = oar_full(NULL, OAR_F32, OAR_SHAPE(5), 7), *other;
    oar_storage *s = oar_tensor_storage(a);
    oari_dl_unversioned *old;
    oari_dl_managed *out;
    const float *seen;

    OK(oar_dlpack_export(a, &out));
    OK(oar_dlpack_export_unversioned(a, &old));
    seen = out->tensor.data;
    assert_fails_with(oar_storage_detach(s), OAR_E_STATE, "DLPack");
    assert_true(seen[4] == 7);
    out->deleter(out);
    assert_fails_with(oar_storage_detach(s), OAR_E_STATE, "DLPack");
    other = oar_dlpack_import_unversioned(NULL, old);
    assert_fails_with(oar_storage_detach(s), OAR_E_STATE, "DLPack");
    OK(oar_storage_detach(oar_tensor_storage(other))); /* gives it back */
    OK(oar_storage_detach(s));
    assert_null(oar_tensor_data(a));
    oar_tensor_release(other);
    oar_tensor_release(a);
}

/* Reads all of an export of ones and gives it back. */
static void *consume_export(void *arg)
{
    oari_dl_managed *out = arg;
    const float *number = out->tensor.data;
    intptr_t sum = 0;

    for (int64_t i = 0; i < out->tensor.shape[0]; i++)
        sum += number[i] == 1;
    out->deleter(out);
    return (void *)sum;
}

static void a_consumer_gives_back_from_another_thread(void **state)
{
    enum { COUNT = 5000 };

    for (int i = 0; i < 20; i++) {
        oar_tensor *a = oar_ones(NULL, OAR_F32, OAR_SHAPE(COUNT));
        oari_dl_managed *out;
        pthread_t consumer;
        void *sum;

        OK(oar_dlpack_export(a, &out));
        assert_int_equal(pthread_create(&consumer, NULL, consume_export, out),
                         0);
        oar_storage_detach(oar_tensor_storage(a)); /* or is refused */
        assert_int_equal(pthread_join(consumer, &sum), 0);
        assert_int_equal((intptr_t)sum, COUNT);
        OK(oar_storage_detach(oar_tensor_storage(a)));
        oar_tensor_release(a);
    }
}

/* ---- in ------------------------------------------------------------------ */

static void a_tensor_comes_in_and_is_given_back(void **state)
{
    external f;
    oar_tensor *a, *sum, *view;
    double total;

    make_foreign(&f);
    a = oar_dlpack_import(NULL, &f.managed);
    assert_non_null(a);
    assert_ptr_equal(oar_tensor_data(a), f.number);
    sum = oar_sum(NULL, a);
    OK(oar_tensor_item(sum, &total));
    assert_true(total == 66);
    view = oar_transpose(NULL, a, 0, 1);
    oar_tensor_release(a);
    assert_int_equal(f.deleted, 0);
    OK(oar_tensor_fill(view, 7));
    assert_true(f.number[5] == 7);
    oar_tensor_release(view);
    oar_tensor_release(sum);
    assert_int_equal(f.deleted, 1);
}

static void a_tape_gives_it_back_at_reset(void **state)
{
    external f;
    oar_tape *tape;

    make_foreign(&f);
    OK(oar_tape_create(&tape));
    assert_non_null(oar_dlpack_import(tape, &f.managed));
    assert_int_equal(f.deleted, 0);
    oar_tape_reset(tape);
    assert_int_equal(f.deleted, 1);
    oar_tape_destroy(tape);
    assert_int_equal(f.deleted, 1);
}

static void strides_and_offsets_are_followed(void **state)
{
    external f;
    oar_tensor *a;
    float got[6];

    make_foreign(&f); /* rows 2 and 1, columns backward from the last */
    f.managed.tensor.strides = f.strides;
    f.managed.tensor.byte_offset = 11 * sizeof(float);
    f.shape[0] = 2;
    f.shape[1] = 3;
    f.strides[0] = -4;
    f.strides[1] = -1;
    a = oar_dlpack_import(NULL, &f.managed);
    assert_non_null(a);
    OK(oar_tensor_read(a, OAR_F32, got));
    assert_memory_equal(got, ((float[]){ 11, 10, 9, 7, 6, 5 }), sizeof got);
    oar_tensor_release(a);
    assert_int_equal(f.deleted, 1);
}

/* ---- another library's tensor that may only be read ---------------------- */

static oar_tensor *import_read_only(external *f)
{
    make_foreign(f);
    f->managed.flags = OARI_DL_READ_ONLY;
    return oar_dlpack_import(NULL, &f->managed);
}

/* The call was refused, with a sentence that has the shape. */
static void was_refused(oar_status status, const char *shape)
{
    assert_int_equal(status, OAR_E_STATE);
    assert_int_equal(oar_last_error()->status, OAR_E_STATE);
    assert_non_null(strstr(oar_last_error_text(), "can only be read"));
    assert_non_null(strstr(oar_last_error_text(), shape));
    oar_clear_error();
}

static void read_only_tensors_are_not_written(void **state)
{
    external f;
    oar_tensor *a = import_read_only(&f);
    oar_tensor *b = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3, 4));
    float zero[12] = { 0 };

    OK(oar_tensor_copy(b, a));
    was_refused(oar_tensor_fill(a, 1), "[3, 4]");
    was_refused(oar_tensor_touch(a), "[3, 4]");
    was_refused(oar_tensor_copy(a, b), "[3, 4]");
    was_refused(oar_tensor_write(a, OAR_F32, zero), "[3, 4]");
    assert_true(f.number[11] == 11);
    oar_tensor_release(a);
    assert_int_equal(f.deleted, 1);
    oar_tensor_release(b);
}

static void read_only_tensors_give_no_pointer_to_write_to(void **state)
{
    external f;
    oar_tensor *a = import_read_only(&f);
    oar_tensor *b = oar_zeros(NULL, OAR_F32, OAR_SHAPE(5));
    oar_span span;

    assert_true(oar_tensor_is_read_only(a));
    assert_false(oar_tensor_is_read_only(b));
    assert_false(oar_tensor_is_read_only(NULL));
    assert_null(oar_tensor_data(a));
    was_refused(oar_last_error()->status, "[3, 4]");
    was_refused(oar_tensor_span(a, &span), "[3, 4]");
    OK(oar_tensor_const_span(a, &span));
    assert_ptr_equal(span.data, f.number);
    assert_true(span.read_only && span.count == 12 && span.dtype == OAR_F32);
    assert_null(oar_storage_data(oar_tensor_storage(a)));
    was_refused(oar_last_error()->status, "48 bytes");
    assert_ptr_equal(oar_tensor_const_data(a), f.number);
    assert_ptr_equal(oar_storage_const_data(oar_tensor_storage(a)), f.number);
    assert_ptr_equal(oar_tensor_const_data(b), oar_tensor_data(b));
    assert_null(oar_tensor_const_data(NULL));
    assert_null(oar_storage_const_data(NULL));
    oar_tensor_release(a);
    oar_tensor_release(b);
}

static void views_and_exports_of_read_only_tensors_are_read_only(void **state)
{
    external f;
    oar_tensor *a = import_read_only(&f), *again;
    oar_tensor *turned = oar_transpose(NULL, a, 0, 1);
    oar_tensor *row = oar_select(NULL, a, 0, 2);
    oar_tensor *copy = oar_contiguous(NULL, turned);
    oari_dl_managed *out;
    float got[4];

    was_refused(oar_tensor_fill(turned, 0), "[4, 3]");
    was_refused(oar_tensor_fill(row, 0), "[4]");
    OK(oar_tensor_fill(copy, 0)); /* memory of its own */
    OK(oar_dlpack_export(row, &out));
    assert_int_equal(out->flags & OARI_DL_READ_ONLY, OARI_DL_READ_ONLY);
    assert_ptr_equal(out->tensor.data, f.number + 8);
    again = oar_dlpack_import(NULL, out);
    was_refused(oar_tensor_fill(again, 0), "[4]");
    oar_tensor_release(a);
    oar_tensor_release(turned);
    oar_tensor_release(row);
    oar_tensor_release(copy);
    OK(oar_tensor_read(again, OAR_F32, got));
    assert_true(got[3] == 11);
    assert_int_equal(f.deleted, 0);
    oar_tensor_release(again);
    assert_int_equal(f.deleted, 1);
}

static void read_only_tensors_are_read_and_differentiated(void **state)
{
    external f;
    oar_tensor *a = import_read_only(&f), *sum;
    oar_tape *tape;
    float grad[12];

    OK(oar_tensor_require_grad(a, 1));
    OK(oar_tape_create(&tape));
    sum = oar_sum(tape, oar_mul(tape, a, a));
    OK(oar_backward(tape, sum));
    OK(oar_tensor_read(oar_tensor_grad(a), OAR_F32, grad));
    for (int i = 0; i < 12; i++)
        assert_true(grad[i] == 2 * (float)i && f.number[i] == (float)i);
    oar_tape_destroy(tape);
    oar_tensor_release(a);
    assert_int_equal(f.deleted, 1);
}

static void nothing_that_trains_writes_to_read_only_tensors(void **state)
{
    external f;
    oar_tensor *a = import_read_only(&f), *leaf;
    oar_optim *sgd = NULL;

    leaf = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3, 4));
    OK(oar_tensor_require_grad(leaf, 1));
    was_refused(oar_tensor_bind_grad(leaf, a), "[3, 4]");
    assert_null(oar_tensor_grad(leaf));
    OK(oar_tensor_require_grad(a, 1));
    was_refused(oar_sgd_create_over(1, &a, NULL, &sgd), "[3, 4]");
    OK(oar_sgd_create_over(1, &leaf, NULL, &sgd));
    was_refused(oar_optim_add_group(sgd, 1, &a, 1, 1), "[3, 4]");
    oar_optim_destroy(sgd);
    oar_tensor_release(leaf);
    oar_tensor_release(a);
}

static void running_statistics_are_not_kept_in_read_only_tensors(void **state)
{
    external f;
    oar_tensor *a = import_read_only(&f), *row = oar_select(NULL, a, 0, 1);
    oar_tensor *var = oar_ones(NULL, OAR_F32, OAR_SHAPE(4)), *y;

    oar_clear_error();
    assert_null(oar_batch_norm(NULL, a, NULL, NULL, row, var, 1, 0.1, 1e-5));
    was_refused(oar_last_error()->status, "[4]");
    assert_null(oar_batch_norm(NULL, a, NULL, NULL, var, row, 1, 0.1, 1e-5));
    was_refused(oar_last_error()->status, "[4]");
    y = oar_batch_norm(NULL, a, NULL, NULL, row, row, 0, 0.1, 1e-5);
    assert_non_null(y); /* outside of training they are only read */
    assert_true(f.number[4] == 4);
    oar_tensor_release(y);
    oar_tensor_release(var);
    oar_tensor_release(row);
    oar_tensor_release(a);
}

static void was_refused_as(oar_status status, const char *words)
{
    assert_int_equal(oar_last_error()->status, status);
    assert_non_null(strstr(oar_last_error_text(), words));
    oar_clear_error();
}

static void refuses(external *f, oar_status status, const char *words)
{
    oar_clear_error();
    f->deleted = 0;
    assert_null(oar_dlpack_import(NULL, &f->managed));
    assert_int_equal(oar_last_error()->status, status);
    if (strstr(oar_last_error_text(), words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", oar_last_error_text(), words);
    assert_int_equal(f->deleted, 1);
    make_foreign(f);
}

static void what_cannot_come_in_is_given_back_at_once(void **state)
{
    external f;

    oar_clear_error();
    assert_null(oar_dlpack_import(NULL, NULL));
    assert_int_equal(oar_last_error()->status, OAR_E_ARG);
    make_foreign(&f);
    f.managed.version.major = 2;
    refuses(&f, OAR_E_UNSUPPORTED, "version 2.1");
    f.managed.tensor.device.type = 10;
    refuses(&f, OAR_E_DEVICE, "device 10:0");
    f.managed.tensor.dtype = (oari_dl_dtype){ 5, 64, 1 };
    refuses(&f, OAR_E_DTYPE, "code 5 with 64 bits");
    f.managed.tensor.dtype.lanes = 4;
    refuses(&f, OAR_E_DTYPE, "4 lanes");
    f.managed.tensor.ndim = OAR_MAX_DIMS + 1;
    refuses(&f, OAR_E_ARG, "9 dims");
    f.managed.tensor.ndim = -1;
    refuses(&f, OAR_E_ARG, "-1 dims");
    f.managed.tensor.shape = NULL;
    refuses(&f, OAR_E_ARG, "dims");
    f.shape[0] = -3;
    refuses(&f, OAR_E_ARG, "[-3, 4]");
    f.managed.tensor.data = NULL;
    refuses(&f, OAR_E_ARG, "no data");
    f.managed.tensor.byte_offset = 2;
    refuses(&f, OAR_E_ARG, "not aligned");
    f.managed.tensor.strides = f.strides;
    f.strides[0] = INT64_MAX / 2;
    refuses(&f, OAR_E_ARG, "strides");
    f.strides[0] = INT64_MIN;
    f.managed.tensor.strides = f.strides;
    refuses(&f, OAR_E_ARG, "strides");
}

/* ---- without a version --------------------------------------------------- */

typedef struct unversioned {
    oari_dl_unversioned managed;
    external of;
} unversioned;

static void count_unversioned(oari_dl_unversioned *self)
{
    ((unversioned *)self->manager_ctx)->of.deleted++;
}

static void make_unversioned(unversioned *u)
{
    make_foreign(&u->of);
    u->managed = (oari_dl_unversioned){ .tensor = u->of.managed.tensor,
                                        .manager_ctx = u,
                                        .deleter = count_unversioned };
}

static void a_struct_without_a_version_comes_in(void **state)
{
    unversioned u;
    oar_tensor *a;

    make_unversioned(&u);
    a = oar_dlpack_import_unversioned(NULL, &u.managed);
    assert_non_null(a);
    assert_ptr_equal(oar_tensor_data(a), u.of.number);
    assert_int_equal(oar_tensor_count(a), 12);
    OK(oar_tensor_fill(a, 3));
    assert_true(u.of.number[11] == 3);
    assert_int_equal(u.of.deleted, 0);
    oar_tensor_release(a);
    assert_int_equal(u.of.deleted, 1);
    make_unversioned(&u);
    u.managed.tensor.dtype.lanes = 4;
    assert_null(oar_dlpack_import_unversioned(NULL, &u.managed));
    assert_int_equal(oar_last_error()->status, OAR_E_DTYPE);
    assert_int_equal(u.of.deleted, 1);
    assert_null(oar_dlpack_import_unversioned(NULL, NULL));
}

static void a_tensor_goes_out_without_a_version(void **state)
{
    uint64_t before = leak_check_begin().live;
    oar_tensor *a = oar_arange(NULL, OAR_I64, 5, 0, 1), *b;
    oari_dl_unversioned *out = NULL;
    external f;

    OK(oar_dlpack_export_unversioned(a, &out));
    assert_ptr_equal(out->tensor.data, oar_tensor_data(a));
    assert_int_equal(out->tensor.shape[0], 5);
    b = oar_dlpack_import_unversioned(NULL, out);
    oar_tensor_release(a);
    assert_int_equal(((int64_t *)oar_tensor_data(b))[4], 4);
    oar_tensor_release(b);
    assert_int_equal(leak_check_begin().live, before);
    assert_int_equal(oar_dlpack_export_unversioned(NULL, &out), OAR_E_ARG);
    b = import_read_only(&f);
    was_refused(oar_dlpack_export_unversioned(b, &out), "cannot say so");
    oar_tensor_release(b);
}

/* The wrong struct is told by its first eight bytes, and nothing of it is
 * called. */
static void one_struct_is_not_taken_for_the_other(void **state)
{
    struct DLManagedTensorVersioned *wrong;
    struct DLManagedTensor *other;
    external f;
    unversioned u;

    make_unversioned(&u);
    memcpy(&wrong, &(void *){ &u.managed }, sizeof wrong);
    oar_clear_error();
    assert_null(oar_dlpack_import(NULL, wrong));
    was_refused_as(OAR_E_ARG, "dlpack_import_unversioned takes it");
    u.managed.tensor.data = NULL; /* no elements */
    u.of.shape[0] = 0;
    assert_null(oar_dlpack_import(NULL, wrong));
    was_refused_as(OAR_E_ARG, "dlpack_import_unversioned takes it");
    assert_int_equal(u.of.deleted, 0);
    make_foreign(&f);
    memcpy(&other, &(void *){ &f.managed }, sizeof other);
    assert_null(oar_dlpack_import_unversioned(NULL, other));
    was_refused_as(OAR_E_ARG, "version 1.1");
    assert_int_equal(f.deleted, 0);
}

static void what_reaches_beyond_all_memory_is_refused(void **state)
{
    external f;

    make_foreign(&f);
    f.managed.tensor.strides = f.strides;
    f.strides[0] = -(INT64_C(1) << 50); /* before the first address */
    f.strides[1] = 1;
    refuses(&f, OAR_E_ARG, "strides too large");
    make_foreign(&f);
    f.managed.tensor.byte_offset = UINT64_MAX - 3; /* behind the last */
    refuses(&f, OAR_E_ARG, "strides too large");
}

static void no_deleter_is_fine(void **state)
{
    external f;
    oar_tensor *a;

    make_foreign(&f);
    f.managed.deleter = NULL;
    a = oar_dlpack_import(NULL, &f.managed);
    assert_non_null(a);
    oar_tensor_release(a);
    make_foreign(&f);
    f.managed.deleter = NULL;
    f.managed.version.major = 9;
    assert_null(oar_dlpack_import(NULL, &f.managed));
}

static void every_allocation_may_fail(void **state)
{
    oar_tensor *a = oar_ones(NULL, OAR_F32, OAR_SHAPE(3)), *b;
    oari_dl_managed *out = NULL;
    uint64_t before = leak_check_begin().live;
    external f;

    oar_memory_fail_after(1);
    assert_int_equal(oar_dlpack_export(a, &out), OAR_E_NOMEM);
    OK(oar_storage_detach(oar_tensor_storage(a))); /* nothing was exported */
    OK(oar_storage_attach(oar_tensor_storage(a), NULL, NULL, NULL));
    for (uint64_t n = 1; n <= 2; n++) {
        make_foreign(&f);
        oar_memory_fail_after(n);
        assert_null(oar_dlpack_import(NULL, &f.managed));
        assert_int_equal(f.deleted, 1);
    }
    oar_memory_fail_after(0);
    make_foreign(&f);
    b = oar_dlpack_import(NULL, &f.managed);
    assert_non_null(b);
    oar_tensor_release(b);
    assert_int_equal(leak_check_begin().live, before);
    oar_tensor_release(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tensor_goes_out_with_its_strides),
        cmocka_unit_test(every_dtype_goes_round),
        cmocka_unit_test(single_and_empty_tensors_go_round),
        cmocka_unit_test(memory_that_a_consumer_reads_is_not_taken_away),
        cmocka_unit_test(a_consumer_gives_back_from_another_thread),
        cmocka_unit_test(what_cannot_go_out_is_refused),
        cmocka_unit_test(a_tensor_comes_in_and_is_given_back),
        cmocka_unit_test(a_tape_gives_it_back_at_reset),
        cmocka_unit_test(strides_and_offsets_are_followed),
        cmocka_unit_test(read_only_tensors_are_not_written),
        cmocka_unit_test(read_only_tensors_give_no_pointer_to_write_to),
        cmocka_unit_test(views_and_exports_of_read_only_tensors_are_read_only),
        cmocka_unit_test(read_only_tensors_are_read_and_differentiated),
        cmocka_unit_test(nothing_that_trains_writes_to_read_only_tensors),
        cmocka_unit_test(running_statistics_are_not_kept_in_read_only_tensors),
        cmocka_unit_test(what_cannot_come_in_is_given_back_at_once),
        cmocka_unit_test(a_struct_without_a_version_comes_in),
        cmocka_unit_test(a_tensor_goes_out_without_a_version),
        cmocka_unit_test(one_struct_is_not_taken_for_the_other),
        cmocka_unit_test(what_reaches_beyond_all_memory_is_refused),
        cmocka_unit_test(no_deleter_is_fine),
        cmocka_unit_test(every_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
