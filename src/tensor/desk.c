/* SPDX-License-Identifier: Apache-2.0 */
/* desk: scratch copies around a kernel, from a pool. */
#include "tensor/desk.h"

static int is_plain(const oari_array *a)
{
    return a->dtype == oari_work_dtype(a->dtype) && oari_layout_is_rows(&a->at);
}

/* A sheet with scratch of this dtype and shape. On failure the desk says so and
 * the sheet has no data. */
static oari_sheet *new_sheet(oari_desk *desk, oar_dtype dtype, oar_shape shape)
{
    oari_sheet *s = &desk->sheet[desk->count++];

    *s = (oari_sheet){ .plain = { NULL, dtype, oari_layout_rows(shape) } };
    if (desk->status != OAR_OK)
        return s;
    s->scratch = oari_tensor_make(desk->pool, dtype, shape);
    if (s->scratch == NULL)
        desk->status = OAR_E_NOMEM;
    else
        s->plain = oari_array_of(s->scratch);
    return s;
}

static oari_sheet *same_sheet(oari_desk *desk, const oari_array *a)
{
    oari_sheet *s = &desk->sheet[desk->count++];

    *s = (oari_sheet){ .plain = *a };
    return s;
}

const oari_array *oari_desk_in(oari_desk *desk, const oari_array *a)
{
    oari_sheet *s;

    if (a == NULL)
        return NULL;
    if (is_plain(a))
        return &same_sheet(desk, a)->plain;
    s = new_sheet(desk, oari_work_dtype(a->dtype), a->at.shape);
    if (s->scratch != NULL)
        oari_copy(&s->plain, a);
    return &s->plain;
}

const oari_array *oari_desk_tensor(oari_desk *desk, const oar_tensor *a)
{
    oari_array array;

    if (a == NULL)
        return NULL;
    array = oari_array_of(a);
    return oari_desk_in(desk, &array);
}

const oari_array *oari_desk_out(oari_desk *desk, const oari_array *to, int add)
{
    oari_sheet *s;

    if (to == NULL)
        return NULL;
    if (is_plain(to))
        return &same_sheet(desk, to)->plain;
    s = new_sheet(desk, oari_work_dtype(to->dtype), to->at.shape);
    s->to = to;
    if (s->scratch != NULL && add)
        oari_copy(&s->plain, to);
    return &s->plain;
}

void *oari_desk_scratch(oari_desk *desk, oar_dtype dtype, int64_t count)
{
    oari_sheet *s = new_sheet(desk, dtype, OAR_SHAPE(count));

    return s->plain.data;
}

oar_status oari_desk_clear(oari_desk *desk)
{
    for (int i = 0; i < desk->count; i++) {
        oari_sheet *s = &desk->sheet[i];

        if (s->to != NULL && desk->status == OAR_OK)
            oari_copy(s->to, &s->plain);
        oari_tensor_drop(desk->pool, s->scratch);
    }
    desk->count = 0;
    return desk->status;
}
