/* SPDX-License-Identifier: Apache-2.0 */
/* tp_ops: moves of activations as operations on a tape. Each is recorded with
 * the group as its argument: in what dim a tensor is cut, backward sees by the
 * shapes of the two gradients. */
#include <oarsong/custom_op.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "base/call_site.h"
#include "base/dtype.h"
#include "base/status.h"
#include "parallel/tensor_parallel/tensor_parallel.h"

/* ---- backward ------------------------------------------------------------ */

/* Writes the gradient of the input, given that of the result. */
typedef oar_status (*grad_fn)(oar_group *group, const oar_tensor *grad,
                              oar_tensor *to);

static oar_status sum_grad(oar_group *group, const oar_tensor *grad,
                           oar_tensor *to)
{
    return oari_tp_move_all_reduce(group, 0, grad, to);
}

static oar_status pass_grad(oar_group *group, const oar_tensor *grad,
                            oar_tensor *to)
{
    return oar_tensor_copy(to, grad);
}

static oar_status reduce_scatter_grad(oar_group *group, const oar_tensor *grad,
                                      oar_tensor *to)
{
    oari_tp_layout l =
        oari_tp_layout_of(group, oar_tensor_shape(grad), oar_tensor_shape(to));

    return oari_tp_move_reduce_scatter(&l, grad, to);
}

static oar_status gather_grad(oar_group *group, const oar_tensor *grad,
                              oar_tensor *to)
{
    oari_tp_layout l =
        oari_tp_layout_of(group, oar_tensor_shape(to), oar_tensor_shape(grad));

    return oari_tp_move_gather(&l, grad, to);
}

static oar_status own_grad(oar_group *group, const oar_tensor *grad,
                           oar_tensor *to)
{
    oari_tp_layout l =
        oari_tp_layout_of(group, oar_tensor_shape(grad), oar_tensor_shape(to));

    return oari_tp_move_own(&l, grad, to);
}

/* Calls fn, by way of memory of its own if it is to be added. */
static oar_status write_grad(grad_fn fn, oar_group *group,
                             const oar_tensor *grad, oar_tensor *to, int add)
{
    oar_tape *tape;
    oar_tensor *term, *sum;
    oar_status status;

    if (!add)
        return fn(group, grad, to);
    OARI_TRY(oar_tape_create(&tape));
    term = oar_empty_on(tape, oar_tensor_device(to), oar_tensor_dtype(grad),
                        oar_tensor_shape(to));
    status = term != NULL ? fn(group, grad, term) : oar_last_error()->status;
    if (status == OAR_OK) {
        sum = oar_add(tape, to, term);
        status =
            sum != NULL ? oar_tensor_copy(to, sum) : oar_last_error()->status;
    }
    oar_tape_destroy(tape);
    return status;
}

/* A name, its function for gradients, and that as an operation's backward. */
#define TP_OP(op, fn)                                                     \
    static oar_status op##_back(void *arg, int i, const oar_tensor *grad, \
                                oar_tensor *to, int add)                  \
    {                                                                     \
        return write_grad(fn, arg, grad, to, add);                        \
    }                                                                     \
    static const oar_custom_op op##_op = { .size = sizeof op##_op,        \
                                           .name = "tp_" #op,             \
                                           .backward = op##_back }
TP_OP(copy, sum_grad);
TP_OP(all_reduce, pass_grad);
TP_OP(all_gather, reduce_scatter_grad);
TP_OP(reduce_scatter, gather_grad);
TP_OP(gather, own_grad);
TP_OP(scatter, gather_grad);

/* ---- forward ------------------------------------------------------------- */

/* Checks the input, and makes *dim count from the front; dim NULL: none. */
static oar_status check_input(const oar_custom_op *op, const oar_tensor *x,
                              const oar_group *group, int *dim)
{
    int ndim = oar_tensor_shape(x).ndim;

    if (group == NULL)
        return oari_fail(OAR_E_ARG, "%s: the group is NULL", op->name);
    if (!oari_dtype_is_float(oar_tensor_dtype(x)))
        return oari_fail(OAR_E_DTYPE, "%s of %s: only floats", op->name,
                         oar_dtype_name(oar_tensor_dtype(x)));
    if (dim == NULL)
        return OAR_OK;
    if (*dim < -ndim || *dim >= ndim)
        return oari_fail(OAR_E_ARG, "%s along dim %d of a tensor with %d dims",
                         op->name, *dim, ndim);
    *dim += *dim < 0 ? ndim : 0;
    return OAR_OK;
}

/* Calls move from x, row by row, to a new tensor of that shape, and records the
 * operation. */
typedef oar_status (*move_fn)(const oari_tp_layout *l, const oar_tensor *from,
                              oar_tensor *to);

static oar_tensor *move_new(oar_tape *tape, const oar_custom_op *op,
                            move_fn move, const oari_tp_layout *l,
                            oar_tensor *x, oar_shape shape)
{
    oar_tensor *rows = oar_contiguous(tape, x);
    oar_tensor *y =
        oar_empty_on(tape, oar_tensor_device(x), oar_tensor_dtype(x), shape);

    if (rows != NULL && y != NULL && move(l, rows, y) == OAR_OK) {
        y = oar_record_op(tape, op, l->group, 1, &rows, y);
    } else {
        if (tape == NULL)
            oar_tensor_release(y);
        y = NULL;
    }
    if (tape == NULL)
        oar_tensor_release(rows);
    return y;
}

