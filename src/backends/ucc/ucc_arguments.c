/* SPDX-License-Identifier: Apache-2.0 */
/* ucc_arguments: our collectives as UCC's arguments.
 *
 * Three tables say what UCC does: kinds, dtypes, operators by the class of the
 * dtype. What is not in them is planned over our own links. */
#include <string.h>

#include "backends/ucc/ucc_engine.h"
#include "record/operation.h"

/* ---- tables -------------------------------------------------------------- */

/* UCC has no bool: its bytes are u8. */
static const ucc_datatype_t datatypes[OAR_DTYPE_COUNT] = {
    [OAR_F32] = UCC_DT_FLOAT32, [OAR_F64] = UCC_DT_FLOAT64,
    [OAR_F16] = UCC_DT_FLOAT16, [OAR_BF16] = UCC_DT_BFLOAT16,
    [OAR_I8] = UCC_DT_INT8,     [OAR_U8] = UCC_DT_UINT8,
    [OAR_I16] = UCC_DT_INT16,   [OAR_U16] = UCC_DT_UINT16,
    [OAR_I32] = UCC_DT_INT32,   [OAR_U32] = UCC_DT_UINT32,
    [OAR_I64] = UCC_DT_INT64,   [OAR_U64] = UCC_DT_UINT64,
    [OAR_BOOL] = UCC_DT_UINT8,
};

static const ucc_memory_type_t memories[] = {
    [OAR_CPU] = UCC_MEMORY_TYPE_HOST,
    [OAR_CUDA] = UCC_MEMORY_TYPE_CUDA,
};

enum class { PLANNED, INTEGER, FLOAT, BOOLEAN, CLASSES };

/* Half types are planned: UCC has no f16 on the host, and rounds bf16 after
 * every addition, where we promise sums in f32 that are rounded once. (bf16 is
 * FLOAT for users who ask for it.) */
static const enum class classes[OAR_DTYPE_COUNT] = {
    [OAR_F32] = FLOAT,    [OAR_F64] = FLOAT,   [OAR_F16] = PLANNED,
    [OAR_BF16] = FLOAT,   [OAR_I8] = INTEGER,  [OAR_U8] = INTEGER,
    [OAR_I16] = INTEGER,  [OAR_U16] = INTEGER, [OAR_I32] = INTEGER,
    [OAR_U32] = INTEGER,  [OAR_I64] = INTEGER, [OAR_U64] = INTEGER,
    [OAR_BOOL] = BOOLEAN,
};

/* UCC's operator plus 1; 0: planned. Floats have no min and max here: whether
 * UCC's keep a NaN depends on the order of ranks, so ranks would differ. Its
 * average of integers multiplies by a factor that is not exact. */
static const int operators[CLASSES][OAR_REDUCE_OP_COUNT] = {
    [INTEGER] = { [OAR_REDUCE_OP_SUM] = UCC_OP_SUM + 1,
                  [OAR_REDUCE_OP_PROD] = UCC_OP_PROD + 1,
                  [OAR_REDUCE_OP_MIN] = UCC_OP_MIN + 1,
                  [OAR_REDUCE_OP_MAX] = UCC_OP_MAX + 1,
                  [OAR_REDUCE_OP_BAND] = UCC_OP_BAND + 1,
                  [OAR_REDUCE_OP_BOR] = UCC_OP_BOR + 1,
                  [OAR_REDUCE_OP_BXOR] = UCC_OP_BXOR + 1 },
    [FLOAT] = { [OAR_REDUCE_OP_SUM] = UCC_OP_SUM + 1,
                [OAR_REDUCE_OP_PROD] = UCC_OP_PROD + 1,
                [OAR_REDUCE_OP_AVG] = UCC_OP_AVG + 1 },
    [BOOLEAN] = { [OAR_REDUCE_OP_SUM] = UCC_OP_LOR + 1,
                  [OAR_REDUCE_OP_PROD] = UCC_OP_LAND + 1,
                  [OAR_REDUCE_OP_MIN] = UCC_OP_LAND + 1,
                  [OAR_REDUCE_OP_MAX] = UCC_OP_LOR + 1,
                  [OAR_REDUCE_OP_BAND] = UCC_OP_BAND + 1,
                  [OAR_REDUCE_OP_BOR] = UCC_OP_BOR + 1,
                  [OAR_REDUCE_OP_BXOR] = UCC_OP_BXOR + 1 },
};

