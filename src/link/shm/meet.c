/* SPDX-License-Identifier: Apache-2.0 */
/* meet: how the ranks of a host find each other. Every rank publishes a note in
 * the store: who it is, which host it is on, and the random name of a unix
 * socket it listens on. Those of one host make a board and greet each other
 * (greet.c). */
#include "link/shm/meet.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/status.h"
#include "device/segment.h"
#include "link/proof.h"

/* ---- notes --------------------------------------------------------------- */

static void key_of(const void *arg, int rank, char *key, size_t bytes)
{
    const shm_meeting *m = arg;

    snprintf(key, bytes, "%s/%d", m->prefix, rank);
}

static oar_status fill_note(const shm_meeting *m, shm_note *mine)
{
    mine->magic = SHM_NOTE_MAGIC;
    mine->protocol = SHM_PROTOCOL;
    mine->rank = m->with->env.rank;
    mine->ranks = m->with->env.ranks;
    mine->page = (uint64_t)sysconf(_SC_PAGESIZE);
    mine->small_bytes = m->with->small_bytes;
    mine->stage_bytes = m->with->stage_bytes;
    OARI_TRY(native_host(mine->host));
    if (getrandom(mine->token, sizeof mine->token, 0) != sizeof mine->token)
        return oari_fail(OAR_E_SYSTEM, "getrandom");
    mine->proves = (uint64_t)m->secret.known;
    return OAR_OK;
}

static native_note as_note(const shm_meeting *m, int rank, const shm_note *n)
{
    return (native_note){ m->prefix, rank, n, offsetof(shm_note, proof) };
}

static oar_status publish(shm_meeting *m)
{
    char key[OAR_STORE_KEY_MAX];
    native_note mine = as_note(m, m->with->env.rank, &m->mine);

    OARI_TRY(oari_unix_listen(m->mine.socket, &m->n->listener));
    oari_fork_guard(m->n->listener);
    OARI_TRY(native_vouch(&m->secret, &mine, m->mine.proof));
    key_of(m, m->with->env.rank, key, sizeof key);
    return oar_store_set(m->with->env.store, key, &m->mine, sizeof m->mine);
}

static oar_status check_note(const shm_meeting *m, int rank,
                             const shm_note *other)
{
    native_note about = as_note(m, rank, other);
    int here = strncmp(other->host, m->mine.host, NATIVE_HOST) == 0;

    if (other->magic != SHM_NOTE_MAGIC || other->protocol != SHM_PROTOCOL ||
        (here && other->page != m->mine.page))
        return oari_fail(OAR_E_MISMATCH,
                         "rank %d speaks protocol %u (page size %llu), this "
                         "is protocol %d (page size %llu)",
                         rank, other->protocol, (unsigned long long)other->page,
                         SHM_PROTOCOL, (unsigned long long)m->mine.page);
    if (other->rank != rank || other->ranks != m->with->env.ranks)
        return oari_fail(OAR_E_MISMATCH,
                         "rank %d calls itself rank %d of %d, this is rank %d "
                         "of %d",
                         rank, other->rank, other->ranks, m->with->env.rank,
                         m->with->env.ranks);
    if (m->one_host && !here)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "rank %d is on another host, which backend \"shm\" "
                         "does not reach",
                         rank);
    return native_believe(&m->secret, &about, other->proves != 0, other->proof);
}

static oar_status read_note(shm_meeting *m, int rank)
{
    char key[OAR_STORE_KEY_MAX];
    void *value;
    size_t bytes;

    key_of(m, rank, key, sizeof key);
    OARI_TRY(oari_rendezvous_get(&m->rendezvous, key, rank, m->deadline_ns,
                                 &value, &bytes));
    if (bytes == sizeof(shm_note))
        memcpy(&m->note[rank], value, sizeof(shm_note));
    oari_free(value);
    OARI_TRY(check_note(m, rank, &m->note[rank]));
    m->note[rank].socket[OARI_UNIX_NAME - 1] = 0;
    m->note[rank].host[NATIVE_HOST - 1] = 0;
    return OAR_OK;
}

static oar_status read_notes(shm_meeting *m)
{
    oar_status status = OAR_OK;
    int r;

    for (r = 0; r < m->with->env.ranks && status == OAR_OK; r++)
        if (r != m->with->env.rank)
            status = read_note(m, r);
    if (status == OAR_E_TIMEOUT)
        native_missed_from(m->with, r, key_of, m);
    return status;
}

/* ---- who is on the board ------------------------------------------------- */

static int is_here(const shm_meeting *m, int rank)
{
    return m->n->host[rank] == m->n->host[m->with->env.rank];
}

