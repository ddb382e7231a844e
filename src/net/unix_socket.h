/* SPDX-License-Identifier: Apache-2.0 */
/* net/unix_socket.h: sockets between processes of one host that also pass
 * descriptors. Names are abstract: nothing appears in a file system. A message
 * arrives whole or not at all (SOCK_SEQPACKET). */
#ifndef OARI_NET_UNIX_SOCKET_H
#define OARI_NET_UNIX_SOCKET_H

#include <oarsong/status.h>

enum { OARI_UNIX_NAME = 40, OARI_UNIX_FDS = 4 };

/* Listens under a random name, which it writes into name. */
oar_status oari_unix_listen(char name[OARI_UNIX_NAME], int *fd);

/* Connects to the listener of that name; OAR_E_CLOSED if there is none. */
oar_status oari_unix_connect(const char *name, int *fd);

/* Accepts the next connection of a process of this user and gives its pid;
 * closes those of other users. */
oar_status oari_unix_accept(int listener, int64_t deadline_ns, int *fd,
                            int64_t *pid);

/* Gives the pid of the process at the other end. */
oar_status oari_unix_pid(int fd, int64_t *pid);

/* Sends one message with descriptors (borrowed). Never blocks: OAR_E_CLOSED if
 * the other end is gone, OAR_E_SYSTEM if it has no room for the message. */
oar_status oari_unix_send(int fd, const void *data, size_t bytes,
                          const int *pass, int passes);

/* Receives one message of exactly these bytes and descriptors (given,
 * close-on-exec). OAR_E_TIMEOUT at the deadline, OAR_E_CLOSED if the other end
 * is gone, OAR_E_DATA if the message has another form. */
oar_status oari_unix_recv(int fd, void *data, size_t bytes, int *pass,
                          int passes, int64_t deadline_ns);

#endif
