/* SPDX-License-Identifier: Apache-2.0 */
/* Every entry of the table of kernels has an operation here that needs it on a
 * GPU: without the entry the operation fails and names it. Sorting as on the
 * cpu; indices that are wrong; running statistics. */
#include "support/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <oarsong/gpu.h>
#include <oarsong/layers.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "tensor/kernel_table.h"

static const oar_device gpu = { OAR_CUDA, 0 };

/* Takes the reference, and gives the same on the GPU. */
static oar_tensor *there(oar_tensor *here)
{
    oar_tensor *made = oar_to(NULL, here, gpu);

    oar_tensor_release(here);
    return made;
}

static oar_tensor *numbers(oar_shape shape, uint64_t seed, int leaf)
{
    oar_tensor *made = there(oar_normal(NULL, OAR_F32, shape, seed, 0, 1));

    oar_tensor_require_grad(made, leaf);
    return made;
}

/* ---- the table ----------------------------------------------------------- */

/* What each operation is given: x [2, 4, 4, 4], m [4, 4], v [4], w [4, 4, 3, 3]
 * and an index [4] of numbers below 4. */
typedef struct inputs {
    oar_tensor *x, *m, *v, *w, *i, *grid;
} inputs;

typedef oar_tensor *(*table_entry_fn)(oar_tape *tape, const inputs *in);

#define ENTRIES(X)                                                        \
    X(copy, oar_contiguous(t, oar_transpose(t, in->m, 0, 1)))             \
    X(fill, oar_index_select(t, in->m, 0, in->i))                         \
    X(scale, oar_scale(t, in->m, 2))                                      \
    X(sum_all, oar_sum(t, in->m))                                         \
    X(sum_to, oar_mul(t, in->m, in->v))                                   \
    X(matmul, oar_matmul(t, in->m, in->m))                                \
    X(unary, oar_exp(t, in->m))                                           \
    X(unary_back, oar_tanh(t, in->m))                                     \
    X(binary, oar_mul(t, in->m, in->m))                                   \
    X(binary_back, oar_mul(t, in->m, in->m))                              \
    X(scalar, oar_power(t, in->m, 2))                                     \
    X(scalar_back, oar_power(t, in->m, 2))                                \
    X(compare, oar_gt(t, in->m, in->m))                                   \
    X(mask_select, oar_tril(t, in->m, 0))                                 \
    X(mask_select_back, oar_tril(t, in->m, 0))                            \
    X(outside_triangle, oar_tril(t, in->m, 0))                            \
    X(reduce_over, oar_sum_over(t, in->m, OAR_DIMS(1), 0))                \
    X(extreme_back, oar_max_over(t, in->m, OAR_DIMS(1), 0))               \
    X(prod_back, oar_prod_over(t, in->m, OAR_DIMS(1), 0))                 \
    X(var, oar_var_over(t, in->m, OAR_DIMS(1), 0, 1))                     \
    X(var_back, oar_var_over(t, in->m, OAR_DIMS(1), 0, 1))                \
    X(argmax, oar_argmax(t, in->m, 1, 0))                                 \
    X(argmin, oar_argmin(t, in->m, 1, 0))                                 \
    X(topk, top_of(t, in->m))                                             \
    X(sort, sorted_of(t, in->m))                                          \
    X(cumsum, oar_cumsum(t, in->m, 1))                                    \
    X(index_select, oar_index_select(t, in->m, 0, in->i))                 \
    X(index_add, oar_index_select(t, in->m, 0, in->i))                    \
    X(gather, oar_take_along(t, in->m, 0, in->grid))                      \
    X(scatter_add, oar_take_along(t, in->m, 0, in->grid))                 \
    X(softmax, oar_softmax(t, in->m))                                     \
    X(softmax_back, oar_softmax(t, in->m))                                \
    X(log_softmax, oar_log_softmax(t, in->m, -1))                         \
    X(log_softmax_back, oar_log_softmax(t, in->m, -1))                    \
    X(dropout, oar_dropout(t, in->m, 0.5, 1))                             \
    X(layer_norm, oar_layer_norm(t, in->m, in->v, in->v, 1e-5))           \
    X(layer_norm_back, oar_layer_norm(t, in->m, in->v, in->v, 1e-5))      \
    X(sum_channels, oar_conv2d(t, in->x, in->w, in->v, NULL))             \
    X(conv_forward, oar_conv2d(t, in->x, in->w, in->v, NULL))             \
    X(conv_back_input, oar_conv2d(t, in->x, in->w, in->v, NULL))          \
    X(conv_back_weight, oar_conv2d(t, in->x, in->w, in->v, NULL))         \
    X(conv_transpose, oar_conv_transpose2d(t, in->x, in->w, in->v, NULL)) \
    X(max_pool, oar_max_pool2d(t, in->x, 2, 2, NULL))                     \
    X(max_pool_back, oar_max_pool2d(t, in->x, 2, 2, NULL))                \
    X(avg_pool, oar_avg_pool2d(t, in->x, 2, 2, NULL))                     \
    X(avg_pool_back, oar_avg_pool2d(t, in->x, 2, 2, NULL))                \
    X(adaptive_avg_pool, oar_adaptive_avg_pool2d(t, in->x, 3, 3))         \
    X(adaptive_avg_pool_back, oar_adaptive_avg_pool2d(t, in->x, 3, 3))    \
    X(rotary_angles, oar_rotary(t, in->m, 0, 100))                        \
    X(rotary, oar_rotary(t, in->m, 0, 100))                               \
    X(attend, oar_attention(t, in->m, in->m, in->m, NULL))                \
    X(attend_back, oar_attention(t, in->m, in->m, in->m, NULL))