/* Gathers parts along dim to a whole of that size. */
static oar_tensor *gather_parts(oar_tape *tape, const oar_custom_op *op,
                                oar_tensor *x, oar_group *group, int dim,
                                int64_t whole)
{
    oar_shape shape = oar_tensor_shape(x);
    oari_tp_layout l;
    int64_t own;

    if (x == NULL || check_input(op, x, group, &dim) != OAR_OK)
        return NULL;
    own =
        oar_tp_part(whole, oar_group_rank(group), oar_group_size(group), NULL);
    if (shape.dim[dim] != own || whole < 0) {
        oari_fail(OAR_E_SHAPE,
                  "%s along dim %d to %lld: the part of rank %d has %lld "
                  "there, not %lld",
                  op->name, dim, (long long)whole, oar_group_rank(group),
                  (long long)own, (long long)shape.dim[dim]);
        return NULL;
    }
    shape.dim[dim] = whole;
    l = oari_tp_layout_along(group, shape, dim);
    return move_new(tape, op, oari_tp_move_gather, &l, x, shape);
}

/* Makes this rank's part along dim. */
static oar_tensor *make_part(oar_tape *tape, const oar_custom_op *op,
                             move_fn move, oar_tensor *x, oar_group *group,
                             int dim, uint64_t key)
{
    oar_shape shape = oar_tensor_shape(x);
    oari_tp_layout l;

    if (x == NULL || check_input(op, x, group, &dim) != OAR_OK)
        return NULL;
    l = oari_tp_layout_along(group, shape, dim);
    l.key = key;
    shape.dim[dim] = oar_tp_part(shape.dim[dim], oar_group_rank(group),
                                 oar_group_size(group), NULL);
    return move_new(tape, op, move, &l, x, shape);
}

static oar_status sum_layout(const oari_tp_layout *l, const oar_tensor *from,
                             oar_tensor *to)
{
    return oari_tp_move_all_reduce(l->group, l->key, from, to);
}

oar_tensor *oar_tp_copy_at(const char *file, int line, oar_tape *tape,
                           oar_tensor *x, oar_group *group)
{
    OARI_CALLED_FROM(file, line);
    oar_tensor *view;
    int recording;

    if (x == NULL || check_input(&copy_op, x, group, NULL) != OAR_OK)
        return NULL;
    recording = oar_tape_record(tape, 0);
    view = oar_expand(tape, x, oar_tensor_shape(x));
    oar_tape_record(tape, recording);
    return oar_record_op(tape, &copy_op, group, 1, &x, view);
}

oar_tensor *oar_tp_all_reduce_at(const char *file, int line, oar_tape *tape,
                                 oar_tensor *x, oar_group *group)
{
    OARI_CALLED_FROM(file, line);
    oari_tp_layout l = { .group = group };

    if (x == NULL || check_input(&all_reduce_op, x, group, NULL) != OAR_OK)
        return NULL;
    return move_new(tape, &all_reduce_op, sum_layout, &l, x,
                    oar_tensor_shape(x));
}

/* The result is a view of x, whose memory has the sum then. */
oar_tensor *oari_tp_all_reduce_own(oar_tape *tape, oar_tensor *x,
                                   oar_group *group, uint64_t key)
{
    oar_tensor *view;
    int recording;

    if (x == NULL || oari_tp_move_all_reduce(group, key, x, x) != OAR_OK)
        return NULL;
    recording = oar_tape_record(tape, 0);
    view = oar_expand(tape, x, oar_tensor_shape(x));
    oar_tape_record(tape, recording);
    return oar_record_op(tape, &all_reduce_op, group, 1, &x, view);
}

oar_tensor *oar_tp_all_gather_at(const char *file, int line, oar_tape *tape,
                                 oar_tensor *x, oar_group *group, int dim,
                                 int64_t whole)
{
    OARI_CALLED_FROM(file, line);
    return gather_parts(tape, &all_gather_op, x, group, dim, whole);
}

oar_tensor *oar_tp_reduce_scatter_at(const char *file, int line, oar_tape *tape,
                                     oar_tensor *x, oar_group *group, int dim)
{
    OARI_CALLED_FROM(file, line);
    return make_part(tape, &reduce_scatter_op, oari_tp_move_reduce_scatter, x,
                     group, dim, 0);
}

oar_tensor *oari_tp_reduce_scatter_rows(oar_tape *tape, oar_tensor *x,
                                        oar_group *group, uint64_t key)
{
    return make_part(tape, &reduce_scatter_op, oari_tp_move_reduce_scatter, x,
                     group, 0, key);
}

oar_tensor *oar_tp_gather_at(const char *file, int line, oar_tape *tape,
                             oar_tensor *x, oar_group *group, int dim,
                             int64_t whole)
{
    OARI_CALLED_FROM(file, line);
    return gather_parts(tape, &gather_op, x, group, dim, whole);
}

oar_tensor *oar_tp_scatter_at(const char *file, int line, oar_tape *tape,
                              oar_tensor *x, oar_group *group, int dim)
{
    OARI_CALLED_FROM(file, line);
    return make_part(tape, &scatter_op, oari_tp_move_own, x, group, dim, 0);
}
