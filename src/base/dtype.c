/* SPDX-License-Identifier: Apache-2.0 */
/* dtype: names and sizes of dtypes, operators and collectives, and the
 * operators that each dtype allows. Conversion is in convert.c. */
#include "base/dtype.h"

#include <string.h>

#include "base/status.h"

size_t oar_dtype_size(oar_dtype dtype)
{
    static const unsigned char bytes[] = {
#define X(name, value, size, text) [name] = size,
        OAR_DTYPE_LIST(X) OAR_MOVED_DTYPE_LIST(X)
#undef X
    };

    return (unsigned)dtype < OAR_DTYPE_COUNT_ALL ? bytes[dtype] : 0;
}

const char *oar_dtype_name(oar_dtype dtype)
{
    static const char *const name_of[] = {
#define X(name, value, size, text) [name] = text,
        OAR_DTYPE_LIST(X) OAR_MOVED_DTYPE_LIST(X)
#undef X
    };

    return (unsigned)dtype < OAR_DTYPE_COUNT_ALL ? name_of[dtype] : "?";
}

oar_status oar_dtype_parse(const char *name, oar_dtype *dtype)
{
    if (name == NULL || dtype == NULL)
        return oari_fail(OAR_E_ARG, "dtype_parse without a %s",
                         name == NULL ? "name" : "place for the result");
    for (int i = 0; i < OAR_DTYPE_COUNT_ALL; i++)
        if (strcmp(name, oar_dtype_name((oar_dtype)i)) == 0) {
            *dtype = (oar_dtype)i;
            return OAR_OK;
        }
    return oari_fail(OAR_E_ARG, "there is no dtype \"%s\"", name);
}

const char *oar_reduce_op_name(oar_reduce_op_kind kind)
{
    static const char *const name_of[] = {
#define X(name, value, text) [name] = text,
        OAR_REDUCE_OP_LIST(X)
#undef X
    };

    return (unsigned)kind < OAR_REDUCE_OP_COUNT ? name_of[kind] : "?";
}

const char *oar_coll_name(oar_coll kind)
{
    static const char *const name_of[] = {
#define X(name, value, text) [name] = text,
        OAR_COLL_LIST(X)
#undef X
    };

    return (unsigned)kind < OAR_COLL_COUNT ? name_of[kind] : "?";
}

static oar_status fail_unsupported(oar_reduce_op_kind kind, oar_dtype dtype,
                                   const char *why)
{
    return oari_fail(OAR_E_UNSUPPORTED, "%s on %s: %s",
                     oar_reduce_op_name(kind), oar_dtype_name(dtype), why);
}

oar_status oar_reduce_op_check(oar_reduce_op op, oar_dtype dtype)
{
    if ((unsigned)dtype >= OAR_DTYPE_COUNT_ALL)
        return oari_fail(OAR_E_ARG, "there is no dtype %d", (int)dtype);
    if ((unsigned)dtype >= OAR_DTYPE_COUNT)
        return fail_unsupported(op.kind, dtype,
                                "only NCCL computes with floats of 8 bits");
    switch (op.kind) {
    case OAR_REDUCE_OP_SUM:
    case OAR_REDUCE_OP_PROD:
    case OAR_REDUCE_OP_MIN:
    case OAR_REDUCE_OP_MAX: return OAR_OK;
    case OAR_REDUCE_OP_AVG:
    case OAR_REDUCE_OP_PREMUL_SUM:
    case OAR_REDUCE_OP_WEIGHTED_MEAN:
        if (dtype == OAR_BOOL)
            return fail_unsupported(op.kind, dtype,
                                    "truth values have no multiples");
        return OAR_OK;
    case OAR_REDUCE_OP_BAND:
    case OAR_REDUCE_OP_BOR:
    case OAR_REDUCE_OP_BXOR:
        if (oari_dtype_is_float(dtype))
            return fail_unsupported(op.kind, dtype,
                                    "only integers and bool have bits");
        return OAR_OK;
    case OAR_REDUCE_OP_COUNT: break;
    }
    return oari_fail(OAR_E_ARG, "there is no operator %d", (int)op.kind);
}
