/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on a GPU: made, moved in every direction, converted, added, scaled,
 * shared by DLPack, reduced and broadcast; and what they refuse. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/dlpack.h>
#include <oarsong/gpu.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "support/gpu_ranks.h"
#include "tensor/dlpack_abi.h"
#include "tensor/tensor.h"

static void run(int ranks, test_job_fn fn, const char *what)
{
    test_job c;

    test_job_start(&c, ranks, fn, NULL, "%s", what);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static const oar_device cpu = { OAR_CPU, 0 }, gpu = { OAR_CUDA, 0 };

static int are(const oar_tensor *t, int count, const double *wanted)
{
    double got[64];

    if (oar_tensor_count(t) != count ||
        oar_tensor_read(t, OAR_F64, got) != OAR_OK)
        return 0;
    for (int i = 0; i < count; i++)
        if (got[i] != wanted[i])
            return 0;
    return 1;
}

/* ---- integers ------------------------------------------------------------ */

typedef oar_tensor *(*integer_fn)(oar_tape *, oar_tensor *, oar_tensor *);

/* Returns whether the results are the cpu's, of every dtype of integers. The
 * second input is repeated. */
static int is_as_on_the_cpu(integer_fn fn, const double *a, const double *b)
{
    int same = 1;

    for (int d = OAR_I8; d <= OAR_U64 && same; d++) {
        oar_tensor *x = oar_empty(NULL, (oar_dtype)d, OAR_SHAPE(2, 3));
        oar_tensor *y = oar_empty(NULL, (oar_dtype)d, OAR_SHAPE(3));
        oar_tensor *there_x, *there_y, *here, *there;
        int is_unsigned = oar_dtype_name((oar_dtype)d)[0] == 'u';
        double wanted[6], second[3];

        for (int i = 0; i < 3; i++)
            second[i] = is_unsigned ? fabs(b[i]) : b[i];
        oar_tensor_write(x, OAR_F64, a);
        oar_tensor_write(y, OAR_F64, second);
        there_x = oar_to(NULL, x, gpu);
        there_y = oar_to(NULL, y, gpu);
        here = fn(NULL, x, y);
        there = fn(NULL, there_x, there_y);
        same = here != NULL && there != NULL &&
               oar_tensor_read(here, OAR_F64, wanted) == OAR_OK &&
               are(there, 6, wanted);
        oar_tensor_release(here);
        oar_tensor_release(there);
        oar_tensor_release(there_x);
        oar_tensor_release(there_y);
        oar_tensor_release(x);
        oar_tensor_release(y);
    }
    return same;
}

/* Returns whether fn of 7 and that number is refused by the next wait. */
static int is_refused(integer_fn fn, double second, const char *why)
{
    oar_tensor *a = oar_full(NULL, OAR_I32, OAR_SHAPE(1), 7);
    oar_tensor *b = oar_full(NULL, OAR_I32, OAR_SHAPE(1), second);
    oar_tensor *x = oar_to(NULL, a, gpu), *y = oar_to(NULL, b, gpu);
    oar_tensor *out = fn(NULL, x, y);
    int refused =
        out != NULL &&
        oar_stream_synchronize(gpu, oar_stream_current(gpu)) == OAR_E_ARG &&
        strstr(oar_last_error_text(), why) != NULL;

    oar_tensor_release(out);
    oar_tensor_release(x);
    oar_tensor_release(y);
    oar_tensor_release(a);
    oar_tensor_release(b);
    return refused;
}

static int divides(test_job *c, int rank, void *arg)
{
    static const double a[] = { -128, 7, 100, 127, -7, 0 };

    RANK_CHECK(is_as_on_the_cpu(oar_div, a, (double[]){ -1, 2, -3 }));
    RANK_CHECK(is_as_on_the_cpu(oar_pow, a, (double[]){ 0, 3, 7 }));
    RANK_CHECK(is_refused(oar_div, 0, "div of integers on cuda:0: element 0"));
    RANK_CHECK(is_refused(oar_pow, -2, "has the exponent -2"));
    RANK_OK(oar_stream_synchronize(gpu, oar_stream_current(gpu)));
    return 0;
}

static void integers_are_divided_as_on_the_cpu(void **state)
{
    run(1, divides, "integers");
}

/* ---- moving -------------------------------------------------------------- */

static int goes_there_and_back(test_job *c, int rank, void *arg)
{
    static const double numbers[] = { 1, -2, 3, 4, 5, -6 };
    oar_tensor *here, *there, *turned, *back;

    for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
        double wanted[6];

        here = oar_empty(NULL, (oar_dtype)d, OAR_SHAPE(2, 3));
        RANK_OK(oar_tensor_write(here, OAR_F64, numbers));
        RANK_OK(oar_tensor_read(here, OAR_F64, wanted));
        there = oar_to(NULL, here, gpu);
        RANK_CHECK(there != NULL && oar_tensor_device(there).kind == OAR_CUDA);
        RANK_CHECK(are(there, 6, wanted));
        back = oar_to(NULL, there, cpu);
        RANK_CHECK(back != NULL && oar_tensor_device(back).kind == OAR_CPU);
        RANK_CHECK(are(back, 6, wanted));
        oar_tensor_release(back);
        oar_tensor_release(there);
        oar_tensor_release(here);
    }
    /* turned on the way, converted on the way */
    here = oar_from_data(NULL, OAR_F64, OAR_SHAPE(2, 3), numbers);
    turned = oar_transpose(NULL, here, 0, 1);
    there = oar_to(NULL, turned, gpu);
    RANK_CHECK(are(there, 6, (double[]){ 1, 4, -2, 5, 3, -6 }));
    back = oar_empty(NULL, OAR_I32, OAR_SHAPE(3, 2));
    RANK_OK(oar_tensor_copy(back, there));
    RANK_CHECK(are(back, 6, (double[]){ 1, 4, -2, 5, 3, -6 }));
    RANK_OK(oar_tensor_copy(there, turned));
    RANK_OK(oar_tensor_fill(there, 7));
    RANK_CHECK(are(there, 6, (double[]){ 7, 7, 7, 7, 7, 7 }));
    oar_tensor_release(back);
    oar_tensor_release(there);
    oar_tensor_release(turned);
    oar_tensor_release(here);
    return 0;
}