int oari_ucc_takes(void *self, const oar_collective *call)
{
    const oari_ucc *u = self;
    oar_dtype dtype = call->in.dtype;

    if (!oari_kind_reduces(call->kind))
        return 1;
    return (dtype != OAR_BF16 || u->made->takes_bf16) &&
           operators[classes[dtype]][call->op.kind] != 0;
}

/* ---- parts --------------------------------------------------------------- */

/* The row of parts that this rank has, or NULL; and whether UCC gets arrays of
 * counts and displacements for it. Only the root of a gather or scatter knows
 * whether parts have one size, so they always go as arrays. */
typedef struct row {
    const oar_span *span;
    const size_t *counts; /* NULL: all the same */
    int arrays;
} row;

static row row_of(const oari_ucc *u, const oar_collective *call)
{
    int root = call->root == u->rank;

    switch (call->kind) {
    case OAR_COLL_GATHER:
        return (row){ root ? &call->out : NULL, call->out_counts, root };
    case OAR_COLL_SCATTER:
        return (row){ root ? &call->in : NULL, call->in_counts, root };
    case OAR_COLL_ALL_GATHER:
        return (row){ &call->out, call->out_counts, call->out_counts != NULL };
    case OAR_COLL_REDUCE_SCATTER:
        return (row){ &call->in, call->in_counts, call->in_counts != NULL };
    default: return (row){ NULL, NULL, 0 };
    }
}

/* Writes the counts, then where each part begins. */
static void write_parts(const oari_ucc *u, const size_t *counts, size_t each,
                        uint64_t *parts)
{
    uint64_t at = 0;

    for (int r = 0; r < u->ranks; r++) {
        parts[r] = counts != NULL ? counts[r] : each;
        parts[u->ranks + r] = at;
        at += parts[r];
    }
}

static size_t offset_of_rank(const oari_ucc *u, const row *r)
{
    size_t at = 0;

    if (r->counts == NULL)
        return r->span->count / (size_t)u->ranks * (size_t)u->rank;
    for (int i = 0; i < u->rank; i++)
        at += r->counts[i];
    return at;
}

int oari_ucc_is_empty(const oari_ucc *u, const oar_collective *call)
{
    row r = row_of(u, call);

    switch (call->kind) {
    case OAR_COLL_BROADCAST:
    case OAR_COLL_ALL_REDUCE:
    case OAR_COLL_REDUCE: return call->in.count == 0;
    case OAR_COLL_ALL_GATHER:
    case OAR_COLL_REDUCE_SCATTER: return r.span->count == 0;
    case OAR_COLL_ALL_TO_ALL:
        return call->in_counts == NULL && call->in.count == 0;
    default: return 0;
    }
}

/* ---- arguments ----------------------------------------------------------- */

static ucc_coll_buffer_info_t buffer_info(const oar_span *span)
{
    return (ucc_coll_buffer_info_t){ .buffer = span->data,
                                     .count = span->count,
                                     .datatype = datatypes[span->dtype],
                                     .mem_type = memories[span->device.kind] };
}

static ucc_coll_buffer_info_v_t
buffer_info_v(const oari_ucc *u, const oar_span *span, uint64_t *parts)
{
    return (ucc_coll_buffer_info_v_t){
        .buffer = span->data,
        .counts = parts,
        .displacements = parts + u->ranks,
        .datatype = datatypes[span->dtype],
        .mem_type = memories[span->device.kind],
    };
}

/* One buffer in, one of the same size out. In place UCC reads only dst. */
static void set_pair(ucc_coll_args_t *a, const oar_collective *call)
{
    a->src.info = buffer_info(&call->in);
    a->dst.info = buffer_info(&call->out);
    if (call->in.data == call->out.data)
        a->flags |= UCC_COLL_ARGS_FLAG_IN_PLACE;
}

/* A row and this rank's part: the row as arrays or not, in place if the part
 * lies in it. */
static void set_row(const oari_ucc *u, const row *r, const oar_span *part,
                    ucc_coll_args_t *a, uint64_t *parts)
{
    int row_first = a->coll_type == UCC_COLL_TYPE_SCATTERV;
    size_t skip, each = r->span->count / (size_t)u->ranks;

    if (r->arrays) {
        write_parts(u, r->counts, each, parts);
        if (row_first)
            a->src.info_v = buffer_info_v(u, r->span, parts);
        else
            a->dst.info_v = buffer_info_v(u, r->span, parts);
    } else {
        a->dst.info = buffer_info(r->span);
    }
    if (row_first)
        a->dst.info = buffer_info(part);
    else
        a->src.info = buffer_info(part);
    skip = offset_of_rank(u, r) * oar_dtype_size(part->dtype);
    if (part->data == (unsigned char *)r->span->data + skip)
        a->flags |= UCC_COLL_ARGS_FLAG_IN_PLACE;
}

