/* SPDX-License-Identifier: Apache-2.0 */
/* syncbn.h: batch norm whose statistics are those of all ranks' batches
 * together. Count, mean and sum of squared distances are merged exactly, so
 * batches may differ in size, or be empty on some ranks; backward is that of
 * the joined batch. The gradients of weight and bias are this rank's own part
 * of a sum over all ranks, as everywhere: DDP averages them. Outside of
 * training the running statistics are used, and nothing is sent. Ranks that
 * have run out of input take part by oar_ddp_join (ddp.h). */
#ifndef OARSONG_SYNCBN_H
#define OARSONG_SYNCBN_H

#include <oarsong/group.h>
#include <oarsong/layers.h>

OAR_BEGIN_DECLS

/* As oar_batch_norm_create. All ranks call it. The layer has a group of its own
 * (a duplicate), so what it sends never meets anything else of the caller's. */
#define oar_sync_batch_norm_create(dims, channels, group, opts, module) \
    oar_sync_batch_norm_create_at(OAR_HERE, dims, channels, group, opts, module)
OAR_API oar_status oar_sync_batch_norm_create_at(
    const char *file, int line, int dims, int64_t channels, oar_group *group,
    const oar_batch_norm_opts *opts, oar_module **module);

/* Makes all batch norms of a module and below synchronised ones; parameters,
 * buffers and names stay what they are. All ranks call it, for the same model.
 * *converted (may be NULL) says how many there were. */
#define oar_sync_batch_norm_convert(module, group, converted) \
    oar_sync_batch_norm_convert_at(OAR_HERE, module, group, converted)
OAR_API oar_status oar_sync_batch_norm_convert_at(const char *file, int line,
                                                  oar_module *module,
                                                  oar_group *group,
                                                  int *converted);

OAR_END_DECLS

#endif
