/* SPDX-License-Identifier: Apache-2.0 */
/* net/sock_address.h: converts addresses between text and the kernel's structs.
 * For sock*.c only. */
#ifndef OARI_NET_SOCK_ADDRESS_H
#define OARI_NET_SOCK_ADDRESS_H

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "net/sock.h"

typedef union oari_sock_any {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    struct sockaddr_storage room;
} oari_sock_any;

/* Gives the family that OARSONG_SOCKET_FAMILY asks for, or AF_UNSPEC. */
oar_status oari_sock_family(int *family);

/* Gives the addresses that a text stands for, at least one. The caller frees
 * them with freeaddrinfo. */
oar_status oari_sock_resolve(const char *address, struct addrinfo **found);

/* Writes an address as "ip:port". */
oar_status oari_sock_text(const struct sockaddr *address, socklen_t bytes,
                          char text[OARI_SOCK_TEXT]);

/* Returns whether an address is a loopback address. */
int oari_sock_loopback(const struct sockaddr *address);

/* Returns whether two addresses are one host's, whatever their ports. */
int oari_sock_same_host(const struct sockaddr *a, const struct sockaddr *b);

#endif
