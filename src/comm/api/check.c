/* SPDX-License-Identifier: Apache-2.0 */
/* check: spans, ranks, operators and parts, as the user gave them. */
#include "comm/api/check.h"

#include <inttypes.h>

#include "base/call_site.h"
#include "base/status.h"

oar_status oari_call_begin(oari_call *call, oar_coll kind, const char *file,
                           int line, const oar_group *group,
                           const oar_call_opts *opts)
{
    oari_call_site site = oari_call_site_of(file, line);
    oar_call_opts o;

    *call = (oari_call){ .kind = kind,
                         .root = -1,
                         .weight = 1,
                         .file = site.file,
                         .line = site.line };
    if (group == NULL)
        return oari_fail(OAR_E_ARG, "%s without a group", oar_coll_name(kind));
    if (group->loose && kind < OAR_COLL_SEND)
        return oari_fail_loose(group, oar_coll_name(kind));
    if (opts == NULL)
        return OAR_OK;
    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    call->timeout_ms = o.timeout_ms;
    call->label = o.label;
    call->key = o.key;
    call->weight = o.weight;
    call->canonical = o.canonical != 0;
    call->prepared = o.prepare != 0;
    call->synchronous = o.synchronous != 0;
    call->at_most = o.at_most != 0;
    call->message = o.message;
    call->stream = o.stream;
    return OAR_OK;
}

oar_status oari_fail_loose(const oar_group *group, const char *call)
{
    return oari_fail(OAR_E_UNSUPPORTED,
                     "%s on group \"%s\", which is loose: it has messages "
                     "only; use the group that it was made of",
                     call, group->name);
}

oar_status oari_check_span(const char *what, const oar_span *s)
{
    size_t element = oar_dtype_size(s->dtype);

    if (element == 0)
        return oari_fail(OAR_E_DTYPE, "%s: there is no dtype %d", what,
                         (int)s->dtype);
    if (s->device.kind != OAR_CPU && s->device.kind != OAR_CUDA)
        return oari_fail(OAR_E_DEVICE, "%s: there is no device kind %d", what,
                         (int)s->device.kind);
    if (s->count > SIZE_MAX / 2 / element)
        return oari_fail(OAR_E_ARG, "%s: %zu elements of %s", what, s->count,
                         oar_dtype_name(s->dtype));
    if (s->data == NULL && s->count != 0)
        return oari_fail(OAR_E_ARG, "%s: %zu elements at NULL", what, s->count);
    return OAR_OK;
}

oar_status oari_check_rank(const char *what, const oar_group *g, int rank)
{
    if (rank < 0 || rank >= g->ranks)
        return oari_fail(OAR_E_RANK, "%s: rank %d in a group of %d", what, rank,
                         g->ranks);
    return OAR_OK;
}

oar_status oari_check_op(oari_call *call, const oar_call_opts *opts)
{
    /* NCCL can reduce more dtypes: its engine checks those (gpu_check.c) */
    if (call->in.dtype < OAR_DTYPE_COUNT || !oari_on_device(call))
        OARI_TRY(oar_reduce_op_check(call->op, call->in.dtype));
    if (call->op.kind != OAR_REDUCE_OP_WEIGHTED_MEAN) {
        call->weight =
            call->op.kind == OAR_REDUCE_OP_PREMUL_SUM ? call->op.scalar : 1;
        return OAR_OK;
    }
    if (opts == NULL)
        return oari_fail(OAR_E_ARG,
                         "a weighted mean needs a weight in its options");
    if (!(call->weight >= 0) || call->weight > 1e300)
        return oari_fail(OAR_E_ARG, "a weight of %g", call->weight);
    return OAR_OK;
}

oar_status oari_check_same(const char *what, const oar_span *a,
                           const oar_span *b)
{
    if (a->dtype == b->dtype)
        return OAR_OK;
    return oari_fail(OAR_E_DTYPE, "%s of %zu %s into %zu %s", what, a->count,
                     oar_dtype_name(a->dtype), b->count,
                     oar_dtype_name(b->dtype));
}

oar_status oari_check_apart(const char *what, const oar_span *row, size_t at,
                            const oar_span *part)
{
    uintptr_t x = (uintptr_t)row->data, y = (uintptr_t)part->data;
    size_t first = at * oar_dtype_size(row->dtype);

    if (row->count == 0 || part->count == 0 || x + first == y ||
        x >= y + oari_span_bytes(part) || y >= x + oari_span_bytes(row))
        return OAR_OK;
    return oari_fail(OAR_E_ARG,
                     "%s: in and out overlap, but not so that one is this "
                     "rank's part of the other",
                     what);
}

size_t oari_parts_total(const size_t *counts, int ranks, size_t each)
{
    size_t total = 0;

    for (int r = 0; r < ranks; r++) {
        size_t part = counts != NULL ? counts[r] : each;

        if (part > SIZE_MAX - total)
            return SIZE_MAX;
        total += part;
    }
    return total;
}

uint64_t oari_parts_hash(const size_t *counts, int ranks)
{
    uint64_t hash = 0;

    for (int r = 0; r < ranks; r++) {
        hash = (hash ^ counts[r]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    return hash;
}

oar_status oari_check_can(const oar_group *g, uint32_t bit, const char *what)
{
    if (oari_carrier(g)->send == NULL)
        return oari_fail(OAR_E_UNSUPPORTED, "backend \"%s\" has no messages",
                         oari_group_backend_name(g));
    if (bit != 0 && (g->can & bit) == 0)
        return oari_fail(OAR_E_UNSUPPORTED, "backend \"%s\" has no %s",
                         oari_group_backend_name(g), what);
    return OAR_OK;
}

oar_status oari_check_tag(const char *what, int64_t tag, int any)
{
    if ((tag >= 0 && tag <= UINT32_MAX) || (any && tag == OAR_ANY_TAG))
        return OAR_OK;
    return oari_fail(OAR_E_ARG, "%s with tag %" PRId64 ": 0 to %" PRIu32 "%s",
                     what, tag, UINT32_MAX, any ? ", or OAR_ANY_TAG" : "");
}

oar_status oari_check_source(const char *what, const oar_group *g, int peer,
                             int64_t tag)
{
    OARI_TRY(oari_check_tag(what, tag, 1));
    if (peer != OAR_ANY_SOURCE)
        OARI_TRY(oari_check_rank(what, g, peer));
    if (peer == OAR_ANY_SOURCE || tag == OAR_ANY_TAG)
        return oari_check_can(g, OAR_CAN_ANY, "wildcards");
    return oari_check_can(g, 0, "");
}
