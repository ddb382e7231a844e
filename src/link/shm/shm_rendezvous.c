/* SPDX-License-Identifier: Apache-2.0 */
/* shm_rendezvous: how the ranks of a host find each other. Every rank publishes
 * an entry in the store: its rank, its host, and the random name of a unix
 * socket at which it listens. Ranks of one host make shared memory and shake
 * hands (handshake.c). */
#include "link/shm/shm_rendezvous.h"

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
#include "link/auth.h"

/* ---- entries in the store ------------------------------------------------ */

static void entry_key(const void *arg, int rank, char *key, size_t bytes)
{
    const shm_join *j = arg;

    snprintf(key, bytes, "%s/%d", j->prefix, rank);
}

static oari_signed_entry as_note(const shm_join *j, int rank,
                                 const shm_entry *e)
{
    return (oari_signed_entry){ j->prefix, rank, e, offsetof(shm_entry, mac) };
}

static oar_status fill_entry(const shm_join *j, shm_entry *mine)
{
    mine->magic = SHM_ENTRY_MAGIC;
    mine->protocol = SHM_PROTOCOL;
    mine->rank = j->with->env.rank;
    mine->ranks = j->with->env.ranks;
    mine->page = (uint64_t)sysconf(_SC_PAGESIZE);
    mine->small_bytes = j->with->small_bytes;
    mine->stage_bytes = j->with->stage_bytes;
    OARI_TRY(oari_host_name(mine->host));
    if (getrandom(mine->token, sizeof mine->token, 0) != sizeof mine->token)
        return oari_fail(OAR_E_SYSTEM, "getrandom");
    mine->proves = (uint64_t)j->secret.known;
    return OAR_OK;
}

static oar_status publish_entry(shm_join *j)
{
    char key[OAR_STORE_KEY_MAX];
    oari_signed_entry mine = as_note(j, j->with->env.rank, &j->mine);

    OARI_TRY(oari_unix_listen(j->mine.socket, &j->links->listener));
    oari_fork_guard(j->links->listener);
    OARI_TRY(oari_entry_sign(&j->secret, &mine, j->mine.mac));
    entry_key(j, j->with->env.rank, key, sizeof key);
    return oar_store_set(j->with->env.store, key, &j->mine, sizeof j->mine);
}

static oar_status check_entry(const shm_join *j, int rank,
                              const shm_entry *other)
{
    oari_signed_entry about = as_note(j, rank, other);
    int here = strncmp(other->host, j->mine.host, OARI_HOST_NAME_BYTES) == 0;

    if (other->magic != SHM_ENTRY_MAGIC || other->protocol != SHM_PROTOCOL ||
        (here && other->page != j->mine.page))
        return oari_fail(OAR_E_MISMATCH,
                         "rank %d speaks protocol %u (page size %llu), this "
                         "is protocol %d (page size %llu)",
                         rank, other->protocol, (unsigned long long)other->page,
                         SHM_PROTOCOL, (unsigned long long)j->mine.page);
    if (other->rank != rank || other->ranks != j->with->env.ranks)
        return oari_fail(OAR_E_MISMATCH,
                         "rank %d calls itself rank %d of %d, this is rank %d "
                         "of %d",
                         rank, other->rank, other->ranks, j->with->env.rank,
                         j->with->env.ranks);
    if (j->one_host && !here)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "rank %d is on another host, which backend \"shm\" "
                         "does not reach",
                         rank);
    return oari_entry_check(&j->secret, &about, other->proves != 0, other->mac);
}

static oar_status read_entry(shm_join *j, int rank)
{
    shm_entry *e = &j->entry[rank];
    char key[OAR_STORE_KEY_MAX];
    void *value;
    size_t bytes;

    entry_key(j, rank, key, sizeof key);
    OARI_TRY(oari_rendezvous_get(&j->rendezvous, key, rank, j->deadline_ns,
                                 &value, &bytes));
    if (bytes == sizeof *e)
        memcpy(e, value, sizeof *e);
    oari_free(value);
    OARI_TRY(check_entry(j, rank, e));
    e->socket[OARI_UNIX_NAME - 1] = 0;
    e->host[OARI_HOST_NAME_BYTES - 1] = 0;
    return OAR_OK;
}

static oar_status read_entries(shm_join *j)
{
    oar_status status = OAR_OK;
    int r;

    for (r = 0; r < j->with->env.ranks && status == OAR_OK; r++)
        if (r != j->with->env.rank)
            status = read_entry(j, r);
    if (status == OAR_E_TIMEOUT)
        oari_join_missed_from(j->with, r, entry_key, j);
    return status;
}

