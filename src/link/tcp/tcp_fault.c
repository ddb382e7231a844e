/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_fault: how all ranks get the same fault. A rank that fails tells its
 * peers, and a rank that hears of a fault tells its own. A rank that waits for
 * another is connected to it, so along such pairs every rank that waits for
 * nothing hears of it. The rank that saw the fault first also tells those to
 * which it has no connection yet.
 *
 * Several ranks may see faults before they hear of each other's. Of those that
 * a rank knows one counts (oari_fault_before), and it shows that one
 * (OARI_FACT_FAULT) to its peers, and always to the rank that saw it. When all
 * ranks that live have shown the same to that rank, none can show another any
 * more; it ends, and shows that to all (OARI_FACT_FINAL_FAULT), which settles it
 * for them, too. A rank whose time is up ends with the fault that it knows, and
 * shows that: a fault that a rank has ended with counts before all others.
 *
 * A socket on which data was cut off in the middle cannot carry anything more;
 * the peer is told over another, made for that. The time for all of it is
 * bounded.
 */
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "link/tcp/tcp.h"

enum { TELL_MS = 200 };

void tcp_publish(tcp_mesh *m, const oari_fault *fault)
{
    if (oari_bulletin_write_fault(&m->mine, OARI_FACT_FAULT, fault))
        tcp_wake(m);
}

void tcp_conclude(tcp_mesh *m, const oari_fault *fault)
{
    oari_bulletin_write_fault(&m->mine, OARI_FACT_FINAL_FAULT, fault);
    tcp_wake(m);
}

/* ---- which fault counts -------------------------------------------------- */

int tcp_settled(const tcp_mesh *m)
{
    return oari_bulletin_has(&m->heard, OARI_FACT_FINAL_FAULT);
}

int tcp_published(const tcp_mesh *m, oari_fault *fault)
{
    oari_fault theirs;

    if (oari_bulletin_read_fault(&m->mine, OARI_FACT_FINAL_FAULT, fault) ||
        oari_bulletin_read_fault(&m->heard, OARI_FACT_FINAL_FAULT, fault))
        return 1;
    if (!oari_bulletin_read_fault(&m->heard, OARI_FACT_FAULT, &theirs))
        return oari_bulletin_read_fault(&m->mine, OARI_FACT_FAULT, fault);
    if (!oari_bulletin_read_fault(&m->mine, OARI_FACT_FAULT, fault) ||
        oari_fault_before(&theirs, fault))
        *fault = theirs;
    return 1;
}

/* Returns whether a peer says the same, or has no say: because it is gone, or
 * because the fault names it as the cause. */
static int says_the_same(const tcp_mesh *m, int peer, const oari_fault *best,
                         const unsigned char raw[OARI_FAULT_BYTES])
{
    const tcp_peer *p = &m->peer[peer];
    unsigned char theirs[OARI_FAULT_BYTES];

    if (peer == m->rank || p->gone || p->address[0] == 0 ||
        (peer == best->error.peer && oari_fault_sure(best)))
        return 1;
    return p->bulletin != NULL &&
           (oari_bulletin_read(p->bulletin, OARI_FACT_FINAL_FAULT, theirs) ||
            oari_bulletin_read(p->bulletin, OARI_FACT_FAULT, theirs)) &&
           memcmp(theirs, raw, sizeof theirs) == 0;
}

void tcp_compare(tcp_mesh *m)
{
    unsigned char raw[OARI_FAULT_BYTES];
    oari_fault best;
    int all = tcp_published(m, &best);

    if (all)
        oari_fault_write(&best, raw);
    for (int r = 0; all && r < m->ranks; r++)
        all = says_the_same(m, r, &best, raw);
    atomic_store(&m->unanimous, all);
}

/* ---- telling ------------------------------------------------------------- */

/* Encodes the fault that this rank has to show, and returns as which fact. */
static oari_fact encode_fault(const tcp_mesh *m,
                              unsigned char raw[OARI_FAULT_BYTES])
{
    oari_fault fault;

    if (tcp_published(m, &fault))
        oari_fault_write(&fault, raw);
    return oari_bulletin_has(&m->mine, OARI_FACT_FINAL_FAULT)
               ? OARI_FACT_FINAL_FAULT
               : OARI_FACT_FAULT;
}

