/* SPDX-License-Identifier: Apache-2.0 */
/* walk_flat: a walk on which every row is contiguous and no row is of halves.
 *
 * Rows that are so already go to the function whole. Of the others each block
 * is gathered to the stack, where it stays in the first cache, and the result
 * is put back where it belongs. */
#include "base/dtype.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/walk.h"

enum { BLOCK = 512 }; /* elements */

typedef struct job {
    int arrays, reads;
    int first; /* the arrays before it go as they lie */
    oar_dtype dtype[OARI_WALK_ARRAYS];
    oari_walk_fn fn;
    void *arg;
} job;

static void *element_at(const oari_walk_row *row, int k, int64_t i,
                        oar_dtype dtype)
{
    return (char *)row->data[k] +
           i * row->stride[k] * (int64_t)oar_dtype_size(dtype);
}

static void gather_block(void *to, const void *from, int64_t stride,
                         int64_t count, size_t bytes)
{
    OARI_BY_BYTES(bytes, {
        T *y = to;
        const T *a = from;
        if (stride == 0)
            for (int64_t i = 0; i < count; i++)
                y[i] = *a;
        else
            for (int64_t i = 0; i < count; i++)
                y[i] = a[i * stride];
    })
}

/* Brings a block of a row to `flat`; returns where it is now. */
static void *flatten_block(void *flat, const oari_walk_row *row, int k,
                           int64_t first, int64_t count, oar_dtype dtype)
{
    void *from = element_at(row, k, first, dtype);
    uint16_t halves[BLOCK];

    if (!oari_dtype_is_half(dtype)) {
        if (row->stride[k] == 1)
            return from;
        gather_block(flat, from, row->stride[k], count, oar_dtype_size(dtype));
        return flat;
    }
    if (row->stride[k] != 1) {
        gather_block(halves, from, row->stride[k], count, sizeof *halves);
        from = halves;
    }
    oari_convert(flat, OAR_F32, from, dtype, (size_t)count);
    return flat;
}

/* Puts a block of the result back from `flat`. */
static void store_block(const void *flat, const oari_walk_row *row,
                        int64_t first, int64_t count, oar_dtype dtype)
{
    void *to = element_at(row, 0, first, dtype);
    int64_t stride = row->stride[0];
    uint16_t halves[BLOCK];

    if (oari_dtype_is_half(dtype)) {
        oari_convert(stride == 1 ? to : halves, dtype, flat, OAR_F32,
                     (size_t)count);
        if (stride == 1)
            return;
        flat = halves;
    }
    OARI_BY_BYTES(oar_dtype_size(dtype), {
        T *y = to;
        const T *a = flat;
        for (int64_t i = 0; i < count; i++)
            y[i * stride] = a[i];
    })
}

static int is_flat(const oari_walk_row *row, const job *j, int k)
{
    return k < j->first || (!oari_dtype_is_half(j->dtype[k]) &&
                            (row->stride[k] == 1 || row->count == 1));
}

static void run_block(const oari_walk_row *row, const job *j, int64_t first,
                      int64_t count)
{
    uint64_t flat[OARI_WALK_ARRAYS][BLOCK];
    oari_walk_row block = { .count = count };

    for (int k = 0; k < j->first; k++) {
        block.stride[k] = row->stride[k];
        block.data[k] = element_at(row, k, first, j->dtype[k]);
    }
    for (int k = j->first; k < j->arrays; k++) {
        block.stride[k] = 1;
        if (k > 0 || j->reads || is_flat(row, j, k))
            block.data[k] =
                flatten_block(flat[k], row, k, first, count, j->dtype[k]);
        else
            block.data[k] = flat[k];
    }
    j->fn(&block, j->arg);
    if (block.data[0] == flat[0])
        store_block(flat[0], row, first, count, j->dtype[0]);
}

static void run_row(const oari_walk_row *row, void *arg)
{
    const job *j = arg;
    int flat = 1;

    for (int k = 0; k < j->arrays; k++)
        flat &= is_flat(row, j, k);
    if (flat)
        j->fn(row, j->arg);
    else
        for (int64_t i = 0; i < row->count; i += BLOCK)
            run_block(row, j, i,
                      row->count - i < BLOCK ? row->count - i : BLOCK);
}

void oari_walk_flat(oar_shape shape, int arrays, const oari_array *const *array,
                    int reads, oari_walk_fn fn, void *arg)
{
    job j = { .arrays = arrays, .reads = reads, .fn = fn, .arg = arg };

    for (int k = 0; k < arrays; k++)
        j.dtype[k] = array[k]->dtype;
    oari_walk(shape, arrays, array, run_row, &j);
}

void oari_walk_into(oar_shape shape, int arrays, const oari_array *const *array,
                    oari_walk_fn fn, void *arg)
{
    job j = { .arrays = arrays, .first = 1, .fn = fn, .arg = arg };

    for (int k = 0; k < arrays; k++)
        j.dtype[k] = array[k]->dtype;
    oari_walk(shape, arrays, array, run_row, &j);
}
