/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices on a GPU give what the cpu's give, to rounding: every
 * float dtype, ragged shapes, views, batches that are repeated and summed, and
 * linear layers with their gradients. */
#include "support/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/gpu.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "base/status.h"
#include "device/cuda/cuda_blas.h"
#include "support/gpu_ranks.h"
#include "support/last_error.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/tensor.h"

static const oar_device cpu = { OAR_CPU, 0 }, gpu = { OAR_CUDA, 0 };
static const oar_dtype floats[] = { OAR_F32, OAR_F64, OAR_F16, OAR_BF16 };
static uint64_t seed = 1;

static double tolerance(oar_dtype dtype, int64_t k)
{
    double unit = dtype == OAR_F64   ? 1e-14
                  : dtype == OAR_F32 ? 1e-6
                  : dtype == OAR_F16 ? 2e-3
                                     : 1.6e-2;

    return unit * (1 + sqrt((double)k));
}

/* Returns the largest difference of two tensors of one shape; NaN counts. */
static double difference(const oar_tensor *a, const oar_tensor *b)
{
    size_t count = (size_t)oar_tensor_count(a);
    double *x = calloc(count + 1, sizeof *x), *y = calloc(count + 1, sizeof *y);
    double worst = oar_tensor_read(a, OAR_F64, x) != OAR_OK ||
                           oar_tensor_read(b, OAR_F64, y) != OAR_OK
                       ? 1e9
                       : 0;

    for (size_t i = 0; i < count; i++)
        if (!(fabs(x[i] - y[i]) <= worst))
            worst = fabs(x[i] - y[i]) + (isfinite(x[i] - y[i]) ? 0 : 1e9);
    free(x);
    free(y);
    return worst;
}

/* One product: the last two dims of a are turned if told so, and so are b's;
 * leading dims may be 1 where the other has more. */
typedef struct product_case {
    oar_shape to, a, b;
    int a_turned, b_turned;
} product_case;

static oari_array view_of(const oar_tensor *t, int turned)
{
    oari_array a = oari_array_of(t);
    int n = a.at.shape.ndim;

    if (turned)
        a.at = oari_layout_transpose(a.at, n - 2, n - 1);
    return a;
}

static int multiplies(test_job *c, int rank, const product_case *p,
                      oar_dtype dtype, oar_dtype to_dtype, int add)
{
    oar_tensor *a = oar_normal(NULL, dtype, p->a, seed++, 0, 1);
    oar_tensor *b = oar_normal(NULL, dtype, p->b, seed++, 0, 1);
    oar_tensor *to = oar_full(NULL, to_dtype, p->to, add ? 3 : NAN);
    oar_tensor *there[] = { oar_to(NULL, to, gpu), oar_to(NULL, a, gpu),
                            oar_to(NULL, b, gpu) };
    oari_array x[] = { oari_array_of(to), view_of(a, p->a_turned),
                       view_of(b, p->b_turned) };
    oari_array y[] = { oari_array_of(there[0]), view_of(there[1], p->a_turned),
                       view_of(there[2], p->b_turned) };
    int64_t k = x[1].at.shape.dim[x[1].at.shape.ndim - 1];

    RANK_OK(oari_matmul(NULL, &x[0], add, &x[1], &x[2]));
    RANK_OK(oari_cuda_matmul(NULL, &y[0], add, &y[1], &y[2]));
    if (!(difference(to, there[0]) <= tolerance(to_dtype, 4 * k))) {
        fprintf(stderr, "%s to %s, add %d, %s: off by %g\n",
                oar_dtype_name(dtype), oar_dtype_name(to_dtype), add,
                oari_shape_text(p->to).text, difference(to, there[0]));
        return 1;
    }
    for (int i = 0; i < 3; i++)
        oar_tensor_release(there[i]);
    oar_tensor_release(a);
    oar_tensor_release(b);
    oar_tensor_release(to);
    return 0;
}

