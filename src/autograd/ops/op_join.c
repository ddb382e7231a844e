/* SPDX-License-Identifier: Apache-2.0 */
/* op_join: several tensors side by side in one, and casts.
 *
 * A node has a few inputs, a join any number. So a join is a chain of nodes
 * with the same result: each has two of the inputs, and the node before it as
 * the third, to which the gradient goes on as it is, in the same memory. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/dtype.h"
#include "base/status.h"
#include "tensor/kernel_table.h"

enum { PER_NODE = 2, BEFORE = 2 };

static oar_status join_back(oari_node *node, int i, const oari_array *to,
                            int add)
{
    int dim = node->extra.join.dim;
    oari_array grad = oari_array_of(node->grad);
    int64_t length = 1;

    if (i != BEFORE) {
        if (!node->extra.join.stacked)
            length = to->at.shape.dim[dim];
        grad.at =
            oari_layout_narrow(grad.at, dim, node->extra.join.start[i], length);
        if (node->extra.join.stacked)
            grad.at = oari_layout_drop(grad.at, dim);
    }
    return OARI_KERNEL(to, scale, to, add, &grad, 1);
}

static const oari_op_class cat_op = { .name = "cat",
                                      .backward = join_back,
                                      .in_place = 1 };
static const oari_op_class stack_op = { .name = "stack",
                                        .backward = join_back,
                                        .in_place = 1 };

/* ---- checks -------------------------------------------------------------- */

static oar_status check_alike(const oari_op_class *op, const oar_tensor *a,
                              const oar_tensor *b, int dim)
{
    int fits = a->at.shape.ndim == b->at.shape.ndim;

    OARI_TRY(oari_check_same_dtype(op->name, a, b));
    for (int i = 0; fits && i < a->at.shape.ndim; i++)
        fits = i == dim || a->at.shape.dim[i] == b->at.shape.dim[i];
    if (fits)
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE, "%s of %s and %s: the shapes differ",
                     op->name, oari_shape_text(a->at.shape).text,
                     oari_shape_text(b->at.shape).text);
}

static oar_status check_join(const oari_op_class *op, oar_tape *tape, int count,
                             oar_tensor *const *a)
{
    if (count > 0 && a != NULL)
        return oari_check_inputs(op->name, tape, count, a);
    return oari_fail(OAR_E_ARG, "%s of %d tensors", op->name, count);
}

/* ---- joining ------------------------------------------------------------- */

/* Where element 0 of a lies in the result, and how much of dim it takes. */
static int64_t length_of(const oari_op_class *op, const oar_tensor *a, int dim)
{
    return op == &stack_op ? 1 : a->at.shape.dim[dim];
}

/* Records out, whose reference this takes, as the end of a chain. */
static oar_tensor *emit_chain(oar_tape *tape, oar_tensor *out,
                              const oari_op_class *op, int count,
                              oar_tensor *const *a, int dim)
{
    oari_node_record recipe = { .op = op, .inputs = PER_NODE + 1 };
    int64_t start = 0;

    recipe.extra.join.dim = dim;
    recipe.extra.join.stacked = op == &stack_op;
    for (int i = 0; i < count; i += PER_NODE) {
        oar_tensor *link = out;

        for (int k = 0; k < PER_NODE; k++) {
            recipe.input[k] = i + k < count ? a[i + k] : NULL;
            recipe.extra.join.start[k] = start;
            if (i + k < count)
                start += length_of(op, a[i + k], dim);
        }
        if (i + PER_NODE < count)
            link = oari_tensor_over(&tape->pool, out->storage, out->dtype,
                                    &out->at);
        link = oari_emit(tape, link, &recipe);
        if (link == NULL && i + PER_NODE < count)
            oari_tensor_drop(&tape->pool, out);
        if (link == NULL)
            return NULL;
        recipe.input[BEFORE] = link;
    }
    return out;
}

