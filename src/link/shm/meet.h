/* SPDX-License-Identifier: Apache-2.0 */
/* link/shm/meet.h: what meet.c and greet.c have in common while a group is
 * made.
 */
#ifndef OARI_LINK_SHM_MEET_H
#define OARI_LINK_SHM_MEET_H

#include "net/secret.h"
#include "link/shm/shm.h"

enum { SHM_NOTE_MAGIC = 0x4f415231, SHM_PROTOCOL = 3 };

/* What a rank publishes. Fixed size, checked field by field. */
typedef struct shm_note {
    uint32_t magic; /* also tells the byte order */
    uint32_t protocol;
    int32_t rank, ranks;
    uint64_t page, small_bytes, stage_bytes;
    char host[NATIVE_HOST];
    char socket[OARI_UNIX_NAME];
    unsigned char token[16];
    uint64_t proves;                     /* that it knows the job's secret */
    unsigned char proof[OARI_MAC_BYTES]; /* of all before it, see proof.h */
} shm_note;

typedef struct shm_meeting {
    shm_links *n;
    const oari_open *with;
    int64_t deadline_ns;
    const char *prefix; /* of the keys */
    int one_host;       /* and no other */
    oari_secret secret;
    shm_note mine;
    shm_note *note; /* by rank */
    oari_rendezvous rendezvous;
} shm_meeting;

/* With all notes read and the board's arrays made: greets everybody on it. */
oar_status shm_greet_all(shm_meeting *m);

#endif
