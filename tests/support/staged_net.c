/* SPDX-License-Identifier: Apache-2.0 */
#include "support/staged_net.h"

#include <string.h>

#include <oarsong/layers.h>
#include <oarsong/ops.h>

enum { WIDTH = 6, HIDDEN = 9, CHANNELS = 3, SIDE = 5 };

oar_module *staged_net_stage(staged_kind kind, int index)
{
    uint64_t seed = 100 + 10 * (uint64_t)index;
    oar_module *child[4] = { NULL }, *stage = NULL;
    int count = kind == STAGED_MLP ? 4 : 3;

    if (kind == STAGED_MLP) {
        oar_linear_create(WIDTH, HIDDEN, seed, NULL, &child[0]);
        oar_activation_create(OAR_GELU, &child[1]);
        oar_dropout_create(0.25, seed + 3, &child[2]);
        oar_linear_create(HIDDEN, WIDTH, seed + 5, NULL, &child[3]);
    } else {
        oar_conv2d_create(CHANNELS, CHANNELS, 3, 3, seed,
                          OAR_OPTS(oar_conv2d_layer_opts, .padding = { 1, 1 }),
                          &child[0]);
        oar_batch_norm_create(2, CHANNELS, NULL, &child[1]);
        oar_activation_create(OAR_RELU, &child[2]);
    }
    oar_sequential_create(count, child, &stage);
    return stage;
}

static oar_tensor *numbers(const staged_case *c, uint64_t seed)
{
    oar_shape shape = c->kind == STAGED_MLP
                          ? OAR_SHAPE(c->rows, WIDTH)
                          : OAR_SHAPE(c->rows, CHANNELS, SIDE, SIDE);

    return oar_normal(NULL, OAR_F32, shape, seed, 0, 1);
}

oar_tensor *staged_net_input(const staged_case *c, int step)
{
    return numbers(c, 7 + 2 * (uint64_t)step);
}

oar_tensor *staged_net_target(const staged_case *c, int step)
{
    return numbers(c, 8 + 2 * (uint64_t)step);
}

oar_tensor *staged_net_ragged(const staged_case *c, int step, int micro,
                              int target)
{
    int64_t length = 1 + (5 * step + 3 * micro) % 7;

    return oar_normal(
        NULL, OAR_F32, OAR_SHAPE(staged_net_rows(c, micro), length, WIDTH),
        1000 * (uint64_t)(step + 1) + 2 * (uint64_t)micro + (uint64_t)target, 0,
        1);
}

oar_tensor *staged_net_loss(void *arg, oar_tape *tape, int micro,
                            oar_tensor *const *out, int targets,
                            oar_tensor *const *target)
{
    return oar_mse(tape, out[0], target[0]);
}

oar_optim *staged_net_optim(const staged_case *c, oar_module *stage)
{
    oar_optim *optim = NULL;

    if (c->replicas > 0)
        oar_sgd_create(stage, OAR_OPTS(oar_sgd_opts, .lr = 0.1), &optim);
    else
        oar_adamw_create(stage, NULL, &optim);
    return optim;
}

int64_t staged_net_rows(const staged_case *c, int micro)
{
    return c->rows_of != NULL
               ? c->rows_of[micro]
               : c->rows / c->micro + (micro < c->rows % c->micro);
}

static uint64_t hash_tensor(uint64_t hash, const oar_tensor *t)
{
    const unsigned char *byte = oar_tensor_const_data(t);
    size_t bytes =
        (size_t)oar_tensor_count(t) * oar_dtype_size(oar_tensor_dtype(t));

    for (size_t i = 0; byte != NULL && i < bytes; i++)
        hash = (hash ^ byte[i]) * 1099511628211u;
    return hash;
}

