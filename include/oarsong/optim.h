/* SPDX-License-Identifier: Apache-2.0 */
/* optim.h: optimizers. They hold references to the parameters they were given,
 * and skip one whose gradient was not written. A step happens whole or not at
 * all: when the data of any parameter is detached, with a gradient or without,
 * or a parameter is guarded (oar_tensor_guard), it is OAR_E_STATE. One thread
 * at a time. */
#ifndef OARSONG_OPTIM_H
#define OARSONG_OPTIM_H

#include <oarsong/module.h>

OAR_BEGIN_DECLS

typedef struct oar_optim oar_optim;

/* A learning rate that really is 0 is set later, by oar_optim_set_lr. */
typedef struct oar_sgd_opts {
    size_t size;
    double lr; /* 0 means 0.01 */
    double momentum;
    double weight_decay;
    int nesterov;
    int master_weights; /* see below */
} oar_sgd_opts;
OAR_OPTS_INIT(oar_sgd_opts);

/* Over the parameters of a module that are not frozen now, or over an array of
 * parameters; one that is there twice is stepped once. They are contiguous
 * floats. Half types are computed in f32 and rounded once; their state is f32.
 *
 * A half type loses steps that are small against the number itself. With
 * master_weights the optimizer keeps an f32 copy of each half parameter (the
 * state "master"), steps that, and rounds it to the parameter; gradients that
 * are not bound are made f32 (oar_tensor_set_grad_dtype). Where a number of the
 * parameter has been changed since the last step, the master takes it over.
 * Other dtypes have no master: oar_optim_state is NULL there. */
OAR_API oar_status oar_sgd_create(const oar_module *module,
                                  const oar_sgd_opts *opts, oar_optim **optim);
OAR_API oar_status oar_sgd_create_over(int count, oar_tensor *const *param,
                                       const oar_sgd_opts *opts,
                                       oar_optim **optim);

/* Casts a module as oar_module_cast does, and with master_weights makes the
 * numbers before, unrounded, the masters of what becomes a half: an optimizer
 * that is made after a cast starts from rounded ones. States and steps stay;
 * gradients go. OAR_E_STATE: a parameter that has a master; OAR_E_DTYPE: to or
 * from f64. On failure nothing has changed. */
OAR_API oar_status oar_optim_cast(oar_optim *optim, oar_module *module,
                                  oar_dtype dtype, int all);

typedef struct oar_adam_opts {
    size_t size;
    double lr;           /* 0 means 0.001 */
    double beta1;        /* 0 means 0.9 unless no_beta1 */
    double beta2;        /* 0 means 0.999 unless no_beta2 */
    double eps;          /* 0 means 1e-8 unless no_eps */
    double weight_decay; /* Adam: added to the gradient; AdamW: decoupled,
                            and 0 means 0.01 unless no_decay */
    int no_decay;        /* the weight decay really is 0 */
    int no_beta1, no_beta2, no_eps; /* so is this one */
    int amsgrad;        /* divides by the largest second moment so far */
    int master_weights; /* as in oar_sgd_opts */
} oar_adam_opts;
OAR_OPTS_INIT(oar_adam_opts);

OAR_API oar_status oar_adam_create(const oar_module *module,
                                   const oar_adam_opts *opts,
                                   oar_optim **optim);
OAR_API oar_status oar_adam_create_over(int count, oar_tensor *const *param,
                                        const oar_adam_opts *opts,
                                        oar_optim **optim);
OAR_API oar_status oar_adamw_create(const oar_module *module,
                                    const oar_adam_opts *opts,
                                    oar_optim **optim);
OAR_API oar_status oar_adamw_create_over(int count, oar_tensor *const *param,
                                         const oar_adam_opts *opts,
                                         oar_optim **optim);
OAR_API void oar_optim_destroy(oar_optim *optim); /* NULL is fine */

OAR_API oar_status oar_optim_step(oar_optim *optim);
OAR_API void oar_optim_zero_grad(oar_optim *optim);

