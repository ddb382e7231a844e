/* SPDX-License-Identifier: Apache-2.0 */
/* op_dropout: elements left out at random. Which ones follows from the seed, so
 * backward draws them again instead of keeping a mask. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "autograd/replay.h"
#include "base/status.h"
#include "tensor/operands.h"
#include "tensor/cpu/nn/nn_kernels.h"

static oar_status drop_elements(oari_pool *pool, const oari_array *to, int add,
                                const oar_tensor *from, const oari_extra *extra)
{
    oari_operands operands = { .pool = pool };
    const oari_array *x = oari_operands_tensor(&operands, from);
    const oari_array *y = oari_operands_out(&operands, to, add);

    if (operands.status == OAR_OK)
        operands.status = OARI_KERNEL(y, dropout, y, add, x, extra->dropout.p,
                                      extra->dropout.seed, extra->dropout.first,
                                      extra->dropout.stride);
    return oari_operands_finish(&operands);
}

static oar_status dropout_back(oari_node *node, int i, const oari_array *to,
                               int add)
{
    return drop_elements(&node->tape->pool, to, add, node->grad, &node->extra);
}

static const oari_op_class dropout_op = { .name = "dropout",
                                          .backward = dropout_back,
                                          .in_place = 1 };

/* Writes where the elements of a lie in the whole into extra. */
static oar_status read_place(const oar_part_place *place, const oar_tensor *a,
                             oari_extra *extra)
{
    const oar_shape *s = &a->at.shape;
    oari_layout rows = oari_layout_rows(*s);
    oar_part_place o;
    int64_t last;
    int given = 0;

    OARI_TRY(oari_opts_read(&o, sizeof o, place));
    last = o.first;
    for (int i = 0; i < s->ndim; i++)
        given |= o.stride[i] != 0;
    for (int i = 0; i < s->ndim; i++) {
        int64_t stride = given ? o.stride[i] : rows.stride[i], span;

        extra->dropout.stride[i] = stride;
        if (o.first < 0 || stride < 0 ||
            (s->dim[i] > 0 &&
             (__builtin_mul_overflow(s->dim[i] - 1, stride, &span) ||
              __builtin_add_overflow(last, span, &last))))
            return oari_fail(OAR_E_ARG,
                             "dropout of a part %s from %lld on with stride "
                             "%lld of dim %d: there are no such positions",
                             oari_shape_text(*s).text, (long long)o.first,
                             (long long)stride, i);
    }
    if (o.first < 0)
        return oari_fail(OAR_E_ARG, "dropout of a part %s from %lld on",
                         oari_shape_text(*s).text, (long long)o.first);
    extra->dropout.first = o.first;
    return OAR_OK;
}

oar_tensor *oar_dropout_part(oar_tape *tape, oar_tensor *a, double p,
                             uint64_t seed, const oar_part_place *place)
{
    oari_pool *pool = oari_tape_pool(tape);
    oari_extra extra = { .dropout = { .p = p } };
    oari_array to;
    oar_tensor *out;

    if (oari_check_inputs("dropout", tape, 1, &a) != OAR_OK ||
        oari_check_float("dropout", a) != OAR_OK)
        return NULL;
    if (!(p >= 0 && p <= 1)) {
        oari_fail(OAR_E_ARG, "dropout of %s with p %g: from 0 to 1",
                  oari_shape_text(a->at.shape).text, p);
        return NULL;
    }
    if (read_place(place, a, &extra) != OAR_OK)
        return NULL;
    if (p == 0)
        return tape == NULL ? oar_tensor_retain(a) : a;
    if (oari_replay_seed(tape, &seed) != OAR_OK)
        return NULL;
    extra.dropout.seed = seed;
    out = oari_tensor_make_on(pool, oari_device_of(a), a->dtype, a->at.shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    if (drop_elements(pool, &to, 0, a, &extra) != OAR_OK) {
        oari_tensor_drop(pool, out);
        return NULL;
    }
    return oari_emit(
        tape, out,
        &(oari_node_record){
            .op = &dropout_op, .inputs = 1, .input = { a }, .extra = extra });
}

oar_tensor *oar_dropout(oar_tape *tape, oar_tensor *a, double p, uint64_t seed)
{
    return oar_dropout_part(tape, a, p, seed, NULL);
}
