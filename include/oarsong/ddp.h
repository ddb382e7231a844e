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
    int keep_order;              /* do not cut the buckets anew after the first
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
    int sharded; /* reduce-scatter instead: gradients are the mean only in this
                    rank's pieces, see zero.h; without hooks */
} oar_ddp_opts;
OAR_OPTS_INIT(oar_ddp_opts);

/* Wraps a module: the result is a module with the same parameters (the same
 * tensors, under "module." names). All ranks call it. They must agree on names,
 * shapes and dtypes: if not, every rank gets OAR_E_MISMATCH that names the
 * first parameter that differs. Parameters and buffers of rank 0 are copied to
 * all, unless told not to. OAR_E_STATE inside a batch on the group.
 *
 * From then on a backward pass through the wrapper leaves the mean over all
 * ranks in the gradients: each gradient is a view of a bucket in shared memory,
 * and the bucket is reduced as soon as its last gradient is there, the last
 * bucket when backward ends. oar_backward returns when all are done. A
 * parameter that a pass did not reach on some rank counts as zero there; one
 * that no rank reached is left without a gradient, and named in the log the
 * first time. A gradient that is bound elsewhere later (by
 * oar_tensor_bind_grad, or by another wrapper) is copied into its bucket and
 * back. A view of a gradient that is held from before the buckets were cut anew
 * keeps the old numbers.
 *
 * Takes inner's reference, also on failure. Borrows the group, which must live
 * as long as the module. */
OAR_API oar_status oar_ddp_wrap(oar_module *inner, oar_group *group,
                                const oar_ddp_opts *opts, oar_module **wrapped);

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
 * ranks call it before each step. *active is how many have input; 0: all are
 * done. A rank without input takes part in the step of the others inside this
 * call, with no gradient of its own, and gets theirs: step the optimizer as
 * usual, so that parameters stay the same everywhere. */
OAR_API oar_status oar_ddp_join(oar_module *wrapped, int has_input,
                                int *active);

/* What the last backward pass did. */
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
OAR_API oar_status oar_ddp_check_replicas(oar_module *wrapped);

OAR_END_DECLS

#endif
