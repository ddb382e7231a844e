/* SPDX-License-Identifier: Apache-2.0 */
/* nccl.h: what there is of NCCL besides the ordinary calls.
 *
 * A group on the backend "nccl" (or "hybrid", or "cpu:X,cuda:nccl") takes spans
 * on a GPU in every call of collective.h and p2p.h; nothing of this header is
 * needed for that. Here is what a program that knows NCCL may want: whether it
 * is there, ids, its numbers for our operators and dtypes, and the communicator
 * and the stream that a group works with.
 *
 * Where NCCL's arithmetic is not the host's: f16 and bf16 are rounded at every
 * step, an average multiplies every contribution with 1/n, and min and max of
 * floats leave a NaN out unless all are. All ranks get the same bits.
 *
 * NCCL is found at run time: libnccl.so.2, or what OARSONG_NCCL_LIBRARY names.
 * Handles are void *: an ncclComm_t, a cudaStream_t. Any thread may call these.
 */
#ifndef OARSONG_NCCL_H
#define OARSONG_NCCL_H

#include <oarsong/group.h>
#include <oarsong/span.h>

OAR_BEGIN_DECLS

/* ---- the library --------------------------------------------------------- */

/* OAR_OK if NCCL and a GPU are there; OAR_E_UNAVAILABLE with what is missing if
 * not. */
OAR_API oar_status oar_nccl_available(void);

/* NCCL's own version code: 22809 is 2.28.9. */
OAR_API oar_status oar_nccl_version(int *version);

/* A new id for a communicator. One rank makes it, all ranks give the same to
 * oar_nccl_create or as oar_group_opts.nccl_id; that process has to stay until
 * all have joined. Ranks that give none need none: ours travels through the
 * store. */
enum { OAR_NCCL_ID_BYTES = 128 };
OAR_API oar_status oar_nccl_unique_id(unsigned char id[128]);

/* NCCL's number for an operator (ncclRedOp_t) or a dtype (ncclDataType_t).
 * OAR_E_UNSUPPORTED with a sentence if it has none: bitwise operators, the
 * weighted mean, a premultiplied sum (which NCCL makes for each factor), 16-bit
 * integers. A truth value is an 8-bit one to NCCL, whose sum is max. */
OAR_API oar_status oar_nccl_op(oar_reduce_op_kind op, oar_dtype dtype,
                               int *number);
OAR_API oar_status oar_nccl_dtype(oar_dtype dtype, int *number);

/* ---- groups -------------------------------------------------------------- */

/* A group of `size` ranks that meet at "host:port" (rank 0 serves a store
 * there): oar_group_create_tcp with the backend "nccl", or "hybrid" (NCCL, or
 * "ipc" where ranks share a GPU). Bytes and host memory go over our own links,
 * device memory to the GPUs. id: OAR_NCCL_ID_BYTES that all ranks give alike,
 * or NULL. A group of one needs no address. opts as ever, or NULL; its stream
 * is the one to work on instead of one of the group's own, its device the GPU
 * of this rank. */
OAR_API oar_status oar_nccl_create(int rank, int size, const char *address,
                                   const void *id, const oar_group_opts *opts,
                                   oar_group **group);
OAR_API oar_status oar_hybrid_create(int rank, int size, const char *address,
                                     const void *id, const oar_group_opts *opts,
                                     oar_group **group);

/* The group's ncclComm_t; NULL if it has none, or has ended. Borrowed: it is
 * the group's to end. It is non-blocking: NCCL takes a call when the last one
 * has been put on its stream (ncclCommGetAsyncError), so use it while nothing
 * is under way on the group (oar_nccl_synchronize), and on all ranks alike. */
OAR_API void *oar_nccl_communicator(const oar_group *group);

/* The stream that NCCL works on: the caller's, if one was given, else a
 * non-blocking one of high priority. NULL if the group has none. Borrowed. */
OAR_API void *oar_nccl_stream(const oar_group *group);

/* Waits on the host until everything that was posted on the group's GPUs has
 * run. Returns the group's fault as soon as there is one, and OAR_E_TIMEOUT
 * after the group's timeout: it never waits for a peer that is gone.
 * OAR_E_UNSUPPORTED if the group has no NCCL. */
OAR_API oar_status oar_nccl_synchronize(oar_group *group);

OAR_END_DECLS

#endif
