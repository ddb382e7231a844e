/* SPDX-License-Identifier: Apache-2.0 */
/* recompute: a module as a single operation that keeps only its input. Both
 * times the module runs on the tape inside the caller's: the first time nothing
 * is recorded; in backward everything is, and backward through that follows at
 * once. Parameters get their gradients there, and their hooks from the outer
 * tape, which counts what they are still owed. */
#include <oarsong/module.h>

#include "autograd/record.h"
#include "autograd/replay.h"
#include "base/dtype.h"
#include "base/call_site.h"
#include "base/status.h"
#include "nn/module.h"
#include "tensor/kernel_table.h"

/* The ticket is a leaf that stands for the parameters: with it the operation is
 * recorded, and asked for, even if x needs no gradient. */
enum { X, TICKET };

/* ---- parameters, for the outer tape -------------------------------------- */

/* Calls fn with the place among the tape's leaves of each parameter that wants
 * a gradient. */
static oar_status each_param(oari_node *node, oar_status (*fn)(oari_leaf *leaf))
{
    const oar_module *module = node->extra.recompute.module;
    int count = oar_module_params(module);

    for (int i = 0; i < count; i++) {
        oar_tensor *param = oar_module_param(module, i);
        int64_t place;

        if (!param->slot.required)
            continue;
        place = oari_leaves_find(&node->tape->leaves, param);
        if (place < 0)
            return OAR_E_NOMEM;
        OARI_TRY(fn(&node->tape->leaves.leaf[place]));
    }
    return OAR_OK;
}

static oar_status remember_leaf(oari_leaf *leaf)
{
    return OAR_OK;
}

static oar_status expect_grad(oari_leaf *leaf)
{
    leaf->pending++;
    return OAR_OK;
}

/* Hooks run here; not while this tape is inside another, which does it. */
static oar_status settle_leaf(oari_leaf *leaf)
{
    if (--leaf->pending > 0 || !leaf->tensor->slot.written)
        return OAR_OK;
    return oari_grad_slot_ready(leaf->tensor);
}

static oar_status count_grad(oari_leaf *leaf)
{
    --leaf->pending;
    return OAR_OK;
}

/* They are known since the operation was recorded: no memory is needed. */
static void recompute_reach(oari_node *node)
{
    each_param(node, expect_grad);
}

/* ---- the second time ----------------------------------------------------- */

/* Runs the module once more, recorded, and backward through it. Gives the input
 * of that run: x as a leaf, if it needs a gradient. */
static oar_status replay_module(oari_node *node, oar_tape *inner,
                                oar_tensor **x)
{
    const oari_extra *extra = &node->extra;
    oar_tensor *y;

    inner->replaying = 1;
    inner->seed_at = extra->recompute.first;
    inner->seeds_end = extra->recompute.first + extra->recompute.count;
    oar_tape_record(inner, 1);
    *x = node->saved[0];
    if (node->input[X].kind != OARI_EDGE_NONE)
        *x = oar_tape_input(inner, *x);
    y = oar_forward(inner, extra->recompute.module, *x);
    if (y == NULL)
        return oar_last_error()->status;
    return oar_backward_from(inner, 1, &y, &node->grad);
}

static oar_status recompute_back(oari_node *node, int i, const oari_array *to,
                                 int add)
{
    oar_tape *inner;
    oar_tensor *x;
    oari_array from;
    oar_status status;

    if (i == TICKET && node->input[X].kind != OARI_EDGE_NONE)
        return OAR_OK; /* done with x */
    inner = oari_replay_tape(node->tape);
    if (inner == NULL)
        return OAR_E_NOMEM;
    status = replay_module(node, inner, &x);
    if (status == OAR_OK && i == X && oar_tensor_grad(x) != NULL) {
        from = oari_array_of(oar_tensor_grad(x));
        status = add ? OARI_KERNEL(to, scale, to, 1, &from, 1)
                     : OARI_KERNEL(to, copy, to, &from);
    } else if (status == OAR_OK && i == X && !add) {
        status = OARI_KERNEL(to, fill, to, 0); /* backward has not reached x */
    }
    inner->replaying = 0;
    oar_tape_reset(inner);
    OARI_TRY(status);
    return each_param(node, node->tape->replaying ? count_grad : settle_leaf);
}

static void recompute_drop(oari_node *node)
{
    oar_module_release(node->extra.recompute.module);
}

static const oari_op_class recompute_op = { .name = "recompute",
                                            .backward = recompute_back,
                                            .reach = recompute_reach,
                                            .drop = recompute_drop };

/* ---- the first time ------------------------------------------------------ */

/* A copy of the result on the outer tape, so that the inner one keeps its
 * memory for the next part. Not owned by the tape yet. */
static oar_tensor *run_first_time(oar_tape *tape, oar_module *module,
                                  oar_tensor *x)
{
    oar_tape *inner = oari_replay_tape(tape);
    oar_tensor *y, *out = NULL;
    oari_array to, from;

    if (inner == NULL)
        return NULL;
    oar_tape_record(inner, 0);
    y = oar_forward(inner, module, x);
    if (y != NULL)
        out = oari_tensor_make_on(&tape->pool, oari_device_of(y), y->dtype,
                                  y->at.shape);
    if (out != NULL) {
        to = oari_array_of(out);
        from = oari_array_of(y);
        out = oari_settle(&tape->pool, out, OARI_KERNEL(&to, copy, &to, &from));
    }
    oar_tape_reset(inner);
    return out;
}

static int wants_any(const oar_tape *tape, const oar_module *module,
                     const oar_tensor *x)
{
    if (oari_grad_wanted(tape, x))
        return 1;
    for (int i = 0; i < oar_module_params(module); i++)
        if (oari_grad_wanted(tape, oar_module_param(module, i)))
            return 1;
    return 0;
}

oar_tensor *oar_recompute_at(const char *file, int line, oar_tape *tape,
                             oar_module *module, oar_tensor *x)
{
    OARI_CALLED_FROM(file, line);
    oar_tensor *ticket, *out;
    oari_extra extra = { .recompute = { .module = module } };

    if (module == NULL || x == NULL) {
        oari_null("recompute");
        return NULL;
    }
    if (tape == NULL || !tape->recording || !wants_any(tape, module, x))
        return oar_forward(tape, module, x);
    ticket = oar_full(tape, OAR_F32, OAR_SCALAR, 0);
    if (ticket != NULL)
        ticket = oar_tape_input(tape, ticket);
    if (ticket == NULL)
        return NULL;
    extra.recompute.first = tape->seeds.count;
    out = run_first_time(tape, module, x);
    extra.recompute.count = tape->seeds.count - extra.recompute.first;
    out = oari_emit(tape, out,
                    &(oari_node_record){ .op = &recompute_op,
                                         .inputs = 2,
                                         .input = { x, ticket },
                                         .saved = { x },
                                         .extra = extra });
    if (out == NULL)
        return NULL;
    oar_module_retain(module); /* the node has it from here on */
    return each_param(out->node, remember_leaf) == OAR_OK ? out : NULL;
}