/* ---- which ranks are on this host ---------------------------------------- */

static int is_here(const shm_join *j, int rank)
{
    return j->links->host[rank] == j->links->host[j->with->env.rank];
}

static oar_status list_members(shm_join *j)
{
    shm_links *n = j->links;
    oari_shm *b = &n->base.shm;
    int at = 0;

    n->member = oari_alloc((size_t)b->ranks, sizeof *n->member);
    if (n->member == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < j->with->env.ranks; r++) {
        if (r == j->with->env.rank)
            b->rank = at;
        if (is_here(j, r))
            n->member[at++] = r;
    }
    b->member = n->member;
    return OAR_OK;
}

static oar_status find_hosts(shm_join *j)
{
    shm_links *n = j->links;
    oari_shm *b = &n->base.shm;

    n->host = oari_alloc((size_t)j->with->env.ranks, sizeof *n->host);
    if (n->host == NULL)
        return OAR_E_NOMEM;
    oari_host_number_all(j->with->env.ranks, j->entry[0].host,
                         sizeof(shm_entry), n->host);
    b->rank = j->with->env.rank;
    for (int r = 0; r < j->with->env.ranks; r++) {
        b->ranks += is_here(j, r);
        if (n->host[r] >= n->hosts)
            n->hosts = n->host[r] + 1;
    }
    if (n->hosts > 1)
        OARI_TRY(list_members(j));
    OARI_TRY(oari_shm_init(b));
    n->peer = oari_alloc((size_t)b->ranks, sizeof *n->peer);
    if (n->peer == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < b->ranks; r++)
        n->peer[r].socket = n->peer[r].pidfd = n->peer[r].calling = -1;
    return OAR_OK;
}

/* ---- this rank's side ---------------------------------------------------- */

static oar_status make_control_page(shm_join *j)
{
    shm_links *n = j->links;
    oari_shm *b = &n->base.shm;
    const shm_entry *first = &j->entry[0];
    void *base;

    b->layout = oari_control_page_layout(b->ranks, first->small_bytes,
                                         first->stage_bytes);
    OARI_TRY(oari_segment_make("oarsong-control", b->layout.bytes,
                               &n->control_fd, &base));
    oari_fork_guard(n->control_fd);
    b->control[b->rank] = base;
    if (b->rank == 0)
        b->first = (void *)((char *)base + b->layout.first);
    oari_control_page_init(base, b->rank, b->ranks, first->small_bytes,
                           first->stage_bytes);
    b->recorder[b->rank] = oari_recorder_base(j->with->recorder);
    return OAR_OK;
}

static oar_status make_wait_fd(shm_links *n)
{
    oari_shm *b = &n->base.shm;
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

static oar_status join_ranks(shm_join *j)
{
    OARI_TRY(oari_entry_secret(j->with->secret, &j->secret));
    OARI_TRY(fill_entry(j, &j->mine));
    if (j->with->env.ranks > 1)
        OARI_TRY(publish_entry(j));
    j->entry[j->with->env.rank] = j->mine;
    OARI_TRY(read_entries(j));
    OARI_TRY(find_hosts(j));
    OARI_TRY(make_control_page(j));
    OARI_TRY(make_wait_fd(j->links));
    return shm_handshake(j);
}

oar_status shm_find_peers(shm_links *n, const oari_open *with, int one_host,
                          char prefix[OAR_STORE_KEY_MAX])
{
    shm_join j = { .links = n,
                   .with = with,
                   .prefix = prefix,
                   .one_host = one_host,
                   .deadline_ns = oari_deadline(with->rendezvous_ms) };
    oar_status status = OAR_OK;

    j.rendezvous = oari_join_rendezvous(with, entry_key, &j);
    j.entry = oari_alloc((size_t)with->env.ranks, sizeof *j.entry);
    if (j.entry == NULL)
        return OAR_E_NOMEM;
    if (with->env.ranks > 1)
        status = oari_join_prefix(with, prefix, OAR_STORE_KEY_MAX);
    if (status == OAR_OK)
        status = join_ranks(&j);
    oari_secret_forget(&j.secret);
    oari_free(j.entry);
    if (status == OAR_OK) {
        shm_close_listener(n); /* else when it is known why (open_failure.h) */
        oari_fork_close(n->control_fd); /* all peers have it mapped */
        n->control_fd = -1;
    }
    return status;
}
