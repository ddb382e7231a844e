/* SPDX-License-Identifier: Apache-2.0 */
/* ddp.h: data-parallel training: the same model on every rank, each with its
 * own part of the batch, gradients averaged while backward runs. */
#ifndef OARSONG_DDP_H
#define OARSONG_DDP_H

#include <oarsong/module.h>
#include <oarsong/optim.h>
#include <oarsong/reducer.h>

OAR_BEGIN_DECLS

typedef struct oar_ddp_opts {
    size_t size;
    size_t bucket_bytes; /* as of oar_reducer_opts: 0 means 25 MiB or less;
                            SIZE_MAX: one for each dtype */
    int no_broadcast;    /* do not take rank 0's parameters and buffers */
    size_t first_bucket_bytes;   /* the same; 0 means 1 MiB or less */
    int keep_order;              /* do not cut the buckets again after the first
                                    pass, in the order gradients came */
    int static_graph;            /* every pass reaches the same parameters: do
                                    not wait for those the first did not */
    int weighted;                /* mean by weights, see oar_ddp_weigh */
    int accumulate;              /* backward passes for one reduction; 0: 1 */
    const oar_reduce_hook *hook; /* another way to reduce; taken over */
    int check_every; /* passes between two looks whether the parameters of all
                        ranks are the same; 0 means 100, below 0 never */
    int broadcast_buffers; /* 1: rank 0's buffers to all before every forward
                              that is recorded */
    int canonical; /* add in the order of ranks whatever it costs: the bits do
                      not depend on buckets, backend or algorithm */
} oar_ddp_opts;
OAR_OPTS_INIT(oar_ddp_opts);

/* Wraps a module: the result is a module with the same parameters (the same
 * tensors, under "module." names). All ranks call it. They must agree on names,
 * shapes and dtypes of parameters and buffers, on which parameters are frozen,
 * and on the options: if not, every rank gets OAR_E_MISMATCH that names the
 * first that differs, and the rank. Parameters and buffers of rank 0 are copied
 * to all, unless told not to. OAR_E_STATE inside a batch on the group, and if
 * the module or a part of it is wrapped already.
 *
 * From then on a backward pass through the wrapper leaves the mean over all
 * ranks in the gradients: each gradient is a view of a bucket in shared memory,
 * and the bucket is reduced as soon as its last gradient is there, the last
 * bucket when backward ends. oar_backward returns when all are done. A
 * parameter that a pass did not reach on some rank counts as zero there; one
 * that no rank reached is left without a gradient, and named in the log the
 * first time. A gradient that is bound elsewhere later (by
 * oar_tensor_bind_grad, or by another wrapper) is copied into its bucket and
 * back. A view of a gradient that is held from before the buckets were cut
 * again keeps the old numbers.
 *
 * A pass is a backward on a tape that a forward of the wrapper was recorded on,
 * however many were; several tapes may be alive. A pass that comes from
 * elsewhere, through the inner module say, leaves this rank's own gradients.
 * Parameters that are frozen when the module is wrapped are not reduced; if one
 * is trained later, oar_backward is OAR_E_STATE: wrap again then.
 *
 * Takes inner's reference, also on failure. Borrows the group, which must live
 * as long as the module. */
#define oar_ddp_wrap(inner, group, opts, wrapped) \
    oar_ddp_wrap_at(OAR_HERE, inner, group, opts, wrapped)
OAR_API oar_status oar_ddp_wrap_at(const char *file, int line,
                                   oar_module *inner, oar_group *group,
                                   const oar_ddp_opts *opts,
                                   oar_module **wrapped);

/* On a GPU (the parameters are there when the module is wrapped, and the group
 * has an engine for it): buckets are there, and oar_backward returns when the
 * means are ordered on the thread's current stream. A difference of replicas is
 * found four passes after it was looked for. OAR_E_DEVICE: the parameters are
 * on several devices, or were moved after wrapping. */

/* PowerSGD for the parameters of a module that is going to be wrapped. */
OAR_API oar_status oar_hook_power_sgd_for(const oar_module *module,
                                          const oar_power_sgd_opts *opts,
                                          oar_reduce_hook *hook);

/* Between these, backward passes leave this rank's own gradients, added up; the
 * first pass after them reduces the sum. May be nested. */
OAR_API oar_status oar_ddp_no_sync_begin(oar_module *wrapped);
OAR_API oar_status oar_ddp_no_sync_end(oar_module *wrapped);

/* With `weighted`: what this rank's gradient counts in the next pass and those
 * after it: the samples or tokens its loss is the mean of. 1 at first. */
OAR_API oar_status oar_ddp_weigh(oar_module *wrapped, double weight);

/* For inputs that do not last equally long on all ranks; needs `weighted`. All
 * ranks call it before each backward pass. *active is how many have input; 0:
 * all are done. A rank with input must then run its forward and backward. One
 * without takes part in the pass of the others inside this call, with no
 * gradient but what it has added up since the last reduction, and gets theirs:
 * step the optimizer as usual, so that parameters stay the same everywhere. In
 * synchronised batch norms (syncbn.h) it counts as a batch of no rows, running
 * statistics included. With broadcast_buffers, they are those of the first rank
 * that has input. */
#define oar_ddp_join(wrapped, has_input, active) \
    oar_ddp_join_at(OAR_HERE, wrapped, has_input, active)
OAR_API oar_status oar_ddp_join_at(const char *file, int line,
                                   oar_module *wrapped, int has_input,
                                   int *active);

/* What the last backward pass did; one that did not reduce: 0 bytes, 0 s. */
typedef struct oar_ddp_stats {
    size_t size;
    uint64_t reduced_bytes; /* of gradients */
    uint64_t copied_bytes;  /* of gradients into and out of buckets; 0 unless
                               one was bound elsewhere after wrapping */
    int buckets;
    double communication_s; /* while at least one bucket was under way */
    double exposed_s;       /* of that, after backward itself had ended */
    int64_t passes;         /* that reduced, so far */
    int unused;             /* parameters that no rank reached */
} oar_ddp_stats;
OAR_OPTS_INIT(oar_ddp_stats);
OAR_API oar_status oar_ddp_read_stats(const oar_module *wrapped,
                                      oar_ddp_stats *stats);

/* Compares the parameters of all ranks now. OAR_E_MISMATCH names the first rank
 * and parameter that differ from rank 0's. */
#define oar_ddp_check_replicas(wrapped) \
    oar_ddp_check_replicas_at(OAR_HERE, wrapped)
OAR_API oar_status oar_ddp_check_replicas_at(const char *file, int line,
                                             oar_module *wrapped);

OAR_END_DECLS

#endif
