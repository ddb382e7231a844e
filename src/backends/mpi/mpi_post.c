/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_post: each collective by MPI's call of that name, non-blocking, or
 * blocking where no timeout is wanted (OARSONG_MPI_BLOCKING).
 *
 * Reductions and broadcasts of many elements are several calls; the others
 * count in 64 bits where MPI does (4 and later), and else in parts: a part of
 * any size is one element of a datatype made for it. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "backends/mpi/mpi_engine.h"

/* Calls MPI by one name or the other. `code` is what it said; no memory for
 * the request counts as an error of MPI's. */
#define START(e, p, code, blocking_call, call, ...)         \
    do {                                                    \
        MPI_Request *start_ = NULL;                         \
        mpi_enter();                                        \
        if ((e)->blocking)                                  \
            (code) = MPI_LARGE(blocking_call)(__VA_ARGS__); \
        else if ((start_ = mpi_post_request(p)) == NULL)    \
            (code) = MPI_ERR_NO_MEM;                        \
        else                                                \
            (code) = MPI_LARGE(call)(__VA_ARGS__, start_);  \
        mpi_leave();                                        \
    } while (0)

typedef int (*start_fn)(mpi_engine *e, mpi_post *p);

static oar_status post(void *self, const oar_collective *call,
                       oar_transfer *done, start_fn start, const char *what)
{
    mpi_engine *e = self;
    mpi_post *p;

    if (mpi_is_over())
        return mpi_fail_over();
    if ((p = mpi_post_begin(e, call, done)) == NULL)
        return OAR_E_NOMEM;
    return mpi_post_started(e, p, start(e, p), what);
}

/* It is not MPI that fails. */
static int refuse(mpi_post *p, oar_status status)
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

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- what is taken ------------------------------------------------------- */

static size_t total(const mpi_engine *e, const size_t *counts, size_t part)
{
    size_t sum = 0;

    if (counts == NULL)
        return part * (size_t)e->ranks;
    for (int r = 0; r < e->ranks; r++)
        sum += counts[r];
    return sum;
}

int mpi_takes(void *self, const oar_collective *call)
{
    const mpi_engine *e = self;
    mpi_fold fold;

    if (e->ranks == 1)
        return 0;
    switch (call->kind) {
    case OAR_COLL_ALL_REDUCE:
    case OAR_COLL_REDUCE: return mpi_fold_of(call, &fold);
    case OAR_COLL_REDUCE_SCATTER:
        return mpi_fold_of(call, &fold) &&
               total(e, call->in_counts, call->out.count) <= (size_t)e->chunk;
    case OAR_COLL_ALL_GATHER: /* of all ranks' counts every rank knows */
        return call->out_counts == NULL ||
               total(e, call->out_counts, 0) <= MPI_COUNT_MOST;
    default: return 1;
    }
}

/* ---- barrier and broadcast ----------------------------------------------- */

static int start_barrier(mpi_engine *e, mpi_post *p)
{
    int code;

    mpi_enter();
    code = e->blocking ? MPI_Barrier(e->comm)
                       : MPI_Ibarrier(e->comm, mpi_post_request(p));
    mpi_leave();
    return code;
}

oar_status mpi_post_barrier(void *self, const oar_collective *call,
                            oar_transfer *done)
{
    return post(self, call, done, start_barrier, "MPI_Ibarrier");
}

static int start_broadcast(mpi_engine *e, mpi_post *p)
{
    const oar_collective *call = p->call;
    oar_span buf = call->root == e->rank ? call->in : call->out;
    int code = MPI_SUCCESS;

    for (size_t at = 0; at < buf.count && code == MPI_SUCCESS;) {
        size_t part = least(buf.count - at, (size_t)e->chunk);
        START(e, p, code, MPI_Bcast, MPI_Ibcast,
              offset(buf.data, at, buf.dtype), (mpi_count)part,
              mpi_plain(buf.dtype), call->root, e->comm);
        at += part;
    }
    return code;
}

oar_status mpi_post_broadcast(void *self, const oar_collective *call,
                              oar_transfer *done)
{
    return post(self, call, done, start_broadcast, "MPI_Ibcast");
}

/* ---- all_reduce and reduce ----------------------------------------------- */

/* Operands and where the result goes; to NULL: nowhere here. */
typedef struct operands {
    const void *from;
    void *to;
} operands;

