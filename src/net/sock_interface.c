/* SPDX-License-Identifier: Apache-2.0 */
/* sock_interface: chooses the address of this host that its peers should use.
 */
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

/* Gives the address that packets to `toward` leave from: connecting a datagram
 * socket sends nothing but makes the kernel choose. Leaves *from without a
 * family if there is no route. */
static oar_status find_route(const char *toward, oari_sock_any *from)
{
    struct addrinfo *found;
    int done = 0;

    if (toward == NULL)
        return OAR_OK;
    OARI_TRY(oari_sock_resolve(toward, &found));
    for (struct addrinfo *at = found; at != NULL && !done; at = at->ai_next) {
        int fd = socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        socklen_t bytes = sizeof *from;

        if (fd < 0)
            continue;
        done = connect(fd, at->ai_addr, at->ai_addrlen) == 0 &&
               getsockname(fd, &from->any, &bytes) == 0;
        close(fd);
    }
    if (!done)
        memset(from, 0, sizeof *from);
    freeaddrinfo(found);
    return OAR_OK;
}

/* ---- the interfaces ------------------------------------------------------ */

/* Returns how suitable an address is; 0: not at all. The routed one is best,
 * then one of its family, then one that other hosts can reach. */
static int score_address(const struct ifaddrs *i, const char *pattern,
                         int family, const oari_sock_any *route)
{
    const struct sockaddr *a = i->ifa_addr;
    const struct sockaddr_in6 *six = (const void *)a;
    int points = 1;

    if (a == NULL || (i->ifa_flags & IFF_UP) == 0 ||
        (a->sa_family != AF_INET && a->sa_family != AF_INET6) ||
        (family != AF_UNSPEC && a->sa_family != family) ||
        !oari_sock_allows(pattern, i->ifa_name))
        return 0;
    if (oari_sock_same_host(a, &route->any))
        points += 16;
    if (route->any.sa_family == a->sa_family)
        points += 8;
    if (!oari_sock_loopback(a))
        points += 4;
    if (a->sa_family != AF_INET6 || !IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))
        points += 2;
    if (a->sa_family == AF_INET)
        points += 1;
    return points;
}

/* The text names each interface once, as far as there is room. */
static oar_status fail_no_address(const struct ifaddrs *all,
                                  const char *pattern)
{
    const char *family = oari_env_text("OARSONG_SOCKET_FAMILY");
    char names[200] = "";
    size_t used = 0;

    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_PACKET ||
            used + strlen(i->ifa_name) + 3 > sizeof names)
            continue;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                 used > 0 ? ", " : "", i->ifa_name);
    }
    return oari_fail(OAR_E_UNAVAILABLE,
                     "no address of this host fits OARSONG_SOCKET_IFNAME=%s "
                     "and OARSONG_SOCKET_FAMILY=%s; its interfaces are: %s",
                     pattern != NULL ? pattern : "",
                     family != NULL ? family : "", names);
}

static oar_status write_address(const struct sockaddr *address,
                                char text[OARI_SOCK_TEXT])
{
    oari_sock_any a = { 0 };

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
    oari_sock_any route = { 0 };
    const struct ifaddrs *best = NULL;
    struct ifaddrs *all;
    oar_status status;
    int family, most = 0;

    OARI_TRY(oari_sock_family(&family));
    OARI_TRY(find_route(toward, &route));
    if (pattern == NULL && route.any.sa_family != AF_UNSPEC)
        return write_address(&route.any, text);
    if (getifaddrs(&all) != 0)
        return oari_fail(OAR_E_SYSTEM, "list the interfaces of this host");
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        int score = score_address(i, pattern, family, &route);
        if (score > most) {
            most = score;
            best = i;
        }
    }
    status = best != NULL ? write_address(best->ifa_addr, text)
                          : fail_no_address(all, pattern);
    freeifaddrs(all);
    return status;
}
