/* SPDX-License-Identifier: Apache-2.0 */
/* ddp_line: the smallest data-parallel training: fits y = 2 x + 1.
 *     oarsong run -n 4 ddp_line */
#include <stdio.h>

#include <oarsong/oarsong.h>

enum { ROWS = 16, STEPS = 200 };

#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

/* Every rank has other points of the line. */
static void make_batch(oar_group *world, int step, float *x, float *y)
{
    int ranks = oar_group_size(world), first = oar_group_rank(world);

    for (int i = 0; i < ROWS; i++) {
        int number = (step * ROWS + i) * ranks + first;
        x[i] = (float)(number % 97) / 97;
        y[i] = 2 * x[i] + 1;
    }
}

/* The same on every rank. */
static oar_status show(oar_group *world, oar_tape *tape, oar_module *model)
{
    float ten = 10;
    oar_tensor *x = oar_from_data(tape, OAR_F32, OAR_SHAPE(1, 1), &ten);
    double y;

    TRY(oar_tensor_item(oar_forward(tape, model, x), &y));
    printf("rank %d: f(10) = %.3f\n", oar_group_rank(world), y);
    return OAR_OK;
}

static oar_status train(oar_group *world)
{
    oar_module *model;
    oar_optim *sgd;
    oar_tape *tape;
    float x[ROWS], y[ROWS];

    TRY(oar_linear_create(1, 1, 7, NULL, &model));
    TRY(oar_ddp_wrap(model, world, NULL, &model)); /* takes the model over */
    TRY(oar_sgd_create(model, OAR_OPTS(oar_sgd_opts, .lr = 0.5), &sgd));
    TRY(oar_tape_create(&tape));
    for (int step = 0; step < STEPS; step++) {
        make_batch(world, step, x, y);
        oar_tensor *in = oar_from_data(tape, OAR_F32, OAR_SHAPE(ROWS, 1), x);
        oar_tensor *want = oar_from_data(tape, OAR_F32, OAR_SHAPE(ROWS, 1), y);
        oar_tensor *error = oar_mse(tape, oar_forward(tape, model, in), want);
        TRY(oar_backward(tape, error)); /* gradients arrive averaged */
        TRY(oar_optim_step(sgd));
        oar_optim_zero_grad(sgd);
        oar_tape_reset(tape);
    }
    TRY(show(world, tape, model));
    oar_tape_destroy(tape);
    oar_optim_destroy(sgd);
    oar_module_release(model);
    return OAR_OK;
}

int main(void)
{
    oar_group *world;
    oar_status status = oar_group_from_env(NULL, &world);

    if (status == OAR_OK) {
        status = train(world);
        oar_group_destroy(world);
    }
    if (status != OAR_OK)
        fprintf(stderr, "ddp_line: %s\n", oar_last_error_text());
    return status == OAR_OK ? 0 : 1;
}
