/* SPDX-License-Identifier: Apache-2.0 */
/* link/host.h: which ranks can share memory, and under which keys they find each
 * other. */
#ifndef OARI_NATIVE_HOST_H
#define OARI_NATIVE_HOST_H

#include "link/link.h"
#include "link/rendezvous.h"

/* Gives the name of this host. */
enum { NATIVE_HOST = 256 };
oar_status native_host(char host[NATIVE_HOST]);
/* Returns whether two hosts, which OARSONG_HOST_ID may have separated, have one
 * network: packets between them do not leave the machine. */
int native_one_machine(const char *a, const char *b);
/* Gives the beginning of the group's keys in the store, another every time. */
oar_status native_prefix(const oari_open *with, char *prefix, size_t bytes);
/* Numbers hosts as link.h says. first: the first name; the others follow, stride
 * bytes apart. */
void native_number_hosts(int ranks, const char *first, size_t stride,
                         int *host);

/* Marks a rank as missing when this rank gives up on a group (open_failure.h);
 * or all ranks from `rank` on that have not published this key. The last error
 * stays. */
void native_missed(const oari_open *with, int rank);
void native_missed_from(const oari_open *with, int rank, oari_rank_key_fn key,
                        const void *arg);

/* Prepares a wait until other ranks have published such a key. Borrows all. */
oari_rendezvous native_rendezvous(const oari_open *with, oari_rank_key_fn key,
                                  const void *arg);

#endif
