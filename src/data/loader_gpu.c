/* SPDX-License-Identifier: Apache-2.0 */
/* loader_gpu: sends batches to a GPU. Memory is made once for each slot, and
 * again if a batch has another shape or the caller has kept a tensor. */
#include "data/loader_gpu.h"

#include <string.h>

#include <oarsong/device.h>

#include "base/alloc.h"
#include "base/status.h"
#include "data/dataset.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

typedef struct gpu_slot {
    oar_tensor *field[OARI_DATASET_FIELDS];
    void *pinned[OARI_DATASET_FIELDS];
    size_t room[OARI_DATASET_FIELDS]; /* bytes of pinned memory */
    void *copied, *used;              /* events */
} gpu_slot;

struct oari_loader_gpu {
    oar_device device;
    void *stream;
    int slots, fields;
    gpu_slot *slot;
};

static const oar_device cpu = { OAR_CPU, 0 };

oar_status oari_loader_gpu_open(oar_device device, int slots, int fields,
                                oari_loader_gpu **gpu)
{
    oari_loader_gpu *made = oari_alloc(1, sizeof *made);
    oar_status status = OAR_E_NOMEM;

    if (made == NULL)
        return OAR_E_NOMEM;
    made->device = device;
    made->fields = fields;
    made->slot = oari_alloc((size_t)slots, sizeof *made->slot);
    if (made->slot != NULL) {
        made->slots = slots;
        status = oar_stream_create(device, 0, &made->stream);
    }
    for (int i = 0; i < made->slots && status == OAR_OK; i++) {
        status = oar_event_create(device, 0, &made->slot[i].copied);
        if (status == OAR_OK)
            status = oar_event_create(device, 0, &made->slot[i].used);
    }
    if (status != OAR_OK) {
        oari_loader_gpu_close(made);
        return status;
    }
    *gpu = made;
    return OAR_OK;
}

void oari_loader_gpu_close(oari_loader_gpu *gpu)
{
    if (gpu == NULL)
        return;
    if (gpu->stream != NULL)
        oar_stream_synchronize(gpu->device, gpu->stream);
    for (int i = 0; i < gpu->slots; i++) {
        gpu_slot *s = &gpu->slot[i];

        for (int k = 0; k < gpu->fields; k++) {
            oar_tensor_release(s->field[k]);
            oar_pinned_free(s->pinned[k]);
        }
        if (s->copied != NULL)
            oar_event_destroy(gpu->device, s->copied);
        if (s->used != NULL)
            oar_event_destroy(gpu->device, s->used);
    }
    if (gpu->stream != NULL)
        oar_stream_destroy(gpu->device, gpu->stream);
    oari_free(gpu->slot);
    oari_free(gpu);
}

/* ---- the maker ----------------------------------------------------------- */

/* Whether the tensor of the batch before can take this one: nobody else has it
 * or a view of it. */
static int suits(const oar_tensor *there, const oar_tensor *here)
{
    return there != NULL && there->dtype == here->dtype &&
           oari_shape_equal(there->at.shape, here->at.shape) &&
           atomic_load(&there->refs) == 1 &&
           atomic_load(&there->storage->refs) == 1;
}

static oar_status make_room(oari_loader_gpu *gpu, gpu_slot *s, int k,
                            const oar_tensor *here, size_t bytes)
{
    if (bytes > s->room[k]) {
        oar_pinned_free(s->pinned[k]);
        s->pinned[k] = NULL;
        s->room[k] = 0;
        OARI_TRY(oar_pinned_alloc(bytes, &s->pinned[k]));
        s->room[k] = bytes;
    }
    if (suits(s->field[k], here))
        return OAR_OK;
    oar_tensor_release(s->field[k]);
    s->field[k] = oar_empty_on(NULL, gpu->device, here->dtype, here->at.shape);
    return s->field[k] != NULL ? OAR_OK : oar_last_error()->status;
}

static oar_status send_field(oari_loader_gpu *gpu, gpu_slot *s, int k,
                             oar_tensor *here)
{
    size_t bytes = (size_t)here->count * oar_dtype_size(here->dtype);

    OARI_TRY(make_room(gpu, s, k, here, bytes));
    if (bytes == 0)
        return OAR_OK;
    memcpy(s->pinned[k], oar_tensor_const_data(here), bytes);
    return oar_device_copy(oar_tensor_data(s->field[k]), gpu->device,
                           s->pinned[k], cpu, bytes, gpu->stream);
}

oar_status oari_loader_gpu_send(oari_loader_gpu *gpu, int slot,
                                oar_tensor *const *field)
{
    void *before = oar_stream_current(gpu->device);
    gpu_slot *s = &gpu->slot[slot];
    oar_status status;

    OARI_TRY(oar_event_synchronize(gpu->device, s->copied)); /* pinned memory */
    OARI_TRY(oar_stream_wait(gpu->device, gpu->stream, s->used));
    OARI_TRY(oar_stream_set_current(gpu->device, gpu->stream));
    status = OAR_OK;
    for (int k = 0; k < gpu->fields && status == OAR_OK; k++)
        status = send_field(gpu, s, k, field[k]);
    oar_stream_set_current(gpu->device, before);
    return status == OAR_OK
               ? oar_event_record(gpu->device, s->copied, gpu->stream)
               : status;
}

/* ---- the caller ---------------------------------------------------------- */

oar_status oari_loader_gpu_take(oari_loader_gpu *gpu, int slot,
                                oar_tensor **field)
{
    const gpu_slot *s = &gpu->slot[slot];

    OARI_TRY(oar_stream_wait(gpu->device, oar_stream_current(gpu->device),
                             s->copied));
    memcpy(field, s->field, (size_t)gpu->fields * sizeof *field);
    return OAR_OK;
}

oar_status oari_loader_gpu_give_back(oari_loader_gpu *gpu, int slot)
{
    return oar_event_record(gpu->device, gpu->slot[slot].used,
                            oar_stream_current(gpu->device));
}
