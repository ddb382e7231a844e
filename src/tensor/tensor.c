/* SPDX-License-Identifier: Apache-2.0 */
/* tensor: the life of a tensor, and what can be asked of it.
 *
 * A tensor holds one reference to its storage and, if it is a leaf with a
 * gradient, one to the gradient's home. The count is atomic; everything else
 * belongs to one thread at a time. */
#include "tensor/tensor.h"

#include <oarsong/device.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/status.h"
#include "tensor/tensor_pool.h"

oar_status oari_null(const char *what)
{
    if (oar_last_error()->status == OAR_OK)
        oari_fail(OAR_E_ARG, "%s of NULL", what);
    return OAR_E_ARG;
}

/* Takes the reference to storage. */
static oar_tensor *make_over(oari_pool *pool, oar_storage *storage,
                             oar_dtype dtype, const oari_layout *at)
{
    oar_tensor *t = oari_pool_take_tensor(pool);

    if (t == NULL) {
        if (pool != NULL)
            oari_pool_keep_storage(pool, storage);
        else
            oar_storage_release(storage);
        return NULL;
    }
    atomic_init(&t->refs, 1);
    t->dtype = dtype;
    t->count = oari_shape_count(at->shape);
    t->at = *at;
    t->storage = storage;
    t->made_on = storage->device;
    return t;
}

oar_tensor *oari_tensor_make_on(oari_pool *pool, oar_device device,
                                oar_dtype dtype, oar_shape shape)
{
    oari_layout at;
    oar_storage *storage;
    size_t bytes;

    if (oari_shape_check("a tensor", shape, dtype) != OAR_OK)
        return NULL;
    at = oari_layout_rows(shape);
    bytes = (size_t)oari_shape_count(shape) * oar_dtype_size(dtype);
    if (oari_pool_take_storage(pool, device, bytes, &storage) != OAR_OK)
        return NULL;
    return make_over(pool, storage, dtype, &at);
}

oar_tensor *oari_tensor_make(oari_pool *pool, oar_dtype dtype, oar_shape shape)
{
    return oari_tensor_make_on(pool, oar_device_of(OAR_CPU, 0), dtype, shape);
}

oar_tensor *oari_tensor_over(oari_pool *pool, oar_storage *storage,
                             oar_dtype dtype, const oari_layout *at)
{
    return make_over(pool, oar_storage_retain(storage), dtype, at);
}

const char *oari_absence(const oar_tensor *t)
{
    if (oari_tensor_retired(t))
        return "that oar_tape_reset has given up: retain it to keep it longer";
    if (t->storage == NULL)
        return "that was given back: retain it to read it after backward";
    if (t->storage->initializer != NULL)
        return "that is lazy: oar_tensor_realize gives it its numbers";
    return t->storage->absence != NULL ? t->storage->absence
                                       : "whose storage is detached";
}

void oari_tensor_empty(oari_pool *pool, oar_tensor *tensor)
{
    oar_storage *storage = tensor->storage;

    tensor->storage = NULL;
    oari_pool_keep_storage(pool, storage);
}

oar_device oar_tensor_device(const oar_tensor *tensor)
{
    return tensor != NULL ? oari_device_of(tensor) : oar_device_of(OAR_CPU, 0);
}

/* ---- moving a leaf ------------------------------------------------------- */

oar_status oari_check_fits(const char *what, const oar_storage *storage,
                           int64_t offset, oar_dtype dtype, oar_shape shape)
{
    int64_t room;

    OARI_TRY(oari_shape_check(what, shape, dtype));
    room = (int64_t)(storage->bytes / oar_dtype_size(dtype));
    if (offset >= 0 && offset <= room &&
        oari_shape_count(shape) <= room - offset)
        return OAR_OK;
    return oari_fail(OAR_E_ARG,
                     "%s of %s from element %lld: the storage has room for "
                     "%lld elements of %s",
                     what, oari_shape_text(shape).text, (long long)offset,
                     (long long)room, oar_dtype_name(dtype));
}

static oar_status check_rebase(const oar_tensor *leaf,
                               const oar_storage *storage, oar_dtype dtype)
{
    oari_shape_string shape = oari_shape_text(leaf->at.shape);

    if (oari_tensor_retired(leaf))
        return oari_fail(OAR_E_STATE, "rebase of a tensor %s %s", shape.text,
                         oari_absence(leaf));
    if (leaf->node != NULL)
        return oari_fail(OAR_E_STATE,
                         "rebase of a tensor %s that an operation made",
                         shape.text);
    if (leaf->slot.required && !oari_dtype_is_float(dtype))
        return oari_fail(OAR_E_DTYPE,
                         "rebase of %s, which requires a gradient, to %s: only "
                         "floats have gradients",
                         shape.text, oar_dtype_name(dtype));
    return OAR_OK;
}

oar_status oar_tensor_rebase(oar_tensor *leaf, oar_storage *storage,
                             int64_t offset, oar_dtype dtype)
{
    oar_storage *before;

    if (leaf == NULL || storage == NULL)
        return oari_null("rebase");
    OARI_TRY(oari_check_fits("rebase", storage, offset, dtype, leaf->at.shape));
    OARI_TRY(check_rebase(leaf, storage, dtype));
    before = leaf->storage;
    leaf->storage = oar_storage_retain(storage);
    oar_storage_release(before);
    leaf->at = oari_layout_rows(leaf->at.shape);
    leaf->at.offset = offset;
    leaf->dtype = dtype;
    leaf->rebases++;
    oar_tensor_release(leaf->slot.home);
    leaf->slot.home = NULL;
    leaf->slot.written = leaf->slot.bound = 0;
    return OAR_OK;
}

