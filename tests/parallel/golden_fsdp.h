/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/golden_fsdp.h: ten steps of AdamW with clipping by FSDP, in f64,
 * compared with what two ranks of PyTorch's FSDP2 took (make_fsdp.py), on any
 * device. For tests, one file each. */
#ifndef OARI_TESTS_GOLDEN_FSDP_H
#define OARI_TESTS_GOLDEN_FSDP_H

#include "support/ranks.h"

#include <oarsong/oarsong.h>

#include "golden/golden.h"

enum {
    FSDP_STEPS = 10,
    BATCH = 12,
    CONTEXT = 6,
    VOCABULARY = 13,
    LARGEST = 1024 /* elements of a parameter */
};

/* One process of PyTorch is 7e-12 away from two of its own. */
static const double tolerance = 1e-10;

typedef struct golden_run {
    const char *kind; /* of make_fsdp.py: "plain" or "tied" */
    oar_hold hold;
    oar_zero_stage stage;
    int uneven; /* later ranks have fewer rows, and weights */
    int by_row; /* each row has a pass of its own; the last one reduces */
    int steps;  /* 0: all of them */
    oar_device device;
} golden_run;

static const golden *record_of(const golden_run *t, const char *when,
                               const char *name)
{
    char full[128];

    snprintf(full, sizeof full, "%s.%s", when, name);
    return golden_find(t->kind, full);
}

static int is_near(double got, double want)
{
    return fabs(got - want) <= tolerance * (1 + fabs(want));
}

/* ---- the model ----------------------------------------------------------- */

/* The model of make_fsdp.py, with the numbers that it starts from. */
static oar_status make_gpt(const golden_run *t, oar_module **gpt)
{
    char name[128];

    CHECK_OK(oar_gpt_create(OAR_OPTS(oar_gpt_opts, .vocabulary = VOCABULARY,
                                     .context = CONTEXT, .width = 8,
                                     .layers = 3, .heads = 2, .dtype = OAR_F64,
                                     .tied = strcmp(t->kind, "tied") == 0),
                            gpt));
    for (int i = 0; i < oar_module_params(*gpt); i++) {
        const golden *start;

        CHECK_OK(oar_module_param_name(*gpt, i, name, sizeof name));
        start = record_of(t, "start", name);
        CHECK(start != NULL);
        CHECK_OK(oar_tensor_write(oar_module_param(*gpt, i), OAR_F64,
                                  start->number));
    }
    if (t->device.kind != OAR_CPU)
        CHECK_OK(oar_module_to(*gpt, t->device));
    return OAR_OK;
}

/* Every parameter is what PyTorch has after the last step. */
static oar_status compare_params(const golden_run *t, oar_module *wrapped)
{
    double number[LARGEST];
    char name[128];

    for (int i = 0; i < oar_module_params(wrapped); i++) {
        const char *inner = name + strlen("module.");
        const golden *end;

        CHECK_OK(oar_module_param_name(wrapped, i, name, sizeof name));
        end = record_of(t, "end", inner);
        CHECK(end != NULL && end->count <= LARGEST);
        CHECK_OK(oar_fsdp_read_param(wrapped, inner, OAR_F64, number));
        for (size_t k = 0; k < end->count; k++)
            CHECK(is_near(number[k], end->number[k]));
    }
    return OAR_OK;
}

/* ---- training ------------------------------------------------------------ */

/* The first row of a rank in the batch; that of rank `ranks` is the end. */
static int first_row(const golden_run *t, int rank, int ranks)
{
    if (!t->uneven || rank == 0 || rank == ranks)
        return rank * BATCH / ranks;
    return BATCH - (ranks - rank); /* one row for each but rank 0 */
}

static oar_tensor *numbers_there(const golden_run *t, oar_tape *tape,
                                 oar_shape shape, const int64_t *number)
{
    oar_tensor *here = oar_from_data(tape, OAR_I64, shape, number);

    return t->device.kind == OAR_CPU ? here : oar_to(tape, here, t->device);
}

