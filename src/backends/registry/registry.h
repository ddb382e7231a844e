/* SPDX-License-Identifier: Apache-2.0 */
/* backends/registry/registry.h: which backends there are. */
#ifndef OARI_BACKENDS_REGISTRY_REGISTRY_H
#define OARI_BACKENDS_REGISTRY_REGISTRY_H

#include "link/link.h"

/* The backends of a group. */
typedef struct oari_choice {
    const char *name;            /* as the user gave it; borrowed */
    const oar_backend_ops *host; /* for host memory */
    const oar_backend_ops *gpu;  /* for device memory; NULL: none, or */
    int any_gpu;                 /* the one that fits the ranks' GPUs */
    int bare;                    /* device memory not even through the host */
    void **split; /* what the parent's engine for GPUs made by a split; NULL
                     once it is taken. Or NULL */
} oari_choice;

/* Reads the name of a backend: "nccl" is short for "cpu:native,cuda:nccl", and
 * "hybrid" for "cpu:native,cuda:auto". NULL: as for oari_backend_find. */
oar_status oari_backend_choose(const char *name, int ranks,
                               oari_choice *choice);

/* Finds a backend as oari_backend_find does; gives what it can do. */
oar_status oari_backend_probe(const char *name, const oar_backend_ops **ops,
                              oar_backend_caps *caps);
/* Whether a backend is for device memory only. */
int oari_backend_is_for_gpus(const oar_backend_caps *caps);

/* Finds a backend by name, or loads it by path (a name with a slash or ending
 * in .so), and checks that it works here. NULL: "native", or "self" for a group
 * of one. */
oar_status oari_backend_find(const char *name, int ranks,
                             const oar_backend_ops **backend);

/* Gives the links that the core makes beside an engine that wants them. */
oar_status oari_backend_links(int ranks, const oar_backend_ops **links);

/* Gives the backend of this tree that has that role. OAR_E_UNAVAILABLE if the
 * library was built without it. */
oar_status oari_backend_in_role(oari_role role, const oari_backend **backend);

/* Returns what a backend of this tree has beyond its public table; an empty row
 * for any other. Never NULL. */
const oari_backend *oari_backend_in_tree(const oar_backend_ops *ops);

/* Opens a backend, of this tree or not. */
oar_status oari_backend_open(const oar_backend_ops *ops, void *self,
                             const oari_open *with);

#endif