/* Calls fn before each step changes a parameter or its state, also when a
 * scaler takes the step, and not when it skips it. If fn fails, the step ends
 * with that status, and nothing has changed. Hooks run in the order they were
 * added; oar_hook_remove removes one, before the optimizer is destroyed. fn
 * must not step or destroy the optimizer. */
typedef oar_status (*oar_optim_fn)(oar_optim *optim, void *arg);
OAR_API oar_status oar_optim_on_step(oar_optim *optim, oar_optim_fn fn,
                                     void *arg, oar_hook **hook);
/* Calls fn after each step, once all parameters and states are written. The
 * rest is as above. */
typedef void (*oar_optim_stepped_fn)(oar_optim *optim, void *arg);
OAR_API oar_status oar_optim_after_step(oar_optim *optim,
                                        oar_optim_stepped_fn fn, void *arg,
                                        oar_hook **hook);

/* For programs that must be able to finish a step that was interrupted. */
enum { OAR_OPTIM_CHUNK = 512 };

/* Calls fn before a step moves elements first .. first+count-1 of parameter
 * `index` and of its states: OAR_OPTIM_CHUNK elements or, at the end of a
 * parameter, less. Parameters are moved in their order, each from its beginning
 * on, so everything before has been moved. */
typedef void (*oar_optim_move_fn)(oar_optim *optim, int index, int64_t first,
                                  int64_t count, void *arg);
OAR_API oar_status oar_optim_on_move(oar_optim *optim, oar_optim_move_fn fn,
                                     void *arg, oar_hook **hook);
/* Moves elements of a parameter, from `first` on, by gradients that are given,
 * as its next step would, with the same bits. The number of steps stays. The
 * gradients' dtype is the parameter's, or f32 for a half type. OAR_E_ARG: no
 * such elements. */
OAR_API oar_status oar_optim_move(oar_optim *optim, int index, int64_t first,
                                  oar_span grad);

/* Parameter groups: group 0 is what it was made with; more are added with an
 * array of parameters that are in no group yet, and scales of the learning rate
 * and the weight decay (1: the same; 0 is allowed for the decay). On failure
 * nothing is added. The learning rate below is that of group 0. */
OAR_API oar_status oar_optim_add_group(oar_optim *optim, int count,
                                       oar_tensor *const *param,
                                       double lr_scale, double decay_scale);
OAR_API oar_status oar_optim_set_lr(oar_optim *optim, double lr);
OAR_API double oar_optim_lr(const oar_optim *optim);
OAR_API int oar_optim_groups(const oar_optim *optim);
/* Gives the scales of a group, and the group of a parameter. A number out of
 * range is OAR_E_ARG. */
OAR_API oar_status oar_optim_group_scales(const oar_optim *optim, int group,
                                          double *lr_scale,
                                          double *decay_scale);
OAR_API oar_status oar_optim_param_group(const oar_optim *optim, int index,
                                         int *group);

/* The rule of an optimizer and its numbers, with defaults filled in. What the
 * rule does not have is 0. */
typedef struct oar_optim_description {
    size_t size;
    const char *kind; /* "sgd", "adam" or "adamw"; never freed */
    double lr;        /* now */
    double weight_decay;
    double momentum; /* sgd */
    int nesterov;
    double beta1, beta2, eps; /* adam and adamw */
    int amsgrad;
    int master_weights;
} oar_optim_description;
OAR_OPTS_INIT(oar_optim_description);
OAR_API oar_status oar_optim_describe(const oar_optim *optim,
                                      oar_optim_description *description);

/* State: the number of steps, and per parameter the tensors it keeps, in the
 * order the parameters were given, each with a name ("momentum_buffer";
 * "exp_avg", "exp_avg_sq" and, with amsgrad, "max_exp_avg_sq"; last "master").
 * Borrowed; made with the optimizer, zero, or the parameter's numbers for the
 * last: they can be read and written at any time. index
 * counts parameters; slot counts from 0; NULL past the last. An optimizer with
 * the same description and groups that is given the same parameters, states
 * and steps goes on bitwise. */
OAR_API int64_t oar_optim_steps(const oar_optim *optim);
OAR_API oar_status oar_optim_set_steps(oar_optim *optim, int64_t steps);
/* The same for one parameter: those that were skipped have taken fewer. Setting
 * the steps of the optimizer sets them for all. */
