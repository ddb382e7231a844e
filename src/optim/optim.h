/* SPDX-License-Identifier: Apache-2.0 */
/* optim/optim.h: what all optimizers have in common: parameters in groups, a
 * learning rate, state per parameter, and a rule that moves a stretch of
 * numbers by their gradients. */
#ifndef OARI_OPTIM_OPTIM_H
#define OARI_OPTIM_OPTIM_H

#include <oarsong/optim.h>

#include "tensor/cuda/step_job.h"
#include "tensor/hook.h"

/* States of a rule; behind them the master weights. */
enum { OARI_OPTIM_STATES = 3, OARI_OPTIM_SLOTS = OARI_OPTIM_STATES + 1 };

typedef struct oari_optim_group {
    double lr_scale, decay_scale;
} oari_optim_group;

typedef struct oari_optim_param {
    oar_tensor *tensor;                  /* a reference */
    oar_tensor *state[OARI_OPTIM_SLOTS]; /* what the kind asked for, then the
                                            master; NULL past the last */
    oar_tensor *master;                  /* one of the states, f32; or NULL */
    int64_t steps;                       /* taken so far */
    int group;
} oari_optim_param;

/* The numbers that a rule moves: `count` of them, all f32 or all f64. */
typedef struct oari_param_chunk {
    oar_dtype dtype;
    int64_t count;
    void *param;
    const void *grad;
    void *state[OARI_OPTIM_STATES];
} oari_param_chunk;

/* How far a rule moves them, with the scales of the parameter's group. */
typedef struct oari_step_rates {
    double lr, decay;
    int64_t step; /* this one; the first is 1 */
} oari_step_rates;

typedef struct oari_optim_class {
    const char *name, *step_name; /* "adam", and "adam step" for errors */
    const char *state_name[OARI_OPTIM_STATES]; /* NULL past the last */
    void (*move)(const oar_optim *optim, const oari_step_rates *pace,
                 const oari_param_chunk *stretch);
    /* Gives the same rule for kernels, and its numbers. */
    oari_step_rule (*factors)(const oar_optim *optim,
                              const oari_step_rates *pace,
                              oari_step_factors *factors);
    /* Fills in what only this kind has. */
    void (*describe)(const oar_optim *optim, oar_optim_description *d);
} oari_optim_class;

struct oar_optim {
    const oari_optim_class *kind;
    double lr, weight_decay;
    int master_weights; /* of half parameters */
    int64_t steps;
    int params, groups;
    int64_t param_room, group_room;
    oari_optim_param *param;
    oari_optim_group *group;
    const oar_scaler *unscaled_by; /* since the last step; NULL: none */
    int was_finite;                /* what it found */
    oari_hooks before_step, after_step, on_move;
    struct oari_optim_gpu *gpu; /* NULL: no step on a GPU yet */
    union {
        oar_sgd_opts sgd;
        oar_adam_opts adam;
    } of;
};

/* What all rules are made with. */
typedef struct oari_optim_rule {
    double lr, weight_decay;
    int master_weights;
} oari_optim_rule;

/* Makes an optimizer over these parameters, each once, in group 0. Its state is
 * made with it, of each parameter's shape, zero: f64 for f64, else f32; and the
 * master weights. */
oar_status oari_optim_make(const oari_optim_class *kind,
                           const oari_optim_rule *rule, int count,
                           oar_tensor *const *param, oar_optim **optim);

/* Returns a parameter's numbers in f32, beside it; NULL: it failed. */
oar_tensor *oari_optim_make_master(const oar_tensor *param);
/* Gives a half parameter that has none its master, whose reference it takes,
 * and a gradient in f32. */
oar_status oari_optim_set_master(oar_optim *optim, oari_optim_param *p,
                                 oar_tensor *master);

/* Returns a parameter's number; -1: it is none of the optimizer's. */
int oari_optim_find(const oar_optim *optim, const oar_tensor *param);

/* Gives up a parameter's references. */
void oari_optim_drop_param(oari_optim_param *p);

/* Returns how many states the rule keeps for each parameter. */
int oari_optim_states(const oar_optim *optim);

/* Gives an array of a module's parameters that are trained, in order. The
 * caller frees it. */
oar_status oari_optim_list(const oar_module *module, int *count,
                           oar_tensor ***param);

/* Check one parameter, number `index` of those that the call `what` was given:
 * that it is not guarded, and that its data is there. OAR_E_STATE. */
oar_status oari_check_guard(const char *what, int index,
                            const oar_tensor *param);
oar_status oari_check_present(const char *what, int index,
                              const oar_tensor *param);

/* Checks that every parameter has its data and is not guarded, and that what a
 * step or, if `scales`, a scaler would write can be written, else
 * OAR_E_STATE. */
oar_status oari_optim_ready(const oar_optim *optim, int scales);

/* A step in two halves. The first runs the hooks and checks as
 * oari_optim_ready does; the second moves the parameters and runs the hooks
 * that follow a step. It cannot fail on the cpu. Parameters on a GPU are moved
 * by gradients whose norm is at most clip, unless that is 0, and norm gets the
 * norm before (optim_gpu.h); the gradients are then those of a loss that the
 * scaler, unless NULL, has scaled. */
oar_status oari_optim_begin_step(oar_optim *optim);
oar_status oari_optim_finish_step(oar_optim *optim, double clip,
                                  oar_tensor *norm, oar_scaler *scaler);

/* Gives a scaler's numbers in memory of that GPU, where the scaler lives from
 * then on; the calls of the host wait for them. */
struct oari_scaler_numbers;
oar_status oari_scaler_on_gpu(oar_scaler *scaler, oar_device device,
                              struct oari_scaler_numbers **numbers,
                              int64_t *interval);

#endif
