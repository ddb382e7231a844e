/* SPDX-License-Identifier: Apache-2.0 */
/* backward: one walk over the nodes, from the last to the first.
 *
 * Before it, the nodes that the roots reach are marked and each leaf is told
 * how many contributions it will get, so its hooks run at the last one, while
 * the rest of the walk is still to come. A gradient is written where it will
 * stay: the first contribution stores, the others add. A whole pass and the two
 * halves make the same contributions in the same order to the same memory, so
 * they leave the same bits. */
#include <oarsong/device.h>

#include "autograd/fused_backward.h"
#include "autograd/saved.h"
#include "base/call_site.h"
#include "base/status.h"
#include "tensor/operands.h"

/* Whether a pass computes the gradient of what the edge leads to. */
static int wants(oar_pass which, const oari_edge *edge)
{
    switch (edge->kind) {
    case OARI_EDGE_NODE:
    case OARI_EDGE_INPUT: return which != OAR_PASS_WEIGHTS;
    case OARI_EDGE_LEAF: return which != OAR_PASS_INPUTS;
    case OARI_EDGE_NONE: break;
    }
    return 0;
}

static int wants_any(oar_pass which, const oari_node *node)
{
    for (int i = 0; i < node->inputs; i++)
        if (wants(which, &node->input[i]))
            return 1;
    return 0;
}

/* The saved tensors that the pass reads for the gradients it computes: all that
 * are not waiting in the node already. */
static unsigned read_by(oar_pass which, const oari_node *node)
{
    unsigned mask = 0;

    for (int i = 0; i < node->inputs; i++)
        if (wants(which, &node->input[i]) && node->fused_grad[i] == NULL)
            mask |= node->op->reads[i] != 0 ? node->op->reads[i]
                                            : (unsigned)OARI_READS_ALL;
    return mask;
}

/* ---- before the walk: what will be reached ------------------------------- */

static void forget_reached(oar_tape *tape)
{
    for (int64_t i = 0; i < tape->nodes; i++)
        tape->node[i]->reached = 0;
    for (int64_t i = 0; i < tape->leaves.count; i++)
        tape->leaves.leaf[i].pending = 0;
}

/* Marks what node was computed from, and counts what it will give to leaves; in
 * the first half also what the second will, for a leaf that gets something in
 * both is complete only then. */
static void reach_inputs(oar_tape *tape, oari_node *node, oar_pass which)
{
    if (node->op->reach != NULL)
        node->op->reach(node);
    for (int i = 0; i < node->inputs; i++) {
        const oari_edge *edge = &node->input[i];

        if (!wants(which, edge) && edge->kind != OARI_EDGE_LEAF)
            continue;
        if (edge->kind == OARI_EDGE_NODE)
            edge->node->reached++;
        else
            tape->leaves.leaf[edge->leaf].pending++;
    }
}

/* Follows the edges down from the roots, which are marked already. */
static oar_status reach_nodes(oar_tape *tape, oar_pass which)
{
    int64_t reached = 0;

    for (int64_t i = tape->nodes - 1; i >= 0; i--) {
        oari_node *node = tape->node[i];

        /* A module's marks are reached if the count of reached nodes grew
         * between its end and its begin. */
        if (node->op == NULL && node->mark.is_end) {
            node->mark.above = reached;
        } else if (node->op == NULL && node->mark.end != 0) {
            oari_node *end = tape->node[node->mark.end];

            node->reached = end->reached = reached > end->mark.above;
        }
        if (node->op == NULL || !node->reached)
            continue;
        if (node->state != OARI_RECORDED)
            return oari_fail(OAR_E_STATE,
                             "backward through %s a second time: what it had "
                             "saved was given back by the first",
                             oari_node_name(node));
        reach_inputs(tape, node, which);
        reached++;
    }
    return OAR_OK;
}

/* A leaf that has moved may be of another dtype than what was computed from it,
 * and has other numbers. */
static oar_status check_leaf(const oari_leaf *leaf)
{
    if (leaf->rebases == leaf->tensor->rebases)
        return OAR_OK;
    return oari_fail(OAR_E_STATE,
                     "backward to a leaf %s that oar_tensor_rebase has moved "
                     "since it was recorded: reset the tape",
                     oari_shape_text(leaf->tensor->at.shape).text);
}

