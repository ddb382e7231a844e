/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_post: starts each collective by MPI's call of that name: the non-blocking
 * one, or the blocking one where the user wants no timeout
 * (OARSONG_MPI_BLOCKING).
 *
 * Reductions and broadcasts of many elements are several calls. The others have
 * 64-bit counts since MPI 4; before, a large part is one element of a datatype
 * made for it. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "backends/mpi/mpi_engine.h"

/* Calls MPI by one name or the other and sets `code` to what it returns; no
 * memory for the request counts as an error of MPI. */
#define START(e, p, code, blocking_call, call, ...)           \
    do {                                                      \
        MPI_Request *start_ = NULL;                           \
        mpi_lock();                                           \
        if ((e)->blocking)                                    \
            (code) = MPI_LARGE(blocking_call)(__VA_ARGS__);   \
        else if ((start_ = mpi_operation_request(p)) == NULL) \
            (code) = MPI_ERR_NO_MEM;                          \
        else                                                  \
            (code) = MPI_LARGE(call)(__VA_ARGS__, start_);    \
        mpi_unlock();                                         \
    } while (0)

/* Fails before MPI is called. */
static int refuse_call(mpi_operation *p, oar_status status)
{
    p->refused = status;
    return MPI_ERR_OTHER;
}

static void *offset(const void *data, size_t elements, oar_dtype dtype)
{
    unsigned char *at = NULL;

    if (data == NULL || data == MPI_IN_PLACE || elements == 0) {
        void *same = NULL;
        memcpy(&same, &data, sizeof same);
        return same;
    }
    memcpy(&at, &data, sizeof at);
    return at + elements * oar_dtype_size(dtype);
}

/* ---- which collectives MPI runs ------------------------------------------ */

/* Sums the counts of ranks below `end`; without counts each has `part`. */
static size_t sum_counts(const size_t *counts, int end, size_t part)
{
    size_t sum = 0;

    if (counts == NULL)
        return part * (size_t)end;
    for (int r = 0; r < end; r++)
        sum += counts[r];
    return sum;
}

int mpi_takes(void *self, const oar_collective *call)
{
    const mpi_engine *e = self;
    mpi_reduction reduction;

    if (e->ranks == 1)
        return 0;
    switch (call->kind) {
    case OAR_COLL_ALL_REDUCE:
    case OAR_COLL_REDUCE: return mpi_reduction_find(call, &reduction);
    case OAR_COLL_REDUCE_SCATTER:
        return mpi_reduction_find(call, &reduction) &&
               sum_counts(call->in_counts, e->ranks, call->out.count) <=
                   (size_t)e->chunk_max;
    case OAR_COLL_ALL_GATHER: /* every rank knows all counts */
        return call->out_counts == NULL ||
               sum_counts(call->out_counts, e->ranks, 0) <= MPI_COUNT_LARGEST;
    default: return 1;
    }
}

/* ---- barrier and broadcast ----------------------------------------------- */

static int start_barrier(mpi_engine *e, mpi_operation *p)
{
    int code;

    mpi_lock();
    code = e->blocking ? MPI_Barrier(e->comm)
                       : MPI_Ibarrier(e->comm, mpi_operation_request(p));
    mpi_unlock();
    return code;
}

static int start_broadcast(mpi_engine *e, mpi_operation *p)
{
    const oar_collective *call = p->call;
    oar_span buf = call->root == e->rank ? call->in : call->out;
    int code = MPI_SUCCESS;

    for (size_t at = 0; at < buf.count && code == MPI_SUCCESS;) {
        size_t left = buf.count - at, chunk = (size_t)e->chunk_max;
        size_t part = left < chunk ? left : chunk;
        START(e, p, code, MPI_Bcast, MPI_Ibcast,
              offset(buf.data, at, buf.dtype), (mpi_count)part,
              mpi_type_of(buf.dtype), call->root, e->comm);
        at += part;
    }
    return code;
}

/* ---- all_reduce and reduce ----------------------------------------------- */

/* The operands, and where the result goes; to NULL: not to this rank. */
typedef struct operands {
    const void *from;
    void *to;
} operands;

#ifdef OPEN_MPI
enum { REDUCES_IN_PLACE = 1 };
#else
enum { REDUCES_IN_PLACE = 0 }; /* MPICH 4.0's blocking reduce crashes */
#endif

