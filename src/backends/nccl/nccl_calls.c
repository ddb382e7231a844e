/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_calls: our collectives in NCCL's calls.
 *
 * Each is one call of NCCL where it has that collective for parts of one size.
 * Parts of any size that are combined or copied to all go as one reduce or
 * broadcast for each; everything else as sends and receives. All of them are
 * made inside a group, so that they run as one. A rank's own part is copied, on
 * the same stream. What is only moved goes as bytes.
 */
#include "backends/nccl/nccl_engine.h"
#include "base/status.h"

typedef struct doing {
    oari_nccl_engine *e;
    const oar_collective *call;
    const oari_nccl *lib;
    oari_nccl_handle comm;
    void *stream;
    size_t each; /* bytes of an element */
} doing;

static oar_status check(const doing *d, int result)
{
    return oari_nccl_check(d->lib, result, d->comm,
                           oar_coll_name(d->call->kind));
}

/* ---- rows of parts ------------------------------------------------------- */

/* A row walked from part to part, in bytes. */
typedef struct part {
    unsigned char *at;
    size_t count, bytes;
} part;

static size_t count_at(const doing *d, const oar_span *row,
                       const size_t *counts, int rank)
{
    return counts != NULL ? counts[rank] : row->count / (size_t)d->e->ranks;
}

static part first_part(const doing *d, const oar_span *row,
                       const size_t *counts)
{
    size_t count = count_at(d, row, counts, 0);

    return (part){ row->data, count, count * d->each };
}

/* p is rank's; gives that of the rank behind it. */
static part next_part(const doing *d, const oar_span *row, const size_t *counts,
                      part p, int rank)
{
    size_t count =
        rank + 1 < d->e->ranks ? count_at(d, row, counts, rank + 1) : 0;

    return (part){ p.bytes > 0 ? p.at + p.bytes : p.at, count,
                   count * d->each };
}