#ifdef OPEN_MPI
enum { REDUCES_IN_PLACE = 1 };
#else
enum { REDUCES_IN_PLACE = 0 }; /* MPICH 4.0's blocking reduce crashes */
#endif

static int set_in_place(const mpi_engine *e, mpi_post *p, const mpi_fold *fold,
                        operands *o)
{
    const oar_collective *call = p->call;
    size_t bytes;

    if (!e->blocking || call->kind != OAR_COLL_REDUCE || REDUCES_IN_PLACE) {
        o->from = MPI_IN_PLACE;
        return MPI_SUCCESS;
    }
    bytes = call->in.count * oar_dtype_size(fold->dtype);
    if ((p->copy = oari_alloc_aligned(64, bytes)) == NULL)
        return refuse(p, OAR_E_NOMEM);
    if (bytes != 0 && o->to != NULL)
        memcpy(p->copy, o->to, bytes);
    o->from = p->copy;
    return MPI_SUCCESS;
}

/* Those of the call, or made here. */
static int find_operands(mpi_engine *e, mpi_post *p, const mpi_fold *fold,
                         operands *o)
{
    const oar_collective *call = p->call;
    int mine = call->kind == OAR_COLL_ALL_REDUCE || call->root == e->rank;

    *o = (operands){ call->in.data, mine ? call->out.data : NULL };
    if (fold->made) {
        size_t bytes = call->in.count * oar_dtype_size(fold->dtype);
        if ((p->scratch = oari_alloc_aligned(64, bytes)) == NULL)
            return refuse(p, OAR_E_NOMEM);
        mpi_fold_make(call, fold, p->scratch);
        *o = (operands){ p->scratch, mine ? p->scratch : NULL };
        p->result = o->to;
        p->made = fold->dtype;
    }
    return o->from == o->to ? set_in_place(e, p, fold, o) : MPI_SUCCESS;
}

static int start_fold(mpi_engine *e, mpi_post *p)
{
    const oar_collective *call = p->call;
    size_t count = call->in.count;
    mpi_fold fold;
    operands o;
    int code;

    mpi_fold_of(call, &fold);
    code = find_operands(e, p, &fold, &o);
    for (size_t at = 0; at < count && code == MPI_SUCCESS;) {
        size_t part = least(count - at, (size_t)e->chunk);
        const void *from = offset(o.from, at, fold.dtype);
        void *to = offset(o.to, at, fold.dtype);
        if (call->kind == OAR_COLL_REDUCE)
            START(e, p, code, MPI_Reduce, MPI_Ireduce, from, to,
                  (mpi_count)part, fold.type, fold.op, call->root, e->comm);
        else
            START(e, p, code, MPI_Allreduce, MPI_Iallreduce, from, to,
                  (mpi_count)part, fold.type, fold.op, e->comm);
        at += part;
    }
    return code;
}

oar_status mpi_post_fold(void *self, const oar_collective *call,
                         oar_transfer *done)
{
    return post(self, call, done, start_fold,
                call->kind == OAR_COLL_REDUCE ? "MPI_Ireduce"
                                              : "MPI_Iallreduce");
}

/* ---- parts --------------------------------------------------------------- */

/* Counts of parts as MPI takes them, and where they begin. Side 0: sent, 1:
 * received. */
static int set_parts(const mpi_engine *e, mpi_post *p, int side,
                     const size_t *counts)
{
    size_t ranks = (size_t)e->ranks, at = 0;
    size_t bytes = ranks * (sizeof(mpi_count) + sizeof(mpi_offset));

    if ((p->counts[side] = oari_alloc(1, bytes)) == NULL)
        return refuse(p, OAR_E_NOMEM);
    p->at[side] = (mpi_offset *)(p->counts[side] + ranks);
    for (size_t r = 0; r < ranks; r++) {
        if (at + counts[r] > MPI_COUNT_MOST)
            return refuse(p,
                          oari_fail(OAR_E_UNSUPPORTED,
                                    "parts of different sizes, %zu elements "
                                    "and more: this MPI counts to %lld",
                                    at + counts[r], (long long)MPI_COUNT_MOST));
        p->counts[side][r] = (mpi_count)counts[r];
        p->at[side][r] = (mpi_offset)at;
        at += counts[r];
    }
    return MPI_SUCCESS;
}

/* Even parts: `part` elements of the dtype's type, or one of a type that is
 * the whole part, where MPI cannot count the row. */
