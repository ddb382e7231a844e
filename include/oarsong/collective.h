/* SPDX-License-Identifier: Apache-2.0 */
/* collective.h: operations that all ranks of a group take part in.
 *
 * Every rank of the group makes the same calls in the same order, with the same
 * kind, count, dtype, operator, root and key. That is checked on every
 * operation: ranks that disagree all get OAR_E_MISMATCH, with both sides and
 * their call sites named.
 *
 * opts may be NULL. work == NULL: the call returns when the result is in place
 * (device memory: when it is ordered on the stream: what is put on the stream
 * later finds the result, what was put there before is done when the operation
 * begins). work != NULL: the call returns at once and gives a handle; the
 * buffers belong to the operation until the handle is done, or, on a stream,
 * until oar_work_order. Operations on one group may be done in another order
 * than they were posted, as their data allows; a barrier is done after
 * everything that was posted before it.
 *
 * Each is a macro over a function `oar_..._at` that takes the call site; it
 * evaluates each of its arguments once.
 *
 * Parts. In gather, scatter, all_gather, reduce_scatter and all_to_all the
 * larger buffer is a row of parts, one for each rank, in the order of ranks.
 * The plain calls have parts of one size; the calls in _v take their sizes, in
 * elements, as an array with one number for each rank (read during the call
 * only). Parts may be empty.
 *
 * In place. The smaller buffer may be this rank's own part of the larger one;
 * any other overlap is OAR_E_ARG. out is never an alias of in by itself.
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
    const char *label;  /* shown in errors and records; copied, where the
                           operation outlives the call */
    void *stream;       /* device memory: the stream to order on; NULL:
                           oar_stream_current() (device.h) */
    double weight;      /* this rank's, for OAR_WEIGHTED_MEAN; may be 0 as long
                           as not all are (then the result is 0) */
    int canonical;      /* 1: combine in the order of ranks whatever it costs,
                           so that the bits do not depend on the algorithm */
    int prepare;        /* 1: do not begin; oar_work_start does, as often as
                           is wanted, with the buffers given here */
    struct oar_message *message; /* a receive: what came, filled in when it
                                    is done; NULL: not wanted */
    int synchronous; /* a send: is done when the receive has taken it, with the
                        receive's status */
    uint64_t key;    /* a collective: what this call is about, as the caller
                        counts. It is compared like the count: ranks that give
                        different keys get OAR_E_MISMATCH, which names both
                        keys and labels. 0 is a key like any other, the one of
                        calls that give none. Messages ignore it */
    int at_most;     /* 1: a receive: the message may be smaller than the
                        buffer, whose beginning it fills. How large it was is
                        in *message. Host memory only */
} oar_call_opts;
OAR_OPTS_INIT(oar_call_opts);

/* Returns on any rank only after all ranks have called it. */
#define oar_barrier(group, opts, work) \
    oar_barrier_at(OAR_HERE, group, opts, work)
OAR_API oar_status oar_barrier_at(const char *file, int line, oar_group *group,
                                  const oar_call_opts *opts, oar_work **work);

/* A barrier that says who is missing: every rank waits until all have come; at
 * the timeout those that have come get OAR_E_TIMEOUT with all the missing ranks
 * named, and how they are: dead, stopped, running (docs/faults.md). If all that
 * are missing are gone it does not wait any longer: OAR_E_PEER. Slower than
 * oar_barrier, and only blocking. The group goes on: it is not a fault. */
#define oar_monitored_barrier(group, opts) \
    oar_monitored_barrier_at(OAR_HERE, group, opts)
OAR_API oar_status oar_monitored_barrier_at(const char *file, int line,
                                            oar_group *group,
                                            const oar_call_opts *opts);

/* Leaves root's buf in every rank's buf. */
#define oar_broadcast(group, buf, root, opts, work) \
    oar_broadcast_at(OAR_HERE, group, buf, root, opts, work)
OAR_API oar_status oar_broadcast_at(const char *file, int line,
                                    oar_group *group, oar_span buf, int root,
                                    const oar_call_opts *opts, oar_work **work);

/* Leaves op over all ranks' buf in every rank's buf. Results are bitwise equal
 * on all ranks and from run to run. Over shared memory, and everywhere with
 * `canonical`, the contributions are combined in the order of ranks, so the
 * bits depend on nothing else; over messages large sums are combined in the
 * order of the algorithm (docs/algorithms.md). Integers, min and max are the
 * same in any order. */
