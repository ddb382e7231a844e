/* SPDX-License-Identifier: Apache-2.0 */
/* dlpack: tensors in and out without a copy. What goes out holds a reference to
 * the storage, which cannot be detached, until its deleter is called; what
 * comes in is a storage whose memory is given back by the deleter it came with.
 */
#include <oarsong/dlpack.h>

#include <string.h>

#include <oarsong/device.h>

#include "base/alloc.h"
#include "base/status.h"
#include "autograd/record.h"
#include "tensor/dlpack_abi.h"
#include "tensor/tensor_pool.h"

static const oari_dl_dtype dtypes[OAR_DTYPE_COUNT] = {
    [OAR_F32] = { OARI_DL_FLOAT, 32, 1 },
    [OAR_F64] = { OARI_DL_FLOAT, 64, 1 },
    [OAR_F16] = { OARI_DL_FLOAT, 16, 1 },
    [OAR_BF16] = { OARI_DL_BFLOAT, 16, 1 },
    [OAR_I8] = { OARI_DL_INT, 8, 1 },
    [OAR_U8] = { OARI_DL_UINT, 8, 1 },
    [OAR_I16] = { OARI_DL_INT, 16, 1 },
    [OAR_U16] = { OARI_DL_UINT, 16, 1 },
    [OAR_I32] = { OARI_DL_INT, 32, 1 },
    [OAR_U32] = { OARI_DL_UINT, 32, 1 },
    [OAR_I64] = { OARI_DL_INT, 64, 1 },
    [OAR_U64] = { OARI_DL_UINT, 64, 1 },
    [OAR_BOOL] = { OARI_DL_BOOL, 8, 1 },
};

/* ---- out ----------------------------------------------------------------- */

typedef struct parcel {
    union {
        oari_dl_managed versioned;
        oari_dl_unversioned unversioned;
    } managed;
    oar_storage *storage; /* a reference */
    int64_t shape[OAR_MAX_DIMS], strides[OAR_MAX_DIMS];
} parcel;

static void free_parcel(parcel *p)
{
    atomic_fetch_sub_explicit(&p->storage->exports, 1, memory_order_release);
    oar_storage_release(p->storage);
    oari_free(p);
}

static void delete_versioned(oari_dl_managed *self)
{
    free_parcel(self->manager_ctx);
}

static void delete_unversioned(oari_dl_unversioned *self)
{
    free_parcel(self->manager_ctx);
}

static void fill_in(parcel *p, const oar_tensor *t, oari_dl_tensor *dl)
{
    oari_array a = oari_array_of(t);

    for (int i = 0; i < t->at.shape.ndim; i++) {
        p->shape[i] = t->at.shape.dim[i];
        p->strides[i] = t->at.stride[i];
    }
    dl->data = oari_array_data(&a);
    dl->device =
        t->storage->device.kind == OAR_CUDA
            ? (oari_dl_device){ OARI_DL_CUDA, t->storage->device.index }
            : (oari_dl_device){ OARI_DL_CPU, 0 };
    dl->ndim = t->at.shape.ndim;
    dl->dtype = dtypes[t->dtype];
    dl->shape = p->shape;
    dl->strides = p->strides;
}

static oar_status make_parcel(const oar_tensor *tensor, const void *out,
                              parcel **parcel_out)
{
    parcel *p;

    if (tensor == NULL)
        return oari_null("dlpack_export");
    if (out == NULL)
        return oari_fail(OAR_E_ARG, "dlpack_export of %s: nowhere to give it",
                         oari_shape_text(tensor->at.shape).text);
    if (!oari_tensor_attached(tensor))
        return oari_fail(OAR_E_STATE, "dlpack_export of a tensor %s %s",
                         oari_shape_text(tensor->at.shape).text,
                         oari_absence(tensor));
    p = oari_alloc(1, sizeof *p);
    if (p == NULL)
        return OAR_E_NOMEM;
    p->storage = oar_storage_retain(tensor->storage);
    atomic_fetch_add_explicit(&p->storage->exports, 1, memory_order_relaxed);
    *parcel_out = p;
    return OAR_OK;
}

oar_status oar_dlpack_export(oar_tensor *tensor,
                             struct DLManagedTensorVersioned **out)
{
    oari_dl_managed *m;
    parcel *p;

