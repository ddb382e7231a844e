/* SPDX-License-Identifier: Apache-2.0 */
/* self: a group of one. A board with a single rank: every collective is what it
 * is for one rank, and messages to oneself go through its own mail. */
#include "base/status.h"
#include "link/shm/boarded.h"
#include "comm/group/group.h"
#include "link/shm/local.h"

static oar_status self_probe(oar_backend_caps *caps)
{
    caps->note = "a group of one";
    caps->can = OARI_MATCH_CAN | OAR_CAN_MEMORY;
    return OAR_OK;
}

static oar_status self_open(void *self, const oar_backend_env *env)
{
    oari_boarded *b = self;
    const struct oari_open *core = env->core;
    oari_world *world;
    oar_status status;

    if (env->ranks != 1)
        return oari_fail(OAR_E_WORLD, "backend \"self\" with %d ranks",
                         env->ranks);
    OARI_TRY(
        oari_world_create(1, core->small_bytes, core->stage_bytes, &world));
    status =
        oari_world_join(world, 0, core->spin_us, core->recorder, &b->board);
    oari_world_release(world);
    return status == OAR_OK ? oari_boarded_open(b, 0, 1, core->eager_bytes)
                            : status;
}

static void self_close(void *self)
{
    oari_boarded *b = self;

    oari_boarded_close(b);
    oari_world_leave(&b->board);
}

extern const oar_backend_ops oari_backend_self;
const oar_backend_ops oari_backend_self = {
    OARI_BOARDED_OPS,    .name = "self",    .self_size = sizeof(oari_boarded),
    .probe = self_probe, .open = self_open, .close = self_close,
};
