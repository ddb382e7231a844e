/* SPDX-License-Identifier: Apache-2.0 */
/* stream_call: collectives between operations on a tape. */
#include "parallel/reducer/stream_call.h"

#include <string.h>

#include <oarsong/replay.h>

#include "base/alloc.h"
#include "base/status.h"

static oar_status start_call(void *arg)
{
    const oari_stream_call *c = arg;

    switch (c->kind) {
    case OARI_CALL_ALL_GATHER:
        return oar_all_gather_v(c->group, c->in, c->out, c->out_counts,
                                &c->opts, NULL);
    case OARI_CALL_REDUCE_SCATTER:
        return oar_reduce_scatter_v(c->group, c->in, c->in_counts, c->out,
                                    c->op, &c->opts, NULL);
    case OARI_CALL_ALL_TO_ALL:
        return oar_all_to_all_v(c->group, c->in, c->in_counts, c->out,
                                c->out_counts, &c->opts, NULL);
    case OARI_CALL_ALL_REDUCE: break;
    }
    if (c->in.data == c->out.data)
        return oar_all_reduce(c->group, c->out, c->op, &c->opts, NULL);
    return oar_all_reduce_into(c->group, c->in, c->out, c->op, &c->opts, NULL);
}

/* A call and its counts are one piece of memory. */
static size_t *copy_counts(size_t *room, const size_t *counts, size_t ranks)
{
    if (counts == NULL)
        return NULL;
    memcpy(room, counts, ranks * sizeof *room);
    return room;
}

oar_status oari_stream_call_run(const oari_stream_call *call)
{
    size_t ranks = (size_t)oar_group_size(call->group);
    oari_stream_call *c, copy = *call;
    size_t *room;

    if (call->in.device.kind == OAR_CPU)
        return start_call(&copy);
    c = oari_alloc(1, sizeof *c + 2 * ranks * sizeof *room);
    if (c == NULL)
        return OAR_E_NOMEM;
    room = (size_t *)(void *)(c + 1);
    *c = copy;
    c->in_counts = copy_counts(room, call->in_counts, ranks);
    c->out_counts = copy_counts(room + ranks, call->out_counts, ranks);
    return oar_replay_cut_with(start_call, c, oari_free);
}
