/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation that GPUs have against PyTorch's numbers, forward and
 * backward, in all four float dtypes and on strided views; its gradients
 * against differences; and a model that is trained on a GPU as on the cpu. */
#include "support/gpu.h"

#include <oarsong/custom_op.h>

#include "unit/ops_cases.h"

static const oar_device gpu = { OAR_CUDA, 0 };

/* ---- goldens ------------------------------------------------------------- */

/* There are no kernels for these: they refuse. */
static int is_missing(const char *name)
{
    return strncmp(name, "sort", 4) == 0 || strcmp(name, "topk") == 0;
}

static leaves leaves_on_gpu(const char *name, oar_dtype dtype, int spread)
{
    leaves here = leaves_of(name, dtype, spread), there = { .spread = spread };

    for (int i = 0; i < MOST; i++) {
        if (here.leaf[i] == NULL)
            continue;
        there.leaf[i] = oar_to(NULL, here.leaf[i], gpu);
        oar_tensor_require_grad(there.leaf[i],
                                oar_tensor_requires_grad(here.leaf[i]));
    }
    release_leaves(&here);
    return there;
}

/* Two units in the last place of a half: PyTorch rounds in between. */
static double tolerance_of(oar_dtype dtype)
{
    return dtype == OAR_F64   ? 1e-10
           : dtype == OAR_F32 ? 1e-5
           : dtype == OAR_F16 ? 0x1p-9
                              : 0x1p-6;
}

static int is_near(const char *name, const char *part, const oar_tensor *got)
{
    const golden *want;
    oar_dtype dtype;
    double number[512];
    char text[32];

    if (got == NULL) {
        print_error("%s.%s: %s\n", name, part, oar_last_error_text());
        return 0;
    }
    dtype = oar_tensor_dtype(got);
    if (dtype == OAR_F16 || dtype == OAR_BF16)
        snprintf(text, sizeof text, "%s.%s", oar_dtype_name(dtype), part);
    else
        snprintf(text, sizeof text, "%s", part);
    want = golden_get(name, text);
    if ((size_t)oar_tensor_count(got) != want->count || want->count > 512 ||
        oar_tensor_device(got).kind != OAR_CUDA ||
        oar_tensor_read(got, OAR_F64, number) != OAR_OK) {
        print_error("%s: %s\n", want->name, oar_last_error_text());
        return 0;
    }
    for (size_t i = 0; i < want->count; i++)
        if (!(fabs(number[i] - want->number[i]) <=
              tolerance_of(dtype) * (1 + fabs(want->number[i])))) {
            print_error("%s[%zu] (%s): %.17g, PyTorch has %.17g\n", want->name,
                        i, oar_dtype_name(dtype), number[i], want->number[i]);
            return 0;
        }
    return 1;
}

static int grads_are_near(const op_case *of, const leaves *l)
{
    char part[16];
    int good = 1;

    for (int i = 0; i < MOST && good; i++) {
        oar_tensor *grad, *view;

        if (golden_part(of->name, "grad", i) == NULL)
            continue;
        snprintf(part, sizeof part, "grad%d", i);
        grad = oar_tensor_grad(l->leaf[i]);
        view = grad != NULL && l->spread ? golden_view(NULL, grad)
                                         : oar_tensor_retain(grad);
        good = is_near(of->name, part, view);
        oar_tensor_release(view);
    }
    return good;
}

static int check_case(test_job *c, int rank, const op_case *of, oar_dtype dtype,
                      int spread)
{
    leaves l = leaves_on_gpu(of->name, dtype, spread);
    oar_tensor *host = golden_tensor(golden_get(of->name, "seed"), dtype);
    oar_tensor *seed = oar_to(NULL, host, gpu), *out;
    oar_tape *tape;

    RANK_OK(oar_tape_create(&tape));
    out = run_case(of, tape, &l);
    if (is_missing(of->name)) {
        RANK_CHECK(out == NULL);
        RANK_CHECK(oar_last_error()->status == OAR_E_DEVICE);
        oar_clear_error();
    } else {
        RANK_CHECK(is_near(of->name, "out", out));
        RANK_OK(oar_backward_from(tape, 1, &out, &seed));
        RANK_CHECK(grads_are_near(of, &l));
    }
    release_leaves(&l);
    oar_tensor_release(seed);
    oar_tensor_release(host);
    oar_tape_destroy(tape);
    return 0;
}

static int check_all(test_job *c, int rank, oar_dtype one, oar_dtype other,
                     int spread)
{
    RANK_ZERO(load_ops(NULL));
    for (int i = 0; i < OP_CASES; i++) {
        RANK_ZERO(check_case(c, rank, &op_cases[i], one, spread));
        RANK_ZERO(check_case(c, rank, &op_cases[i], other, spread));
    }
    return golden_close(NULL);
}

GPU_TEST(operations_agree_with_pytorch)
{
    return check_all(c, rank, OAR_F64, OAR_F32, 0);
}

GPU_TEST(strided_views_give_the_same)
{
    return check_all(c, rank, OAR_F64, OAR_F32, 1);
}

GPU_TEST(halves_agree_with_pytorch)
{
    return check_all(c, rank, OAR_F16, OAR_BF16, 0);
}

/* ---- gradients against differences --------------------------------------- */

typedef struct subject {
    const op_case *of;
    oar_tensor *in[MOST]; /* those that are not differentiated */
    int moved[MOST];      /* which input each one of gradcheck's is */
    int count;
} subject;

static oar_tensor *apply(oar_tape *tape, oar_tensor *const *in, void *arg)
{
    const subject *s = arg;
    oar_tensor *all[MOST];

    memcpy(all, s->in, sizeof all);
    for (int i = 0; i < s->count; i++)
        all[s->moved[i]] = in[i];
    return s->of->fn(tape, all);
}