static void numbers_go_to_a_gpu_and_come_back(void **state)
{
    run(1, goes_there_and_back, "there and back");
}

static int is_a_view(test_job *c, int rank, void *arg)
{
    oar_storage *storage;
    oar_tensor *part;

    RANK_OK(oar_storage_create_on(gpu, 40, &storage));
    part = oar_view_of(NULL, storage, 4, OAR_F32, OAR_SHAPE(3));
    RANK_CHECK(part != NULL && oar_tensor_device(part).kind == OAR_CUDA);
    RANK_OK(oar_tensor_fill(part, 3));
    RANK_CHECK(are(part, 3, (double[]){ 3, 3, 3 }));
    oar_tensor_release(part);
    oar_storage_release(storage);
    return 0;
}

static void a_storage_on_a_gpu_has_views(void **state)
{
    run(1, is_a_view, "a view");
}

static int goes_across(test_job *c, int rank, void *arg)
{
    oar_device other = { OAR_CUDA, 1 };
    oar_tensor *a = oar_empty_on(NULL, gpu, OAR_F32, OAR_SHAPE(5)), *b;

    RANK_CHECK(a != NULL);
    RANK_OK(oar_tensor_write(a, OAR_F64, (double[]){ 1, 2, 3, 4, 5 }));
    b = oar_to(NULL, a, other);
    RANK_CHECK(b != NULL && oar_tensor_device(b).index == 1);
    RANK_CHECK(are(b, 5, (double[]){ 1, 2, 3, 4, 5 }));
    oar_tensor_release(a);
    oar_tensor_release(b);
    return 0;
}

static void numbers_go_from_one_gpu_to_another(void **state)
{
    gpu_ranks_need(2);
    run(1, goes_across, "across");
}

/* ---- storage ------------------------------------------------------------- */

static int has_storage(test_job *c, int rank, void *arg)
{
    static const unsigned char sent[37] = { 3, 1, [36] = 9 };
    unsigned char got[37] = { 0 };
    oar_storage *storage = NULL;

    RANK_OK(oar_storage_create_on(gpu, sizeof sent, &storage));
    RANK_CHECK(oar_storage_bytes(storage) == sizeof sent);
    RANK_OK(oar_device_copy(oar_storage_data(storage), gpu, sent, cpu,
                            sizeof sent, NULL));
    RANK_OK(oar_device_copy(got, cpu, oar_storage_const_data(storage), gpu,
                            sizeof got, NULL));
    RANK_CHECK(memcmp(sent, got, sizeof sent) == 0);
    RANK_OK(oar_storage_detach(storage));
    RANK_CHECK(oar_storage_const_data(storage) == NULL);
    oar_storage_release(storage);
    storage = NULL;
    RANK_CHECK(oar_storage_create_on(oar_device_of(OAR_CUDA, 77), 8,
                                     &storage) != OAR_OK);
    RANK_CHECK(storage == NULL);
    return 0;
}

