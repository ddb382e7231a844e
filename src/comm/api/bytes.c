/* SPDX-License-Identifier: Apache-2.0 */
/* bytes: collectives of byte objects whose size only their owner knows. Each is
 * one collective in two phases: first sizes, then bytes (exec.c). */
#include <oarsong/collective.h>

#include "base/status.h"
#include "comm/api/check.h"
#include "comm/api/post.h"

static oar_span byte_span(const void *data, size_t bytes)
{
    union {
        const void *in;
        void *out;
    } cast = { .in = data };

    return (oar_span){ .data = cast.out, .count = bytes, .dtype = OAR_U8 };
}

static oar_status fail_without_result(const char *what)
{
    return oari_fail(OAR_E_ARG, "%s with nowhere to put the result", what);
}

/* Posts a collective of byte objects. in: this rank's own; gives: this rank
 * gets a result. */
static oar_status post_object(oari_call *call, oar_group *group, oar_span in,
                              int gives, void **data, size_t *sizes,
                              oar_work **work)
{
    OARI_TRY(oari_check_span("byte object", &in));
    call->in = in;
    call->out = byte_span(NULL, 0);
    call->ragged = 1;
    call->is_object = 1;
    if (gives)
        call->object = (oari_object){ data, sizes };
    return oari_post(group, call, work);
}

oar_status oar_all_gather_bytes_at(const char *file, int line, oar_group *group,
                                   const void *data, size_t bytes, void **all,
                                   size_t *sizes, const oar_call_opts *opts,
                                   oar_work **work)
{
    oari_call call;

    OARI_TRY(
        oari_call_begin(&call, OAR_COLL_ALL_GATHER, file, line, group, opts));
    if (all == NULL || sizes == NULL)
        return fail_without_result("all_gather_bytes");
    return post_object(&call, group, byte_span(data, bytes), 1, all, sizes,
                       work);
}

oar_status oar_gather_bytes_at(const char *file, int line, oar_group *group,
                               const void *data, size_t bytes, int root,
                               void **all, size_t *sizes,
                               const oar_call_opts *opts, oar_work **work)
{
    oari_call call;

    OARI_TRY(oari_call_begin(&call, OAR_COLL_GATHER, file, line, group, opts));
    OARI_TRY(oari_check_rank("gather_bytes", group, root));
    if (group->rank == root && (all == NULL || sizes == NULL))
        return fail_without_result("gather_bytes");
    call.root = root;
    return post_object(&call, group, byte_span(data, bytes),
                       group->rank == root, all, sizes, work);
}

oar_status oar_broadcast_bytes_at(const char *file, int line, oar_group *group,
                                  void **data, size_t *bytes, int root,
                                  const oar_call_opts *opts, oar_work **work)
{
    oari_call call;
    oar_span mine = byte_span(NULL, 0);

    OARI_TRY(
        oari_call_begin(&call, OAR_COLL_BROADCAST, file, line, group, opts));
    OARI_TRY(oari_check_rank("broadcast_bytes", group, root));
    if (data == NULL || bytes == NULL)
        return fail_without_result("broadcast_bytes");
    if (group->rank == root)
        mine = byte_span(*data, *bytes);
    call.root = root;
    return post_object(&call, group, mine, group->rank != root, data, bytes,
                       work);
}

oar_status oar_scatter_bytes_at(const char *file, int line, oar_group *group,
                                const void *all, const size_t *sizes, int root,
                                void **data, size_t *bytes,
                                const oar_call_opts *opts, oar_work **work)
{
    oari_call call;
    oar_span mine = byte_span(NULL, 0);

    OARI_TRY(oari_call_begin(&call, OAR_COLL_SCATTER, file, line, group, opts));
    OARI_TRY(oari_check_rank("scatter_bytes", group, root));
    if (data == NULL || bytes == NULL)
        return fail_without_result("scatter_bytes");
    if (group->rank == root && sizes == NULL)
        return oari_fail(OAR_E_ARG, "scatter_bytes: root gives no sizes");
    if (group->rank == root) {
        mine = byte_span(all, oari_parts_total(sizes, group->ranks, 0));
        call.in_counts = sizes;
    }
    call.root = root;
    return post_object(&call, group, mine, 1, data, bytes, work);
}
