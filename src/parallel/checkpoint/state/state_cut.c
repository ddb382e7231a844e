/* SPDX-License-Identifier: Apache-2.0 */
/* state_cut: arrays of which a tensor parallel model has parts, as boxes of the
 * whole. */
#include <oarsong/ops.h>

#include "base/status.h"
#include "parallel/checkpoint/state/state.h"

/* Returns elements first, .. of a tensor as one of this shape, of which the
 * caller owns a reference. */
static oar_tensor *view_elements(oar_tensor *tensor, int64_t first,
                                 oar_shape shape)
{
    oar_tensor *flat = oar_reshape(NULL, tensor, OAR_SHAPE(-1));
    oar_tensor *range, *view;
    int64_t count = 1;

    for (int d = 0; d < shape.ndim; d++)
        count *= shape.dim[d];
    range = oar_narrow(NULL, flat, 0, first, count);
    view = oar_reshape(NULL, range, shape);
    oar_tensor_release(range);
    oar_tensor_release(flat);
    return view;
}

static oar_status add_box(oar_state *state, const char *section,
                          const char *name, oar_tensor *tensor, int64_t first,
                          const oari_tp_cut *cut, const oari_tp_box *box)
{
    oar_place place = { .size = sizeof place, .whole = cut->whole };
    oar_tensor *view = view_elements(tensor, box->first - first, box->extent);
    oar_status status;

    if (view == NULL)
        return oar_last_error()->status;
    for (int d = 0; d < cut->whole.ndim; d++)
        place.offset[d] = box->offset[d];
    status = oari_state_add(state, section, name, view, &place, 0);
    oar_tensor_release(view);
    return status;
}

oar_status oari_state_add_cut(oar_state *state, const char *section,
                              const char *name, oar_tensor *tensor,
                              int64_t first, const oari_tp_cut *cut)
{
    int64_t next = 0;
    oari_tp_box box;

    while (oari_tp_next_box(cut, first, oar_tensor_count(tensor), &next, &box))
        OARI_TRY(add_box(state, section, name, tensor, first, cut, &box));
    return OAR_OK;
}

void oari_state_save_by_first(oar_state *state, const oar_module *module)
{
    state->item.data[state->item.count - 1].only_loaded =
        oari_tp_rank(module) > 0;
}