/* A storage without memory gets that of another, and lets go of it. */
static int borrows_memory(test_job *c, int rank, void *arg)
{
    const double numbers[] = { 1, 2, 3 };
    oar_tensor *lender = oar_empty_on(NULL, gpu, OAR_F32, OAR_SHAPE(3));
    oar_storage *storage;
    oar_tensor *view;

    RANK_CHECK(oar_storage_create_detached_on(gpu, 12, NULL) == OAR_E_ARG);
    RANK_OK(oar_storage_create_detached_on(gpu, 12, &storage));
    RANK_CHECK(oar_storage_const_data(storage) == NULL);
    RANK_OK(oar_storage_attach(storage, oar_tensor_data(lender), NULL, NULL));
    view = oar_view_of(NULL, storage, 0, OAR_F32, OAR_SHAPE(3));
    RANK_CHECK(view != NULL && oar_tensor_device(view).kind == OAR_CUDA);
    RANK_OK(oar_tensor_write(lender, OAR_F64, numbers));
    RANK_CHECK(are(view, 3, numbers));
    RANK_OK(oar_storage_detach(storage));
    oar_tensor_release(view);
    oar_storage_release(storage);
    oar_tensor_release(lender);
    return 0;
}

static void storage_is_made_on_a_gpu_and_given_up(void **state)
{
    run(1, has_storage, "storage");
    run(1, borrows_memory, "borrowed memory");
}

/* ---- arithmetic ---------------------------------------------------------- */

static int computes(test_job *c, int rank, void *arg)
{
    oar_tensor *a = oar_empty_on(NULL, gpu, OAR_F32, OAR_SHAPE(2, 3));
    oar_tensor *b = oar_empty_on(NULL, gpu, OAR_F32, OAR_SHAPE(3));
    oar_tensor *sum, *twice, *whole, *same;

    RANK_CHECK(a != NULL && b != NULL);
    RANK_OK(oar_tensor_write(a, OAR_F64, (double[]){ 1, 2, 3, 4, 5, 6 }));
    RANK_OK(oar_tensor_write(b, OAR_F64, (double[]){ 0.5, 10, -1 }));
    sum = oar_add(NULL, a, b);
    RANK_CHECK(are(sum, 6, (double[]){ 1.5, 12, 2, 4.5, 15, 5 }));
    twice = oar_scale(NULL, sum, 2);
    RANK_CHECK(are(twice, 6, (double[]){ 3, 24, 4, 9, 30, 10 }));
    whole = oar_cast(NULL, sum, OAR_I64);
    RANK_CHECK(are(whole, 6, (double[]){ 1, 12, 2, 4, 15, 5 }));
    same = oar_contiguous(NULL, sum);
    RANK_CHECK(same == sum);
    oar_tensor_release(same);
    oar_tensor_release(whole);
    oar_tensor_release(twice);
    oar_tensor_release(sum);
    oar_tensor_release(a);
    oar_tensor_release(b);
    return 0;
}

static void sums_multiples_and_conversions_stay_on_the_gpu(void **state)
{
    run(1, computes, "arithmetic");
}

/* ---- gradients ----------------------------------------------------------- */

