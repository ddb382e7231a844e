/* SPDX-License-Identifier: Apache-2.0 */
/* net/local.h: sockets between processes of one host, and descriptors passed
 * over them. Names are abstract: nothing appears in a file system. A message is
 * whole or not there (SOCK_SEQPACKET). */
#ifndef OARI_NET_LOCAL_H
#define OARI_NET_LOCAL_H

#include <oarsong/status.h>

enum { OARI_LOCAL_NAME = 40, OARI_LOCAL_FDS = 4 };

/* A listener under a random name, which is written into name. */
oar_status oari_local_listen(char name[OARI_LOCAL_NAME], int *fd);

oar_status oari_local_connect(const char *name, int *fd);

/* The next connection of a process of this user; others are turned away.
 * Gives its pid. */
oar_status oari_local_accept(int listener, int64_t deadline_ns, int *fd,
                             int64_t *pid);

/* The pid of the process at the other end. */
oar_status oari_local_pid(int fd, int64_t *pid);

/* One message with descriptors (borrowed). Never blocks: OAR_E_CLOSED when the
 * other end is gone, OAR_E_SYSTEM when it does not take it. */
oar_status oari_local_send(int fd, const void *data, size_t bytes,
                           const int *pass, int passes);

/* One message of exactly these bytes and descriptors (given, close-on-exec).
 * OAR_E_TIMEOUT at the deadline, OAR_E_CLOSED at the end, OAR_E_DATA if the
 * message is another. */
oar_status oari_local_recv(int fd, void *data, size_t bytes, int *pass,
                           int passes, int64_t deadline_ns);

#endif
