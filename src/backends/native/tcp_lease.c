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
#include "backends/native/tcp.h"

enum { TICK_NS = 100000000, REPEATED = 3 };
#define SURE_MS INT64_C(1000)

void tcp_begin_lease(const tcp_mesh *m, const tcp_conn *c)
{
    if (m->peer[c->peer].apart)
        oari_sock_keep_alive(c->fd, m->lease_ms);
}

/* The other end has no room, as where its process is stopped, and says so to
 * what is sent to it, without anything of its own. */
static int says_there_is_no_room(const struct tcp_info *info)
{
    return info->tcpi_snd_wnd == 0 &&
           info->tcpi_last_ack_recv <= info->tcpi_last_data_sent &&
           info->tcpi_last_ack_recv < info->tcpi_last_data_recv;
}

/* Sent, perhaps not for the first time, and not answered for a while. Where a
 * process is stopped the kernel repeats itself more and more rarely: that there
 * is no answer counts only after such a repetition. One that failed here, since
 * there is no way any more, does not count as sent; then their number tells. */
static int data_unanswered(const struct tcp_info *info)
{
    int repeated = info->tcpi_retransmits >= REPEATED;

    return info->tcpi_unacked != 0 &&
           ((repeated && !says_there_is_no_room(info)) ||
            (info->tcpi_last_data_sent >= SURE_MS &&
             info->tcpi_last_ack_recv > info->tcpi_last_data_sent));
}

/* The other end had no room; asked whether it has some now, it does not answer.
 */
static int question_unanswered(tcp_conn *c, const struct tcp_info *info,
                               int64_t now)
{
    if (info->tcpi_probes == 0)
        c->asked_ns = 0;
    else if (c->asked_ns == 0)
        c->asked_ns = now;
    return c->asked_ns != 0 && now - c->asked_ns >= SURE_MS * 1000000;
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

    return (int64_t)age > m->lease_ms + SURE_MS &&
           ioctl(c->fd, SIOCOUTQ, &left) == 0 && left == 0;
}

static int has_vanished(const tcp_mesh *m, tcp_conn *c, int64_t now)
{
    struct tcp_info info = { 0 };
    socklen_t bytes = sizeof info;

    if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return 0;
    if (silence_unanswered(m, c, &info))
        return 1;
    return (question_unanswered(c, &info, now) || data_unanswered(&info)) &&
           (int64_t)info.tcpi_last_ack_recv > m->lease_ms;
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
