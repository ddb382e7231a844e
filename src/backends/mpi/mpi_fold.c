/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_fold: reductions, with our rules (span.h) out of MPI's operators.
 *
 * MPI adds and multiplies f32, f64 and integers as we do (integers as unsigned
 * ones, which wrap). But Open MPI 4.1 and newer on x86-64 stops at the largest
 * number when it adds integers of 8 and 16 bits; MPI's min and max have no rule
 * for NaN and zeros, and MPICH 4.0 takes unsigned numbers for signed ones
 * there: for these there are operators of ours. Halves are widened here, summed
 * in f32 and rounded once at the end. An average is a sum divided at the end.
 */
#include <string.h>

#include "base/dtype.h"
#include "base/reduce/reduce.h"
#include "backends/mpi/mpi_engine.h"

/* Signed and float types, as min and max want them. */
static MPI_Datatype ordered(oar_dtype dtype)
{
    switch (dtype) {
    case OAR_F32: return MPI_FLOAT;
    case OAR_F64: return MPI_DOUBLE;
    case OAR_F16:
    case OAR_BF16: return mpi_half(dtype);
    case OAR_I8: return MPI_INT8_T;
    case OAR_I16: return MPI_INT16_T;
    case OAR_I32: return MPI_INT32_T;
    case OAR_I64: return MPI_INT64_T;
    default: return mpi_plain(dtype);
    }
}

/* Of bytes that are not 0 MPI's logical operators make 1, as we do. */
static MPI_Op flag_op(oar_reduce_op_kind kind)
{
    switch (kind) {
    case OAR_REDUCE_OP_PROD:
    case OAR_REDUCE_OP_MIN:
    case OAR_REDUCE_OP_BAND: return MPI_LAND;
    case OAR_REDUCE_OP_BXOR: return MPI_LXOR;
    default: return MPI_LOR;
    }
}

static int is_signed(oar_dtype dtype)
{
    return dtype == OAR_I8 || dtype == OAR_I16 || dtype == OAR_I32 ||
           dtype == OAR_I64;
}

static MPI_Op op_of(oar_reduce_op_kind kind, oar_dtype dtype)
{
    if (dtype == OAR_BOOL)
        return flag_op(kind);
    switch (kind) {
    case OAR_REDUCE_OP_SUM:
    case OAR_REDUCE_OP_AVG:
    case OAR_REDUCE_OP_PREMUL_SUM:
        return oar_dtype_size(dtype) < 4 ? mpi_own(OAR_REDUCE_OP_SUM) : MPI_SUM;
    case OAR_REDUCE_OP_PROD: return MPI_PROD;
    case OAR_REDUCE_OP_BAND: return MPI_BAND;
    case OAR_REDUCE_OP_BOR: return MPI_BOR;
    case OAR_REDUCE_OP_BXOR: return MPI_BXOR;
    case OAR_REDUCE_OP_MIN: return is_signed(dtype) ? MPI_MIN : mpi_own(kind);
    case OAR_REDUCE_OP_MAX: return is_signed(dtype) ? MPI_MAX : mpi_own(kind);
    default: return MPI_OP_NULL;
    }
}

static int is_pick(oar_reduce_op_kind kind)
{
    return kind == OAR_REDUCE_OP_MIN || kind == OAR_REDUCE_OP_MAX;
}

int mpi_fold_of(const oar_collective *call, mpi_fold *fold)
{
    oar_dtype dtype = call->in.dtype;
    oar_reduce_op_kind kind = call->op.kind;
    int widened = oari_dtype_is_half(dtype) && !is_pick(kind);

    fold->dtype = widened ? OAR_F32 : dtype;
    fold->op = op_of(kind, fold->dtype);
    fold->made = widened || kind == OAR_REDUCE_OP_PREMUL_SUM;
    fold->type = is_pick(kind) || oari_dtype_is_float(fold->dtype)
                     ? ordered(fold->dtype)
                     : mpi_plain(fold->dtype);
    return fold->op != MPI_OP_NULL;
}

/* One operand, times a factor or divided. */
static void scale(void *data, oar_dtype dtype, size_t count,
                  const double *factor, double divisor)
{
    const void *const source = data;
    oari_reduction r = { .kind = OAR_REDUCE_OP_SUM,
                         .dtype = dtype,
                         .sources = 1,
                         .source = &source,
                         .factor = factor,
                         .divisor = divisor,
                         .destinations = 1,
                         .destination = &data };

    oari_reduce(&r, count);
}

void mpi_fold_make(const oar_collective *call, const mpi_fold *fold, void *to)
{
    size_t count = call->in.count;

    if (fold->dtype != call->in.dtype)
        oari_convert(to, fold->dtype, call->in.data, call->in.dtype, count);
    else
        memcpy(to, call->in.data, count * oar_dtype_size(fold->dtype));
    if (call->op.kind == OAR_REDUCE_OP_PREMUL_SUM)
        scale(to, fold->dtype, count, &call->op.scalar, 0);
}

/* Divides first: a half is rounded once. */
void mpi_fold_finish(const mpi_engine *e, const oar_collective *call,
                     const void *from, oar_dtype dtype)
{
    size_t count = call->out.count;
    void *row = NULL;

    memcpy(&row, &from, sizeof row);
    if (call->op.kind == OAR_REDUCE_OP_AVG)
        scale(row, dtype, count, NULL, e->ranks);
    if (dtype != call->out.dtype)
        oari_convert(call->out.data, call->out.dtype, from, dtype, count);
    else if (from != call->out.data)
        memcpy(call->out.data, from, count * oar_dtype_size(dtype));
}
