/* SPDX-License-Identifier: Apache-2.0 */
/* op_select: one element or another, by a mask. The gradient goes the way the
 * element came. */
#include <math.h>

#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/dtype.h"
#include "base/status.h"
#include "tensor/kernel_table.h"
#include "tensor/cpu/walk.h"

static oar_status masked_back(oari_node *node, int i, const oari_array *to,
                              int add);

#define OP(text)                                               \
    {                                                          \
        .name = (text), .backward = masked_back, .in_place = 1 \
    }
static const oari_op_class where_op = OP("where");
static const oari_op_class where_scalar_op = OP("where_scalar");
static const oari_op_class masked_fill_op = OP("masked_fill");
static const oari_op_class tril_op = OP("tril");
static const oari_op_class triu_op = OP("triu");

/* to (+)= the gradient where the mask chose input i, summed over the dims that
 * were broadcast. */
static oar_status masked_back(oari_node *node, int i, const oari_array *to,
                              int add)
{
    int side = node->op == &where_op ? i == 0 : node->op == &where_scalar_op;
    oari_pool *pool = &node->tape->pool;
    oari_array grad = oari_array_of(node->grad), all;
    oari_array mask = oari_array_of(node->saved[0]);
    oar_tensor *scratch;
    oar_status status;

    if (oari_shape_equal(to->at.shape, grad.at.shape)) {
        return OARI_KERNEL(to, mask_select_back, to, add, &mask, side, &grad);
    }
    scratch = oari_tensor_make_on(pool, to->device, oari_row_dtype(to->dtype),
                                  grad.at.shape);
    if (scratch == NULL)
        return OAR_E_NOMEM;
    all = oari_array_of(scratch);
    status = OARI_KERNEL(&all, mask_select_back, &all, 0, &mask, side, &grad);
    if (status == OAR_OK)
        status = OARI_KERNEL(to, sum_to, pool, to, add, &all);
    oari_tensor_drop(pool, scratch);
    return status;
}

static oar_status check_mask(const char *name, const oar_tensor *a,
                             const oar_tensor *mask)
{
    if (mask->dtype == OAR_BOOL)
        return OAR_OK;
    return oari_fail(OAR_E_DTYPE, "%s of %s with a mask %s %s: it is bool",
                     name, oari_shape_text(a->at.shape).text,
                     oar_dtype_name(mask->dtype),
                     oari_shape_text(mask->at.shape).text);
}

/* ---- where --------------------------------------------------------------- */

static oar_status check_where(oar_tape *tape, oar_tensor *mask, oar_tensor *a,
                              oar_tensor *b, oar_shape *shape)
{
    oar_tensor *in[] = { mask, a, b };

    OARI_TRY(oari_check_inputs("where", tape, 3, in));
    OARI_TRY(check_mask("where", a, mask));
    OARI_TRY(oari_check_same_dtype("where", a, b));
    if (oari_shape_broadcast(a->at.shape, b->at.shape, shape) &&
        oari_shape_broadcast(*shape, mask->at.shape, shape))
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE,
                     "where of mask %s, %s and %s: the shapes do not "
                     "broadcast",
                     oari_shape_text(mask->at.shape).text,
                     oari_shape_text(a->at.shape).text,
                     oari_shape_text(b->at.shape).text);
}

