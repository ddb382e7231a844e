/* SPDX-License-Identifier: Apache-2.0 */
/* handshake: how two ranks of a host begin to share memory. The higher rank of
 * a pair connects to the lower one. Both prove that they have read the token of
 * the lower one's entry, and that they know the job's secret, if it has one,
 * and pass their control page, eventfd and recorder. The sockets stay open:
 * they carry segments, and a death shows by the end of its socket.
 *
 * A rank never waits for one peer while another is there, except for the
 * answers of lower ranks, which come last: a rank that is stopped half way must
 * not make two ranks that are both there blame each other. */
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
#include "link/shm/shm_rendezvous.h"

enum { PASSED = 3, UNAUTHENTICATED_MAX = 16 };

/* What comes with the descriptors. */
typedef struct handshake {
    uint32_t magic;
    int32_t rank;
    unsigned char mac[OARI_MAC_BYTES];
    uint64_t control_bytes, recorder_at;
} handshake;

/* Returns the rank in the group of a rank on the board. */
static int group_rank(const shm_join *j, int r)
{
    return j->links->member != NULL ? j->links->member[r] : r;
}

/* ---- one peer ------------------------------------------------------------ */

/* Makes the code of a handshake. It covers the direction, the listener's token
 * and the secret. */
static oar_status make_mac(const shm_join *j, const handshake *h, int peer,
                           const shm_entry *listener,
                           unsigned char mac[OARI_MAC_BYTES])
{
    int answer = h->rank == listener->rank;
    int caller = answer ? peer : h->rank;
    const void *part[] = { answer ? "answer" : "caller", listener->token };
    size_t bytes[] = { 6, sizeof listener->token };
    unsigned char key[OARI_SECRET_BYTES] = { 0 };

    if (j->secret.known)
        OARI_TRY(oari_secret_key(&j->secret, "meet", 0, caller, listener->rank,
                                 key));
    return oari_secret_mac(key, part, bytes, 2, mac);
}

/* Sets *good if a rank of this group has sent the handshake. Fails only for
 * reasons of this rank's own. */
static oar_status check_mac(const shm_join *j, const handshake *h,
                            const shm_entry *listener, int *good)
{
    unsigned char mac[OARI_MAC_BYTES];

    *good = 0;
    if (h->magic != SHM_ENTRY_MAGIC)
        return OAR_OK;
    OARI_TRY(make_mac(j, h, j->with->env.rank, listener, mac));
    *good = oari_secret_mac_equal(mac, h->mac);
    return OAR_OK;
}

static oar_status send_handshake(shm_join *j, int socket, int peer,
                                 const shm_entry *listener)
{
    shm_links *n = j->links;
    handshake h = { .magic = SHM_ENTRY_MAGIC,
                    .rank = j->with->env.rank,
                    .control_bytes = n->base.board.layout.bytes,
                    .recorder_at = oari_recorder_at(j->with->recorder) };
    int pass[PASSED] = { n->control_fd, n->event_fd,
                         oari_recorder_fd(j->with->recorder) };

    OARI_TRY(make_mac(j, &h, peer, listener, h.mac));
    return oari_unix_send(socket, &h, sizeof h, pass, PASSED);
}

static oar_status map_peer(shm_links *n, int rank, const handshake *h,
                           const int pass[PASSED])
{
    oari_board *b = &n->base.board;
    void *base;

    if (h->control_bytes != b->layout.bytes)
        return oari_fail(OAR_E_MISMATCH, "rank %d has another control page",
                         rank);
    OARI_TRY(oari_segment_map(pass[0], b->layout.bytes, 0, &base));
    b->control[rank] = base;
    if (rank == 0) {
        OARI_TRY(oari_segment_map_part(pass[0], b->layout.first,
                                       b->layout.bytes - b->layout.first,
                                       &base));
        b->first = base;
    }
    if (oari_recorder_map(pass[2], h->recorder_at, &b->recorder[rank]) !=
        OAR_OK)
        b->recorder[rank] = NULL; /* do without */
    b->event[rank] = oari_fork_guard(pass[1]);
    return OAR_OK;
}

/* The death of a peer shows on its socket or, if a child of the peer holds
 * that, on the pidfd. The socket is watched after the pidfd is open: had the
 * peer died before, the pid might be another process's. */
static oar_status watch_peer(shm_links *n, int rank)
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

