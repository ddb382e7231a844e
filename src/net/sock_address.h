/* SPDX-License-Identifier: Apache-2.0 */
/* net/sock_address.h: addresses between text and what the kernel takes. For
 * sock*.c only. */
#ifndef OARI_NET_SOCK_ADDRESS_H
#define OARI_NET_SOCK_ADDRESS_H

#include <netdb.h>
#include <sys/socket.h>

#include "net/sock.h"

/* The family that OARSONG_SOCKET_FAMILY asks for, or AF_UNSPEC. */
oar_status oari_sock_family(int *family);

/* The addresses that a text stands for, at least one; freeaddrinfo them. */
oar_status oari_sock_resolve(const char *address, struct addrinfo **found);

/* "ip:port" of an address. */
oar_status oari_sock_text(const struct sockaddr *address, socklen_t bytes,
                          char text[OARI_SOCK_TEXT]);

int oari_sock_loopback(const struct sockaddr *address);

#endif
