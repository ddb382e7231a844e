/* SPDX-License-Identifier: Apache-2.0 */
/* span.h: the only thing collectives and backends see: memory with a count, a
 * dtype and a device. A span owns nothing. */
#ifndef OARSONG_SPAN_H
#define OARSONG_SPAN_H

#include <oarsong/status.h>

OAR_BEGIN_DECLS

/* name, value, bytes, short text. Values are part of the ABI. */
#define OAR_DTYPE_LIST(X)     \
    X(OAR_F32, 0, 4, "f32")   \
    X(OAR_F64, 1, 8, "f64")   \
    X(OAR_F16, 2, 2, "f16")   \
    X(OAR_BF16, 3, 2, "bf16") \
    X(OAR_I8, 4, 1, "i8")     \
    X(OAR_U8, 5, 1, "u8")     \
    X(OAR_I16, 6, 2, "i16")   \
    X(OAR_U16, 7, 2, "u16")   \
    X(OAR_I32, 8, 4, "i32")   \
    X(OAR_U32, 9, 4, "u32")   \
    X(OAR_I64, 10, 8, "i64")  \
    X(OAR_U64, 11, 8, "u64")  \
    X(OAR_BOOL, 12, 1, "bool")

/* Floats of 8 bits, which are only moved: there is no arithmetic with them on
 * the host, and no tensor of them. NCCL adds them up. */
#define OAR_MOVED_DTYPE_LIST(X)    \
    X(OAR_F8E4M3, 13, 1, "f8e4m3") \
    X(OAR_F8E5M2, 14, 1, "f8e5m2")

typedef enum oar_dtype {
    OAR_DTYPE_LIST(OAR_ENUM_ROW) OAR_MOVED_DTYPE_LIST(OAR_ENUM_ROW)
        OAR_DTYPE_COUNT = 13, /* with arithmetic */
    OAR_DTYPE_COUNT_ALL = 15
} oar_dtype;

typedef enum oar_device_kind { OAR_CPU = 0, OAR_CUDA = 1 } oar_device_kind;

typedef struct oar_device {
    oar_device_kind kind;
    int index; /* which one of its kind; 0 for the cpu */
} oar_device;

typedef struct oar_span {
    void *data;   /* may be NULL when count is 0 */
    size_t count; /* elements, not bytes */
    oar_dtype dtype;
    oar_device device;
    int read_only; /* 1: it can be sent, and be the in of a collective; what
                      would write to it is OAR_E_ARG */
} oar_span;

/* A span over host memory. Borrows data. */
static inline oar_span oar_span_of(void *data, size_t count, oar_dtype dtype)
{
    oar_span span;
    span.data = data;
    span.count = count;
    span.dtype = dtype;
    span.device.kind = OAR_CPU;
    span.device.index = 0;
    span.read_only = 0;
    return span;
}

/* The same over memory of that device. */
static inline oar_span oar_span_on(oar_device device, void *data, size_t count,
                                   oar_dtype dtype)
{
    oar_span span = oar_span_of(data, count, dtype);

    span.device = device;
    return span;
}

/* The same over host memory that is only read: what is sent, the in of a
 * collective, root's buf of a broadcast. */
static inline oar_span oar_span_of_const(const void *data, size_t count,
                                         oar_dtype dtype)
{
    oar_span span = oar_span_of((void *)(uintptr_t)data, count, dtype);

    span.read_only = 1;
    return span;
}

/* Bytes of one element; 0 for a dtype that does not exist. Any thread. */
OAR_API size_t oar_dtype_size(oar_dtype dtype);

/* "f32"; "?" for a dtype that does not exist. Any thread. */
OAR_API const char *oar_dtype_name(oar_dtype dtype);

/* Finds a dtype by its short name. OAR_E_ARG if there is none. */
OAR_API oar_status oar_dtype_parse(const char *name, oar_dtype *dtype);

/* How a reduction combines two elements. Integers wrap; an integer average
 * truncates toward zero; half types are summed in f32 and rounded once.
 * Booleans know sum (or), prod (and), min, max and the bitwise operators.
 * NaN: sum, prod and avg propagate it; min and max give NaN if either is NaN.
 * Zeros: min of -0 and +0 is -0, max is +0. */
