/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/reducer/agreement.h: checks that all ranks have the same model or
 * the same arrays. */
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

/* Compares the options, and the names, shapes and dtypes of parameters and
 * buffers, and which are frozen, as oari_agree does. */
oar_status oari_agree_on_model(const oar_module *module, const char *options,
                               oar_group *group);

/* Copies rank 0's parameters and buffers to all ranks. */
oar_status oari_broadcast_state(const oar_module *module, oar_group *group);

#endif