/* Those that operations of GPUs do without: other kernels do it, or it depends
 * on the shape; and what data parallelism has its own tests for. */
static const char *const others[] = { "pick_rows",     "add_rows",
                                      "sum_columns",   "hash_add",
                                      "low_rank_p",    "low_rank_q",
                                      "low_rank_back", "layer_norm_again" };

static oar_tensor *top_of(oar_tape *tape, oar_tensor *a)
{
    oar_tensor *value = NULL;

    return oar_topk(tape, a, 2, &value, NULL) == OAR_OK ? value : NULL;
}

static oar_tensor *sorted_of(oar_tape *tape, oar_tensor *a)
{
    oar_tensor *value = NULL;

    return oar_sort(tape, a, 1, 0, &value, NULL) == OAR_OK ? value : NULL;
}

#define X(name, expression)                                              \
    static oar_tensor *run_##name##_entry(oar_tape *t, const inputs *in) \
    {                                                                    \
        return expression;                                               \
    }
ENTRIES(X)
#undef X

typedef struct table_entry {
    const char *name;
    size_t at; /* in the table */
    table_entry_fn fn;
} table_entry;

#define X(name, expression) \
    { #name, offsetof(oari_kernel_table, name), run_##name##_entry },
static const table_entry entries[] = { ENTRIES(X) };
#undef X

enum { COUNT = sizeof entries / sizeof *entries };

static oar_status run_entry(const table_entry *e, const inputs *in)
{
    oar_tape *tape;
    oar_tensor *out;
    oar_status status = oar_tape_create(&tape);
    oar_tensor *const leaf[] = { in->x, in->m, in->v, in->w };

    for (int i = 0; i < 4; i++) /* gradients are stored, not added */
        oar_tensor_clear_grad(leaf[i]);
    oar_clear_error();
    if (status != OAR_OK)
        return status;
    out = e->fn(tape, in);
    status = out != NULL ? OAR_OK : oar_last_error()->status;
    if (status == OAR_OK && oar_tensor_dtype(out) == OAR_F32) {
        oar_tensor *seed = oar_to(
            tape, oar_full(tape, OAR_F32, oar_tensor_shape(out), 1), gpu);

        status = oar_backward_from(tape, 1, &out, &seed);
    }
    oar_tape_destroy(tape);
    return status;
}

/* Lets the table be written, in this process. */
static int open_table(void)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)&oari_cuda_kernels / page * page;
    uintptr_t end = (uintptr_t)(&oari_cuda_kernels + 1);

    return mprotect((void *)from, end - from, PROT_READ | PROT_WRITE);
}

