/* SPDX-License-Identifier: Apache-2.0 */
/* support/piped_gpt.h: a small GPT with dropout that a pipeline trains, or one
 * process, or DDP, always on the same batches: to compare them, and to save
 * with one what another goes on with. */
#ifndef TESTS_SUPPORT_PIPED_GPT_H
#define TESTS_SUPPORT_PIPED_GPT_H

#include <oarsong/checkpoint.h>
#include <oarsong/models.h>
#include <oarsong/pipeline.h>

enum {
    PIPED_WORDS = 11,
    PIPED_TIME = 4,
    PIPED_ROWS = 7,
    PIPED_LAYERS = 6,
    PIPED_PARTS = PIPED_LAYERS + 2,
    PIPED_STAGES = 8 /* at most */
};

typedef struct piped_kind {
    int plain; /* no pipeline: the whole model on every rank, with DDP if there
                  are several */
    oar_schedule_kind kind;
    int micro;
    int tied;
    int recompute; /* in the model's blocks */
    int nearly;    /* piped_gpt_same allows for other orders of sums */
    oar_dtype dtype;
    oar_device device;
} piped_kind;

/* What a rank has of a run. */
typedef struct piped_gpt {
    piped_kind is;
    oar_schedule *schedule;
    int stages;
    int index[PIPED_STAGES];
    oar_module *stage[PIPED_STAGES]; /* plain: the model */
    oar_module *ddp;                 /* its wrapper; or NULL */
    int is_first, is_last;           /* it has the first, the last stage */
    oar_pipeline *pipe;
    oar_optim *optim;
    oar_state *state;
    int64_t step;
    double loss; /* of the last step */
} piped_gpt;

/* Returns the options of the model. */
oar_gpt_opts piped_gpt_opts(const piped_kind *k);

/* Makes this rank's part of a run, at step 0, in parts of nearly as many layers
 * each. */
oar_status piped_gpt_make(piped_gpt *p, oar_group *g, const piped_kind *k);
void piped_gpt_drop(piped_gpt *p);

/* Trains to a step, each with a batch of its own. */
oar_status piped_gpt_train(piped_gpt *p, int64_t end);

/* Runs a step of the pipeline, without the optimizer, and returns what the call
 * does. */
oar_status piped_gpt_step(piped_gpt *p);

/* Returns whether all parameters of this rank, and the optimizer's moments, are
 * bit for bit those of the same names of a plain run; prints one that is not.
 * With tied parameters, nearly the same is enough. */
int piped_gpt_same(const piped_gpt *p, const piped_gpt *whole);

/* The loss of a micro-batch: an oar_loss_fn. */
oar_tensor *piped_gpt_loss(void *arg, oar_tape *tape, int micro,
                           oar_tensor *const *out, int targets,
                           oar_tensor *const *target);

#endif
