/* SPDX-License-Identifier: Apache-2.0 */
/* sock_address: parses, resolves and prints addresses. */
#include "net/sock_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/status.h"

typedef struct parts {
    char host[256], port[6];
} parts;

static oar_status not_an_address(const char *address)
{
    return oari_fail(OAR_E_ARG,
                     "\"%s\" is not an address: write host:port or [v6]:port",
                     address);
}

static oar_status copy_part(const char *address, const char *from, size_t bytes,
                            char *into, size_t room)
{
    if (bytes == 0 || bytes >= room)
        return not_an_address(address);
    memcpy(into, from, bytes);
    into[bytes] = 0;
    return OAR_OK;
}

/* The host ends at its bracket or at the only colon. */
static oar_status split_address(const char *address, parts *p)
{
    const char *host = address, *end;
    int64_t port;

    if (address[0] == '[') {
        host++;
        end = strchr(host, ']');
    } else
        end = strchr(host, ':');
    if (end == NULL)
        return not_an_address(address);
    OARI_TRY(copy_part(address, host, (size_t)(end - host), p->host,
                       sizeof p->host));
    end += *end == ']';
    if (*end != ':' || end[1 + strspn(end + 1, "0123456789")] != 0)
        return not_an_address(address);
    OARI_TRY(
        copy_part(address, end + 1, strlen(end + 1), p->port, sizeof p->port));
    return oari_parse_int(address, p->port, 0, 65535, &port);
}

oar_status oari_sock_family(int *family)
{
    const char *name = oari_env_text("OARSONG_SOCKET_FAMILY");

    if (name == NULL)
        *family = AF_UNSPEC;
    else if (strcmp(name, "inet") == 0 || strcmp(name, "AF_INET") == 0)
        *family = AF_INET;
    else if (strcmp(name, "inet6") == 0 || strcmp(name, "AF_INET6") == 0)
        *family = AF_INET6;
    else
        return oari_fail(OAR_E_ARG,
                         "OARSONG_SOCKET_FAMILY is \"%s\", but should be inet "
                         "or inet6",
                         name);
    return OAR_OK;
}

oar_status oari_sock_resolve(const char *address, struct addrinfo **found)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_NUMERICSERV };
    parts p;
    int error;

    if (address == NULL)
        return oari_fail(OAR_E_ARG, "no address");
    OARI_TRY(split_address(address, &p));
    OARI_TRY(oari_sock_family(&hints.ai_family));
    error = getaddrinfo(p.host, p.port, &hints, found);
    if (error == EAI_SYSTEM)
        return oari_fail(OAR_E_SYSTEM, "look up %s", address);
    if (error == EAI_MEMORY)
        return oari_fail(OAR_E_NOMEM, "look up %s", address);
    if (error == EAI_AGAIN) /* the name server may answer later */
        return oari_fail(OAR_E_TIMEOUT, "look up %s: %s", address,
                         gai_strerror(error));
    if (error != 0)
        return oari_fail(OAR_E_NOT_FOUND, "look up %s: %s", address,
                         gai_strerror(error));
    return OAR_OK;
}

oar_status oari_sock_text(const struct sockaddr *address, socklen_t bytes,
                          char text[OARI_SOCK_TEXT])
{
    char host[INET6_ADDRSTRLEN + 20], port[6];
    int error = getnameinfo(address, bytes, host, sizeof host, port,
                            sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);

    if (error != 0)
        return oari_fail(OAR_E_DATA, "an address of family %d: %s",
                         address->sa_family, gai_strerror(error));
    snprintf(text, OARI_SOCK_TEXT,
             address->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    return OAR_OK;
}

int oari_sock_loopback(const struct sockaddr *address)
{
    struct sockaddr_in four;
    struct sockaddr_in6 six;

    if (address->sa_family == AF_INET6) {
        memcpy(&six, address, sizeof six);
        if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr))
            return six.sin6_addr.s6_addr[12] == 127;
        return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr);
    }
    if (address->sa_family != AF_INET)
        return 0;
    memcpy(&four, address, sizeof four);
    return ntohl(four.sin_addr.s_addr) >> 24 == 127;
}

int oari_sock_same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;
    const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;

    if (a->sa_family != b->sa_family)
        return 0;
    if (a->sa_family == AF_INET)
        return a4->sin_addr.s_addr == b4->sin_addr.s_addr;
    return a->sa_family == AF_INET6 &&
           memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof a6->sin6_addr) == 0;
}