#define oar_all_reduce(group, buf, op, opts, work) \
    oar_all_reduce_at(OAR_HERE, group, buf, op, opts, work)
OAR_API oar_status oar_all_reduce_at(const char *file, int line,
                                     oar_group *group, oar_span buf,
                                     oar_reduce_op op,
                                     const oar_call_opts *opts,
                                     oar_work **work);

/* The same out of place: op over all ranks' in, in every rank's out. in is left
 * as it is. in and out are either the same memory or apart. */
#define oar_all_reduce_into(group, in, out, op, opts, work) \
    oar_all_reduce_into_at(OAR_HERE, group, in, out, op, opts, work)
OAR_API oar_status oar_all_reduce_into_at(const char *file, int line,
                                          oar_group *group, oar_span in,
                                          oar_span out, oar_reduce_op op,
                                          const oar_call_opts *opts,
                                          oar_work **work);

/* Leaves op over all ranks' in in root's out. The others give no out (an empty
 * span). On root in and out may be the same memory. */
#define oar_reduce(group, in, out, op, root, opts, work) \
    oar_reduce_at(OAR_HERE, group, in, out, op, root, opts, work)
OAR_API oar_status oar_reduce_at(const char *file, int line, oar_group *group,
                                 oar_span in, oar_span out, oar_reduce_op op,
                                 int root, const oar_call_opts *opts,
                                 oar_work **work);

/* Leaves every rank's in as its part of root's out. The others give no out, and
 * in the form in _v no counts (NULL). */
#define oar_gather(group, in, out, root, opts, work) \
    oar_gather_at(OAR_HERE, group, in, out, root, opts, work)
OAR_API oar_status oar_gather_at(const char *file, int line, oar_group *group,
                                 oar_span in, oar_span out, int root,
                                 const oar_call_opts *opts, oar_work **work);
#define oar_gather_v(group, in, out, counts, root, opts, work) \
    oar_gather_v_at(OAR_HERE, group, in, out, counts, root, opts, work)
OAR_API oar_status oar_gather_v_at(const char *file, int line, oar_group *group,
                                   oar_span in, oar_span out,
                                   const size_t *counts, int root,
                                   const oar_call_opts *opts, oar_work **work);

/* Leaves each rank's part of root's in in its out. The others give no in, and
 * in the form in _v no counts (NULL). */
#define oar_scatter(group, in, out, root, opts, work) \
    oar_scatter_at(OAR_HERE, group, in, out, root, opts, work)
OAR_API oar_status oar_scatter_at(const char *file, int line, oar_group *group,
                                  oar_span in, oar_span out, int root,
                                  const oar_call_opts *opts, oar_work **work);
#define oar_scatter_v(group, in, counts, out, root, opts, work) \
    oar_scatter_v_at(OAR_HERE, group, in, counts, out, root, opts, work)
OAR_API oar_status oar_scatter_v_at(const char *file, int line,
                                    oar_group *group, oar_span in,
                                    const size_t *counts, oar_span out,
                                    int root, const oar_call_opts *opts,
                                    oar_work **work);

/* Leaves every rank's in as its part of every rank's out. In the form in _v all
 * ranks give the same counts. */
#define oar_all_gather(group, in, out, opts, work) \
    oar_all_gather_v_at(OAR_HERE, group, in, out, NULL, opts, work)
#define oar_all_gather_v(group, in, out, counts, opts, work) \
    oar_all_gather_v_at(OAR_HERE, group, in, out, counts, opts, work)
OAR_API oar_status oar_all_gather_v_at(const char *file, int line,
                                       oar_group *group, oar_span in,
                                       oar_span out, const size_t *counts,
                                       const oar_call_opts *opts,
                                       oar_work **work);

/* Leaves this rank's part of op over all ranks' in in its out. Any count: the
 * plain form needs in.count = ranks * out.count, the form in _v takes parts of
 * any size, all ranks the same counts. out may be f32 where in is f16 or bf16,
 * on host memory and apart from in: the result is that of the same call on
 * inputs widened to f32, never rounded to a half. */
#define oar_reduce_scatter(group, in, out, op, opts, work) \
    oar_reduce_scatter_v_at(OAR_HERE, group, in, NULL, out, op, opts, work)
