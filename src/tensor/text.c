/* SPDX-License-Identifier: Apache-2.0 */
/* text: a tensor as a person reads it. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "tensor/tensor.h"

/* Of more elements than MANY only EDGE at either end of each dim are shown. */
enum { MANY = 1000, EDGE = 3, DIGITS = 6, WIDEST = 32 };

typedef struct page {
    const oar_tensor *tensor;
    char *text;
    size_t room, used; /* used counts what did not fit, too */
    int width;         /* of a number */
    int shorten;
} page;

static void put_text(page *p, const char *format, ...) OAR_PRINTF(2, 3);

static void put_text(page *p, const char *format, ...)
{
    size_t left = p->used < p->room ? p->room - p->used : 0;
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(left > 0 ? p->text + p->used : NULL, left, format, args);
    va_end(args);
    p->used += length > 0 ? (size_t)length : 0;
}

/* One number; returns its length. */
static int write_number(const oar_tensor *t, int64_t offset, char *number)
{
    size_t bytes = oar_dtype_size(t->dtype);
    const char *from = (const char *)t->storage->data + offset * (int64_t)bytes;
    union {
        double real;
        int64_t whole;
        uint64_t natural;
    } v;

    if (oari_dtype_is_float(t->dtype)) {
        oari_convert(&v.real, OAR_F64, from, t->dtype, 1);
        return snprintf(number, WIDEST, "%.*g", DIGITS, v.real);
    }
    if (t->dtype == OAR_BOOL)
        return snprintf(number, WIDEST, "%s", *from ? "true" : "false");
    if (t->dtype == OAR_U64) {
        memcpy(&v.natural, from, sizeof v.natural);
        return snprintf(number, WIDEST, "%" PRIu64, v.natural);
    }
    oari_convert(&v.whole, OAR_I64, from, t->dtype, 1);
    return snprintf(number, WIDEST, "%" PRId64, v.whole);
}

/* The place after i along a dim: the next, or the first of the last ones. */
static int64_t place_after(const page *p, int64_t i, int64_t size)
{
    return p->shorten && i + 1 == EDGE && size > 2 * EDGE ? size - EDGE : i + 1;
}

/* Finds the widest of the numbers that will be shown. */
static void measure_numbers(page *p, int dim, int64_t offset)
{
    const oari_layout *at = &p->tensor->at;
    char number[WIDEST];
    int width;

    if (dim == at->shape.ndim) {
        width = write_number(p->tensor, offset, number);
        p->width = width > p->width ? width : p->width;
        return;
    }
    for (int64_t i = 0; i < at->shape.dim[dim];
         i = place_after(p, i, at->shape.dim[dim]))
        measure_numbers(p, dim + 1, offset + i * at->stride[dim]);
}

static void put_dim(page *p, int dim, int64_t offset)
{
    const oari_layout *at = &p->tensor->at;
    char number[WIDEST];
    int64_t size, next;

    if (dim == at->shape.ndim) {
        write_number(p->tensor, offset, number);
        put_text(p, "%*s", dim > 0 ? p->width : 0, number);
        return;
    }
    size = at->shape.dim[dim];
    put_text(p, "[");
    for (int64_t i = 0; i < size; i = next) {
        next = place_after(p, i, size);
        put_dim(p, dim + 1, offset + i * at->stride[dim]);
        if (next < size) {
            int skipped = next != i + 1;
            int last = dim + 1 == p->tensor->at.shape.ndim;

            /* What stands between two neighbours along dim: rows go to lines
             * of their own, as deep as the brackets that are open. */
            if (last)
                put_text(p, skipped ? ", ..., " : ", ");
            else if (skipped)
                put_text(p, ",\n%*s...,\n%*s", dim + 1, "", dim + 1, "");
            else
                put_text(p, ",\n%*s", dim + 1, "");
        }
    }
    put_text(p, "]");
}

static size_t write_text(const oar_tensor *tensor, char *text, size_t bytes)
{
    page p = { tensor, text, text != NULL ? bytes : 0, 0, 0, 0 };

    if (tensor == NULL) {
        put_text(&p, "no tensor");
        return p.used;
    }
    put_text(&p, "%s %s", oar_dtype_name(tensor->dtype),
             oari_shape_text(tensor->at.shape).text);
    if (!oari_tensor_attached(tensor)) {
        put_text(&p, oari_tensor_retired(tensor)  ? " given up"
                     : oar_tensor_is_lazy(tensor) ? " lazy"
                     : tensor->storage != NULL    ? " detached"
                                                  : " given back");
        return p.used;
    }
    p.shorten = tensor->count > MANY;
    put_text(&p, "\n");
    measure_numbers(&p, 0, tensor->at.offset);
    put_dim(&p, 0, tensor->at.offset);
    return p.used;
}

/* One on a GPU is read from a copy. */
size_t oar_tensor_text(const oar_tensor *tensor, char *text, size_t bytes)
{
    oar_tensor *copy;
    size_t length = 0;

    if (oar_tensor_device(tensor).kind == OAR_CPU ||
        !oari_tensor_attached(tensor))
        return write_text(tensor, text, bytes);
    copy = oari_tensor_make(NULL, tensor->dtype, tensor->at.shape);
    if (copy != NULL && oar_tensor_copy(copy, tensor) == OAR_OK)
        length = write_text(copy, text, bytes);
    else
        length = write_text(NULL, text, bytes);
    oar_tensor_release(copy);
    return length;
}
