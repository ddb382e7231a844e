/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_types: our dtypes and operators as NCCL's numbers.
 *
 * Three tables say what NCCL does: dtypes, their class, operators by class.
 * They hold NCCL's number plus 1; 0 is "not taken". What is only moved is moved
 * as bytes, whatever its dtype. */
#include "backends/nccl/nccl_engine.h"
#include "base/half.h"

/* A bool is a byte that is 0 or 1. NCCL has no 16-bit integers. */
static const int types[OAR_DTYPE_COUNT_ALL] = {
    [OAR_F32] = OARI_NCCL_F32 + 1,
    [OAR_F64] = OARI_NCCL_F64 + 1,
    [OAR_F16] = OARI_NCCL_F16 + 1,
    [OAR_BF16] = OARI_NCCL_BF16 + 1,
    [OAR_I8] = OARI_NCCL_I8 + 1,
    [OAR_U8] = OARI_NCCL_U8 + 1,
    [OAR_I16] = 0,
    [OAR_U16] = 0,
    [OAR_I32] = OARI_NCCL_I32 + 1,
    [OAR_U32] = OARI_NCCL_U32 + 1,
    [OAR_I64] = OARI_NCCL_I64 + 1,
    [OAR_U64] = OARI_NCCL_U64 + 1,
    [OAR_BOOL] = OARI_NCCL_U8 + 1,
    [OAR_F8E4M3] = OARI_NCCL_F8E4M3 + 1,
    [OAR_F8E5M2] = OARI_NCCL_F8E5M2 + 1,
};

/* FLOAT8: only where every rank's GPU has it. */
enum class { UNSUPPORTED, FLOAT, FLOAT8, SIGNED, UNSIGNED, BOOLEAN, CLASSES };

static const enum class classes[OAR_DTYPE_COUNT_ALL] = {
    [OAR_F32] = FLOAT,       [OAR_F64] = FLOAT,       [OAR_F16] = FLOAT,
    [OAR_BF16] = FLOAT,      [OAR_I8] = SIGNED,       [OAR_U8] = UNSIGNED,
    [OAR_I16] = UNSUPPORTED, [OAR_U16] = UNSUPPORTED, [OAR_I32] = SIGNED,
    [OAR_U32] = UNSIGNED,    [OAR_I64] = SIGNED,      [OAR_U64] = UNSIGNED,
    [OAR_BOOL] = BOOLEAN,    [OAR_F8E4M3] = FLOAT8,   [OAR_F8E5M2] = FLOAT8,
};

/* Averages of signed integers are not taken: some versions divide the sum as if
 * it were unsigned. Premultiplied sums of integers are not taken: our factor is
 * a float, NCCL's an integer. NCCL has no bitwise operators, but of 0 and 1 the
 * minimum is `and`, the maximum `or`. Weighted means need the sum of the
 * weights first. */
static const int operators[CLASSES][OAR_REDUCE_OP_COUNT] = {
    [FLOAT] = { [OAR_REDUCE_OP_SUM] = OARI_NCCL_SUM + 1,
                [OAR_REDUCE_OP_PROD] = OARI_NCCL_PROD + 1,
                [OAR_REDUCE_OP_MIN] = OARI_NCCL_MIN + 1,
                [OAR_REDUCE_OP_MAX] = OARI_NCCL_MAX + 1,
                [OAR_REDUCE_OP_AVG] = OARI_NCCL_AVG + 1 },
    [FLOAT8] = { [OAR_REDUCE_OP_SUM] = OARI_NCCL_SUM + 1,
                 [OAR_REDUCE_OP_PROD] = OARI_NCCL_PROD + 1,
                 [OAR_REDUCE_OP_MIN] = OARI_NCCL_MIN + 1,
                 [OAR_REDUCE_OP_MAX] = OARI_NCCL_MAX + 1,
                 [OAR_REDUCE_OP_AVG] = OARI_NCCL_AVG + 1 },
    [SIGNED] = { [OAR_REDUCE_OP_SUM] = OARI_NCCL_SUM + 1,
                 [OAR_REDUCE_OP_PROD] = OARI_NCCL_PROD + 1,
                 [OAR_REDUCE_OP_MIN] = OARI_NCCL_MIN + 1,
                 [OAR_REDUCE_OP_MAX] = OARI_NCCL_MAX + 1 },
    [UNSIGNED] = { [OAR_REDUCE_OP_SUM] = OARI_NCCL_SUM + 1,
                   [OAR_REDUCE_OP_PROD] = OARI_NCCL_PROD + 1,
                   [OAR_REDUCE_OP_MIN] = OARI_NCCL_MIN + 1,
                   [OAR_REDUCE_OP_MAX] = OARI_NCCL_MAX + 1,
                   [OAR_REDUCE_OP_AVG] = OARI_NCCL_AVG + 1 },
    [BOOLEAN] = { [OAR_REDUCE_OP_SUM] = OARI_NCCL_MAX + 1,
                  [OAR_REDUCE_OP_PROD] = OARI_NCCL_MIN + 1,
                  [OAR_REDUCE_OP_MIN] = OARI_NCCL_MIN + 1,
                  [OAR_REDUCE_OP_MAX] = OARI_NCCL_MAX + 1,
                  [OAR_REDUCE_OP_BAND] = OARI_NCCL_MIN + 1,
                  [OAR_REDUCE_OP_BOR] = OARI_NCCL_MAX + 1 },
};

int oari_nccl_type(oar_dtype dtype)
{
    return (unsigned)dtype < OAR_DTYPE_COUNT_ALL ? types[dtype] - 1 : -1;
}

int oari_nccl_operator(oar_reduce_op_kind op, oar_dtype dtype)
{
    if ((unsigned)dtype >= OAR_DTYPE_COUNT_ALL ||
        (unsigned)op >= OAR_REDUCE_OP_COUNT)
        return -1;
    return operators[classes[dtype]][op] - 1;
}

/* ---- what is taken ------------------------------------------------------- */

static int takes_operator(const oari_nccl_engine *e, const oar_collective *call)
{
    oar_dtype dtype = call->in.dtype;

    if ((unsigned)dtype >= OAR_DTYPE_COUNT_ALL ||
        (classes[dtype] == FLOAT8 && !e->comm->has_fp8))
        return 0;
    if (call->op.kind == OAR_REDUCE_OP_PREMUL_SUM)
        return classes[dtype] == FLOAT;
    return oari_nccl_operator(call->op.kind, dtype) >= 0;
}

/* NCCL matches messages of a pair by their order alone: it has no tags, and no
 * receive from any source. */
int oari_nccl_takes(void *self, const oar_collective *call)
{
    switch (call->kind) {
    case OAR_COLL_SEND:
    case OAR_COLL_RECV: return call->tag == 0 && call->root >= 0;
    case OAR_COLL_ALL_REDUCE:
    case OAR_COLL_REDUCE:
    case OAR_COLL_REDUCE_SCATTER: return takes_operator(self, call);
    default: return 1;
    }
}

oari_nccl_factor oari_nccl_factor_make(double factor, oar_dtype dtype)
{
    oari_nccl_factor f = { .f64 = 0 };

    switch (dtype) {
    case OAR_F64: f.f64 = factor; break;
    case OAR_F16: f.half = oari_f16_bits_from_f32((float)factor); break;
    case OAR_BF16: f.half = oari_bf16_bits_from_f32((float)factor); break;
    default: f.f32 = (float)factor; break;
    }
    return f;
}