#define oar_reduce_scatter_v(group, in, counts, out, op, opts, work) \
    oar_reduce_scatter_v_at(OAR_HERE, group, in, counts, out, op, opts, work)
OAR_API oar_status oar_reduce_scatter_v_at(const char *file, int line,
                                           oar_group *group, oar_span in,
                                           const size_t *counts, oar_span out,
                                           oar_reduce_op op,
                                           const oar_call_opts *opts,
                                           oar_work **work);

/* Leaves part r of this rank's in as part (this rank) of rank r's out. In the
 * form in _v out_counts[r] here is in_counts[this rank] on rank r. in and out
 * are apart. */
#define oar_all_to_all(group, in, out, opts, work) \
    oar_all_to_all_v_at(OAR_HERE, group, in, NULL, out, NULL, opts, work)
#define oar_all_to_all_v(group, in, in_counts, out, out_counts, opts, work)    \
    oar_all_to_all_v_at(OAR_HERE, group, in, in_counts, out, out_counts, opts, \
                        work)
OAR_API oar_status oar_all_to_all_v_at(const char *file, int line,
                                       oar_group *group, oar_span in,
                                       const size_t *in_counts, oar_span out,
                                       const size_t *out_counts,
                                       const oar_call_opts *opts,
                                       oar_work **work);

/* ---- bytes whose number the others do not know --------------------------- */

/* Results are given as one block (oar_free it), once the operation is done; a
 * result pointer that is given must stay valid until then. A result without a
 * byte is NULL. sizes has room for one number for each rank. */

/* Every rank's bytes to all, packed in the order of ranks. */
#define oar_all_gather_bytes(group, data, bytes, all, sizes, opts, work)    \
    oar_all_gather_bytes_at(OAR_HERE, group, data, bytes, all, sizes, opts, \
                            work)
OAR_API oar_status oar_all_gather_bytes_at(const char *file, int line,
                                           oar_group *group, const void *data,
                                           size_t bytes, void **all,
                                           size_t *sizes,
                                           const oar_call_opts *opts,
                                           oar_work **work);

/* The same to root only; the others give no all and no sizes (NULL). */
#define oar_gather_bytes(group, data, bytes, root, all, sizes, opts, work)    \
    oar_gather_bytes_at(OAR_HERE, group, data, bytes, root, all, sizes, opts, \
                        work)
OAR_API oar_status oar_gather_bytes_at(const char *file, int line,
                                       oar_group *group, const void *data,
                                       size_t bytes, int root, void **all,
                                       size_t *sizes, const oar_call_opts *opts,
                                       oar_work **work);

/* Root's bytes to all: root reads *data and *bytes, the others are given them.
 */
#define oar_broadcast_bytes(group, data, bytes, root, opts, work) \
    oar_broadcast_bytes_at(OAR_HERE, group, data, bytes, root, opts, work)
OAR_API oar_status oar_broadcast_bytes_at(const char *file, int line,
                                          oar_group *group, void **data,
                                          size_t *bytes, int root,
                                          const oar_call_opts *opts,
                                          oar_work **work);

/* Root's all, packed in the order of ranks with these sizes, to each its own.
 * The others give no all and no sizes (NULL). */
#define oar_scatter_bytes(group, all, sizes, root, data, bytes, opts, work)    \
    oar_scatter_bytes_at(OAR_HERE, group, all, sizes, root, data, bytes, opts, \
                         work)
OAR_API oar_status oar_scatter_bytes_at(const char *file, int line,
                                        oar_group *group, const void *all,
                                        const size_t *sizes, int root,
                                        void **data, size_t *bytes,
                                        const oar_call_opts *opts,
                                        oar_work **work);

/* ---- many calls as one --------------------------------------------------- */

/* Between begin and end, calls of this thread on this group without a work
 * (collectives and messages, any mix, also sends and receives that wait for
 * each other) are only collected; they return OAR_OK if their arguments are
 * good. end starts them all; with a work it returns at once and gives one
 * handle for all, without one it returns when all are done. Batches do not
 * nest. A batch that was begun and whose thread ends first is dropped with the
 * group. */
OAR_API oar_status oar_batch_begin(oar_group *group);
OAR_API oar_status oar_batch_end(oar_group *group, oar_work **work);

/* 1 while this thread has a batch open on the group: what needs a result at
 * once cannot be called then. 0 for NULL. */
OAR_API int oar_batch_is_open(const oar_group *group);

OAR_END_DECLS

#endif
