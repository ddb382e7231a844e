/* SPDX-License-Identifier: Apache-2.0 */
/* sim: ranks as threads of one process, in a world that oar_sim_run makes
 * (comm/group/sim_run.c). */
#include "backends/backends.h"
#include "base/status.h"
#include "link/shm/shm_base.h"
#include "link/shm/inproc.h"

static oar_status sim_probe(oar_backend_caps *caps)
{
    caps->note = "ranks as threads of one process (oar_sim_run)";
    caps->can = OARI_MATCH_CAN | OAR_CAN_MEMORY;
    return OAR_OK;
}

static oar_status sim_open(void *self, const oari_open *with)
{
    oari_shm_base *b = self;

    if (with->world == NULL)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "a group over \"sim\" is made by oar_sim_run");
    OARI_TRY(oari_world_join(with->world, with->env.rank, with->spin_us,
                             with->recorder, &b->shm));
    return oari_shm_base_open(b, with->env.rank, with->env.ranks,
                              with->eager_bytes);
}

static void sim_close(void *self)
{
    oari_shm_base *b = self;

    oari_shm_base_close(b);
    oari_world_leave(&b->shm);
}

const oari_backend oari_backend_sim = {
    .ops = { OARI_SHM_BASE_OPS, .name = "sim", .probe = sim_probe,
             .close = sim_close },
    .role = OARI_ROLE_THREADS,
    .open = sim_open,
    .shm = oari_shm_base_get,
    .withdraw = oari_shm_base_withdraw,
    .push = oari_shm_base_push,
    .take = oari_shm_base_take,
    .await = oari_shm_base_await,
    .match = oari_shm_base_match,
};
