/* SPDX-License-Identifier: Apache-2.0 */
/* op_index: elements picked by the numbers in another tensor. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/dtype.h"
#include "base/status.h"
#include "tensor/cpu/arith.h"
#include "device/cuda/index_error.h"
#include "tensor/cuda/order.h"
#include "tensor/operands.h"
#include "tensor/cpu/walk.h"

enum { INDEX }; /* what is saved */

/* ---- checks -------------------------------------------------------------- */

typedef struct range {
    int64_t least, most;
} range;

static void range_row(const oari_walk_row *row, void *arg)
{
    range *r = arg;
    const int64_t *number = row->data[0];

    for (int64_t i = 0; i < row->count; i++) {
        int64_t n = number[i * row->stride[0]];

        r->least = n < r->least ? n : r->least;
        r->most = n > r->most ? n : r->most;
    }
}

/* Checks the numbers of an index. On a GPU that is done there, and *checked is
 * a copy in which the bad ones are 0: the next call that waits has the error.
 * Else *checked is the index. Gives a reference. */
static oar_status check_range(oar_tape *tape, const char *name, int op,
                              const oar_tensor *a, int dim, oar_tensor *index,
                              oar_tensor **checked)
{
    oari_array numbers = oari_array_of(index), to;
    const oari_array *array = &numbers;
    range r = { 0, -1 };
    int64_t size = a->at.shape.dim[dim];

    if (numbers.device.kind != OAR_CPU && (size > 0 || index->count == 0)) {
        oari_pool *pool = oari_tape_pool(tape);

        *checked =
            oari_tensor_make_on(pool, numbers.device, OAR_I64, index->at.shape);
        if (*checked == NULL)
            return oar_last_error()->status;
        to = oari_array_of(*checked);
        *checked = oari_settle(
            pool, *checked, oari_cuda_checked_index(&to, &numbers, op, size));
        return *checked != NULL ? OAR_OK : oar_last_error()->status;
    }
    if (numbers.device.kind == OAR_CPU)
        oari_walk(index->at.shape, 1, &array, range_row, &r);
    if (r.least >= 0 && r.most < size && numbers.device.kind == OAR_CPU) {
        *checked = oar_tensor_retain(index);
        return OAR_OK;
    }
    return oari_fail(OAR_E_ARG,
                     "%s of dim %d of %s by index %s: it has %lld, which is no "
                     "place there",
                     name, dim, oari_shape_text(a->at.shape).text,
                     oari_shape_text(index->at.shape).text,
                     (long long)(r.least < 0 || size == 0 ? r.least : r.most));
}

static oar_status check_index(const char *name, const oar_tensor *a, int *dim,
                              const oar_tensor *index)
{
    int asked = *dim;

    if (index->dtype != OAR_I64)
        return oari_fail(OAR_E_DTYPE, "%s of %s by index %s %s: it is i64",
                         name, oari_shape_text(a->at.shape).text,
                         oar_dtype_name(index->dtype),
                         oari_shape_text(index->at.shape).text);
    if (oari_shape_dim(a->at.shape, dim))
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE, "%s of dim %d of %s by index %s: no such dim",
                     name, asked, oari_shape_text(a->at.shape).text,
                     oari_shape_text(index->at.shape).text);
}

/* ---- index_select -------------------------------------------------------- */

static oar_status pick_back(oari_node *node, int i, const oari_array *to,
                            int add);

static const oari_op_class index_select_op = { .name = "index_select",
                                               .backward = pick_back };
static const oari_op_class take_along_op = { .name = "take_along",
                                             .backward = pick_back };

/* Adds each gradient to the place that its element was picked from. */
static oar_status pick_back(oari_node *node, int i, const oari_array *to,
                            int add)
{
    oari_operands operands = { .pool = &node->tape->pool };
    oari_array index = oari_array_of(node->saved[INDEX]);
    const oari_array *grad = oari_operands_tensor(&operands, node->grad);
    const oari_array *y = oari_operands_out(&operands, to, add);

    if (operands.status == OAR_OK && !add)
        operands.status = OARI_KERNEL(y, fill, y, 0);
    if (operands.status == OAR_OK)
        operands.status = node->op == &index_select_op
                              ? OARI_KERNEL(y, index_add, y,
                                            node->extra.dims.d0, &index, grad)
                              : OARI_KERNEL(y, scatter_add, y,
                                            node->extra.dims.d0, &index, grad);
    return oari_operands_finish(&operands);
}

