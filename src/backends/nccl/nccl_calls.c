/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_calls: our collectives as calls of NCCL.
 *
 * Each is one call of NCCL where NCCL has that collective for equal parts.
 * Parts of different sizes are one reduce or broadcast each, where they are
 * combined or go to all ranks; everything else is sends and receives. All calls
 * are made inside a group of NCCL, so that they run as one. A rank's own part
 * is copied, on the same stream. What is only moved is moved as bytes.
 */
#include "backends/nccl/nccl_engine.h"
#include "base/status.h"

typedef struct nccl_call {
    oari_nccl_engine *e;
    const oar_collective *call;
    const oari_nccl *lib;
    oari_nccl_handle comm;
    void *stream;
    size_t element_bytes;
} nccl_call;

static oar_status check_result(const nccl_call *d, int result)
{
    return oari_nccl_check(d->lib, result, d->comm,
                           oar_coll_name(d->call->kind));
}

/* ---- rows of parts ------------------------------------------------------- */

/* One rank's part of a row. */
typedef struct part {
    unsigned char *at;
    size_t count, bytes;
} part;

static part part_at(const nccl_call *d, const oar_span *row,
                    const size_t *counts, int rank, unsigned char *at)
{
    size_t count =
        counts != NULL ? counts[rank] : row->count / (size_t)d->e->ranks;

    return (part){ at, count, count * d->element_bytes };
}

static part first_part(const nccl_call *d, const oar_span *row,
                       const size_t *counts)
{
    return part_at(d, row, counts, 0, row->data);
}

/* Returns the part after p, which is that of `rank`. */
static part next_part(const nccl_call *d, const oar_span *row,
                      const size_t *counts, part p, int rank)
{
    if (rank + 1 == d->e->ranks)
        return (part){ NULL, 0, 0 };
    return part_at(d, row, counts, rank + 1,
                   p.bytes > 0 ? p.at + p.bytes : p.at);
}

static oar_status copy_own_part(const nccl_call *d, void *to, const void *from,
                                size_t bytes)
{
    const oari_cuda *cu;

    if (bytes == 0 || to == from)
        return OAR_OK;
    OARI_TRY(oari_cuda_load(&cu));
    return oari_cuda_check(cu->MemcpyDtoDAsync((oari_cu_memory)(uintptr_t)to,
                                               (oari_cu_memory)(uintptr_t)from,
                                               bytes, d->stream),
                           "copy a rank's own part");
}

static oar_status send_bytes(const nccl_call *d, const void *from, size_t bytes,
                             int peer)
{
    if (bytes == 0)
        return OAR_OK;
    return check_result(
        d, d->lib->Send(from, bytes, OARI_NCCL_I8, peer, d->comm, d->stream));
}

static oar_status recv_bytes(const nccl_call *d, void *into, size_t bytes,
                             int peer)
{
    if (bytes == 0)
        return OAR_OK;
    return check_result(
        d, d->lib->Recv(into, bytes, OARI_NCCL_I8, peer, d->comm, d->stream));
}

/* ---- reductions ---------------------------------------------------------- */

static oar_status call_reduce(const nccl_call *d, const void *in, void *out,
                              size_t count, int type, int op, int root)
{
    if (count == 0)
        return OAR_OK;
    return check_result(
        d, d->lib->Reduce(in, out, count, type, op, root, d->comm, d->stream));
}

/* Parts of different sizes are one reduce each. */
static oar_status call_reduce_scatter(const nccl_call *d, int type, int op)
{
    const oar_collective *c = d->call;
    part p = first_part(d, &c->in, c->in_counts);

    if (c->in_counts == NULL && c->out.count == 0)
        return OAR_OK;
    if (c->in_counts == NULL)
        return check_result(d, d->lib->ReduceScatter(c->in.data, c->out.data,
                                                     c->out.count, type, op,
                                                     d->comm, d->stream));
    for (int r = 0; r < d->e->ranks; r++) {
        void *out = r == d->e->rank ? c->out.data : NULL;

        OARI_TRY(call_reduce(d, p.at, out, p.count, type, op, r));
        p = next_part(d, &c->in, c->in_counts, p, r);
    }
    return OAR_OK;
}