static int even_parts(const mpi_engine *e, mpi_post *p, size_t part,
                      oar_dtype dtype, mpi_count *count, MPI_Datatype *type)
{
    int code = MPI_SUCCESS;

    *type = mpi_plain(dtype);
    *count = (mpi_count)part;
    if (MPI_COUNT_MOST > INT32_MAX ||
        part * (size_t)e->ranks <= (size_t)e->chunk)
        return code;
    code = mpi_row_type(part, *type, &p->type);
    *type = p->type;
    *count = 1;
    return code;
}

static size_t before(const size_t *counts, int rank, size_t part)
{
    size_t at = 0;

    if (counts == NULL)
        return part * (size_t)rank;
    for (int r = 0; r < rank; r++)
        at += counts[r];
    return at;
}

/* Whether the one is this rank's part of the row. */
static int is_part(const mpi_engine *e, const oar_span *row,
                   const size_t *counts, const oar_span *one)
{
    size_t at = before(counts, e->rank, one->count);

    return row->data != NULL && one->data == offset(row->data, at, row->dtype);
}

/* ---- reduce_scatter ------------------------------------------------------ */

/* MPI wants the result apart from the operands. */
static int set_apart(mpi_engine *e, mpi_post *p, const mpi_fold *fold,
                     operands *o)
{
    const oar_collective *call = p->call;
    size_t size = oar_dtype_size(fold->dtype);
    size_t made = fold->made ? call->in.count : 0;

    *o = (operands){ call->in.data, call->out.data };
    if (!fold->made && !is_part(e, &call->in, call->in_counts, &call->out))
        return MPI_SUCCESS;
    p->scratch = oari_alloc_aligned(64, (made + call->out.count) * size);
    if (p->scratch == NULL)
        return refuse(p, OAR_E_NOMEM);
    o->to = offset(p->scratch, made, fold->dtype);
    p->result = o->to;
    p->made = fold->dtype;
    if (fold->made) {
        mpi_fold_make(call, fold, p->scratch);
        o->from = p->scratch;
    }
    return MPI_SUCCESS;
}

static int start_reduce_scatter(mpi_engine *e, mpi_post *p)
{
    const oar_collective *call = p->call;
    mpi_fold fold;
    operands o;
    int code;

    mpi_fold_of(call, &fold);
    code = set_apart(e, p, &fold, &o);
    if (code == MPI_SUCCESS && call->in_counts != NULL)
        code = set_parts(e, p, 0, call->in_counts);
    if (code != MPI_SUCCESS)
        return code;
    if (call->in_counts != NULL)
        START(e, p, code, MPI_Reduce_scatter, MPI_Ireduce_scatter, o.from, o.to,
              p->counts[0], fold.type, fold.op, e->comm);
    else
        START(e, p, code, MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block,
              o.from, o.to, (mpi_count)call->out.count, fold.type, fold.op,
              e->comm);
    return code;
}

oar_status mpi_post_reduce_scatter(void *self, const oar_collective *call,
                                   oar_transfer *done)
{
    return post(self, call, done, start_reduce_scatter, "MPI_Ireduce_scatter");
}

/* ---- gather and scatter -------------------------------------------------- */

static int start_gather_v(mpi_engine *e, mpi_post *p, const void *from)
{
    const oar_collective *call = p->call;
    MPI_Datatype type = mpi_plain(call->in.dtype);
    int code = MPI_SUCCESS;

    if (call->out_counts != NULL)
        code = set_parts(e, p, 1, call->out_counts);
    if (code == MPI_SUCCESS)
        START(e, p, code, MPI_Gatherv, MPI_Igatherv, from,
              (mpi_count)call->in.count, type, call->out.data, p->counts[1],
              p->at[1], type, call->root, e->comm);
    return code;
}

static int start_gather(mpi_engine *e, mpi_post *p)
{
    const oar_collective *call = p->call;
    const void *from = call->in.data;
    MPI_Datatype type;
    mpi_count count;
    int code;

    if (call->root == e->rank &&
        is_part(e, &call->out, call->out_counts, &call->in))
        from = MPI_IN_PLACE;
    if (call->ragged)
        return start_gather_v(e, p, from);
    code = even_parts(e, p, call->in.count, call->in.dtype, &count, &type);
    if (code == MPI_SUCCESS)
        START(e, p, code, MPI_Gather, MPI_Igather, from, count, type,
              call->out.data, count, type, call->root, e->comm);
    return code;
}

