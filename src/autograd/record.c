/* SPDX-License-Identifier: Apache-2.0 */
/* record: the funnel that all operations go through. */
#include "autograd/record.h"

#include <oarsong/device.h>

#include "autograd/saved.h"
#include "base/dtype.h"
#include "base/status.h"

static oar_status refuse_devices(const char *name, const oar_tensor *a,
                                 const oar_tensor *b)
{
    return oari_fail(OAR_E_DEVICE,
                     "%s of %s on %s and %s on %s: bring them to one device "
                     "with oar_to",
                     name, oari_shape_text(a->at.shape).text,
                     oar_device_text(oari_device_of(a)).text,
                     oari_shape_text(b->at.shape).text,
                     oar_device_text(oari_device_of(b)).text);
}

oar_status oari_check_inputs(const char *name, oar_tape *tape, int inputs,
                             oar_tensor *const *input)
{
    for (int i = 0; i < inputs; i++)
        if (input[i] == NULL)
            return oari_null(name);
    for (int i = 0; i < inputs; i++) {
        if (!oari_tensor_attached(input[i]))
            return oari_fail(OAR_E_STATE, "%s of a tensor %s %s", name,
                             oari_shape_text(input[i]->at.shape).text,
                             oari_absence(input[i]));
        if (!oari_device_equal(input[i]->storage->device,
                               input[0]->storage->device))
            return refuse_devices(name, input[0], input[i]);
        if (tape != NULL && tape->recording && input[i]->node != NULL &&
            input[i]->node->tape != tape)
            return oari_fail(
                OAR_E_STATE,
                "%s of a tensor %s that was computed on another tape: "
                "bring it over with oar_tape_input",
                name, oari_shape_text(input[i]->at.shape).text);
    }
    return OAR_OK;
}

oar_status oari_check_on_cpu(const char *name, const oar_tensor *a)
{
    if (oari_device_of(a).kind == OAR_CPU)
        return OAR_OK;
    return oari_fail(OAR_E_DEVICE,
                     "%s of a tensor %s on %s: it is there on the cpu only; "
                     "move it with oar_to",
                     name, oari_shape_text(a->at.shape).text,
                     oar_device_text(oari_device_of(a)).text);
}

oar_status oari_check_number(const char *name, const oar_tensor *a)
{
    if (a->dtype != OAR_BOOL)
        return OAR_OK;
    return oari_fail(OAR_E_DTYPE, "%s of bool %s: only floats and integers",
                     name, oari_shape_text(a->at.shape).text);
}

oar_status oari_check_float(const char *name, const oar_tensor *a)
{
    if (oari_dtype_is_float(a->dtype))
        return OAR_OK;
    return oari_fail(OAR_E_DTYPE, "%s of %s %s: only floats", name,
                     oar_dtype_name(a->dtype),
                     oari_shape_text(a->at.shape).text);
}

oar_status oari_check_same_dtype(const char *name, const oar_tensor *a,
                                 const oar_tensor *b)
{
    if (a->dtype == b->dtype)
        return OAR_OK;
    return oari_fail(
        OAR_E_DTYPE, "%s of %s %s and %s %s: dtypes differ", name,
        oar_dtype_name(a->dtype), oari_shape_text(a->at.shape).text,
        oar_dtype_name(b->dtype), oari_shape_text(b->at.shape).text);
}

int oari_grad_wanted(const oar_tape *tape, const oar_tensor *a)
{
    return tape != NULL && tape->recording && a != NULL &&
           (a->node != NULL || a->slot.required);
}

static oar_status make_edge(oar_tape *tape, oar_tensor *a, oari_edge *edge)
{
    if (!oari_grad_wanted(tape, a))
        return OAR_OK;
    if (a->node != NULL) {
        edge->kind = OARI_EDGE_NODE;
        edge->node = a->node;
        return OAR_OK;
    }
    edge->kind = a->slot.input ? OARI_EDGE_INPUT : OARI_EDGE_LEAF;
    edge->leaf = oari_leaves_find(&tape->leaves, a);
    return edge->leaf < 0 ? OAR_E_NOMEM : OAR_OK;
}

static oar_status record_node(oar_tape *tape, oar_tensor *out,
                              const oari_node_record *recipe)
{
    oari_node *node = oari_tape_node(tape);

    if (node == NULL)
        return OAR_E_NOMEM;
    node->op = recipe->op;
    node->out = out;
    node->inputs = recipe->inputs;
    node->extra = recipe->extra;
    for (int i = 0; i < recipe->inputs; i++)
        OARI_TRY(make_edge(tape, recipe->input[i], &node->input[i]));
    for (int i = 0; i < OARI_MAX_SAVED; i++)
        oari_save(node, i, recipe->saved[i]);
    out->node = node;
    tape->nodes++;
    return OAR_OK;
}

oar_tensor *oari_keep(oar_tape *tape, oar_tensor *out)
{
    if (out == NULL || tape == NULL)
        return out;
    return oari_pool_own(&tape->pool, out) == OAR_OK ? out : NULL;
}

oar_tensor *oari_abandon(oar_tape *tape, oar_tensor *out)
{
    oari_tensor_drop(oari_tape_pool(tape), out);
    return NULL;
}

oar_tensor *oari_record(oar_tape *tape, oar_tensor *out,
                        const oari_node_record *recipe)
{
    int wanted = 0;

    for (int i = 0; i < recipe->inputs; i++)
        wanted |= oari_grad_wanted(tape, recipe->input[i]);
    if (wanted && record_node(tape, out, recipe) != OAR_OK)
        return NULL; /* out stays the tape's until reset */
    return out;
}

oar_tensor *oari_emit(oar_tape *tape, oar_tensor *out,
                      const oari_node_record *recipe)
{
    if (oari_keep(tape, out) == NULL)
        return NULL;
    return oari_record(tape, out, recipe);
}
