/* SPDX-License-Identifier: Apache-2.0 */
/* sock: listens, connects and accepts, and never blocks. */
#include "net/sock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "base/fork.h"
#include "base/status.h"
#include "net/sock_address.h"

/* After this time the kernel notices that a silent peer is gone. */
enum { KEEP_MS = 20000 };

/* Closes after a failure without disturbing errno. */
static void close_quietly(int fd)
{
    int kept = errno;

    oari_fork_close(fd);
    errno = kept;
}

static int set_option(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value);
}

/* The kernel counts in seconds: it waits while nothing comes, then probes. */
void oari_sock_keep_alive(int fd, int64_t lease_ms)
{
    int seconds = (int)((lease_ms + 999) / 1000);
    int every = seconds / 5 > 0 ? seconds / 5 : 1;

    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, every);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, every);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, (seconds + every - 1) / every);
}

/* Sets the options of every connection. One that the kernel lacks is no
 * failure. */
static void tune_connection(int fd)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    oari_sock_keep_alive(fd, KEEP_MS);
}

static int make_socket(const struct addrinfo *at)
{
    return oari_fork_guard(
        socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/* ---- listening ----------------------------------------------------------- */

/* Returns a descriptor, or -1 with errno. */
static int listen_at(const struct addrinfo *at, int backlog)
{
    int fd = make_socket(at);

    if (fd < 0)
        return -1;
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (at->ai_family == AF_INET6)
        set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, backlog) == 0)
        return fd;
    close_quietly(fd);
    return -1;
}

oar_status oari_sock_listen(const char *address, int backlog, int *fd)
{
    struct addrinfo *found, *at;
    oar_status status = OAR_OK;
    int made = -1;

    OARI_TRY(oari_sock_resolve(address, &found));
    /* An address that another process uses is not passed over: peers that
     * resolve the same name would connect to that process. */
    for (at = found; at != NULL; at = at->ai_next)
        if ((made = listen_at(at, backlog)) >= 0 ||
            (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT))
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
        tune_connection(oari_fork_guard(made));
    *fd = made;
    return OAR_OK;
}

/* ---- connecting ---------------------------------------------------------- */

oar_status oari_sock_connect_again(const char *address, unsigned attempt,
                                   int *fd)
{
    const struct addrinfo *at;
    struct addrinfo *found;
    oar_status status = OAR_OK;
    unsigned count = 1;
    int made;

    OARI_TRY(oari_sock_resolve(address, &found));
    for (at = found; at->ai_next != NULL; at = at->ai_next)
        count++;
    for (at = found, attempt %= count; attempt > 0; attempt--)
        at = at->ai_next;
    if ((made = make_socket(at)) >= 0) {
        tune_connection(made);
        if (connect(made, at->ai_addr, at->ai_addrlen) != 0 &&
            errno != EINPROGRESS && errno != EINTR) {
            close_quietly(made);
            made = -1;
        }
    }
    if (made < 0)
        status = oari_fail(OAR_E_SYSTEM, "connect to %s", address);
    else
        *fd = made;
    freeaddrinfo(found);
    return status;
}

/* Reads the address of one end of a socket: that of the other end by
 * getpeername, of its own by getsockname. Returns -1 with errno, as if the
 * socket is not connected. */
static int read_end(int (*get)(int, struct sockaddr *, socklen_t *), int fd,
                    oari_sock_any *end, socklen_t *bytes)
{
    *bytes = sizeof *end;
    memset(end, 0, sizeof *end);
    return get(fd, &end->any, bytes);
}

oar_status oari_sock_connected(int fd, const char *address, int *done)
{
    char own_text[OARI_SOCK_TEXT], peer_text[OARI_SOCK_TEXT];
    oari_sock_any peer;
    int error = 0;
    socklen_t bytes = sizeof error;

    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        error = errno;
    if (error == 0 && read_end(getpeername, fd, &peer, &bytes) != 0) {
        if (errno != ENOTCONN)
            return oari_fail(OAR_E_SYSTEM, "connect to %s", address);
        *done = 0;
        return OAR_OK;
    }
    if (error == 0 && oari_sock_name(fd, own_text) == OAR_OK &&
        oari_sock_peer(fd, peer_text) == OAR_OK &&
        strcmp(own_text, peer_text) == 0)
        error = ECONNREFUSED;
    if (error != 0) {
        errno = error;
        return oari_fail(OAR_E_SYSTEM, "connect to %s", address);
    }
    *done = 1;
    return OAR_OK;
}

/* ---- the two ends -------------------------------------------------------- */

oar_status oari_sock_name(int fd, char text[OARI_SOCK_TEXT])
{
    oari_sock_any own;
    socklen_t bytes;

    if (read_end(getsockname, fd, &own, &bytes) != 0)
        return oari_fail(OAR_E_SYSTEM, "ask where a socket is bound");
    return oari_sock_text(&own.any, bytes, text);
}

oar_status oari_sock_peer(int fd, char text[OARI_SOCK_TEXT])
{
    oari_sock_any peer;
    socklen_t bytes;

    if (read_end(getpeername, fd, &peer, &bytes) != 0)
        return oari_fail(OAR_E_SYSTEM, "ask for the address of the other end");
    return oari_sock_text(&peer.any, bytes, text);
}

int oari_sock_is_loopback(int fd)
{
    oari_sock_any own, peer;
    socklen_t bytes;

    if (read_end(getpeername, fd, &peer, &bytes) != 0)
        return 0;
    return oari_sock_loopback(&peer.any) ||
           (read_end(getsockname, fd, &own, &bytes) == 0 &&
            oari_sock_same_host(&own.any, &peer.any));
}

int oari_sock_has_peer(int fd)
{
    oari_sock_any peer;
    socklen_t bytes;

    return read_end(getpeername, fd, &peer, &bytes) == 0;
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
