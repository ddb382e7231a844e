/* SPDX-License-Identifier: Apache-2.0 */
/* greet: how two ranks of a host begin to share memory. The higher rank of a
 * pair connects to the lower one. Both prove that they have read the token of
 * the lower one's note, and that they know the job's secret, if it has one, and
 * pass their control block, eventfd and recorder. The sockets stay open: they
 * carry segments, and their end is how a death is noticed.
 *
 * Nobody waits for one peer while another is there, except for the last word of
 * each lower one: a rank that is stopped half-way must not make ranks that have
 * both come blame each other. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/status.h"
#include "device/segment.h"
#include "link/shm/meet.h"

enum { PASSED = 3, STRANGERS = 16 };

/* What comes with the descriptors. */
typedef struct greeting {
    uint32_t magic;
    int32_t rank;
    unsigned char proof[OARI_MAC_BYTES];
    uint64_t control_bytes, recorder_at;
} greeting;

/* The rank in the group of a rank on the board. */
static int rank_of(const shm_meeting *m, int r)
{
    return m->n->member != NULL ? m->n->member[r] : r;
}

/* ---- one peer ------------------------------------------------------------ */

/* What a greeting proves: which way it goes, and that whoever sends it knows
 * the listener's token and the secret. */
static oar_status prove(const shm_meeting *m, const greeting *g, int peer,
                        const shm_note *listener,
                        unsigned char proof[OARI_MAC_BYTES])
{
    int answer = g->rank == listener->rank;
    int caller = answer ? peer : g->rank;
    const void *part[] = { answer ? "answer" : "caller", listener->token };
    size_t bytes[] = { 6, sizeof listener->token };
    unsigned char key[OARI_SECRET_BYTES] = { 0 };

    if (m->secret.known)
        OARI_TRY(oari_secret_key(&m->secret, "meet", 0, caller, listener->rank,
                                 key));
    return oari_secret_mac(key, part, bytes, 2, proof);
}

static oar_status greet(shm_meeting *m, int socket, int peer,
                        const shm_note *listener)
{
    shm_links *n = m->n;
    greeting g = { .magic = SHM_NOTE_MAGIC,
                   .rank = m->with->env.rank,
                   .control_bytes = n->base.board.layout.bytes,
                   .recorder_at = oari_recorder_at(m->with->recorder) };
    int pass[PASSED] = { n->control_fd, n->event_fd,
                         oari_recorder_fd(m->with->recorder) };

    OARI_TRY(prove(m, &g, peer, listener, g.proof));
    return oari_unix_send(socket, &g, sizeof g, pass, PASSED);
}

static oar_status map_peer(shm_links *n, int rank, const greeting *g,
                           const int pass[PASSED])
{
    oari_board *b = &n->base.board;
    void *base;

    if (g->control_bytes != b->layout.bytes)
        return oari_fail(OAR_E_MISMATCH, "rank %d has another control block",
                         rank);
    OARI_TRY(oari_segment_map(pass[0], b->layout.bytes, 0, &base));
    b->control[rank] = base;
    if (rank == 0)
        OARI_TRY(oari_segment_map_part(pass[0], b->layout.ballot,
                                       b->layout.bytes - b->layout.ballot,
                                       &base));
    if (rank == 0)
        b->first = base;
    if (oari_recorder_map(pass[2], g->recorder_at, &b->recorder[rank]) !=
        OAR_OK)
        b->recorder[rank] = NULL; /* do without */
    b->event[rank] = oari_fork_guard(pass[1]);
    return OAR_OK;
}

/* Its death shows on the socket, or, if a child of its holds that, here. The
 * socket is looked at again after the pidfd is open: had it died before, the
 * pid might be another's. */
static oar_status watch(shm_links *n, int rank)
{
    shm_peer *p = &n->peer[rank];
    struct epoll_event event = { .events = EPOLLRDHUP,
                                 .data.u32 = (uint32_t)rank };

    OARI_TRY(oari_unix_pid(p->socket, &p->pid));
    p->pidfd = oari_fork_guard((int)syscall(SYS_pidfd_open, p->pid, 0));
    if (epoll_ctl(n->epoll_fd, EPOLL_CTL_ADD, p->socket, &event) != 0)
        return oari_fail(OAR_E_SYSTEM, "watch rank %d", rank);
    event.events = EPOLLIN;
    if (p->pidfd >= 0 &&
        epoll_ctl(n->epoll_fd, EPOLL_CTL_ADD, p->pidfd, &event) != 0)
        return oari_fail(OAR_E_SYSTEM, "watch rank %d", rank);
    return OAR_OK;
}

/* *good: whether it is a rank of this group that says so. A failure is this
 * rank's own. */
