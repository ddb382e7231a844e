/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_fault: one record for all. Whoever breaks tells its peers; whoever hears
 * of it tells its own. A rank that waits for another is connected to it, so
 * along such pairs everyone that waits in vain hears of it. The rank that saw
 * the fault first tells those, too, to whom it has no connection yet.
 *
 * Several ranks may see faults before they hear of each other's. Of those that
 * a rank knows one counts (oari_fault_before), and it says which: to its peers,
 * and always to the rank that saw that one. When all that live have said the
 * same to that rank, nobody can come with another any more; it ends, and says
 * so to all, which settles it for them, too. Whoever runs out of patience ends
 * with what it knows, and says so: what somebody has ended with comes before
 * anything else.
 *
 * A socket on which data was cut off in the middle cannot carry anything more;
 * the peer is told over another, made for that. The time for all of it is
 * bounded.
 */
#include <sys/epoll.h>

#include "base/clock.h"
#include "link/tcp/tcp.h"

enum { TELL_MS = 200 };

void tcp_publish(tcp_mesh *m, const oari_fault *fault)
{
    int none = OARI_FAULT_NONE;

    if (!atomic_compare_exchange_strong(&m->mine, &none, OARI_FAULT_WRITING))
        return;
    m->my_fault = *fault;
    atomic_store_explicit(&m->mine, OARI_FAULT_READY, memory_order_release);
    tcp_wake(m);
}

/* ---- what counts --------------------------------------------------------- */

/* What peers have told, the one that counts, from 1; 0: nothing. */
static int heard_best(const tcp_mesh *m)
{
    return atomic_load_explicit(&m->heard, memory_order_acquire);
}

int tcp_settled(const tcp_mesh *m)
{
    int heard = heard_best(m);

    return heard != 0 && m->settled[heard - 1];
}

static int is_concluded(const tcp_mesh *m)
{
    return atomic_load_explicit(&m->concluded, memory_order_acquire) ==
           OARI_FAULT_READY;
}

void tcp_conclude(tcp_mesh *m, const oari_fault *fault)
{
    m->last_word = *fault;
    atomic_store_explicit(&m->concluded, OARI_FAULT_READY,
                          memory_order_release);
    tcp_wake(m);
}

const oari_fault *tcp_published(const tcp_mesh *m)
{
    int heard = heard_best(m);
    int mine = atomic_load_explicit(&m->mine, memory_order_acquire) ==
               OARI_FAULT_READY;
    const oari_fault *theirs = heard != 0 ? &m->their_fault[heard - 1] : NULL;

    if (is_concluded(m))
        return &m->last_word;
    if (!mine || (theirs != NULL && (m->settled[heard - 1] ||
                                     oari_fault_before(theirs, &m->my_fault))))
        return theirs;
    return &m->my_fault;
}

/* A number for a record, never 0. */
static uint64_t name_of(const unsigned char raw[OARI_FAULT_BYTES])
{
    return (UINT64_C(1) << 32) | oari_crc32c(raw, OARI_FAULT_BYTES);
}

/* ---- hearing ------------------------------------------------------------- */

static int counts_more(const tcp_mesh *m, const oari_fault *e, int settled)
{
    int best = heard_best(m);

    if (best == 0 || settled != m->settled[best - 1])
        return best == 0 || settled;
    return oari_fault_before(e, &m->their_fault[best - 1]);
}

/* Only the driver hears, and what has been heard never changes: no race. */
void tcp_hear(tcp_mesh *m, tcp_conn *c)
{
    oari_fault *next = &m->their_fault[m->hearsay];
    int settled;

    if (c->slot < 0 && tcp_unseal(m, c, c->small, OARI_FAULT_BYTES) != OAR_OK) {
        tcp_lose(m, c);
        return;
    }
    settled = (c->small[3] & OARI_FAULT_SETTLED) != 0;
    c->small[3] &= (unsigned char)~OARI_FAULT_SETTLED;
    m->peer[c->peer].says = name_of(c->small);
    if (m->hearsay == TCP_FAULTS)
        return;
    oari_fault_read(c->small, next);
    if (!counts_more(m, next, settled))
        return;
    m->settled[m->hearsay] = (unsigned char)settled;
    atomic_store_explicit(&m->heard, ++m->hearsay, memory_order_release);
}