static int multiplies_all(test_job *c, int rank)
{
    static const product_case all[] = {
        { { 2, { 5, 3 } }, { 2, { 5, 7 } }, { 2, { 7, 3 } }, 0, 0 },
        { { 2, { 33, 70 } }, { 2, { 33, 40 } }, { 2, { 70, 40 } }, 0, 1 },
        { { 2, { 136, 72 } }, { 2, { 48, 136 } }, { 2, { 48, 72 } }, 1, 0 },
        { { 2, { 9, 65 } }, { 2, { 21, 9 } }, { 2, { 65, 21 } }, 1, 1 },
        { { 2, { 1, 1 } }, { 2, { 1, 1 } }, { 2, { 1, 1 } }, 0, 0 },
        { { 2, { 4, 1 } }, { 2, { 4, 16 } }, { 2, { 16, 1 } }, 0, 0 },
        /* of each batch; one right side for all; a sum of batches */
        { { 3, { 3, 5, 8 } }, { 3, { 3, 5, 9 } }, { 3, { 3, 9, 8 } }, 0, 0 },
        { { 3, { 3, 5, 8 } }, { 3, { 3, 5, 9 } }, { 2, { 9, 8 } }, 0, 0 },
        { { 2, { 6, 8 } }, { 3, { 3, 16, 6 } }, { 3, { 3, 16, 8 } }, 1, 0 },
        { { 4, { 2, 3, 4, 5 } },
          { 4, { 2, 1, 4, 8 } },
          { 4, { 1, 3, 8, 5 } },
          0,
          0 },
        { { 2, { 4, 5 } }, { 2, { 4, 0 } }, { 2, { 0, 5 } }, 0, 0 },
        { { 2, { 0, 5 } }, { 2, { 0, 3 } }, { 2, { 3, 5 } }, 0, 0 },
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int d = 0; d < 4; d++)
            for (int add = 0; add < 2; add++) {
                RANK_ZERO(
                    multiplies(c, rank, &all[i], floats[d], floats[d], add));
                if (oari_dtype_is_half(floats[d]) && i < 4)
                    RANK_ZERO(
                        multiplies(c, rank, &all[i], floats[d], OAR_F32, add));
            }
    return 0;
}

GPU_TEST(products_are_those_of_the_cpu)
{
    return multiplies_all(c, rank);
}

GPU_TEST(products_without_cublaslt_are_too)
{
    setenv("OARSONG_CUBLASLT_LIBRARY", "/no/libcublasLt.so", 1);
    return multiplies_all(c, rank);
}

/* Returns how many lines of choices a file has. */
static int count_choices(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[4096];
    int count = 0;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        count += strncmp(line, "oarsong-tune 1 ", 15) == 0;
    if (file != NULL)
        fclose(file);
    return count;
}

GPU_TEST(choices_of_algorithms_are_kept_in_a_file)
{
    static const product_case one = {
        { 2, { 32, 16 } }, { 2, { 32, 64 } }, { 2, { 64, 16 } }, 0, 0
    };
    char path[] = "/tmp/oarsong-tune-XXXXXX";
    int fd = mkstemp(path);

    RANK_CHECK(fd >= 0);
    close(fd);
    setenv("OARSONG_TUNE_FILE", path, 1);
    for (int i = 0; i < 2; i++) { /* the second time it is known */
        RANK_ZERO(multiplies(c, rank, &one, OAR_F32, OAR_F32, 0));
        RANK_CHECK(count_choices(path) == (oar_device_blas(gpu) == OAR_OK));
    }
    unlink(path);
    return 0;
}

/* Makes this process choose the second algorithm for what it multiplied. */
static int choose_another(test_job *c, int rank)
{
    char *text, *algo;
    size_t bytes;
    int changed = 0;

    RANK_OK(oari_blas_write_choices(&text, &bytes));
    for (algo = strstr(text, " : "); algo != NULL; algo = strstr(algo, " : ")) {
        algo = strchr(algo + 3, ' ') + 1; /* which it is, of the stand-in's */
        *algo = *algo == '1' ? '2' : '1';
    }
    RANK_OK(oari_blas_take_choices(text, bytes, &changed));
    RANK_CHECK(changed == (bytes != 0));
    oari_free(text);
    return 0;
}

/* Returns the hash of this process's choices. */
static uint64_t hash_choices(void)
{
    char *text = NULL;
    size_t bytes = 0;
    uint64_t hash = 0;

    if (oari_blas_write_choices(&text, &bytes) == OAR_OK)
        hash = oari_hash64(text, bytes, 0);
    oari_free(text);
    return hash;
}

static const product_case shared_case = {
    { 2, { 32, 16 } }, { 2, { 32, 64 } }, { 2, { 64, 16 } }, 0, 0
};