static oar_tensor *loss_of(const golden_run *t, oar_tape *tape, oar_module *net,
                           int step, int first, int rows)
{
    int64_t x[BATCH * CONTEXT], y[BATCH * CONTEXT];

    for (int k = 0; k < rows * CONTEXT; k++) {
        int64_t i = (step * BATCH + first) * CONTEXT + k;

        x[k] = (i * 7919 + 13) % 1009 % VOCABULARY;
        y[k] = (i * 31 + 7) % 101 % VOCABULARY;
    }
    return oar_cross_entropy(
        tape,
        oar_forward(tape, net,
                    numbers_there(t, tape, OAR_SHAPE(rows, CONTEXT), x)),
        numbers_there(t, tape, OAR_SHAPE(rows * CONTEXT), y));
}

/* Runs this rank's rows of a step; *sum is the sum of their losses. */
static oar_status run_passes(const golden_run *t, oar_group *g,
                             oar_module *wrapped, oar_tape *tape, int step,
                             double *sum)
{
    int rank = oar_group_rank(g), ranks = oar_group_size(g);
    int first = first_row(t, rank, ranks);
    int rows = first_row(t, rank + 1, ranks) - first;
    int each = t->by_row ? 1 : rows;

    *sum = 0;
    if (t->uneven)
        CHECK_OK(oar_shards_weigh(oar_fsdp_shards(wrapped), rows));
    for (int row = 0; row < rows; row += each) {
        int silent = row + each < rows;
        oar_tensor *loss =
            oar_scale(tape, loss_of(t, tape, wrapped, step, first + row, each),
                      (double)each / rows);
        double value;

        if (silent)
            CHECK_OK(oar_fsdp_no_sync_begin(wrapped));
        CHECK_OK(oar_backward(tape, loss));
        if (silent)
            CHECK_OK(oar_fsdp_no_sync_end(wrapped));
        CHECK_OK(oar_tensor_item(loss, &value));
        *sum += value * rows;
        oar_tape_reset(tape);
    }
    return OAR_OK;
}

static oar_status train_step(const golden_run *t, oar_group *g,
                             oar_module *wrapped, oar_tape *tape,
                             oar_optim *adam, int step)
{
    double loss, norm;

    CHECK_OK(run_passes(t, g, wrapped, tape, step, &loss));
    CHECK_OK(
        oar_all_reduce(g, oar_span_of(&loss, 1, OAR_F64), OAR_SUM, NULL, NULL));
    CHECK_OK(oar_fsdp_clip_grad_norm(wrapped, 1.0, &norm));
    CHECK_OK(oar_optim_step(adam));
    oar_optim_zero_grad(adam);
    CHECK(is_near(loss / BATCH, golden_find(t->kind, "loss")->number[step]));
    CHECK(is_near(norm, golden_find(t->kind, "norm")->number[step]));
    return OAR_OK;
}

static oar_status train_like_torch(oar_group *g, void *arg)
{
    const golden_run *t = arg;
    int steps = t->steps > 0 ? t->steps : FSDP_STEPS;
    oar_tensor *const *param;
    oar_module *net;
    oar_optim *adam;
    oar_tape *tape;
    int count;

    CHECK_OK(make_gpt(t, &net));
    CHECK_OK(oar_fsdp_wrap(net, g,
                           OAR_OPTS(oar_fsdp_opts, .hold = t->hold,
                                    .stage = t->stage, .weighted = t->uneven,
                                    .least_bytes = 1),
                           &net));
    param = oar_fsdp_params(net, &count);
    CHECK_OK(oar_adamw_create_over(count, param,
                                   OAR_OPTS(oar_adam_opts, .lr = 1e-2), &adam));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 0; step < steps; step++)
        CHECK_OK(train_step(t, g, net, tape, adam, step));
    if (steps == FSDP_STEPS)
        CHECK_OK(compare_params(t, net));
    oar_tape_destroy(tape);
    oar_optim_destroy(adam);
    oar_module_release(net);
    return OAR_OK;
}

#endif
