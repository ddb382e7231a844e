/* SPDX-License-Identifier: Apache-2.0 */
/* op_embedding: rows of a table by index. */
#include <oarsong/ops.h>

#include "autograd/ops/positions.h"
#include "autograd/record.h"
#include "base/status.h"
#include "tensor/operands.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cuda/cuda_kernels.h"

static oar_status embedding_back_gpu(oari_node *node, const oari_array *to,
                                     int add)
{
    oari_array index = oari_array_of(node->saved[0]);
    oari_operands operands = { .pool = &node->tape->pool };
    const oari_array *g = oari_operands_tensor(&operands, node->grad);
    const oari_array *y = oari_operands_out(&operands, to, add);
    void *scratch = oari_operands_scratch(
        &operands, to->device, OAR_U32,
        oari_cuda_add_rows_scratch(node->saved[0]->count, to->at.shape.dim[0]));

    if (operands.status == OAR_OK)
        operands.status =
            oari_cuda_add_rows(y, add, g, &index, node->extra.padding, scratch);
    return oari_operands_finish(&operands);
}

static oar_status embedding_back(oari_node *node, int i, const oari_array *to,
                                 int add)
{
    oari_array index = oari_array_of(node->saved[0]);
    oari_operands operands = { .pool = &node->tape->pool };
    const oari_array *g = oari_operands_tensor(&operands, node->grad);
    const oari_array *y;

    if (to->device.kind == OAR_CUDA)
        return embedding_back_gpu(node, to, add);
    y = oari_operands_out(&operands, to, add);
    if (operands.status == OAR_OK)
        operands.status =
            OARI_KERNEL(y, add_rows, y, add, g, &index, node->extra.padding);
    return oari_operands_finish(&operands);
}

static const oari_op_class embedding_op = { .name = "embedding",
                                            .backward = embedding_back,
                                            .widens = 1 };

static oar_status check_shapes(const oar_tensor *table, const oar_tensor *index)
{
    if (index->dtype != OAR_I64)
        return oari_fail(
            OAR_E_DTYPE, "embedding of table %s at index %s %s: it is i64",
            oari_shape_text(table->at.shape).text, oar_dtype_name(index->dtype),
            oari_shape_text(index->at.shape).text);
    if (table->at.shape.ndim != 2 || index->at.shape.ndim >= OAR_MAX_DIMS)
        return oari_fail(OAR_E_SHAPE,
                         "embedding of table %s at index %s: the table is "
                         "[count, width], the index has at most %d dims",
                         oari_shape_text(table->at.shape).text,
                         oari_shape_text(index->at.shape).text,
                         OAR_MAX_DIMS - 1);
    return OAR_OK;
}

/* What the options say, with defaults. */
typedef struct table_range {
    int64_t first, vocabulary; /* the table's rows are a part of so many */
    int whole;                 /* it has them all */
    int64_t padding;           /* among the table's own rows; -1: none there */
} table_range;

static oar_status read_range(const oar_embedding_opts *opts,
                             const oar_tensor *table, table_range *range)
{
    int64_t count = table->at.shape.dim[0], row;
    oar_embedding_opts o;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    range->whole = o.vocabulary == 0 && o.first == 0;
    range->vocabulary = o.vocabulary != 0 ? o.vocabulary : count;
    range->first = o.first;
    if (range->first < 0 || range->vocabulary < count ||
        range->first > range->vocabulary - count)
        return oari_fail(OAR_E_ARG,
                         "embedding of table %s as rows from %lld on of a "
                         "vocabulary of %lld: it does not fit",
                         oari_shape_text(table->at.shape).text,
                         (long long)o.first, (long long)o.vocabulary);
    if (o.has_padding &&
        (o.padding < -range->vocabulary || o.padding >= range->vocabulary))
        return oari_fail(
            OAR_E_ARG, "embedding of table %s with padding %lld: no such row",
            oari_shape_text(table->at.shape).text, (long long)o.padding);
    row = (o.padding < 0 ? o.padding + range->vocabulary : o.padding) -
          range->first;
    range->padding = o.has_padding && row >= 0 && row < count ? row : -1;
    return OAR_OK;
}

/* index is row-major. */
static oar_status check_range(const oar_tensor *table, const oar_tensor *index,
                              int64_t vocabulary)
{
    const int64_t *at = oar_tensor_const_data(index);

    for (int64_t i = 0; i < index->count; i++)
        if (at[i] < 0 || at[i] >= vocabulary)
            return oari_fail(OAR_E_ARG,
                             "embedding of table %s at index %s: element %lld "
                             "is %lld",
                             oari_shape_text(table->at.shape).text,
                             oari_shape_text(index->at.shape).text,
                             (long long)i, (long long)at[i]);
    return OAR_OK;
}

/* a itself, or a copy row by row. Gives a reference. */
static oar_tensor *row_major(oari_pool *pool, oar_tensor *a)
{
    oar_tensor *copy;
    oari_array to, from = oari_array_of(a);

    if (oari_layout_is_rows(&a->at))
        return oar_tensor_retain(a);
    copy = oari_tensor_make_on(pool, oari_device_of(a), a->dtype, a->at.shape);
    if (copy == NULL)
        return NULL;
    to = oari_array_of(copy);
    return oari_settle(pool, copy, OARI_KERNEL(&to, copy, &to, &from));
}

