/* SPDX-License-Identifier: Apache-2.0 */
/* link/shm/shm.h: links between processes of a host: what one rank holds of the
 * others. */
#ifndef OARI_LINK_SHM_SHM_H
#define OARI_LINK_SHM_SHM_H

#include "link/host.h"
#include "link/shm/shm_base.h"
#include "net/unix_socket.h"

/* A segment of a peer's, mapped here. */
typedef struct mapped {
    unsigned char *base;
    size_t bytes;
} mapped;

typedef struct shm_peer {
    int socket;  /* only that peer holds the other end */
    int calling; /* the same while its answer has not been read */
    int pidfd;
    int64_t pid;     /* as this process sees it */
    mapped *segment; /* by number */
    uint32_t segments;
    int64_t segment_room;
} shm_peer;

typedef struct shm_links {
    oari_shm_base base; /* first: the core's view */
    shm_peer *peer;     /* by rank in shared memory */
    int control_fd, event_fd, epoll_fd;
    uint32_t segments_sent; /* of mine, to all peers */
    int *host;              /* by rank of the group, on whichever host */
    int hosts;
    int *member; /* of shared memory; NULL: all on one host */
    enum { FETCH_UNKNOWN, FETCH_NO, FETCH_YES } fetches; /* from all peers */
    int listener; /* while the group is made */
    int *pending; /* and sockets whose handshake has not been read */
    int pendings;
} shm_links;

/* Finds the ranks of the group through the store, and makes shared memory of
 * those on this host, with its queues. one_host: there must be no other host.
 * prefix gets the beginning of the group's keys. */
oar_status shm_links_open(shm_links *links, const oari_open *with, int one_host,
                          char prefix[OAR_STORE_KEY_MAX]);

/* Also closes links that are half made. */
void shm_links_close(shm_links *links);

/* ---- shm_rendezvous.c, handshake.c --------------------------------------- */

/* Finds the peers and exchanges descriptors with those on this host. */
oar_status shm_find_peers(shm_links *links, const oari_open *with, int one_host,
                          char prefix[OAR_STORE_KEY_MAX]);

/* Closes the listener and the connections whose handshake has not been read. */
void shm_close_listener(shm_links *links);

/* ---- segment_map.c ------------------------------------------------------- */

/* How the ranks reach each other's segments. */
extern const oari_shm_ops shm_process_ops;

#endif
