/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_fault: one record for all. Whoever breaks tells its peers; whoever hears
 * of it tells its own. A rank that waits for another is connected to it, so
 * along such pairs everyone that waits in vain hears of it. The rank that saw
 * the fault first tells those, too, to whom it has no connection yet.
 *
 * A socket on which data was cut off in the middle cannot carry anything more;
 * the peer is told over another, made for that. The time for all of it is
 * bounded.
 */
#include <sys/epoll.h>

#include "base/clock.h"
#include "comm/board.h"
#include "backends/native/tcp.h"

enum { TELL_MS = 200 };

void tcp_publish(tcp_mesh *m, const oar_error *record)
{
    int none = OARI_FAULT_NONE;

    if (!atomic_compare_exchange_strong(&m->mine, &none, OARI_FAULT_WRITING))
        return;
    m->my_fault = *record;
    atomic_store_explicit(&m->mine, OARI_FAULT_READY, memory_order_release);
    tcp_wake(m);
}

const oar_error *tcp_published(const tcp_mesh *m)
{
    int heard = atomic_load_explicit(&m->heard, memory_order_acquire);
    int mine = atomic_load_explicit(&m->mine, memory_order_acquire) ==
               OARI_FAULT_READY;
    const oar_error *theirs = heard != 0 ? &m->their_fault[heard - 1] : NULL;

    if (!mine || (theirs != NULL && oari_fault_before(theirs, &m->my_fault)))
        return theirs;
    return &m->my_fault;
}

/* Only the driver hears, and what has been heard never changes: no race. */
void tcp_hear(tcp_mesh *m, const unsigned char raw[OARI_FAULT_BYTES])
{
    int best = atomic_load(&m->heard);
    oar_error *next = &m->their_fault[m->hearsay];

    if (m->hearsay == TCP_FAULTS)
        return;
    oari_fault_read(raw, next);
    if (best != 0 && !oari_fault_before(next, &m->their_fault[best - 1]))
        return;
    atomic_store_explicit(&m->heard, ++m->hearsay, memory_order_release);
}

static int put_fault(tcp_mesh *m, tcp_conn *c)
{
    oari_frame frame = { .kind = OARI_FRAME_FAULT, .bytes = OARI_FAULT_BYTES };
    unsigned char raw[OARI_FAULT_BYTES];

    oari_fault_write(&m->my_fault, raw);
    if (!tcp_put(m, c, frame, raw)) {
        tcp_flush(m, c);
        if (!tcp_put(m, c, frame, raw))
            return 0;
    }
    tcp_flush(m, c);
    return 1;
}

void tcp_tell_late(tcp_mesh *m, tcp_conn *c)
{
    tcp_say_hello(m, c);
    c->slot = TCP_FAULT_SLOT;
    if (atomic_load_explicit(&m->mine, memory_order_acquire) ==
        OARI_FAULT_READY)
        put_fault(m, c);
}

static int can_carry(const tcp_conn *c)
{
    return c != NULL && c->state != TCP_CONNECTING;
}

/* How many calls have to be made for it: none or one. */
static int tell_peer(tcp_mesh *m, int peer, int strangers_too)
{
    tcp_peer *p = &m->peer[peer];
    int known = p->conn[0] != NULL || p->theirs != NULL || p->called;

    if (peer == m->rank || p->gone || p->address[0] == 0)
        return 0;
    if (can_carry(p->conn[0]) && put_fault(m, p->conn[0]))
        return 0;
    if (can_carry(p->theirs) && put_fault(m, p->theirs))
        return 0;
    if (!known && !strangers_too)
        return 0;
    return tcp_call(m, peer, TCP_FAULT_SLOT) != NULL;
}

/* A call made for it: when it gets through, everything is said at once. */
static void say_and_end(tcp_mesh *m, tcp_conn *c)
{
    tcp_connected(m, c);
    if (c->state == TCP_CALLING)
        put_fault(m, c);
}

static int still_calling(const tcp_mesh *m)
{
    for (const tcp_conn *c = m->conns; c != NULL; c = c->next)
        if (c->slot == TCP_FAULT_SLOT && c->peer >= 0 &&
            (c->state == TCP_CONNECTING ||
             (c->state == TCP_CALLING && c->out_at < c->out_end && !c->mute)))
            return 1;
    return 0;
}

static void finish_calls(tcp_mesh *m)
{
    int64_t deadline = oari_deadline(TELL_MS);

    while (still_calling(m) && oari_now_ns() < deadline) {
        struct epoll_event event[16];
        int found = epoll_wait(m->epoll_fd, event, 16, 1);
        for (int i = 0; i < found; i++) {
            tcp_conn *c = event[i].data.ptr;
            if (event[i].data.ptr == &m->listener ||
                event[i].data.ptr == &m->event_fd || c->slot != TCP_FAULT_SLOT)
                continue;
            if (c->state == TCP_CONNECTING)
                say_and_end(m, c);
            else
                tcp_flush(m, c);
        }
    }
}

void tcp_tell(tcp_mesh *m)
{
    int calls = 0;

    if (m->told || atomic_load_explicit(&m->mine, memory_order_acquire) !=
                       OARI_FAULT_READY)
        return;
    m->told = 1;
    for (int r = 0; r < m->ranks; r++)
        calls += tell_peer(m, r, m->my_fault.rank == m->rank);
    if (calls != 0)
        finish_calls(m);
}
