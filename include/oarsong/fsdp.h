/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp.h: data-parallel training with parameters, gradients and the optimizer's
 * state spread over the ranks (fully sharded data parallel, ZeRO).
 *
 * A module is cut into units, blocks for example. A unit's parameters are whole
 * only while it runs; where all ranks are on one host they are mapped by all,
 * and nothing is gathered (shards.h, oar_hold).
 *
 *     oar_fsdp_wrap(gpt, world, NULL, &model);
 *     params = oar_fsdp_params(model, &count);
 *     oar_adamw_create_over(count, params, NULL, &adam);
 *     for (...) {
 *         oar_backward(tape, loss of oar_forward(tape, model, x));
 *         oar_optim_step(adam);
 *         oar_optim_zero_grad(adam);
 *         oar_tape_reset(tape);
 *     }
 */
#ifndef OARSONG_FSDP_H
#define OARSONG_FSDP_H

#include <oarsong/module.h>
#include <oarsong/optim.h>
#include <oarsong/shards.h>

OAR_BEGIN_DECLS

/* How long parameters that were gathered stay whole. To keep them until they
 * are stepped is OAR_ZERO_STAGE_2. */
typedef enum oar_fsdp_keep {
    OAR_FSDP_KEEP_OUTERMOST = 0, /* those of the outermost unit from forward
                                    until the end of backward, others while
                                    their unit runs */
    OAR_FSDP_KEEP_NOTHING = 1,   /* all only while their unit runs */
    OAR_FSDP_KEEP_PASS = 2       /* all from forward until their backward; a
                                    part that is recomputed is gathered again */
} oar_fsdp_keep;

typedef struct oar_fsdp_opts {
    size_t size;
    const char *const *units;   /* which modules are units: dotted names, in
                                   which a part may be "*" ("blocks.*"), or
                                   "class:NAME"; ends with NULL. NULL: the
                                   children of one class that hold most, of all
                                   modules. The wrapped module is always one */
    size_t least_bytes;         /* a smaller unit joins the one around it; 0
                                   means 64 KiB */
    const char *const *ignored; /* parameters that are left alone: dotted names
                                   as of units, of parameters or of modules,
                                   for all that they hold; ends with NULL */
    oar_zero_stage stage;       /* what is spread: see shards.h */
    oar_hold hold;              /* where whole parameters are: see shards.h */
    oar_fsdp_keep keep;         /* if they are gathered */
    int prefetch;               /* as of oar_shards_opts */
    oar_group *replicas;        /* hybrid sharding: the ranks that have the same
                                   shards in other groups; borrowed */
    int weighted;               /* a weighted mean: oar_shards_weigh */
    int canonical;  /* add in the order of ranks whatever it costs */
    int no_scatter; /* do not take rank 0's parameters and buffers: every rank
                       has the same numbers */
    int mixed;      /* mixed precision: 1 if the next three count */
    oar_dtype param_dtype;  /* of parameters and their gradients in forward and
                               backward; inputs that are floats are cast to it.
                               Shards, which the optimizer steps, keep the dtype
                               of the model: they are the master weights */
    oar_dtype reduce_dtype; /* in which gradients are added over the ranks:
                               OAR_F32, or param_dtype */
    oar_dtype output_dtype; /* the result of the module is cast to it */
    int host_state; /* of a module on a GPU, with OAR_HOLD_HOST: 1 if the
                       shards, and so the optimizer, are in memory of the host
                     */
} oar_fsdp_opts;
OAR_OPTS_INIT(oar_fsdp_opts);

