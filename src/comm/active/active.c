/* SPDX-License-Identifier: Apache-2.0 */
/* active: see active.h. The function is called by oari_drive_once. */
#include "comm/active/active.h"

#include "comm/comm.h"
#include "comm/engine/engine.h"
#include "comm/engine/work.h"

int oari_active_open(oar_group *group, oari_active_fn fn, void *arg)
{
    const oari_backend *links = group->in_tree;

    if (links->push == NULL || links->match == NULL ||
        group->external.ops != NULL)
        return 0;
    oari_engine_take(group);
    group->active.match = links->match(group->self);
    group->active.arg = arg;
    group->active.fn = fn;
    oari_engine_let_go(group);
    return 1;
}

int oari_active_send(oar_group *group, int to, const void *data, size_t bytes)
{
    const oari_backend *links = group->in_tree;
    int drives = oari_work_function_runs(group), sent = 0;

    if (!drives && !oari_engine_try_hold(group))
        return 0;
    if (group->active.fn != NULL && !oari_group_broken(group))
        sent = links->push(group->self, to, OARI_ACTIVE_TAG, data, bytes);
    if (!drives)
        oari_engine_let_go(group);
    return sent;
}

void oari_active_stir(oar_group *group, int to)
{
    oari_engine_stir(group, to);
}

int oari_active_wait(oar_group *group, int (*is_done)(void *arg), void *arg,
                     int64_t until_ns)
{
    return oari_engine_wait_until(group, is_done, arg, until_ns);
}

void oari_active_tell(oar_group *group)
{
    oari_engine_tell(group);
}

void oari_active_drive(oar_group *group)
{
    oari_engine_nudge(group);
}
