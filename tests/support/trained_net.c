/* SPDX-License-Identifier: Apache-2.0 */
#include "support/trained_net.h"

#include <oarsong/oarsong.h>

#include "support/ranks.h"

enum { SAMPLES = 96, BATCH = 4 };

static oar_status make_adam(void *arg, int count, oar_tensor *const *piece,
                            const char *const *name, oar_optim **optim)
{
    oar_adam_opts o = { .size = sizeof o, .lr = 0.01 };

    (void)arg;
    (void)name;
    return oar_adamw_create_over(count, piece, &o, optim);
}

/* With dropout, whose counters, and batch norm, whose buffers, change in
 * forward. */
static oar_status make_net(oar_group *g, int sharded, int64_t width,
                           int64_t hidden, oar_module **net)
{
    oar_ddp_opts o = { .size = sizeof o,
                       .sharded = sharded,
                       .broadcast_buffers = 1 };
    oar_module *layer[5];

    CHECK_OK(oar_linear_create(width, hidden, 1, NULL, &layer[0]));
    CHECK_OK(oar_batch_norm_create(1, hidden, NULL, &layer[1]));
    CHECK_OK(oar_relu_create(&layer[2]));
    CHECK_OK(oar_dropout_create(0.25, 100 * (uint64_t)oar_group_rank(g) + 7,
                                &layer[3]));
    CHECK_OK(oar_linear_create(hidden, 2, 3, NULL, &layer[4]));
    CHECK_OK(oar_sequential_create(5, layer, net));
    return oar_ddp_wrap(*net, g, &o, net);
}

oar_status trained_net_make(trained_net *t, oar_group *g, int sharded,
                            int64_t width, int64_t hidden)
{
    oar_loader_opts o = { .size = sizeof o,
                          .rank = oar_group_rank(g),
                          .ranks = oar_group_size(g),
                          .batch = BATCH,
                          .seed = 5 };
    oar_adam_opts adam = { .size = sizeof adam, .lr = 0.01 };
    oar_tensor *field[2] = {
        oar_uniform(NULL, OAR_F32, OAR_SHAPE(SAMPLES, width), 11, -1, 1),
        oar_uniform(NULL, OAR_F32, OAR_SHAPE(SAMPLES, 2), 12, -1, 1)
    };

    *t = (trained_net){ 0 };
    CHECK_OK(oar_dataset_tensors(2, field, &t->data));
    oar_tensor_release(field[0]);
    oar_tensor_release(field[1]);
    CHECK_OK(oar_loader_create(t->data, &o, &t->loader));
    CHECK_OK(make_net(g, sharded, width, hidden, &t->net));
    CHECK_OK(oar_state_create(&t->state));
    CHECK_OK(oar_state_add_module(t->state, t->net, NULL));
    if (sharded) {
        CHECK_OK(oar_zero_create(t->net, make_adam, NULL, &t->zero));
        CHECK_OK(oar_state_add_zero(t->state, t->zero, t->net, NULL));
    } else {
        CHECK_OK(oar_adamw_create(t->net, &adam, &t->optim));
        CHECK_OK(oar_state_add_optim(t->state, t->optim, t->net, NULL));
    }
    CHECK_OK(oar_state_add_loader(t->state, "train", t->loader));
    return oar_state_add_i64(t->state, "step", &t->step);
}

void trained_net_drop(trained_net *t)
{
    oar_state_destroy(t->state);
    oar_zero_destroy(t->zero);
    oar_optim_destroy(t->optim);
    oar_module_release(t->net);
    oar_loader_destroy(t->loader);
    oar_dataset_destroy(t->data);
}

oar_status trained_net_train(trained_net *t, int64_t end)
{
    oar_tensor *field[2];
    uint64_t epoch;
    int64_t sample;
    oar_tape *tape;
    int more;

    CHECK_OK(oar_tape_create(&tape));
    while (t->step < end) {
        CHECK_OK(oar_loader_next(t->loader, field, &more));
        if (!more) {
            CHECK_OK(oar_loader_position(t->loader, &epoch, &sample));
            CHECK_OK(oar_loader_start(t->loader, epoch + 1, 0));
            continue;
        }
        CHECK_OK(oar_backward(
            tape,
            oar_mse(tape, oar_forward(tape, t->net, field[0]), field[1])));
        if (t->zero != NULL) {
            CHECK_OK(oar_zero_step(t->zero));
            oar_zero_zero_grad(t->zero);
        } else {
            CHECK_OK(oar_optim_step(t->optim));
            oar_optim_zero_grad(t->optim);
        }
        oar_tape_reset(tape);
        t->step++;
    }
    oar_tape_destroy(tape);
    return OAR_OK;
}
