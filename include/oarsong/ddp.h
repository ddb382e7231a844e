/* SPDX-License-Identifier: Apache-2.0 */
/* ddp.h: data-parallel training: the same model on every rank, each with its
 * own part of the batch, gradients averaged while backward runs. */
#ifndef OARSONG_DDP_H
#define OARSONG_DDP_H

#include <oarsong/group.h>
#include <oarsong/module.h>

OAR_BEGIN_DECLS

typedef struct oar_ddp_opts {
    size_t size;
    size_t bucket_bytes; /* 0: all gradients of one dtype in one bucket */
    int no_broadcast;    /* do not take rank 0's parameters and buffers */
} oar_ddp_opts;
OAR_OPTS_INIT(oar_ddp_opts);

/* Wraps a module: the result is a module with the same parameters (the same
 * tensors, under "module." names). All ranks call it. They must agree on names,
 * shapes and dtypes: if not, every rank gets OAR_E_MISMATCH that names the
 * first parameter that differs. Parameters and buffers of rank 0 are copied to
 * all, unless told not to.
 *
 * From then on a backward pass through the wrapper leaves the mean over all
 * ranks in the gradients: each gradient is a view of a bucket in shared memory,
 * and the bucket is reduced as soon as its last gradient is there. oar_backward
 * returns when all are done. A parameter that a pass did not reach on some rank
 * counts as zero there. A gradient that is bound elsewhere later (by
 * oar_tensor_bind_grad, or by another wrapper) is copied into its bucket and
 * back.
 *
 * Takes inner's reference, also on failure. Borrows the group, which must live
 * as long as the module. */
OAR_API oar_status oar_ddp_wrap(oar_module *inner, oar_group *group,
                                const oar_ddp_opts *opts, oar_module **wrapped);

/* What the last backward pass moved. */
typedef struct oar_ddp_stats {
    size_t size;
    uint64_t reduced_bytes; /* of gradients */
    uint64_t copied_bytes;  /* of gradients into and out of buckets; 0 unless
                               one was bound elsewhere after wrapping */
    int buckets;
} oar_ddp_stats;
OAR_OPTS_INIT(oar_ddp_stats);
OAR_API oar_status oar_ddp_read_stats(const oar_module *wrapped,
                                      oar_ddp_stats *stats);

OAR_END_DECLS

#endif
