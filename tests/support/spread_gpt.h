/* SPDX-License-Identifier: Apache-2.0 */
/* support/spread_gpt.h: a small GPT that DDP trains, and FSDP with some
 * options, to compare what comes out; and what tests of shards have in
 * common. */
#ifndef TESTS_SUPPORT_SPREAD_GPT_H
#define TESTS_SUPPORT_SPREAD_GPT_H

#include <oarsong/fsdp.h>
#include <oarsong/models.h>

enum {
    SPREAD_VOCABULARY = 19,
    SPREAD_CONTEXT = 7,
    SPREAD_ROWS = 3,
    SPREAD_STEPS = 4
};

typedef struct spread_gpt {
    oar_fsdp_opts opts;
    oar_gpt_opts gpt;
    int passes; /* for each step; below 0: without communication but the last */
    int freezes;
    int columns; /* ranks that share the shards; the others have the same ones.
                    0: all */
    int other_order; /* sums have another than DDP's: the model is of f64, and
                        nearly the same is enough */
    int gathers;     /* of units in the last step, if above 0 */
} spread_gpt;

/* Returns a case of three blocks in f32 that adds in the order of ranks, each
 * block a unit. */
spread_gpt spread_gpt_usual(void);

/* Allows for sums in another order than DDP's. */
void spread_gpt_allow_other_order(spread_gpt *c);

oar_status spread_gpt_make(const spread_gpt *c, oar_module **gpt);

/* Runs forward and backward of a pass, whose tokens are this rank's, and resets
 * the tape. */
oar_status spread_gpt_pass(oar_module *model, oar_tape *tape, int rank,
                           int pass);

/* Trains by DDP and by FSDP, and compares all parameters. Gradients of ignored
 * parameters are averaged by the test. An oar_rank_fn; arg: a spread_gpt. */
oar_status spread_gpt_train_both(oar_group *g, void *arg);

/* Does that on every backend on which the hold is possible. */
void spread_gpt_train_everywhere(spread_gpt *c, int ranks);

/* Returns whether a backend can hold arrays so: only some have memory in
 * common. */
int hold_is_possible(const char *backend, oar_hold hold, int ranks);

/* Makes a linear layer in a group of one, and runs so many passes of it under
 * FSDP, undoing all: for fail_each_allocation. */
oar_status fsdp_train_alone(const oar_fsdp_opts *opts, int passes);

#endif