#define OAR_REDUCE_OP_LIST(X)                    \
    X(OAR_REDUCE_OP_SUM, 0, "sum")               \
    X(OAR_REDUCE_OP_AVG, 1, "avg")               \
    X(OAR_REDUCE_OP_PROD, 2, "prod")             \
    X(OAR_REDUCE_OP_MIN, 3, "min")               \
    X(OAR_REDUCE_OP_MAX, 4, "max")               \
    X(OAR_REDUCE_OP_BAND, 5, "band")             \
    X(OAR_REDUCE_OP_BOR, 6, "bor")               \
    X(OAR_REDUCE_OP_BXOR, 7, "bxor")             \
    X(OAR_REDUCE_OP_PREMUL_SUM, 8, "premul_sum") \
    X(OAR_REDUCE_OP_WEIGHTED_MEAN, 9, "weighted_mean")

typedef enum oar_reduce_op_kind {
    OAR_REDUCE_OP_LIST(OAR_ENUM_ROW) OAR_REDUCE_OP_COUNT
} oar_reduce_op_kind;

/* An operator. scalar is the factor each rank multiplies its own contribution
 * with under OAR_PREMUL_SUM; the others ignore it. OAR_WEIGHTED_MEAN takes this
 * rank's weight from oar_call_opts. */
typedef struct oar_reduce_op {
    oar_reduce_op_kind kind;
    double scalar;
} oar_reduce_op;

#ifdef __cplusplus
#define OAR_REDUCE_OP(kind, scalar) (oar_reduce_op{ (kind), (scalar) })
#else
#define OAR_REDUCE_OP(kind, scalar) ((oar_reduce_op){ (kind), (scalar) })
#endif
#define OAR_SUM                OAR_REDUCE_OP(OAR_REDUCE_OP_SUM, 0)
#define OAR_AVG                OAR_REDUCE_OP(OAR_REDUCE_OP_AVG, 0)
#define OAR_PROD               OAR_REDUCE_OP(OAR_REDUCE_OP_PROD, 0)
#define OAR_MIN                OAR_REDUCE_OP(OAR_REDUCE_OP_MIN, 0)
#define OAR_MAX                OAR_REDUCE_OP(OAR_REDUCE_OP_MAX, 0)
#define OAR_BAND               OAR_REDUCE_OP(OAR_REDUCE_OP_BAND, 0)
#define OAR_BOR                OAR_REDUCE_OP(OAR_REDUCE_OP_BOR, 0)
#define OAR_BXOR               OAR_REDUCE_OP(OAR_REDUCE_OP_BXOR, 0)
#define OAR_PREMUL_SUM(factor) OAR_REDUCE_OP(OAR_REDUCE_OP_PREMUL_SUM, (factor))
#define OAR_WEIGHTED_MEAN      OAR_REDUCE_OP(OAR_REDUCE_OP_WEIGHTED_MEAN, 0)

/* "sum"; "?" for an operator that does not exist. Any thread. */
OAR_API const char *oar_reduce_op_name(oar_reduce_op_kind kind);

/* Whether the operator makes sense on the dtype. If not, OAR_E_UNSUPPORTED with
 * a sentence that says why. */
OAR_API oar_status oar_reduce_op_check(oar_reduce_op op, oar_dtype dtype);

/* What ranks do together: name, value, text. Values are part of the ABI. */
#define OAR_COLL_LIST(X)                            \
    X(OAR_COLL_BARRIER, 0, "barrier")               \
    X(OAR_COLL_BROADCAST, 1, "broadcast")           \
    X(OAR_COLL_ALL_REDUCE, 2, "all_reduce")         \
    X(OAR_COLL_REDUCE, 3, "reduce")                 \
    X(OAR_COLL_GATHER, 4, "gather")                 \
    X(OAR_COLL_SCATTER, 5, "scatter")               \
    X(OAR_COLL_ALL_GATHER, 6, "all_gather")         \
    X(OAR_COLL_REDUCE_SCATTER, 7, "reduce_scatter") \
    X(OAR_COLL_ALL_TO_ALL, 8, "all_to_all")         \
    X(OAR_COLL_SEND, 9, "send")                     \
    X(OAR_COLL_RECV, 10, "recv")                    \
    X(OAR_COLL_PROBE, 11, "probe") /* only in records: no backend is asked */

typedef enum oar_coll { OAR_COLL_LIST(OAR_ENUM_ROW) OAR_COLL_COUNT } oar_coll;

/* "all_reduce"; "?" for a kind that does not exist. Any thread. */
OAR_API const char *oar_coll_name(oar_coll kind);

OAR_END_DECLS

#endif