/* Who is to blame does not have a say. */
static int has_a_say(const tcp_mesh *m, int peer, const oari_fault *best)
{
    const tcp_peer *p = &m->peer[peer];

    return peer != m->rank && !p->gone && p->address[0] != 0 &&
           !(peer == best->error.peer && oari_fault_sure(best));
}

void tcp_compare(tcp_mesh *m)
{
    const oari_fault *best = tcp_published(m);
    unsigned char raw[OARI_FAULT_BYTES];
    int all = best != NULL;

    if (best != NULL)
        oari_fault_write(best, raw);
    for (int r = 0; all && r < m->ranks; r++)
        all = !has_a_say(m, r, best) || m->peer[r].says == name_of(raw);
    atomic_store(&m->unanimous, all);
}

/* ---- telling ------------------------------------------------------------- */

/* What there is to say, as it travels; its name, another if it is final. */
static uint64_t make_word(const tcp_mesh *m, unsigned char *raw)
{
    uint64_t name;

    oari_fault_write(tcp_published(m), raw);
    name = name_of(raw);
    if (!is_concluded(m))
        return name;
    raw[3] |= OARI_FAULT_SETTLED;
    return name | (UINT64_C(1) << 33);
}

static int put_fault(tcp_mesh *m, tcp_conn *c)
{
    oari_frame frame = { .kind = OARI_FRAME_FAULT, .bytes = OARI_FAULT_BYTES };
    unsigned char raw[TCP_SEALED];

    make_word(m, raw);
    if (c->slot < 0) {
        frame.bytes = TCP_SEALED;
        if (tcp_seal(m, c, raw, OARI_FAULT_BYTES) != OAR_OK)
            return 0;
    }
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
    if (atomic_load_explicit(&m->mine, memory_order_acquire) ==
        OARI_FAULT_READY)
        put_fault(m, c);
    c->slot = TCP_FAULT_SLOT; /* for nothing else */
}

static int can_carry(const tcp_conn *c)
{
    return c != NULL && c->state != TCP_CONNECTING;
}

/* A call made for a fault or a note before. */
static tcp_conn *my_call(const tcp_mesh *m, int peer)
{
    for (tcp_conn *c = m->conns; c != NULL; c = c->next)
        if (c->peer == peer && c->slot == TCP_FAULT_SLOT &&
            (c->state == TCP_CALLING || c->state == TCP_CONNECTING))
            return c;
    return NULL;
}

/* How many calls have to be made for it: none or one. */
static int tell_peer(tcp_mesh *m, int peer, int strangers_too)
{
    tcp_peer *p = &m->peer[peer];
    tcp_conn *call = my_call(m, peer);
    int known = p->conn[0] != NULL || p->theirs != NULL || p->called;

    if (peer == m->rank || p->gone || p->address[0] == 0)
        return 0;
    if (can_carry(p->conn[0]) && put_fault(m, p->conn[0]))
        return 0;
    if (can_carry(p->theirs) && put_fault(m, p->theirs))
        return 0;
    if (can_carry(call) && put_fault(m, call))
        return 0;
    if (!known && !strangers_too)
        return 0;
    if (call != NULL && call->state == TCP_CONNECTING)
        return 0; /* it has had its time */
    return tcp_call(m, peer, TCP_FAULT_SLOT) != NULL;
}

/* A call made for it: when it gets through, everything is said at once. TLS
 * would have to wait for an answer, which one that computes does not give. */
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

/* To those that it has connections to; to whoever saw the fault; and whoever
 * saw it to all. */
static void tell_all(tcp_mesh *m)
{
    int first = tcp_published(m)->error.rank, calls = 0;

    for (int r = 0; r < m->ranks; r++)
        calls += tell_peer(m, r, first == m->rank || first == r);
    if (calls != 0)
        finish_calls(m);
}

/* Whoever saw it has told all that it is final: not once more. */
static int is_settled_for_all(const tcp_mesh *m)
{
    return tcp_settled(m) && tcp_published(m)->error.rank != m->rank;
}

void tcp_tell(tcp_mesh *m)
{
    unsigned char raw[OARI_FAULT_BYTES];
    uint64_t word;

    if (atomic_load_explicit(&m->mine, memory_order_acquire) !=
        OARI_FAULT_READY)
        return;
    word = make_word(m, raw);
    if (word == m->told || (m->told != 0 && is_settled_for_all(m)))
        return;
    if (m->told == 0)
        tcp_end_doubtful(m);
    m->told = word;
    tell_all(m);
}