/* Takes the references to out, which may be NULL, and to the index. */
static oar_tensor *emit_pick(oar_tape *tape, const oari_op_class *op,
                             oar_tensor *out, oar_tensor *a, oar_tensor *index,
                             int dim)
{
    out = oari_emit(tape, out,
                    &(oari_node_record){ .op = op,
                                         .inputs = 1,
                                         .input = { a },
                                         .saved = { [INDEX] = index },
                                         .extra = { .dims = { dim, 0 } } });
    oari_tensor_drop(oari_tape_pool(tape), index);
    return out;
}

oar_tensor *oar_index_select(oar_tape *tape, oar_tensor *a, int dim,
                             oar_tensor *index)
{
    oar_tensor *out, *checked;
    oari_array to, from, numbers;
    oar_shape shape;

    if (oari_check_inputs("index_select", tape, 2,
                          (oar_tensor *[]){ a, index }) != OAR_OK ||
        check_index("index_select", a, &dim, index) != OAR_OK)
        return NULL;
    if (index->at.shape.ndim != 1) {
        oari_fail(OAR_E_SHAPE,
                  "index_select of %s by index %s: it needs one dim",
                  oari_shape_text(a->at.shape).text,
                  oari_shape_text(index->at.shape).text);
        return NULL;
    }
    if (check_range(tape, "index_select", OARI_INDEX_SELECT, a, dim, index,
                    &checked) != OAR_OK)
        return NULL;
    shape = a->at.shape;
    shape.dim[dim] = index->count;
    out = oari_tensor_make_on(oari_tape_pool(tape), oari_device_of(a), a->dtype,
                              shape);
    if (out != NULL) {
        to = oari_array_of(out);
        from = oari_array_of(a);
        numbers = oari_array_of(checked);
        out = oari_settle(
            oari_tape_pool(tape), out,
            OARI_KERNEL(&to, index_select, &to, &from, dim, &numbers));
    }
    return emit_pick(tape, &index_select_op, out, a, checked, dim);
}

/* ---- take_along ---------------------------------------------------------- */

/* Whether index lies within a, but for dim, where its numbers count. */
static oar_status check_within(const char *name, const oar_tensor *a, int *dim,
                               const oar_tensor *index)
{
    int fits = index->at.shape.ndim == a->at.shape.ndim;

    OARI_TRY(check_index(name, a, dim, index));
    for (int i = 0; fits && i < a->at.shape.ndim; i++)
        fits = i == *dim || index->at.shape.dim[i] <= a->at.shape.dim[i];
    if (!fits)
        return oari_fail(OAR_E_SHAPE,
                         "%s of dim %d of %s by index %s: it does not lie "
                         "within",
                         name, *dim, oari_shape_text(a->at.shape).text,
                         oari_shape_text(index->at.shape).text);
    return OAR_OK;
}

