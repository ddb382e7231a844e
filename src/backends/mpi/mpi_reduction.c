/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_reduction: reductions with our rules (span.h), by MPI's operators.
 *
 * MPI adds and multiplies f32, f64 and integers as we do (integers as unsigned
 * ones, which wrap). But Open MPI 4.1 and newer on x86-64 saturates when it
 * adds integers of 8 and 16 bits; MPI's min and max have no rule for NaN and
 * zeros, and MPICH 4.0 compares unsigned integers as signed ones: for these
 * there are operators of ours. Half types are widened here, summed in f32 and
 * rounded once at the end. An average is a sum divided at the end.
 */
#include <string.h>

#include "base/dtype.h"
#include "base/reduce/reduce.h"
#include "backends/mpi/mpi_engine.h"

/* Returns the type with its sign, which min and max need. */
static MPI_Datatype ordered_type(oar_dtype dtype)
{
    switch (dtype) {
    case OAR_F32: return MPI_FLOAT;
    case OAR_F64: return MPI_DOUBLE;
    case OAR_F16:
    case OAR_BF16: return mpi_half_type(dtype);
    case OAR_I8: return MPI_INT8_T;
    case OAR_I16: return MPI_INT16_T;
    case OAR_I32: return MPI_INT32_T;
    case OAR_I64: return MPI_INT64_T;
    default: return mpi_type_of(dtype);
    }
}

static MPI_Op op_of(oar_reduce_op_kind kind, oar_dtype dtype)
{
    int is_signed = dtype == OAR_I8 || dtype == OAR_I16 || dtype == OAR_I32 ||
                    dtype == OAR_I64;

    if (dtype == OAR_BOOL) /* MPI makes 1 of bytes that are not 0, as we do */
        return kind == OAR_REDUCE_OP_PROD || kind == OAR_REDUCE_OP_MIN ||
                       kind == OAR_REDUCE_OP_BAND
                   ? MPI_LAND
               : kind == OAR_REDUCE_OP_BXOR ? MPI_LXOR
                                            : MPI_LOR;
    switch (kind) {
    case OAR_REDUCE_OP_SUM:
    case OAR_REDUCE_OP_AVG:
    case OAR_REDUCE_OP_PREMUL_SUM:
        return oar_dtype_size(dtype) < 4 ? mpi_custom_op(OAR_REDUCE_OP_SUM)
                                         : MPI_SUM;
    case OAR_REDUCE_OP_PROD: return MPI_PROD;
    case OAR_REDUCE_OP_BAND: return MPI_BAND;
    case OAR_REDUCE_OP_BOR: return MPI_BOR;
    case OAR_REDUCE_OP_BXOR: return MPI_BXOR;
    case OAR_REDUCE_OP_MIN: return is_signed ? MPI_MIN : mpi_custom_op(kind);
    case OAR_REDUCE_OP_MAX: return is_signed ? MPI_MAX : mpi_custom_op(kind);
    default: return MPI_OP_NULL;
    }
}

int mpi_reduction_find(const oar_collective *call, mpi_reduction *reduction)
{
    oar_dtype dtype = call->in.dtype;
    oar_reduce_op_kind kind = call->op.kind;
    int is_min_or_max = kind == OAR_REDUCE_OP_MIN || kind == OAR_REDUCE_OP_MAX;
    int widened = oari_dtype_is_half(dtype) && !is_min_or_max;

    reduction->dtype = widened ? OAR_F32 : dtype;
    reduction->op = op_of(kind, reduction->dtype);
    reduction->made = widened || kind == OAR_REDUCE_OP_PREMUL_SUM;
    reduction->type = is_min_or_max || oari_dtype_is_float(reduction->dtype)
                          ? ordered_type(reduction->dtype)
                          : mpi_type_of(reduction->dtype);
    return reduction->op != MPI_OP_NULL;
}

/* Multiplies by a factor, if there is one, or divides. */
static void scale_elements(void *data, oar_dtype dtype, size_t count,
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

void mpi_reduction_operands(const oar_collective *call,
                            const mpi_reduction *reduction, void *to)
{
    size_t count = call->in.count;

    if (reduction->dtype != call->in.dtype)
        oari_convert(to, reduction->dtype, call->in.data, call->in.dtype,
                     count);
    else
        memcpy(to, call->in.data, count * oar_dtype_size(reduction->dtype));
    if (call->op.kind == OAR_REDUCE_OP_PREMUL_SUM)
        scale_elements(to, reduction->dtype, count, &call->op.scalar, 0);
}

/* Divides before it rounds to a half type. */
void mpi_reduction_finish(const mpi_engine *e, const oar_collective *call,
                          const void *from, oar_dtype dtype)
{
    size_t count = call->out.count;
    void *row = NULL;

    memcpy(&row, &from, sizeof row);
    if (call->op.kind == OAR_REDUCE_OP_AVG)
        scale_elements(row, dtype, count, NULL, e->ranks);
    if (dtype != call->out.dtype)
        oari_convert(call->out.data, call->out.dtype, from, dtype, count);
    else if (from != call->out.data)
        memcpy(call->out.data, from, count * oar_dtype_size(dtype));
}