/* Uses the call's buffers, or makes operands. Where the result replaces the
 * operands, that is in place, or the operands are copied. */
static int find_operands(mpi_engine *e, mpi_operation *p,
                         const mpi_reduction *reduction, operands *o)
{
    const oar_collective *call = p->call;
    int has_result = call->kind == OAR_COLL_ALL_REDUCE || call->root == e->rank;
    size_t bytes = call->in.count * oar_dtype_size(reduction->dtype);

    *o = (operands){ call->in.data, has_result ? call->out.data : NULL };
    if (reduction->made) {
        if ((p->scratch = oari_alloc_aligned(64, bytes)) == NULL)
            return refuse_call(p, OAR_E_NOMEM);
        mpi_reduction_operands(call, reduction, p->scratch);
        *o = (operands){ p->scratch, has_result ? p->scratch : NULL };
        p->result = o->to;
        p->made = reduction->dtype;
    }
    if (o->from != o->to)
        return MPI_SUCCESS;
    if (!e->blocking || call->kind != OAR_COLL_REDUCE || REDUCES_IN_PLACE) {
        o->from = MPI_IN_PLACE;
        return MPI_SUCCESS;
    }
    if ((p->copy = oari_alloc_aligned(64, bytes)) == NULL)
        return refuse_call(p, OAR_E_NOMEM);
    if (bytes != 0 && o->to != NULL)
        memcpy(p->copy, o->to, bytes);
    o->from = p->copy;
    return MPI_SUCCESS;
}

static int start_reduction(mpi_engine *e, mpi_operation *p)
{
    const oar_collective *call = p->call;
    size_t count = call->in.count;
    mpi_reduction reduction;
    operands o;
    int code;

    mpi_reduction_find(call, &reduction);
    code = find_operands(e, p, &reduction, &o);
    for (size_t at = 0; at < count && code == MPI_SUCCESS;) {
        size_t left = count - at, chunk = (size_t)e->chunk_max;
        size_t part = left < chunk ? left : chunk;
        const void *from = offset(o.from, at, reduction.dtype);
        void *to = offset(o.to, at, reduction.dtype);
        if (call->kind == OAR_COLL_REDUCE)
            START(e, p, code, MPI_Reduce, MPI_Ireduce, from, to,
                  (mpi_count)part, reduction.type, reduction.op, call->root,
                  e->comm);
        else
            START(e, p, code, MPI_Allreduce, MPI_Iallreduce, from, to,
                  (mpi_count)part, reduction.type, reduction.op, e->comm);
        at += part;
    }
    return code;
}

/* ---- parts --------------------------------------------------------------- */

/* Sets the counts of parts as MPI takes them, and where the parts begin. Side
 * 0: sent, 1: received. */
static int set_parts(const mpi_engine *e, mpi_operation *p, int side,
                     const size_t *counts)
{
    size_t ranks = (size_t)e->ranks, at = 0;
    size_t bytes = ranks * (sizeof(mpi_count) + sizeof(mpi_offset));

    if ((p->counts[side] = oari_alloc(1, bytes)) == NULL)
        return refuse_call(p, OAR_E_NOMEM);
    p->at[side] = (mpi_offset *)(p->counts[side] + ranks);
    for (size_t r = 0; r < ranks; r++) {
        if (at + counts[r] > MPI_COUNT_LARGEST)
            return refuse_call(
                p, oari_fail(OAR_E_UNSUPPORTED,
                             "parts of different sizes, %zu elements "
                             "and more: this MPI counts to %lld",
                             at + counts[r], (long long)MPI_COUNT_LARGEST));
        p->counts[side][r] = (mpi_count)counts[r];
        p->at[side][r] = (mpi_offset)at;
        at += counts[r];
    }
    return MPI_SUCCESS;
}

/* Describes equal parts to MPI: `part` elements, or, where there are more than
 * it can count, one element of a type that is the whole part. */
