/* SPDX-License-Identifier: Apache-2.0 */
/* arrays: the numbers of a state's items in host memory, row by row, in the
 * dtype that is saved. Most lie so already. */
#include "base/status.h"
#include "parallel/checkpoint/saving.h"

static size_t item_bytes(const oari_ckpt_saving *s, const oari_ckpt_item *item)
{
    return (size_t)oar_tensor_count(item->tensor) *
           oar_dtype_size(oari_ckpt_saved_dtype(s, item));
}

/* Returns whether an item's own memory is as it is saved. */
static int is_direct(const oari_ckpt_saving *s, const oari_ckpt_item *item)
{
    return oari_ckpt_saved_dtype(s, item) == oar_tensor_dtype(item->tensor) &&
           oar_tensor_is_contiguous(item->tensor) &&
           oar_tensor_device(item->tensor).kind == OAR_CPU;
}

static oar_status convert_item(const oari_ckpt_saving *s,
                               const oari_ckpt_item *item, void **numbers)
{
    size_t bytes = item_bytes(s, item);

    *numbers = oari_alloc_aligned(64, bytes > 0 ? bytes : 1);
    if (*numbers == NULL)
        return OAR_E_NOMEM;
    return oar_tensor_read(item->tensor, oari_ckpt_saved_dtype(s, item),
                           *numbers);
}

/* ---- arrays of a GPU ----------------------------------------------------- */

/* Lists the arrays of the first GPU that an item is on. Returns their bytes. */
static size_t list_fetched(const oari_ckpt_saving *s, const unsigned char *used,
                           oari_ckpt_gpu_array *array, oar_device *device)
{
    size_t bytes = 0;

    for (int64_t i = 0; i < s->items; i++) {
        const oari_ckpt_item *item = &s->state->item.data[i];
        oar_device on = oar_tensor_device(item->tensor);

        if (on.kind == OAR_CPU || (used != NULL && !used[i]))
            continue;
        if (device->kind == OAR_CPU)
            *device = on;
        if (on.index != device->index)
            continue;
        array[i] =
            (oari_ckpt_gpu_array){ .tensor = item->tensor,
                                   .dtype = oari_ckpt_saved_dtype(s, item) };
        bytes += item_bytes(s, item);
    }
    return bytes;
}

/* Without pinned memory for them they are read one by one. */
static oar_status fetch_arrays(oari_ckpt_saving *s, const unsigned char *used)
{
    size_t most = s->c->opts.staging_bytes, bytes;
    oari_ckpt_gpu_array *array =
        oari_alloc((size_t)s->items + 1, sizeof *array);
    oar_device device = { OAR_CPU, 0 };

    if (array == NULL)
        return OAR_E_NOMEM;
    bytes = list_fetched(s, used, array, &device);
    if (device.kind != OAR_CPU && (most == 0 || bytes <= most)) {
        if (oari_ckpt_gpu_copy_start(&s->c->gpu_copy, device, s->items,
                                     array) == OAR_OK)
            s->fetched = 1;
        else
            oar_clear_error();
        for (int64_t i = 0; i < s->items && s->fetched; i++)
            s->array[i] = array[i].array;
    }
    oari_free(array);
    return OAR_OK;
}

/* ---- all arrays ---------------------------------------------------------- */

/* Returns whether an item is converted, or copied, in the call. Another thread
 * does not know the stream that an array of a GPU is written on. */
static int is_at_once(const oari_ckpt_saving *s, const oari_ckpt_item *item,
                      int direct)
{
    if (s->fetched && s->opts.background)
        return 1;
    if (s->opts.lazy)
        return item->at_once || oar_tensor_device(item->tensor).kind != OAR_CPU;
    return !direct && !s->opts.background;
}

oar_status oari_ckpt_find_arrays(oari_ckpt_saving *s, const unsigned char *used)
{
    s->items = s->state->item.count;
    s->current = -1;
    s->copy = oari_alloc((size_t)s->items, sizeof *s->copy);
    s->array = oari_alloc((size_t)s->items, sizeof *s->array);
    if (s->copy == NULL || s->array == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(fetch_arrays(s, used));
    for (int64_t i = 0; i < s->items; i++) {
        const oari_ckpt_item *item = &s->state->item.data[i];
        int direct = is_direct(s, item);

        if (s->array[i] != NULL)
            continue;
        if (is_at_once(s, item, direct) && (used == NULL || used[i])) {
            OARI_TRY(convert_item(s, item, &s->copy[i]));
            s->array[i] = s->copy[i];
        } else if (direct) {
            s->array[i] = oar_tensor_const_data(item->tensor);
            if (s->array[i] == NULL && item_bytes(s, item) > 0)
                return oari_fail(OAR_E_STATE, "checkpoint: \"%.100s\" %s",
                                 item->name,
                                 oar_tensor_is_lazy(item->tensor)
                                     ? "is lazy: realize it first"
                                     : "has no data");
        }
    }
    return OAR_OK;
}

oar_status oari_ckpt_array(void *saving, int64_t item, const void **array)
{
    oari_ckpt_saving *s = saving;

    *array = s->array[item];
    if (*array != NULL)
        return OAR_OK;
    if (s->current != item) {
        oari_free(s->converted);
        s->converted = NULL;
        s->current = -1;
        OARI_TRY(convert_item(s, &s->state->item.data[item], &s->converted));
        s->current = item;
    }
    *array = s->converted;
    return OAR_OK;
}

void oari_ckpt_free_arrays(oari_ckpt_saving *s)
{
    for (int64_t i = 0; s->copy != NULL && i < s->items; i++)
        oari_free(s->copy[i]);
    oari_free(s->copy);
    oari_free(s->array);
    oari_free(s->converted);
    s->copy = NULL;
    s->array = NULL;
    s->converted = NULL;
    s->current = -1;
}