void oar_tensor_guard(oar_tensor *leaf, const char *why)
{
    if (leaf != NULL)
        leaf->guard = why;
}

/* ---- counting ------------------------------------------------------------ */

static void refuse_retired(const char *what, oar_tensor *tensor)
{
    atomic_store_explicit(&tensor->refs, 0, memory_order_relaxed);
    oari_fail(OAR_E_STATE, "%s of a tensor %s %s", what,
              oari_shape_text(tensor->at.shape).text, oari_absence(tensor));
}

oar_tensor *oar_tensor_retain(oar_tensor *tensor)
{
    if (tensor == NULL ||
        atomic_fetch_add_explicit(&tensor->refs, 1, memory_order_relaxed) > 0)
        return tensor;
    refuse_retired("retain", tensor);
    return NULL;
}

void oar_tensor_release(oar_tensor *tensor)
{
    int before;

    if (tensor == NULL)
        return;
    before = atomic_fetch_sub_explicit(&tensor->refs, 1, memory_order_acq_rel);
    if (before < 1)
        refuse_retired("release", tensor);
    if (before != 1)
        return;
    oari_hooks_clear(&tensor->slot.hooks);
    oar_tensor_release(tensor->slot.home);
    oar_storage_release(tensor->storage);
    oari_free(tensor);
}

static int is_shared(const oar_tensor *t)
{
    return atomic_load_explicit(&t->refs, memory_order_acquire) != 1;
}

void oari_tensor_drop(oari_pool *pool, oar_tensor *tensor)
{
    if (pool == NULL || tensor == NULL || is_shared(tensor)) {
        oar_tensor_release(tensor);
        return;
    }
    oari_hooks_clear(&tensor->slot.hooks);
    oari_tensor_drop(pool, tensor->slot.home);
    oari_pool_keep_storage(pool, tensor->storage);
    oari_pool_keep_tensor(pool, tensor);
}

void oari_tensor_retire(oari_pool *pool, oar_tensor *tensor)
{
    if (tensor == NULL || is_shared(tensor)) {
        oar_tensor_release(tensor);
        return;
    }
    oari_hooks_clear(&tensor->slot.hooks);
    oari_tensor_retire(pool, tensor->slot.home);
    oari_pool_keep_storage(pool, tensor->storage);
    tensor->slot = (oari_grad_slot){ .home = NULL };
    tensor->storage = NULL;
    atomic_store_explicit(&tensor->refs, 0, memory_order_relaxed);
    oari_pool_rest_tensor(pool, tensor);
}

/* ---- asking -------------------------------------------------------------- */

oar_shape oar_tensor_shape(const oar_tensor *tensor)
{
    return tensor != NULL ? tensor->at.shape : OAR_SCALAR;
}

oar_dtype oar_tensor_dtype(const oar_tensor *tensor)
{
    return tensor != NULL ? tensor->dtype : OAR_F32;
}

int64_t oar_tensor_count(const oar_tensor *tensor)
{
    return tensor != NULL ? tensor->count : 0;
}

int64_t oar_tensor_stride(const oar_tensor *tensor, int dim)
{
    if (tensor == NULL || !oari_shape_dim(tensor->at.shape, &dim))
        return 0;
    return tensor->at.stride[dim];
}

int oar_tensor_is_contiguous(const oar_tensor *tensor)
{
    return tensor != NULL && oari_layout_is_rows(&tensor->at);
}

oar_storage *oar_tensor_storage(const oar_tensor *tensor)
{
    return tensor != NULL ? tensor->storage : NULL;
}

int oar_tensor_is_read_only(const oar_tensor *tensor)
{
    return tensor != NULL && tensor->storage != NULL &&
           tensor->storage->read_only;
}

const void *oar_tensor_const_data(const oar_tensor *tensor)
{
    oari_array a;

    if (tensor == NULL || !oari_tensor_attached(tensor))
        return NULL;
    a = oari_array_of(tensor);
    return oari_array_data(&a);
}

void *oar_tensor_data(const oar_tensor *tensor)
{
    oari_array a;

    if (tensor == NULL || !oari_tensor_attached(tensor) ||
        oari_check_not_read_only("data", tensor) != OAR_OK)
        return NULL;
    a = oari_array_of(tensor);
    return oari_array_data(&a);
}

oar_status oar_tensor_touch(oar_tensor *tensor)
{
    if (tensor == NULL)
        return oari_null("touch");
    OARI_TRY(oari_check_not_read_only("touch", tensor));
    tensor->storage->version++;
    return OAR_OK;
}

oar_status oar_tensor_const_span(const oar_tensor *tensor, oar_span *span)
{
    if (tensor == NULL || span == NULL)
        return oari_null("span");
    if (!oari_layout_is_rows(&tensor->at))
        return oari_fail(OAR_E_ARG,
                         "span of a tensor %s whose elements are not "
                         "contiguous",
                         oari_shape_text(tensor->at.shape).text);
    if (!oari_tensor_attached(tensor))
        return oari_fail(OAR_E_STATE, "span of a tensor %s %s",
                         oari_shape_text(tensor->at.shape).text,
                         oari_absence(tensor));
    *span = oar_span_of_const(oar_tensor_const_data(tensor),
                              (size_t)tensor->count, tensor->dtype);
    span->device = tensor->storage->device;
    return OAR_OK;
}

oar_status oar_tensor_span(const oar_tensor *tensor, oar_span *span)
{
    oar_span made;

    OARI_TRY(oar_tensor_const_span(tensor, span != NULL ? &made : NULL));
    OARI_TRY(oari_check_writable("span", tensor));
    made.read_only = 0;
    *span = made;
    return OAR_OK;
}