/* UCC reads the counts of dst, which say how the row is divided. In place dst
 * is the row. */
static void set_reduce_scatter(const oari_ucc *u, const oar_collective *call,
                               ucc_coll_args_t *a, uint64_t *parts)
{
    row r = row_of(u, call);
    size_t skip = offset_of_rank(u, &r) * oar_dtype_size(call->in.dtype);
    int inside = call->out.data == (unsigned char *)call->in.data + skip;
    const oar_span *to = inside ? &call->in : &call->out;

    a->src.info = buffer_info(&call->in);
    if (r.arrays) {
        a->coll_type = UCC_COLL_TYPE_REDUCE_SCATTERV;
        write_parts(u, r.counts, 0, parts);
        a->dst.info_v = buffer_info_v(u, to, parts);
    } else {
        a->coll_type = UCC_COLL_TYPE_REDUCE_SCATTER;
        a->dst.info = buffer_info(to);
    }
    if (inside)
        a->flags |= UCC_COLL_ARGS_FLAG_IN_PLACE;
}

static void set_all_to_all(const oari_ucc *u, const oar_collective *call,
                           ucc_coll_args_t *a, uint64_t *parts)
{
    if (call->in_counts == NULL) {
        a->coll_type = UCC_COLL_TYPE_ALLTOALL;
        a->src.info = buffer_info(&call->in);
        a->dst.info = buffer_info(&call->out);
        return;
    }
    a->coll_type = UCC_COLL_TYPE_ALLTOALLV;
    write_parts(u, call->in_counts, 0, parts);
    write_parts(u, call->out_counts, 0, parts + 2 * u->ranks);
    a->src.info_v = buffer_info_v(u, &call->in, parts);
    a->dst.info_v = buffer_info_v(u, &call->out, parts + 2 * u->ranks);
}

static void set_kind(const oari_ucc *u, const oar_collective *call,
                     ucc_coll_args_t *a, uint64_t *parts)
{
    row r = row_of(u, call);

    switch (call->kind) {
    case OAR_COLL_BROADCAST:
        a->coll_type = UCC_COLL_TYPE_BCAST;
        a->src.info = buffer_info(&call->in);
        break;
    case OAR_COLL_ALL_REDUCE:
        a->coll_type = UCC_COLL_TYPE_ALLREDUCE;
        set_pair(a, call);
        break;
    case OAR_COLL_REDUCE:
        a->coll_type = UCC_COLL_TYPE_REDUCE;
        set_pair(a, call);
        break;
    case OAR_COLL_GATHER:
        a->coll_type = UCC_COLL_TYPE_GATHERV;
        if (r.span != NULL)
            set_row(u, &r, &call->in, a, parts);
        else
            a->src.info = buffer_info(&call->in);
        break;
    case OAR_COLL_SCATTER:
        a->coll_type = UCC_COLL_TYPE_SCATTERV;
        if (r.span != NULL)
            set_row(u, &r, &call->out, a, parts);
        else
            a->dst.info = buffer_info(&call->out);
        break;
    case OAR_COLL_ALL_GATHER:
        a->coll_type =
            r.arrays ? UCC_COLL_TYPE_ALLGATHERV : UCC_COLL_TYPE_ALLGATHER;
        set_row(u, &r, &call->in, a, parts);
        break;
    case OAR_COLL_REDUCE_SCATTER: set_reduce_scatter(u, call, a, parts); break;
    case OAR_COLL_ALL_TO_ALL: set_all_to_all(u, call, a, parts); break;
    default: a->coll_type = UCC_COLL_TYPE_BARRIER; break;
    }
}

ucc_coll_args_t oari_ucc_arguments(const oari_ucc *u,
                                   const oar_collective *call, uint64_t *parts)
{
    ucc_coll_args_t a;

    memset(&a, 0, sizeof a);
    a.mask = UCC_COLL_ARGS_FIELD_FLAGS;
    a.flags =
        UCC_COLL_ARGS_FLAG_COUNT_64BIT | UCC_COLL_ARGS_FLAG_DISPLACEMENTS_64BIT;
    a.root = (uint64_t)call->root;
    if (oari_kind_reduces(call->kind))
        a.op = (ucc_reduction_op_t)(operators[classes[call->in.dtype]]
                                             [call->op.kind] -
                                    1);
    set_kind(u, call, &a, parts);
    return a;
}
