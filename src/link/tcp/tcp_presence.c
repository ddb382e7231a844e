/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_presence: what is known of a peer that does not come. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "link/tcp/tcp.h"

/* Of another host, or another space of processes, a pid says nothing. */
int64_t tcp_pid(const tcp_mesh *m, int peer)
{
    return m->host[peer] == m->host[m->rank] ? m->peer[peer].pid : 0;
}

static int64_t since_answer(const tcp_conn *c)
{
    struct tcp_info info;
    socklen_t bytes = sizeof info;

    if (c == NULL || c->fd < 0 || c->state == TCP_CONNECTING ||
        getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return -1;
    return (int64_t)info.tcpi_last_ack_recv;
}

/* An acknowledgement comes from its system, even if the process is stopped. */
int64_t tcp_answered(const tcp_mesh *m, int peer)
{
    const tcp_peer *p = &m->peer[peer];
    int64_t mine = since_answer(p->conn[0]), its = since_answer(p->theirs);

    return mine < 0 || (its >= 0 && its < mine) ? its : mine;
}