static oar_status check_leaves(const oar_tape *tape)
{
    for (int64_t i = 0; i < tape->leaves.count; i++)
        if (tape->leaves.leaf[i].pending > 0)
            OARI_TRY(check_leaf(&tape->leaves.leaf[i]));
    return OAR_OK;
}

/* ---- the walk ------------------------------------------------------------ */

/* Whether the gradient of input i can take over the memory of node's own: this
 * is the last use of that one, and the first contribution to the other. */
static int can_take_over(const oari_node *node, int i, oar_pass which)
{
    const oari_node *from = node->input[i].node;

    if (!node->op->in_place || from->grad != NULL ||
        from->out->count != node->out->count ||
        !oari_storage_alone(node->grad->storage))
        return 0;
    if (which == OAR_PASS_INPUTS && wants_any(OAR_PASS_WEIGHTS, node) &&
        node->op->fused_backward == NULL)
        return 0;
    for (int k = i + 1; k < node->inputs; k++)
        if (wants(which, &node->input[k]) && node->op->fused_backward == NULL)
            return 0;
    return 1;
}

oar_status oari_own_grad(oari_node *node)
{
    oari_pool *pool = &node->tape->pool;
    oar_tensor *own;
    oari_array to, from;
    oar_status status;

    if (oari_storage_alone(node->grad->storage))
        return OAR_OK;
    own = oari_tensor_make_on(pool, oari_device_of(node->grad),
                              node->grad->dtype, node->grad->at.shape);
    if (own == NULL)
        return OAR_E_NOMEM;
    to = oari_array_of(own);
    from = oari_array_of(node->grad);
    status = OARI_KERNEL(&to, copy, &to, &from);
    oari_tensor_drop(pool, node->grad);
    node->grad = own;
    return status;
}

static oar_status backward_input(oari_node *node, int i, const oari_array *to,
                                 int add)
{
    if (node->op->fused_backward != NULL)
        return oari_fused_backward(node, i, to, add);
    return node->op->backward(node, i, to, add);
}

/* Adds the gradient of input i to that of the node which the input comes from.
 * The first contribution makes the gradient; where it is the result's own, both
 * nodes share it until one of them is written to. */
static oar_status give_to_node(oari_node *node, int i, oar_pass which)
{
    oari_node *from = node->input[i].node;
    oari_pool *pool = &node->tape->pool;
    oari_layout at = oari_layout_rows(from->out->at.shape);
    int add = from->grad != NULL;
    oari_array to;

    if (add) {
        OARI_TRY(oari_own_grad(from));
    } else if (node->op->passes && from->out->dtype == node->grad->dtype &&
               oari_shape_equal(from->out->at.shape, node->grad->at.shape)) {
        from->grad = oari_tensor_over(pool, node->grad->storage,
                                      node->grad->dtype, &node->grad->at);
        return from->grad != NULL ? OAR_OK : OAR_E_NOMEM;
    } else if (can_take_over(node, i, which)) {
        from->grad =
            oari_tensor_over(pool, node->grad->storage, node->grad->dtype, &at);
    } else {
        if (which == OAR_PASS_INPUTS) /* it may stay until the second half */
            pool->lends = OARI_LENDS_SOME;
        from->grad = oari_tensor_make_on(pool, oari_device_of(from->out),
                                         from->out->dtype, at.shape);
        pool->lends = OARI_LENDS_LARGE;
    }
    if (from->grad == NULL)
        return OAR_E_NOMEM;
    to = oari_array_of(from->grad);
    return backward_input(node, i, &to, add);
}

/* Gives a half leaf its contribution by way of memory of its own dtype, and
 * adds it to a gradient in f32. */
static oar_status give_widened(oari_node *node, int i, const oar_tensor *leaf,
                               const oari_array *to)
{
    oari_pool *pool = &node->tape->pool;
    oar_tensor *half = oari_tensor_make_on(pool, oari_device_of(leaf),
                                           leaf->dtype, leaf->at.shape);
    oari_operands operands = { .pool = pool };
    const oari_array *wide;
    oari_array from;
    oar_status status;

    if (half == NULL)
        return OAR_E_NOMEM;
    from = oari_array_of(half);
    status = backward_input(node, i, &from, 0);
    if (status == OAR_OK) {
        wide = oari_operands_in(&operands, &from);
        if (operands.status == OAR_OK)
            operands.status =
                OARI_KERNEL(to, scale, to, leaf->slot.written, wide, 1);
        status = oari_operands_finish(&operands);
    }
    oari_tensor_drop(pool, half);
    return status;
}