/* With one rank NCCL 2.28 was seen to leave out the last elements of an average
 * or a premultiplied sum, as if they were divided among blocks (one for each
 * 16 KiB, at most 32) and the remainder was lost. So it gets chunks that divide
 * evenly. */
static oar_status reduce_alone(const nccl_call *d, int type, int op)
{
    static const size_t unit[] = { 512 << 10, 16 << 10, 1 };
    const oar_collective *c = d->call;
    const unsigned char *in = c->in.data;
    unsigned char *out = c->out.data;
    size_t left = c->in.count * d->element_bytes;

    for (int i = 0; i < 3; i++) {
        size_t bytes = left / unit[i] * unit[i];

        if (bytes != 0)
            OARI_TRY(check_result(
                d, d->lib->AllReduce(in, out, bytes / d->element_bytes, type,
                                     op, d->comm, d->stream)));
        in += bytes;
        out += bytes;
        left -= bytes;
    }
    return OAR_OK;
}

/* The premultiplied sum is an operator of its own for each call, since every
 * rank has its own factor; NCCL does not need it after the call. */
static oar_status call_reduction(const nccl_call *d)
{
    const oar_collective *c = d->call;
    int is_premul = c->op.kind == OAR_REDUCE_OP_PREMUL_SUM;
    int type = oari_nccl_type(c->in.dtype);
    int op = oari_nccl_operator(c->op.kind, c->in.dtype);
    oari_nccl_factor factor = oari_nccl_factor_make(c->op.scalar, c->in.dtype);
    oar_status status = OAR_OK, destroyed = OAR_OK;

    if (is_premul)
        OARI_TRY(check_result(
            d, d->lib->RedOpCreatePreMulSum(&op, &factor, type,
                                            OARI_NCCL_ON_HOST, d->comm)));
    if (d->e->ranks == 1)
        status = reduce_alone(d, type, op);
    else if (c->kind == OAR_COLL_REDUCE_SCATTER)
        status = call_reduce_scatter(d, type, op);
    else if (c->kind == OAR_COLL_REDUCE)
        status = call_reduce(d, c->in.data, c->out.data, c->in.count, type, op,
                             c->root);
    else if (c->in.count != 0)
        status = check_result(d, d->lib->AllReduce(c->in.data, c->out.data,
                                                   c->in.count, type, op,
                                                   d->comm, d->stream));
    if (is_premul)
        destroyed = check_result(d, d->lib->RedOpDestroy(op, d->comm));
    return status != OAR_OK ? status : destroyed;
}

/* ---- moving -------------------------------------------------------------- */

static oar_status broadcast_bytes(const nccl_call *d, const void *in, void *out,
                                  size_t bytes, int root)
{
    if (bytes == 0)
        return OAR_OK;
    return check_result(d, d->lib->Broadcast(in, out, bytes, OARI_NCCL_I8, root,
                                             d->comm, d->stream));
}

static oar_status call_all_gather(const nccl_call *d)
{
    const oar_collective *c = d->call;
    part p = first_part(d, &c->out, c->out_counts);

    if (c->out_counts == NULL && p.bytes == 0)
        return OAR_OK;
    if (c->out_counts == NULL)
        return check_result(d, d->lib->AllGather(c->in.data, c->out.data,
                                                 p.bytes, OARI_NCCL_I8, d->comm,
                                                 d->stream));
    for (int r = 0; r < d->e->ranks; r++) {
        const void *in = r == d->e->rank ? c->in.data : p.at;

        OARI_TRY(broadcast_bytes(d, in, p.at, p.bytes, r));
        p = next_part(d, &c->out, c->out_counts, p, r);
    }
    return OAR_OK;
}

