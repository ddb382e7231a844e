/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_bulletin: facts (bulletin.h) that ranks send each other. One that has to
 * arrive although the group has failed goes over a connection of its own
 * (TCP_BULLETIN_SLOT), because those that carried messages may have been cut in
 * the middle of one. Such a connection is never TLS, and goes one way: each
 * fact on it is sealed.
 *
 * Ballots (comm/group/membership.h) are sent to all ranks that are not gone,
 * again whenever a connection has ended. A peer whose listener is not there any
 * more is gone. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "link/tcp/tcp.h"

enum { PAUSE_NS = 20000000, REFUSED_MAX = 2 };

int tcp_put_fact(tcp_mesh *m, tcp_conn *c, oari_fact fact, const void *data)
{
    oari_frame frame = { .kind = OARI_FRAME_BULLETIN,
                         .tag = (uint64_t)fact,
                         .bytes = oari_fact_bytes(fact) };
    unsigned char raw[TCP_SEALED];

    memcpy(raw, data, frame.bytes);
    if (c->slot < 0) {
        if (tcp_seal(m, c, fact, raw) != OAR_OK)
            return 0;
        frame.bytes += OARI_SEAL_TAG;
    }
    if (!tcp_put(m, c, frame, raw)) {
        tcp_flush(m, c);
        if (!tcp_put(m, c, frame, raw))
            return 0;
    }
    tcp_flush(m, c);
    return 1;
}

/* Keeps what a peer shows; a fault also for all, if it counts before those of
 * other peers. */
void tcp_hear_fact(tcp_mesh *m, tcp_conn *c)
{
    oari_fact fact = (oari_fact)c->now.tag;
    tcp_peer *p = &m->peer[c->peer];
    oari_fault heard, best;

    if (c->slot < 0 && tcp_unseal(m, c, fact, c->small) != OAR_OK) {
        tcp_lose(m, c);
        return;
    }
    if (p->bulletin == NULL)
        p->bulletin = oari_alloc(1, sizeof *p->bulletin);
    if (p->bulletin == NULL)
        m->failed = OAR_E_NOMEM;
    else
        oari_bulletin_write(p->bulletin, fact, c->small);
    if (fact == OARI_FACT_FAULT || fact == OARI_FACT_FINAL_FAULT) {
        oari_fault_read(c->small, &heard);
        if (!oari_bulletin_read_fault(&m->heard, fact, &best) ||
            oari_fault_before(&heard, &best))
            oari_bulletin_write(&m->heard, fact, c->small);
    }
    m->votes |= fact == OARI_FACT_BALLOT;
}

/* ---- ballots ------------------------------------------------------------- */

static void call_for_ballot(tcp_mesh *m, int peer)
{
    tcp_peer *p = &m->peer[peer];

    if (oari_now_ns() < p->ballot_again_ns)
        return;
    p->ballot_again_ns = oari_now_ns() + PAUSE_NS;
    p->ballots = 0;
    p->ballot_conn = tcp_call(m, peer, TCP_BULLETIN_SLOT);
    if (p->ballot_conn == NULL && oar_last_error()->sys_errno == ECONNREFUSED)
        p->fact_refused++;
}

static void send_ballot(tcp_mesh *m, tcp_peer *p)
{
    unsigned char ballot[OARI_BALLOT_BYTES];
    tcp_conn *c = p->ballot_conn;

    if (c->state != TCP_CALLING && c->state != TCP_UP)
        return;
    if (p->ballots != m->ballots &&
        oari_bulletin_read(&m->mine, OARI_FACT_BALLOT, ballot) &&
        tcp_put_fact(m, c, OARI_FACT_BALLOT, ballot))
        p->ballots = m->ballots;
    tcp_flush(m, c);
}

void tcp_spread_ballot(tcp_mesh *m)
{
    for (int r = 0; m->ballots != 0 && r < m->ranks; r++) {
        tcp_peer *p = &m->peer[r];

        if (r == m->rank || p->address[0] == 0 || p->gone)
            continue;
        if (p->ballot_conn != NULL && p->ballot_conn->state == TCP_DEAD)
            p->ballot_conn = NULL;
        if (p->ballot_conn == NULL)
            call_for_ballot(m, r);
        if (p->fact_refused >= REFUSED_MAX)
            p->gone = p->goodbye ? OARI_PEER_LEFT : OARI_PEER_DIED;
        else if (p->ballot_conn != NULL)
            send_ballot(m, p);
    }
}

void tcp_show_ballot(tcp_mesh *m, const void *ballot)
{
    oari_bulletin_write(&m->mine, OARI_FACT_BALLOT, ballot);
    m->ballots++;
    m->votes = 1;
    tcp_spread_ballot(m);
}