static inputs make_inputs(void)
{
    const int64_t index[] = { 3, 0, 3, 1, 0, 0, 2, 1, 1, 2, 3, 0, 1, 1, 2, 3 };

    return (inputs){
        .x = numbers(OAR_SHAPE(2, 4, 4, 4), 1, 1),
        .m = numbers(OAR_SHAPE(4, 4), 2, 1),
        .v = numbers(OAR_SHAPE(4), 3, 1),
        .w = numbers(OAR_SHAPE(4, 4, 3, 3), 4, 1),
        .i = there(oar_from_data(NULL, OAR_I64, OAR_SHAPE(4), index)),
        .grid = there(oar_from_data(NULL, OAR_I64, OAR_SHAPE(4, 4), index)),
    };
}

static int is_covered(const char *name)
{
    for (int i = 0; i < COUNT; i++)
        if (strcmp(entries[i].name, name) == 0)
            return 1;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(others[i], name) == 0)
            return 1;
    print_error("kernel %s: no operation is tested with it\n", name);
    return 0;
}

GPU_TEST(every_entry_of_the_table_is_tested)
{
#define X(name, arguments) #name,
    static const char *const all[] = { OARI_KERNEL_LIST(X) };
#undef X
    inputs in = make_inputs();

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        RANK_CHECK(is_covered(all[i]));
    RANK_ZERO(open_table());
    for (int i = 0; i < COUNT; i++) {
        const oari_kernel_table *table = &oari_cuda_kernels;
        char *at = (char *)(uintptr_t)table + entries[i].at;
        void (*was)(void), (*none)(void) = NULL;
        oar_status status;

        RANK_OK(run_entry(&entries[i], &in));
        memcpy(&was, at, sizeof was);
        memcpy(at, &none, sizeof none);
        status = run_entry(&entries[i], &in);
        memcpy(at, &was, sizeof was);
        if (status != OAR_E_DEVICE ||
            strstr(oar_last_error_text(), entries[i].name) == NULL)
            print_error("without %s: %s\n", entries[i].name,
                        oar_last_error_text());
        RANK_CHECK(status == OAR_E_DEVICE);
        RANK_CHECK(strstr(oar_last_error_text(), entries[i].name) != NULL);
    }
    return 0;
}

/* ---- sorting ------------------------------------------------------------- */

enum { LONG = 700 };

/* Rows of every dtype with equal numbers, NaNs and both zeros, in each
 * direction: the places are the cpu's. */
static int check_sort(test_job *c, int rank, oar_dtype dtype, int descending)
{
    static double number[2 * LONG];
    static int64_t here[2 * LONG], back[2 * LONG];
    oar_tensor *a = oar_empty(NULL, dtype, OAR_SHAPE(2, LONG)), *b;
    oar_tensor *value = NULL, *index = NULL, *top = NULL, *place = NULL;

    for (int i = 0; i < 2 * LONG; i++)
        number[i] = (double)(i * 7919 % 113) - (dtype == OAR_U8 ? 0 : 50);
    if (dtype == OAR_F32 || dtype == OAR_F64 || dtype == OAR_BF16) {
        number[17] = number[600] = NAN;
        number[33] = -0.0;
    }
    RANK_OK(oar_tensor_write(a, OAR_F64, number));
    b = oar_to(NULL, a, gpu);
    RANK_OK(oar_sort(NULL, a, 1, descending, &value, &index));
    RANK_OK(oar_tensor_read(index, OAR_I64, here));
    oar_tensor_release(value);
    oar_tensor_release(index);
    RANK_OK(oar_sort(NULL, b, 1, descending, &value, &index));
    RANK_OK(oar_tensor_read(index, OAR_I64, back));
    RANK_CHECK(memcmp(here, back, sizeof here) == 0);
    RANK_OK(oar_topk(NULL, b, 5, &top, &place));
    RANK_OK(oar_tensor_read(place, OAR_I64, back));
    if (descending)
        for (int i = 0; i < 5; i++)
            RANK_CHECK(back[i] == here[i] && back[5 + i] == here[LONG + i]);
    oar_tensor_release(value);
    oar_tensor_release(index);
    oar_tensor_release(top);
    oar_tensor_release(place);
    oar_tensor_release(a);
    oar_tensor_release(b);
    return 0;
}

GPU_TEST(rows_are_sorted_as_on_the_cpu)
{
    static const oar_dtype dtypes[] = { OAR_F32, OAR_F64, OAR_BF16,
                                        OAR_I32, OAR_I64, OAR_U8 };

    for (int d = 0; d < 6; d++)
        for (int descending = 0; descending < 2; descending++)
            RANK_ZERO(check_sort(c, rank, dtypes[d], descending));
    return 0;
}