static oar_status check_proof(const shm_meeting *m, const greeting *g,
                              const shm_note *listener, int *good)
{
    unsigned char proof[OARI_MAC_BYTES];

    *good = 0;
    if (g->magic != SHM_NOTE_MAGIC)
        return OAR_OK;
    OARI_TRY(prove(m, g, m->with->env.rank, listener, proof));
    *good = oari_secret_mac_equal(proof, g->proof);
    return OAR_OK;
}

/* Keeps the control block and event of a peer that greeted over this socket. */
static oar_status accept_greeting(shm_meeting *m, int rank, const greeting *g,
                                  int pass[PASSED], int socket)
{
    shm_links *n = m->n;
    oar_status status = map_peer(n, rank, g, pass);

    close(pass[0]);
    close(pass[2]);
    if (status != OAR_OK) {
        close(pass[1]);
        close(socket);
        return status;
    }
    n->peer[rank].socket = oari_fork_guard(socket);
    return watch(n, rank);
}

/* Says whose fault it is that nothing goes over a socket. */
static oar_status blame(const shm_meeting *m, int peer, oar_status status)
{
    int rank = rank_of(m, peer);

    if (status == OAR_E_CLOSED)
        oari_fail(status = OAR_E_PEER,
                  "rank %d died or left while group \"%s\" was made", rank,
                  m->with->env.name);
    else if (status == OAR_E_TIMEOUT)
        oari_fail(status,
                  "rank %d did not answer in the %lld ms for making "
                  "group \"%s\"",
                  rank, (long long)m->with->meet_ms, m->with->env.name);
    else
        return status;
    return oari_about(rank, status);
}

static void turn_away(const int pass[PASSED], int socket)
{
    for (int i = 0; i < PASSED; i++)
        close(pass[i]);
    close(socket);
}

static int has_come(int socket)
{
    struct pollfd wait = { socket, POLLIN, 0 };

    return poll(&wait, 1, 0) > 0;
}

/* The time is up: whoever has not been met and is not at the door. One that has
 * answered is not to blame, whether its answer was read or not. */
static oar_status mark_unmet(const shm_meeting *m, oar_status status)
{
    const oari_board *b = &m->n->base.board;

    for (int r = 0; status == OAR_E_TIMEOUT && r < b->ranks; r++) {
        const shm_peer *p = &m->n->peer[r];

        if (r != b->rank && p->socket < 0 &&
            (p->calling < 0 || !has_come(p->calling)))
            native_missed(m->with, rank_of(m, r));
    }
    return status;
}

/* ---- lower ranks --------------------------------------------------------- */

static oar_status call_on(shm_meeting *m, int rank)
{
    const shm_note *listener = &m->note[rank_of(m, rank)];
    int *socket = &m->n->peer[rank].calling;
    oar_status status = oari_unix_connect(listener->socket, socket);

    if (status == OAR_OK)
        status = greet(m, *socket, rank_of(m, rank), listener);
    return blame(m, rank, status);
}

static oar_status call_lower(shm_meeting *m)
{
    for (int r = 0; r < m->n->base.board.rank; r++)
        OARI_TRY(call_on(m, r));
    return OAR_OK;
}

static oar_status hear_back(shm_meeting *m, int rank)
{
    shm_peer *p = &m->n->peer[rank];
    greeting g;
    int pass[PASSED], socket = p->calling, good;
    oar_status status =
        oari_unix_recv(socket, &g, sizeof g, pass, PASSED, m->deadline_ns);

    if (status != OAR_OK)
        return blame(m, rank, mark_unmet(m, status));
    p->calling = -1;
    status = check_proof(m, &g, &m->note[rank_of(m, rank)], &good);
    if (status != OAR_OK || !good || g.rank != rank_of(m, rank)) {
        turn_away(pass, socket);
        OARI_TRY(status);
        return oari_fail(OAR_E_AUTH, "somebody else answers for rank %d",
                         rank_of(m, rank));
    }
    return accept_greeting(m, rank, &g, pass, socket);
}

static oar_status hear_lower(shm_meeting *m)
{
    for (int r = 0; r < m->n->base.board.rank; r++)
        OARI_TRY(hear_back(m, r));
    return OAR_OK;
}

/* ---- higher ranks -------------------------------------------------------- */

/* Its rank on the board; -1: it is none that may call. */
static oar_status find_caller(const shm_meeting *m, const greeting *g,
                              int *rank)
{
    int good;

    *rank = -1;
    if (g->rank <= m->with->env.rank || g->rank >= m->with->env.ranks)
        return OAR_OK;
    OARI_TRY(check_proof(m, g, &m->mine, &good));
    if (good)
        *rank = oari_board_rank(&m->n->base.board, g->rank);
    if (*rank >= 0 && m->n->peer[*rank].socket >= 0)
        *rank = -1;
    return OAR_OK;
}

