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
        oari_dropout(y, add, x, extra->dropout.p, extra->dropout.seed);
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

static oar_status check_dropout(oar_tape *tape, oar_tensor *a, double p)
{
    OARI_TRY(oari_check_inputs("dropout", tape, 1, &a));
    OARI_TRY(oari_check_float("dropout", a));
    if (p >= 0 && p <= 1)
        return OAR_OK;
    return oari_fail(OAR_E_ARG, "dropout of %s with p %g: from 0 to 1",
                     oari_shape_text(a->at.shape).text, p);
}

oar_tensor *oar_dropout(oar_tape *tape, oar_tensor *a, double p, uint64_t seed)
{
    oari_pool *pool = oari_tape_pool(tape);
    oari_extra extra;
    oari_array to;
    oar_tensor *out;

    if (check_dropout(tape, a, p) != OAR_OK)
        return NULL;
    if (p == 0)
        return tape == NULL ? oar_tensor_retain(a) : a;
    if (oari_replay_seed(tape, &seed) != OAR_OK)
        return NULL;
    extra = (oari_extra){ .dropout = { p, seed } };
    out = oari_tensor_make(pool, a->dtype, a->at.shape);
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
