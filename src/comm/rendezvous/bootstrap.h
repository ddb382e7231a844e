/* SPDX-License-Identifier: Apache-2.0 */
/* comm/rendezvous/bootstrap.h: where the ranks of a group find each other, and
 * which of them cleans up there afterwards. */
#ifndef OARI_COMM_RENDEZVOUS_BOOTSTRAP_H
#define OARI_COMM_RENDEZVOUS_BOOTSTRAP_H

#include <oarsong/group.h>

typedef struct oari_bootstrap {
    oar_store *store;
    oar_store_server *server; /* rank 0's, where it serves the store itself */
    int counted; /* all wait for all to have met, rank 0 for all to have left */
    const char *secret; /* of the store, in hex digits; NULL: the job's */
    oar_store *door; /* a folder that says where the store is, removed when all
                        have met. NULL: none */
} oari_bootstrap;

/* Meets at a TCP address: rank 0 serves a store there, unless a server of ours
 * does already, and all connect. name: the group's. */
oar_status oari_bootstrap_tcp(const char *address, int rank, const char *name,
                              int64_t timeout_ms, oari_bootstrap *bootstrap);

/* Meets in a folder of this user's, which is made, for the processes of one job
 * on this host. The folder is removed after the rendezvous, so no other
 * rendezvous may use it. */
oar_status oari_bootstrap_folder(const char *folder, int rank,
                                 int64_t timeout_ms, oari_bootstrap *bootstrap);

/* Meets at an address of rank 0's host that the others get from it by PMIx,
 * like the job's secret if it has none. */
oar_status oari_bootstrap_pmix(const char *toward, int rank, int64_t timeout_ms,
                               oari_bootstrap *bootstrap);

/* Gives every rank one secret of the job, by PMIx, unless it has one. */
oar_status oari_bootstrap_secret(int rank, int64_t timeout_ms);

/* The group that was made at a rendezvous, as one of its ranks sees it. */
typedef struct oari_bootstrap_group {
    const char *name;
    int rank, ranks;
    int64_t timeout_ms;
} oari_bootstrap_group;

/* Ends a rendezvous. party == NULL: the group has failed, and nothing is left
 * behind. */
void oari_bootstrap_leave(oari_bootstrap *bootstrap,
                          const oari_bootstrap_group *party);

/* Fails with the last error, a timeout; or, if the server has refused a rank,
 * with that as well. */
oar_status oari_bootstrap_explain(const oari_bootstrap *bootstrap);

/* ---- launcher.c ---------------------------------------------------------- */

/* Gives rank and size from the launcher's environment; 0 and 1 without one.
 * Fails with OAR_E_ARG for a rank without a size, or a size without a rank. */
oar_status oari_launcher_rank(int *rank, int *size);

/* Returns whether this process logs what one of the job is to log: it is rank
 * 0, or has no launcher. */
int oari_launcher_first(void);

/* Meets where the environment says. Needed only for more than one rank. */
oar_status oari_launcher_bootstrap(int rank, int size, const char *name,
                                   int64_t timeout_ms,
                                   oari_bootstrap *bootstrap);

#endif