/* (2 a + b) on the GPU, where a comes from the cpu and the sum goes back. */
static int differentiates(test_job *c, int rank, void *arg)
{
    oar_tensor *a = oar_ones(NULL, OAR_F32, OAR_SHAPE(2, 3)), *y;
    oar_tensor *b = oar_empty_on(NULL, gpu, OAR_F32, OAR_SHAPE(3));
    oar_tensor *weight = oar_from_data(NULL, OAR_F32, OAR_SHAPE(2, 3),
                                       (float[]){ 1, 2, 3, 4, 5, 6 });
    oar_tape *tape;

    RANK_CHECK(a != NULL && b != NULL && weight != NULL);
    RANK_OK(oar_tape_create(&tape));
    RANK_OK(oar_tensor_fill(b, 3));
    RANK_OK(oar_tensor_require_grad(a, 1));
    RANK_OK(oar_tensor_require_grad(b, 1));
    for (int i = 1; i <= 2; i++) { /* the second pass adds */
        y = oar_add(tape, oar_scale(tape, oar_to(tape, a, gpu), 2),
                    oar_reshape(tape, b, OAR_SHAPE(1, 3)));
        y = oar_to(tape, y, cpu);
        RANK_CHECK(are(y, 6, (double[]){ 5, 5, 5, 5, 5, 5 }));
        RANK_OK(oar_backward_from(tape, 1, &y, &weight));
        RANK_CHECK(are(oar_tensor_grad(a), 6,
                       i == 1 ? (double[]){ 2, 4, 6, 8, 10, 12 }
                              : (double[]){ 4, 8, 12, 16, 20, 24 }));
        RANK_CHECK(oar_tensor_device(oar_tensor_grad(b)).kind == OAR_CUDA);
        RANK_CHECK(
            are(oar_tensor_grad(b), 3,
                i == 1 ? (double[]){ 5, 7, 9 } : (double[]){ 10, 14, 18 }));
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_tensor_release(weight);
    oar_tensor_release(b);
    oar_tensor_release(a);
    return 0;
}

static void gradients_cross_devices_and_stay_where_their_leaf_is(void **state)
{
    run(1, differentiates, "gradients");
}

/* ---- what is refused ----------------------------------------------------- */

static int refuses(test_job *c, int rank, void *arg)
{
    oar_tape *tape;
    oar_tensor *a = oar_empty_on(NULL, gpu, OAR_F32, OAR_SHAPE(3));
    oar_tensor *b = oar_ones(NULL, OAR_F32, OAR_SHAPE(3)), *out = NULL;
    char text[128];

    RANK_CHECK(a != NULL && oar_tape_create(&tape) == OAR_OK);
    RANK_OK(oar_tensor_fill(a, 2));
    RANK_CHECK(oar_add(NULL, a, b) == NULL);
    RANK_CHECK(oar_last_error()->status == OAR_E_DEVICE);
    RANK_CHECK(oar_add(NULL, b, a) == NULL);
    RANK_CHECK(oar_last_error()->status == OAR_E_DEVICE);
    RANK_CHECK(strstr(oar_last_error_text(), "[3] on cpu and [3] on cuda:0"));
    RANK_OK(oar_tensor_require_grad(a, 1));
    RANK_CHECK(oar_tensor_bind_grad(a, b) == OAR_E_DEVICE);
    out = oar_scale(tape, a, 2);
    RANK_CHECK(oar_backward_from(tape, 1, &out, &b) == OAR_E_DEVICE);
    out = NULL;
    RANK_CHECK(oar_gpu_all_reduce(NULL, a, OAR_SUM, NULL, &out) == OAR_E_ARG);
    RANK_CHECK(oar_empty_on(NULL, (oar_device){ OAR_CUDA, 77 }, OAR_F32,
                            OAR_SHAPE(3)) == NULL);
    RANK_CHECK(oar_last_error()->status == OAR_E_DEVICE);
    RANK_CHECK(oar_tensor_text(a, text, sizeof text) > 0);
    RANK_CHECK(strstr(text, "2") != NULL);
    oar_tape_destroy(tape);
    oar_tensor_release(a);
    oar_tensor_release(b);
    return 0;
}

static void what_a_gpu_cannot_do_is_refused_with_a_sentence(void **state)
{
    run(1, refuses, "refusals");
}

/* ---- DLPack -------------------------------------------------------------- */

static int shares(test_job *c, int rank, void *arg)
{
    struct DLManagedTensorVersioned *parcel;
    oar_tensor *a = oar_empty_on(NULL, gpu, OAR_F32, OAR_SHAPE(2, 3)), *b;
    oar_tensor *rows;
    oari_dl_managed *seen;
    int64_t strides[] = { 1, 2 }, shape[] = { 2, 3 };

    RANK_CHECK(a != NULL);
    RANK_OK(oar_tensor_write(a, OAR_F64, (double[]){ 1, 2, 3, 4, 5, 6 }));
    RANK_OK(oar_dlpack_export(a, &parcel));
    seen = parcel;
    RANK_CHECK(seen->tensor.device.type == OARI_DL_CUDA);
    RANK_CHECK(seen->tensor.device.id == 0);
    RANK_CHECK(seen->tensor.data == oar_tensor_const_data(a));
    seen->tensor.strides = strides; /* as another library may lay it out */
    seen->tensor.shape = shape;
    b = oar_dlpack_import(NULL, parcel);
    RANK_CHECK(b != NULL && oar_tensor_device(b).kind == OAR_CUDA);
    RANK_CHECK(!oar_tensor_is_contiguous(b));
    RANK_CHECK(are(b, 6, (double[]){ 1, 3, 5, 2, 4, 6 }));
    rows = oar_contiguous(NULL, b);
    RANK_CHECK(rows != NULL && oar_tensor_is_contiguous(rows));
    RANK_CHECK(are(rows, 6, (double[]){ 1, 3, 5, 2, 4, 6 }));
    RANK_OK(oar_tensor_fill(b, 9)); /* the same memory */
    RANK_CHECK(are(a, 6, (double[]){ 9, 9, 9, 9, 9, 9 }));
    oar_tensor_release(rows);
    oar_tensor_release(b);
    oar_tensor_release(a);
    return 0;
}

static void a_gpus_memory_goes_out_and_in_by_dlpack(void **state)
{
    run(1, shares, "DLPack");
}

/* ---- collectives: the cases of the original ------------------------------ */

static oar_tensor *three(double a, double b, double n)
{
    oar_tensor *t = oar_empty_on(NULL, gpu, OAR_F32, OAR_SHAPE(3));

    if (t != NULL)
        oar_tensor_write(t, OAR_F64, (double[]){ a, b, n });
    return t;
}

static int reduces(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;
    oar_tensor *mine, *out = NULL, *wide = NULL;

    o.backend = "ipc";
    RANK_OK(test_job_join(c, rank, &o, &g));
    mine = rank == 0 ? three(1, 2, 3) : three(4, 5, 6);
    RANK_OK(oar_gpu_all_reduce(g, mine, OAR_SUM, NULL, &out));
    RANK_CHECK(are(out, 3, (double[]){ 5, 7, 9 }));
    RANK_CHECK(are(mine, 3,
                   rank == 0 ? (double[]){ 1, 2, 3 } : (double[]){ 4, 5, 6 }));
    oar_tensor_release(out);
    RANK_OK(oar_gpu_all_reduce(g, mine, OAR_AVG, NULL, &out));
    RANK_CHECK(are(out, 3, (double[]){ 2.5, 3.5, 4.5 }));
    oar_tensor_release(out);
    RANK_OK(oar_gpu_broadcast(g, mine, 1, NULL, &out));
    RANK_CHECK(are(out, 3, (double[]){ 4, 5, 6 }));
    oar_tensor_release(out);
    out = NULL;
    RANK_CHECK(oar_gpu_broadcast(g, mine, 5, NULL, &out) == OAR_E_RANK);
    RANK_CHECK(out == NULL);
    wide = oar_empty_on(NULL, gpu, OAR_F64, OAR_SHAPE(2, 3));
    RANK_OK(oar_tensor_fill(wide, rank + 1));
    RANK_OK(oar_gpu_all_reduce(g, wide, OAR_SUM, NULL, &out));
    RANK_CHECK(oar_tensor_shape(out).ndim == 2 &&
               oar_tensor_dtype(out) == OAR_F64);
    RANK_CHECK(are(out, 6, (double[]){ 3, 3, 3, 3, 3, 3 }));
    oar_tensor_release(out);
    oar_tensor_release(wide);
    oar_tensor_release(mine);
    oar_group_destroy(g);
    return 0;
}

static void
tensors_are_reduced_and_broadcast_and_their_input_stays(void **state)
{
    run(2, reduces, "the original's cases");
}

static int is_told_the_ways_out(test_job *c, int rank, void *arg)
{
    oar_group *g;
    oar_tensor *mine = three(1, 2, 3), *out = NULL;

    RANK_OK(test_job_join(c, rank, NULL, &g));
    RANK_CHECK(oar_gpu_all_reduce(g, mine, OAR_SUM, NULL, &out) ==
               OAR_E_UNSUPPORTED);
    RANK_CHECK(strstr(oar_last_error_text(), "hybrid") != NULL);
    RANK_CHECK(strstr(oar_last_error_text(), "OARSONG_ENABLE_GPU_FALLBACK=1"));
    RANK_CHECK(out == NULL);
    RANK_OK(oar_barrier(g, NULL, NULL)); /* it goes on */
    oar_tensor_release(mine);
    oar_group_destroy(g);
    return 0;
}

static void a_group_without_an_engine_for_gpus_names_both_ways_out(void **state)
{
    run(2, is_told_the_ways_out, "no engine");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_go_to_a_gpu_and_come_back),
        cmocka_unit_test(a_storage_on_a_gpu_has_views),
        cmocka_unit_test(numbers_go_from_one_gpu_to_another),
        cmocka_unit_test(storage_is_made_on_a_gpu_and_given_up),
        cmocka_unit_test(sums_multiples_and_conversions_stay_on_the_gpu),
        cmocka_unit_test(integers_are_divided_as_on_the_cpu),
        cmocka_unit_test(gradients_cross_devices_and_stay_where_their_leaf_is),
        cmocka_unit_test(what_a_gpu_cannot_do_is_refused_with_a_sentence),
        cmocka_unit_test(a_gpus_memory_goes_out_and_in_by_dlpack),
        cmocka_unit_test(
            tensors_are_reduced_and_broadcast_and_their_input_stays),
        cmocka_unit_test(
            a_group_without_an_engine_for_gpus_names_both_ways_out),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
