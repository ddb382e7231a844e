/* SPDX-License-Identifier: Apache-2.0 */
/* link/shm/shm_rendezvous.h: what shm_rendezvous.c and handshake.c share while
 * a group is made.
 */
#ifndef OARI_LINK_SHM_SHM_RENDEZVOUS_H
#define OARI_LINK_SHM_SHM_RENDEZVOUS_H

#include "net/secret.h"
#include "link/shm/shm.h"

enum { SHM_ENTRY_MAGIC = 0x4f415231, SHM_PROTOCOL = 4 };

/* What a rank publishes in the store. Fixed size, checked field by field. */
typedef struct shm_entry {
    uint32_t magic; /* also tells the byte order */
    uint32_t protocol;
    int32_t rank, ranks;
    uint64_t page, small_bytes, stage_bytes;
    char host[OARI_HOST_NAME_BYTES];
    char socket[OARI_UNIX_NAME];
    unsigned char token[16];
    uint64_t proves;                   /* that it knows the job's secret */
    unsigned char mac[OARI_MAC_BYTES]; /* of all before it, see auth.h */
} shm_entry;

/* One rank's side while it joins. */
typedef struct shm_join {
    shm_links *links;
    const oari_open *with;
    int64_t deadline_ns;
    const char *prefix; /* of the keys */
    int one_host;       /* and no other */
    oari_secret secret;
    shm_entry mine;
    shm_entry *entry; /* by rank */
    oari_rendezvous rendezvous;
} shm_join;

/* Shakes hands with all ranks of this host, when all entries have been read and
 * shared memory's arrays are made. */
oar_status shm_handshake(shm_join *j);

#endif
