/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_council: notes of ranks that form a new group (comm/group/membership.h),
 * over connections of their own: those that carried messages may have been cut
 * off in the middle of one. Such a connection is made like one that tells a
 * fault, and goes one way; the other side makes its own. A peer whose listener
 * is not there any more is gone. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "link/tcp/tcp.h"

enum { PAUSE_NS = 20000000, SHUT_MAX = 2 };

/* What is between me and one peer. */
typedef struct tcp_seat {
    tcp_conn *conn; /* mine, to it */
    unsigned sent;  /* which of my notes it has been sent over that */
    int64_t again_ns;
    int heard;
    unsigned char note[OARI_BALLOT_BYTES];
} tcp_seat;

static int take_seats(tcp_mesh *m)
{
    if (m->council == NULL)
        m->council = oari_alloc((size_t)m->ranks, sizeof *m->council);
    if (m->council == NULL)
        m->failed = OAR_E_NOMEM;
    return m->council != NULL;
}

int tcp_note_of(const tcp_mesh *m, int peer, void *note)
{
    if (m->council == NULL || !m->council[peer].heard)
        return 0;
    memcpy(note, m->council[peer].note, OARI_BALLOT_BYTES);
    return 1;
}

void tcp_note_hear(tcp_mesh *m, tcp_conn *c)
{
    if (c->slot < 0 &&
        tcp_unseal(m, c, c->small, OARI_BALLOT_BYTES) != OAR_OK) {
        tcp_lose(m, c);
        return;
    }
    if (!take_seats(m))
        return;
    memcpy(m->council[c->peer].note, c->small, OARI_BALLOT_BYTES);
    m->council[c->peer].heard = 1;
}

static void call(tcp_mesh *m, int peer)
{
    tcp_seat *s = &m->council[peer];

    if (oari_now_ns() < s->again_ns)
        return;
    s->again_ns = oari_now_ns() + PAUSE_NS;
    s->sent = 0;
    s->conn = tcp_call(m, peer, TCP_FAULT_SLOT);
    if (s->conn == NULL && oar_last_error()->sys_errno == ECONNREFUSED)
        m->peer[peer].shut++;
}

static void send_note(tcp_mesh *m, tcp_seat *s)
{
    unsigned char raw[OARI_BALLOT_BYTES + OARI_SEAL_TAG];
    oari_frame frame = { .kind = OARI_FRAME_BALLOT, .bytes = sizeof raw };

    if (s->conn->state != TCP_CALLING && s->conn->state != TCP_UP)
        return;
    if (s->sent != m->notes) {
        memcpy(raw, m->note, OARI_BALLOT_BYTES);
        if (tcp_seal(m, s->conn, raw, OARI_BALLOT_BYTES) == OAR_OK &&
            tcp_put(m, s->conn, frame, raw))
            s->sent = m->notes;
    }
    tcp_flush(m, s->conn);
}

static void spread_to(tcp_mesh *m, int peer)
{
    tcp_peer *p = &m->peer[peer];
    tcp_seat *s = &m->council[peer];

    if (peer == m->rank || p->address[0] == 0 || p->gone)
        return;
    if (s->conn != NULL && s->conn->state == TCP_DEAD)
        s->conn = NULL;
    if (s->conn == NULL)
        call(m, peer);
    if (p->shut >= SHUT_MAX)
        p->gone = p->farewell ? OARI_PEER_LEFT : OARI_PEER_DIED;
    else if (s->conn != NULL)
        send_note(m, s);
}

void tcp_note_spread(tcp_mesh *m)
{
    for (int r = 0; m->notes != 0 && r < m->ranks; r++)
        spread_to(m, r);
}

void tcp_note_say(tcp_mesh *m, const void *note)
{
    if (!take_seats(m))
        return;
    memcpy(m->note, note, OARI_BALLOT_BYTES);
    m->notes++;
    tcp_note_spread(m);
}