    OARI_TRY(make_parcel(tensor, out, &p));
    m = &p->managed.versioned;
    m->version = (oari_dl_version){ OARI_DLPACK_MAJOR, OARI_DLPACK_MINOR };
    m->manager_ctx = p;
    m->deleter = delete_versioned;
    m->flags = tensor->storage->read_only ? OARI_DL_READ_ONLY : 0;
    fill_in(p, tensor, &m->tensor);
    *out = m;
    return OAR_OK;
}

oar_status oar_dlpack_export_unversioned(oar_tensor *tensor,
                                         struct DLManagedTensor **out)
{
    oari_dl_unversioned *m;
    parcel *p;

    if (oar_tensor_is_read_only(tensor))
        return oari_fail(OAR_E_STATE,
                         "dlpack_export_unversioned of a tensor %s that can "
                         "only be read: the struct cannot say so",
                         oari_shape_text(tensor->at.shape).text);
    OARI_TRY(make_parcel(tensor, out, &p));
    m = &p->managed.unversioned;
    m->manager_ctx = p;
    m->deleter = delete_unversioned;
    fill_in(p, tensor, &m->tensor);
    *out = m;
    return OAR_OK;
}

/* ---- in ------------------------------------------------------------------ */

static void drop_versioned(void *arg)
{
    oari_dl_managed *in = arg;

    if (in->deleter != NULL)
        in->deleter(in);
}

static void drop_unversioned(void *arg)
{
    oari_dl_unversioned *in = arg;

    if (in->deleter != NULL)
        in->deleter(in);
}

/* What is taken, whichever struct it came in. */
typedef struct arrival {
    const oari_dl_tensor *tensor;
    int read_only;
    void (*drop)(void *arg);
    void *arg;
} arrival;

static oar_status find_dtype(oari_dl_dtype asked, oar_dtype *dtype)
{
    for (int i = 0; i < OAR_DTYPE_COUNT; i++)
        if (dtypes[i].code == asked.code && dtypes[i].bits == asked.bits &&
            asked.lanes == 1) {
            *dtype = (oar_dtype)i;
            return OAR_OK;
        }
    return oari_fail(OAR_E_DTYPE,
                     "dlpack_import of code %d with %d bits and %d lanes: we "
                     "have no such dtype",
                     asked.code, asked.bits, asked.lanes);
}

/* Whether the first eight bytes of a struct are a version, 1.0 or later. In one
 * without a version they are the address of the data: NULL, or above any number
 * that a version has. */
static int is_version(oari_dl_version version)
{
    enum { MOST = 255 };

    return version.major >= 1 && version.major <= MOST && version.minor <= MOST;
}

/* Makes the layout from the first element that is reached on, and counts the
 * elements up to the last. */
static oar_status find_layout(const oari_dl_tensor *dl, oar_dtype dtype,
                              oari_layout *at, int64_t *elements)
{
    oar_shape shape = oar_shape_of(dl->ndim, dl->shape);
    int64_t low, high;

    OARI_TRY(oari_shape_check("dlpack_import", shape, dtype));
    *at = oari_layout_rows(shape);
    if (dl->strides != NULL)
        for (int i = 0; i < dl->ndim; i++)
            at->stride[i] = dl->strides[i];
    *elements = 0;
    if (oari_shape_count(shape) == 0)
        return OAR_OK;
    if (dl->data == NULL)
        return oari_fail(OAR_E_ARG, "dlpack_import of %s: no data",
                         oari_shape_text(shape).text);
    if (!oari_layout_reach(at, &low, &high))
        return oari_fail(OAR_E_ARG, "dlpack_import of %s: strides too large",
                         oari_shape_text(shape).text);
    at->offset = -low;
    *elements = high - low + 1;
    return OAR_OK;
}

/* Where the layout begins, of that many elements; they have to be aligned. */
static oar_status find_data(const oari_dl_tensor *dl, oar_dtype dtype,
                            const oari_layout *at, int64_t elements,
                            void **data)
{
    uint64_t size = oar_dtype_size(dtype);
    uintptr_t first = (uintptr_t)dl->data, end;

    if (dl->data == NULL)
        return OAR_OK;
    /* some elements may be at no address at all */
    if (__builtin_add_overflow(first, dl->byte_offset, &first) ||
        __builtin_sub_overflow(first, (uint64_t)at->offset * size, &first) ||
        __builtin_add_overflow(first, (uint64_t)elements * size, &end))
        return oari_fail(OAR_E_ARG, "dlpack_import of %s: strides too large",
                         oari_shape_text(at->shape).text);
    if (first % size != 0)
        return oari_fail(
            OAR_E_ARG, "dlpack_import of %s %s: its elements are not aligned",
            oar_dtype_name(dtype), oari_shape_text(at->shape).text);
    *data = (void *)first;
    return OAR_OK;
}

