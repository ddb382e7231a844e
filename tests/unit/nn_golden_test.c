/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of layers, and ten steps of two models, against PyTorch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <oarsong/models.h>
#include <oarsong/optim.h>
#include <oarsong/tape.h>

#include "support/last_error.h"
#include "unit/nn_cases.h"

enum { STEPS = 10, BATCH = 3, CONTEXT = 8, VOCABULARY = 11 };

/* ---- operations ---------------------------------------------------------- */

static void operations_agree_with_pytorch(void **state)
{
    golden_check_all(nn_cases, NN_CASES, 0);
}

static void strided_views_give_the_same(void **state)
{
    golden_check_all(nn_cases, NN_CASES, 1);
}

/* ---- models -------------------------------------------------------------- */

/* As in make_nn.py. */
static double number(int64_t i, int64_t which)
{
    return (double)((i * 7919 + which * 104729 + 13) % 1009) / 504.5 - 1;
}

static void set_params(oar_module *net)
{
    for (int k = 0; k < oar_module_params(net); k++) {
        oar_tensor *p = oar_module_param(net, k);
        double start[2048];

        assert_true(oar_tensor_count(p) <= 2048);
        for (int64_t i = 0; i < oar_tensor_count(p); i++)
            start[i] =
                0.3 * number(i, k) + (oar_tensor_shape(p).ndim == 1 ? 1 : 0);
        OK(oar_tensor_write(p, OAR_F64, start));
    }
}

static oar_tensor *tokens_of(int step)
{
    int64_t token[BATCH * CONTEXT];

    for (int64_t i = 0; i < BATCH * CONTEXT; i++)
        token[i] = ((i + step * BATCH * CONTEXT) * 31 + 7) % 101 % VOCABULARY;
    return oar_from_data(NULL, OAR_I64, OAR_SHAPE(BATCH, CONTEXT), token);
}

static oar_tensor *next_of(int step)
{
    int64_t token[BATCH * CONTEXT];

    for (int64_t i = 0; i < BATCH * CONTEXT; i++)
        token[i] = ((i + step * BATCH * CONTEXT) * 17 + 3) % 97 % VOCABULARY;
    return oar_from_data(NULL, OAR_I64, OAR_SHAPE(BATCH * CONTEXT), token);
}

static oar_tensor *images_of(int step, oar_dtype dtype)
{
    oar_tensor *x = oar_empty(NULL, dtype, OAR_SHAPE(BATCH, 2, 9, 9));
    double pixel[BATCH * 2 * 81];

    for (int64_t i = 0; i < BATCH * 2 * 81; i++)
        pixel[i] = number(i, step);
    OK(oar_tensor_write(x, OAR_F64, pixel));
    return x;
}

static oar_tensor *classes_of(int step)
{
    int64_t of[BATCH];

    for (int64_t i = 0; i < BATCH; i++)
        of[i] = (i + step) % 5;
    return oar_from_data(NULL, OAR_I64, OAR_SHAPE(BATCH), of);
}

static void check_loss(const char *kind, int step, const oar_tensor *loss)
{
    const golden *want = golden_get(kind, "loss");
    golden one = { .count = 1, .number = want->number + step };

    snprintf(one.name, sizeof one.name, "%s.loss %d", kind, step);
    golden_compare(&one, loss);
}

/* Those that the file has; it has the token table at least. */
static void check_state(const char *kind, oar_module *net)
{
    char name[64];

    for (int i = 0; i < oar_module_params(net); i++) {
        OK(oar_module_param_name(net, i, name, sizeof name));
        if (golden_find(kind, name) != NULL)
            golden_compare(golden_get(kind, name), oar_module_param(net, i));
    }
    for (int i = 0; i < oar_module_buffers(net); i++) {
        OK(oar_module_buffer_name(net, i, name, sizeof name));
        if (oar_tensor_dtype(oar_module_buffer(net, i)) != OAR_I64)
            golden_compare(golden_get(kind, name), oar_module_buffer(net, i));
    }
}

/* Takes the reference to net. */
static void train(const char *kind, oar_module *net, oar_dtype dtype,
                  int images, double lr)
{
    oar_sgd_opts o = oar_sgd_opts_init();
    oar_optim *sgd;
    oar_tape *tape;

    o.lr = lr;
    OK(oar_tape_create(&tape));
    OK(oar_sgd_create(net, &o, &sgd));
    set_params(net);
    for (int step = 0; step < STEPS; step++) {
        oar_tensor *x = images ? images_of(step, dtype) : tokens_of(step);
        oar_tensor *y = images ? classes_of(step) : next_of(step);
        oar_tensor *loss =
            oar_cross_entropy(tape, oar_forward(tape, net, x), y);

        check_loss(kind, step, loss);
        OK(oar_backward(tape, loss));
        OK(oar_optim_step(sgd));
        oar_optim_zero_grad(sgd);
        oar_tape_reset(tape);
        oar_tensor_release(x);
        oar_tensor_release(y);
    }
    check_state(kind, net);
    oar_optim_destroy(sgd);
    oar_tape_destroy(tape);
    oar_module_release(net);
}

static oar_module *new_gpt(oar_dtype dtype, int tied, int recompute)
{
    oar_gpt_opts o = oar_gpt_opts_init();
    oar_module *net;

    o.vocabulary = VOCABULARY;
    o.context = CONTEXT;
    o.width = 16;
    o.heads = 2;
    o.layers = 2;
    o.hidden = 32;
    o.dtype = dtype;
    o.tied = o.rotary = tied;
    o.recompute = recompute;
    OK(oar_gpt_create(&o, &net));
    return net;
}

static oar_module *new_cnn(oar_dtype dtype)
{
    oar_cnn_opts o = oar_cnn_opts_init();
    oar_module *net;

    o.channels = 2;
    o.image = 9;
    o.classes = 5;
    o.width = 3;
    o.dtype = dtype;
    OK(oar_cnn_create(&o, &net));
    return net;
}

static void ten_steps_of_a_cnn_agree_with_pytorch(void **state)
{
    train("cnn", new_cnn(OAR_F32), OAR_F32, 1, 0.05);
    train("cnn", new_cnn(OAR_F64), OAR_F64, 1, 0.05);
}

static void ten_steps_of_a_gpt_agree_with_pytorch(void **state)
{
    train("gpt", new_gpt(OAR_F32, 0, 0), OAR_F32, 0, 0.1);
    train("gpt", new_gpt(OAR_F64, 0, 0), OAR_F64, 0, 0.1);
}

static void ten_steps_with_rotary_and_tied_tables_agree(void **state)
{
    train("tied", new_gpt(OAR_F32, 1, 0), OAR_F32, 0, 0.1);
    train("tied", new_gpt(OAR_F64, 1, 0), OAR_F64, 0, 0.1);
}

static void ten_steps_with_recomputation_agree_with_pytorch(void **state)
{
    train("gpt", new_gpt(OAR_F64, 0, 1), OAR_F64, 0, 0.1);
}

static int open_golden(void **state)
{
    return golden_load("nn");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_agree_with_pytorch),
        cmocka_unit_test(strided_views_give_the_same),
        cmocka_unit_test(ten_steps_of_a_cnn_agree_with_pytorch),
        cmocka_unit_test(ten_steps_of_a_gpt_agree_with_pytorch),
        cmocka_unit_test(ten_steps_with_rotary_and_tied_tables_agree),
        cmocka_unit_test(ten_steps_with_recomputation_agree_with_pytorch),
    };

    return cmocka_run_group_tests(tests, open_golden, golden_close);
}