/* Wraps a module: the result is a module with the same parameters (the same
 * tensors, under "module." names). All ranks call it, with the same model and
 * options: if not, every rank gets OAR_E_MISMATCH. The numbers are rank 0's. Of
 * a model that is lazy (oar_lazy) every rank makes its own shards, and nothing
 * is sent.
 *
 * From then on a parameter can be read while its unit runs (mapped: always),
 * and its gradient never: both are in the shards, flat tensors that optimizers
 * take (oar_fsdp_params). An optimizer over the module's own parameters is
 * OAR_E_STATE. A parameter that several units use belongs to the smallest unit
 * around them all. After oar_backward the shards have the mean over all ranks,
 * added to what is there; a parameter that no rank reached has none. Step, and
 * go on: the next forward has the new numbers. A step between a forward and its
 * backward is OAR_E_STATE in that backward.
 *
 * Parameters that are `ignored` stay as they are, each rank with numbers,
 * gradients and a dtype of its own; nothing of them is sent, and they are among
 * neither the shards nor, in a checkpoint, the state of the module. Lazy ones
 * are made. Optimizers take them as they are.
 *
 * All ranks run the same units in the same order, or get OAR_E_MISMATCH that
 * names both units; where parameters are mapped, ranks may take different
 * branches, and one may evaluate alone once all have begun a forward after a
 * step, and until one of them steps again.
 *
 * OAR_E_STATE: the module or a part of it is wrapped already, or a parameter
 * has no numbers and is not lazy. OAR_E_UNSUPPORTED: a parameter is strided, or
 * shares its memory with another. OAR_E_NOT_FOUND: a pattern in units or
 * ignored fits nothing. OAR_E_DTYPE: with `mixed`, a dtype that is not
 * possible, or a parameter that is neither f32 nor f64. A failure in a pass on
 * one rank ends the pass on all; where parameters are mapped, only once it has
 * gradients.
 *
 * A module on a GPU is wrapped as it is there (shards.h says what each hold
 * is); its parameters must be on one, else OAR_E_DEVICE.
 *
 * Takes inner's reference, also on failure. Borrows the groups, which must live
 * as long as the module. */
#define oar_fsdp_wrap(inner, group, opts, wrapped) \
    oar_fsdp_wrap_at(OAR_HERE, inner, group, opts, wrapped)
OAR_API oar_status oar_fsdp_wrap_at(const char *file, int line,
                                    oar_module *inner, oar_group *group,
                                    const oar_fsdp_opts *opts,
                                    oar_module **wrapped);

/* Returns what this rank steps: flat tensors, borrowed; NULL if the module is
 * not wrapped. */
OAR_API oar_tensor *const *oar_fsdp_params(const oar_module *wrapped,
                                           int *count);
/* Returns the shards, for questions, weights and figures; array i is parameter
 * i of oar_fsdp_param_index. Borrowed; NULL if the module is not wrapped. */
OAR_API oar_shards *oar_fsdp_shards(const oar_module *wrapped);
/* Returns which parameter of the wrapped module (oar_module_param) an array of
 * the shards is; the first place of one that is used in several. -1 out of
 * range. */
OAR_API int oar_fsdp_param_index(const oar_module *wrapped, int array);

OAR_API int oar_fsdp_units(const oar_module *wrapped); /* 0: not wrapped */
/* The dotted name of a unit; "" for the whole module. NULL out of range. */
OAR_API const char *oar_fsdp_unit_name(const oar_module *wrapped, int unit);

/* Make a unit (by its dotted name; NULL: all) whole until reshard: to look at
 * parameters between passes. All ranks; mapped: any rank, while none steps. */
#define oar_fsdp_unshard(wrapped, unit) \
    oar_fsdp_unshard_at(OAR_HERE, wrapped, unit)
OAR_API oar_status oar_fsdp_unshard_at(const char *file, int line,
                                       oar_module *wrapped, const char *unit);
#define oar_fsdp_reshard(wrapped, unit) \
    oar_fsdp_reshard_at(OAR_HERE, wrapped, unit)
OAR_API oar_status oar_fsdp_reshard_at(const char *file, int line,
                                       oar_module *wrapped, const char *unit);

