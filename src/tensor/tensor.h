/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/tensor.h: what a tensor is inside the library, and how one is made
 * without a tape: by functions that take a pool (NULL: from the system) and
 * give one reference. */
#ifndef OARI_TENSOR_TENSOR_H
#define OARI_TENSOR_TENSOR_H

#include <stdatomic.h>

#include "tensor/hook.h"
#include "tensor/layout.h"
#include "tensor/storage.h"

typedef struct oari_pool oari_pool;
struct oari_node;

/* The one gradient of a leaf. home is its memory; while `written` is 0 the
 * numbers there mean nothing, and backward stores instead of adding. */
typedef struct oari_grad_slot {
    oar_tensor *home; /* contiguous, same shape; a reference; or NULL. Of the
                         leaf's dtype, or f32 for a half */
    int required;
    int written;
    int bound; /* home was given by oar_tensor_bind_grad */
    int input; /* made by oar_tape_input */
    int wide;  /* a home of its own is f32, though the leaf is a half */
    oari_hooks hooks;
} oari_grad_slot;

struct oar_tensor {
    atomic_int refs; /* 0: its tape was reset, and the pool lets it rest */
    oar_dtype dtype;
    int64_t count;
    oari_layout at;
    oar_storage *storage;   /* a reference; NULL: given back to the tape */
    oar_device made_on;     /* where the storage is, or was */
    struct oari_node *node; /* what made it, while its tape remembers */
    oari_grad_slot slot;
    unsigned rebases;  /* times that oar_tensor_rebase has moved it */
    const char *guard; /* why no optimizer may have it; NULL: one may */
    oari_pool *owner;  /* gives it up at its next reset; NULL: none */
    int saves;         /* references that nodes of the owner's tape hold */
    int spare;         /* the library made it, and will not read it again */
    int rebuilt;       /* it was given back and is here again for backward */
    oar_tensor *next;  /* in a pool's list of free ones, or of offers */
};

/* What kernels work on: a tensor without its bookkeeping. Owns nothing. */
typedef struct oari_array {
    void *data; /* of the storage: the layout's offset counts from here */
    oar_dtype dtype;
    oari_layout at;
    oar_device device; /* left out of an initialiser: the cpu */
} oari_array;

static inline oari_array oari_array_of(const oar_tensor *t)
{
    return (oari_array){ t->storage->data, t->dtype, t->at,
                         t->storage->device };
}

/* Returns numbers on the host, row by row, as an array. */
static inline oari_array oari_host_array(void *data, oar_dtype dtype,
                                         oar_shape shape)
{
    return (oari_array){ .data = data,
                         .dtype = dtype,
                         .at = oari_layout_rows(shape) };
}

static inline void *oari_array_data(const oari_array *a)
{
    return (char *)a->data + a->at.offset * (int64_t)oar_dtype_size(a->dtype);
}

/* Make a tensor with fresh storage on a device, or on the cpu, row by row; its
 * contents are undefined. */
oar_tensor *oari_tensor_make_on(oari_pool *pool, oar_device device,
                                oar_dtype dtype, oar_shape shape);
oar_tensor *oari_tensor_make(oari_pool *pool, oar_dtype dtype, oar_shape shape);

/* Returns the device of a tensor, also of one whose storage was given back. */
static inline oar_device oari_device_of(const oar_tensor *t)
{
    return t->storage != NULL ? t->storage->device : t->made_on;
}

static inline int oari_device_equal(oar_device a, oar_device b)
{
    return a.kind == b.kind && a.index == b.index;
}

/* Makes a tensor over a storage that exists, of which it takes a reference. */
oar_tensor *oari_tensor_over(oari_pool *pool, oar_storage *storage,
                             oar_dtype dtype, const oari_layout *at);

/* Gives up one reference; if it was the last, the pool keeps tensor and storage
 * for the next one. NULL is fine. */
void oari_tensor_drop(oari_pool *pool, oar_tensor *tensor);

/* Returns a tensor that was computed with this status: itself, or NULL, and
 * then gives up the reference. */
static inline oar_tensor *oari_settle(oari_pool *pool, oar_tensor *made,
                                      oar_status status)
{
    if (status == OAR_OK)
        return made;
    oari_tensor_drop(pool, made);
    return NULL;
}

/* Gives up one reference to a tensor that the caller of the library may know.
 * If it was the last, the pool lets the tensor rest, and every function refuses
 * it until it is used again. */
void oari_tensor_retire(oari_pool *pool, oar_tensor *tensor);

static inline int oari_tensor_retired(const oar_tensor *t)
{
    return atomic_load_explicit(&t->refs, memory_order_relaxed) == 0;
}

/* Returns whether the tensor has its data. */
static inline int oari_tensor_attached(const oar_tensor *t)
{
    return t->storage != NULL && t->storage->attached;
}

/* Returns a number that changes when the tensor, which has a storage, is
 * written to or rebased. */
static inline uint64_t oari_tensor_version(const oar_tensor *t)
{
    return t->storage->version + ((uint64_t)t->rebases << 48);
}

/* Returns whether anything but its tape holds a tensor that a tape owns. */
static inline int oari_tensor_retained(const oar_tensor *t)
{
    return atomic_load_explicit(&t->refs, memory_order_acquire) > 1 + t->saves;
}

/* Returns why a tensor has no data, to stand after "a tensor [2, 3]" in a
 * sentence. */
const char *oari_absence(const oar_tensor *t);

/* Checks that a row-major tensor fits into a storage from element `offset` on,
 * else OAR_E_ARG; `what` names the call in the error. */
oar_status oari_check_fits(const char *what, const oar_storage *storage,
                           int64_t offset, oar_dtype dtype, oar_shape shape);

/* Gives up the tensor's storage, to the pool if it was the last reference. */
void oari_tensor_empty(oari_pool *pool, oar_tensor *tensor);

/* Check that the data is there and may be written; `what` names the call in the
 * error. The second also refuses a tensor whose elements share places. */
oar_status oari_check_not_read_only(const char *what, const oar_tensor *tensor);
oar_status oari_check_writable(const char *what, const oar_tensor *tensor);

/* Returns OAR_E_ARG for a NULL argument, and sets the last error unless the
 * call that made the NULL has set it. */
oar_status oari_null(const char *what);

#endif
