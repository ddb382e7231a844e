/* SPDX-License-Identifier: Apache-2.0 */
/* A step that is recorded and replayed: the same numbers as one that runs as it
 * is, with another learning rate and another batch in between; cuts; steps that
 * cannot be recorded. */
#include <oarsong/replay.h>

#include <string.h>

#include <oarsong/ops.h>
#include <oarsong/optim.h>
#include <oarsong/tape.h>

#include "support/gpu.h"
#include "support/last_error.h"

enum { ROWS = 5, WIDTH = 7, STEPS = 9 };

/* Normalises rows, and trains weight and bias to make of them logits. */
typedef struct training {
    oar_tape *tape;
    oar_tensor *x, *target, *weight, *bias, *loss;
    oar_optim *optim;
    int calls, cuts, drops;
    int reads; /* the step reads its loss */
    int with_cut;
} training;

static oar_tensor *make_on_gpu(oar_dtype dtype, oar_shape shape,
                               const double *values, int trains)
{
    oar_tensor *here = oar_empty(NULL, dtype, shape), *there;

    if (here == NULL || oar_tensor_write(here, OAR_F64, values) != OAR_OK)
        return NULL;
    there = oar_to(NULL, here, gpu_at(0));
    oar_tensor_release(here);
    if (there != NULL && trains)
        oar_tensor_require_grad(there, 1);
    return there;
}

static void write_batch(training *t, int step)
{
    double numbers[ROWS * WIDTH];

    for (int i = 0; i < ROWS * WIDTH; i++)
        numbers[i] = (i * 5 + step * 3) % 13 / 4.0 - 1;
    oar_tensor_write(t->x, OAR_F64, numbers);
}

static oar_status open_training(training *t)
{
    static const double classes[ROWS] = { 1, 0, 6, 3, 2 };
    static double ones[WIDTH] = { 1, 1, 1, 1, 1, 1, 1 }, zeros[ROWS * WIDTH];
    oar_tensor *params[2];

    memset(t, 0, sizeof *t);
    t->x = make_on_gpu(OAR_F32, OAR_SHAPE(ROWS, WIDTH), zeros, 0);
    t->target = make_on_gpu(OAR_I64, OAR_SHAPE(ROWS), classes, 0);
    params[0] = t->weight = make_on_gpu(OAR_F32, OAR_SHAPE(WIDTH), ones, 1);
    params[1] = t->bias = make_on_gpu(OAR_F32, OAR_SHAPE(WIDTH), zeros, 1);
    if (t->bias == NULL || t->x == NULL || oar_tape_create(&t->tape) != OAR_OK)
        return OAR_E_NOMEM;
    return oar_adam_create_over(2, params, OAR_OPTS(oar_adam_opts, .lr = 0.1),
                                &t->optim);
}

static oar_status count_cut(void *arg)
{
    ((training *)arg)->cuts++;
    return OAR_OK;
}

static void count_drop(void *arg)
{
    ((training *)arg)->drops++;
}

static oar_status run_step(void *arg)
{
    training *t = arg;
    oar_tensor *y, *loss;
    double value;

    t->calls++;
    oar_tape_reset(t->tape);
    oar_optim_zero_grad(t->optim);
    y = oar_layer_norm(t->tape, t->x, t->weight, t->bias, 1e-5);
    loss = oar_cross_entropy(t->tape, y, t->target);
    if (loss == NULL)
        return oar_last_error()->status;
    if (t->reads && oar_tensor_item(loss, &value) != OAR_OK)
        return oar_last_error()->status;
    if (oar_backward(t->tape, loss) != OAR_OK)
        return oar_last_error()->status;
    if (t->with_cut && oar_replay_cut_with(count_cut, t, count_drop) != OAR_OK)
        return oar_last_error()->status;
    return oar_optim_step_with(t->optim, OAR_OPTS(oar_step_opts, .clip = 0.5));
}

/* Trains by calls of run_step, or of a replay of it; gives the parameters. */
static oar_status train(training *t, oar_replay *replay, double *result)
{
    for (int s = 0; s < STEPS; s++) {
        oar_status status;

        write_batch(t, s);
        if (s == 6)
            oar_optim_set_lr(t->optim, 0.03);
        status = replay != NULL ? oar_replay_run(replay) : run_step(t);
        if (status != OAR_OK)
            return status;
    }
    if (oar_tensor_read(t->weight, OAR_F64, result) != OAR_OK)
        return OAR_E_GPU;
    return oar_tensor_read(t->bias, OAR_F64, result + WIDTH);
}

static void close_training(training *t)
{
    oar_optim_destroy(t->optim);
    oar_tape_destroy(t->tape);
    oar_tensor_release(t->x);
    oar_tensor_release(t->target);
    oar_tensor_release(t->weight);
    oar_tensor_release(t->bias);
}