static oar_status give_to_leaf(oari_node *node, int i)
{
    const oari_leaf *leaf = &node->tape->leaves.leaf[node->input[i].leaf];
    oar_tensor *tensor = leaf->tensor;
    oari_array to;

    OARI_TRY(check_leaf(leaf)); /* a hook may have moved it */
    OARI_TRY(oari_grad_slot_open(&node->tape->pool, tensor));
    to = oari_array_of(tensor->slot.home);
    if (to.dtype == tensor->dtype || node->op->widens ||
        node->op->fused_backward != NULL)
        OARI_TRY(backward_input(node, i, &to, tensor->slot.written));
    else
        OARI_TRY(give_widened(node, i, tensor, &to));
    tensor->slot.written = 1;
    tensor->slot.home->storage->version++;
    return OAR_OK;
}

oar_status oari_part_done(const oari_node *node, int i, int64_t done,
                          int64_t count, int64_t *next)
{
    const oari_edge *edge = &node->input[i];
    const oari_leaf *leaf;

    *next = count;
    if (edge->kind == OARI_EDGE_NODE || node->tape->replaying)
        return OAR_OK;
    leaf = &node->tape->leaves.leaf[edge->leaf];
    return leaf->pending == 1 ? oari_grad_slot_part(leaf->tensor, done, next)
                              : OAR_OK;
}

/* Tells the leaves that got their last contribution. After the whole node, so
 * that a hook may change a weight that its backward has just read. */
static oar_status notify_leaves(oari_node *node, oar_pass which)
{
    if (node->tape->replaying) /* the outer tape knows what is still to come */
        return OAR_OK;
    for (int i = 0; i < node->inputs; i++) {
        const oari_edge *edge = &node->input[i];
        oari_leaf *leaf;

        if (edge->kind == OARI_EDGE_NODE || !wants(which, edge))
            continue;
        leaf = &node->tape->leaves.leaf[edge->leaf];
        if (--leaf->pending == 0)
            OARI_TRY(oari_grad_slot_ready(leaf->tensor));
    }
    return OAR_OK;
}

/* Keeps what the weights half reads, and gives up the rest. */
static void hold_node(oari_node *node)
{
    unsigned mask = read_by(OAR_PASS_WEIGHTS, node);

    node->state = OARI_HELD;
    for (int k = 0; k < OARI_MAX_SAVED; k++)
        if (!(mask >> k & 1))
            oari_unsave(node, k);
    if (mask == 0) { /* all that is left to compute waits in the node */
        oari_tensor_drop(&node->tape->pool, node->grad);
        node->grad = NULL;
    }
    oari_release_if_unused(node->out);
}

static oar_status run_node(oari_node *node, oar_pass which)
{
    unsigned mask = read_by(which, node);

    OARI_TRY(oari_rebuild_saved(node, mask));
    OARI_TRY(oari_check_saved(node, mask));
    if (which == OAR_PASS_INPUTS)
        OARI_TRY(oari_rebuild_for_held(node));
    for (int i = 0; i < node->inputs; i++) {
        const oari_edge *edge = &node->input[i];

        if (!wants(which, edge))
            continue;
        if (edge->kind == OARI_EDGE_NODE)
            OARI_TRY(give_to_node(node, i, which));
        else
            OARI_TRY(give_to_leaf(node, i));
    }
    if (which == OAR_PASS_INPUTS && wants_any(OAR_PASS_WEIGHTS, node)) {
        hold_node(node);
    } else {
        oari_node_spend(node);
        oari_release_if_unused(node->out);
    }
    return notify_leaves(node, which);
}

