/* SPDX-License-Identifier: Apache-2.0 */
/* move_copy: copies of what two parts have in common. On the host these are
 * runs of bytes; on a GPU each box is a view of both sides and one kernel. */
#include <string.h>

#include <oarsong/ops.h>

#include "base/status.h"
#include "parallel/dtensor/move_run.h"

oari_place oari_place_of(const oar_tensor *tensor, const oar_span *span)
{
    oari_place place = { 0 };

    if (span->device.kind == OAR_CPU)
        place.data = span->data;
    else /* who reads from it does not write */
        memcpy(&place.tensor, &tensor, sizeof tensor);
    return place;
}

void oari_place_skip(oari_place *place, int64_t elements, size_t element)
{
    place->first += elements;
    if (place->tensor == NULL)
        place->data += (size_t)elements * element;
}

/* ---- on a GPU ------------------------------------------------------------ */

/* Gives up a view for the next one, made of it. */
static oar_tensor *next_view(oar_tensor *view, oar_tensor *made)
{
    oar_tensor_release(view);
    return made;
}

/* Returns the view of `what` in a box that lies in the tensor from element
 * `first` on. NULL on failure. */
static oar_tensor *view_box(oar_tensor *tensor, int64_t first,
                            const oari_box *box, const oari_box *what)
{
    oar_tensor *v =
        oar_reshape(NULL, tensor, OAR_SHAPE(oar_tensor_count(tensor)));
    oar_shape shape = { .ndim = box->ndim };

    for (int d = 0; d < box->ndim; d++)
        shape.dim[d] = box->extent[d];
    v = next_view(v, oar_narrow(NULL, v, 0, first, oari_box_count(box)));
    v = next_view(v, oar_reshape(NULL, v, shape));
    for (int d = 0; d < box->ndim && v != NULL; d++)
        if (what->extent[d] != box->extent[d])
            v = next_view(v, oar_narrow(NULL, v, d,
                                        what->offset[d] - box->offset[d],
                                        what->extent[d]));
    return v;
}

static oar_status copy_views(const oari_box *what, const oari_box *from,
                             const oari_box *to, const oari_place *from_at,
                             const oari_place *to_at)
{
    oar_tensor *a = view_box(from_at->tensor, from_at->first, from, what);
    oar_tensor *b = view_box(to_at->tensor, to_at->first, to, what);
    oar_status status = a != NULL && b != NULL ? oar_tensor_copy(b, a)
                                               : oar_last_error()->status;

    oar_tensor_release(a);
    oar_tensor_release(b);
    return status;
}

/* ---- both ---------------------------------------------------------------- */

/* Copies a box that lies in two boxes, which begin at these places. */
static oar_status copy_box(const oari_box *what, const oari_box *from,
                           const oari_box *to, size_t element,
                           const oari_place *from_at, const oari_place *to_at)
{
    if (to_at->tensor != NULL)
        return copy_views(what, from, to, from_at, to_at);
    oari_box_copy(what, from, to, element, from_at->data, to_at->data);
    return OAR_OK;
}

oar_status oari_copy_common(const oari_part *from, const oari_part *to,
                            size_t element, const oari_place *from_at,
                            const oari_place *to_at)
{
    oari_box a[OARI_FLAT_BOXES], b[OARI_FLAT_BOXES], both;
    int boxes_a = oari_part_boxes(from, a), boxes_b = oari_part_boxes(to, b);
    int64_t count = 0, at_a = 0;

    for (int i = 0; i < boxes_a; i++) {
        int64_t at_b = 0;

        for (int k = 0; k < boxes_b; k++) {
            if (oari_box_meet(&a[i], &b[k], &both)) {
                oari_place x = *from_at, y = *to_at;

                oari_place_skip(&x, x.packed ? count : at_a, element);
                oari_place_skip(&y, y.packed ? count : at_b, element);
                OARI_TRY(copy_box(&both, x.packed ? &both : &a[i],
                                  y.packed ? &both : &b[k], element, &x, &y));
                count += oari_box_count(&both);
            }
            at_b += oari_box_count(&b[k]);
        }
        at_a += oari_box_count(&a[i]);
    }
    return OAR_OK;
}