/* A guest says who it is; strangers are turned away and do not count. What this
 * process lacks does: it cannot let anybody in. */
static oar_status hear_guest(shm_meeting *m, int socket, int *let_in)
{
    greeting g;
    int pass[PASSED], rank;
    oar_status status =
        oari_unix_recv(socket, &g, sizeof g, pass, PASSED, oari_now_ns());

    if (status != OAR_OK) {
        close(socket);
        return status == OAR_E_SYSTEM ? status : OAR_OK;
    }
    status = find_caller(m, &g, &rank);
    if (status != OAR_OK || rank < 0) {
        turn_away(pass, socket);
        return status;
    }
    OARI_TRY(accept_greeting(m, rank, &g, pass, socket));
    *let_in += 1;
    return blame(m, rank, greet(m, socket, g.rank, &m->mine));
}

/* As many as may come, and some strangers; of more than that, the one that has
 * been there longest without a word goes. */
static int most_guests(const shm_meeting *m)
{
    return m->n->base.board.ranks + STRANGERS;
}

static void drop_guest(shm_links *n, int at)
{
    n->guests--;
    memmove(n->guest + at, n->guest + at + 1,
            (size_t)(n->guests - at) * sizeof *n->guest);
}

static oar_status open_door(shm_meeting *m)
{
    shm_links *n = m->n;
    int64_t pid;
    int socket;
    oar_status status =
        oari_unix_accept(n->listener, oari_now_ns(), &socket, &pid);

    if (status == OAR_E_TIMEOUT)
        return OAR_OK; /* it was another user's */
    if (status != OAR_OK)
        return status;
    if (n->guests == most_guests(m)) {
        close(n->guest[0]);
        drop_guest(n, 0);
    }
    n->guest[n->guests++] = socket;
    return OAR_OK;
}

/* Whoever there is something to hear of: the listener first, then guests. */
static oar_status wait_at_door(shm_meeting *m, struct pollfd *wait)
{
    shm_links *n = m->n;
    int ready;

    wait[0] = (struct pollfd){ n->listener, POLLIN, 0 };
    for (int i = 0; i < n->guests; i++)
        wait[i + 1] = (struct pollfd){ n->guest[i], POLLIN, 0 };
    do
        ready = poll(wait, (nfds_t)n->guests + 1,
                     oari_deadline_left_ms(m->deadline_ns));
    while (ready < 0 && errno == EINTR);
    if (ready < 0)
        return oari_fail(OAR_E_SYSTEM, "poll");
    return ready == 0 ? OAR_E_TIMEOUT : OAR_OK;
}

/* From the last: those behind one that is heard move up. */
static oar_status hear_guests(shm_meeting *m, const struct pollfd *wait,
                              int *let_in)
{
    shm_links *n = m->n;

    for (int i = n->guests - 1; i >= 0; i--) {
        int socket = n->guest[i];

        if (wait[i + 1].revents == 0)
            continue;
        drop_guest(n, i);
        OARI_TRY(hear_guest(m, socket, let_in));
    }
    return OAR_OK;
}

static int first_missing(const shm_meeting *m)
{
    const oari_board *b = &m->n->base.board;
    int rank = b->rank + 1;

    while (rank < b->ranks - 1 && m->n->peer[rank].socket >= 0)
        rank++;
    return rank;
}

static oar_status hear_higher(shm_meeting *m, struct pollfd *wait)
{
    const oari_board *b = &m->n->base.board;
    int wanted = b->ranks - 1 - b->rank, let_in = 0;

    while (let_in < wanted) {
        oar_status status = wait_at_door(m, wait);

        if (status == OAR_E_TIMEOUT)
            return blame(m, first_missing(m), mark_unmet(m, status));
        OARI_TRY(status);
        OARI_TRY(hear_guests(m, wait, &let_in));
        if (wait[0].revents != 0)
            OARI_TRY(open_door(m));
    }
    return OAR_OK;
}

static oar_status meet_higher(shm_meeting *m)
{
    struct pollfd *wait;
    oar_status status;

    m->n->guest = oari_alloc((size_t)most_guests(m), sizeof *m->n->guest);
    wait = oari_alloc((size_t)most_guests(m) + 1, sizeof *wait);
    status = m->n->guest != NULL && wait != NULL ? hear_higher(m, wait)
                                                 : OAR_E_NOMEM;
    oari_free(wait);
    return status;
}

oar_status shm_greet_all(shm_meeting *m)
{
    OARI_TRY(call_lower(m));
    OARI_TRY(meet_higher(m));
    return hear_lower(m);
}

void shm_close_door(shm_links *n)
{
    for (int i = 0; i < n->guests; i++)
        close(n->guest[i]);
    oari_free(n->guest);
    n->guest = NULL;
    n->guests = 0;
    oari_fork_close(n->listener);
    n->listener = -1;
}