static oar_status call_gather(const nccl_call *d)
{
    const oar_collective *c = d->call;
    part p;

    if (c->root != d->e->rank)
        return send_bytes(d, c->in.data, c->in.count * d->element_bytes,
                          c->root);
    p = first_part(d, &c->out, c->out_counts);
    for (int r = 0; r < d->e->ranks; r++) {
        if (r == d->e->rank)
            OARI_TRY(copy_own_part(d, p.at, c->in.data, p.bytes));
        else
            OARI_TRY(recv_bytes(d, p.at, p.bytes, r));
        p = next_part(d, &c->out, c->out_counts, p, r);
    }
    return OAR_OK;
}

static oar_status call_scatter(const nccl_call *d)
{
    const oar_collective *c = d->call;
    part p;

    if (c->root != d->e->rank)
        return recv_bytes(d, c->out.data, c->out.count * d->element_bytes,
                          c->root);
    p = first_part(d, &c->in, c->in_counts);
    for (int r = 0; r < d->e->ranks; r++) {
        if (r == d->e->rank)
            OARI_TRY(copy_own_part(d, c->out.data, p.at, p.bytes));
        else
            OARI_TRY(send_bytes(d, p.at, p.bytes, r));
        p = next_part(d, &c->in, c->in_counts, p, r);
    }
    return OAR_OK;
}

/* All ranks have one version of NCCL, so all have ncclAlltoAll or none. */
static oar_status call_all_to_all(const nccl_call *d)
{
    const oar_collective *c = d->call;
    part from = first_part(d, &c->in, c->in_counts);
    part to = first_part(d, &c->out, c->out_counts);

    if (c->in_counts == NULL && d->lib->AlltoAll != NULL)
        return from.bytes == 0
                   ? OAR_OK
                   : check_result(d, d->lib->AlltoAll(c->in.data, c->out.data,
                                                      from.bytes, OARI_NCCL_I8,
                                                      d->comm, d->stream));
    for (int r = 0; r < d->e->ranks; r++) {
        if (r == d->e->rank) {
            OARI_TRY(copy_own_part(d, to.at, from.at, from.bytes));
        } else {
            OARI_TRY(send_bytes(d, from.at, from.bytes, r));
            OARI_TRY(recv_bytes(d, to.at, to.bytes, r));
        }
        from = next_part(d, &c->in, c->in_counts, from, r);
        to = next_part(d, &c->out, c->out_counts, to, r);
    }
    return OAR_OK;
}

oar_status oari_nccl_call(oari_nccl_engine *e, const oar_collective *call)
{
    int has_out = call->kind == OAR_COLL_SEND || call->kind == OAR_COLL_RECV ||
                  call->kind == OAR_COLL_SCATTER; /* on every rank */
    oar_dtype dtype = has_out ? call->out.dtype : call->in.dtype;
    nccl_call d = {
        e, call, e->lib, e->comm->handle, e->comm->stream, oar_dtype_size(dtype)
    };

    switch (call->kind) {
    case OAR_COLL_BROADCAST:
        return broadcast_bytes(&d, call->in.data, call->in.data,
                               call->in.count * d.element_bytes, call->root);
    case OAR_COLL_ALL_REDUCE:
    case OAR_COLL_REDUCE:
    case OAR_COLL_REDUCE_SCATTER: return call_reduction(&d);
    case OAR_COLL_GATHER: return call_gather(&d);
    case OAR_COLL_SCATTER: return call_scatter(&d);
    case OAR_COLL_ALL_GATHER: return call_all_gather(&d);
    case OAR_COLL_ALL_TO_ALL: return call_all_to_all(&d);
    case OAR_COLL_SEND:
        return send_bytes(&d, call->out.data, call->out.count * d.element_bytes,
                          call->root);
    case OAR_COLL_RECV:
        return recv_bytes(&d, call->out.data, call->out.count * d.element_bytes,
                          call->root);
    default:
        return oar_backend_fail(OAR_E_INTERNAL, "nccl: a %s",
                                oar_coll_name(call->kind));
    }
}
