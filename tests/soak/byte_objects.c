/* SPDX-License-Identifier: Apache-2.0 */
/* byte_objects: objects whose size the other ranks do not know. Rank r has
 * layout_bytes of them; they are its inputs as u8, and for a scatter the
 * root's. */
#include "soak.h"

static size_t start_of(const soak *k, const soak_op *t, int rank)
{
    size_t sum = 0;

    for (int r = 0; r < rank; r++)
        sum += layout_bytes(k, t, r);
    return sum;
}

static oar_status post_scatter(soak *k, soak_op *t, oar_work **w)
{
    int is_root = t->c->rank == t->root;

    for (int r = 0; r < t->c->size; r++)
        t->sizes[r] = layout_bytes(k, t, r);
    return oar_scatter_bytes(t->c->group, is_root ? t->in.data : NULL,
                             is_root ? t->sizes : NULL, t->root, &t->given,
                             &t->given_bytes, &t->opts, w);
}

/* On the root of a broadcast *data is what it gives; it keeps it. */
static oar_status post_broadcast(soak *k, soak_op *t, oar_work **w)
{
    if (t->c->rank == t->root) {
        t->given = t->in.data;
        t->given_bytes = layout_bytes(k, t, t->root);
    }
    return oar_broadcast_bytes(t->c->group, &t->given, &t->given_bytes, t->root,
                               &t->opts, w);
}

oar_status bytes_post(soak *k, soak_op *t, oar_work **work)
{
    size_t own = layout_bytes(k, t, t->c->rank);
    int is_root = t->c->rank == t->root;

    switch (t->kind) {
    case K_BROADCAST_BYTES: return post_broadcast(k, t, work);
    case K_SCATTER_BYTES: return post_scatter(k, t, work);
    case K_GATHER_BYTES:
        return oar_gather_bytes(t->c->group, t->in.data, own, t->root,
                                is_root ? &t->given : NULL,
                                is_root ? t->sizes : NULL, &t->opts, work);
    default:
        return oar_all_gather_bytes(t->c->group, t->in.data, own, &t->given,
                                    t->sizes, &t->opts, work);
    }
}

static oar_status check_one(soak *k, const soak_op *t, const void *data,
                            size_t bytes, int rank, size_t start, size_t got)
{
    if (got != bytes)
        return op_fail(k, t, "%zu bytes of rank %d, not %zu", got, rank, bytes);
    if (value_find_wrong(k, t, rank, start, bytes, data) != bytes)
        return op_fail(k, t, "bytes of rank %d are wrong", rank);
    return OAR_OK;
}

static oar_status check_all(soak *k, const soak_op *t)
{
    const char *at = t->given;

    for (int r = 0; r < t->c->size; r++) {
        size_t bytes = layout_bytes(k, t, r);
        if (check_one(k, t, at, bytes, r, 0, t->sizes[r]) != OAR_OK)
            return OAR_E_INTERNAL;
        at = bytes > 0 ? at + bytes : at;
    }
    return OAR_OK;
}

oar_status bytes_check(soak *k, const soak_op *t)
{
    int me = t->c->rank;

    switch (t->kind) {
    case K_BROADCAST_BYTES:
        return check_one(k, t, t->given, layout_bytes(k, t, t->root), t->root,
                         0, t->given_bytes);
    case K_SCATTER_BYTES:
        return check_one(k, t, t->given, layout_bytes(k, t, me), t->root,
                         start_of(k, t, me), t->given_bytes);
    case K_GATHER_BYTES: return me == t->root ? check_all(k, t) : OAR_OK;
    default: return check_all(k, t);
    }
}
