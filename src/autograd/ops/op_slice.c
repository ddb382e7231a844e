/* SPDX-License-Identifier: Apache-2.0 */
/* op_slice: parts of a tensor, as views. The gradient of a part is that of the
 * whole there, and zero elsewhere. */
#include <oarsong/ops.h>

#include "autograd/ops/picked.h"
#include "base/status.h"
#include "tensor/kernel_table.h"

static oar_status slice_back(oari_node *node, int i, const oari_array *to,
                             int add)
{
    int dim = node->extra.slice.dim;
    oari_array grad = oari_array_of(node->grad), part = *to;

    part.at =
        oari_layout_slice(to->at, dim, node->extra.slice.start,
                          node->extra.slice.length, node->extra.slice.step);
    if (grad.at.shape.ndim < part.at.shape.ndim)
        part.at = oari_layout_drop(part.at, dim);
    if (!add)
        OARI_TRY(OARI_KERNEL(to, fill, to, 0));
    return OARI_KERNEL(&part, scale, &part, add, &grad, 1);
}

static const oari_op_class narrow_op = { .name = "narrow",
                                         .backward = slice_back };
static const oari_op_class slice_op = { .name = "slice",
                                        .backward = slice_back };
static const oari_op_class select_op = { .name = "select",
                                         .backward = slice_back };

/* The part, recorded; select drops the dim. */
static oar_tensor *part_of(oar_tape *tape, oar_tensor *a,
                           const oari_op_class *op, int dim, int64_t start,
                           int64_t length, int64_t step)
{
    oari_layout at = oari_layout_slice(a->at, dim, start, length, step);
    oar_tensor *out;

    if (op == &select_op)
        at = oari_layout_drop(at, dim);
    out = oari_tensor_over(oari_tape_pool(tape), a->storage, a->dtype, &at);
    return oari_emit(tape, out,
                     &(oari_node_record){
                         .op = op,
                         .inputs = 1,
                         .input = { a },
                         .extra = { .slice = { dim, start, length, step } } });
}

oar_tensor *oar_narrow(oar_tape *tape, oar_tensor *a, int dim, int64_t start,
                       int64_t length)
{
    if (oari_check_dim("narrow", tape, a, &dim) != OAR_OK)
        return NULL;
    if (start < 0 || length < 0 || start > a->at.shape.dim[dim] ||
        length > a->at.shape.dim[dim] - start) {
        oari_fail(OAR_E_SHAPE,
                  "narrow of dim %d of %s to %lld elements from %lld on: it "
                  "does not have them",
                  dim, oari_shape_text(a->at.shape).text, (long long)length,
                  (long long)start);
        return NULL;
    }
    return part_of(tape, a, &narrow_op, dim, start, length, 1);
}

/* Returns a place that counts from the end if it is negative, cut to the size.
 */
static int64_t clamp_place(int64_t place, int64_t size)
{
    if (place < 0)
        place = place < -size ? 0 : place + size;
    return place > size ? size : place;
}

oar_tensor *oar_slice(oar_tape *tape, oar_tensor *a, int dim, int64_t start,
                      int64_t stop, int64_t step)
{
    int64_t length;

    if (oari_check_dim("slice", tape, a, &dim) != OAR_OK)
        return NULL;
    if (step < 1) {
        oari_fail(OAR_E_ARG, "slice of dim %d of %s in steps of %lld", dim,
                  oari_shape_text(a->at.shape).text, (long long)step);
        return NULL;
    }
    start = clamp_place(start, a->at.shape.dim[dim]);
    stop = clamp_place(stop, a->at.shape.dim[dim]);
    length = stop > start ? (stop - start - 1) / step + 1 : 0;
    if (length <= 1) /* a step that is never taken must not overflow */
        step = 1;
    return part_of(tape, a, &slice_op, dim, start, length, step);
}

oar_tensor *oar_select(oar_tape *tape, oar_tensor *a, int dim, int64_t index)
{
    int64_t size, at;

    if (oari_check_dim("select", tape, a, &dim) != OAR_OK)
        return NULL;
    size = a->at.shape.dim[dim];
    at = index < 0 && index >= -size ? index + size : index;
    if (at < 0 || at >= size) {
        oari_fail(OAR_E_ARG, "select of %lld in dim %d of %s: no such place",
                  (long long)index, dim, oari_shape_text(a->at.shape).text);
        return NULL;
    }
    return part_of(tape, a, &select_op, dim, at, 1, 1);
}

/* ---- several parts ------------------------------------------------------- */

/* Gives views of `pieces` parts of dim, whose sizes are `size`; NULL: nearly
 * equal ones. */
static oar_status split_dim(oar_tape *tape, oar_tensor *a, int dim, int pieces,
                            const int64_t *size, oar_tensor **piece)
{
    int64_t whole = a->at.shape.dim[dim], start = 0;

    for (int i = 0; i < pieces; i++) {
        int64_t length =
            size != NULL ? size[i] : whole / pieces + (i < whole % pieces);

        piece[i] = part_of(tape, a, &narrow_op, dim, start, length, 1);
        if (piece[i] == NULL) {
            for (; i > 0; piece[--i] = NULL)
                if (tape == NULL)
                    oar_tensor_release(piece[i - 1]);
            return OAR_E_NOMEM;
        }
        start += length;
    }
    return OAR_OK;
}

/* Whether the sizes are those of pieces that make up the dim. */
static oar_status check_sizes(const oar_tensor *a, int dim, int pieces,
                              const int64_t *size)
{
    int64_t left = a->at.shape.dim[dim];

    for (int i = 0; i < pieces; i++) {
        if (size[i] < 0 || size[i] > left)
            return oari_fail(OAR_E_SHAPE,
                             "split of dim %d of %s: no %lld elements for "
                             "piece %d",
                             dim, oari_shape_text(a->at.shape).text,
                             (long long)size[i], i);
        left -= size[i];
    }
    if (left == 0)
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE,
                     "split of dim %d of %s into %d pieces: %lld elements are "
                     "left over",
                     dim, oari_shape_text(a->at.shape).text, pieces,
                     (long long)left);
}

oar_status oar_tensor_split(oar_tape *tape, oar_tensor *a, int dim, int pieces,
                            const int64_t *size, oar_tensor **piece)
{
    OARI_TRY(oari_check_dim("split", tape, a, &dim));
    if (pieces < 1 || size == NULL || piece == NULL)
        return oari_fail(OAR_E_ARG, "split of %s into %d pieces: %s",
                         oari_shape_text(a->at.shape).text, pieces,
                         pieces < 1     ? "at least one"
                         : size == NULL ? "no sizes"
                                        : "nowhere to give them");
    OARI_TRY(check_sizes(a, dim, pieces, size));
    return split_dim(tape, a, dim, pieces, size, piece);
}

oar_status oar_chunk(oar_tape *tape, oar_tensor *a, int dim, int pieces,
                     oar_tensor **piece)
{
    OARI_TRY(oari_check_dim("chunk", tape, a, &dim));
    if (pieces < 1 || piece == NULL)
        return oari_fail(OAR_E_ARG, "chunk of %s into %d pieces: %s",
                         oari_shape_text(a->at.shape).text, pieces,
                         pieces < 1 ? "at least one" : "nowhere to give them");
    return split_dim(tape, a, dim, pieces, NULL, piece);
}
