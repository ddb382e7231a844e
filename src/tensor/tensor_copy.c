/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_copy: numbers from one place to another, whatever the dtypes and
 * strides. Conversion goes through blocks of a fixed size on the stack. */
#include <string.h>

#include "base/dtype.h"
#include "base/status.h"
#include "tensor/kernel_table.h"
#include "tensor/move.h"
#include "tensor/cpu/walk.h"

enum { BLOCK = 256 }; /* elements converted at once */

typedef struct dtypes {
    oar_dtype to, from;
} dtypes;

#define COPY_AS(type)                                  \
    do {                                               \
        type *y = to;                                  \
        const type *a = from, first = *a;              \
        if (to_stride == 1 && from_stride == 0)        \
            for (int64_t i = 0; i < count; i++)        \
                y[i] = first;                          \
        else                                           \
            for (int64_t i = 0; i < count; i++)        \
                y[i * to_stride] = a[i * from_stride]; \
    } while (0)

/* Copies elements that lie strides apart, without looking at them. */
static void copy_strided(void *to, int64_t to_stride, const void *from,
                         int64_t from_stride, int64_t count, size_t bytes)
{
    if (to_stride == 1 && from_stride == 1)
        memcpy(to, from, (size_t)count * bytes);
    else if (bytes == 1)
        COPY_AS(uint8_t);
    else if (bytes == 2)
        COPY_AS(uint16_t);
    else if (bytes == 4)
        COPY_AS(uint32_t);
    else
        COPY_AS(uint64_t);
}

static void convert_block(const oari_walk_row *row, const dtypes *d,
                          int64_t first, int64_t count)
{
    uint64_t gathered[BLOCK], converted[BLOCK];
    size_t to_bytes = oar_dtype_size(d->to);
    size_t from_bytes = oar_dtype_size(d->from);

    copy_strided(gathered, 1,
                 (const char *)row->data[1] +
                     first * row->stride[1] * (int64_t)from_bytes,
                 row->stride[1], count, from_bytes);
    oari_convert(converted, d->to, gathered, d->from, (size_t)count);
    copy_strided((char *)row->data[0] +
                     first * row->stride[0] * (int64_t)to_bytes,
                 row->stride[0], converted, 1, count, to_bytes);
}

static void copy_row(const oari_walk_row *row, void *arg)
{
    const dtypes *d = arg;

    if (d->to == d->from)
        copy_strided(row->data[0], row->stride[0], row->data[1], row->stride[1],
                     row->count, oar_dtype_size(d->to));
    else if (row->stride[0] == 1 && row->stride[1] == 1)
        oari_convert(row->data[0], d->to, row->data[1], d->from,
                     (size_t)row->count);
    else
        for (int64_t i = 0; i < row->count; i += BLOCK)
            convert_block(row, d, i,
                          row->count - i < BLOCK ? row->count - i : BLOCK);
}

oar_status oari_copy(const oari_array *to, const oari_array *from)
{
    dtypes d = { to->dtype, from->dtype };

    oari_walk(to->at.shape, 2, (const oari_array *[]){ to, from }, copy_row,
              &d);
    return OAR_OK;
}

oar_status oari_fill(const oari_array *to, double value)
{
    uint64_t element;
    oari_array from = oari_host_array(&element, to->dtype, OAR_SCALAR);

    oari_convert(&element, to->dtype, &value, OAR_F64, 1);
    oari_copy(to, &from);
    return OAR_OK;
}

static oar_status check_here(const char *what, const oar_tensor *t)
{
    if (oari_tensor_attached(t))
        return OAR_OK;
    return oari_fail(OAR_E_STATE, "%s of a tensor %s %s", what,
                     oari_shape_text(t->at.shape).text, oari_absence(t));
}

oar_status oari_check_not_read_only(const char *what, const oar_tensor *tensor)
{
    OARI_TRY(check_here(what, tensor));
    if (!tensor->storage->read_only)
        return OAR_OK;
    return oari_fail(OAR_E_STATE, "%s of a tensor %s that can only be read%s%s",
                     what, oari_shape_text(tensor->at.shape).text,
                     tensor->guard != NULL ? ": it " : "",
                     tensor->guard != NULL ? tensor->guard : "");
}

oar_status oari_check_writable(const char *what, const oar_tensor *tensor)
{
    OARI_TRY(oari_check_not_read_only(what, tensor));
    if (!oari_layout_overlaps(&tensor->at))
        return OAR_OK;
    return oari_fail(OAR_E_ARG,
                     "%s of a tensor %s in which elements share a place in "
                     "memory, as in an expanded view: it cannot be written",
                     what, oari_shape_text(tensor->at.shape).text);
}

