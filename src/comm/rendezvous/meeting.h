/* SPDX-License-Identifier: Apache-2.0 */
/* comm/rendezvous/meeting.h: where the ranks of a group find each other, and
 * who has to tidy up there when they have. */
#ifndef OARI_COMM_RENDEZVOUS_MEETING_H
#define OARI_COMM_RENDEZVOUS_MEETING_H

#include <oarsong/group.h>

typedef struct oari_meeting {
    oar_store *store;
    oar_store_server *server; /* rank 0's, where it serves the store itself */
    int counted; /* all wait for all to have met, rank 0 for all to have left */
    oar_store *door; /* a folder that says where the store is; it goes when all
                        have met. NULL: none */
} oari_meeting;

/* At a TCP address: rank 0 serves a store there, unless a server of ours does
 * already, and all connect. name: the group's. */
oar_status oari_meeting_tcp(const char *address, int rank, const char *name,
                            int64_t timeout_ms, oari_meeting *meeting);

/* In a folder of this user's, which is made, for the processes of one job on
 * this host. The folder goes after the meeting, so it must be one of this
 * meeting alone. */
oar_status oari_meeting_folder(const char *folder, int rank, int64_t timeout_ms,
                               oari_meeting *meeting);

/* At an address of rank 0's host that it gives to the others by PMIx, which
 * must be here; and so does the job's secret, where it has none. */
oar_status oari_meeting_pmix(const char *toward, int rank, int64_t timeout_ms,
                             oari_meeting *meeting);

/* Gives every rank one secret of the job, by PMIx, unless it has one. */
oar_status oari_meeting_secret(int rank, int64_t timeout_ms);

/* The group that came of a meeting, as one of its ranks sees it. */
typedef struct oari_party {
    const char *name;
    int rank, ranks;
    int64_t timeout_ms;
} oari_party;

/* Ends a meeting. NULL: the group has failed, and nothing is left behind. */
void oari_meeting_leave(oari_meeting *meeting, const oari_party *party);

/* Fails as the last error says, a timeout; unless the server has turned a rank
 * away, which is then what to say. */
oar_status oari_meeting_explain(const oari_meeting *meeting);

/* ---- launcher.c ---------------------------------------------------------- */

/* Rank and size as the launcher's environment says; 0 and 1 without one. A rank
 * without a size, or a size without a rank, is OAR_E_ARG. */
oar_status oari_launcher_rank(int *rank, int *size);

/* Whether this process speaks where one of the job is enough: it is rank 0, or
 * has no launcher. */
int oari_launcher_first(void);

/* Where the ranks of this environment meet. Needed only for more than one. */
oar_status oari_launcher_meeting(int rank, int size, const char *name,
                                 int64_t timeout_ms, oari_meeting *meeting);

#endif
