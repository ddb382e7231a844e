/* SPDX-License-Identifier: Apache-2.0 */
/* net/sock.h: TCP sockets by the text of their address.
 *
 * An address is "host:port" or "[v6]:port"; the host is a name or numbers, the
 * port a number. OARSONG_SOCKET_FAMILY (inet or inet6) narrows what a name may
 * stand for.
 *
 * Every descriptor given here is non-blocking, close-on-exec, and guarded
 * against forks: close it with oari_fork_close. Nothing here blocks, except
 * that a name may have to be asked for. A failure of the system is
 * OAR_E_SYSTEM with the address and errno's text in the sentence, and errno in
 * oar_last_error()->sys_errno; an address that is none is OAR_E_ARG, a name
 * that nobody knows OAR_E_NOT_FOUND.
 */
#ifndef OARI_NET_SOCK_H
#define OARI_NET_SOCK_H

#include <oarsong/status.h>

#include "base/plugin.h"

/* Bytes of an address as text, its zero byte included: a name of up to 255,
 * brackets, a port. */
enum { OARI_SOCK_TEXT = 272 };

/* Listens exactly there; port 0: at a free one, which oari_sock_name tells. Of
 * several addresses that a name has, the first that this host has. "[::]" takes
 * connections by IPv4 too. */
oar_status oari_sock_listen(const char *address, int backlog, int *fd);

/* Where the socket is bound, and who is at its other end: "ip:port". */
oar_status oari_sock_name(int fd, char text[OARI_SOCK_TEXT]);
oar_status oari_sock_peer(int fd, char text[OARI_SOCK_TEXT]);

/* The next connection, or *fd = -1 when none is waiting. */
oar_status oari_sock_accept(int listener, int *fd);

/* Begins to connect. The socket turns writable when oari_sock_connected has
 * something new to say. */
oar_status oari_sock_connect(const char *address, int *fd);

/* The same for whoever tries again: the attempts (from 0) take the addresses
 * that a name has in turn. */
oar_status oari_sock_connect_again(const char *address, unsigned attempt,
                                   int *fd);

/* Whether the connection is made: *done is 1 or, not yet, 0. A failure says why
 * it cannot be; the socket is still the caller's to close. A socket that
 * connected to itself (which happens where nobody listens) has failed. */
oar_status oari_sock_connected(int fd, const char *address, int *done);

/* Sizes of the kernel's buffers, in bytes; 0 leaves them to the kernel. Before
 * connecting or on a listener, for large ones to have their effect. */
oar_status oari_sock_buffers(int fd, int send_bytes, int receive_bytes);

/* A connection on which nothing is under way fails with ETIMEDOUT when the
 * other host has not answered for so long, in whole seconds, and up to a fifth
 * (a second at least) more. 20 s unless this is called. */
void oari_sock_keep_alive(int fd, int64_t lease_ms);

/* Whether the other end is on this host: it has a loopback address, or the very
 * address that this end has (which the kernel takes from no network). Both ends
 * say the same. */
int oari_sock_is_loopback(int fd);

/* Whether there is another end to ask about: not once it has reset the
 * connection. */
int oari_sock_has_peer(int fd);

/* Whether `address` stands for a loopback address here; 0 for one that is not
 * known. */
int oari_sock_names_loopback(const char *address);

/* ---- sock_interface.c ---------------------------------------------------- */

/* An address of this host, with port 0, for peers that meet at `toward` (NULL:
 * nowhere in particular): the one from which packets go there. With
 * OARSONG_SOCKET_IFNAME set, an address of an interface that it allows:
 * "eth,ib" (names that begin so), "=eth0,eth1" (these names), "^docker,lo"
 * (names that do not begin so), "^=eth0" (all but these). OAR_E_UNAVAILABLE
 * when there is none. */
OARI_FOR_PLUGINS oar_status oari_sock_local(const char *toward,
                                            char text[OARI_SOCK_TEXT]);

/* Whether such a pattern allows this name; NULL allows all. */
int oari_sock_allows(const char *pattern, const char *name);

#endif
