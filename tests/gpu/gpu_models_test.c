/* SPDX-License-Identifier: Apache-2.0 */
/* An MLP and a CNN train ten steps on a GPU as on the cpu, in f32 and in bf16
 * with master weights, step by step and replayed; each twice, with the same
 * bits. */
#include "support/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/layers.h>
#include <oarsong/models.h>
#include <oarsong/ops.h>
#include <oarsong/optim.h>
#include <oarsong/replay.h>
#include <oarsong/tape.h>

static const oar_device cpu = { OAR_CPU, 0 }, gpu = { OAR_CUDA, 0 };

enum { STEPS = 10, ROWS = 6, CLASSES = 5, SIDE = 9, PIXELS = 2 * SIDE * SIDE };

typedef struct model_training {
    oar_module *net;
    oar_optim *adam;
    oar_tape *tape;
    oar_tensor *x, *y, *loss; /* loss: of the last step, f32 */
} model_training;

static oar_status make_net(int cnn, oar_module **net)
{
    oar_cnn_opts o = oar_cnn_opts_init();

    oar_module *layer[3];

    if (!cnn) {
        if (oar_linear_create(PIXELS, 16, 1, NULL, &layer[0]) != OAR_OK ||
            oar_relu_create(&layer[1]) != OAR_OK ||
            oar_linear_create(16, CLASSES, 2, NULL, &layer[2]) != OAR_OK)
            return oar_last_error()->status;
        return oar_sequential_create(3, layer, net);
    }
    o.channels = 2;
    o.image = SIDE;
    o.classes = CLASSES;
    o.width = 3;
    return oar_cnn_create(&o, net);
}

/* Takes the reference, and gives the same on a device. */
static oar_tensor *moved(oar_tensor *here, oar_device device)
{
    oar_tensor *there = oar_to(NULL, here, device);

    oar_tensor_release(here);
    return there;
}

static oar_status begin_training(model_training *t, int cnn, oar_device device,
                                 oar_dtype dtype)
{
    oar_adam_opts o = oar_adam_opts_init();
    oar_shape shape =
        cnn ? OAR_SHAPE(ROWS, 2, SIDE, SIDE) : OAR_SHAPE(ROWS, PIXELS);
    int64_t class_of[ROWS];

    for (int64_t i = 0; i < ROWS; i++)
        class_of[i] = i * 3 % CLASSES;
    if (make_net(cnn, &t->net) != OAR_OK ||
        (dtype != OAR_F32 && oar_module_cast(t->net, dtype, 0) != OAR_OK) ||
        (device.kind == OAR_CUDA && oar_module_to(t->net, device) != OAR_OK))
        return oar_last_error()->status;
    t->x = moved(oar_normal(NULL, dtype, shape, 5, 0, 1), device);
    t->y =
        moved(oar_from_data(NULL, OAR_I64, OAR_SHAPE(ROWS), class_of), device);
    t->loss = moved(oar_zeros(NULL, OAR_F32, OAR_SCALAR), device);
    o.lr = 0.01;
    o.master_weights = 1;
    if (oar_adamw_create(t->net, &o, &t->adam) != OAR_OK)
        return oar_last_error()->status;
    return oar_tape_create(&t->tape);
}

static void end_training(model_training *t)
{
    oar_tape_destroy(t->tape);
    oar_optim_destroy(t->adam);
    oar_module_release(t->net);
    oar_tensor_release(t->x);
    oar_tensor_release(t->y);
    oar_tensor_release(t->loss);
}

static oar_status take_step(void *arg)
{
    model_training *t = arg;
    oar_step_opts with = oar_step_opts_init();
    oar_tensor *out = oar_forward(t->tape, t->net, t->x), *l;

    with.clip = 1;
    l = oar_cross_entropy(t->tape, oar_cast(t->tape, out, OAR_F32), t->y);
    if (l == NULL || oar_backward(t->tape, l) != OAR_OK ||
        oar_optim_step_with(t->adam, &with) != OAR_OK ||
        oar_tensor_copy(t->loss, l) != OAR_OK)
        return oar_last_error()->status;
    oar_optim_zero_grad(t->adam);
    oar_tape_reset(t->tape);
    return OAR_OK;
}

static oar_status train(int cnn, oar_device device, oar_dtype dtype,
                        int replayed, double *loss)
{
    oar_replay_opts o = oar_replay_opts_init();
    model_training t = { .net = NULL };
    oar_replay *replay = NULL;
    oar_status status = begin_training(&t, cnn, device, dtype);

    o.strict = 1;
    if (status == OAR_OK && replayed)
        status = oar_replay_create(device, take_step, &t, &o, &replay);
    for (int i = 0; i < STEPS && status == OAR_OK; i++) {
        status = replayed ? oar_replay_run(replay) : take_step(&t);
        if (status == OAR_OK)
            status = oar_tensor_read(t.loss, OAR_F64, &loss[i]);
    }
    if (status != OAR_OK)
        print_error("%s in %s on %s%s: %s\n", cnn ? "cnn" : "mlp",
                    oar_dtype_name(dtype), oar_device_text(device).text,
                    replayed ? ", replayed" : "", oar_last_error_text());
    oar_replay_destroy(replay);
    end_training(&t);
    return status;
}

static int is_close(int cnn, oar_dtype dtype, const double *here,
                    const double *there)
{
    double limit = dtype == OAR_F32 ? 1e-4 : 6e-2;

    for (int i = 0; i < STEPS; i++)
        if (!(fabs(here[i] - there[i]) <= limit)) {
            print_error("%s in %s, step %d: %.6f on the cpu, %.6f there\n",
                        cnn ? "cnn" : "mlp", oar_dtype_name(dtype), i, here[i],
                        there[i]);
            return 0;
        }
    return there[STEPS - 1] < there[0] - 0.2;
}

static int check_model(test_job *c, int rank, int cnn, oar_dtype dtype)
{
    double here[STEPS], there[STEPS], again[STEPS], replayed[STEPS];

    RANK_OK(train(cnn, cpu, dtype, 0, here));
    RANK_OK(train(cnn, gpu, dtype, 0, there));
    RANK_OK(train(cnn, gpu, dtype, 0, again));
    RANK_OK(train(cnn, gpu, dtype, 1, replayed));
    RANK_CHECK(is_close(cnn, dtype, here, there));
    for (int i = 0; i < STEPS; i++)
        RANK_CHECK(there[i] == again[i] && there[i] == replayed[i]);
    return 0;
}

GPU_TEST(an_mlp_trains_as_on_the_cpu)
{
    RANK_ZERO(check_model(c, rank, 0, OAR_F32));
    return check_model(c, rank, 0, OAR_BF16);
}

GPU_TEST(a_cnn_trains_as_on_the_cpu)
{
    RANK_ZERO(check_model(c, rank, 1, OAR_F32));
    return check_model(c, rank, 1, OAR_BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_mlp_trains_as_on_the_cpu),
        cmocka_unit_test(a_cnn_trains_as_on_the_cpu),
    };

    setenv("STANDIN_DELAY_US", "0", 0);
    gpu_begin();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