static oar_status walk_nodes(oar_tape *tape, oar_pass which)
{
    for (int64_t i = tape->nodes - 1; i >= 0; i--) {
        oari_node *node = tape->node[i];

        if (!node->reached)
            continue;
        if (node->op != NULL)
            OARI_TRY(run_node(node, which));
        else if (which != OAR_PASS_WEIGHTS)
            OARI_TRY(node->mark.fn(tape, node->mark.arg, node->mark.is_end));
    }
    return OAR_OK;
}

/* ---- after the walk ------------------------------------------------------ */

/* Runs them all, whatever becomes of each; the first failure counts. What they
 * defer themselves is for the next pass. */
static oar_status run_deferred(oar_tape *tape)
{
    int64_t count = tape->deferred_running = tape->deferred.count;
    oar_error first = { .status = OAR_OK };

    for (int64_t i = 0; i < count; i++) {
        oari_deferred d = tape->deferred.data[i];
        oar_status status = d.fn(d.arg);

        if (status == OAR_OK || first.status != OAR_OK)
            continue;
        oari_hook_failed("deferred", status);
        first = *oar_last_error();
    }
    for (int64_t i = count; i < tape->deferred.count; i++)
        tape->deferred.data[i - count] = tape->deferred.data[i];
    tape->deferred.count -= count;
    tape->deferred_running = 0;
    return first.status != OAR_OK ? oari_fail_with(&first) : OAR_OK;
}

/* After a failure in the middle nothing of this pass can be run again. */
static void spend_reached(oar_tape *tape)
{
    for (int64_t i = 0; i < tape->nodes; i++)
        if (tape->node[i]->reached)
            oari_node_spend(tape->node[i]);
}

static oar_status finish_pass(oar_tape *tape, oar_pass which)
{
    oar_status status;

    tape->pass = which;
    tape->pool.lends = OARI_LENDS_LARGE;
    status = walk_nodes(tape, which);
    if (status != OAR_OK)
        spend_reached(tape);
    else if (which == OAR_PASS_INPUTS)
        tape->halved = 1;
    else
        status = run_deferred(tape);
    if (status != OAR_OK || which != OAR_PASS_INPUTS)
        oari_tape_tell_end(tape, status);
    tape->pass = OAR_PASS_NONE;
    tape->pool.lends = OARI_LENDS_NONE;
    return status;
}

/* ---- the calls ----------------------------------------------------------- */

static oar_status check_root(const oar_tape *tape, const oar_tensor *root,
                             const oar_tensor *seed)
{
    if (root == NULL) {
        oari_null("backward");
        return oar_last_error()->status; /* of the call that made the NULL */
    }
    if (oari_tensor_retired(root))
        return oari_fail(OAR_E_STATE, "backward from a tensor %s %s",
                         oari_shape_text(root->at.shape).text,
                         oari_absence(root));
    if (root->node == NULL || root->node->tape != tape)
        return oari_fail(OAR_E_STATE,
                         "backward from a tensor %s that was not recorded on "
                         "this tape",
                         oari_shape_text(root->at.shape).text);
    if (seed == NULL)
        return OAR_OK;
    if (!oari_shape_equal(root->at.shape, seed->at.shape))
        return oari_fail(OAR_E_SHAPE,
                         "backward from a tensor %s with a gradient %s: shapes "
                         "differ",
                         oari_shape_text(root->at.shape).text,
                         oari_shape_text(seed->at.shape).text);
    if (root->dtype != seed->dtype)
        return oari_fail(OAR_E_DTYPE,
                         "backward from a tensor %s of %s with a gradient of "
                         "%s: dtypes differ",
                         oari_shape_text(root->at.shape).text,
                         oar_dtype_name(root->dtype),
                         oar_dtype_name(seed->dtype));
    if (!oari_tensor_attached(seed))
        return oari_fail(OAR_E_STATE, "backward from a gradient %s %s",
                         oari_shape_text(seed->at.shape).text,
                         oari_absence(seed));
    if (!oari_device_equal(oari_device_of(root), oari_device_of(seed)))
        return oari_fail(OAR_E_DEVICE,
                         "backward from a tensor %s on %s with a gradient on "
                         "%s",
                         oari_shape_text(root->at.shape).text,
                         oar_device_text(oari_device_of(root)).text,
                         oar_device_text(oari_device_of(seed)).text);
    return OAR_OK;
}