static int shares_choices(test_job *c, int rank, void *arg)
{
    uint64_t hash[2];
    int changed = 7, has_blas;
    oar_device device;
    oar_group *g;

    RANK_OK(gpu_ranks_open(c, rank, "ipc", &device, &g));
    RANK_ZERO(multiplies(c, rank, &shared_case, OAR_F32, OAR_F32, 0));
    has_blas = oar_device_blas(gpu) == OAR_OK;
    if (rank == 0)
        RANK_ZERO(choose_another(c, rank));
    RANK_OK(oar_gpu_share_choices(g, &changed));
    RANK_CHECK(changed == (rank == 1 && has_blas));
    hash[rank] = hash_choices();
    RANK_OK(oar_all_gather(g, oar_span_of(&hash[rank], 1, OAR_U64),
                           oar_span_of(hash, 2, OAR_U64), NULL, NULL));
    RANK_CHECK(hash[0] == hash[1]);
    RANK_OK(oar_gpu_share_choices(g, &changed));
    RANK_CHECK(changed == 0);
    if (!gpu_is_real()) /* which does not know what was made up */
        RANK_ZERO(multiplies(c, rank, &shared_case, OAR_F32, OAR_F32, 0));
    RANK_CHECK(oar_gpu_share_choices(NULL, NULL) == OAR_E_ARG);
    oar_group_destroy(g);
    return 0;
}

static void rank_0_can_choose_for_all(void **state)
{
    test_job c;

    test_job_start(&c, 2, shares_choices, NULL, "choices");
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, 0);
    test_job_end(&c);
}

/* Result and gradients of linear(x, weight, bias) on a device. */
static oar_status run_linear(oar_tensor *const in[4], oar_device device,
                             oar_tensor *out[4])
{
    oar_tape *tape = NULL;
    oar_tensor *leaf[3], *grad = oar_to(NULL, in[3], device), *y;
    oar_status status = OAR_OK;

    OARI_TRY(oar_tape_create(&tape));
    for (int i = 0; i < 3; i++) {
        leaf[i] = in[i] != NULL ? oar_to(NULL, in[i], device) : NULL;
        if (leaf[i] != NULL)
            oar_tensor_require_grad(leaf[i], 1);
    }
    y = oar_linear(tape, leaf[0], leaf[1], leaf[2]);
    if (y == NULL)
        return OAR_E_INTERNAL;
    out[0] = oar_to(NULL, y, cpu);
    status = oar_backward_from(tape, 1, &y, &grad);
    for (int i = 0; i < 3 && status == OAR_OK; i++)
        out[i + 1] = leaf[i] != NULL
                         ? oar_to(NULL, oar_tensor_grad(leaf[i]), cpu)
                         : NULL;
    for (int i = 0; i < 3; i++)
        oar_tensor_release(leaf[i]);
    oar_tensor_release(grad);
    oar_tape_destroy(tape);
    return status;
}

/* x [2, rows, 24] to [2, rows, width], with a bias. */
static int runs_linear(test_job *c, int rank, oar_dtype dtype, int64_t rows,
                       int64_t width)
{
    oar_tensor *in[] = {
        oar_normal(NULL, dtype, OAR_SHAPE(2, rows, 24), seed++, 0, 1),
        oar_normal(NULL, dtype, OAR_SHAPE(width, 24), seed++, 0, 1),
        oar_normal(NULL, dtype, OAR_SHAPE(width), seed++, 0, 1),
        oar_normal(NULL, dtype, OAR_SHAPE(2, rows, width), seed++, 0, 1)
    };
    oar_tensor *x[4] = { NULL }, *y[4] = { NULL };

    RANK_OK(run_linear(in, cpu, x));
    RANK_OK(run_linear(in, gpu, y));
    for (int i = 0; i < 4; i++) {
        RANK_CHECK(difference(x[i], y[i]) <= tolerance(dtype, 40 * rows));
        oar_tensor_release(x[i]);
        oar_tensor_release(y[i]);
        oar_tensor_release(in[i]);
    }
    return 0;
}

GPU_TEST(linear_layers_are_those_of_the_cpu)
{
    for (int d = 0; d < 4; d++) {
        RANK_ZERO(runs_linear(c, rank, floats[d], 5, 40));
        RANK_ZERO(runs_linear(c, rank, floats[d], 70, 33));  /* no packs */
        RANK_ZERO(runs_linear(c, rank, floats[d], 150, 24)); /* many chunks */
    }
    return 0;
}

