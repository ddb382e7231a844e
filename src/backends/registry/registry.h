/* SPDX-License-Identifier: Apache-2.0 */
/* backends/registry/registry.h: which backends there are. */
#ifndef OARI_BACKENDS_REGISTRY_REGISTRY_H
#define OARI_BACKENDS_REGISTRY_REGISTRY_H

#include <oarsong/backend.h>

/* What a group is made over. */
typedef struct oari_choice {
    const char *name;            /* as the user said it; borrowed */
    const oar_backend_ops *host; /* for host memory */
    const oar_backend_ops *gpu;  /* for device memory; NULL: none, or */
    int any_gpu;                 /* whichever fits the ranks' GPUs */
    int bare;                    /* not even through the host */
    void **split; /* what an engine for GPUs made of its parent's; NULL once
                     it is taken. Or NULL */
} oari_choice;

/* Reads the name of a backend: "nccl" is short for "cpu:native,cuda:nccl", and
 * "hybrid" for "cpu:native,cuda:auto". NULL: as below. */
oar_status oari_backend_choose(const char *name, int ranks,
                               oari_choice *choice);

/* Whether such a pair works here, and what it can do. (hybrid.c) */
oar_status oari_hybrid_probe(const char *name, oar_backend_caps *caps);

/* hybrid.c: "hybrid" as others see it: only a name. */
extern const oar_backend_ops oari_backend_hybrid;

/* As below, with what it can do. */
oar_status oari_backend_probe(const char *name, const oar_backend_ops **ops,
                              oar_backend_caps *caps);
/* Whether it does nothing but device memory. */
int oari_backend_is_for_gpus(const oar_backend_caps *caps);

/* Finds a backend by name, or loads it by path (a name with a slash or ending
 * in .so), and checks that it works here. NULL: "native", or "self" for a group
 * of one. */
oar_status oari_backend_find(const char *name, int ranks,
                             const oar_backend_ops **backend);

/* The links that the core makes beside an engine that wants them. */
const oar_backend_ops *oari_backend_links(int ranks);

#endif
