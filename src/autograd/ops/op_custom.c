/* SPDX-License-Identifier: Apache-2.0 */
/* op_custom: operations of the caller's own. The node saves nothing; what the
 * caller's backward reads, its arg holds, which the node owns from the moment
 * that it is recorded. */
#include <oarsong/custom_op.h>

#include "autograd/record.h"
#include "base/status.h"
#include "tensor/kernel_table.h"

_Static_assert((int)OAR_CUSTOM_OP_INPUTS <= (int)OARI_MAX_INPUTS,
               "a node has room for the inputs of a custom operation");

/* Calls the caller's backward with a tensor to write to. */
static oar_status call_backward(const oari_node *node, int i, oar_tensor *into,
                                int add)
{
    oar_status status = node->extra.custom.backward(node->extra.custom.arg, i,
                                                    node->grad, into, add);

    if (status != OAR_OK && oar_last_error()->status != status)
        oari_fail(status, "backward of %s failed: %s", node->extra.custom.name,
                  oar_status_text(status));
    return status;
}

/* `to` is the array of the gradient of a node or a leaf; or, for a half leaf
 * whose gradient is wider, of memory that no tensor has and that is written
 * (add is 0). */
static oar_status custom_back(oari_node *node, int i, const oari_array *to,
                              int add)
{
    const oari_edge *edge = &node->input[i];
    oari_pool *pool = &node->tape->pool;
    const oar_tensor *leaf;
    oar_tensor *half;
    oari_array from;
    oar_status status;

    if (edge->kind == OARI_EDGE_NODE)
        return call_backward(node, i, edge->node->grad, add);
    leaf = node->tape->leaves.leaf[edge->leaf].tensor;
    if (leaf->slot.home->dtype == to->dtype)
        return call_backward(node, i, leaf->slot.home, add);
    half = oari_tensor_make_on(pool, to->device, to->dtype, leaf->at.shape);
    if (half == NULL)
        return OAR_E_NOMEM;
    status = call_backward(node, i, half, 0);
    if (status == OAR_OK) {
        from = oari_array_of(half);
        status = OARI_KERNEL(to, copy, to, &from);
    }
    oari_tensor_drop(pool, half);
    return status;
}

static void custom_drop(oari_node *node)
{
    if (node->extra.custom.drop != NULL)
        node->extra.custom.drop(node->extra.custom.arg);
}

static const oari_op_class custom_op = {
    .name = "custom", .backward = custom_back, .drop = custom_drop, .custom = 1
};

/* Checks that out can become the result of an operation on this tape. */
static oar_status check_out(const oar_tape *tape, const char *name,
                            const oar_tensor *out)
{
    if (oari_tensor_retired(out) || out->storage == NULL)
        return oari_fail(OAR_E_STATE, "%s gives a tensor %s %s", name,
                         oari_shape_text(out->at.shape).text,
                         oari_absence(out));
    if (out->node != NULL)
        return oari_fail(OAR_E_STATE,
                         "%s gives a tensor %s that is the result of %s "
                         "already",
                         name, oari_shape_text(out->at.shape).text,
                         oari_node_name(out->node));
    if (out->slot.required)
        return oari_fail(OAR_E_STATE,
                         "%s gives a tensor %s that is a leaf which requires a "
                         "gradient",
                         name, oari_shape_text(out->at.shape).text);
    if (tape != NULL && out->owner != NULL && out->owner != &tape->pool)
        return oari_fail(OAR_E_STATE,
                         "%s gives a tensor %s that another tape owns", name,
                         oari_shape_text(out->at.shape).text);
    return oari_check_float(name, out);
}

static oar_status check_op(const oar_custom_op *op, oar_custom_op *known)
{
    if (op == NULL)
        return oari_null("record_op");
    OARI_TRY(oari_opts_read(known, sizeof *known, op));
    if (known->name == NULL || known->backward == NULL)
        return oari_fail(OAR_E_ARG,
                         "record_op of an operation without a name or a "
                         "backward");
    return OAR_OK;
}

/* Takes the reference to out, unless the tape has it already, and records the
 * operation. */
static oar_tensor *record_custom(oar_tape *tape, const oar_custom_op *op,
                                 void *arg, int inputs,
                                 oar_tensor *const *input, oar_tensor *out)
{
    oari_node_record recipe = { .op = &custom_op, .inputs = inputs };

    for (int i = 0; i < inputs; i++)
        recipe.input[i] = input[i];
    recipe.extra.custom.name = op->name;
    recipe.extra.custom.backward = op->backward;
    recipe.extra.custom.drop = op->drop;
    recipe.extra.custom.arg = arg;
    if (tape == NULL || out->owner != NULL)
        return oari_record(tape, out, &recipe);
    return oari_emit(tape, out, &recipe);
}

/* Refuses inputs and out, or passes. */
static oar_status check_record(oar_tape *tape, const char *name, int inputs,
                               oar_tensor *const *input, const oar_tensor *out)
{
    if (inputs < 0 || inputs > OAR_CUSTOM_OP_INPUTS ||
        (inputs > 0 && input == NULL))
        return oari_fail(OAR_E_ARG, "%s of %d inputs: from 0 to %d", name,
                         inputs, (int)OAR_CUSTOM_OP_INPUTS);
    if (out == NULL)
        return oari_null(name);
    OARI_TRY(oari_check_inputs(name, tape, inputs, input));
    return check_out(tape, name, out);
}

oar_tensor *oar_record_op(oar_tape *tape, const oar_custom_op *op, void *arg,
                          int inputs, oar_tensor *const *input, oar_tensor *out)
{
    oar_custom_op known = { .name = NULL };
    oar_tensor *made = NULL;
    oar_status status = check_op(op, &known);
    int valid = status == OAR_OK;

    if (valid)
        status = check_record(tape, known.name, inputs, input, out);
    if (status == OAR_OK)
        made = record_custom(tape, &known, arg, inputs, input, out);
    else if (out != NULL && out->owner == NULL)
        oar_tensor_release(out); /* does nothing to one that was given up */
    if (valid && known.drop != NULL && (made == NULL || made->node == NULL))
        known.drop(arg);
    return made;
}