/* Returns the rows that index, which is row-major, has in the table: -1 for
 * those outside. Gives a reference. */
static oar_tensor *own_rows(oari_pool *pool, const oar_tensor *table,
                            const oar_tensor *index, const table_range *range)
{
    oar_tensor *own = oari_tensor_make(pool, OAR_I64, index->at.shape);
    const int64_t *at = oar_tensor_const_data(index);
    int64_t *row = own != NULL ? oar_tensor_data(own) : NULL;

    for (int64_t i = 0; own != NULL && i < index->count; i++) {
        int64_t k = at[i] - range->first;

        row[i] = k >= 0 && k < table->at.shape.dim[0] ? k : -1;
    }
    return own;
}

/* Returns the rows of table at index, not yet recorded. */
static oar_tensor *pick_rows(oari_pool *pool, oar_tensor *table,
                             const oar_tensor *index)
{
    oar_shape shape = index->at.shape;
    oar_tensor *rows = row_major(pool, table), *out = NULL;
    oari_array to, from, at = oari_array_of(index);

    shape.dim[shape.ndim++] = table->at.shape.dim[1];
    if (rows != NULL)
        out = oari_tensor_make_on(pool, oari_device_of(table), table->dtype,
                                  shape);
    if (out != NULL) {
        to = oari_array_of(out);
        from = oari_array_of(rows);
        out = oari_settle(pool, out,
                          OARI_KERNEL(&to, pick_rows, &to, &from, &at));
    }
    oari_tensor_drop(pool, rows);
    return out;
}

/* The same on a GPU, from indices among the whole vocabulary, which the kernel
 * checks; *own gets the rows of the table, unless that is all of it. */
static oar_tensor *pick_rows_gpu(oari_pool *pool, oar_tensor *table,
                                 const oar_tensor *index,
                                 const table_range *range, oar_tensor **own)
{
    oari_table_part part = { range->first, range->vocabulary };
    oar_device device = oari_device_of(table);
    oar_shape shape = index->at.shape;
    oar_tensor *rows = row_major(pool, table), *out = NULL;
    oari_array to, from, row, at = oari_array_of(index);

    shape.dim[shape.ndim++] = table->at.shape.dim[1];
    if (rows != NULL && !range->whole)
        *own = oari_tensor_make_on(pool, device, OAR_I64, index->at.shape);
    if (rows != NULL && (range->whole || *own != NULL))
        out = oari_tensor_make_on(pool, device, table->dtype, shape);
    if (out != NULL) {
        to = oari_array_of(out);
        from = oari_array_of(rows);
        if (*own != NULL)
            row = oari_array_of(*own);
        out = oari_settle(pool, out,
                          oari_cuda_pick_rows(&to, &from, &at, &part,
                                              *own != NULL ? &row : NULL));
    }
    oari_tensor_drop(pool, rows);
    return out;
}

oar_tensor *oar_embedding_with(oar_tape *tape, oar_tensor *table,
                               oar_tensor *index,
                               const oar_embedding_opts *opts)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *rows, *own = NULL, *out = NULL;
    int on_gpu;
    table_range range = { 0 };

    if (oari_check_inputs("embedding", tape, 2,
                          (oar_tensor *[]){ table, index }) != OAR_OK ||
        check_shapes(table, index) != OAR_OK ||
        read_range(opts, table, &range) != OAR_OK)
        return NULL;
    rows = row_major(pool, index);
    if (rows == NULL)
        return NULL;
    on_gpu = oari_device_of(table).kind == OAR_CUDA;
    if (on_gpu)
        out = pick_rows_gpu(pool, table, rows, &range, &own);
    if (!on_gpu && check_range(table, rows, range.vocabulary) != OAR_OK) {
        oari_tensor_drop(pool, rows);
        return NULL;
    }
    if (!range.whole) {
        if (!on_gpu)
            own = own_rows(pool, table, rows, &range);
        oari_tensor_drop(pool, rows);
        if (own == NULL)
            return NULL;
        rows = own;
    }
    if (!on_gpu)
        out = pick_rows(pool, table, rows);
    out =
        oari_emit(tape, out,
                  &(oari_node_record){ .op = &embedding_op,
                                       .inputs = 1,
                                       .input = { table },
                                       .saved = { rows },
                                       .extra = { .padding = range.padding } });
    oari_tensor_drop(pool, rows);
    return out;
}

oar_tensor *oar_embedding(oar_tape *tape, oar_tensor *table, oar_tensor *index)
{
    return oar_embedding_with(tape, table, index, NULL);
}

oar_tensor *oari_positions(oar_tape *tape, oar_device device, int64_t count)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *out;
    oari_array to;

    if (device.kind != OAR_CUDA)
        return oar_arange(tape, OAR_I64, count, 0, 1);
    out = oari_tensor_make_on(pool, device, OAR_I64, OAR_SHAPE(count));
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    return oari_keep(tape, oari_settle(pool, out, oari_cuda_positions(&to)));
}