/* Copies a whole parameter out, row by row, converted to dtype. The name is
 * that of the module inside ("blocks.0.up.weight"). data has room for all of
 * it; NULL: this rank only takes part. The numbers are those of the shards,
 * also with mixed precision; of no other parameter is anything sent. All ranks
 * call it with the same name; mapped without mixed precision: any rank. Of a
 * parameter that is ignored, it copies this rank's. OAR_E_NOT_FOUND: no
 * parameter has this name. */
#define oar_fsdp_read_param(wrapped, name, dtype, data) \
    oar_fsdp_read_param_at(OAR_HERE, wrapped, name, dtype, data)
OAR_API oar_status oar_fsdp_read_param_at(const char *file, int line,
                                          oar_module *wrapped, const char *name,
                                          oar_dtype dtype, void *data);
/* Replaces a parameter by numbers of that dtype, row by row, converted. All
 * ranks call it with the same numbers, those of replicas as well: each writes
 * its own part, and nothing of them is sent. The next forward or read has them.
 * Of a parameter that is ignored, this rank's is replaced at once.
 * OAR_E_NOT_FOUND; OAR_E_STATE while a unit that was gathered is whole, then
 * nothing is written. */
#define oar_fsdp_write_param(wrapped, name, dtype, data) \
    oar_fsdp_write_param_at(OAR_HERE, wrapped, name, dtype, data)
OAR_API oar_status oar_fsdp_write_param_at(const char *file, int line,
                                           oar_module *wrapped,
                                           const char *name, oar_dtype dtype,
                                           const void *data);
/* Replaces every parameter and buffer by that of the same name in a module that
 * is not spread, converting. strict: both must have the same names. The first
 * that does not fit is named, and then nothing is written: OAR_E_ARG for a
 * name, OAR_E_SHAPE, OAR_E_UNSUPPORTED for a strided one, OAR_E_STATE for one
 * without numbers, or while a unit that was gathered is whole. Of a lazy
 * parameter only this rank's part is made. A wrapper of DDP is looked through.
 * All ranks call it with the same numbers, as for oar_fsdp_write_param. */
#define oar_fsdp_load(wrapped, from, strict) \
    oar_fsdp_load_at(OAR_HERE, wrapped, from, strict)
OAR_API oar_status oar_fsdp_load_at(const char *file, int line,
                                    oar_module *wrapped, const oar_module *from,
                                    int strict);

/* Between these, backward passes send nothing: the gradients of units stay
 * whole on this rank and add up; the first pass after them reduces the sum. May
 * be nested. */
OAR_API oar_status oar_fsdp_no_sync_begin(oar_module *wrapped);
OAR_API oar_status oar_fsdp_no_sync_end(oar_module *wrapped);

/* For inputs that do not last equally long on all ranks; needs `weighted`. All
 * ranks call it before each backward pass, those of replicas too. *active is
 * how many have input; 0: all are done. A rank with input must then run its
 * forward and one backward. One without takes part in the pass of the others
 * inside this call, with weight 0, or with what it has added up between
 * oar_fsdp_no_sync_begin and end: step the optimizer as usual.
 *
 * OAR_E_STATE: the pass after the last join was not run; the shards are broken
 * then, on all ranks. OAR_E_UNSUPPORTED: the model has synchronised batch
 * norms. */
#define oar_fsdp_join(wrapped, has_input, active) \
    oar_fsdp_join_at(OAR_HERE, wrapped, has_input, active)
OAR_API oar_status oar_fsdp_join_at(const char *file, int line,
                                    oar_module *wrapped, int has_input,
                                    int *active);

/* ---- going on without a rank that is lost -------------------------------- */

