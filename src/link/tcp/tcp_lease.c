/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_lease: hosts that do not answer any more. A host that vanished does not
 * close its connections.
 *
 * While a host lives, its kernel answers, whatever the process does. On an idle
 * connection the kernel on this side asks by itself (SO_KEEPALIVE). While data
 * is in flight it only sends that again, for a quarter of an hour; so here it
 * is asked when the last answer came. TCP_USER_TIMEOUT would not do: it also
 * ends a connection whose other end answers, but takes nothing, as a stopped
 * process does.
 */
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "net/sock.h"
#include "link/tcp/tcp.h"

enum {
    TICK_NS = 100000000,
    SYN_SENT = 2, /* a tcpi_state, which linux/tcp.h does not name */
    REPEATED = 3,
    ANSWER_MS = 500 /* for an answer, over the slowest network */
};
static const int64_t MS = 1000000; /* in ns */

/* Returns how often the kernel asks by itself (oari_sock_keep_alive). */
static int64_t every_ms(const tcp_mesh *m)
{
    return m->lease_ms > 5000 ? m->lease_ms / 5 : 1000;
}

/* Returns whether retransmissions and probes of the kernel have had no answer
 * for a lease. The kernel asks more and more rarely: a while without an answer
 * says nothing, because the network may work again since it last asked. So the
 * first and the last question without an answer have to be a lease apart, and
 * the last one has had its time. A question that could not even be sent,
 * because there is no route any more, counts, too. */
static int is_unanswered(const tcp_mesh *m, tcp_conn *c,
                         const struct tcp_info *info, int64_t now)
{
    uint32_t asked = (uint32_t)info->tcpi_retransmits + info->tcpi_probes;
    int64_t answered_ns = now - (int64_t)info->tcpi_last_ack_recv * MS;

    if (asked == 0 || c->asked == 0 || answered_ns > c->asked_first_ns)
        c->asked_first_ns = c->asked_ns = now;
    else if (asked != c->asked)
        c->asked_ns = now;
    c->asked = asked;
    return asked != 0 && c->asked_ns - c->asked_first_ns >= m->lease_ms * MS &&
           now - c->asked_ns >= ANSWER_MS * MS;
}

/* Returns the same where this rank has not looked for long, from the last
 * question that was sent. Before the silence began, the kernel had an answer
 * within a fifth of a lease, because it asks that often by itself. */
static int was_unanswered(const tcp_mesh *m, const struct tcp_info *info)
{
    int64_t sent = info->tcpi_last_data_sent;

    return info->tcpi_unacked != 0 && info->tcpi_retransmits != 0 &&
           sent >= ANSWER_MS &&
           info->tcpi_last_ack_recv - sent >= m->lease_ms + every_ms(m);
}

/* Returns the same for an idle connection, on which the kernel asks by itself.
 * It gives up after some questions; but where it cannot even ask, because its
 * own interface or route is gone, it never does. */
static int silence_unanswered(const tcp_mesh *m, const tcp_conn *c,
                              const struct tcp_info *info)
{
    uint32_t age = info->tcpi_last_ack_recv < info->tcpi_last_data_recv
                       ? info->tcpi_last_ack_recv
                       : info->tcpi_last_data_recv;
    int left = 0;

    return (int64_t)age > m->lease_ms + every_ms(m) + ANSWER_MS &&
           ioctl(c->fd, SIOCOUTQ, &left) == 0 && left == 0;
}

static int has_vanished(const tcp_mesh *m, tcp_conn *c, int64_t now)
{
    struct tcp_info info = { 0 };
    socklen_t bytes = sizeof info;

    if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return 0;
    if (info.tcpi_state == SYN_SENT) /* a call has had no answer before */
        return info.tcpi_retransmits >= REPEATED &&
               now - c->since_ns > m->lease_ms * MS;
    return is_unanswered(m, c, &info, now) || was_unanswered(m, &info) ||
           silence_unanswered(m, c, &info);
}

void tcp_check_leases(tcp_mesh *m)
{
    int64_t now = oari_now_ns();

    if (now < m->tick_ns)
        return;
    m->tick_ns = now + TICK_NS;
    tcp_drop_late_callers(m);
    for (tcp_conn *c = m->conns; c != NULL; c = c->next) {
        int made = c->state == TCP_UP || c->state == TCP_CALLING ||
                   c->in_tls_handshake;

        if (made && c->peer >= 0 && c->slot >= 0 && m->peer[c->peer].apart &&
            has_vanished(m, c, now))
            tcp_vanish(m, c->peer);
    }
}

/* A peer is suspected if it has not answered for half of a lease, though
 * something was sent again. That is no proof, but what is sent to it now would
 * not arrive either. */
void tcp_drop_suspected(tcp_mesh *m)
{
    for (tcp_conn *c = m->conns; c != NULL; c = c->next) {
        struct tcp_info info = { 0 };
        socklen_t bytes = sizeof info;

        if (c->state != TCP_DEAD && c->peer >= 0 && c->slot >= 0 &&
            m->peer[c->peer].apart &&
            getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
            info.tcpi_unacked != 0 && info.tcpi_retransmits > 1 &&
            2 * (int64_t)info.tcpi_last_ack_recv > m->lease_ms)
            tcp_vanish(m, c->peer);
    }
}

int tcp_restless(const tcp_mesh *m)
{
    if (m->unsettled != 0 || m->unauthenticated != 0)
        return 1;
    for (const tcp_conn *c = m->conns; c != NULL; c = c->next)
        if (c->state != TCP_UP || c->asked != 0)
            return 1;
    return 0;
}

/* ---- what is known of a peer --------------------------------------------- */

/* On another host, or in another pid namespace, a pid means nothing. */
int64_t tcp_pid(const tcp_mesh *m, int peer)
{
    return m->host[peer] == m->host[m->rank] ? m->peer[peer].pid : 0;
}

/* An acknowledgement comes from the peer's kernel, even if its process is
 * stopped. */
int64_t tcp_answered(const tcp_mesh *m, int peer)
{
    const tcp_conn *both[] = { m->peer[peer].conn[0], m->peer[peer].theirs };
    int64_t least = -1;

    for (int i = 0; i < 2; i++) {
        const tcp_conn *c = both[i];
        struct tcp_info info = { 0 };
        socklen_t bytes = sizeof info;

        if (c != NULL && c->fd >= 0 && c->state != TCP_CONNECTING &&
            getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
            (least < 0 || (int64_t)info.tcpi_last_ack_recv < least))
            least = (int64_t)info.tcpi_last_ack_recv;
    }
    return least;
}
