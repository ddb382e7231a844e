/* SPDX-License-Identifier: Apache-2.0 */
/* op_compare: what is true or false of two elements, or of one and a
 * number. Nothing is recorded. */
#include <math.h>

#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/dtype.h"
#include "base/status.h"
#include "tensor/kernel_table.h"

static const char *const names[OARI_COMPARE_COUNT] = {
#define X(name) [OARI_COMPARE_##name] = #name,
    OAR_COMPARE_LIST(X)
#undef X
        [OARI_COMPARE_and] = "logical_and",
    [OARI_COMPARE_or] = "logical_or",
    [OARI_COMPARE_xor] = "logical_xor",
};

static oar_status check_compare(oar_tape *tape, oar_tensor *a, oar_tensor *b,
                                oari_compare_kind kind, oar_shape *shape)
{
    const char *name = names[kind];

    OARI_TRY(oari_check_inputs(name, tape, 2, (oar_tensor *[]){ a, b }));
    OARI_TRY(oari_check_same_dtype(name, a, b));
    if (kind >= OARI_COMPARE_and && a->dtype != OAR_BOOL)
        return oari_fail(OAR_E_DTYPE, "%s of %s %s and %s: only bool", name,
                         oar_dtype_name(a->dtype),
                         oari_shape_text(a->at.shape).text,
                         oari_shape_text(b->at.shape).text);
    if (oari_shape_broadcast(a->at.shape, b->at.shape, shape))
        return OAR_OK;
    return oari_fail(
        OAR_E_SHAPE, "%s of %s and %s: the shapes do not broadcast", name,
        oari_shape_text(a->at.shape).text, oari_shape_text(b->at.shape).text);
}

static oar_tensor *compare_tensors(oar_tape *tape, oar_tensor *a, oar_tensor *b,
                                   oari_compare_kind kind)
{
    oar_tensor *out;
    oari_array to, x, y;
    oar_shape shape;

    if (check_compare(tape, a, b, kind, &shape) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(oari_tape_pool(tape), oari_device_of(a), OAR_BOOL,
                              shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    x = oari_array_of(a);
    y = oari_array_of(b);
    if (OARI_KERNEL(&to, compare, kind, &to, &x, &y) != OAR_OK)
        return oari_abandon(tape, out);
    return oari_keep(tape, out);
}

#define X(name)                                                          \
    oar_tensor *oar_##name(oar_tape *tape, oar_tensor *a, oar_tensor *b) \
    {                                                                    \
        return compare_tensors(tape, a, b, OARI_COMPARE_##name);         \
    }
OAR_COMPARE_LIST(X)
#undef X

#define LOGICAL(name, kind)                                        \
    oar_tensor *name(oar_tape *tape, oar_tensor *a, oar_tensor *b) \
    {                                                              \
        return compare_tensors(tape, a, b, kind);                  \
    }

LOGICAL(oar_logical_and, OARI_COMPARE_and)
LOGICAL(oar_logical_or, OARI_COMPARE_or)
LOGICAL(oar_logical_xor, OARI_COMPARE_xor)

/* Either that or true, but not both. */
oar_tensor *oar_logical_not(oar_tape *tape, oar_tensor *a)
{
    uint8_t yes = 1;
    oari_array to, x, y = oari_host_array(&yes, OAR_BOOL, OAR_SCALAR);
    oar_tensor *out;

    if (oari_check_inputs("logical_not", tape, 1, &a) != OAR_OK)
        return NULL;
    if (a->dtype != OAR_BOOL) {
        oari_fail(OAR_E_DTYPE, "logical_not of %s %s: only bool",
                  oar_dtype_name(a->dtype), oari_shape_text(a->at.shape).text);
        return NULL;
    }
    out = oari_tensor_make_on(oari_tape_pool(tape), oari_device_of(a), OAR_BOOL,
                              a->at.shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    x = oari_array_of(a);
    if (OARI_KERNEL(&to, compare, OARI_COMPARE_xor, &to, &x, &y) != OAR_OK)
        return oari_abandon(tape, out);
    return oari_keep(tape, out);
}

/* ---- with a number ------------------------------------------------------- */

/* Makes *number one that integers or bools of this dtype can be compared with,
 * with the same answers. Returns 0 if there is none: then *all is the answer
 * for each of them. */
static int fit_number(oari_compare_kind kind, oar_dtype dtype, double *number,
                      int *all)
{
    int equality = kind == OARI_COMPARE_eq || kind == OARI_COMPARE_ne;
    int less = kind == OARI_COMPARE_lt || kind == OARI_COMPARE_le;
    int is_signed = dtype == OAR_I8 || dtype == OAR_I16 || dtype == OAR_I32 ||
                    dtype == OAR_I64;
    int bits = (int)oar_dtype_size(dtype) * 8 - is_signed;
    double above = dtype == OAR_BOOL ? 2 : ldexp(1, bits);

    if (equality || isnan(*number))
        *all = kind == OARI_COMPARE_ne;
    else
        *all = (*number > 0) == less; /* it is beyond all of them */
    if (!equality)
        *number = kind == OARI_COMPARE_lt || kind == OARI_COMPARE_ge
                      ? ceil(*number)
                      : floor(*number);
    return *number == floor(*number) && *number < above &&
           *number >= (is_signed ? -above : 0);
}

static oar_tensor *compare_number(oar_tape *tape, oar_tensor *a, double number,
                                  oari_compare_kind kind, const char *name)
{
    uint64_t bits;
    oari_array to, x, y;
    oar_tensor *out;
    oar_status status;
    int all;

    if (oari_check_inputs(name, tape, 1, &a) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(oari_tape_pool(tape), oari_device_of(a), OAR_BOOL,
                              a->at.shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    x = oari_array_of(a);
    y = oari_host_array(&bits, a->dtype, OAR_SCALAR);
    if (oari_dtype_is_float(a->dtype) ||
        fit_number(kind, a->dtype, &number, &all)) {
        oari_fill(&y, number);
        status = OARI_KERNEL(&to, compare, kind, &to, &x, &y);
    } else {
        status = OARI_KERNEL(&to, fill, &to, all);
    }
    return oari_keep(tape, oari_settle(oari_tape_pool(tape), out, status));
}

#define X(name)                                                     \
    oar_tensor *oar_##name##_scalar(oar_tape *tape, oar_tensor *a,  \
                                    double number)                  \
    {                                                               \
        return compare_number(tape, a, number, OARI_COMPARE_##name, \
                              #name "_scalar");                     \
    }
OAR_COMPARE_LIST(X)
#undef X