static oar_status list_members(shm_meeting *m)
{
    shm_links *n = m->n;
    oari_board *b = &n->base.board;
    int at = 0;

    n->member = oari_alloc((size_t)b->ranks, sizeof *n->member);
    if (n->member == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < m->with->env.ranks; r++) {
        if (r == m->with->env.rank)
            b->rank = at;
        if (is_here(m, r))
            n->member[at++] = r;
    }
    b->member = n->member;
    return OAR_OK;
}

static oar_status make_peers(shm_links *n)
{
    int ranks = n->base.board.ranks;

    n->peer = oari_alloc((size_t)ranks, sizeof *n->peer);
    if (n->peer == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < ranks; r++)
        n->peer[r].socket = n->peer[r].pidfd = n->peer[r].calling = -1;
    return OAR_OK;
}

static oar_status find_hosts(shm_meeting *m)
{
    shm_links *n = m->n;
    oari_board *b = &n->base.board;

    n->host = oari_alloc((size_t)m->with->env.ranks, sizeof *n->host);
    if (n->host == NULL)
        return OAR_E_NOMEM;
    native_number_hosts(m->with->env.ranks, m->note[0].host, sizeof(shm_note),
                        n->host);
    b->rank = m->with->env.rank;
    for (int r = 0; r < m->with->env.ranks; r++) {
        b->ranks += is_here(m, r);
        if (n->host[r] >= n->hosts)
            n->hosts = n->host[r] + 1;
    }
    if (n->hosts > 1)
        OARI_TRY(list_members(m));
    OARI_TRY(oari_board_init(b));
    return make_peers(n);
}

/* ---- my side ------------------------------------------------------------- */

static oar_status make_control(shm_meeting *m)
{
    shm_links *n = m->n;
    oari_board *b = &n->base.board;
    const shm_note *first = &m->note[0];
    void *base;

    b->layout =
        oari_board_layout(b->ranks, first->small_bytes, first->stage_bytes);
    OARI_TRY(oari_segment_make("oarsong-control", b->layout.bytes,
                               &n->control_fd, &base));
    oari_fork_guard(n->control_fd);
    b->control[b->rank] = base;
    if (b->rank == 0)
        b->first = (void *)((char *)base + b->layout.ballot);
    oari_control_init(base, b->rank, b->ranks, first->small_bytes,
                      first->stage_bytes);
    b->recorder[b->rank] = oari_recorder_base(m->with->recorder);
    return OAR_OK;
}

static oar_status make_wait(shm_links *n)
{
    oari_board *b = &n->base.board;
    struct epoll_event event = { .events = EPOLLIN, .data.u32 = UINT32_MAX };

    n->event_fd = oari_fork_guard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    n->epoll_fd = oari_fork_guard(epoll_create1(EPOLL_CLOEXEC));
    if (n->event_fd < 0 || n->epoll_fd < 0 ||
        epoll_ctl(n->epoll_fd, EPOLL_CTL_ADD, n->event_fd, &event) != 0)
        return oari_fail(OAR_E_SYSTEM, "make an eventfd");
    b->event[b->rank] = n->event_fd;
    b->wait_fd = n->epoll_fd;
    return OAR_OK;
}

static oar_status meet_all(shm_meeting *m)
{
    OARI_TRY(native_secret(&m->secret));
    OARI_TRY(fill_note(m, &m->mine));
    if (m->with->env.ranks > 1)
        OARI_TRY(publish(m));
    m->note[m->with->env.rank] = m->mine;
    OARI_TRY(read_notes(m));
    OARI_TRY(find_hosts(m));
    OARI_TRY(make_control(m));
    OARI_TRY(make_wait(m->n));
    return shm_greet_all(m);
}

oar_status shm_meet(shm_links *n, const oari_open *with, int one_host,
                    char prefix[OAR_STORE_KEY_MAX])
{
    shm_meeting m = { .n = n,
                      .with = with,
                      .prefix = prefix,
                      .one_host = one_host,
                      .deadline_ns = oari_deadline(with->meet_ms) };
    oar_status status = OAR_OK;

    m.rendezvous = native_rendezvous(with, key_of, &m);
    m.note = oari_alloc((size_t)with->env.ranks, sizeof *m.note);
    if (m.note == NULL)
        return OAR_E_NOMEM;
    if (with->env.ranks > 1)
        status = native_prefix(with, prefix, OAR_STORE_KEY_MAX);
    if (status == OAR_OK)
        status = meet_all(&m);
    oari_secret_forget(&m.secret);
    oari_free(m.note);
    if (status == OAR_OK)
        shm_close_door(n); /* else once word is left of why (open_failure.h) */
    return status;
}