static oar_status check_buffer(const char *what, const oar_tensor *tensor,
                               oar_dtype dtype, const void *data)
{
    if (tensor == NULL)
        return oari_null(what);
    if (data == NULL && tensor->count > 0)
        return oari_fail(OAR_E_ARG, "%s of a tensor %s: no data", what,
                         oari_shape_text(tensor->at.shape).text);
    OARI_TRY(oari_check_dtype(what, dtype));
    return check_here(what, tensor);
}

oar_status oar_tensor_read(const oar_tensor *tensor, oar_dtype dtype,
                           void *data)
{
    oari_array to, from;

    OARI_TRY(check_buffer("read", tensor, dtype, data));
    from = oari_array_of(tensor);
    to = oari_host_array(data, dtype, from.at.shape);
    return oari_move(NULL, &to, &from);
}

oar_status oar_tensor_write(oar_tensor *tensor, oar_dtype dtype,
                            const void *data)
{
    oari_array to, from;
    union {
        const void *given;
        void *read_only; /* arrays have one kind of pointer */
    } source = { data };

    OARI_TRY(check_buffer("write", tensor, dtype, data));
    OARI_TRY(oari_check_writable("write", tensor));
    tensor->storage->version++;
    to = oari_array_of(tensor);
    from = oari_host_array(source.read_only, dtype, to.at.shape);
    return oari_move(NULL, &to, &from);
}

oar_status oar_tensor_item(const oar_tensor *tensor, double *value)
{
    if (tensor == NULL || value == NULL)
        return oari_null("item");
    if (tensor->count != 1)
        return oari_fail(OAR_E_SHAPE, "item of a tensor %s: not one element",
                         oari_shape_text(tensor->at.shape).text);
    return oar_tensor_read(tensor, OAR_F64, value);
}

/* Whether the memory of two tensors may have bytes in common. */
static int may_overlap(const oar_tensor *a, const oar_tensor *b)
{
    const oar_tensor *both[] = { a, b };
    uintptr_t first[2], last[2];

    for (int i = 0; i < 2; i++) {
        int64_t low, high, bytes = (int64_t)oar_dtype_size(both[i]->dtype);
        oari_array array = oari_array_of(both[i]);
        uintptr_t zero = (uintptr_t)oari_array_data(&array);

        if (both[i]->count == 0)
            return 0;
        oari_layout_reach(&both[i]->at, &low, &high);
        first[i] = zero + (uintptr_t)(low * bytes);
        last[i] = zero + (uintptr_t)(high * bytes + bytes - 1);
    }
    return first[0] <= last[1] && first[1] <= last[0];
}

static oar_status assign_elements(oar_tensor *to, const oar_tensor *from)
{
    oari_array a = oari_array_of(to), b = oari_array_of(from);

    return oari_move(NULL, &a, &b);
}

/* Through memory of its own, so that nothing is read after it was written. */
static oar_status assign_overlapping(oar_tensor *to, const oar_tensor *from)
{
    oar_tensor *apart = oari_tensor_make_on(NULL, oari_device_of(from),
                                            from->dtype, from->at.shape);
    oar_status status;

    if (apart == NULL)
        return oar_last_error()->status;
    status = assign_elements(apart, from);
    if (status == OAR_OK)
        status = assign_elements(to, apart);
    oar_tensor_release(apart);
    return status;
}

oar_status oar_tensor_copy(oar_tensor *to, const oar_tensor *from)
{
    if (to == NULL || from == NULL)
        return oari_null("copy");
    if (!oari_shape_equal(to->at.shape, from->at.shape))
        return oari_fail(OAR_E_SHAPE, "copy to %s from %s: shapes differ",
                         oari_shape_text(to->at.shape).text,
                         oari_shape_text(from->at.shape).text);
    OARI_TRY(oari_check_writable("copy", to));
    OARI_TRY(check_here("copy", from));
    to->storage->version++;
    return may_overlap(to, from) ? assign_overlapping(to, from)
                                 : assign_elements(to, from);
}

oar_status oar_tensor_fill(oar_tensor *tensor, double value)
{
    oari_array to;

    if (tensor == NULL)
        return oari_null("fill");
    OARI_TRY(oari_check_writable("fill", tensor));
    tensor->storage->version++;
    to = oari_array_of(tensor);
    return OARI_KERNEL(&to, fill, &to, value);
}
