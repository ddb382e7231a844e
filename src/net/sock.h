/* SPDX-License-Identifier: Apache-2.0 */
/* net/sock.h: TCP sockets by the text of their address.
 *
 * An address is "host:port" or "[v6]:port"; the host is a name or numbers, the
 * port a number. OARSONG_SOCKET_FAMILY (inet or inet6) narrows what a name may
 * stand for.
 *
 * Every descriptor given here is non-blocking, close-on-exec, and guarded
 * against forks: close it with oari_fork_close. Nothing here blocks, except for
 * the lookup of a name. A failure of the system is OAR_E_SYSTEM with the
 * address and errno's text in the sentence, and errno in
 * oar_last_error()->sys_errno; a malformed address is OAR_E_ARG, an unknown
 * name OAR_E_NOT_FOUND.
 */
#ifndef OARI_NET_SOCK_H
#define OARI_NET_SOCK_H

#include <oarsong/status.h>

#include "base/plugin_export.h"

/* Bytes of an address as text, its zero byte included: a name of up to 255,
 * brackets, a port. */
enum { OARI_SOCK_TEXT = 272 };

/* Listens at exactly this address; port 0: at a free port, which oari_sock_name
 * tells. If a name has several addresses, it takes the first that this host
 * has. "[::]" accepts connections by IPv4 too. */
oar_status oari_sock_listen(const char *address, int backlog, int *fd);

/* Gives the address to which the socket is bound, "ip:port". */
oar_status oari_sock_name(int fd, char text[OARI_SOCK_TEXT]);

/* Gives the address of the other end, "ip:port". */
oar_status oari_sock_peer(int fd, char text[OARI_SOCK_TEXT]);

/* Accepts the next connection, or sets *fd = -1 if none is waiting. */
oar_status oari_sock_accept(int listener, int *fd);

/* Begins to connect as one of several attempts (from 0), which take the
 * addresses that a name has in turn. The socket becomes writable when
 * oari_sock_connected has an answer. */
oar_status oari_sock_connect_again(const char *address, unsigned attempt,
                                   int *fd);

/* Sets *done to whether the connection is made. A failure says why it cannot
 * be; the caller still closes the socket. A socket that connected to itself
 * (which happens at a port without a listener) has failed. */
oar_status oari_sock_connected(int fd, const char *address, int *done);

/* Makes an idle connection fail with ETIMEDOUT when the other host has not
 * answered for lease_ms, rounded up to seconds, and up to a fifth (a second at
 * least) more. Without this call the time is 20 s. */
void oari_sock_keep_alive(int fd, int64_t lease_ms);

/* Returns whether the other end is on this host: it has a loopback address or
 * the address of this end, which the kernel accepts from no network. Both ends
 * get the same answer. */
int oari_sock_is_loopback(int fd);

/* Returns whether the socket still has another end: 0 after a reset. */
int oari_sock_has_peer(int fd);

/* Returns whether `address` stands for a loopback address here; 0 for an
 * unknown name. */
int oari_sock_names_loopback(const char *address);

/* ---- sock_interface.c ---------------------------------------------------- */

/* Gives an address of this host, with port 0, for peers that can reach `toward`
 * (NULL: any peers): the one from which packets go there. If
 * OARSONG_SOCKET_IFNAME is set, it is an address of an interface that the
 * pattern allows: "eth,ib" (names that begin so), "=eth0,eth1" (these names),
 * "^docker,lo" (names that do not begin so), "^=eth0" (all but these).
 * OAR_E_UNAVAILABLE if there is none. */
OARI_FOR_PLUGINS oar_status oari_sock_local(const char *toward,
                                            char text[OARI_SOCK_TEXT]);

/* Returns whether such a pattern allows this name; NULL allows all. */
int oari_sock_allows(const char *pattern, const char *name);

#endif
