/* SPDX-License-Identifier: Apache-2.0 */
/* open_engine: opens the external engines that a group has beside its links,
 * for host memory and for device memory. */
#include <oarsong/device.h>

#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/engine/external_engine.h"
#include "comm/fault/fault.h"
#include "comm/fault/open_failure.h"
#include "comm/fault/presence.h"
#include "comm/group/group.h"

enum {
    WHILE_US = 50 /* the most that polling takes in one turn */
};

/* Returns the most likely culprit of the ranks that have not opened the engine:
 * one that is gone, else one that is stopped, else the first. */
static int find_culprit(const oar_group *g)
{
    int first = -1, stopped = -1;

    for (int r = g->ranks - 1; r >= 0; r--) {
        if (!g->missing[r])
            continue;
        first = r;
        if (oari_group_gone(g, r))
            return r;
        if (oari_presence_of(g, r) == OARI_PRESENCE_STOPPED)
            stopped = r;
    }
    return stopped >= 0 ? stopped : first;
}

/* Fails with the rank that is to blame: an engine knows at best that some rank
 * has not come. */
static oar_status blame_rank(oar_group *g, oari_external *f,
                             const oari_open *with)
{
    oar_error why = *oar_last_error();
    oar_status status;
    char who[300];
    int rank;

    f->engine_failed_ns =
        oari_now_ns(); /* a rank that is gone now is the cause */
    if (oari_engine_opening_missing(with->env.store, g->name, g->rank, g->ranks,
                                    g->missing) == 0)
        return oari_fail_with(&why);
    if (g->shm != NULL)
        g->shm->ops->check(g->shm->self);
    rank = find_culprit(g);
    status = oari_group_gone(g, rank) ? OAR_E_PEER : OAR_E_TIMEOUT;
    oari_presence_text(g, rank, who, sizeof who);
    return oari_about(
        rank, oari_fail(status,
                        "%s did not come through the opening of %s in %" PRId64
                        " ms (%.200s)",
                        who, f->ops->name, with->env.timeout_ms, why.text));
}

oar_status oari_external_open(oar_group *group, oari_external *f,
                              const oari_open *with)
{
    oar_status status;

    f->self = oari_alloc(1, f->ops->self_size);
    f->gone_ns = oari_alloc((size_t)group->ranks, sizeof *f->gone_ns);
    if (f->self == NULL || f->gone_ns == NULL)
        return OAR_E_NOMEM;
    f->opened = 1;
    f->while_ticks = (uint64_t)(oari_ticks_per_second() * WHILE_US / 1e6);
    status = oari_backend_open(f->ops, f->self, with);
    if (with->env.store == NULL || group->missing == NULL || group->ranks == 1)
        return status;
    oari_engine_opening_done(with->env.store, group->name, group->rank);
    return status != OAR_OK ? blame_rank(group, f, with) : OAR_OK;
}

static oar_status open_engine(oar_group *g, oari_external *f,
                              const oari_choice *choice,
                              const oar_group_opts *o, int64_t rendezvous_ms)
{
    oari_open with = { .env = { .size = sizeof with.env,
                                .rank = g->rank,
                                .ranks = g->ranks,
                                .store = g->store,
                                .store_address = g->store_address,
                                .name = g->name,
                                .timeout_ms = rendezvous_ms,
                                .device = g->device,
                                .stream = o->stream,
                                .id = o->nccl_id },
                       .shm = g->shm,
                       .group = g,
                       .recorder = g->recorder,
                       .rendezvous_ms = rendezvous_ms };

    if (choice->split != NULL) {
        with.env.split = *choice->split;
        *choice->split = NULL;
    }
    return oari_external_open(g, f, &with);
}

/* A group with "auto" names its backend by the pair that it has got. */
oar_status oari_gpu_open(oar_group *g, const oari_choice *choice,
                         const oar_group_opts *o, int64_t rendezvous_ms)
{
    oar_device device = o->device != NULL ? *o->device : oar_device_current();
    char name[256], *kept;

    g->device = device.index;
    if (o->device != NULL && device.kind != OAR_CUDA)
        return oari_fail(OAR_E_DEVICE, "a group with its engine on the %s",
                         oar_device_text(device).text);
    g->gpu.ops = choice->gpu;
    if (choice->any_gpu) {
        OARI_TRY(oari_hybrid_settle(g, rendezvous_ms, &g->gpu.ops));
        snprintf(name, sizeof name, "cpu:%s,cuda:%s", oari_group_asked(g)->name,
                 g->gpu.ops->name);
        if ((kept = oari_strdup(name)) == NULL)
            return OAR_E_NOMEM;
        oari_free(g->backend_name);
        g->backend_name = kept;
    }
    if (g->gpu.ops != NULL)
        OARI_TRY(open_engine(g, &g->gpu, choice, o, rendezvous_ms));
    return OAR_OK;
}

int oari_group_goes_through_host(const oar_group *group)
{
    return group->rules.through_host && !group->bare;
}

oar_status oari_hosted_open(oar_group *g)
{
    static const oari_choice none;
    oar_group_opts o = { .size = sizeof o };
    const oari_backend *staging = NULL;

    if (!oari_group_goes_through_host(g))
        return OAR_OK;
    OARI_TRY(oari_backend_in_role(OARI_ROLE_STAGING, &staging));
    g->hosted.ops = &staging->ops;
    return open_engine(g, &g->hosted, &none, &o, g->timeout_ms);
}
