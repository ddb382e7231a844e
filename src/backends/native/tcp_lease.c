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
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "net/sock.h"
#include "backends/native/tcp.h"

enum { TICK_NS = 100000000 };
#define SURE_MS INT64_C(1000)

void tcp_begin_lease(const tcp_mesh *m, const tcp_conn *c)
{
    if (m->peer[c->peer].apart)
        oari_sock_keep_alive(c->fd, m->lease_ms);
}

/* Sent, perhaps not for the first time, and not answered for a while. Where a
 * process is stopped the kernel repeats itself more and more rarely: that there
 * is no answer counts only after such a repetition. */
static int data_unanswered(const struct tcp_info *info)
{
    return info->tcpi_unacked != 0 && info->tcpi_last_data_sent >= SURE_MS &&
           info->tcpi_last_ack_recv > info->tcpi_last_data_sent;
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

static int has_vanished(const tcp_mesh *m, tcp_conn *c, int64_t now)
{
    struct tcp_info info = { 0 };
    socklen_t bytes = sizeof info;

    if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return 0;
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
