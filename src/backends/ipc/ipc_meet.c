/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_meet: the ranks find each other through the store, see that they can work
 * together, and map each other's pages. Two rounds: what each rank is, or why
 * it cannot take part; then whether each has reached all others. So either all
 * of them open, or none, and all say the same reason. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/ipc/ipc.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "link/shm/board.h"
#include "comm/group/group.h"

enum { DEVICE_MAP = 2, PORTABLE = 1, WHY_BYTES = 300 };

/* What a rank tells the others in a round. */
typedef struct card {
    int32_t status;
    int32_t device;
    int64_t pid;
    uint64_t place;
    oari_cu_uuid uuid;
    char why[WHY_BYTES];
} card;

typedef struct meeting {
    ipc *self;
    const oar_backend_env *env;
    oari_board *board;
    int64_t deadline_ns;
    char key[OARI_NAME_MAX + 64]; /* what keys of this time begin with */
    card *card;                   /* by rank */
} meeting;

/* ---- rounds -------------------------------------------------------------- */

/* A name can be used again: which time this is. */
static oar_status begin_keys(meeting *m)
{
    int64_t times;

    snprintf(m->key, sizeof m->key, "%s/ipc/%d", m->env->name, m->self->rank);
    OARI_TRY(oar_store_add(m->env->store, m->key, 1, &times));
    snprintf(m->key, sizeof m->key, "%s/ipc/%" PRId64, m->env->name, times);
    return OAR_OK;
}

static oar_status tell(meeting *m, const char *round, const card *mine)
{
    char key[sizeof m->key + 32];

    snprintf(key, sizeof key, "%s/%s/%d", m->key, round, m->self->rank);
    return oar_store_set(m->env->store, key, mine, sizeof *mine);
}

static oar_status hear(meeting *m, const char *round, int rank)
{
    char key[sizeof m->key + 32];
    void *data;
    size_t bytes;
    oar_status status = OAR_OK;

    snprintf(key, sizeof key, "%s/%s/%d", m->key, round, rank);
    OARI_TRY(oar_store_get(m->env->store, key,
                           oari_deadline_left_ms(m->deadline_ns), &data,
                           &bytes));
    if (bytes == sizeof(card))
        memcpy(&m->card[rank], data, bytes);
    else
        status = oari_fail(OAR_E_MISMATCH, "ipc: rank %d is of another version",
                           rank);
    oar_free(data);
    return status;
}

/* All are heard before a reason is given, and the lowest rank's counts. */
static oar_status exchange(meeting *m, const char *round, const card *mine)
{
    OARI_TRY(tell(m, round, mine));
    for (int r = 0; r < m->self->ranks; r++)
        OARI_TRY(hear(m, round, r));
    for (int r = 0; r < m->self->ranks; r++) {
        m->card[r].why[WHY_BYTES - 1] = 0;
        if (m->card[r].status != OAR_OK)
            return oari_about(r, oari_fail((oar_status)m->card[r].status, "%s",
                                           m->card[r].why));
    }
    return OAR_OK;
}

static void note_failure(card *mine, oar_status status)
{
    mine->status = (int32_t)status;
    if (status != OAR_OK)
        snprintf(mine->why, sizeof mine->why, "%s", oar_last_error_text());
}

/* ---- what a rank is ------------------------------------------------------ */

static oar_status check_host(const meeting *m)
{
    if (m->board == NULL)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "ipc: the ranks of this host share no memory");
    for (int r = 0; r < m->self->ranks; r++)
        if (oari_board_rank(m->board, r) < 0)
            return oari_fail(OAR_E_UNAVAILABLE,
                             "ipc: rank %d is on another host than rank %d", r,
                             m->self->rank);
    return OAR_OK;
}

static oar_status show_page(meeting *m, card *mine)
{
    ipc *self = m->self;

    OARI_TRY(oari_ipc_page_make(self));
    mine->place = m->board->ops->place(
        m->board->self, self->peer[self->rank].page, self->layout.bytes);
    if (mine->place == 0)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "ipc: peers cannot reach memory of rank %d",
                         self->rank);
    return OAR_OK;
}

static oar_status describe_me(meeting *m, card *mine)
{
    const oari_cuda *cu = m->self->cu;
    oari_cu_device device;

    mine->pid = getpid();
    mine->device = m->self->device;
    OARI_TRY(check_host(m));
    OARI_TRY(oari_cuda_check(cu->DeviceGet(&device, m->self->device),
                             "find a device"));
    OARI_TRY(oari_cuda_check(cu->DeviceGetUuid(&mine->uuid, device),
                             "ask a device who it is"));
    OARI_TRY(oari_ipc_load(m->self));
    return show_page(m, mine);
}

/* ---- reaching them ------------------------------------------------------- */

