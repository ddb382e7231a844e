/* SPDX-License-Identifier: Apache-2.0 */
/* native/native.h: what one rank holds of its peers on this host. */
#ifndef OARI_NATIVE_NATIVE_H
#define OARI_NATIVE_NATIVE_H

#include "link/shm/boarded.h"
#include "comm/group/group.h"
#include "net/local.h"
#include "link/host.h"
#include "link/tcp/tcp.h"

/* A segment of a peer's, mapped here. */
typedef struct mapped {
    unsigned char *base;
    size_t bytes;
} mapped;

typedef struct native_peer {
    int socket;  /* only that peer holds the other end */
    int calling; /* the same before it has answered */
    int pidfd;
    int64_t pid;     /* as this process sees it */
    mapped *segment; /* by number */
    uint32_t segments;
    int64_t segment_room;
} native_peer;

typedef struct native {
    oari_boarded base; /* first: the core's view */
    native_peer *peer; /* by rank on the board */
    int control_fd, event_fd, epoll_fd;
    uint32_t segments_sent; /* of mine, to all peers */
    int *host;              /* by rank, as in backend.h */
    int hosts;
    int *member;    /* of the board; NULL: all on one host */
    tcp_mesh *mesh; /* to other hosts; NULL: there are none */
    int listener;   /* while the group is made */
    int *guest;     /* then: sockets of those that have not said who they are */
    int guests;
} native;

/* Finds the peers through the store and exchanges descriptors with those on
 * this host (meet.c). prefix gets the beginning of the group's keys. */
oar_status native_meet(native *n, const oar_backend_env *env, int one_host,
                       char prefix[OAR_STORE_KEY_MAX]);

/* Closes what only served to meet. */
void native_close_door(native *n);

/* Segments of mine and theirs (reach.c). */
extern const oari_board_ops native_board_ops;

#endif
