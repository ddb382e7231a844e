/* SPDX-License-Identifier: Apache-2.0 */
/* dies_in_backward: a training job that loses a rank in the middle of backward
 * in its first life, and trains to the end in the next.
 *     oarsong run -n 3 --max-restarts 1 dies_in_backward
 *
 * The highest rank kills itself when the gradient of a layer in the middle is
 * ready: buckets before it are under way, those behind it are not. The others
 * say on stderr what oar_backward told them.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <oarsong/oarsong.h>

#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { LAYERS = 5, WIDE = 33, STEPS = 6, DEADLY = 3 };

static int life(void)
{
    const char *count = getenv("TORCHELASTIC_RESTART_COUNT");

    return count != NULL ? atoi(count) : 0;
}

static oar_status die(oar_tensor *leaf, void *arg)
{
    const int *step = arg;

    if (*step == DEADLY)
        raise(SIGKILL);
    return OAR_OK;
}

static oar_status make_network(oar_group *world, oar_module **network)
{
    oar_module *layer[LAYERS] = { 0 };

    for (int i = 0; i < LAYERS; i++)
        TRY(oar_linear_create(WIDE, WIDE, (uint64_t)i + 1, NULL, &layer[i]));
    TRY(oar_sequential_create(LAYERS, layer, network));
    return oar_ddp_wrap(
        *network, world,
        OAR_OPTS(oar_ddp_opts, .bucket_bytes = 1024, .check_every = 1),
        network);
}

static oar_status train_step(oar_group *world, oar_tape *tape,
                             oar_module *network, oar_optim *sgd, int step)
{
    float x[2 * WIDE];
    oar_tensor *y;

    for (int i = 0; i < 2 * WIDE; i++)
        x[i] = sinf((float)(i + step * 7 + oar_group_rank(world)));
    y = oar_forward(tape, network,
                    oar_from_data(tape, OAR_F32, OAR_SHAPE(2, WIDE), x));
    TRY(oar_backward(tape, oar_mean(tape, oar_mul(tape, y, y))));
    TRY(oar_optim_step(sgd));
    oar_optim_zero_grad(sgd);
    oar_tape_reset(tape);
    return OAR_OK;
}

static oar_status train(oar_group *world)
{
    int step = 0, doomed = oar_group_rank(world) == oar_group_size(world) - 1;
    oar_hook *hook = NULL;
    oar_module *network;
    oar_optim *sgd;
    oar_tape *tape;

    TRY(make_network(world, &network));
    TRY(oar_sgd_create(network, OAR_OPTS(oar_sgd_opts, .lr = 0.1), &sgd));
    TRY(oar_tape_create(&tape));
    if (doomed && life() == 0)
        TRY(oar_tensor_on_grad(oar_module_param(network, LAYERS), die, &step,
                               &hook));
    for (; step < STEPS; step++)
        TRY(train_step(world, tape, network, sgd, step));
    oar_hook_remove(hook);
    oar_tape_destroy(tape);
    oar_optim_destroy(sgd);
    oar_module_release(network);
    return OAR_OK;
}

int main(void)
{
    oar_group *world;
    oar_status status = oar_group_from_env(NULL, &world);

    signal(SIGTERM, SIG_IGN); /* says its word before it goes */
    if (status == OAR_OK)
        status = train(world);
    if (status != OAR_OK)
        fprintf(stderr, "life %d: %s: %s\n", life(), oar_status_name(status),
                oar_last_error_text());
    else
        printf("life %d: trained %d steps\n", life(), STEPS);
    oar_group_destroy(world);
    return status == OAR_OK ? 0 : 1;
}