oar_status mpi_post_gather(void *self, const oar_collective *call,
                           oar_transfer *done)
{
    return post(self, call, done, start_gather, "MPI_Igather");
}

static int start_scatter_v(mpi_engine *e, mpi_post *p, void *to)
{
    const oar_collective *call = p->call;
    MPI_Datatype type = mpi_plain(call->out.dtype);
    int code = MPI_SUCCESS;

    if (call->in_counts != NULL)
        code = set_parts(e, p, 0, call->in_counts);
    if (code == MPI_SUCCESS)
        START(e, p, code, MPI_Scatterv, MPI_Iscatterv, call->in.data,
              p->counts[0], p->at[0], type, to, (mpi_count)call->out.count,
              type, call->root, e->comm);
    return code;
}

static int start_scatter(mpi_engine *e, mpi_post *p)
{
    const oar_collective *call = p->call;
    void *to = call->out.data;
    MPI_Datatype type;
    mpi_count count;
    int code;

    if (call->root == e->rank &&
        is_part(e, &call->in, call->in_counts, &call->out))
        to = MPI_IN_PLACE;
    if (call->ragged)
        return start_scatter_v(e, p, to);
    code = even_parts(e, p, call->out.count, call->out.dtype, &count, &type);
    if (code == MPI_SUCCESS)
        START(e, p, code, MPI_Scatter, MPI_Iscatter, call->in.data, count, type,
              to, count, type, call->root, e->comm);
    return code;
}

oar_status mpi_post_scatter(void *self, const oar_collective *call,
                            oar_transfer *done)
{
    return post(self, call, done, start_scatter, "MPI_Iscatter");
}

/* ---- all_gather and all_to_all ------------------------------------------- */

static int start_all_gather_v(mpi_engine *e, mpi_post *p, const void *from)
{
    const oar_collective *call = p->call;
    MPI_Datatype type = mpi_plain(call->in.dtype);
    int code = set_parts(e, p, 1, call->out_counts);

    if (code == MPI_SUCCESS)
        START(e, p, code, MPI_Allgatherv, MPI_Iallgatherv, from,
              (mpi_count)call->in.count, type, call->out.data, p->counts[1],
              p->at[1], type, e->comm);
    return code;
}

static int start_all_gather(mpi_engine *e, mpi_post *p)
{
    const oar_collective *call = p->call;
    const void *from = call->in.data;
    MPI_Datatype type;
    mpi_count count;
    int code;

    if (is_part(e, &call->out, call->out_counts, &call->in))
        from = MPI_IN_PLACE;
    if (call->out_counts != NULL)
        return start_all_gather_v(e, p, from);
    code = even_parts(e, p, call->in.count, call->in.dtype, &count, &type);
    if (code == MPI_SUCCESS)
        START(e, p, code, MPI_Allgather, MPI_Iallgather, from, count, type,
              call->out.data, count, type, e->comm);
    return code;
}

oar_status mpi_post_all_gather(void *self, const oar_collective *call,
                               oar_transfer *done)
{
    return post(self, call, done, start_all_gather, "MPI_Iallgather");
}

static int start_all_to_all_v(mpi_engine *e, mpi_post *p)
{
    const oar_collective *call = p->call;
    MPI_Datatype type = mpi_plain(call->in.dtype);
    int code = set_parts(e, p, 0, call->in_counts);

    if (code == MPI_SUCCESS)
        code = set_parts(e, p, 1, call->out_counts);
    if (code == MPI_SUCCESS)
        START(e, p, code, MPI_Alltoallv, MPI_Ialltoallv, call->in.data,
              p->counts[0], p->at[0], type, call->out.data, p->counts[1],
              p->at[1], type, e->comm);
    return code;
}

static int start_all_to_all(mpi_engine *e, mpi_post *p)
{
    const oar_collective *call = p->call;
    size_t part = call->in.count / (size_t)e->ranks;
    MPI_Datatype type;
    mpi_count count;
    int code;

    if (call->in_counts != NULL)
        return start_all_to_all_v(e, p);
    code = even_parts(e, p, part, call->in.dtype, &count, &type);
    if (code == MPI_SUCCESS)
        START(e, p, code, MPI_Alltoall, MPI_Ialltoall, call->in.data, count,
              type, call->out.data, count, type, e->comm);
    return code;
}

oar_status mpi_post_all_to_all(void *self, const oar_collective *call,
                               oar_transfer *done)
{
    return post(self, call, done, start_all_to_all, "MPI_Ialltoall");
}