GPU_TEST(a_bias_is_added_to_every_row)
{
    for (int d = 0; d < 4; d++) {
        oar_tensor *x = oar_normal(NULL, floats[d], OAR_SHAPE(9, 16), 5, 0, 1);
        oar_tensor *w = oar_normal(NULL, floats[d], OAR_SHAPE(11, 16), 6, 0, 1);
        oar_tensor *b = oar_normal(NULL, floats[d], OAR_SHAPE(11), 7, 0, 9);
        oar_tensor *there[] = { oar_to(NULL, x, gpu), oar_to(NULL, w, gpu),
                                oar_to(NULL, b, gpu) };
        oar_tensor *wanted = oar_linear(NULL, x, w, b);
        oar_tensor *got = oar_linear(NULL, there[0], there[1], there[2]);

        RANK_CHECK(got != NULL);
        RANK_CHECK(difference(wanted, got) <= 4 * tolerance(floats[d], 64));
        for (int i = 0; i < 3; i++)
            oar_tensor_release(there[i]);
        oar_tensor_release(x);
        oar_tensor_release(w);
        oar_tensor_release(b);
        oar_tensor_release(wanted);
        oar_tensor_release(got);
    }
    return 0;
}

GPU_TEST(what_is_asked_of_cublaslt_is_answered)
{
    oar_status status = oar_device_blas(gpu);

    RANK_CHECK(status == OAR_OK || status == OAR_E_UNAVAILABLE);
    RANK_CHECK(oar_device_blas(cpu) == OAR_E_DEVICE);
    RANK_CHECK(oar_device_blas(gpu_at(99)) == OAR_E_DEVICE);
    RANK_OK(oar_device_set_math(gpu, OAR_MATH_TF32));
    RANK_OK(oar_device_set_math(gpu, OAR_MATH_F32));
    RANK_CHECK(oar_device_set_math(gpu, (oar_math)7) == OAR_E_ARG);
    RANK_CHECK(oar_device_set_math(cpu, OAR_MATH_F32) == OAR_E_DEVICE);
    return 0;
}

/* Integers of at most 9 bits over 8: TF32 holds them, and an f32 every sum of
 * MANY of their products. */
static oar_tensor *make_short(oar_shape shape, int step)
{
    oar_tensor *made = oar_empty(NULL, OAR_F32, shape);
    int64_t count = oar_tensor_count(made);
    double *number = calloc((size_t)count, sizeof *number);

    for (int64_t i = 0; i < count; i++)
        number[i] = (double)((i * step) % 1023 - 511) / 8;
    oar_tensor_write(made, OAR_F64, number);
    free(number);
    return made;
}

enum { MANY = 48, DEEP = 24, BROAD = 40 };

/* linear(x, weight, bias) and its gradients in TF32: of numbers that it holds
 * they are exact; of others they are near, and rounded where there is cuBLASLt;
 * and f32 has the bits from before when it comes back. */
GPU_TEST(products_in_tf32_round_what_they_multiply)
{
    oar_tensor *exact[] = { make_short(OAR_SHAPE(MANY, DEEP), 37),
                            make_short(OAR_SHAPE(BROAD, DEEP), 53),
                            make_short(OAR_SHAPE(BROAD), 71),
                            make_short(OAR_SHAPE(MANY, BROAD), 91) };
    oar_tensor *others[] = {
        oar_normal(NULL, OAR_F32, OAR_SHAPE(MANY, DEEP), 1, 0, 1),
        oar_normal(NULL, OAR_F32, OAR_SHAPE(BROAD, DEEP), 2, 0, 1),
        oar_normal(NULL, OAR_F32, OAR_SHAPE(BROAD), 3, 0, 1),
        oar_normal(NULL, OAR_F32, OAR_SHAPE(MANY, BROAD), 4, 0, 1)
    };
    oar_tensor *wanted[4], *full[4], *got[4], *again[4];
    int rounds = oar_device_blas(gpu) == OAR_OK;

    RANK_OK(run_linear(exact, cpu, wanted));
    RANK_OK(run_linear(others, gpu, full));
    RANK_OK(oar_device_set_math(gpu, OAR_MATH_TF32));
    RANK_OK(run_linear(exact, gpu, got));
    for (int i = 0; i < 4; i++) {
        RANK_CHECK(difference(wanted[i], got[i]) == 0);
        oar_tensor_release(wanted[i]);
        oar_tensor_release(got[i]);
    }
    RANK_OK(run_linear(others, cpu, wanted));
    RANK_OK(run_linear(others, gpu, got));
    RANK_OK(oar_device_set_math(gpu, OAR_MATH_F32));
    RANK_OK(run_linear(others, gpu, again));
    for (int i = 0; i < 4; i++) { /* 10 bits, as f16 has */
        int is_product = i < 3;   /* not the gradient of the bias */

        RANK_CHECK(difference(wanted[i], got[i]) <= tolerance(OAR_F16, MANY));
        if (rounds && is_product)
            RANK_CHECK(difference(full[i], got[i]) > 0);
        RANK_CHECK(difference(full[i], again[i]) == 0);
        oar_tensor_release(wanted[i]);
        oar_tensor_release(full[i]);
        oar_tensor_release(got[i]);
        oar_tensor_release(again[i]);
        oar_tensor_release(exact[i]);
        oar_tensor_release(others[i]);
    }
    return 0;
}

