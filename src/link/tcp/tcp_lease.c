/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_lease: a host that vanished says nothing, not even that it is gone.
 *
 * As long as it lives its kernel answers, whatever the process does. On a
 * connection on which nothing is under way the kernel asks by itself
 * (SO_KEEPALIVE). While something is, it only repeats that, for a quarter of an
 * hour; so here it is asked when the last answer came. TCP_USER_TIMEOUT would
 * not do: it also ends a connection whose other end answers, but takes nothing,
 * which is what a stopped process looks like.
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
    ANSWER_MS = 500 /* for an answer to come, over the slowest wire */
};
static const int64_t MS = 1000000; /* in ns */

/* How often the kernel asks by itself (oari_sock_keep_alive). */
static int64_t every_ms(const tcp_mesh *m)
{
    return m->lease_ms > 5000 ? m->lease_ms / 5 : 1000;
}

/* What the kernel asks on a connection, sent again or as a probe, and is not
 * answered. It asks more and more rarely: that there was no answer for a while
 * says nothing, as the wire may work again since it was last asked. So the
 * first question and the last one that were not answered have to be a lease
 * apart; and the last one has had its time. One that could not even be sent,
 * because there is no way any more, is counted, too. */
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

/* The same, where nobody has looked for long: what the last question was that
 * has been sent. Before the silence began, the kernel had heard of the other
 * end within a fifth of a lease, at which it asks by itself. */
static int was_unanswered(const tcp_mesh *m, const struct tcp_info *info)
{
    int64_t sent = info->tcpi_last_data_sent;

    return info->tcpi_unacked != 0 && info->tcpi_retransmits != 0 &&
           sent >= ANSWER_MS &&
           info->tcpi_last_ack_recv - sent >= m->lease_ms + every_ms(m);
}

/* Nothing is under way, and what the kernel asks by itself is not answered. It
 * gives up after some questions; but where it cannot even ask, since its own
 * interface or route is gone, it never does. */
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

/* A call that nobody answers has had no answer before: it counts how often it
 * was repeated. */
static int call_unanswered(const tcp_mesh *m, const tcp_conn *c,
                           const struct tcp_info *info, int64_t now)
{
    return info->tcpi_retransmits >= REPEATED &&
           now - c->since_ns > m->lease_ms * MS;
}

static int has_vanished(const tcp_mesh *m, tcp_conn *c, int64_t now)
{
    struct tcp_info info = { 0 };
    socklen_t bytes = sizeof info;

    if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return 0;
    if (info.tcpi_state == SYN_SENT)
        return call_unanswered(m, c, &info, now);
    return is_unanswered(m, c, &info, now) || was_unanswered(m, &info) ||
           silence_unanswered(m, c, &info);
}

static void look_at(tcp_mesh *m, tcp_conn *c, int64_t now)
{
    int made = c->state == TCP_UP || c->state == TCP_CALLING || c->shaking;

    if (made && c->peer >= 0 && c->slot >= 0 && m->peer[c->peer].apart &&
        has_vanished(m, c, now))
        tcp_vanish(m, c->peer);
}

void tcp_look_at_leases(tcp_mesh *m)
{
    int64_t now = oari_now_ns();

    if (now < m->tick_ns)
        return;
    m->tick_ns = now + TICK_NS;
    tcp_tidy_strangers(m);
    for (tcp_conn *c = m->conns; c != NULL; c = c->next)
        look_at(m, c, now);
}

/* Half of a lease, and something repeated in vain: that is no proof, but what
 * is said to it now would not arrive either. */
static int is_doubtful(const tcp_mesh *m, const tcp_conn *c)
{
    struct tcp_info info = { 0 };
    socklen_t bytes = sizeof info;

    return c->state != TCP_DEAD && c->peer >= 0 && c->slot >= 0 &&
           m->peer[c->peer].apart &&
           getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
           info.tcpi_unacked != 0 && info.tcpi_retransmits > 1 &&
           2 * (int64_t)info.tcpi_last_ack_recv > m->lease_ms;
}

void tcp_end_doubtful(tcp_mesh *m)
{
    for (tcp_conn *c = m->conns; c != NULL; c = c->next)
        if (is_doubtful(m, c))
            tcp_vanish(m, c->peer);
}