/* A storage over the memory, which takes it only if all goes well. */
static oar_status wrap_memory(const arrival *in, oar_dtype *dtype,
                              oari_layout *at, oar_storage **storage)
{
    const oari_dl_tensor *dl = in->tensor;
    int64_t elements = 0;
    void *data = NULL;

    if (dl->device.type != OARI_DL_CPU && dl->device.type != OARI_DL_CUDA &&
        dl->device.type != OARI_DL_CUDA_HOST)
        return oari_fail(OAR_E_DEVICE,
                         "dlpack_import from device %d:%d: only from the cpu "
                         "and from CUDA",
                         dl->device.type, dl->device.id);
    if (dl->device.type == OARI_DL_CUDA && dl->device.id < 0)
        return oari_fail(OAR_E_DEVICE, "dlpack_import from cuda:%d",
                         dl->device.id);
    if (dl->ndim < 0 || dl->ndim > OAR_MAX_DIMS ||
        (dl->ndim > 0 && dl->shape == NULL))
        return oari_fail(OAR_E_ARG, "dlpack_import of %d dims: at most %d",
                         (int)dl->ndim, (int)OAR_MAX_DIMS);
    OARI_TRY(find_dtype(dl->dtype, dtype));
    OARI_TRY(find_layout(dl, *dtype, at, &elements));
    OARI_TRY(find_data(dl, *dtype, at, elements, &data));
    OARI_TRY(oari_storage_over(data, (size_t)elements * oar_dtype_size(*dtype),
                               in->drop, in->arg, storage));
    (*storage)->read_only = in->read_only;
    if (dl->device.type == OARI_DL_CUDA)
        (*storage)->device = oar_device_of(OAR_CUDA, dl->device.id);
    return OAR_OK;
}

static oar_tensor *take_tensor(oar_tape *tape, const arrival *in)
{
    oar_storage *storage;
    oar_tensor *made;
    oari_layout at;
    oar_dtype dtype = OAR_F32;

    if (wrap_memory(in, &dtype, &at, &storage) != OAR_OK) {
        in->drop(in->arg);
        return NULL;
    }
    made = oari_tensor_over(oari_tape_pool(tape), storage, dtype, &at);
    oar_storage_release(storage); /* the tensor has its own reference */
    return oari_keep(tape, made);
}

/* Nothing of the struct may be looked at before its version is known, and of
 * another version only the deleter, whose place is the same in all. */
oar_tensor *oar_dlpack_import(oar_tape *tape,
                              struct DLManagedTensorVersioned *in)
{
    arrival taken;

    if (in == NULL) {
        oari_null("dlpack_import");
        return NULL;
    }
    if (!is_version(in->version)) {
        oari_fail(OAR_E_ARG, "dlpack_import of a struct without a version: "
                             "dlpack_import_unversioned takes it");
        return NULL;
    }
    if (in->version.major != OARI_DLPACK_MAJOR) {
        oari_fail(OAR_E_UNSUPPORTED,
                  "dlpack_import of version %u.%u: we know %d.x",
                  in->version.major, in->version.minor, OARI_DLPACK_MAJOR);
        drop_versioned(in);
        return NULL;
    }
    taken = (arrival){ &in->tensor, (in->flags & OARI_DL_READ_ONLY) != 0,
                       drop_versioned, in };
    return take_tensor(tape, &taken);
}

oar_tensor *oar_dlpack_import_unversioned(oar_tape *tape,
                                          struct DLManagedTensor *in)
{
    oari_dl_version first;
    arrival taken;

    if (in == NULL) {
        oari_null("dlpack_import_unversioned");
        return NULL;
    }
    memcpy(&first, in, sizeof first);
    if (is_version(first)) {
        oari_fail(OAR_E_ARG,
                  "dlpack_import_unversioned of a struct of version %u.%u: "
                  "dlpack_import takes it",
                  first.major, first.minor);
        return NULL;
    }
    taken = (arrival){ &in->tensor, 0, drop_unversioned, in };
    return take_tensor(tape, &taken);
}
