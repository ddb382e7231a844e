/* SPDX-License-Identifier: Apache-2.0 */
/* optim.h: optimizers. They hold references to the parameters they were given,
 * and skip one whose gradient was not written. One thread at a time. */
#ifndef OARSONG_OPTIM_H
#define OARSONG_OPTIM_H

#include <oarsong/module.h>

OAR_BEGIN_DECLS

typedef struct oar_optim oar_optim;

typedef struct oar_sgd_opts {
    size_t size;
    double lr; /* 0 means 0.01 */
    double momentum;
    double weight_decay;
    int nesterov;
} oar_sgd_opts;
OAR_OPTS_INIT(oar_sgd_opts);

/* Over all parameters of a module, or over an array of them; one that is there
 * twice is stepped once. They are contiguous, f32 or f64. */
OAR_API oar_status oar_sgd_create(const oar_module *module,
                                  const oar_sgd_opts *opts, oar_optim **optim);
OAR_API oar_status oar_sgd_create_over(int count, oar_tensor *const *param,
                                       const oar_sgd_opts *opts,
                                       oar_optim **optim);
OAR_API void oar_optim_destroy(oar_optim *optim); /* NULL is fine */

OAR_API oar_status oar_optim_step(oar_optim *optim);
OAR_API void oar_optim_zero_grad(oar_optim *optim);
OAR_API oar_status oar_optim_set_lr(oar_optim *optim, double lr);
OAR_API double oar_optim_lr(const oar_optim *optim);

OAR_END_DECLS

#endif
