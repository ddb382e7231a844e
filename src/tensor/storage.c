/* SPDX-License-Identifier: Apache-2.0 */
/* storage: counted memory whose data can go and come back.
 *
 * Tensors hold references to the storage, never to its data, so views and saved
 * tensors stay valid while the data is away. The count is atomic; everything
 * else belongs to one thread at a time. */
#include "tensor/storage.h"

#include "base/alloc.h"
#include "base/status.h"
#include "tensor/tensor.h"

static oar_status take_fresh_memory(oar_storage *s)
{
    OARI_TRY(oari_device_alloc(s->device, s->kind, s->capacity, &s->data));
    s->attached = 1;
    s->external = 0;
    return OAR_OK;
}

static oar_status make_storage(oar_device device, size_t bytes, size_t capacity,
                               oari_memory_kind kind, oar_storage **storage)
{
    oar_storage *s = oari_alloc(1, sizeof *s);
    oar_status status;

    if (s == NULL)
        return OAR_E_NOMEM;
    atomic_init(&s->refs, 1);
    s->bytes = bytes;
    s->capacity = capacity;
    s->kind = kind;
    s->device = device;
    status = take_fresh_memory(s);
    if (status != OAR_OK) {
        oari_free(s);
        return status;
    }
    *storage = s;
    return OAR_OK;
}

oar_status oari_storage_make(size_t bytes, size_t capacity,
                             oari_memory_kind kind, oar_storage **storage)
{
    return make_storage((oar_device){ OAR_CPU, 0 }, bytes, capacity, kind,
                        storage);
}

oar_status oari_storage_make_on(oar_device device, size_t bytes,
                                oar_storage **storage)
{
    return make_storage(device, bytes, bytes, OARI_PRIVATE, storage);
}

oar_status oar_storage_create_on(oar_device device, size_t bytes,
                                 oar_storage **storage)
{
    if (storage == NULL)
        return oari_fail(OAR_E_ARG, "storage_create_on: nowhere to give it");
    return oari_storage_make_on(device, bytes, storage);
}

oar_status oari_storage_over(void *data, size_t bytes, void (*drop)(void *arg),
                             void *arg, oar_storage **storage)
{
    oar_storage *s = oari_alloc(1, sizeof *s);

    if (s == NULL)
        return OAR_E_NOMEM;
    atomic_init(&s->refs, 1);
    s->bytes = s->capacity = bytes;
    s->data = data;
    s->attached = s->external = 1;
    s->drop = drop;
    s->drop_arg = arg;
    *storage = s;
    return OAR_OK;
}

oar_status oar_storage_create(size_t bytes, int shared, oar_storage **storage)
{
    if (storage == NULL)
        return oari_fail(OAR_E_ARG, "storage_create: nowhere to give it");
    return oari_storage_make(bytes, bytes, shared ? OARI_SHARED : OARI_PRIVATE,
                             storage);
}

oar_storage *oar_storage_retain(oar_storage *storage)
{
    if (storage != NULL)
        atomic_fetch_add_explicit(&storage->refs, 1, memory_order_relaxed);
    return storage;
}

static void give_up_memory(oar_storage *s)
{
    if (!s->attached)
        return;
    if (!s->external)
        oari_device_free(s->device, s->kind, s->data);
    else if (s->drop != NULL)
        s->drop(s->drop_arg);
    s->data = NULL;
    s->attached = 0;
    s->read_only = 0;
}

void oar_storage_release(oar_storage *storage)
{
    if (storage == NULL ||
        atomic_fetch_sub_explicit(&storage->refs, 1, memory_order_acq_rel) > 1)
        return;
    give_up_memory(storage);
    oari_free(storage);
}

size_t oar_storage_bytes(const oar_storage *storage)
{
    return storage != NULL ? storage->bytes : 0;
}

const void *oar_storage_const_data(const oar_storage *storage)
{
    return storage != NULL && storage->attached ? storage->data : NULL;
}

void *oar_storage_data(const oar_storage *storage)
{
    if (storage == NULL || !storage->attached)
        return NULL;
    if (!storage->read_only)
        return storage->data;
    oari_fail(OAR_E_STATE,
              "data of a storage of %zu bytes that can only be "
              "read",
              storage->bytes);
    return NULL;
}

oar_status oar_storage_detach(oar_storage *storage)
{
    if (storage == NULL)
        return oari_null("storage_detach");
    give_up_memory(storage);
    return OAR_OK;
}

oar_status oar_storage_attach(oar_storage *storage, void *data,
                              void (*drop)(void *arg), void *arg)
{
    if (storage == NULL)
        return oari_null("storage_attach");
    if (storage->attached)
        return oari_fail(OAR_E_STATE,
                         "storage of %zu bytes has its data: detach it first",
                         storage->bytes);
    if (data == NULL)
        return take_fresh_memory(storage);
    storage->data = data;
    storage->drop = drop;
    storage->drop_arg = arg;
    storage->external = 1;
    storage->attached = 1;
    return OAR_OK;
}
