/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/reducer/agreement.h: checks that all ranks have the same model, the
 * same arrays or the same options, and that a call went well on all of them. */
#ifndef OARI_PARALLEL_REDUCER_AGREEMENT_H
#define OARI_PARALLEL_REDUCER_AGREEMENT_H

#include <oarsong/collective.h>
#include <oarsong/module.h>

/* A rank's options, and its items, each of which it can describe in a line. */
typedef struct oari_manifest {
    const char *options;
    const char *does, *has; /* for messages: "wrap", "models" */
    int64_t items;
    const void *of;
    void (*describe)(const void *of, int64_t index, char *line, size_t bytes);
} oari_manifest;

/* Compares a manifest with rank 0's. If any rank differs, all ranks return
 * OAR_E_MISMATCH with the first difference and the first rank that has it. */
oar_status oari_agree(const oari_manifest *manifest, oar_group *group);

/* Tells all ranks how this rank's part of a call went. Returns OAR_OK if every
 * status was; else, on a rank that failed, its own error, and on the others the
 * status of the lowest rank that failed, with a sentence that names it. call:
 * for that sentence, such as "shards_create". */
oar_status oari_agree_on_status(oar_group *group, oar_status status,
                                const char *call);

/* Compares the options, and the names, shapes and dtypes of parameters and
 * buffers, and which are frozen, as oari_agree does. */
oar_status oari_agree_on_model(const oar_module *module, const char *options,
                               oar_group *group);

/* Copies rank 0's parameters and buffers to all ranks. */
oar_status oari_broadcast_state(const oar_module *module, oar_group *group);

#endif