/* Keeps the control page and eventfd of a peer whose handshake came over this
 * socket. */
static oar_status accept_peer(shm_join *j, int rank, const handshake *h,
                              int pass[PASSED], int socket)
{
    shm_links *n = j->links;
    oar_status status = map_peer(n, rank, h, pass);

    close(pass[0]);
    close(pass[2]);
    if (status != OAR_OK) {
        close(pass[1]);
        close(socket);
        return status;
    }
    n->peer[rank].socket = oari_fork_guard(socket);
    return watch_peer(n, rank);
}

static void refuse_peer(const int pass[PASSED], int socket)
{
    for (int i = 0; i < PASSED; i++)
        close(pass[i]);
    close(socket);
}

/* Names the peer in a failure of its socket. */
static oar_status blame_peer(const shm_join *j, int peer, oar_status status)
{
    int rank = group_rank(j, peer);

    if (status == OAR_E_CLOSED)
        oari_fail(status = OAR_E_PEER,
                  "rank %d died or left while group \"%s\" was made", rank,
                  j->with->env.name);
    else if (status == OAR_E_TIMEOUT)
        oari_fail(status,
                  "rank %d did not answer in the %lld ms for making "
                  "group \"%s\"",
                  rank, (long long)j->with->meet_ms, j->with->env.name);
    else
        return status;
    return oari_about(rank, status);
}

/* Marks the ranks that have not shaken hands when the time is up. A rank that
 * has answered is not to blame, whether its answer was read or not. */
static oar_status mark_missing(const shm_join *j, oar_status status)
{
    const oari_board *b = &j->links->base.board;

    for (int r = 0; status == OAR_E_TIMEOUT && r < b->ranks; r++) {
        const shm_peer *p = &j->links->peer[r];
        struct pollfd wait = { p->calling, POLLIN, 0 };

        if (r != b->rank && p->socket < 0 &&
            (p->calling < 0 || poll(&wait, 1, 0) <= 0))
            native_missed(j->with, group_rank(j, r));
    }
    return status;
}

/* ---- lower ranks --------------------------------------------------------- */

static oar_status call_lower_ranks(shm_join *j)
{
    for (int r = 0; r < j->links->base.board.rank; r++) {
        const shm_entry *listener = &j->entry[group_rank(j, r)];
        int *socket = &j->links->peer[r].calling;
        oar_status status = oari_unix_connect(listener->socket, socket);

        if (status == OAR_OK)
            status = send_handshake(j, *socket, group_rank(j, r), listener);
        OARI_TRY(blame_peer(j, r, status));
    }
    return OAR_OK;
}

static oar_status read_answer(shm_join *j, int rank)
{
    shm_peer *p = &j->links->peer[rank];
    handshake h;
    int pass[PASSED], socket = p->calling, good;
    oar_status status =
        oari_unix_recv(socket, &h, sizeof h, pass, PASSED, j->deadline_ns);

    if (status != OAR_OK)
        return blame_peer(j, rank, mark_missing(j, status));
    p->calling = -1;
    status = check_mac(j, &h, &j->entry[group_rank(j, rank)], &good);
    if (status != OAR_OK || !good || h.rank != group_rank(j, rank)) {
        refuse_peer(pass, socket);
        OARI_TRY(status);
        return oari_fail(OAR_E_AUTH, "somebody else answers for rank %d",
                         group_rank(j, rank));
    }
    return accept_peer(j, rank, &h, pass, socket);
}

/* ---- higher ranks -------------------------------------------------------- */

/* Gives the caller's rank on the board; -1: it may not call. */
static oar_status find_caller(const shm_join *j, const handshake *h, int *rank)
{
    int good;

    *rank = -1;
    if (h->rank <= j->with->env.rank || h->rank >= j->with->env.ranks)
        return OAR_OK;
    OARI_TRY(check_mac(j, h, &j->mine, &good));
    if (good)
        *rank = oari_board_rank(&j->links->base.board, h->rank);
    if (*rank >= 0 && j->links->peer[*rank].socket >= 0)
        *rank = -1;
    return OAR_OK;
}

/* Reads the handshake of a pending connection. Callers that are no ranks are
 * refused and do not count. A failure of this process does: it cannot let any
 * rank in. */