static oar_status find_device(const meeting *m, int rank, oari_cu_device *found)
{
    const oari_cuda *cu = m->self->cu;
    oari_cu_uuid uuid;
    int count = 0;

    OARI_TRY(oari_cuda_check(cu->DeviceGetCount(&count), "count devices"));
    for (int d = 0; d < count; d++)
        if (cu->DeviceGet(found, d) == OARI_CU_SUCCESS &&
            cu->DeviceGetUuid(&uuid, *found) == OARI_CU_SUCCESS &&
            memcmp(&uuid, &m->card[rank].uuid, sizeof uuid) == 0)
            return OAR_OK;
    return oari_fail(OAR_E_UNAVAILABLE,
                     "ipc: rank %d cannot see the GPU of rank %d "
                     "(CUDA_VISIBLE_DEVICES)",
                     m->self->rank, rank);
}

static int same_device(const meeting *m, int rank)
{
    return memcmp(&m->card[rank].uuid, &m->card[m->self->rank].uuid,
                  sizeof(oari_cu_uuid)) == 0;
}

static oar_status check_access(const meeting *m, int rank)
{
    const oari_cuda *cu = m->self->cu;
    oari_cu_device mine, theirs;
    int can = 0;

    if (same_device(m, rank))
        return OAR_OK;
    OARI_TRY(find_device(m, m->self->rank, &mine));
    OARI_TRY(find_device(m, rank, &theirs));
    OARI_TRY(oari_cuda_check(cu->DeviceCanAccessPeer(&can, mine, theirs),
                             "ask for peer access"));
    if (can)
        return OAR_OK;
    return oari_fail(OAR_E_UNAVAILABLE,
                     "ipc: GPU %d of rank %d has no peer access to GPU %d of "
                     "rank %d",
                     m->self->device, m->self->rank, m->card[rank].device,
                     rank);
}

static oar_status check_process(const meeting *m, int rank)
{
    if (m->card[rank].pid != m->card[m->self->rank].pid)
        return OAR_OK;
    return oari_fail(OAR_E_UNAVAILABLE,
                     "ipc: ranks %d and %d are threads of one process; CUDA "
                     "shares memory between processes only",
                     rank, m->self->rank);
}

static oar_status register_page(ipc *self, int rank)
{
    const oari_cuda *cu = self->cu;

    OARI_TRY(oari_cuda_check(cu->MemHostRegister(self->peer[rank].page,
                                                 self->layout.bytes,
                                                 DEVICE_MAP | PORTABLE),
                             "register a page of shared memory"));
    self->peer[rank].registered = 1;
    return oari_cuda_check(cu->MemHostGetDevicePointer(&self->peer[rank].reach,
                                                       self->peer[rank].page,
                                                       0),
                           "find a page of shared memory on the device");
}

static oar_status reach_rank(meeting *m, int rank)
{
    ipc *self = m->self;
    int there = oari_board_rank(m->board, rank);

    if (rank != self->rank) {
        OARI_TRY(check_process(m, rank));
        OARI_TRY(check_access(m, rank));
        self->peer[rank].page = m->board->ops->resolve(
            m->board->self, there, m->card[rank].place, self->layout.bytes);
        if (self->peer[rank].page == NULL)
            return oar_last_error()->status;
    }
    return register_page(self, rank);
}

static oar_status reach_all(meeting *m)
{
    ipc *self = m->self;

    self->alone_works = 1;
    for (int r = 0; r < self->ranks; r++) {
        OARI_TRY(reach_rank(m, r));
        self->alone_works &= same_device(m, r);
    }
    return OAR_OK;
}

/* ---- both ---------------------------------------------------------------- */

static oar_status meet_others(meeting *m)
{
    card mine = { 0 };
    oar_status status;

    OARI_TRY(begin_keys(m));
    note_failure(&mine, describe_me(m, &mine));
    OARI_TRY(exchange(m, "is", &mine));
    status = reach_all(m);
    note_failure(&mine, status);
    return exchange(m, "reaches", &mine);
}

/* Messages to itself go over a page too. */
static oar_status meet_nobody(ipc *self)
{
    OARI_TRY(oari_ipc_load(self));
    OARI_TRY(oari_ipc_page_make(self));
    self->alone_works = 1;
    return register_page(self, 0);
}

oar_status oari_ipc_meet(ipc *self, const oari_open *with)
{
    meeting m = { .self = self,
                  .env = &with->env,
                  .board = with->board,
                  .deadline_ns = oari_deadline(with->env.timeout_ms) };
    oar_status status;

    if (self->ranks == 1)
        return meet_nobody(self);
    m.card = oari_alloc((size_t)self->ranks, sizeof *m.card);
    if (m.card == NULL)
        return OAR_E_NOMEM;
    status = meet_others(&m);
    oari_free(m.card);
    return status;
}