/* Starts the gradient of a root, or adds to it: a root may be given twice. The
 * copy is the walk's own, to be overwritten. */
static oar_status seed_root(oar_tensor *root, const oar_tensor *seed)
{
    oari_pool *pool = &root->node->tape->pool;
    oar_tensor *grad = oari_tensor_make_on(pool, oari_device_of(root),
                                           root->dtype, root->at.shape);
    oari_array to, from;
    oar_status status;

    if (grad == NULL)
        return OAR_E_NOMEM;
    to = oari_array_of(grad);
    if (seed == NULL) {
        status = OARI_KERNEL(&to, fill, &to, 1);
    } else {
        from = oari_array_of(seed);
        status = OARI_KERNEL(&to, copy, &to, &from);
    }
    if (root->node->grad != NULL) {
        from = oari_array_of(root->node->grad);
        if (status == OAR_OK)
            status = OARI_KERNEL(&to, scale, &to, 1, &from, 1);
        oari_tensor_drop(pool, root->node->grad);
    }
    root->node->grad = grad;
    return status;
}

static oar_status start_pass(oar_tape *tape, int roots, oar_tensor *const *root,
                             oar_tensor *const *seed, oar_pass which)
{
    if (tape == NULL || roots < 1 || root == NULL)
        return oari_fail(OAR_E_ARG, "backward without a tape or a root");
    if (tape->pass != OAR_PASS_NONE)
        return oari_fail(OAR_E_STATE, "backward from inside a backward pass of "
                                      "the same tape");
    for (int i = 0; i < roots; i++)
        OARI_TRY(check_root(tape, root[i], seed != NULL ? seed[i] : NULL));
    forget_reached(tape);
    for (int i = 0; i < roots; i++)
        root[i]->node->reached = root[i]->node->root = 1;
    OARI_TRY(reach_nodes(tape, which));
    OARI_TRY(check_leaves(tape));
    for (int i = 0; i < roots; i++) {
        oar_status status = seed_root(root[i], seed != NULL ? seed[i] : NULL);

        if (status != OAR_OK) {
            spend_reached(tape);
            oari_tape_tell_end(tape, status);
            return status;
        }
    }
    return finish_pass(tape, which);
}

oar_status oar_backward_at(const char *file, int line, oar_tape *tape,
                           oar_tensor *loss)
{
    OARI_CALLED_FROM(file, line);
    if (loss != NULL && loss->count != 1)
        return oari_fail(OAR_E_SHAPE,
                         "backward from a tensor %s: a loss is one number",
                         oari_shape_text(loss->at.shape).text);
    return start_pass(tape, 1, &loss, NULL, OAR_PASS_WHOLE);
}

oar_status oar_backward_from_at(const char *file, int line, oar_tape *tape,
                                int roots, oar_tensor *const *root,
                                oar_tensor *const *seed)
{
    OARI_CALLED_FROM(file, line);
    return start_pass(tape, roots, root, seed, OAR_PASS_WHOLE);
}

oar_status oar_backward_inputs_at(const char *file, int line, oar_tape *tape,
                                  int roots, oar_tensor *const *root,
                                  oar_tensor *const *seed)
{
    OARI_CALLED_FROM(file, line);
    return start_pass(tape, roots, root, seed, OAR_PASS_INPUTS);
}

oar_status oar_backward_weights_at(const char *file, int line, oar_tape *tape)
{
    OARI_CALLED_FROM(file, line);

    if (tape == NULL)
        return oari_fail(OAR_E_ARG, "backward_weights without a tape");
    if (tape->pass != OAR_PASS_NONE)
        return oari_fail(OAR_E_STATE, "backward from inside a backward pass of "
                                      "the same tape");
    if (!tape->halved)
        return oari_fail(OAR_E_STATE,
                         "backward_weights without a backward_inputs before");
    tape->halved = 0;
    forget_reached(tape);
    for (int64_t i = 0; i < tape->nodes; i++) {
        oari_node *node = tape->node[i];

        node->reached = node->state == OARI_HELD;
        if (node->reached)
            reach_inputs(tape, node, OAR_PASS_WEIGHTS);
    }
    OARI_TRY(check_leaves(tape));
    return finish_pass(tape, OAR_PASS_WEIGHTS);
}
