/* SPDX-License-Identifier: Apache-2.0 */
/* ddp_mlp: data-parallel training of a small network, from start to end.
 *     oarsong run -n 2 ddp_mlp [steps]
 *
 * The task: points on three interleaved spirals, which arm is each on? Every
 * rank takes its own part of each batch; gradients are averaged while backward
 * runs; so all ranks hold the same network all the time.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { ARMS = 3, HIDDEN = 128, BATCH = 240, STEPS = 4000 };

/* Point `index` of the data set: two coordinates and the arm. */
static void point(long index, float xy[2], int64_t *arm)
{
    double t = fmod((double)index * 0.6180339887, 1); /* along the arm */

    *arm = index % ARMS;
    t = 0.1 + 0.9 * t;
    xy[0] = (float)(t * cos(14 * t + 2 * 3.14159265 * (double)*arm / ARMS));
    xy[1] = (float)(t * sin(14 * t + 2 * 3.14159265 * (double)*arm / ARMS));
}

/* This rank's rows of batch number `step`. */
static void load(oar_group *world, long step, float *x, int64_t *y, int *rows)
{
    int rank = oar_group_rank(world), ranks = oar_group_size(world);

    *rows = BATCH / ranks;
    for (int i = 0; i < *rows; i++)
        point(step * BATCH + (long)i * ranks + rank, x + (long)i * 2, y + i);
}

static oar_status make_network(oar_group *world, oar_module **network)
{
    oar_module *layer[5] = { 0 };

    TRY(oar_linear_create(2, HIDDEN, 1, NULL, &layer[0]));
    TRY(oar_relu_create(&layer[1]));
    TRY(oar_linear_create(HIDDEN, HIDDEN, 3, NULL, &layer[2]));
    TRY(oar_relu_create(&layer[3]));
    TRY(oar_linear_create(HIDDEN, ARMS, 5, NULL, &layer[4]));
    TRY(oar_sequential_create(5, layer, network));
    return oar_ddp_wrap(*network, world, NULL, network);
}

static oar_status train_step(oar_group *world, oar_tape *tape,
                             oar_module *network, oar_optim *sgd, long step,
                             double *loss)
{
    static float x[BATCH * 2];
    static int64_t y[BATCH];
    oar_tensor *input, *target, *value;
    int rows;

    load(world, step, x, y, &rows);
    input = oar_from_data(tape, OAR_F32, OAR_SHAPE(rows, 2), x);
    target = oar_from_data(tape, OAR_I64, OAR_SHAPE(rows), y);
    value = oar_cross_entropy(tape, oar_forward(tape, network, input), target);
    TRY(oar_backward(tape, value)); /* gradients arrive averaged */
    TRY(oar_tensor_item(value, loss));
    TRY(oar_optim_step(sgd));
    oar_optim_zero_grad(sgd);
    oar_tape_reset(tape);
    return oar_all_reduce(world, oar_span_of(loss, 1, OAR_F64), OAR_AVG, NULL,
                          NULL);
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One line that is written over on a terminal, a few plain lines elsewhere. */
static void progress(long step, long steps, double loss, double start)
{
    double spent = seconds() - start, rate = (double)step * BATCH / spent;
    int live = isatty(STDOUT_FILENO);

    if (step != steps && step % (live ? 50 : steps / 10 + 1) != 0)
        return;
    printf("%sstep %ld/%ld  loss %.4f  %.0f samples/s  %.1f s left%s",
           live ? "\r" : "", step, steps, loss, rate,
           spent / (double)step * (double)(steps - step),
           live && step != steps ? "   " : "\n");
    fflush(stdout);
}

static oar_status train(oar_group *world, long steps)
{
    oar_module *network;
    oar_optim *sgd;
    oar_tape *tape;
    double loss = 0, start = seconds();

    TRY(make_network(world, &network));
    TRY(oar_sgd_create(
        network, OAR_OPTS(oar_sgd_opts, .lr = 0.1, .momentum = 0.9), &sgd));
    TRY(oar_tape_create(&tape));
    for (long step = 1; step <= steps; step++) {
        TRY(train_step(world, tape, network, sgd, step, &loss));
        if (oar_group_rank(world) == 0)
            progress(step, steps, loss, start);
    }
    if (oar_group_rank(world) == 0)
        printf("%d ranks trained %ld steps in %.1f s; guessing would be a "
               "loss of %.2f\n",
               oar_group_size(world), steps, seconds() - start, log(ARMS));
    oar_tape_destroy(tape);
    oar_optim_destroy(sgd);
    oar_module_release(network);
    return OAR_OK;
}

int main(int argc, char **argv)
{
    oar_group *world;
    oar_status status = oar_group_from_env(NULL, &world);

    if (status == OAR_OK) {
        status = train(world, argc > 1 ? atol(argv[1]) : STEPS);
        if (status != OAR_OK)
            fprintf(stderr, "ddp_mlp: rank %d: %s\n", oar_group_rank(world),
                    oar_last_error_text());
        oar_group_destroy(world);
    } else
        fprintf(stderr, "ddp_mlp: %s\n", oar_last_error_text());
    return status == OAR_OK ? 0 : 1;
}
