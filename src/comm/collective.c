/* SPDX-License-Identifier: Apache-2.0 */
/* collective: the public calls: they check what the user gave and hand it on.
 */
#include <oarsong/collective.h>

#include <oarsong/p2p.h>

#include <stdint.h>

#include "base/status.h"
#include "comm/group.h"

static oar_status check_span(const char *what, const oar_span *s)
{
    size_t element = oar_dtype_size(s->dtype);

    if (element == 0)
        return oari_fail(OAR_E_DTYPE, "%s: there is no dtype %d", what,
                         (int)s->dtype);
    if (s->device.kind != OAR_CPU)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "%s: memory of device kind %d; this build knows the "
                         "cpu",
                         what, (int)s->device.kind);
    if (s->count > SIZE_MAX / 2 / element)
        return oari_fail(OAR_E_ARG, "%s: %zu elements of %s", what, s->count,
                         oar_dtype_name(s->dtype));
    if (s->data == NULL && s->count != 0)
        return oari_fail(OAR_E_ARG, "%s: %zu elements at NULL", what, s->count);
    return OAR_OK;
}

static oar_status check_root(const oar_group *g, const char *what, int root)
{
    if (root < 0 || root >= g->ranks)
        return oari_fail(OAR_E_RANK, "%s: rank %d in a group of %d", what, root,
                         g->ranks);
    return OAR_OK;
}

/* Begins a call: the site, and what its options say. */
static oar_status begin(oari_call *call, oar_coll kind, const char *file,
                        int line, const oar_group *group,
                        const oar_call_opts *opts)
{
    oar_call_opts o;

    *call = (oari_call){ .kind = kind,
                         .root = -1,
                         .weight = 1,
                         .file = file != NULL ? file : "?",
                         .line = line };
    if (group == NULL)
        return oari_fail(OAR_E_ARG, "%s without a group", oar_coll_name(kind));
    if (opts == NULL)
        return OAR_OK;
    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    call->timeout_ms = o.timeout_ms;
    call->label = o.label;
    call->weight = o.weight;
    return OAR_OK;
}

oar_status oar_barrier_at(const char *file, int line, oar_group *group,
                          const oar_call_opts *opts, oar_work **work)
{
    oari_call call;

    OARI_TRY(begin(&call, OAR_COLL_BARRIER, file, line, group, opts));
    return oari_post(group, &call, work);
}

oar_status oar_broadcast_at(const char *file, int line, oar_group *group,
                            oar_span buf, int root, const oar_call_opts *opts,
                            oar_work **work)
{
    oari_call call;

    OARI_TRY(begin(&call, OAR_COLL_BROADCAST, file, line, group, opts));
    OARI_TRY(check_span("broadcast", &buf));
    OARI_TRY(check_root(group, "broadcast", root));
    call.in = call.out = buf;
    call.agreed = buf.count;
    call.root = root;
    return oari_post(group, &call, work);
}

static int overlap(const oar_span *a, const oar_span *b)
{
    uintptr_t x = (uintptr_t)a->data, y = (uintptr_t)b->data;
    size_t bytes = a->count * oar_dtype_size(a->dtype);

    return x != y && x < y + bytes && y < x + bytes;
}

/* What a rank's contribution is multiplied with. `begin` has put the weight of
 * the options there, if there are any. */
static oar_status find_factor(oari_call *call, int has_opts)
{
    if (call->op.kind != OAR_OP_WEIGHTED_MEAN) {
        call->weight = call->op.kind == OAR_OP_PREMUL_SUM ? call->op.scalar : 1;
        return OAR_OK;
    }
    if (!has_opts)
        return oari_fail(OAR_E_ARG,
                         "a weighted mean needs a weight in its options");
    if (!(call->weight >= 0) || call->weight > 1e300)
        return oari_fail(OAR_E_ARG, "a weight of %g", call->weight);
    return OAR_OK;
}

oar_status oar_all_reduce_at(const char *file, int line, oar_group *group,
                             oar_span in, oar_span out, oar_op op,
                             const oar_call_opts *opts, oar_work **work)
{
    oari_call call;

    OARI_TRY(begin(&call, OAR_COLL_ALL_REDUCE, file, line, group, opts));
    OARI_TRY(check_span("all_reduce", &out));
    if (in.data != out.data)
        OARI_TRY(check_span("all_reduce", &in));
    OARI_TRY(oar_op_check(op, out.dtype));
    if (in.count != out.count || in.dtype != out.dtype)
        return oari_fail(OAR_E_ARG, "all_reduce of %zu %s into %zu %s",
                         in.count, oar_dtype_name(in.dtype), out.count,
                         oar_dtype_name(out.dtype));
    if (overlap(&in, &out))
        return oari_fail(OAR_E_ARG, "all_reduce: in and out overlap in part");
    call.in = in;
    call.out = out;
    call.agreed = out.count;
    call.op = op;
    OARI_TRY(find_factor(&call, opts != NULL));
    return oari_post(group, &call, work);
}

static oar_status post_message(oari_call *call, oar_group *group, oar_span buf,
                               int peer, int64_t tag, oar_work **work)
{
    const char *what = oar_coll_name(call->kind);

    OARI_TRY(check_span(what, &buf));
    OARI_TRY(check_root(group, what, peer));
    if (group->backend->send == NULL)
        return oari_fail(OAR_E_UNSUPPORTED, "backend \"%s\" has no messages",
                         group->backend->name);
    call->in = call->out = buf;
    call->root = peer;
    call->tag = tag;
    return oari_post(group, call, work);
}

oar_status oar_send_at(const char *file, int line, oar_group *group,
                       oar_span buf, int peer, int64_t tag,
                       const oar_call_opts *opts, oar_work **work)
{
    oari_call call;

    OARI_TRY(begin(&call, OAR_COLL_SEND, file, line, group, opts));
    return post_message(&call, group, buf, peer, tag, work);
}

oar_status oar_recv_at(const char *file, int line, oar_group *group,
                       oar_span buf, int peer, int64_t tag,
                       const oar_call_opts *opts, oar_work **work)
{
    oari_call call;

    OARI_TRY(begin(&call, OAR_COLL_RECV, file, line, group, opts));
    return post_message(&call, group, buf, peer, tag, work);
}