static oar_status copy_own(const doing *d, void *to, const void *from,
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

static oar_status send_bytes(const doing *d, const void *from, size_t bytes,
                             int peer)
{
    if (bytes == 0)
        return OAR_OK;
    return check(
        d, d->lib->Send(from, bytes, OARI_NCCL_I8, peer, d->comm, d->stream));
}

static oar_status recv_bytes(const doing *d, void *into, size_t bytes, int peer)
{
    if (bytes == 0)
        return OAR_OK;
    return check(
        d, d->lib->Recv(into, bytes, OARI_NCCL_I8, peer, d->comm, d->stream));
}

/* ---- operators ----------------------------------------------------------- */

/* The premultiplied sum is an operator of its own for each call, since every
 * rank has its own factor; NCCL needs it no more once the call is made. */
static oar_status begin_op(const doing *d, int *op)
{
    oar_dtype dtype = d->call->in.dtype;
    oari_nccl_factor factor = oari_nccl_factor_of(d->call->op.scalar, dtype);

    *op = oari_nccl_operator(d->call->op.kind, dtype);
    if (d->call->op.kind != OAR_REDUCE_OP_PREMUL_SUM)
        return OAR_OK;
    return check(d, d->lib->RedOpCreatePreMulSum(op, &factor,
                                                 oari_nccl_type(dtype),
                                                 OARI_NCCL_ON_HOST, d->comm));
}

static oar_status end_op(const doing *d, int op)
{
    if (d->call->op.kind != OAR_REDUCE_OP_PREMUL_SUM)
        return OAR_OK;
    return check(d, d->lib->RedOpDestroy(op, d->comm));
}

/* ---- reductions ---------------------------------------------------------- */

static oar_status all_reduce(const doing *d, int type, int op)
{
    const oar_collective *c = d->call;

    if (c->in.count == 0)
        return OAR_OK;
    return check(d, d->lib->AllReduce(c->in.data, c->out.data, c->in.count,
                                      type, op, d->comm, d->stream));
}

static oar_status reduce_one(const doing *d, const void *in, void *out,
                             size_t count, int type, int op, int root)
{
    if (count == 0)
        return OAR_OK;
    return check(
        d, d->lib->Reduce(in, out, count, type, op, root, d->comm, d->stream));
}

static oar_status reduce_parts(const doing *d, int type, int op)
{
    const oar_collective *c = d->call;
    part p = first_part(d, &c->in, c->in_counts);

    for (int r = 0; r < d->e->ranks; r++) {
        void *out = r == d->e->rank ? c->out.data : NULL;

        OARI_TRY(reduce_one(d, p.at, out, p.count, type, op, r));
        p = next_part(d, &c->in, c->in_counts, p, r);
    }
    return OAR_OK;
}

static oar_status reduce_scatter(const doing *d, int type, int op)
{
    const oar_collective *c = d->call;

    if (c->in_counts != NULL)
        return reduce_parts(d, type, op);
    if (c->out.count == 0)
        return OAR_OK;
    return check(d, d->lib->ReduceScatter(c->in.data, c->out.data, c->out.count,
                                          type, op, d->comm, d->stream));
}

/* With one rank NCCL 2.28 was seen to leave out the last elements of an average
 * or a premultiplied sum, as if they were dealt to blocks (one for each 16 KiB,
 * at most 32) and the rest of that division was lost. So it is given pieces
 * that divide evenly. */
static oar_status combine_alone(const doing *d, int type, int op)
{
    static const size_t unit[] = { 512 << 10, 16 << 10, 1 };
    const oar_collective *c = d->call;
    const unsigned char *in = c->in.data;
    unsigned char *out = c->out.data;
    size_t left = c->in.count * d->each;

    for (int i = 0; i < 3; i++) {
        size_t bytes = left / unit[i] * unit[i];

        if (bytes != 0)
            OARI_TRY(check(d, d->lib->AllReduce(in, out, bytes / d->each, type,
                                                op, d->comm, d->stream)));
        in += bytes;
        out += bytes;
        left -= bytes;
    }
    return OAR_OK;
}

static oar_status combine(const doing *d)
{
    const oar_collective *c = d->call;
    int type = oari_nccl_type(c->in.dtype), op;
    oar_status status, ended;

    OARI_TRY(begin_op(d, &op));
    if (d->e->ranks == 1)
        status = combine_alone(d, type, op);
    else if (c->kind == OAR_COLL_ALL_REDUCE)
        status = all_reduce(d, type, op);
    else if (c->kind == OAR_COLL_REDUCE)
        status = reduce_one(d, c->in.data, c->out.data, c->in.count, type, op,
                            c->root);
    else
        status = reduce_scatter(d, type, op);
    ended = end_op(d, op);
    return status != OAR_OK ? status : ended;
}

/* ---- moving -------------------------------------------------------------- */

static oar_status broadcast_bytes(const doing *d, const void *in, void *out,
                                  size_t bytes, int root)
{
    if (bytes == 0)
        return OAR_OK;
    return check(d, d->lib->Broadcast(in, out, bytes, OARI_NCCL_I8, root,
                                      d->comm, d->stream));
}

static oar_status all_gather(const doing *d)
{
    const oar_collective *c = d->call;
    part p = first_part(d, &c->out, c->out_counts);

    if (c->out_counts == NULL && p.bytes == 0)
        return OAR_OK;
    if (c->out_counts == NULL)
        return check(d, d->lib->AllGather(c->in.data, c->out.data, p.bytes,
                                          OARI_NCCL_I8, d->comm, d->stream));
    for (int r = 0; r < d->e->ranks; r++) {
        const void *in = r == d->e->rank ? c->in.data : p.at;

        OARI_TRY(broadcast_bytes(d, in, p.at, p.bytes, r));
        p = next_part(d, &c->out, c->out_counts, p, r);
    }
    return OAR_OK;
}

static oar_status gather(const doing *d)
{
    const oar_collective *c = d->call;
    part p;

    if (c->root != d->e->rank)
        return send_bytes(d, c->in.data, c->in.count * d->each, c->root);
    p = first_part(d, &c->out, c->out_counts);
    for (int r = 0; r < d->e->ranks; r++) {
        if (r == d->e->rank)
            OARI_TRY(copy_own(d, p.at, c->in.data, p.bytes));
        else
            OARI_TRY(recv_bytes(d, p.at, p.bytes, r));
        p = next_part(d, &c->out, c->out_counts, p, r);
    }
    return OAR_OK;
}

static oar_status scatter(const doing *d)
{
    const oar_collective *c = d->call;
    part p;

    if (c->root != d->e->rank)
        return recv_bytes(d, c->out.data, c->out.count * d->each, c->root);
    p = first_part(d, &c->in, c->in_counts);
    for (int r = 0; r < d->e->ranks; r++) {
        if (r == d->e->rank)
            OARI_TRY(copy_own(d, c->out.data, p.at, p.bytes));
        else
            OARI_TRY(send_bytes(d, p.at, p.bytes, r));
        p = next_part(d, &c->in, c->in_counts, p, r);
    }
    return OAR_OK;
}

static oar_status exchange_parts(const doing *d)
{
    const oar_collective *c = d->call;
    part from = first_part(d, &c->in, c->in_counts);
    part to = first_part(d, &c->out, c->out_counts);

    for (int r = 0; r < d->e->ranks; r++) {
        if (r == d->e->rank) {
            OARI_TRY(copy_own(d, to.at, from.at, from.bytes));
        } else {
            OARI_TRY(send_bytes(d, from.at, from.bytes, r));
            OARI_TRY(recv_bytes(d, to.at, to.bytes, r));
        }
        from = next_part(d, &c->in, c->in_counts, from, r);
        to = next_part(d, &c->out, c->out_counts, to, r);
    }
    return OAR_OK;
}

/* All ranks have one version, so all have ncclAlltoAll or none. */
static oar_status all_to_all(const doing *d)
{
    const oar_collective *c = d->call;
    part p = first_part(d, &c->in, c->in_counts);

    if (c->in_counts != NULL || d->lib->AlltoAll == NULL)
        return exchange_parts(d);
    if (p.bytes == 0)
        return OAR_OK;
    return check(d, d->lib->AlltoAll(c->in.data, c->out.data, p.bytes,
                                     OARI_NCCL_I8, d->comm, d->stream));
}

/* ---- one of them --------------------------------------------------------- */

/* The side that every rank has. */
static oar_dtype dtype_of(const oar_collective *call)
{
    int is_out = call->kind == OAR_COLL_SEND || call->kind == OAR_COLL_RECV ||
                 call->kind == OAR_COLL_SCATTER;

    return is_out ? call->out.dtype : call->in.dtype;
}

oar_status oari_nccl_call(oari_nccl_engine *e, const oar_collective *call)
{
    doing d = { e,
                call,
                e->lib,
                e->comm->handle,
                e->comm->stream,
                oar_dtype_size(dtype_of(call)) };

    switch (call->kind) {
    case OAR_COLL_BROADCAST:
        return broadcast_bytes(&d, call->in.data, call->in.data,
                               call->in.count * d.each, call->root);
    case OAR_COLL_ALL_REDUCE:
    case OAR_COLL_REDUCE:
    case OAR_COLL_REDUCE_SCATTER: return combine(&d);
    case OAR_COLL_GATHER: return gather(&d);
    case OAR_COLL_SCATTER: return scatter(&d);
    case OAR_COLL_ALL_GATHER: return all_gather(&d);
    case OAR_COLL_ALL_TO_ALL: return all_to_all(&d);
    case OAR_COLL_SEND:
        return send_bytes(&d, call->out.data, call->out.count * d.each,
                          call->root);
    case OAR_COLL_RECV:
        return recv_bytes(&d, call->out.data, call->out.count * d.each,
                          call->root);
    default:
        return oar_backend_fail(OAR_E_INTERNAL, "nccl: a %s",
                                oar_coll_name(call->kind));
    }
}