GPU_TEST(products_in_tf32_without_cublaslt_are_those_of_f32)
{
    oar_tensor *in[] = {
        oar_normal(NULL, OAR_F32, OAR_SHAPE(MANY, DEEP), 1, 0, 1),
        oar_normal(NULL, OAR_F32, OAR_SHAPE(BROAD, DEEP), 2, 0, 1), NULL,
        oar_normal(NULL, OAR_F32, OAR_SHAPE(MANY, BROAD), 4, 0, 1)
    };
    oar_tensor *wanted[4], *got[4];

    setenv("OARSONG_CUBLASLT_LIBRARY", "/no/libcublasLt.so", 1);
    RANK_OK(run_linear(in, gpu, wanted));
    RANK_OK(oar_device_set_math(gpu, OAR_MATH_TF32));
    RANK_OK(run_linear(in, gpu, got));
    for (int i = 0; i < 3; i++) {
        RANK_CHECK(difference(wanted[i], got[i]) == 0);
        oar_tensor_release(wanted[i]);
        oar_tensor_release(got[i]);
    }
    oar_tensor_release(in[0]);
    oar_tensor_release(in[1]);
    oar_tensor_release(in[3]);
    return 0;
}

GPU_TEST(a_cublaslt_that_is_not_there_is_named)
{
    setenv("OARSONG_CUBLASLT_LIBRARY", "/no/libcublasLt.so", 1);
    RANK_CHECK(fails_with(oar_device_blas(gpu), OAR_E_UNAVAILABLE,
                          "/no/libcublasLt.so"));
    return 0;
}

/* ---- products of nothing ------------------------------------------------- */

/* Of `a` all leading dims but one are there; b is repeated in them. */
GPU_TEST(a_product_of_no_matrices_writes_nothing)
{
    oar_tensor *here = oar_full(NULL, OAR_F32, OAR_SHAPE(40), 7);
    oar_tensor *guard = oar_to(NULL, here, gpu);
    oari_array to = oari_array_of(guard), a = to, b = to;
    float number[40];

    to.at = oari_layout_rows(OAR_SHAPE(4, 0, 2, 5));
    a.at = oari_layout_rows(OAR_SHAPE(4, 0, 2, 3));
    b.at = oari_layout_rows(OAR_SHAPE(3, 5));
    RANK_OK(oari_cuda_matmul(NULL, &to, 0, &a, &b));
    RANK_OK(oar_tensor_read(guard, OAR_F32, number));
    for (int i = 0; i < 40; i++)
        RANK_CHECK(number[i] == 7);
    to.at = oari_layout_rows(OAR_SHAPE(1, 2, 5)); /* the sum over them */
    a.at = oari_layout_rows(OAR_SHAPE(0, 2, 3));
    RANK_OK(oari_cuda_matmul(NULL, &to, 0, &a, &b));
    RANK_OK(oar_tensor_read(guard, OAR_F32, number));
    for (int i = 0; i < 40; i++)
        RANK_CHECK(number[i] == (i < 10 ? 0 : 7));
    oar_tensor_release(guard);
    oar_tensor_release(here);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_of_no_matrices_writes_nothing),
        cmocka_unit_test(products_are_those_of_the_cpu),
        cmocka_unit_test(products_without_cublaslt_are_too),
        cmocka_unit_test(choices_of_algorithms_are_kept_in_a_file),
        cmocka_unit_test(rank_0_can_choose_for_all),
        cmocka_unit_test(linear_layers_are_those_of_the_cpu),
        cmocka_unit_test(a_bias_is_added_to_every_row),
        cmocka_unit_test(what_is_asked_of_cublaslt_is_answered),
        cmocka_unit_test(products_in_tf32_round_what_they_multiply),
        cmocka_unit_test(products_in_tf32_without_cublaslt_are_those_of_f32),
        cmocka_unit_test(a_cublaslt_that_is_not_there_is_named),
    };

    gpu_begin();
    return cmocka_run_group_tests_name("product", tests, NULL, NULL);
}
