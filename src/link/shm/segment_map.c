/* SPDX-License-Identifier: Apache-2.0 */
/* segment_map: the segments of peers, mapped here. A place is a segment number
 * plus one in the upper 16 bits and an offset in the lower 48.
 *
 * A segment's descriptor is sent to every peer before a place in it is shown
 * for the first time; so a peer that reads a place finds the descriptor waiting
 * on its socket, and never waits for it.
 */
#include <errno.h>
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

typedef struct segment_message {
    uint32_t number;
    uint32_t zero;
    uint64_t bytes;
} segment_message;

/* ---- this rank's segments ------------------------------------------------ */

static oar_status send_segment(shm_links *n, uint32_t number)
{
    segment_message message = { .number = number };
    oar_status status = OAR_OK;
    size_t bytes;
    int fd;

    OARI_TRY(oari_segment_export(number, &fd, &bytes));
    message.bytes = bytes;
    for (int r = 0; r < n->base.shm.ranks && status == OAR_OK; r++) {
        if (r == n->base.shm.rank)
            continue;
        status =
            oari_unix_send(n->peer[r].socket, &message, sizeof message, &fd, 1);
        if (status == OAR_E_CLOSED)
            status = OAR_OK;
    }
    close(fd);
    return status;
}

static uint64_t place_memory(void *self, void *memory, size_t bytes)
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

static oar_status detach_memory(void *self, void *memory, size_t bytes)
{
    return oari_segment_detach(memory, bytes);
}

/* ---- segments of peers --------------------------------------------------- */

/* Maps the next segment whose descriptor the peer has sent. If the peer died
 * with something unread, the socket fails once before what it had sent can be
 * read. */
static oar_status map_next_segment(shm_peer *p, int rank)
{
    segment_message message;
    mapped *m;
    void *base;
    oar_status status = OAR_E_CLOSED;
    int fd;

    OARI_TRY(oari_array_reserve(p->segment, p->segments, p->segment_room, 1));
    for (int tries = 0; status == OAR_E_CLOSED && tries < 2; tries++)
        status = oari_unix_recv(p->socket, &message, sizeof message, &fd, 1,
                                oari_now_ns());
    OARI_TRY(status);
    status = message.number == p->segments && message.number < MAX_PEER_SEGMENTS
                 ? oari_segment_map(fd, message.bytes, 1, &base)
                 : oari_fail(OAR_E_DATA, "rank %d sent segment %u, not %u",
                             rank, message.number, p->segments);
    close(fd);
    if (status != OAR_OK)
        return status;
    m = &p->segment[p->segments++];
    m->base = base;
    m->bytes = message.bytes;
    return OAR_OK;
}

static void *resolve_place(void *self, int peer, uint64_t at, size_t bytes)
{
    shm_links *n = self;
    shm_peer *p = &n->peer[peer];
    uint64_t number = at >> PLACE_SHIFT;
    uint64_t offset = at & ((UINT64_C(1) << PLACE_SHIFT) - 1);

    if (at == 0)
        return NULL;
    if (peer == n->base.shm.rank) /* its caller only asks whether it counts */
        return n->base.shm.control[peer];
    while (p->segments < number)
        if (map_next_segment(p, peer) != OAR_OK)
            return NULL;
    if (number == 0 || offset > p->segment[number - 1].bytes ||
        bytes > p->segment[number - 1].bytes - offset) {
        oari_fail(OAR_E_DATA, "rank %d shows %zu bytes outside its segment",
                  peer, bytes);
        return NULL;
    }
    return p->segment[number - 1].base + offset;
}

/* ---- private memory of peers --------------------------------------------- */

/* The pidfd is polled after the reading: had the peer died before, its pid
 * might be another process's. Without a pidfd that could not be known. A peer
 * that is dying has no memory a little before the pidfd shows it. */
static oar_status fetch_private(void *self, int peer, uint64_t address,
                                void *to, size_t bytes)
{
    const shm_peer *p = &((shm_links *)self)->peer[peer];
    struct iovec mine = { to, bytes };
    struct iovec theirs = { (void *)(uintptr_t)address, bytes };
    struct pollfd death = { p->pidfd, POLLIN, 0 };
    ssize_t got;

    if (p->pidfd < 0 || p->pid <= 0)
        return OAR_E_UNSUPPORTED;
    got = process_vm_readv((pid_t)p->pid, &mine, 1, &theirs, 1, 0);
    if ((got < 0 && errno == ESRCH) || poll(&death, 1, 0) > 0)
        return OAR_E_CLOSED;
    return got == (ssize_t)bytes ? OAR_OK : OAR_E_UNSUPPORTED;
}

/* Tries it on the control pages of all peers, once. */
static int fetches_from_all(void *self)
{
    shm_links *n = self;
    oari_shm *b = &n->base.shm;
    int32_t seen;

    for (int r = 0; r < b->ranks && n->fetches == FETCH_UNKNOWN; r++)
        if (r != b->rank &&
            (fetch_private(n, r,
                           b->control[r]->address +
                               offsetof(oari_control_page, rank),
                           &seen, sizeof seen) != OAR_OK ||
             seen != r))
            n->fetches = FETCH_NO;
    if (n->fetches == FETCH_UNKNOWN)
        n->fetches = FETCH_YES;
    return n->fetches == FETCH_YES;
}

/* ---- peers that are gone ------------------------------------------------- */

static void mark_gone(shm_links *n, int rank)
{
    shm_peer *p = &n->peer[rank];

    n->base.shm.gone[rank] = n->base.shm.any_gone = 1;
    epoll_ctl(n->epoll_fd, EPOLL_CTL_DEL, p->socket, NULL);
    if (p->pidfd >= 0)
        epoll_ctl(n->epoll_fd, EPOLL_CTL_DEL, p->pidfd, NULL);
}

static void check_peers(void *self)
{
    shm_links *n = self;
    oari_shm *b = &n->base.shm;
    struct epoll_event event[16];
    int found = epoll_wait(n->epoll_fd, event, 16, 0);

    for (int i = 0; i < found; i++)
        if (event[i].data.u32 < (uint32_t)b->ranks)
            mark_gone(n, (int)event[i].data.u32);
    for (int r = 0; r < b->ranks; r++)
        if (!b->gone[r] && r != b->rank && atomic_load(&b->control[r]->closed))
            mark_gone(n, r);
}

const oari_shm_ops shm_process_ops = {
    .place = place_memory,
    .resolve = resolve_place,
    .detach = detach_memory,
    .fetch = fetch_private,
    .fetches = fetches_from_all,
    .check = check_peers,
};