static oar_status read_pending(shm_join *j, int socket, int *accepted)
{
    handshake h;
    int pass[PASSED], rank;
    oar_status status =
        oari_unix_recv(socket, &h, sizeof h, pass, PASSED, oari_now_ns());

    if (status != OAR_OK) {
        close(socket);
        return status == OAR_E_SYSTEM ? status : OAR_OK;
    }
    status = find_caller(j, &h, &rank);
    if (status != OAR_OK || rank < 0) {
        refuse_peer(pass, socket);
        return status;
    }
    OARI_TRY(accept_peer(j, rank, &h, pass, socket));
    *accepted += 1;
    return blame_peer(j, rank, send_handshake(j, socket, h.rank, &j->mine));
}

/* There is room for all ranks and some other callers. If more come, the one
 * that has been silent for longest goes. */
static int pending_max(const shm_join *j)
{
    return j->links->base.board.ranks + UNAUTHENTICATED_MAX;
}

static void remove_pending(shm_links *n, int at)
{
    n->pendings--;
    memmove(n->pending + at, n->pending + at + 1,
            (size_t)(n->pendings - at) * sizeof *n->pending);
}

static oar_status accept_pending(shm_join *j)
{
    shm_links *n = j->links;
    int64_t pid;
    int socket;
    oar_status status =
        oari_unix_accept(n->listener, oari_now_ns(), &socket, &pid);

    if (status == OAR_E_TIMEOUT)
        return OAR_OK; /* it was another user's */
    if (status != OAR_OK)
        return status;
    if (n->pendings == pending_max(j)) {
        close(n->pending[0]);
        remove_pending(n, 0);
    }
    n->pending[n->pendings++] = socket;
    return OAR_OK;
}

/* Waits until there is something to read: the listener first, then pending
 * connections. */
static oar_status wait_for_callers(shm_join *j, struct pollfd *wait)
{
    shm_links *n = j->links;
    int ready;

    wait[0] = (struct pollfd){ n->listener, POLLIN, 0 };
    for (int i = 0; i < n->pendings; i++)
        wait[i + 1] = (struct pollfd){ n->pending[i], POLLIN, 0 };
    do
        ready = poll(wait, (nfds_t)n->pendings + 1,
                     oari_deadline_left_ms(j->deadline_ns));
    while (ready < 0 && errno == EINTR);
    if (ready < 0)
        return oari_fail(OAR_E_SYSTEM, "poll");
    return ready == 0 ? OAR_E_TIMEOUT : OAR_OK;
}

static oar_status accept_higher_ranks(shm_join *j, struct pollfd *wait)
{
    shm_links *n = j->links;
    const oari_board *b = &n->base.board;
    int wanted = b->ranks - 1 - b->rank, accepted = 0;

    while (accepted < wanted) {
        oar_status status = wait_for_callers(j, wait);

        if (status == OAR_E_TIMEOUT) {
            int missing = b->rank + 1;

            while (missing < b->ranks - 1 && n->peer[missing].socket >= 0)
                missing++;
            return blame_peer(j, missing, mark_missing(j, status));
        }
        OARI_TRY(status);
        /* from the last: those behind one that is read move up */
        for (int i = n->pendings - 1; i >= 0; i--) {
            int socket = n->pending[i];

            if (wait[i + 1].revents == 0)
                continue;
            remove_pending(n, i);
            OARI_TRY(read_pending(j, socket, &accepted));
        }
        if (wait[0].revents != 0)
            OARI_TRY(accept_pending(j));
    }
    return OAR_OK;
}

oar_status shm_handshake(shm_join *j)
{
    shm_links *n = j->links;
    struct pollfd *wait;
    oar_status status = OAR_E_NOMEM;

    OARI_TRY(call_lower_ranks(j));
    n->pending = oari_alloc((size_t)pending_max(j), sizeof *n->pending);
    wait = oari_alloc((size_t)pending_max(j) + 1, sizeof *wait);
    if (n->pending != NULL && wait != NULL)
        status = accept_higher_ranks(j, wait);
    oari_free(wait);
    for (int r = 0; status == OAR_OK && r < n->base.board.rank; r++)
        status = read_answer(j, r);
    return status;
}

void shm_close_listener(shm_links *n)
{
    for (int i = 0; i < n->pendings; i++)
        close(n->pending[i]);
    oari_free(n->pending);
    n->pending = NULL;
    n->pendings = 0;
    oari_fork_close(n->listener);
    n->listener = -1;
}
