/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_rendezvous: the ranks find each other through the store, check that they
 * can work together, and map each other's pages. There are two rounds: what
 * each rank is, or why it cannot take part; then whether each has mapped all
 * others. So either all of them open, or none, and all report the same reason.
 */
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

/* What a rank publishes in a round. */
typedef struct rank_info {
    int32_t status;
    int32_t device;
    int64_t pid;
    uint64_t place;
    oari_cu_uuid uuid;
    char why[WHY_BYTES];
} rank_info;

typedef struct rendezvous {
    ipc *self;
    const oar_backend_env *env;
    oari_board *board;
    int64_t deadline_ns;
    char key[OARI_NAME_MAX + 64]; /* the prefix of the keys */
    rank_info *info;              /* by rank */
} rendezvous;

/* ---- rounds -------------------------------------------------------------- */

/* Reads all ranks before it reports an error: that of the lowest rank. */
static oar_status exchange_infos(rendezvous *m, const char *round,
                                 const rank_info *mine)
{
    char key[sizeof m->key + 32];
    void *data;
    size_t bytes;

    snprintf(key, sizeof key, "%s/%s/%d", m->key, round, m->self->rank);
    OARI_TRY(oar_store_set(m->env->store, key, mine, sizeof *mine));
    for (int r = 0; r < m->self->ranks; r++) {
        snprintf(key, sizeof key, "%s/%s/%d", m->key, round, r);
        OARI_TRY(oar_store_get(m->env->store, key,
                               oari_deadline_left_ms(m->deadline_ns), &data,
                               &bytes));
        if (bytes == sizeof m->info[r])
            memcpy(&m->info[r], data, bytes);
        oar_free(data);
        if (bytes != sizeof m->info[r])
            return oari_fail(OAR_E_MISMATCH,
                             "ipc: rank %d is of another version", r);
    }
    for (int r = 0; r < m->self->ranks; r++) {
        m->info[r].why[WHY_BYTES - 1] = 0;
        if (m->info[r].status != OAR_OK)
            return oari_about(r, oari_fail((oar_status)m->info[r].status, "%s",
                                           m->info[r].why));
    }
    return OAR_OK;
}

static void set_status(rank_info *mine, oar_status status)
{
    mine->status = (int32_t)status;
    if (status != OAR_OK)
        snprintf(mine->why, sizeof mine->why, "%s", oar_last_error_text());
}

/* ---- describing a rank --------------------------------------------------- */

static oar_status describe_rank(rendezvous *m, rank_info *mine)
{
    ipc *self = m->self;
    oari_cu_device device;

    mine->pid = getpid();
    mine->device = self->device;
    if (m->board == NULL)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "ipc: the ranks of this host share no memory");
    for (int r = 0; r < self->ranks; r++)
        if (oari_board_rank(m->board, r) < 0)
            return oari_fail(OAR_E_UNAVAILABLE,
                             "ipc: rank %d is on another host than rank %d", r,
                             self->rank);
    OARI_TRY(oari_cuda_check(self->cu->DeviceGet(&device, self->device),
                             "find a device"));
    OARI_TRY(oari_cuda_check(self->cu->DeviceGetUuid(&mine->uuid, device),
                             "ask a device for its id"));
    OARI_TRY(oari_ipc_load_kernels(self));
    OARI_TRY(oari_ipc_page_make(self));
    mine->place = m->board->ops->place(
        m->board->self, self->peer[self->rank].page, self->layout.bytes);
    if (mine->place == 0)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "ipc: peers cannot map memory of rank %d", self->rank);
    return OAR_OK;
}

/* ---- mapping the others -------------------------------------------------- */