static int put_fault(tcp_mesh *m, tcp_conn *c)
{
    unsigned char raw[OARI_FAULT_BYTES];
    oari_fact fact = encode_fault(m, raw);

    return tcp_put_fact(m, c, fact, raw);
}

void tcp_tell_late(tcp_mesh *m, tcp_conn *c)
{
    tcp_say_hello(m, c);
    if (oari_bulletin_has(&m->mine, OARI_FACT_FAULT))
        put_fault(m, c);
    c->slot = TCP_BULLETIN_SLOT; /* for nothing else */
}

/* A call made for facts before. */
static tcp_conn *my_call(const tcp_mesh *m, int peer)
{
    for (tcp_conn *c = m->conns; c != NULL; c = c->next)
        if (c->peer == peer && c->slot == TCP_BULLETIN_SLOT &&
            (c->state == TCP_CALLING || c->state == TCP_CONNECTING))
            return c;
    return NULL;
}

static int try_fault(tcp_mesh *m, tcp_conn *c)
{
    return c != NULL && c->state != TCP_CONNECTING && put_fault(m, c);
}

/* Returns how many calls have to be made for it: none or one. */
static int tell_peer(tcp_mesh *m, int peer, int unconnected_too)
{
    tcp_peer *p = &m->peer[peer];
    tcp_conn *call = my_call(m, peer);
    int known = p->conn[0] != NULL || p->theirs != NULL || p->called;

    if (peer == m->rank || p->gone || p->address[0] == 0)
        return 0;
    if (try_fault(m, p->conn[0]) || try_fault(m, p->theirs) ||
        try_fault(m, call))
        return 0;
    if (!known && !unconnected_too)
        return 0;
    if (call != NULL && call->state == TCP_CONNECTING)
        return 0; /* it has had its time */
    return tcp_call(m, peer, TCP_BULLETIN_SLOT) != NULL;
}

/* Sends the fault over each call as soon as it is made. TLS would have to wait
 * for an answer, which a rank that computes does not give. */
static void finish_calls(tcp_mesh *m)
{
    int64_t deadline = oari_deadline(TELL_MS);

    while (oari_now_ns() < deadline) {
        struct epoll_event event[16];
        int found, calling = 0;

        for (const tcp_conn *c = m->conns; c != NULL; c = c->next)
            calling |= c->slot == TCP_BULLETIN_SLOT && c->peer >= 0 &&
                       (c->state == TCP_CONNECTING ||
                        (c->state == TCP_CALLING && c->out_at < c->out_end &&
                         !c->mute));
        if (!calling)
            return;
        found = epoll_wait(m->epoll_fd, event, 16, 1);
        for (int i = 0; i < found; i++) {
            tcp_conn *c = event[i].data.ptr;
            if (event[i].data.ptr == &m->listener ||
                event[i].data.ptr == &m->event_fd ||
                c->slot != TCP_BULLETIN_SLOT)
                continue;
            if (c->state != TCP_CONNECTING) {
                tcp_flush(m, c);
                continue;
            }
            tcp_connected(m, c);
            if (c->state == TCP_CALLING)
                put_fault(m, c);
        }
    }
}

void tcp_tell(tcp_mesh *m)
{
    unsigned char raw[OARI_FAULT_BYTES];
    oari_fault fault;
    uint64_t word;
    int calls = 0;

    if (!oari_bulletin_has(&m->mine, OARI_FACT_FAULT) ||
        !tcp_published(m, &fault))
        return;
    word = (uint64_t)(encode_fault(m, raw) + 1) << 32;
    word |= oari_crc32c(raw, sizeof raw);
    /* the rank that saw a settled fault has told all: not once more */
    if (word == m->told ||
        (m->told != 0 && tcp_settled(m) && fault.error.rank != m->rank))
        return;
    if (m->told == 0)
        tcp_drop_suspected(m);
    m->told = word;
    /* to the peers that it has connections to, and to the rank that saw the
     * fault; that rank tells all */
    for (int r = 0; r < m->ranks; r++)
        calls += tell_peer(
            m, r, fault.error.rank == m->rank || fault.error.rank == r);
    if (calls != 0)
        finish_calls(m);
}