oar_tensor *oar_where(oar_tape *tape, oar_tensor *mask, oar_tensor *a,
                      oar_tensor *b)
{
    oar_tensor *out;
    oari_array to, m, x, y;
    oar_shape shape;

    if (check_where(tape, mask, a, b, &shape) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(oari_tape_pool(tape), oari_device_of(a), a->dtype,
                              shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    m = oari_array_of(mask);
    x = oari_array_of(a);
    y = oari_array_of(b);
    if (OARI_KERNEL(&to, mask_select, &to, &m, &x, &y) != OAR_OK)
        return oari_abandon(tape, out);
    return oari_emit(tape, out,
                     &(oari_node_record){ .op = &where_op,
                                          .inputs = 2,
                                          .input = { a, b },
                                          .saved = { mask } });
}

static oar_status check_where_scalar(oar_tape *tape, oar_tensor *mask,
                                     oar_tensor *a, double number,
                                     oar_shape *shape)
{
    const char *name = where_scalar_op.name;

    OARI_TRY(oari_check_inputs(name, tape, 2, (oar_tensor *[]){ mask, a }));
    OARI_TRY(check_mask(name, a, mask));
    if (!oari_dtype_is_float(a->dtype) &&
        !(number == floor(number) && fabs(number) < 0x1p63))
        return oari_fail(OAR_E_ARG,
                         "%s of %s %s with %g: integers take whole numbers",
                         name, oar_dtype_name(a->dtype),
                         oari_shape_text(a->at.shape).text, number);
    if (oari_shape_broadcast(a->at.shape, mask->at.shape, shape))
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE,
                     "%s of mask %s and %s: the shapes do not broadcast", name,
                     oari_shape_text(mask->at.shape).text,
                     oari_shape_text(a->at.shape).text);
}

oar_tensor *oar_where_scalar(oar_tape *tape, oar_tensor *mask, oar_tensor *a,
                             double number)
{
    uint64_t element;
    oari_array to, m, x, y;
    oar_tensor *out;
    oar_shape shape;

    if (check_where_scalar(tape, mask, a, number, &shape) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(oari_tape_pool(tape), oari_device_of(a), a->dtype,
                              shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    m = oari_array_of(mask);
    x = oari_array_of(a);
    y = oari_host_array(&element, a->dtype, OAR_SCALAR);
    oari_fill(&y, number);
    if (OARI_KERNEL(&to, mask_select, &to, &m, &x, &y) != OAR_OK)
        return oari_abandon(tape, out);
    return oari_emit(tape, out,
                     &(oari_node_record){ .op = &where_scalar_op,
                                          .inputs = 1,
                                          .input = { a },
                                          .saved = { mask } });
}

/* ---- masked_fill --------------------------------------------------------- */

/* a with `value` in place of the elements where mask is set, recorded as op. */
static oar_tensor *fill_masked(oar_tape *tape, oar_tensor *a, oar_tensor *mask,
                               double value, const oari_op_class *op)
{
    uint64_t element;
    oari_array number = oari_host_array(&element, a->dtype, OAR_SCALAR);
    oar_tensor *out = oari_tensor_make_on(
        oari_tape_pool(tape), oari_device_of(a), a->dtype, a->at.shape);
    oari_array to, m, from;

    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    m = oari_array_of(mask);
    from = oari_array_of(a);
    oari_fill(&number, value);
    if (OARI_KERNEL(&to, mask_select, &to, &m, &number, &from) != OAR_OK)
        return oari_abandon(tape, out);
    return oari_emit(
        tape, out,
        &(oari_node_record){
            .op = op, .inputs = 1, .input = { a }, .saved = { mask } });
}

oar_tensor *oar_masked_fill(oar_tape *tape, oar_tensor *a, oar_tensor *mask,
                            double value)
{
    oar_shape shape;

    if (oari_check_inputs("masked_fill", tape, 2,
                          (oar_tensor *[]){ a, mask }) != OAR_OK ||
        check_mask("masked_fill", a, mask) != OAR_OK)
        return NULL;
    if (!oari_shape_broadcast(a->at.shape, mask->at.shape, &shape) ||
        !oari_shape_equal(shape, a->at.shape)) {
        oari_fail(OAR_E_SHAPE,
                  "masked_fill of %s with a mask %s: it does not broadcast to "
                  "that",
                  oari_shape_text(a->at.shape).text,
                  oari_shape_text(mask->at.shape).text);
        return NULL;
    }
    return fill_masked(tape, a, mask, value, &masked_fill_op);
}

/* ---- tril and triu ------------------------------------------------------- */

static oar_tensor *keep_triangle(oar_tape *tape, oar_tensor *a,
                                 int64_t diagonal, const oari_op_class *op)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *mask, *out;
    oari_array outside;
    int last;

    if (oari_check_inputs(op->name, tape, 1, &a) != OAR_OK)
        return NULL;
    last = a->at.shape.ndim - 1;
    if (last < 1) {
        oari_fail(OAR_E_SHAPE, "%s of %s: it needs two dims", op->name,
                  oari_shape_text(a->at.shape).text);
        return NULL;
    }
    mask = oari_tensor_make_on(
        pool, oari_device_of(a), OAR_BOOL,
        OAR_SHAPE(a->at.shape.dim[last - 1], a->at.shape.dim[last]));
    if (mask == NULL)
        return NULL;
    outside = oari_array_of(mask);
    out = OARI_KERNEL(&outside, outside_triangle, &outside, op == &triu_op,
                      diagonal) == OAR_OK
              ? fill_masked(tape, a, mask, 0, op)
              : NULL;
    oari_tensor_drop(pool, mask);
    return out;
}

oar_tensor *oar_tril(oar_tape *tape, oar_tensor *a, int64_t diagonal)
{
    return keep_triangle(tape, a, diagonal, &tril_op);
}

oar_tensor *oar_triu(oar_tape *tape, oar_tensor *a, int64_t diagonal)
{
    return keep_triangle(tape, a, diagonal, &triu_op);
}
