/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/storage.h: counted memory that tensors are views of. */
#ifndef OARI_TENSOR_STORAGE_H
#define OARI_TENSOR_STORAGE_H

#include <stdatomic.h>

#include <oarsong/tensor.h>

#include "device/device.h"

struct oari_initializer;

struct oar_storage {
    atomic_int refs;
    int attached;   /* whether data is there; of 0 bytes it may be anything */
    int external;   /* data came with attach, not from the device */
    int recyclable; /* made by a pool */
    int read_only;  /* its owner let us read only */
    atomic_int exports; /* by DLPack, whose consumers read data where it is */
    uint64_t version;   /* counts the calls that wrote to it */
    size_t bytes;       /* that views may use */
    size_t capacity;    /* bytes of fresh memory, at least as many */
    oari_memory_kind kind;
    oar_device device;
    void *data;
    void (*drop)(void *arg); /* (optional) of external data */
    void *drop_arg;
    const char *absence; /* said of tensors while detached; NULL: the default */
    struct oari_initializer *initializer; /* of a lazy one (lazy.h); owned */
    oar_storage *next;                    /* in a pool's list of free ones */
    uint64_t used; /* the pool's reset after which it was last in use */
};

/* Makes a storage with fresh memory for `capacity` bytes on a device, a GPU or
 * the cpu, of which views may use `bytes`. */
oar_status oari_storage_make(oar_device device, size_t bytes, size_t capacity,
                             oari_memory_kind kind, oar_storage **storage);

/* Makes a storage over memory of the caller's, on the cpu. Calls drop(arg) when
 * it no longer needs the memory. */
oar_status oari_storage_over(void *data, size_t bytes, void (*drop)(void *arg),
                             void *arg, oar_storage **storage);

/* Returns whether the caller holds the only reference. */
static inline int oari_storage_alone(const oar_storage *s)
{
    return atomic_load_explicit(&s->refs, memory_order_acquire) == 1;
}

#endif
