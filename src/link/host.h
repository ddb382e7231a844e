/* SPDX-License-Identifier: Apache-2.0 */
/* link/host.h: which ranks can share memory, and under which keys they find
 * each other. */
#ifndef OARI_NATIVE_HOST_H
#define OARI_NATIVE_HOST_H

#include "link/link.h"
#include "link/rendezvous.h"

/* Gives the name of this host. */
enum { OARI_HOST_NAME_BYTES = 256 };
oar_status oari_host_name(char host[OARI_HOST_NAME_BYTES]);
/* Returns whether two hosts, which OARSONG_HOST_ID may have separated, have one
 * network: packets between them do not leave the machine. */
int oari_host_same_machine(const char *a, const char *b);
/* Gives the beginning of the group's keys in the store, another every time. */
oar_status oari_join_prefix(const oari_open *with, char *prefix, size_t bytes);
/* Numbers hosts as link.h says. first: the first name; the others follow,
 * stride bytes apart. */
void oari_host_number_all(int ranks, const char *first, size_t stride,
                          int *host);

/* Marks a rank as missing when this rank gives up on a group (open_failure.h);
 * or all ranks from `rank` on that have not published this key. The last error
 * stays. */
void oari_join_missed(const oari_open *with, int rank);
void oari_join_missed_from(const oari_open *with, int rank,
                           oari_rank_key_fn key, const void *arg);

/* Prepares a wait until other ranks have published such a key. Borrows all. */
oari_rendezvous oari_join_rendezvous(const oari_open *with,
                                     oari_rank_key_fn key, const void *arg);

#endif