GPU_TEST(a_replay_trains_as_the_step_does)
{
    double plain[2 * WIDTH], replayed[2 * WIDTH];
    oar_replay *replay = NULL;
    training t;

    RANK_OK(open_training(&t));
    RANK_OK(train(&t, NULL, plain));
    close_training(&t);
    for (int with_cut = 0; with_cut < 2; with_cut++) {
        RANK_OK(open_training(&t));
        t.with_cut = with_cut;
        RANK_OK(oar_replay_create(
            gpu_at(0), run_step, &t,
            OAR_OPTS(oar_replay_opts, .warm = 2, .strict = 1), &replay));
        RANK_CHECK(oar_replay_graphs(replay) == 0);
        RANK_OK(train(&t, replay, replayed));
        RANK_CHECK(t.calls == 3 && oar_replay_graphs(replay) == 1 + with_cut);
        RANK_CHECK(t.cuts == (with_cut ? STEPS : 0));
        RANK_CHECK(memcmp(plain, replayed, sizeof plain) == 0);
        RANK_CHECK(t.drops == (with_cut ? 2 : 0));
        oar_replay_destroy(replay);
        RANK_CHECK(t.drops == (with_cut ? 3 : 0));
        close_training(&t);
    }
    return 0;
}

GPU_TEST(a_step_that_waits_is_named)
{
    double plain[2 * WIDTH], as_it_is[2 * WIDTH];
    oar_replay *replay = NULL;
    training t;

    RANK_OK(open_training(&t));
    RANK_OK(train(&t, NULL, plain));
    close_training(&t);
    RANK_OK(open_training(&t));
    t.reads = 1;
    RANK_OK(oar_replay_create(gpu_at(0), run_step, &t,
                              OAR_OPTS(oar_replay_opts, .warm = 1), &replay));
    RANK_OK(train(&t, replay, as_it_is));
    RANK_CHECK(oar_replay_graphs(replay) == 0 && t.calls == STEPS + 1);
    RANK_CHECK(memcmp(plain, as_it_is, sizeof plain) == 0);
    oar_replay_destroy(replay);
    close_training(&t);

    RANK_OK(open_training(&t));
    t.reads = 1;
    RANK_OK(oar_replay_create(gpu_at(0), run_step, &t,
                              OAR_OPTS(oar_replay_opts, .warm = 1, .strict = 1),
                              &replay));
    RANK_OK(oar_replay_run(replay));
    RANK_CHECK(fails_with(oar_replay_run(replay), OAR_E_UNSUPPORTED,
                          "the step cannot be recorded: "));
    oar_replay_destroy(replay);
    close_training(&t);
    return 0;
}

/* ---- dropout ------------------------------------------------------------- */

enum { DROPPED = 64 };

typedef struct dropping {
    oar_tape *tape;
    oar_tensor *x, *kept;
} dropping;

static oar_status drop_some(void *arg)
{
    dropping *d = arg;
    oar_tensor *y;

    oar_tape_reset(d->tape);
    y = oar_dropout(d->tape, d->x, 0.5, 11);
    return y != NULL ? oar_tensor_copy(d->kept, y) : oar_last_error()->status;
}

GPU_TEST(each_replay_drops_others)
{
    static double ones[DROPPED], got[4][DROPPED];
    oar_replay *replay = NULL;
    dropping d;

    for (int i = 0; i < DROPPED; i++)
        ones[i] = 1;
    d.x = make_on_gpu(OAR_F32, OAR_SHAPE(DROPPED), ones, 1);
    d.kept = make_on_gpu(OAR_F32, OAR_SHAPE(DROPPED), ones, 0);
    RANK_OK(oar_tape_create(&d.tape));
    RANK_OK(oar_replay_create(gpu_at(0), drop_some, &d,
                              OAR_OPTS(oar_replay_opts, .warm = 1, .strict = 1),
                              &replay));
    for (int i = 0; i < 4; i++) {
        RANK_OK(oar_replay_run(replay));
        RANK_OK(oar_tensor_read(d.kept, OAR_F64, got[i]));
    }
    RANK_CHECK(memcmp(got[0], got[1], sizeof *got) == 0); /* recorded */
    RANK_CHECK(memcmp(got[1], got[2], sizeof *got) != 0);
    RANK_CHECK(memcmp(got[2], got[3], sizeof *got) != 0);
    oar_replay_destroy(replay);
    oar_tape_destroy(d.tape);
    oar_tensor_release(d.x);
    oar_tensor_release(d.kept);
    return 0;
}

GPU_TEST(wrong_arguments_are_refused)
{
    oar_replay *replay = NULL;
    training t = { .calls = 0 };

    RANK_CHECK(
        fails_with(oar_replay_create(gpu_at(0), NULL, NULL, NULL, &replay),
                   OAR_E_ARG, "without a function"));
    RANK_CHECK(fails_with(oar_replay_create(oar_device_of(OAR_CPU, 0), run_step,
                                            &t, NULL, &replay),
                          OAR_E_DEVICE, "replay"));
    RANK_CHECK(fails_with(
        oar_replay_create(gpu_at(0), run_step, &t,
                          OAR_OPTS(oar_replay_opts, .warm = -1), &replay),
        OAR_E_ARG, "below zero"));
    RANK_CHECK(fails_with(oar_replay_run(NULL), OAR_E_ARG, "without a replay"));
    RANK_OK(oar_replay_cut(count_cut, &t)); /* outside of a step: a call */
    RANK_CHECK(t.cuts == 1);
    RANK_OK(oar_replay_cut_with(count_cut, &t, count_drop));
    RANK_CHECK(t.cuts == 2 && t.drops == 1);
    oar_replay_destroy(NULL);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replay_trains_as_the_step_does),
        cmocka_unit_test(a_step_that_waits_is_named),
        cmocka_unit_test(each_replay_drops_others),
        cmocka_unit_test(wrong_arguments_are_refused),
    };

    gpu_begin();
    return cmocka_run_group_tests_name("replay", tests, NULL, NULL);
}