uint64_t staged_net_hash(const oar_module *stage)
{
    uint64_t hash = 14695981039346656037u;

    for (int i = 0; i < oar_module_params(stage); i++) {
        hash = hash_tensor(hash, oar_module_param(stage, i));
        hash = hash_tensor(hash, oar_tensor_grad(oar_module_param(stage, i)));
    }
    for (int i = 0; i < oar_module_buffers(stage); i++)
        hash = hash_tensor(hash, oar_module_buffer(stage, i));
    return hash;
}

/* One micro-batch, forward and backward; adds its loss. */
static oar_status run_micro(const staged_case *c, oar_tape *tape,
                            oar_module *const *stage, oar_tensor *input,
                            oar_tensor *target, int micro, double *loss)
{
    int64_t first = 0, rows = staged_net_rows(c, micro);
    double part = (c->equal ? 1.0 / c->micro : (double)rows / (double)c->rows) /
                  (c->replicas > 0 ? c->replicas : 1);
    oar_tensor *x, *y, *mean, *seed = oar_full(NULL, OAR_F32, OAR_SCALAR, part);
    oar_status status;
    double value = 0;

    for (int m = 0; m < micro && !c->ragged; m++)
        first += staged_net_rows(c, m);
    x = oar_narrow(tape, input, 0, first, rows);
    y = oar_narrow(tape, target, 0, first, rows);
    for (int s = 0; s < c->stages; s++)
        x = oar_forward(tape, stage[s], x);
    mean = oar_mse(tape, x, y);
    status = oar_tensor_item(mean, &value);
    *loss += part * value;
    if (status == OAR_OK)
        status = oar_backward_from(tape, 1, &mean, &seed);
    oar_tensor_release(seed);
    oar_tape_reset(tape);
    return status;
}

static oar_status run_batch(const staged_case *c, oar_tape *tape,
                            oar_module *const *stage, int number, double *loss)
{
    oar_tensor *input = staged_net_input(c, number);
    oar_tensor *target = staged_net_target(c, number);
    oar_status status = OAR_OK;

    for (int m = 0; status == OAR_OK && m < c->micro; m++) {
        if (c->ragged) {
            oar_tensor_release(input);
            oar_tensor_release(target);
            input = staged_net_ragged(c, number, m, 0);
            target = staged_net_ragged(c, number, m, 1);
        }
        status = run_micro(c, tape, stage, input, target, m, loss);
    }
    oar_tensor_release(input);
    oar_tensor_release(target);
    return status;
}

static oar_status run_step(const staged_case *c, oar_tape *tape,
                           oar_module *const *stage, oar_optim *const *optim,
                           int step, double *loss)
{
    int batches = c->replicas > 0 ? c->replicas : 1;
    oar_status status = OAR_OK;

    *loss = 0;
    for (int s = 0; s < c->stages; s++)
        oar_optim_zero_grad(optim[s]);
    for (int r = 0; status == OAR_OK && r < batches; r++)
        status = run_batch(c, tape, stage, step * batches + r, loss);
    for (int s = 0; status == OAR_OK && s < c->stages; s++)
        status = oar_optim_step(optim[s]);
    return status;
}

oar_status staged_net_trained(const staged_case *c, oar_module **stage,
                              double *loss)
{
    oar_optim *optim[STAGED_MOST];
    oar_tape *tape;
    oar_status status = oar_tape_create(&tape);

    for (int s = 0; s < c->stages; s++) {
        stage[s] = staged_net_stage(c->kind, s);
        optim[s] = staged_net_optim(c, stage[s]);
    }
    for (int k = 0; status == OAR_OK && k < c->steps; k++)
        status = run_step(c, tape, stage, optim, k, loss);
    for (int s = 0; s < c->stages; s++)
        oar_optim_destroy(optim[s]);
    oar_tape_destroy(tape);
    return status;
}

oar_status staged_net_train(const staged_case *c, uint64_t *hash, double *loss)
{
    oar_module *stage[STAGED_MOST];
    oar_status status = staged_net_trained(c, stage, loss);

    for (int s = 0; s < c->stages; s++) {
        hash[s] = staged_net_hash(stage[s]);
        oar_module_release(stage[s]);
    }
    return status;
}