static int even_parts(const mpi_engine *e, mpi_operation *p, size_t part,
                      oar_dtype dtype, mpi_count *count, MPI_Datatype *type)
{
    int code = MPI_SUCCESS;

    *type = mpi_type_of(dtype);
    *count = (mpi_count)part;
    if (MPI_COUNT_LARGEST > INT32_MAX ||
        part * (size_t)e->ranks <= (size_t)e->chunk_max)
        return code;
    code = mpi_make_row_type(part, *type, &p->type);
    *type = p->type;
    *count = 1;
    return code;
}

/* Whether `one` is this rank's part of the row. */
static int is_part(const mpi_engine *e, const oar_span *row,
                   const size_t *counts, const oar_span *one)
{
    size_t at = sum_counts(counts, e->rank, one->count);

    return row->data != NULL && one->data == offset(row->data, at, row->dtype);
}

/* ---- reduce_scatter ------------------------------------------------------ */

/* In MPI the result of reduce_scatter may not overlap the operands. */
static int find_separate_operands(mpi_engine *e, mpi_operation *p,
                                  const mpi_reduction *reduction, operands *o)
{
    const oar_collective *call = p->call;
    size_t size = oar_dtype_size(reduction->dtype);
    size_t made = reduction->made ? call->in.count : 0;

    *o = (operands){ call->in.data, call->out.data };
    if (!reduction->made && !is_part(e, &call->in, call->in_counts, &call->out))
        return MPI_SUCCESS;
    p->scratch = oari_alloc_aligned(64, (made + call->out.count) * size);
    if (p->scratch == NULL)
        return refuse_call(p, OAR_E_NOMEM);
    o->to = offset(p->scratch, made, reduction->dtype);
    p->result = o->to;
    p->made = reduction->dtype;
    if (reduction->made) {
        mpi_reduction_operands(call, reduction, p->scratch);
        o->from = p->scratch;
    }
    return MPI_SUCCESS;
}

static int start_reduce_scatter(mpi_engine *e, mpi_operation *p)
{
    const oar_collective *call = p->call;
    mpi_reduction reduction;
    operands o;
    int code;

    mpi_reduction_find(call, &reduction);
    code = find_separate_operands(e, p, &reduction, &o);
    if (code == MPI_SUCCESS && call->in_counts != NULL)
        code = set_parts(e, p, 0, call->in_counts);
    if (code != MPI_SUCCESS)
        return code;
    if (call->in_counts != NULL)
        START(e, p, code, MPI_Reduce_scatter, MPI_Ireduce_scatter, o.from, o.to,
              p->counts[0], reduction.type, reduction.op, e->comm);
    else
        START(e, p, code, MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block,
              o.from, o.to, (mpi_count)call->out.count, reduction.type,
              reduction.op, e->comm);
    return code;
}

/* ---- gather and scatter -------------------------------------------------- */

static int start_gather(mpi_engine *e, mpi_operation *p)
{
    const oar_collective *call = p->call;
    const void *from = call->in.data;
    MPI_Datatype type = mpi_type_of(call->in.dtype);
    mpi_count count;
    int code = MPI_SUCCESS;

    if (call->root == e->rank &&
        is_part(e, &call->out, call->out_counts, &call->in))
        from = MPI_IN_PLACE;
    if (call->ragged) {
        if (call->out_counts != NULL)
            code = set_parts(e, p, 1, call->out_counts);
        if (code == MPI_SUCCESS)
            START(e, p, code, MPI_Gatherv, MPI_Igatherv, from,
                  (mpi_count)call->in.count, type, call->out.data, p->counts[1],
                  p->at[1], type, call->root, e->comm);
        return code;
    }
    code = even_parts(e, p, call->in.count, call->in.dtype, &count, &type);
    if (code == MPI_SUCCESS)
        START(e, p, code, MPI_Gather, MPI_Igather, from, count, type,
              call->out.data, count, type, call->root, e->comm);
    return code;
}