static int check_slopes(test_job *c, int rank, const op_case *of)
{
    leaves l = leaves_on_gpu(of->name, OAR_F64, 0);
    subject s = { .of = of };
    oar_tensor *moved[MOST];

    for (int i = 0; i < MOST; i++) {
        s.in[i] = l.leaf[i];
        if (golden_part(of->name, "grad", i) == NULL)
            continue;
        s.moved[s.count] = i;
        moved[s.count++] = l.leaf[i];
    }
    if (oar_gradcheck(apply, &s, s.count, moved, NULL) != OAR_OK) {
        print_error("%s: %s\n", of->name, oar_last_error_text());
        return 1;
    }
    release_leaves(&l);
    return 0;
}

GPU_TEST(gradients_agree_with_differences)
{
    static const char *const some[] = {
        "add",          "div",         "pow",        "gelu",      "silu",
        "where_wide",   "sum_ends",    "var_ends",   "prod_zero", "max_middle",
        "cumsum_first", "scatter_add", "matmul_wide"
    };

    RANK_ZERO(load_ops(NULL));
    for (size_t k = 0; k < sizeof some / sizeof *some; k++)
        for (int i = 0; i < OP_CASES; i++)
            if (strcmp(op_cases[i].name, some[k]) == 0)
                RANK_ZERO(check_slopes(c, rank, &op_cases[i]));
    return golden_close(NULL);
}

/* ---- training ------------------------------------------------------------ */

enum { ROWS = 12, WIDTH = 9, HIDDEN = 20, STEPS = 10 };

/* One step of a model of two layers by plain gradient descent; the mean of the
 * squares is its loss. */
static int train_step(test_job *c, int rank, oar_tape *tape, oar_tensor *x,
                      oar_tensor *y, oar_tensor *const *param, double *loss)
{
    oar_tensor *h = oar_gelu(tape, oar_linear(tape, x, param[0], param[1]));
    oar_tensor *off = oar_sub(tape, oar_linear(tape, h, param[2], param[3]), y);
    oar_tensor *mean = oar_mean(tape, oar_mul(tape, off, off));

    RANK_CHECK(mean != NULL);
    RANK_OK(oar_backward(tape, mean));
    RANK_OK(oar_tensor_item(mean, loss));
    for (int i = 0; i < 4; i++) {
        oar_tensor *step = oar_scale(NULL, oar_tensor_grad(param[i]), -0.1);
        oar_tensor *moved = oar_add(NULL, param[i], step);

        RANK_CHECK(moved != NULL);
        RANK_OK(oar_tensor_copy(param[i], moved));
        oar_tensor_clear_grad(param[i]);
        oar_tensor_release(moved);
        oar_tensor_release(step);
    }
    oar_tape_reset(tape);
    return 0;
}

/* Numbers that are the same on every device. */
static oar_tensor *numbers_on(oar_device device, oar_shape shape, uint64_t seed)
{
    oar_tensor *host = oar_normal(NULL, OAR_F32, shape, seed, 0, 0.3);
    oar_tensor *there = oar_to(NULL, host, device);

    oar_tensor_release(host);
    return there;
}

static int train(test_job *c, int rank, oar_device device, double *loss)
{
    oar_tensor *x = numbers_on(device, OAR_SHAPE(ROWS, WIDTH), 1);
    oar_tensor *y = numbers_on(device, OAR_SHAPE(ROWS, 3), 2);
    oar_tensor *param[] = { numbers_on(device, OAR_SHAPE(HIDDEN, WIDTH), 3),
                            numbers_on(device, OAR_SHAPE(HIDDEN), 4),
                            numbers_on(device, OAR_SHAPE(3, HIDDEN), 5),
                            numbers_on(device, OAR_SHAPE(3), 6) };
    uint64_t asked = 0;
    oar_device_usage usage = oar_device_usage_init();
    oar_tape *tape;

    RANK_OK(oar_tape_create(&tape));
    for (int i = 0; i < 4; i++)
        RANK_OK(oar_tensor_require_grad(param[i], 1));
    for (int i = 0; i < STEPS; i++) {
        RANK_ZERO(train_step(c, rank, tape, x, y, param, &loss[i]));
        if (device.kind == OAR_CUDA)
            RANK_OK(oar_device_memory(device, &usage));
        RANK_CHECK(i < 2 || usage.from_driver == asked);
        asked = usage.from_driver;
    }
    oar_tape_destroy(tape);
    for (int i = 0; i < 4; i++)
        oar_tensor_release(param[i]);
    oar_tensor_release(y);
    oar_tensor_release(x);
    return 0;
}

GPU_TEST(a_model_is_trained_as_on_the_cpu_and_twice_with_the_same_bits)
{
    double here[STEPS], there[STEPS], again[STEPS];

    RANK_ZERO(train(c, rank, oar_device_of(OAR_CPU, 0), here));
    RANK_ZERO(train(c, rank, gpu, there));
    RANK_ZERO(train(c, rank, gpu, again));
    RANK_CHECK(here[STEPS - 1] < 0.9 * here[0]);
    for (int i = 0; i < STEPS; i++) {
        RANK_CHECK(fabs(here[i] - there[i]) <= 1e-4 * here[i]);
        RANK_CHECK(memcmp(&there[i], &again[i], sizeof(double)) == 0);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_agree_with_pytorch),
        cmocka_unit_test(strided_views_give_the_same),
        cmocka_unit_test(halves_agree_with_pytorch),
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(
            a_model_is_trained_as_on_the_cpu_and_twice_with_the_same_bits),
    };

    setenv("STANDIN_DELAY_US", "0", 0); /* order is other tests' */
    gpu_begin();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
