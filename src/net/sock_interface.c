/* SPDX-License-Identifier: Apache-2.0 */
/* sock_interface: which of this host's addresses its peers should use. */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/status.h"
#include "net/sock_address.h"

typedef union any_address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    struct sockaddr_storage room;
} any_address;

static socklen_t bytes_of(const struct sockaddr *address)
{
    return address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in);
}

/* ---- patterns ------------------------------------------------------------ */

int oari_sock_allows(const char *pattern, const char *name)
{
    int allowed = 1, exact;

    if (pattern == NULL)
        return 1;
    if (*pattern == '^') {
        allowed = 0;
        pattern++;
    }
    exact = *pattern == '=';
    pattern += exact;
    while (*pattern != 0) {
        size_t bytes = strcspn(pattern, ",");
        if (bytes > 0 && strncmp(pattern, name, bytes) == 0 &&
            (!exact || name[bytes] == 0))
            return allowed;
        pattern += bytes;
        pattern += *pattern == ',';
    }
    return !allowed;
}

/* ---- the route ----------------------------------------------------------- */

/* The address that packets to `there` leave from: connecting a datagram socket
 * sends nothing but makes the kernel choose. */
static int route_from(const struct addrinfo *there, any_address *from)
{
    int fd = socket(there->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t bytes = sizeof *from;
    int found;

    if (fd < 0)
        return 0;
    found = connect(fd, there->ai_addr, there->ai_addrlen) == 0 &&
            getsockname(fd, &from->any, &bytes) == 0;
    close(fd);
    return found;
}

/* Leaves *from without a family when there is no way. */
static oar_status find_route(const char *toward, any_address *from)
{
    struct addrinfo *found;
    int way = 0;

    if (toward == NULL)
        return OAR_OK;
    OARI_TRY(oari_sock_resolve(toward, &found));
    for (struct addrinfo *at = found; at != NULL && !way; at = at->ai_next)
        way = route_from(at, from);
    if (!way)
        memset(from, 0, sizeof *from);
    freeaddrinfo(found);
    return OAR_OK;
}

/* ---- the interfaces ------------------------------------------------------ */

static int same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    any_address x = { 0 }, y = { 0 };

    if (a->sa_family != b->sa_family)
        return 0;
    memcpy(&x, a, bytes_of(a));
    memcpy(&y, b, bytes_of(b));
    if (a->sa_family == AF_INET)
        return x.four.sin_addr.s_addr == y.four.sin_addr.s_addr;
    return memcmp(&x.six.sin6_addr, &y.six.sin6_addr, 16) == 0;
}

static int is_link_local(const struct sockaddr *address)
{
    any_address a = { 0 };

    if (address->sa_family != AF_INET6)
        return 0;
    memcpy(&a, address, sizeof a.six);
    return IN6_IS_ADDR_LINKLOCAL(&a.six.sin6_addr);
}

/* How well an address serves; 0: not at all. The routed one first, then its
 * family, then one that others can reach. */
static int fitness(const struct ifaddrs *i, const char *pattern, int family,
                   const any_address *route)
{
    const struct sockaddr *a = i->ifa_addr;
    int points = 1;

    if (a == NULL || (i->ifa_flags & IFF_UP) == 0 ||
        (a->sa_family != AF_INET && a->sa_family != AF_INET6) ||
        (family != AF_UNSPEC && a->sa_family != family) ||
        !oari_sock_allows(pattern, i->ifa_name))
        return 0;
    if (same_host(a, &route->any))
        points += 16;
    if (route->any.sa_family == a->sa_family)
        points += 8;
    if (!oari_sock_loopback(a))
        points += 4;
    if (!is_link_local(a))
        points += 2;
    if (a->sa_family == AF_INET)
        points += 1;
    return points;
}

static const struct ifaddrs *fittest(const struct ifaddrs *all,
                                     const char *pattern, int family,
                                     const any_address *route)
{
    const struct ifaddrs *best = NULL;
    int most = 0;

    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        int points = fitness(i, pattern, family, route);
        if (points > most) {
            most = points;
            best = i;
        }
    }
    return best;
}

/* The names there are, once each, as far as they fit. */
static void list_names(const struct ifaddrs *all, char *text, size_t room)
{
    size_t used = 0;

    text[0] = 0;
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_PACKET ||
            used + strlen(i->ifa_name) + 3 > room)
            continue;
        used += (size_t)snprintf(text + used, room - used, "%s%s",
                                 used > 0 ? ", " : "", i->ifa_name);
    }
}

static oar_status none_fits(const struct ifaddrs *all, const char *pattern)
{
    char names[200];

    list_names(all, names, sizeof names);
    return oari_fail(OAR_E_UNAVAILABLE,
                     "no address of this host fits OARSONG_SOCKET_IFNAME=%s "
                     "and OARSONG_SOCKET_FAMILY=%s; its interfaces are: %s",
                     pattern != NULL ? pattern : "",
                     oari_env_text("OARSONG_SOCKET_FAMILY") != NULL
                         ? oari_env_text("OARSONG_SOCKET_FAMILY")
                         : "",
                     names);
}

static oar_status tell(const struct sockaddr *address,
                       char text[OARI_SOCK_TEXT])
{
    any_address a = { 0 };

    memcpy(&a, address, bytes_of(address));
    if (address->sa_family == AF_INET6)
        a.six.sin6_port = 0;
    else
        a.four.sin_port = 0;
    return oari_sock_text(&a.any, bytes_of(address), text);
}

oar_status oari_sock_local(const char *toward, char text[OARI_SOCK_TEXT])
{
    const char *pattern = oari_env_text("OARSONG_SOCKET_IFNAME");
    any_address route = { 0 };
    const struct ifaddrs *best;
    struct ifaddrs *all;
    oar_status status;
    int family;

    OARI_TRY(oari_sock_family(&family));
    OARI_TRY(find_route(toward, &route));
    if (pattern == NULL && route.any.sa_family != AF_UNSPEC)
        return tell(&route.any, text);
    if (getifaddrs(&all) != 0)
        return oari_fail(OAR_E_SYSTEM, "list the interfaces of this host");
    best = fittest(all, pattern, family, &route);
    status =
        best != NULL ? tell(best->ifa_addr, text) : none_fits(all, pattern);
    freeifaddrs(all);
    return status;
}