oar_tensor *oar_take_along(oar_tape *tape, oar_tensor *a, int dim,
                           oar_tensor *index)
{
    oar_tensor *out, *checked;
    oari_array to, from, numbers;

    if (oari_check_inputs("take_along", tape, 2,
                          (oar_tensor *[]){ a, index }) != OAR_OK ||
        check_within("take_along", a, &dim, index) != OAR_OK ||
        check_range(tape, "take_along", OARI_INDEX_GATHER, a, dim, index,
                    &checked) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(oari_tape_pool(tape), oari_device_of(a), a->dtype,
                              index->at.shape);
    if (out != NULL) {
        to = oari_array_of(out);
        from = oari_array_of(a);
        numbers = oari_array_of(checked);
        out = oari_settle(oari_tape_pool(tape), out,
                          OARI_KERNEL(&to, gather, &to, &from, dim, &numbers));
    }
    return emit_pick(tape, &take_along_op, out, a, checked, dim);
}

/* ---- scatter_add --------------------------------------------------------- */

enum { BASE, SOURCE };

/* What was added at a place has the gradient of that place. */
static oar_status scatter_add_back(oari_node *node, int i, const oari_array *to,
                                   int add)
{
    oari_pool *pool = &node->tape->pool;
    oari_array index = oari_array_of(node->saved[INDEX]);
    oari_array grad = oari_array_of(node->grad), picked;
    oar_tensor *scratch;
    oar_status status;

    if (i == BASE) {
        return OARI_KERNEL(to, scale, to, add, &grad, 1);
    }
    if (!add) {
        return OARI_KERNEL(to, gather, to, &grad, node->extra.dims.d0, &index);
    }
    scratch = oari_tensor_make_on(pool, to->device, to->dtype, to->at.shape);
    if (scratch == NULL)
        return OAR_E_NOMEM;
    picked = oari_array_of(scratch);
    status = OARI_KERNEL(&picked, gather, &picked, &grad, node->extra.dims.d0,
                         &index);
    if (status == OAR_OK)
        status = OARI_KERNEL(to, scale, to, 1, &picked, 1);
    oari_tensor_drop(pool, scratch);
    return status;
}

static const oari_op_class scatter_add_op = { .name = "scatter_add",
                                              .backward = scatter_add_back };

static oar_status check_scatter_add(oar_tape *tape, oar_tensor *a, int *dim,
                                    oar_tensor *index, oar_tensor *source)
{
    const char *name = "scatter_add";
    oar_tensor *in[] = { a, index, source };

    OARI_TRY(oari_check_inputs(name, tape, 3, in));
    OARI_TRY(oari_check_same_dtype(name, a, source));
    OARI_TRY(oari_check_number(name, a));
    if (!oari_shape_equal(index->at.shape, source->at.shape))
        return oari_fail(OAR_E_SHAPE,
                         "scatter_add to %s by index %s of %s: the last two "
                         "differ",
                         oari_shape_text(a->at.shape).text,
                         oari_shape_text(index->at.shape).text,
                         oari_shape_text(source->at.shape).text);
    return check_within(name, a, dim, index);
}

oar_tensor *oar_tensor_scatter_add(oar_tape *tape, oar_tensor *a, int dim,
                                   oar_tensor *index, oar_tensor *source)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *out, *checked;
    oari_operands operands = { .pool = pool };
    oari_array to, from, numbers, more;
    const oari_array *y = &to;
    const oari_array *s = &more;

    if (check_scatter_add(tape, a, &dim, index, source) != OAR_OK ||
        check_range(tape, "scatter_add", OARI_INDEX_SCATTER, a, dim, index,
                    &checked) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(pool, oari_device_of(a), a->dtype, a->at.shape);
    if (out == NULL) {
        oari_tensor_drop(pool, checked);
        return NULL;
    }
    /* out = a, with source added. Halves are added in f32 and rounded once. */
    to = oari_array_of(out);
    from = oari_array_of(a);
    numbers = oari_array_of(checked);
    more = oari_array_of(source);
    operands.status = OARI_KERNEL(&to, copy, &to, &from);
    if (oari_dtype_is_half(a->dtype)) {
        s = oari_operands_in(&operands, &more);
        y = oari_operands_out(&operands, &to, 1);
    }
    if (operands.status == OAR_OK)
        operands.status = OARI_KERNEL(y, scatter_add, y, dim, &numbers, s);
    out = oari_settle(pool, out, oari_operands_finish(&operands));
    out = oari_emit(
        tape, out,
        &(oari_node_record){ .op = &scatter_add_op,
                             .inputs = 2,
                             .input = { [BASE] = a, [SOURCE] = source },
                             .saved = { [INDEX] = checked },
                             .extra = { .dims = { dim, 0 } } });
    oari_tensor_drop(pool, checked);
    return out;
}
