/* SPDX-License-Identifier: Apache-2.0 */
/* op_matmul: products of matrices, many at once. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/status.h"
#include "tensor/kernel_table.h"

/* c = a b:  da = dc b',  db = a' dc; summed over what was broadcast. */
static oar_status matmul_back(oari_node *node, int i, const oari_array *to,
                              int add)
{
    oari_pool *pool = &node->tape->pool;
    oari_array grad = oari_array_of(node->grad);
    oari_array other = oari_array_of(node->saved[1 - i]);
    int last = other.at.shape.ndim - 1;

    other.at = oari_layout_transpose(other.at, last - 1, last);
    if (i == 0)
        return OARI_KERNEL(to, matmul, pool, to, add, &grad, &other);
    return OARI_KERNEL(to, matmul, pool, to, add, &other, &grad);
}

static const oari_op_class matmul_op = { .name = "matmul",
                                         .backward = matmul_back,
                                         .reads = { 1u << 1, 1u << 0 } };

static oar_status mismatch(oar_shape a, oar_shape b, const char *why)
{
    return oari_fail(OAR_E_SHAPE, "matmul of %s and %s: %s",
                     oari_shape_text(a).text, oari_shape_text(b).text, why);
}

/* Checks the inputs [.., m, k] and [.., k, n] and gives the product's shape. */
static oar_status check_matmul(oar_tape *tape, oar_tensor *left,
                               oar_tensor *right, oar_shape *shape)
{
    oar_shape a = oar_tensor_shape(left), b = oar_tensor_shape(right);
    oar_shape leads[2] = { a, b };
    int64_t m, k, inner, n;

    OARI_TRY(
        oari_check_inputs("matmul", tape, 2, (oar_tensor *[]){ left, right }));
    OARI_TRY(oari_check_same_dtype("matmul", left, right));
    OARI_TRY(oari_check_float("matmul", left));
    if (a.ndim < 2 || b.ndim < 2)
        return mismatch(a, b, "both need two dims");
    m = a.dim[a.ndim - 2], k = a.dim[a.ndim - 1];
    inner = b.dim[b.ndim - 2], n = b.dim[b.ndim - 1];
    if (k != inner)
        return oari_fail(OAR_E_SHAPE,
                         "matmul of %s and %s: inner sizes %lld and %lld "
                         "differ",
                         oari_shape_text(a).text, oari_shape_text(b).text,
                         (long long)k, (long long)inner);
    leads[0].ndim -= 2;
    leads[1].ndim -= 2;
    if (!oari_shape_broadcast(leads[0], leads[1], shape))
        return mismatch(a, b, "the leading dims do not broadcast");
    shape->dim[shape->ndim++] = m;
    shape->dim[shape->ndim++] = n;
    return OAR_OK;
}

oar_tensor *oar_matmul(oar_tape *tape, oar_tensor *a, oar_tensor *b)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *out;
    oari_array to, x, y;
    oar_shape shape;

    if (check_matmul(tape, a, b, &shape) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(pool, oari_device_of(a), a->dtype, shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    x = oari_array_of(a);
    y = oari_array_of(b);
    if (OARI_KERNEL(&to, matmul, pool, &to, 0, &x, &y) != OAR_OK) {
        oari_tensor_drop(pool, out);
        return NULL;
    }
    return oari_emit(tape, out,
                     &(oari_node_record){
                         .op = &matmul_op,
                         .inputs = 2,
                         .input = { a, b },
                         .saved = { oari_grad_wanted(tape, b) ? a : NULL,
                                    oari_grad_wanted(tape, a) ? b : NULL } });
}