/* ---- indices ------------------------------------------------------------- */

/* The operation itself succeeds; the next call that waits has the error. */
static int is_reported(const oar_tensor *out, const char *name)
{
    double number[64];
    oar_status status =
        out != NULL ? oar_tensor_read(out, OAR_F64, number) : OAR_OK;

    return status == OAR_E_ARG && strstr(oar_last_error_text(), name) != NULL &&
           strstr(oar_last_error_text(), "is 4") != NULL;
}

GPU_TEST(a_wrong_index_is_the_next_error)
{
    const int64_t index[] = { 1, 4, 0, 2 };
    oar_tensor *a = numbers(OAR_SHAPE(4, 4), 2, 0);
    oar_tensor *i = there(oar_from_data(NULL, OAR_I64, OAR_SHAPE(4), index));
    oar_tensor *j = there(oar_from_data(NULL, OAR_I64, OAR_SHAPE(1, 4), index));
    oar_tensor *one = numbers(OAR_SHAPE(1, 4), 3, 0);
    oar_tape *tape;

    RANK_OK(oar_tape_create(&tape));
    RANK_CHECK(is_reported(oar_index_select(tape, a, 0, i), "index_select"));
    RANK_CHECK(is_reported(oar_take_along(tape, a, 0, j), "gather"));
    RANK_CHECK(
        is_reported(oar_tensor_scatter_add(tape, a, 0, j, one), "scatter_add"));
    RANK_OK(oar_tensor_read(a, OAR_F64, (double[16]){ 0 })); /* said once */
    oar_tape_destroy(tape);
    oar_tensor_release(a);
    oar_tensor_release(i);
    oar_tensor_release(j);
    oar_tensor_release(one);
    return 0;
}

/* ---- running statistics -------------------------------------------------- */

/* Three batches, then one in evaluation: results and buffers as on the cpu. A
 * momentum below 0 is a cumulative average. */
static int run_norm(test_job *c, int rank, oar_device device, double momentum,
                    double *result)
{
    oar_batch_norm_opts o = oar_batch_norm_opts_init();
    oar_module *norm;
    oar_tensor *y = NULL;

    o.momentum = momentum;
    RANK_OK(oar_batch_norm_create(2, 3, &o, &norm));
    if (device.kind == OAR_CUDA)
        RANK_OK(oar_module_to(norm, device));
    for (int i = 0; i < 4; i++) {
        oar_tensor *here =
            oar_normal(NULL, OAR_F32, OAR_SHAPE(4, 3, 2, 2), (uint64_t)i, 1, 2);
        oar_tensor *x = oar_to(NULL, here, device);

        oar_module_train(norm, i < 3);
        oar_tensor_release(y);
        y = oar_forward(NULL, norm, x);
        RANK_CHECK(y != NULL);
        oar_tensor_release(x);
        oar_tensor_release(here);
    }
    RANK_OK(oar_tensor_read(y, OAR_F64, result));
    for (int i = 0; i < 3; i++)
        RANK_OK(oar_tensor_read(oar_module_buffer(norm, i), OAR_F64,
                                result + 48 + 3 * i));
    oar_tensor_release(y);
    oar_module_release(norm);
    return 0;
}

GPU_TEST(running_statistics_move_as_on_the_cpu)
{
    for (int cumulative = 0; cumulative < 2; cumulative++) {
        double here[64] = { 0 }, back[64] = { 0 };
        double momentum = cumulative ? -1 : 0.2;

        RANK_ZERO(
            run_norm(c, rank, (oar_device){ OAR_CPU, 0 }, momentum, here));
        RANK_ZERO(run_norm(c, rank, gpu, momentum, back));
        RANK_CHECK(here[48] != 0 && here[54] == 3);
        for (int i = 0; i < 64; i++)
            RANK_CHECK(fabs(here[i] - back[i]) <= 1e-5 * (1 + fabs(here[i])));
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_entry_of_the_table_is_tested),
        cmocka_unit_test(rows_are_sorted_as_on_the_cpu),
        cmocka_unit_test(a_wrong_index_is_the_next_error),
        cmocka_unit_test(running_statistics_move_as_on_the_cpu),
    };

    setenv("STANDIN_DELAY_US", "0", 0);
    gpu_begin();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
