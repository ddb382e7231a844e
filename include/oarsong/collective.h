/* SPDX-License-Identifier: Apache-2.0 */
/* collective.h: operations that all ranks of a group take part in.
 *
 * Every rank of the group makes the same calls in the same order, with the same
 * kind, count, dtype, operator and root. That is checked on every operation:
 * ranks that disagree all get OAR_E_MISMATCH, with both sides and their call
 * sites named.
 *
 * opts may be NULL. work == NULL: the call returns when the result is in place
 * (device memory: when it is ordered on the stream). work != NULL: the call
 * returns at once and gives a handle; the buffers belong to the operation until
 * the handle is done. Operations on one group run in the order they were
 * posted.
 *
 * Each is a macro over a function `oar_..._at` that takes the call site.
 */
#ifndef OARSONG_COLLECTIVE_H
#define OARSONG_COLLECTIVE_H

#include <oarsong/group.h>
#include <oarsong/span.h>
#include <oarsong/work.h>

OAR_BEGIN_DECLS

/* What one call may say beyond its arguments. */
typedef struct oar_call_opts {
    size_t size;
    int64_t timeout_ms; /* 0: the group's; below 0: none */
    const char *label;  /* shown in errors and records; kept by pointer, so
                           make it a literal or let it outlive the group */
    void *stream;       /* device memory: the stream to order on */
    double weight;      /* this rank's, for OAR_WEIGHTED_MEAN; may be 0 as long
                           as not all are (then the result is 0) */
} oar_call_opts;
OAR_OPTS_INIT(oar_call_opts);

/* Returns on any rank only after all ranks have called it. */
#define oar_barrier(group, opts, work) \
    oar_barrier_at(OAR_HERE, group, opts, work)
OAR_API oar_status oar_barrier_at(const char *file, int line, oar_group *group,
                                  const oar_call_opts *opts, oar_work **work);

/* Leaves root's buf in every rank's buf. */
#define oar_broadcast(group, buf, root, opts, work) \
    oar_broadcast_at(OAR_HERE, group, buf, root, opts, work)
OAR_API oar_status oar_broadcast_at(const char *file, int line,
                                    oar_group *group, oar_span buf, int root,
                                    const oar_call_opts *opts, oar_work **work);

/* Leaves op over all ranks' buf in every rank's buf. The contributions are
 * combined in the order of ranks, so results are bitwise equal on all ranks,
 * from run to run, and whatever the memory kind or the algorithm. */
#define oar_all_reduce(group, buf, op, opts, work) \
    oar_all_reduce_at(OAR_HERE, group, buf, buf, op, opts, work)

/* The same out of place: op over all ranks' in, in every rank's out. in is left
 * as it is. in and out are either the same memory or apart. */
#define oar_all_reduce_into(group, in, out, op, opts, work) \
    oar_all_reduce_at(OAR_HERE, group, in, out, op, opts, work)
OAR_API oar_status oar_all_reduce_at(const char *file, int line,
                                     oar_group *group, oar_span in,
                                     oar_span out, oar_op op,
                                     const oar_call_opts *opts,
                                     oar_work **work);

OAR_END_DECLS

#endif
