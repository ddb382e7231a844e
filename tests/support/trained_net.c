/* SPDX-License-Identifier: Apache-2.0 */
#include "support/trained_net.h"

#include <string.h>

#include <oarsong/oarsong.h>

#include "support/ranks.h"

enum { SAMPLES = 96, BATCH = 4 };

/* With dropout, whose counters, and batch norm, whose buffers, change in
 * forward. All ranks have the same buffers before a step. */
static oar_status make_net(oar_group *g, int stage, int64_t width,
                           int64_t hidden, oar_module **net)
{
    oar_module *layer[5];

    CHECK_OK(oar_linear_create(width, hidden, 1, NULL, &layer[0]));
    CHECK_OK(oar_batch_norm_create(1, hidden, NULL, &layer[1]));
    CHECK_OK(oar_relu_create(&layer[2]));
    CHECK_OK(oar_dropout_create(0.25, 100 * (uint64_t)oar_group_rank(g) + 7,
                                &layer[3]));
    CHECK_OK(oar_linear_create(hidden, 2, 3, NULL, &layer[4]));
    CHECK_OK(oar_sequential_create(5, layer, net));
    if (stage == 0)
        return oar_ddp_wrap(
            *net, g, OAR_OPTS(oar_ddp_opts, .broadcast_buffers = 1), net);
    CHECK_OK(oar_sync_batch_norm_convert(*net, g, NULL));
    return oar_fsdp_wrap(
        *net, g, OAR_OPTS(oar_fsdp_opts, .stage = (oar_zero_stage)stage), net);
}

oar_status trained_net_make(trained_net *t, oar_group *g, int stage,
                            int64_t width, int64_t hidden)
{
    oar_loader_opts o = { .size = sizeof o,
                          .rank = oar_group_rank(g),
                          .ranks = oar_group_size(g),
                          .batch = BATCH,
                          .seed = 5 };
    const oar_adam_opts *adam = OAR_OPTS(oar_adam_opts, .lr = 0.01);
    oar_tensor *const *shard;
    oar_tensor *field[2] = {
        oar_uniform(NULL, OAR_F32, OAR_SHAPE(SAMPLES, width), 11, -1, 1),
        oar_uniform(NULL, OAR_F32, OAR_SHAPE(SAMPLES, 2), 12, -1, 1)
    };
    int shards;

    *t = (trained_net){ 0 };
    CHECK_OK(oar_dataset_tensors(2, field, &t->data));
    oar_tensor_release(field[0]);
    oar_tensor_release(field[1]);
    CHECK_OK(oar_loader_create(t->data, &o, &t->loader));
    CHECK_OK(make_net(g, stage, width, hidden, &t->net));
    CHECK_OK(oar_state_create(&t->state));
    CHECK_OK(oar_state_add_module(t->state, t->net, NULL));
    shard = oar_fsdp_params(t->net, &shards);
    CHECK_OK(stage == 0
                 ? oar_adamw_create(t->net, adam, &t->optim)
                 : oar_adamw_create_over(shards, shard, adam, &t->optim));
    CHECK_OK(oar_state_add_optim(t->state, t->optim, t->net, NULL));
    CHECK_OK(oar_state_add_loader(t->state, "train", t->loader));
    return oar_state_add_i64(t->state, "step", &t->step);
}

void trained_net_drop(trained_net *t)
{
    oar_state_destroy(t->state);
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
        CHECK_OK(oar_optim_step(t->optim));
        oar_optim_zero_grad(t->optim);
        oar_tape_reset(tape);
        t->step++;
    }
    oar_tape_destroy(tape);
    return OAR_OK;
}

/* Makes what FSDP has spread whole for a look, or lets go of it. */
static int look(oar_module *net, int begin)
{
    if (oar_fsdp_shards(net) == NULL)
        return 1;
    return (begin ? oar_fsdp_unshard(net, NULL)
                  : oar_fsdp_reshard(net, NULL)) == OAR_OK;
}

int trained_net_same_params(const trained_net *a, const trained_net *b)
{
    int same = look(a->net, 1) && look(b->net, 1);

    for (int i = 0; same && i < oar_module_params(a->net); i++) {
        const oar_tensor *x = oar_module_param(a->net, i);
        const oar_tensor *y = oar_module_param(b->net, i);

        same = memcmp(oar_tensor_const_data(x), oar_tensor_const_data(y),
                      (size_t)oar_tensor_count(x) * sizeof(float)) == 0;
    }
    return look(a->net, 0) && look(b->net, 0) && same;
}