static oar_tensor *join_tensors(oar_tape *tape, const oari_op_class *op,
                                int count, oar_tensor *const *a, int dim,
                                oar_shape shape)
{
    oar_tensor *out = oari_tensor_make_on(
        oari_tape_pool(tape), oari_device_of(a[0]), a[0]->dtype, shape);
    int wanted = 0;
    int64_t start = 0;

    if (out == NULL)
        return NULL;
    for (int i = 0; i < count; i++) {
        int64_t length = length_of(op, a[i], dim);
        oari_array to = oari_array_of(out), from = oari_array_of(a[i]);

        to.at = oari_layout_narrow(to.at, dim, start, length);
        if (op == &stack_op)
            to.at = oari_layout_drop(to.at, dim);
        if (OARI_KERNEL(&to, copy, &to, &from) != OAR_OK)
            return oari_abandon(tape, out);
        start += length;
    }
    for (int i = 0; i < count; i++)
        wanted |= oari_grad_wanted(tape, a[i]);
    if (!wanted)
        return oari_keep(tape, out);
    return emit_chain(tape, out, op, count, a, dim);
}

oar_tensor *oar_cat(oar_tape *tape, int count, oar_tensor *const *a, int dim)
{
    int asked = dim;
    oar_shape shape;

    if (check_join(&cat_op, tape, count, a) != OAR_OK)
        return NULL;
    shape = a[0]->at.shape;
    if (!oari_shape_dim(shape, &dim)) {
        oari_fail(OAR_E_SHAPE, "cat along dim %d of %s: no such dim", asked,
                  oari_shape_text(shape).text);
        return NULL;
    }
    for (int i = 1; i < count; i++) {
        if (check_alike(&cat_op, a[0], a[i], dim) != OAR_OK)
            return NULL;
        shape.dim[dim] += a[i]->at.shape.dim[dim];
    }
    return join_tensors(tape, &cat_op, count, a, dim, shape);
}

oar_tensor *oar_stack(oar_tape *tape, int count, oar_tensor *const *a, int dim)
{
    int asked = dim;
    oari_layout at;

    if (check_join(&stack_op, tape, count, a) != OAR_OK)
        return NULL;
    dim += dim < 0 ? a[0]->at.shape.ndim + 1 : 0;
    if (dim < 0 || dim > a[0]->at.shape.ndim ||
        a[0]->at.shape.ndim == OAR_MAX_DIMS) {
        oari_fail(OAR_E_SHAPE, "stack along dim %d of %s: no such dim", asked,
                  oari_shape_text(a[0]->at.shape).text);
        return NULL;
    }
    for (int i = 1; i < count; i++)
        if (check_alike(&stack_op, a[0], a[i], -1) != OAR_OK)
            return NULL;
    at = oari_layout_insert(a[0]->at, dim);
    at.shape.dim[dim] = count;
    return join_tensors(tape, &stack_op, count, a, dim, at.shape);
}

/* ---- cast ---------------------------------------------------------------- */

static oar_status cast_back(oari_node *node, int i, const oari_array *to,
                            int add)
{
    oari_pool *pool = &node->tape->pool;
    oari_array grad = oari_array_of(node->grad), same;
    oar_tensor *scratch;
    oar_status status;

    if (!add) {
        return OARI_KERNEL(to, copy, to, &grad);
    }
    scratch = oari_tensor_make_on(pool, to->device, to->dtype, to->at.shape);
    if (scratch == NULL)
        return OAR_E_NOMEM;
    same = oari_array_of(scratch);
    status = OARI_KERNEL(&same, copy, &same, &grad);
    if (status == OAR_OK)
        status = OARI_KERNEL(to, scale, to, 1, &same, 1);
    oari_tensor_drop(pool, scratch);
    return status;
}

static const oari_op_class cast_op = { .name = "cast", .backward = cast_back };

oar_tensor *oar_cast(oar_tape *tape, oar_tensor *a, oar_dtype dtype)
{
    oar_tensor *out;
    oari_array to, from;

    if (oari_check_inputs("cast", tape, 1, &a) != OAR_OK ||
        oari_check_dtype("cast", dtype) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(oari_tape_pool(tape), oari_device_of(a), dtype,
                              a->at.shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    from = oari_array_of(a);
    if (OARI_KERNEL(&to, copy, &to, &from) != OAR_OK)
        return oari_abandon(tape, out);
    if (!oari_dtype_is_float(dtype))
        return oari_keep(tape, out);
    return oari_emit(
        tape, out,
        &(oari_node_record){ .op = &cast_op, .inputs = 1, .input = { a } });
}
