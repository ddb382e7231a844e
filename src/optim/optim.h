/* SPDX-License-Identifier: Apache-2.0 */
/* optim/optim.h: what all optimizers have in common: parameters, a learning
 * rate, and a step for one parameter at a time. */
#ifndef OARI_OPTIM_OPTIM_H
#define OARI_OPTIM_OPTIM_H

#include <oarsong/optim.h>

enum { OARI_OPTIM_STATES = 2 };

typedef struct oari_optim_param {
    oar_tensor *tensor;                   /* a reference */
    oar_tensor *state[OARI_OPTIM_STATES]; /* what the kind asked for */
    int64_t steps;                        /* taken so far */
} oari_optim_param;

typedef struct oari_optim_class {
    const char *name;
    /* Moves one parameter, contiguous, f32 or f64, by its gradient. */
    void (*step)(oar_optim *optim, oari_optim_param *param);
} oari_optim_class;

struct oar_optim {
    const oari_optim_class *kind;
    double lr;
    int params;
    oari_optim_param *param;
    oar_sgd_opts sgd;
};

/* An optimizer over these parameters, each once, with `states` tensors of each
 * one's shape and dtype, zeroed. */
oar_status oari_optim_make(const oari_optim_class *kind, double lr, int states,
                           int count, oar_tensor *const *param,
                           oar_optim **optim);

/* All parameters of a module, in order: gives an array to be freed. */
oar_status oari_optim_list(const oar_module *module, int *count,
                           oar_tensor ***param);

#endif
