/* SPDX-License-Identifier: Apache-2.0 */
/* op_embedding: rows of a table by index. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/status.h"
#include "tensor/operands.h"
#include "tensor/cpu/nn/nn_kernels.h"

static oar_status embedding_back(oari_node *node, int i, const oari_array *to,
                                 int add)
{
    oari_array index = oari_array_of(node->saved[0]);
    oari_operands operands = { .pool = &node->tape->pool };
    const oari_array *g = oari_operands_tensor(&operands, node->grad);
    const oari_array *y = oari_operands_out(&operands, to, add);

    if (operands.status == OAR_OK)
        oari_add_rows(y, add, g, &index, node->extra.padding);
    return oari_operands_finish(&operands);
}

static const oari_op_class embedding_op = { .name = "embedding",
                                            .backward = embedding_back };

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

/* Sets *padding to the row that gets no gradient, if there is one. */
static oar_status read_padding(const oar_embedding_opts *opts,
                               const oar_tensor *table, int64_t *padding)
{
    int64_t count = table->at.shape.dim[0];
    oar_embedding_opts o;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (o.has_padding && (o.padding < -count || o.padding >= count))
        return oari_fail(
            OAR_E_ARG, "embedding of table %s with padding %lld: no such row",
            oari_shape_text(table->at.shape).text, (long long)o.padding);
    if (o.has_padding)
        *padding = o.padding < 0 ? o.padding + count : o.padding;
    return OAR_OK;
}

/* index is row-major. */
static oar_status check_range(const oar_tensor *table, const oar_tensor *index)
{
    const int64_t *at = oar_tensor_const_data(index);
    int64_t count = table->at.shape.dim[0];

    for (int64_t i = 0; i < index->count; i++)
        if (at[i] < 0 || at[i] >= count)
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
    copy = oari_tensor_make(pool, a->dtype, a->at.shape);
    if (copy == NULL)
        return NULL;
    to = oari_array_of(copy);
    oari_copy(&to, &from);
    return copy;
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
        out = oari_tensor_make(pool, table->dtype, shape);
    if (out != NULL) {
        to = oari_array_of(out);
        from = oari_array_of(rows);
        oari_pick_rows(&to, &from, &at);
    }
    oari_tensor_drop(pool, rows);
    return out;
}

oar_tensor *oar_embedding_with(oar_tape *tape, oar_tensor *table,
                               oar_tensor *index,
                               const oar_embedding_opts *opts)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *rows, *out = NULL;
    int64_t padding = -1; /* none */

    if (oari_check_inputs("embedding", tape, 2,
                          (oar_tensor *[]){ table, index }) != OAR_OK ||
        check_shapes(table, index) != OAR_OK ||
        read_padding(opts, table, &padding) != OAR_OK)
        return NULL;
    rows = row_major(pool, index);
    if (rows == NULL)
        return NULL;
    if (check_range(table, rows) == OAR_OK)
        out = pick_rows(pool, table, rows);
    out = oari_emit(tape, out,
                    &(oari_node_record){ .op = &embedding_op,
                                         .inputs = 1,
                                         .input = { table },
                                         .saved = { rows },
                                         .extra = { .padding = padding } });
    oari_tensor_drop(pool, rows);
    return out;
}

oar_tensor *oar_embedding(oar_tape *tape, oar_tensor *table, oar_tensor *index)
{
    return oar_embedding_with(tape, table, index, NULL);
}
