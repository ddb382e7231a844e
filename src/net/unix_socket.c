/* SPDX-License-Identifier: Apache-2.0 */
/* unix_socket: unix sockets that pass descriptors. */
#include "net/unix_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"

static socklen_t make_address(const char *name, struct sockaddr_un *address)
{
    size_t n = strnlen(name, OARI_UNIX_NAME - 1);

    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path + 1, name, n); /* [0] is 0: abstract */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

static oar_status make_socket(int *fd)
{
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return oari_fail(OAR_E_SYSTEM, "make a unix socket");
    return OAR_OK;
}

oar_status oari_unix_listen(char name[OARI_UNIX_NAME], int *fd)
{
    unsigned char random[12];
    int used = snprintf(name, OARI_UNIX_NAME, "oarsong-");
    struct sockaddr_un address;
    socklen_t length;
    int made;

    if (getrandom(random, sizeof random, 0) != sizeof random)
        return oari_fail(OAR_E_SYSTEM, "getrandom");
    for (size_t i = 0; i < sizeof random; i++)
        used += snprintf(name + used, OARI_UNIX_NAME - (size_t)used, "%02x",
                         random[i]);
    OARI_TRY(make_socket(&made));
    length = make_address(name, &address);
    if (bind(made, (struct sockaddr *)&address, length) != 0 ||
        listen(made, 4096) != 0) {
        oar_status status = oari_fail(OAR_E_SYSTEM, "listen on a unix socket");
        close(made);
        return status;
    }
    *fd = made;
    return OAR_OK;
}

oar_status oari_unix_connect(const char *name, int *fd)
{
    struct sockaddr_un address;
    socklen_t length = make_address(name, &address);
    int made;

    OARI_TRY(make_socket(&made));
    if (connect(made, (struct sockaddr *)&address, length) != 0) {
        oari_fail(errno == ECONNREFUSED ? OAR_E_CLOSED : OAR_E_SYSTEM,
                  "connect to a unix socket: %s", strerror(errno));
        close(made);
        return oar_last_error()->status;
    }
    *fd = made;
    return OAR_OK;
}

static oar_status read_credentials(int fd, struct ucred *peer)
{
    socklen_t length = sizeof *peer;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, peer, &length) != 0)
        return oari_fail(OAR_E_SYSTEM, "ask which process connected");
    return OAR_OK;
}

oar_status oari_unix_pid(int fd, int64_t *pid)
{
    struct ucred peer;

    OARI_TRY(read_credentials(fd, &peer));
    *pid = peer.pid;
    return OAR_OK;
}

static oar_status wait_readable(int fd, int64_t deadline_ns)
{
    struct pollfd wait = { fd, POLLIN, 0 };
    int ready;

    do
        ready = poll(&wait, 1, oari_deadline_left_ms(deadline_ns));
    while (ready < 0 && errno == EINTR);
    if (ready < 0)
        return oari_fail(OAR_E_SYSTEM, "poll");
    if (ready == 0)
        return oari_fail(OAR_E_TIMEOUT, "nothing came over a unix socket");
    return OAR_OK;
}

oar_status oari_unix_accept(int listener, int64_t deadline_ns, int *fd,
                            int64_t *pid)
{
    struct ucred peer;
    int made;

    for (;;) {
        OARI_TRY(wait_readable(listener, deadline_ns));
        made = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (made < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (made < 0)
            return oari_fail(OAR_E_SYSTEM, "accept");
        if (read_credentials(made, &peer) == OAR_OK && peer.uid == geteuid())
            break;
        close(made);
    }
    *fd = made;
    *pid = peer.pid;
    return OAR_OK;
}

oar_status oari_unix_send(int fd, const void *data, size_t bytes,
                          const int *pass, int passes)
{
    union {
        char room[CMSG_SPACE(OARI_UNIX_FDS * sizeof(int))];
        struct cmsghdr align;
    } control = { 0 };
    struct iovec piece = { 0 };
    struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
    size_t pass_bytes = (size_t)passes * sizeof *pass;
    ssize_t sent;

    memcpy(&piece.iov_base, &data, sizeof data);
    piece.iov_len = bytes;
    if (passes > 0) {
        struct cmsghdr *head;
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE(pass_bytes);
        head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(pass_bytes);
        memcpy(CMSG_DATA(head), pass, pass_bytes);
    }
    do
        sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
        return oari_fail(OAR_E_CLOSED, "the other end is gone");
    if (sent != (ssize_t)bytes)
        return oari_fail(OAR_E_SYSTEM, "send over a unix socket");
    return OAR_OK;
}

/* Takes the descriptors out of a message. Returns 0 and closes them all if
 * there are not as many as expected. */
static int take_fds(struct msghdr *message, int *pass, int passes)
{
    int got[OARI_UNIX_FDS], found = 0;
    struct cmsghdr *head = CMSG_FIRSTHDR(message);

    if (head != NULL && head->cmsg_level == SOL_SOCKET &&
        head->cmsg_type == SCM_RIGHTS) {
        found = (int)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(got, CMSG_DATA(head), (size_t)found * sizeof(int));
    }
    if (found == passes) {
        if (passes > 0)
            memcpy(pass, got, (size_t)passes * sizeof *pass);
        return 1;
    }
    while (found > 0)
        close(got[--found]);
    return 0;
}

/* Returns whether a message lost its descriptors because this process may have
 * no more. The system does not say so; but it then refuses another one too. */
static int lacks_descriptors(int fd, const struct msghdr *message)
{
    int another;

    if ((message->msg_flags & MSG_CTRUNC) == 0)
        return 0;
    if ((another = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0)
        return 1;
    close(another);
    return 0;
}

oar_status oari_unix_recv(int fd, void *data, size_t bytes, int *pass,
                          int passes, int64_t deadline_ns)
{
    union {
        char room[CMSG_SPACE(OARI_UNIX_FDS * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec piece = { data, bytes };
    struct msghdr message = { .msg_iov = &piece,
                              .msg_iovlen = 1,
                              .msg_control = control.room,
                              .msg_controllen = sizeof control.room };
    ssize_t got;
    int whole;

    OARI_TRY(wait_readable(fd, deadline_ns));
    do
        got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got == 0 || (got < 0 && errno == ECONNRESET))
        return oari_fail(OAR_E_CLOSED, "the other end is gone");
    if (got < 0)
        return oari_fail(OAR_E_SYSTEM, "receive over a unix socket");
    whole = take_fds(&message, pass, passes);
    if (!whole || got != (ssize_t)bytes ||
        (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
        for (int i = 0; whole && i < passes; i++)
            close(pass[i]);
        return lacks_descriptors(fd, &message)
                   ? oari_fail(OAR_E_SYSTEM, "receive a descriptor from a peer")
                   : oari_fail(OAR_E_DATA, "an unexpected message of %zd bytes",
                               got);
    }
    return OAR_OK;
}