OAR_API int64_t oar_optim_param_steps(const oar_optim *optim, int index);
OAR_API oar_status oar_optim_set_param_steps(oar_optim *optim, int index,
                                             int64_t steps);
OAR_API int oar_optim_params(const oar_optim *optim);
OAR_API oar_tensor *oar_optim_param(const oar_optim *optim, int index);
OAR_API const char *oar_optim_state_name(const oar_optim *optim, int slot);
OAR_API oar_tensor *oar_optim_state(oar_optim *optim, int index, int slot);

/* A parameter with all that an optimizer keeps of it. */
typedef struct oar_optim_entry {
    oar_tensor *param;
    int group;
    int64_t steps;
    oar_tensor *state[4]; /* by slot; NULL where oar_optim_state is */
} oar_optim_entry;

/* Replaces all parameters, for programs that cut theirs again. The rule, the
 * groups, the learning rate and the number of steps stay; gradients and states
 * are those of the new tensors. Adds references to the tensors and gives up
 * those to the old. OAR_E_ARG: a group that does not exist, a tensor twice, or
 * one that the optimizer could not have been made with; OAR_E_SHAPE,
 * OAR_E_DTYPE: a state that does not fit its parameter. On failure nothing has
 * changed. */
OAR_API oar_status oar_optim_replace(oar_optim *optim, int count,
                                     const oar_optim_entry *entry);

/* ---- schedules: the learning rate at a step, as a factor of the first ----
 * A schedule has no state: the step is all that a resumed run needs. */

typedef enum oar_lr_schedule_kind {
    OAR_LR_CONSTANT = 0,
    OAR_LR_LINEAR = 1, /* from 1, after the rise, to final at `steps` */
    OAR_LR_COSINE = 2, /* the same along half a cosine */
    OAR_LR_STEP = 3    /* times final after every `every` steps */
} oar_lr_schedule_kind;

typedef struct oar_lr_schedule {
    size_t size;
    oar_lr_schedule_kind kind;
    int64_t warmup; /* steps of a linear rise from 0 first */
    int64_t steps;  /* in all, the rise included; constant and step: may be 0,
                       which is no end */
    int64_t every;
    double final;
} oar_lr_schedule;
OAR_OPTS_INIT(oar_lr_schedule);

/* The factor at step 0, 1, ...; after the last it stays. NaN if malformed: a
 * number below zero, linear or cosine without steps after the rise, step
 * without `every`. */
OAR_API double oar_lr_schedule_at(const oar_lr_schedule *schedule,
                                  int64_t step);

/* ---- gradients as a whole ------------------------------------------------ */

/* Both are OAR_E_STATE for a guarded parameter, and for one that requires a
 * gradient, has none, and has no data either: then no gradient is changed. */

/* Cuts every element to [-limit, limit]. */
OAR_API oar_status oar_clip_grad_value(int count, oar_tensor *const *param,
                                       double limit);
/* Scales all gradients so that their common 2-norm is at most limit, and gives
 * the norm before that (norm may be NULL). Unwritten gradients do not count. If
 * the norm is not finite they stay as they are: look at norm. */
OAR_API oar_status oar_clip_grad_norm(int count, oar_tensor *const *param,
                                      double limit, double *norm);

/* What clipping is made of, for ranks that hold parts of the parameters
 * (parallel.h): the sum of the squares of all gradients, in f64, and the
 * gradients times a factor. A parameter that is given twice counts once. */
OAR_API oar_status oar_grad_squares(int count, oar_tensor *const *param,
                                    double *squares);
OAR_API oar_status oar_grad_scale(int count, oar_tensor *const *param,
                                  double factor);

/* Loss scaling for f16: multiply the loss by the scale, run backward, then step
 * through the scaler: it divides the gradients and steps, or, if one is not
 * finite, leaves them, skips the step and halves the scale; it doubles the
 * scale after `interval` good steps in a row. To clip, unscale first. */
