/* SPDX-License-Identifier: Apache-2.0 */
/* op_unary: functions of one element. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "autograd/saved.h"
#include "base/status.h"
#include "tensor/kernel_table.h"

static oar_status unary_back(oari_node *node, int i, const oari_array *to,
                             int add);
static oar_status unary_rebuild(oari_node *node, const oari_array *to);

#define OP(text)                                               \
    {                                                          \
        .name = (text), .backward = unary_back, .in_place = 1, \
        .rebuild = unary_rebuild, .rebuild_from = 1            \
    }

static const oari_op_class unary_ops[OARI_UNARY_COUNT] = {
#define X(kind) [OARI_UNARY_##kind] = OP(#kind),
    OAR_UNARY_LIST(X)
#undef X
};

static oar_status unary_back(oari_node *node, int i, const oari_array *to,
                             int add)
{
    oari_unary_kind kind = (oari_unary_kind)(node->op - unary_ops);
    oari_array grad = oari_array_of(node->grad), saved = grad;

    if (node->saved[0] != NULL)
        saved = oari_array_of(node->saved[0]);
    if (node->extra.sloped)
        return OARI_KERNEL(to, binary_back, OARI_MUL, 0, to, add, &grad, &grad,
                           &saved);
    return OARI_KERNEL(to, unary_back, kind, to, add, &grad, &saved);
}

/* Computes the result from the saved input. Where nothing else needs that, the
 * slope takes its place: made in the same pass it costs little, and backward,
 * which comes next, has less to do. */
static oar_status unary_rebuild(oari_node *node, const oari_array *to)
{
    oari_unary_kind kind = (oari_unary_kind)(node->op - unary_ops);
    oari_array from = oari_array_of(node->saved[0]);
    const oari_kernel_table *table = oari_kernels_on(to->device);

    node->extra.sloped = oari_saved_alone(node, 0) &&
                         table->unary_split != NULL &&
                         table->unary_split(kind, to, &from);
    if (node->extra.sloped)
        return OAR_OK;
    return OARI_KERNEL(to, unary, kind, to, &from);
}

static oar_tensor *apply_unary(oar_tape *tape, oar_tensor *a,
                               oari_unary_kind kind)
{
    const char *name = unary_ops[kind].name;
    oari_unary_saves saves = oari_unary_saved(kind);
    oar_tensor *out;
    oari_array to, from;

    if (oari_check_inputs(name, tape, 1, &a) != OAR_OK ||
        (oari_unary_on_integers(kind) ? oari_check_number(name, a)
                                      : oari_check_float(name, a)) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(oari_tape_pool(tape), oari_device_of(a), a->dtype,
                              a->at.shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    from = oari_array_of(a);
    if (OARI_KERNEL(&to, unary, kind, &to, &from) != OAR_OK)
        return oari_abandon(tape, out);
    return oari_emit(tape, out,
                     &(oari_node_record){
                         .op = &unary_ops[kind],
                         .inputs = 1,
                         .input = { a },
                         .saved = { saves == OARI_SAVES_INPUT    ? a
                                    : saves == OARI_SAVES_RESULT ? out
                                                                 : NULL } });
}

#define X(name)                                           \
    oar_tensor *oar_##name(oar_tape *tape, oar_tensor *a) \
    {                                                     \
        return apply_unary(tape, a, OARI_UNARY_##name);   \
    }
OAR_UNARY_LIST(X)
#undef X