/* Keeps the optimizer's state in memory that all ranks map, as the parameters
 * are, so that the others can go on if a rank dies (oar_fsdp_regroup). Once,
 * before training or between two steps, for the optimizer that steps
 * oar_fsdp_params. The state's tensors stay what they were; beyond their memory
 * it takes a few pages a rank.
 *
 * From then on all ranks wait for each other before a step of the optimizer
 * changes anything: all take the step, or none does. So every rank steps, also
 * one that has no shards. Borrows the optimizer: it must live as long as the
 * module is used, and must not be stepped once the module is released.
 *
 * All ranks call it. OAR_E_UNSUPPORTED: parameters are not mapped
 * (OAR_HOLD_MAPPED), there are replicas, or the model has synchronised batch
 * norms. OAR_E_DEVICE: they are on a GPU. OAR_E_ARG: the optimizer has a
 * parameter that is no shard of the module. OAR_E_STATE: it was called before.
 */
#define oar_fsdp_keep_state(wrapped, optim) \
    oar_fsdp_keep_state_at(OAR_HERE, wrapped, optim)
OAR_API oar_status oar_fsdp_keep_state_at(const char *file, int line,
                                          oar_module *wrapped,
                                          oar_optim *optim);

/* Goes on with the ranks of a group that oar_group_shrink has made of the
 * module's: they take over the shards of those that are lost, the optimizer's
 * state included. Nothing is read from a file. All ranks of the new group call
 * it; module, parameters and optimizer are the same objects afterwards.
 *
 *     if (status == OAR_E_PEER) {
 *         oar_tape_reset(tape);
 *         oar_group_shrink(group, NULL, &smaller);
 *         oar_fsdp_regroup(model, smaller, adam);
 *         oar_group_destroy(group);
 *         step = oar_optim_steps(adam);              what was not stepped is
 *     }                                              done again
 *
 * The numbers are those after the last step that a rank has begun: all ranks
 * had reached it, and where one died in the middle, the others finish it.
 * Gradients are dropped, also those that were added up without communication,
 * whose oar_fsdp_no_sync_begin has ended. Buffers are each rank's own. What
 * oar_fsdp_params, oar_fsdp_shards and oar_optim_state gave before is no longer
 * valid; a state for checkpoints (oar_state) that was made of them has to be
 * made again. The new group is borrowed instead of the old one, which must live
 * until then.
 *
 * OAR_E_DATA: a rank died while parameters were being loaded or written, or the
 * state was not kept: load a checkpoint. OAR_E_DEVICE: the module is on a GPU:
 * load one there, too. OAR_E_STATE: the old group has lost nobody, or is the
 * one that is given. OAR_E_ARG: a rank of the new group is not in the old one,
 * or the optimizer is not the one whose state is kept. On failure nothing has
 * changed: if another rank died meanwhile, shrink the new group and regroup
 * again. */
#define oar_fsdp_regroup(wrapped, group, optim) \
    oar_fsdp_regroup_at(OAR_HERE, wrapped, group, optim)
OAR_API oar_status oar_fsdp_regroup_at(const char *file, int line,
                                       oar_module *wrapped, oar_group *group,
                                       oar_optim *optim);

/* Scales the gradients of all shards of all ranks so that their 2-norm is at
 * most limit; norm (may be NULL) is the one before, the same on all ranks. All
 * ranks. */
#define oar_fsdp_clip_grad_norm(wrapped, limit, norm) \
    oar_fsdp_clip_grad_norm_at(OAR_HERE, wrapped, limit, norm)
OAR_API oar_status oar_fsdp_clip_grad_norm_at(const char *file, int line,
                                              oar_module *wrapped, double limit,
                                              double *norm);

/* oar_scaler_step that all ranks take, or none: oar_scaler_step_over (see
 * parallel.h) the group of the wrapped module. All ranks. */
#define oar_fsdp_scaler_step(wrapped, scaler, optim, stepped) \
    oar_fsdp_scaler_step_at(OAR_HERE, wrapped, scaler, optim, stepped)
OAR_API oar_status oar_fsdp_scaler_step_at(const char *file, int line,
                                           oar_module *wrapped,
                                           oar_scaler *scaler, oar_optim *optim,
                                           int *stepped);

OAR_END_DECLS

#endif
