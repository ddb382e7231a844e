/* SPDX-License-Identifier: Apache-2.0 */
/* comm/group/group.h: making a group, and ending it. */
#ifndef OARI_COMM_GROUP_GROUP_H
#define OARI_COMM_GROUP_GROUP_H

#include "comm/comm.h"

/* Options with every default filled in, from the environment and our own. */
oar_status oari_group_settings(const oar_group_opts *opts,
                               oar_group_opts *full);

/* Names the algorithm by a copy of text (NULL: none), which *algorithm owns. */
oar_status oari_settings_own(const char *text, oar_group_opts *settings,
                             char **algorithm);

/* Puts rank 0's in place of those on which all ranks must agree, and fills in
 * the rules. */
oar_status oari_settings_agree(oar_store *store, const char *name, int rank,
                               int ranks, int64_t meet_ms,
                               oar_group_opts *settings, char **algorithm,
                               oari_rules *rules);
/* Whether there can be such a rank of such a group. */
oar_status oari_group_check_world(int rank, int size);

/* Makes a group over backends, with settings as above. meet_ms: for the ranks
 * to meet. world: sim's, else NULL. */
oar_status oari_group_open(const oari_choice *choice,
                           const oar_backend_env *env,
                           const oar_group_opts *settings, int64_t meet_ms,
                           struct oari_world *world, oar_group **group);

/* Opens the way for device memory through the host, if the group may use it;
 * and the same as the last step of making a group, which is gone if it fails.
 */
oar_status oari_hosted_open(oar_group *group);
oar_status oari_group_complete(oar_group *made, oar_group **group);

/* Makes a group of these ranks of the parent (member, ascending, mine among
 * them), which all of them call with the same. own: what its name adds to the
 * parent's. store: where they meet; NULL: the parent's. meet_ms: the time for
 * it. */
typedef struct oari_kin {
    const char *own;
    const int *member;
    int count;
    oar_store *store;
    int64_t meet_ms;
    void **split; /* as in oari_choice */
    int bare;     /* without a way for device memory */
} oari_kin;
oar_status oari_group_child(oar_group *parent, const oari_kin *kin,
                            oar_group **group);

/* Says whose ranks the group's are: member, by rank: in parent. */
oar_status oari_group_place(oar_group *group, const oar_group *parent,
                            const int *member);

/* ---- open_engine.c ------------------------------------------------------- */

oar_status oari_foreign_open(oar_group *group, oari_foreign *foreign,
                             const oari_open *with);
/* Opens what the choice says for device memory; the group is ready but for
 * that. */
oar_status oari_gpu_open(oar_group *group, const oari_choice *choice,
                         const oar_group_opts *settings, int64_t meet_ms);

/* Whether device memory may go through the host. */
int oari_group_goes_through_host(const oar_group *group);

/* Which engine fits the GPUs of the ranks: all ranks call it, and all get the
 * same. (hybrid.c) */
oar_status oari_hybrid_settle(oar_group *group, int64_t meet_ms,
                              const oar_backend_ops **ops);

#endif
