/* SPDX-License-Identifier: Apache-2.0 */
/* ddp_mlp: data-parallel training of a small network, from start to end.
 *     oarsong run -n 2 ddp_mlp [--checkpoint FOLDER [--resume]] [steps]
 *
 * The task: points on three interleaved spirals, which arm is each on? Every
 * rank takes its own part of each batch; gradients are averaged while backward
 * runs; so all ranks hold the same network all the time. With --checkpoint the
 * run is saved now and then, and any number of ranks can go on with it.
 */
#include <getopt.h>
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

enum { ARMS = 3, HIDDEN = 128, BATCH = 240 };

typedef struct settings {
    long steps, every;      /* so many steps it is saved */
    const char *checkpoint; /* a folder, or NULL */
    int resume;
} settings;

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
static void progress(long step, long steps, double loss)
{
    int live = isatty(STDOUT_FILENO);

    if (step != steps && step % (live ? 50 : steps / 10 + 1) != 0)
        return;
    printf("%sstep %ld/%ld  loss %.4f%s", live ? "\r" : "", step, steps, loss,
           live && step != steps ? "   " : "\n");
    fflush(stdout);
}

/* Opens the folder, and with --resume loads the newest generation, if any. */
static oar_status open_checkpoint(oar_group *world, const settings *set,
                                  oar_state *state, oar_checkpoint **saved)
{
    int64_t newest;
    oar_status status;

    TRY(oar_checkpoint_open(world, set->checkpoint, NULL, saved));
    if (!set->resume)
        return OAR_OK;
    status = oar_checkpoint_newest(*saved, &newest);
    if (status == OAR_OK)
        return oar_checkpoint_load(*saved, state, newest, NULL);
    return status == OAR_E_NOT_FOUND ? OAR_OK : status;
}

static oar_status train(oar_group *world, const settings *set)
{
    oar_module *network;
    oar_optim *sgd;
    oar_tape *tape;
    oar_state *state;
    oar_checkpoint *saved = NULL;
    int64_t step = 0;
    double loss = 0, start = seconds();

    TRY(make_network(world, &network));
    TRY(oar_sgd_create(
        network, OAR_OPTS(oar_sgd_opts, .lr = 0.1, .momentum = 0.9), &sgd));
    TRY(oar_tape_create(&tape));
    TRY(oar_state_create(&state));
    TRY(oar_state_add_module(state, network, NULL));
    TRY(oar_state_add_optim(state, sgd, network, NULL));
    TRY(oar_state_add_i64(state, "step", &step));
    if (set->checkpoint != NULL)
        TRY(open_checkpoint(world, set, state, &saved));
    while (step < set->steps) {
        TRY(train_step(world, tape, network, sgd, (long)++step, &loss));
        if (oar_group_rank(world) == 0)
            progress((long)step, set->steps, loss);
        if (saved != NULL && (step % set->every == 0 || step == set->steps))
            TRY(oar_checkpoint_save(saved, state, step, NULL));
    }
    if (oar_group_rank(world) == 0)
        printf("%d ranks trained %ld steps in %.1f s; guessing would be a "
               "loss of %.2f\n",
               oar_group_size(world), set->steps, seconds() - start, log(ARMS));
    oar_checkpoint_close(saved);
    oar_state_destroy(state);
    oar_tape_destroy(tape);
    oar_optim_destroy(sgd);
    oar_module_release(network);
    return OAR_OK;
}

/* Returns 0 if the arguments make no sense. */
static int read_settings(int argc, char **argv, settings *set)
{
    static const struct option option[] = { { "checkpoint", 1, NULL, 'c' },
                                            { "every", 1, NULL, 'e' },
                                            { "resume", 0, NULL, 'r' },
                                            { NULL, 0, NULL, 0 } };
    int which;

    while ((which = getopt_long(argc, argv, "", option, NULL)) >= 0)
        if (which == 'c')
            set->checkpoint = optarg;
        else if (which == 'e')
            set->every = atol(optarg);
        else if (which == 'r')
            set->resume = 1;
        else
            return 0;
    if (optind < argc)
        set->steps = atol(argv[optind++]);
    return optind == argc && set->every > 0;
}

int main(int argc, char **argv)
{
    settings set = { .steps = 4000, .every = 500 };
    oar_group *world;
    oar_status status;

    if (!read_settings(argc, argv, &set)) {
        fputs("usage: ddp_mlp [--checkpoint FOLDER] [--every N] [--resume] "
              "[steps]\n",
              stderr);
        return 2;
    }
    status = oar_group_from_env(NULL, &world);
    if (status == OAR_OK) {
        status = train(world, &set);
        if (status != OAR_OK)
            fprintf(stderr, "ddp_mlp: rank %d: %s\n", oar_group_rank(world),
                    oar_last_error_text());
        oar_group_destroy(world);
    } else
        fprintf(stderr, "ddp_mlp: %s\n", oar_last_error_text());
    return status == OAR_OK ? 0 : 1;
}
