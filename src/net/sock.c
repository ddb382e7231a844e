/* SPDX-License-Identifier: Apache-2.0 */
/* sock: listening, connecting and accepting, without ever waiting. */
#include "net/sock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "base/fork.h"
#include "base/status.h"
#include "net/sock_address.h"

typedef union any_address {
    struct sockaddr any;
    struct sockaddr_storage room;
} any_address;

/* A peer that is gone without a word is noticed after so long. */
enum { KEEP_MS = 20000 };

/* Closes after a failure without disturbing errno. */
static void drop(int fd)
{
    int kept = errno;

    oari_fork_close(fd);
    errno = kept;
}

static int set(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value);
}

/* The kernel counts in seconds: some idle, then a question every so often. */
void oari_sock_keep_alive(int fd, int64_t lease_ms)
{
    int seconds = (int)((lease_ms + 999) / 1000);
    int every = seconds / 5 > 0 ? seconds / 5 : 1;

    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, every);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, every);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, (seconds + every - 1) / every);
}

/* What every connection has. Options that a kernel lacks are no failure. */
static void tune(int fd)
{
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    oari_sock_keep_alive(fd, KEEP_MS);
}

static int make_socket(const struct addrinfo *at)
{
    return oari_fork_guard(
        socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/* ---- listening ----------------------------------------------------------- */

/* A descriptor, or -1 with errno. */
static int listen_at(const struct addrinfo *at, int backlog)
{
    int fd = make_socket(at);

    if (fd < 0)
        return -1;
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (at->ai_family == AF_INET6)
        set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, backlog) == 0)
        return fd;
    drop(fd);
    return -1;
}

/* An address that somebody else has here is not passed over: whoever resolves
 * the same name would find the other. */
static int try_next(int error)
{
    return error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
}

oar_status oari_sock_listen(const char *address, int backlog, int *fd)
{
    struct addrinfo *found, *at;
    oar_status status = OAR_OK;
    int made = -1;

    OARI_TRY(oari_sock_resolve(address, &found));
    for (at = found; at != NULL; at = at->ai_next)
        if ((made = listen_at(at, backlog)) >= 0 || !try_next(errno))
            break;
    if (made < 0)
        status = oari_fail(OAR_E_SYSTEM, "listen at %s", address);
    else
        *fd = made;
    freeaddrinfo(found);
    return status;
}

oar_status oari_sock_accept(int listener, int *fd)
{
    int made;

    do
        made = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    while (made < 0 && (errno == EINTR || errno == ECONNABORTED));
    if (made < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
        return oari_fail(OAR_E_SYSTEM, "accept a connection");
    if (made >= 0)
        tune(oari_fork_guard(made));
    *fd = made;
    return OAR_OK;
}

/* ---- connecting ---------------------------------------------------------- */

static const struct addrinfo *pick(const struct addrinfo *found,
                                   unsigned attempt)
{
    const struct addrinfo *at;
    unsigned count = 1;

    for (at = found; at->ai_next != NULL; at = at->ai_next)
        count++;
    for (at = found, attempt %= count; attempt > 0; attempt--)
        at = at->ai_next;
    return at;
}

/* A descriptor, or -1 with errno. */
static int connect_at(const struct addrinfo *at)
{
    int fd = make_socket(at);

    if (fd < 0)
        return -1;
    tune(fd);
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0 || errno == EINPROGRESS ||
        errno == EINTR)
        return fd;
    drop(fd);
    return -1;
}

oar_status oari_sock_connect_again(const char *address, unsigned attempt,
                                   int *fd)
{
    struct addrinfo *found;
    oar_status status = OAR_OK;
    int made;

    OARI_TRY(oari_sock_resolve(address, &found));
    made = connect_at(pick(found, attempt));
    if (made < 0)
        status = oari_fail(OAR_E_SYSTEM, "connect to %s", address);
    else
        *fd = made;
    freeaddrinfo(found);
    return status;
}

oar_status oari_sock_connect(const char *address, int *fd)
{
    return oari_sock_connect_again(address, 0, fd);
}

