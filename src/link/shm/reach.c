/* SPDX-License-Identifier: Apache-2.0 */
/* reach: whose memory is where. A place is a segment number plus one in the
 * upper 16 bits and an offset in the lower 48.
 *
 * A segment's descriptor is sent to every peer before a place in it is shown
 * for the first time; so a peer that reads a place finds the descriptor waiting
 * on its socket, and never waits for it.
 */
#include <poll.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fork.h"
#include "base/status.h"
#include "base/vec.h"
#include "device/segment.h"
#include "link/shm/shm.h"

enum { PLACE_SHIFT = 48, MAX_PEER_SEGMENTS = 1024 };

typedef struct segment_note {
    uint32_t number;
    uint32_t zero;
    uint64_t bytes;
} segment_note;

/* ---- mine ---------------------------------------------------------------- */

static oar_status send_segment(shm_links *n, uint32_t number)
{
    segment_note note = { .number = number };
    oar_status status = OAR_OK;
    size_t bytes;
    int fd;

    OARI_TRY(oari_segment_export(number, &fd, &bytes));
    note.bytes = bytes;
    for (int r = 0; r < n->base.board.ranks && status == OAR_OK; r++) {
        if (r == n->base.board.rank)
            continue;
        status = oari_unix_send(n->peer[r].socket, &note, sizeof note, &fd, 1);
        if (status == OAR_E_CLOSED)
            status = OAR_OK;
    }
    close(fd);
    return status;
}

static uint64_t place(void *self, void *memory, size_t bytes)
{
    shm_links *n = self;
    oari_segment_location found;

    if (!oari_segment_find(memory, bytes, &found))
        return 0;
    while (n->segments_sent <= found.segment) {
        if (send_segment(n, n->segments_sent) != OAR_OK)
            return 0;
        n->segments_sent++;
    }
    return (uint64_t)(found.segment + 1) << PLACE_SHIFT | found.offset;
}

static oar_status detach(void *self, void *memory, size_t bytes)
{
    return oari_segment_detach(memory, bytes);
}

/* ---- theirs -------------------------------------------------------------- */

/* A peer that died with something unread breaks the socket once, before what it
 * had sent can be read. */
static oar_status hear_segment(shm_peer *p, segment_note *note, int *fd)
{
    oar_status status =
        oari_unix_recv(p->socket, note, sizeof *note, fd, 1, oari_now_ns());

    if (status == OAR_E_CLOSED)
        status =
            oari_unix_recv(p->socket, note, sizeof *note, fd, 1, oari_now_ns());
    return status;
}

/* Takes the next descriptor that the peer has sent. */
static oar_status take_segment(shm_peer *p, int rank)
{
    segment_note note;
    mapped *m;
    void *base;
    oar_status status;
    int fd;

    OARI_TRY(oari_array_reserve(p->segment, p->segments, p->segment_room, 1));
    OARI_TRY(hear_segment(p, &note, &fd));
    status = note.number == p->segments && note.number < MAX_PEER_SEGMENTS
                 ? oari_segment_map(fd, note.bytes, 1, &base)
                 : oari_fail(OAR_E_DATA, "rank %d sent segment %u, not %u",
                             rank, note.number, p->segments);
    close(fd);
    if (status != OAR_OK)
        return status;
    m = &p->segment[p->segments++];
    m->base = base;
    m->bytes = note.bytes;
    return OAR_OK;
}

/* The base of one of my own segments is found through one of its bytes. */
static void *resolve_mine(const shm_links *n, uint64_t at)
{
    /* The caller has the pointer already; it only asks whether it counts. */
    return at != 0 ? n->base.board.control[n->base.board.rank] : NULL;
}

static void *resolve(void *self, int peer, uint64_t at, size_t bytes)
{
    shm_links *n = self;
    shm_peer *p = &n->peer[peer];
    uint64_t number = at >> PLACE_SHIFT;
    uint64_t offset = at & ((UINT64_C(1) << PLACE_SHIFT) - 1);

    if (at == 0)
        return NULL;
    if (peer == n->base.board.rank)
        return resolve_mine(n, at);
    while (p->segments < number)
        if (take_segment(p, peer) != OAR_OK)
            return NULL;
    if (number == 0 || offset > p->segment[number - 1].bytes ||
        bytes > p->segment[number - 1].bytes - offset) {
        oari_fail(OAR_E_DATA, "rank %d shows %zu bytes outside its segment",
                  peer, bytes);
        return NULL;
    }
    return p->segment[number - 1].base + offset;
}

/* ---- private memory ------------------------------------------------------ */

static int has_died(const shm_peer *p)
{
    struct pollfd wait = { p->pidfd, POLLIN, 0 };

    return poll(&wait, 1, 0) > 0;
}

/* Looked at after the reading: had it died before, its pid might be another's.
 * Without a pidfd that could not be told. */
static oar_status fetch(void *self, int peer, uint64_t address, void *to,
                        size_t bytes)
{
    const shm_peer *p = &((shm_links *)self)->peer[peer];
    struct iovec mine = { to, bytes };
    struct iovec theirs = { (void *)(uintptr_t)address, bytes };
    ssize_t got;

    if (p->pidfd < 0 || p->pid <= 0)
        return OAR_E_UNSUPPORTED;
    got = process_vm_readv((pid_t)p->pid, &mine, 1, &theirs, 1, 0);
    if (has_died(p))
        return OAR_E_CLOSED;
    return got == (ssize_t)bytes ? OAR_OK : OAR_E_UNSUPPORTED;
}

/* ---- life and death ------------------------------------------------------ */

static void mark_gone(shm_links *n, int rank)
{
    shm_peer *p = &n->peer[rank];

    n->base.board.gone[rank] = 1;
    epoll_ctl(n->epoll_fd, EPOLL_CTL_DEL, p->socket, NULL);
    if (p->pidfd >= 0)
        epoll_ctl(n->epoll_fd, EPOLL_CTL_DEL, p->pidfd, NULL);
}

static void check(void *self)
{
    shm_links *n = self;
    oari_board *b = &n->base.board;
    struct epoll_event event[16];
    int found = epoll_wait(n->epoll_fd, event, 16, 0);

    for (int i = 0; i < found; i++)
        if (event[i].data.u32 < (uint32_t)b->ranks)
            mark_gone(n, (int)event[i].data.u32);
    for (int r = 0; r < b->ranks; r++)
        if (!b->gone[r] && r != b->rank && atomic_load(&b->control[r]->closed))
            mark_gone(n, r);
}

const oari_board_ops shm_board_ops = {
    .place = place,
    .resolve = resolve,
    .detach = detach,
    .fetch = fetch,
    .check = check,
};
