/* SPDX-License-Identifier: Apache-2.0 */
/* A small GPT trains on a GPU as it does on the cpu, in f32 and in bf16 with
 * master weights; a second run gives the same bits, and so does a second one
 * whose steps are replayed. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/device.h>
#include <oarsong/models.h>
#include <oarsong/ops.h>
#include <oarsong/optim.h>
#include <oarsong/replay.h>
#include <oarsong/tape.h>

#include "support/gpu_ranks.h"

static const oar_device cpu = { OAR_CPU, 0 }, gpu = { OAR_CUDA, 0 };

enum { WARM = 3 }; /* steps before the one that is recorded */
enum { STEPS = 10, ROWS = 2, CONTEXT = 8, VOCABULARY = 33, WIDTH = 64 };

static oar_status make_gpt(oar_device device, oar_dtype dtype, oar_module **gpt)
{
    oar_gpt_opts o = oar_gpt_opts_init();

    o.vocabulary = VOCABULARY;
    o.context = CONTEXT;
    o.width = WIDTH;
    o.layers = 2;
    o.heads = 2;
    o.tied = 1;
    o.dropout = 0.1;
    if (oar_gpt_create(&o, gpt) != OAR_OK ||
        (dtype != OAR_F32 && oar_module_cast(*gpt, dtype, 0) != OAR_OK))
        return oar_last_error()->status;
    return device.kind == OAR_CUDA ? oar_module_to(*gpt, device) : OAR_OK;
}

static oar_tensor *tokens(oar_device device, oar_shape shape, int64_t first)
{
    int64_t number[ROWS * CONTEXT];
    oar_tensor *here, *there;

    for (int64_t i = 0; i < ROWS * CONTEXT; i++)
        number[i] = (first + i) * (first + i) * 5 % VOCABULARY;
    here = oar_from_data(NULL, OAR_I64, shape, number);
    there = oar_to(NULL, here, device);
    oar_tensor_release(here);
    return there;
}

typedef struct gpt_training {
    oar_module *gpt;
    oar_optim *adam;
    oar_tape *tape;
    oar_tensor *x, *y, *loss; /* loss: of the last step */
} gpt_training;

static oar_status take_step(void *arg)
{
    gpt_training *t = arg;
    oar_step_opts with = oar_step_opts_init();
    oar_tensor *logits = oar_forward(t->tape, t->gpt, t->x);
    oar_tensor *l = oar_cross_entropy(t->tape, logits, t->y);

    with.clip = 1;
    if (l == NULL || oar_backward(t->tape, l) != OAR_OK ||
        oar_optim_step_with(t->adam, &with) != OAR_OK ||
        oar_tensor_copy(t->loss, l) != OAR_OK)
        return oar_last_error()->status;
    oar_optim_zero_grad(t->adam);
    oar_tape_reset(t->tape);
    return OAR_OK;
}

static oar_status take_steps(gpt_training *t, oar_replay *replay, double *loss)
{
    for (int step = 0; step < STEPS; step++) {
        oar_status status =
            replay != NULL ? oar_replay_run(replay) : take_step(t);

        if (status == OAR_OK)
            status = oar_tensor_read(t->loss, OAR_F64, &loss[step]);
        if (status != OAR_OK)
            return status;
    }
    return OAR_OK;
}

static int train(oar_device device, oar_dtype dtype, int replayed, double *loss)
{
    oar_adam_opts o = oar_adam_opts_init();
    oar_replay_opts with = oar_replay_opts_init();
    gpt_training t = {
        .x = tokens(device, OAR_SHAPE(ROWS, CONTEXT), 0),
        .y = tokens(device, OAR_SHAPE(ROWS * CONTEXT), 1),
        .loss = oar_empty_on(NULL, device, dtype, OAR_SCALAR),
    };
    oar_replay *replay = NULL;
    oar_status status = make_gpt(device, dtype, &t.gpt);

    o.lr = 0.003;
    o.master_weights = 1;
    with.strict = 1;
    if (status == OAR_OK)
        status = oar_adamw_create(t.gpt, &o, &t.adam);
    if (status == OAR_OK)
        status = oar_tape_create(&t.tape);
    if (status == OAR_OK && replayed)
        status = oar_replay_create(device, take_step, &t, &with, &replay);
    if (status == OAR_OK)
        status = take_steps(&t, replay, loss);
    if (status != OAR_OK)
        fprintf(stderr, "%s%s: %s\n", oar_device_text(device).text,
                replayed ? ", replayed" : "", oar_last_error_text());
    oar_replay_destroy(replay);
    oar_tape_destroy(t.tape);
    oar_optim_destroy(t.adam);
    oar_module_release(t.gpt);
    oar_tensor_release(t.x);
    oar_tensor_release(t.y);
    oar_tensor_release(t.loss);
    return status == OAR_OK;
}

static int trains(test_job *c, int rank, void *arg)
{
    static const oar_dtype dtypes[] = { OAR_F32, OAR_BF16 };

    for (int d = 0; d < 2; d++) {
        double here[STEPS], there[STEPS], again[STEPS], replayed[STEPS];
        double limit = dtypes[d] == OAR_F32 ? 1e-4 : 5e-2;

        RANK_CHECK(train(cpu, dtypes[d], 0, here));
        RANK_CHECK(train(gpu, dtypes[d], 0, there));
        RANK_CHECK(train(gpu, dtypes[d], 0, again));
        RANK_CHECK(train(gpu, dtypes[d], 1, replayed));
        RANK_CHECK(memcmp(there, again, sizeof there) == 0);
        /* Replays drop other elements, the same in every run. */
        RANK_CHECK(train(gpu, dtypes[d], 1, again));
        RANK_CHECK(memcmp(replayed, again, sizeof again) == 0);
        RANK_CHECK(memcmp(there, again, WARM * sizeof *again) == 0);
        RANK_CHECK(again[STEPS - 1] < again[0] - 0.5);
        RANK_CHECK(there[STEPS - 1] < there[0] - 0.5);
        for (int i = 0; i < STEPS; i++) {
            if (!(fabs(here[i] - there[i]) <= limit))
                fprintf(stderr, "%s, step %d: %.6f on the cpu, %.6f there\n",
                        oar_dtype_name(dtypes[d]), i, here[i], there[i]);
            RANK_CHECK(fabs(here[i] - there[i]) <= limit);
        }
    }
    return 0;
}

static void a_gpt_trains_as_on_the_cpu(void **state)
{
    test_job c;

    test_job_start(&c, 1, trains, NULL, "gpt");
    test_job_expect(&c, 0, 0);
    test_job_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpt_trains_as_on_the_cpu),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