typedef struct oar_scaler oar_scaler;
typedef struct oar_scaler_opts {
    size_t size;
    double scale;     /* 0 means 65536 */
    int64_t interval; /* 0 means 2000 */
} oar_scaler_opts;
OAR_OPTS_INIT(oar_scaler_opts);
OAR_API oar_status oar_scaler_create(const oar_scaler_opts *opts,
                                     oar_scaler **scaler);
OAR_API void oar_scaler_destroy(oar_scaler *scaler); /* NULL is fine */
OAR_API double oar_scaler_scale(const oar_scaler *scaler);
/* Returns the loss times the scale, recorded on the tape: what backward is to
 * run from. On a GPU the scale is read there, so that the host need not know
 * it, and a half loss becomes f32. NULL with the last error set if it fails. */
OAR_API oar_tensor *oar_scaler_loss(oar_tape *tape, oar_scaler *scaler,
                                    oar_tensor *loss);
/* Divides the gradients of the optimizer by the scale now, so that they can be
 * clipped; the step that follows does not divide again. If one is not finite it
 * leaves them, and that step will be skipped, whatever is done to them in
 * between. *finite says whether all were; may be NULL. Once for each step:
 * OAR_E_STATE for a second time before oar_scaler_step, oar_optim_step or
 * oar_optim_zero_grad. */
OAR_API oar_status oar_scaler_unscale(oar_scaler *scaler, oar_optim *optim,
                                      int *finite);
/* Says whether all gradients are finite, or were when this scaler unscaled
 * them, and changes nothing. Fails where oar_scaler_step would. */
OAR_API oar_status oar_scaler_found(const oar_scaler *scaler,
                                    const oar_optim *optim, int *finite);
/* Says whether this scaler has unscaled the gradients since the last step. */
OAR_API int oar_scaler_has_unscaled(const oar_scaler *scaler,
                                    const oar_optim *optim);
/* *stepped says whether the step was taken; may be NULL. OAR_E_STATE if another
 * scaler has unscaled the gradients. */
OAR_API oar_status oar_scaler_step(oar_scaler *scaler, oar_optim *optim,
                                   int *stepped);
/* The same for ranks that have different gradients and must decide alike: each
 * unscales, the ranks agree whether all found finite gradients (an all-reduce
 * with OAR_MIN), and that answer, not this rank's own, says whether to step
 * (oar_scaler_step_over in parallel.h does all of it).
 * OAR_E_STATE if this scaler has not unscaled the gradients, or if `finite` is
 * set and they were not finite here: then nothing has changed. */
OAR_API oar_status oar_scaler_step_if(oar_scaler *scaler, oar_optim *optim,
                                      int finite, int *stepped);

/* A step with what usually comes before it. Zero is a plain step. */
typedef struct oar_step_opts {
    size_t size;
    double clip; /* so that the norm of all gradients is at most this; 0: as
                    they are */
    oar_scaler *scaler; /* steps through it, as oar_scaler_step does */
    oar_tensor *norm;   /* one f32 on the parameters' device, which gets the
                           norm before clipping; NULL: nobody asks */
} oar_step_opts;
OAR_OPTS_INIT(oar_step_opts);
/* Steps as oar_clip_grad_norm and oar_optim_step do together. Where all
 * parameters are on a GPU the host does not wait, and the gradients themselves
 * stay as they are; a scaler is then kept there, too (take the loss from
 * oar_scaler_loss): whether a step was skipped, the scale and the numbers of
 * steps are known when they are asked for, which waits for the GPU. */
OAR_API oar_status oar_optim_step_with(oar_optim *optim,
                                       const oar_step_opts *opts);

/* Gives the scale and the number of good steps since it last changed; either
 * may be NULL. A scaler with the same interval that is set to both goes on
 * alike. The scale must be above 0 and fit an f32; good steps beyond the
 * interval double the scale at the next good step. */
OAR_API oar_status oar_scaler_read(const oar_scaler *scaler, double *scale,
                                   int64_t *good);
OAR_API oar_status oar_scaler_set(oar_scaler *scaler, double scale,
                                  int64_t good);

OAR_END_DECLS

#endif
