/* SPDX-License-Identifier: Apache-2.0 */
/* link/host.h: which ranks can share memory, and under which keys they meet.
 */
#ifndef OARI_NATIVE_HOST_H
#define OARI_NATIVE_HOST_H

#include "link/link.h"
#include "link/rendezvous.h"

/* Who this host is. */
enum { NATIVE_HOST = 256 };
oar_status native_host(char host[NATIVE_HOST]);
/* Whether two that may have been set apart by OARSONG_HOST_ID still have one
 * network: what they say to each other does not leave the machine. */
int native_one_machine(const char *a, const char *b);
/* The beginning of the group's keys in the store, another every time. */
oar_status native_prefix(const oari_open *with, char *prefix, size_t bytes);
/* Numbers hosts as backend.h says; first: of the texts, stride bytes apart. */
void native_number_hosts(int ranks, const char *first, size_t stride,
                         int *host);

/* When a rank gives up on a group: somebody it missed (open_failure.h); or
 * whoever has not published this key, of all from `rank` on, and the error
 * stays. */
void native_missed(const oari_open *with, int rank);
void native_missed_from(const oari_open *with, int rank, oari_rank_key_fn key,
                        const void *arg);

/* For waiting until the others have published such a key. Borrows all. */
oari_rendezvous native_rendezvous(const oari_open *with, oari_rank_key_fn key,
                                  const void *arg);

#endif