static oar_status find_device(const rendezvous *m, int rank,
                              oari_cu_device *found)
{
    const oari_cuda *cu = m->self->cu;
    oari_cu_uuid uuid;
    int count = 0;

    OARI_TRY(oari_cuda_check(cu->DeviceGetCount(&count), "count devices"));
    for (int d = 0; d < count; d++)
        if (cu->DeviceGet(found, d) == OARI_CU_SUCCESS &&
            cu->DeviceGetUuid(&uuid, *found) == OARI_CU_SUCCESS &&
            memcmp(&uuid, &m->info[rank].uuid, sizeof uuid) == 0)
            return OAR_OK;
    return oari_fail(OAR_E_UNAVAILABLE,
                     "ipc: rank %d cannot see the GPU of rank %d "
                     "(CUDA_VISIBLE_DEVICES)",
                     m->self->rank, rank);
}

static int same_device(const rendezvous *m, int rank)
{
    return memcmp(&m->info[rank].uuid, &m->info[m->self->rank].uuid,
                  sizeof(oari_cu_uuid)) == 0;
}

static oar_status check_access(const rendezvous *m, int rank)
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
                     m->self->device, m->self->rank, m->info[rank].device,
                     rank);
}

static oar_status register_page(ipc *self, int rank)
{
    const oari_cuda *cu = self->cu;

    OARI_TRY(oari_cuda_check(cu->MemHostRegister(self->peer[rank].page,
                                                 self->layout.bytes,
                                                 DEVICE_MAP | PORTABLE),
                             "register a page of shared memory"));
    self->peer[rank].registered = 1;
    return oari_cuda_check(
        cu->MemHostGetDevicePointer(&self->peer[rank].device_page,
                                    self->peer[rank].page, 0),
        "find a page of shared memory on the device");
}

static oar_status map_rank(rendezvous *m, int rank)
{
    ipc *self = m->self;
    int there = oari_board_rank(m->board, rank);

    if (rank != self->rank) {
        if (m->info[rank].pid == m->info[self->rank].pid)
            return oari_fail(OAR_E_UNAVAILABLE,
                             "ipc: ranks %d and %d are threads of one process; "
                             "CUDA shares memory between processes only",
                             rank, self->rank);
        OARI_TRY(check_access(m, rank));
        self->peer[rank].page = m->board->ops->resolve(
            m->board->self, there, m->info[rank].place, self->layout.bytes);
        if (self->peer[rank].page == NULL)
            return oar_last_error()->status;
    }
    return register_page(self, rank);
}

/* ---- both rounds --------------------------------------------------------- */

static oar_status join_ranks(rendezvous *m)
{
    ipc *self = m->self;
    rank_info mine = { 0 };
    oar_status status = OAR_OK;
    int64_t times;

    /* A number in the prefix, so that a group's name can be used again. */
    snprintf(m->key, sizeof m->key, "%s/ipc/%d", m->env->name, self->rank);
    OARI_TRY(oar_store_add(m->env->store, m->key, 1, &times));
    snprintf(m->key, sizeof m->key, "%s/ipc/%" PRId64, m->env->name, times);
    set_status(&mine, describe_rank(m, &mine));
    OARI_TRY(exchange_infos(m, "is", &mine));
    self->leader_works = 1;
    for (int r = 0; r < self->ranks && status == OAR_OK; r++) {
        status = map_rank(m, r);
        self->leader_works &= same_device(m, r);
    }
    set_status(&mine, status);
    return exchange_infos(m, "maps", &mine);
}

oar_status oari_ipc_rendezvous(ipc *self, const oari_open *with)
{
    rendezvous m = { .self = self,
                     .env = &with->env,
                     .board = with->board,
                     .deadline_ns = oari_deadline(with->env.timeout_ms) };
    oar_status status;

    if (self->ranks == 1) { /* messages to itself use a page too */
        OARI_TRY(oari_ipc_load_kernels(self));
        OARI_TRY(oari_ipc_page_make(self));
        self->leader_works = 1;
        return register_page(self, 0);
    }
    m.info = oari_alloc((size_t)self->ranks, sizeof *m.info);
    if (m.info == NULL)
        return OAR_E_NOMEM;
    status = join_ranks(&m);
    oari_free(m.info);
    return status;
}