static int start_scatter(mpi_engine *e, mpi_operation *p)
{
    const oar_collective *call = p->call;
    void *to = call->out.data;
    MPI_Datatype type = mpi_type_of(call->out.dtype);
    mpi_count count;
    int code = MPI_SUCCESS;

    if (call->root == e->rank &&
        is_part(e, &call->in, call->in_counts, &call->out))
        to = MPI_IN_PLACE;
    if (call->ragged) {
        if (call->in_counts != NULL)
            code = set_parts(e, p, 0, call->in_counts);
        if (code == MPI_SUCCESS)
            START(e, p, code, MPI_Scatterv, MPI_Iscatterv, call->in.data,
                  p->counts[0], p->at[0], type, to, (mpi_count)call->out.count,
                  type, call->root, e->comm);
        return code;
    }
    code = even_parts(e, p, call->out.count, call->out.dtype, &count, &type);
    if (code == MPI_SUCCESS)
        START(e, p, code, MPI_Scatter, MPI_Iscatter, call->in.data, count, type,
              to, count, type, call->root, e->comm);
    return code;
}

/* ---- all_gather and all_to_all ------------------------------------------- */

static int start_all_gather(mpi_engine *e, mpi_operation *p)
{
    const oar_collective *call = p->call;
    const void *from = call->in.data;
    MPI_Datatype type = mpi_type_of(call->in.dtype);
    mpi_count count;
    int code;

    if (is_part(e, &call->out, call->out_counts, &call->in))
        from = MPI_IN_PLACE;
    if (call->out_counts != NULL) {
        code = set_parts(e, p, 1, call->out_counts);
        if (code == MPI_SUCCESS)
            START(e, p, code, MPI_Allgatherv, MPI_Iallgatherv, from,
                  (mpi_count)call->in.count, type, call->out.data, p->counts[1],
                  p->at[1], type, e->comm);
        return code;
    }
    code = even_parts(e, p, call->in.count, call->in.dtype, &count, &type);
    if (code == MPI_SUCCESS)
        START(e, p, code, MPI_Allgather, MPI_Iallgather, from, count, type,
              call->out.data, count, type, e->comm);
    return code;
}

static int start_all_to_all(mpi_engine *e, mpi_operation *p)
{
    const oar_collective *call = p->call;
    size_t part = call->in.count / (size_t)e->ranks;
    MPI_Datatype type = mpi_type_of(call->in.dtype);
    mpi_count count;
    int code;

    if (call->in_counts != NULL) {
        code = set_parts(e, p, 0, call->in_counts);
        if (code == MPI_SUCCESS)
            code = set_parts(e, p, 1, call->out_counts);
        if (code == MPI_SUCCESS)
            START(e, p, code, MPI_Alltoallv, MPI_Ialltoallv, call->in.data,
                  p->counts[0], p->at[0], type, call->out.data, p->counts[1],
                  p->at[1], type, e->comm);
        return code;
    }
    code = even_parts(e, p, part, call->in.dtype, &count, &type);
    if (code == MPI_SUCCESS)
        START(e, p, code, MPI_Alltoall, MPI_Ialltoall, call->in.data, count,
              type, call->out.data, count, type, e->comm);
    return code;
}

/* ---- posting ------------------------------------------------------------- */

static const struct {
    int (*start)(mpi_engine *e, mpi_operation *p);
    const char *name;
} starts[OAR_COLL_COUNT] = {
    [OAR_COLL_BARRIER] = { start_barrier, "MPI_Ibarrier" },
    [OAR_COLL_BROADCAST] = { start_broadcast, "MPI_Ibcast" },
    [OAR_COLL_ALL_REDUCE] = { start_reduction, "MPI_Iallreduce" },
    [OAR_COLL_REDUCE] = { start_reduction, "MPI_Ireduce" },
    [OAR_COLL_GATHER] = { start_gather, "MPI_Igather" },
    [OAR_COLL_SCATTER] = { start_scatter, "MPI_Iscatter" },
    [OAR_COLL_ALL_GATHER] = { start_all_gather, "MPI_Iallgather" },
    [OAR_COLL_REDUCE_SCATTER] = { start_reduce_scatter, "MPI_Ireduce_scatter" },
    [OAR_COLL_ALL_TO_ALL] = { start_all_to_all, "MPI_Ialltoall" },
};

oar_status mpi_post(void *self, const oar_collective *call, oar_transfer *done)
{
    mpi_engine *e = self;
    mpi_operation *p;

    if (mpi_is_finalized())
        return mpi_fail_finalized();
    if ((p = mpi_operation_create(e, call, done)) == NULL)
        return OAR_E_NOMEM;
    return mpi_operation_started(e, p, starts[call->kind].start(e, p),
                                 starts[call->kind].name);
}