/* -1 with errno: not connected. */
static int read_peer(int fd, any_address *peer, socklen_t *bytes)
{
    *bytes = sizeof *peer;
    memset(peer, 0, sizeof *peer);
    return getpeername(fd, &peer->any, bytes);
}

static int read_own(int fd, any_address *own, socklen_t *bytes)
{
    *bytes = sizeof *own;
    memset(own, 0, sizeof *own);
    return getsockname(fd, &own->any, bytes);
}

static int talks_to_itself(int fd)
{
    char own[OARI_SOCK_TEXT], peer[OARI_SOCK_TEXT];

    return oari_sock_name(fd, own) == OAR_OK &&
           oari_sock_peer(fd, peer) == OAR_OK && strcmp(own, peer) == 0;
}

oar_status oari_sock_connected(int fd, const char *address, int *done)
{
    any_address peer;
    int error = 0;
    socklen_t bytes = sizeof error;

    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        error = errno;
    if (error == 0 && read_peer(fd, &peer, &bytes) != 0) {
        if (errno != ENOTCONN)
            return oari_fail(OAR_E_SYSTEM, "connect to %s", address);
        *done = 0;
        return OAR_OK;
    }
    if (error == 0 && talks_to_itself(fd))
        error = ECONNREFUSED;
    if (error != 0) {
        errno = error;
        return oari_fail(OAR_E_SYSTEM, "connect to %s", address);
    }
    *done = 1;
    return OAR_OK;
}

/* ---- asking -------------------------------------------------------------- */

oar_status oari_sock_name(int fd, char text[OARI_SOCK_TEXT])
{
    any_address own;
    socklen_t bytes;

    if (read_own(fd, &own, &bytes) != 0)
        return oari_fail(OAR_E_SYSTEM, "ask where a socket is bound");
    return oari_sock_text(&own.any, bytes, text);
}

oar_status oari_sock_peer(int fd, char text[OARI_SOCK_TEXT])
{
    any_address peer;
    socklen_t bytes;

    if (read_peer(fd, &peer, &bytes) != 0)
        return oari_fail(OAR_E_SYSTEM, "ask who is at the other end");
    return oari_sock_text(&peer.any, bytes, text);
}

oar_status oari_sock_buffers(int fd, int send_bytes, int receive_bytes)
{
    if ((send_bytes > 0 && set(fd, SOL_SOCKET, SO_SNDBUF, send_bytes) != 0) ||
        (receive_bytes > 0 &&
         set(fd, SOL_SOCKET, SO_RCVBUF, receive_bytes) != 0))
        return oari_fail(OAR_E_SYSTEM, "set buffers of %d and %d bytes",
                         send_bytes, receive_bytes);
    return OAR_OK;
}

/* Whether two ends have one address, whatever their ports. */
static int same_host(const any_address *a, const any_address *b)
{
    const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;
    const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;

    if (a->any.sa_family != b->any.sa_family)
        return 0;
    if (a->any.sa_family == AF_INET)
        return a4->sin_addr.s_addr == b4->sin_addr.s_addr;
    return a->any.sa_family == AF_INET6 &&
           memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof a6->sin6_addr) == 0;
}

int oari_sock_is_loopback(int fd)
{
    any_address own, peer;
    socklen_t bytes;

    if (read_peer(fd, &peer, &bytes) != 0)
        return 0;
    return oari_sock_loopback(&peer.any) ||
           (read_own(fd, &own, &bytes) == 0 && same_host(&own, &peer));
}

int oari_sock_has_peer(int fd)
{
    any_address peer;
    socklen_t bytes;

    return read_peer(fd, &peer, &bytes) == 0;
}

int oari_sock_names_loopback(const char *address)
{
    struct addrinfo *found;
    int is;

    if (oari_sock_resolve(address, &found) != OAR_OK)
        return 0;
    is = oari_sock_loopback(found->ai_addr);
    freeaddrinfo(found);
    return is;
}
