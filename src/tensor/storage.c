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

static const oar_device cpu = { OAR_CPU, 0 };

/* Makes a storage without memory. */
static oar_storage *make_detached(oar_device device, size_t bytes,
                                  size_t capacity, oari_memory_kind kind)
{
    oar_storage *s = oari_alloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    atomic_init(&s->refs, 1);
    atomic_init(&s->exports, 0);
    s->bytes = bytes;
    s->capacity = capacity;
    s->kind = kind;
    s->device = device;
    return s;
}

static void end_laziness(oar_storage *s)
{
    oari_free(s->initializer);
    s->initializer = NULL;
}

static oar_status take_fresh_memory(oar_storage *s)
{
    OARI_TRY(oari_device_alloc(s->device, s->kind, s->capacity, &s->data));
    s->attached = 1;
    s->external = 0;
    end_laziness(s);
    return OAR_OK;
}

static void take_external_memory(oar_storage *s, void *data,
                                 void (*drop)(void *arg), void *arg)
{
    s->data = data;
    s->drop = drop;
    s->drop_arg = arg;
    s->attached = s->external = 1;
    end_laziness(s);
}

oar_status oari_storage_make(oar_device device, size_t bytes, size_t capacity,
                             oari_memory_kind kind, oar_storage **storage)
{
    oar_storage *s = make_detached(device, bytes, capacity, kind);
    oar_status status;

    if (s == NULL)
        return OAR_E_NOMEM;
    status = take_fresh_memory(s);
    if (status != OAR_OK) {
        oari_free(s);
        return status;
    }
    *storage = s;
    return OAR_OK;
}

oar_status oar_storage_create_on(oar_device device, size_t bytes,
                                 oar_storage **storage)
{
    if (storage == NULL)
        return oari_fail(OAR_E_ARG, "storage_create_on: nowhere to give it");
    return oari_storage_make(device, bytes, bytes, OARI_PRIVATE, storage);
}

oar_status oari_storage_over(void *data, size_t bytes, void (*drop)(void *arg),
                             void *arg, oar_storage **storage)
{
    oar_storage *s = make_detached(cpu, bytes, bytes, OARI_PRIVATE);

    if (s == NULL)
        return OAR_E_NOMEM;
    take_external_memory(s, data, drop, arg);
    *storage = s;
    return OAR_OK;
}

oar_status oar_storage_create(size_t bytes, int shared, oar_storage **storage)
{
    if (storage == NULL)
        return oari_fail(OAR_E_ARG, "storage_create: nowhere to give it");
    return oari_storage_make(cpu, bytes, bytes,
                             shared ? OARI_SHARED : OARI_PRIVATE, storage);
}

oar_status oar_storage_create_detached(size_t bytes, int shared,
                                       oar_storage **storage)
{
    oar_storage *s;

    if (storage == NULL)
        return oari_fail(OAR_E_ARG,
                         "storage_create_detached: nowhere to give it");
    s = make_detached(cpu, bytes, bytes, shared ? OARI_SHARED : OARI_PRIVATE);
    if (s == NULL)
        return OAR_E_NOMEM;
    *storage = s;
    return OAR_OK;
}

oar_status oar_storage_create_detached_on(oar_device device, size_t bytes,
                                          oar_storage **storage)
{
    oar_storage *s;

    if (storage == NULL)
        return oari_fail(OAR_E_ARG,
                         "storage_create_detached_on: nowhere to give it");
    s = make_detached(device, bytes, bytes, OARI_PRIVATE);
    if (s == NULL)
        return OAR_E_NOMEM;
    *storage = s;
    return OAR_OK;
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
    end_laziness(storage);
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
    if (atomic_load_explicit(&storage->exports, memory_order_acquire) > 0)
        return oari_fail(OAR_E_STATE,
                         "storage_detach of %zu bytes that a DLPack export "
                         "holds: its consumer has to give them back first",
                         storage->bytes);
    give_up_memory(storage);
    return OAR_OK;
}

static oar_status check_detached(const char *what, const oar_storage *storage)
{
    if (storage == NULL)
        return oari_null(what);
    if (!storage->attached)
        return OAR_OK;
    return oari_fail(OAR_E_STATE,
                     "storage of %zu bytes has its data: detach it first",
                     storage->bytes);
}

oar_status oar_storage_attach(oar_storage *storage, void *data,
                              void (*drop)(void *arg), void *arg)
{
    OARI_TRY(check_detached("storage_attach", storage));
    if (data == NULL)
        return take_fresh_memory(storage);
    take_external_memory(storage, data, drop, arg);
    return OAR_OK;
}

oar_status oar_storage_attach_read_only(oar_storage *storage, const void *data,
                                        void (*drop)(void *arg), void *arg)
{
    union {
        const void *given;
        void *kept; /* storages have one kind of pointer */
    } memory = { data };

    OARI_TRY(check_detached("storage_attach_read_only", storage));
    if (data == NULL && storage->bytes > 0)
        return oari_fail(OAR_E_ARG,
                         "storage_attach_read_only of %zu bytes: no data",
                         storage->bytes);
    take_external_memory(storage, memory.kept, drop, arg);
    storage->read_only = 1;
    return OAR_OK;
}

uint64_t oar_storage_version(const oar_storage *storage)
{
    return storage != NULL ? storage->version : 0;
}

void oar_storage_explain_absence(oar_storage *storage, const char *text)
{
    if (storage != NULL)
        storage->absence = text;
}
