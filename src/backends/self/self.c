/* SPDX-License-Identifier: Apache-2.0 */
/* self: a group of one. It has a control page with a single rank; messages of
 * the rank to itself go through its own shm queue. */
#include "backends/backends.h"
#include "base/status.h"
#include "link/shm/shm_base.h"
#include "link/shm/inproc.h"

static oar_status self_probe(oar_backend_caps *caps)
{
    caps->note = "a group of one";
    caps->can = OARI_MATCH_CAN | OAR_CAN_MEMORY;
    return OAR_OK;
}

static oar_status self_open(void *self, const oari_open *with)
{
    oari_shm_base *b = self;
    oari_world *world;
    oar_status status;

    if (with->env.ranks != 1)
        return oari_fail(OAR_E_WORLD, "backend \"self\" with %d ranks",
                         with->env.ranks);
    OARI_TRY(
        oari_world_create(1, with->small_bytes, with->stage_bytes, &world));
    status = oari_world_join(world, 0, with->spin_us, with->recorder, &b->shm);
    oari_world_release(world);
    return status == OAR_OK ? oari_shm_base_open(b, 0, 1, with->eager_bytes)
                            : status;
}

static void self_close(void *self)
{
    oari_shm_base *b = self;

    oari_shm_base_close(b);
    oari_world_leave(&b->shm);
}

const oari_backend oari_backend_self = {
    .ops = { OARI_SHM_BASE_OPS, .name = "self", .probe = self_probe,
             .close = self_close },
    .role = OARI_ROLE_ALONE,
    .open = self_open,
    .shm = oari_shm_base_get,
    .withdraw = oari_shm_base_withdraw,
};
