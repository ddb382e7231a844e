/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.h: collectives of tensors on a GPU that leave their input alone.
 *
 * Each gives a new tensor on the same device, row by row, with the result; the
 * caller owns one reference. It is ordered on the thread's current stream of
 * that device (device.h): what is put there later finds it, and the host does
 * not wait. In place, and for everything else, the calls of collective.h take a
 * GPU tensor's span as they take any other.
 *
 * A tensor that is not on a GPU is OAR_E_DEVICE. A group without a way for GPU
 * memory is OAR_E_UNSUPPORTED, and the text names both ways out: a backend with
 * an engine for GPUs, and OARSONG_ENABLE_GPU_FALLBACK=1.
 */
#ifndef OARSONG_GPU_H
#define OARSONG_GPU_H

#include <oarsong/collective.h>
#include <oarsong/device.h>
#include <oarsong/tensor.h>

OAR_BEGIN_DECLS

/* op over all ranks' tensors, which have one shape and dtype. opts as for
 * oar_all_reduce; its stream, if any, is used instead of the current one. */
#define oar_gpu_all_reduce(group, tensor, op, opts, out) \
    oar_gpu_all_reduce_at(OAR_HERE, group, tensor, op, opts, out)
OAR_API oar_status oar_gpu_all_reduce_at(
    const char *file, int line, oar_group *group, const oar_tensor *tensor,
    oar_reduce_op op, const oar_call_opts *opts, oar_tensor **out);

/* Root's tensor, on every rank; the others' give shape and dtype. */
#define oar_gpu_broadcast(group, tensor, root, opts, out) \
    oar_gpu_broadcast_at(OAR_HERE, group, tensor, root, opts, out)
OAR_API oar_status oar_gpu_broadcast_at(const char *file, int line,
                                        oar_group *group,
                                        const oar_tensor *tensor, int root,
                                        const oar_call_opts *opts,
                                        oar_tensor **out);

/* Gives all ranks the algorithms that rank 0 has chosen by measuring for
 * products so far. Without it each rank chooses for itself, among algorithms
 * that gave the same bits when they were measured (docs/gpu.md). Kinds of
 * products that rank 0 has not had stay as they are, and so do all where a rank
 * has another version of cuBLASLt or another kind of GPU. Collective; for a
 * group that takes host memory. Call it after the first step, before a replay
 * records: what is recorded stays as it is. *changed (may be NULL): how many
 * choices of this rank are others now. */
OAR_API oar_status oar_gpu_share_choices(oar_group *group, int *changed);

OAR_END_DECLS

#endif
