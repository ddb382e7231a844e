/* SPDX-License-Identifier: Apache-2.0 */
/* comm/group/group.h: how a group is made. */
#ifndef OARI_COMM_GROUP_GROUP_H
#define OARI_COMM_GROUP_GROUP_H

#include "comm/comm.h"

/* Gives the options with every default filled in, from the environment or our
 * own. */
oar_status oari_group_settings(const oar_group_opts *opts,
                               oar_group_opts *full);

/* Sets the algorithm to a copy of text (NULL: none), which *algorithm owns. */
oar_status oari_settings_own(const char *text, oar_group_opts *settings,
                             char **algorithm);

/* Replaces the settings on which all ranks must agree by those of rank 0, and
 * fills in the rules. */
oar_status oari_settings_agree(oar_store *store, const char *name, int rank,
                               int ranks, int64_t rendezvous_ms,
                               oar_group_opts *settings, char **algorithm,
                               oari_rules *rules);
/* Fails unless there can be such a rank of such a group. */
oar_status oari_group_check_world(int rank, int size);

/* Makes a group over backends, with settings as above. rendezvous_ms: within
 * which the ranks must meet. world: of a group of sim, else NULL. */
oar_status oari_group_open(const oari_choice *choice,
                           const oar_backend_env *env,
                           const oar_group_opts *settings,
                           int64_t rendezvous_ms, struct oari_world *world,
                           oar_group **group);

/* Opens the way for device memory through the host, if the group may use it. */
oar_status oari_hosted_open(oar_group *group);
/* Does that as the last step of making a group; destroys it if that fails. */
oar_status oari_group_complete(oar_group *made, oar_group **group);

/* What a group made of a parent's ranks is to be. */
typedef struct oari_child_spec {
    const char *own;   /* what its name adds to the parent's */
    const int *member; /* ranks of the parent, ascending, this one among them */
    int count;
    oar_store *store;             /* where they meet; NULL: the parent's */
    int64_t rendezvous_ms;        /* within which they must */
    void **split;                 /* as in oari_choice */
    int bare;                     /* without a way for device memory */
    int64_t timeout_ms, stall_ms; /* 0: the parent's */
    int loose;                    /* messages fail alone */
} oari_child_spec;
/* Makes such a group. All its members call it with the same arguments. */
oar_status oari_group_child(oar_group *parent, const oari_child_spec *spec,
                            oar_group **group);

/* Sets which ranks of the parent the group's are: member, by rank. */
oar_status oari_group_place(oar_group *group, const oar_group *parent,
                            const int *member);

/* For tests: called before each collective of oar_window_create, from 0. */
extern void (*oari_window_hook)(const oar_group *group, int step);

/* ---- open_engine.c ------------------------------------------------------- */

/* Opens an external engine beside the links. */
oar_status oari_external_open(oar_group *group, oari_external *external,
                              const oari_open *with);
/* Opens what the choice says for device memory, in a group that is ready but
 * for that. */
oar_status oari_gpu_open(oar_group *group, const oari_choice *choice,
                         const oar_group_opts *settings, int64_t rendezvous_ms);

/* Returns whether device memory may go through the host. */
int oari_group_goes_through_host(const oar_group *group);

/* Gives the engine that fits the GPUs of all ranks (hybrid.c). All ranks call
 * it and get the same. */
oar_status oari_hybrid_settle(oar_group *group, int64_t rendezvous_ms,
                              const oar_backend_ops **ops);

#endif
