/* SPDX-License-Identifier: Apache-2.0 */
/* tape: owns what is computed on it, and remembers how. Everything it needs is
 * kept over a reset for the next step. One thread at a time. */
#include "autograd/tape.h"

#include <string.h>

#include "autograd/record.h"
#include "autograd/replay.h"
#include "autograd/saved.h"
#include "base/alloc.h"
#include "base/dtype.h"
#include "base/status.h"

oar_status oar_tape_create(oar_tape **tape)
{
    oar_tape *made;

    if (tape == NULL)
        return oari_fail(OAR_E_ARG, "tape_create: nowhere to give it");
    made = oari_alloc(1, sizeof *made);
    if (made == NULL)
        return OAR_E_NOMEM;
    made->recording = made->rebuilds = 1;
    *tape = made;
    return OAR_OK;
}

void oari_node_spend(oari_node *node)
{
    oari_pool *pool = &node->tape->pool;

    oari_tensor_drop(pool, node->grad);
    node->grad = NULL;
    for (int i = 0; i < OARI_MAX_SAVED; i++)
        oari_unsave(node, i);
    for (int i = 0; i < OARI_MAX_INPUTS; i++) {
        oari_tensor_drop(pool, node->fused_grad[i]);
        node->fused_grad[i] = NULL;
    }
    if (node->op != NULL && node->op->drop != NULL && node->state != OARI_SPENT)
        node->op->drop(node);
    node->state = OARI_SPENT;
}

void oar_tape_reset(oar_tape *tape)
{
    if (tape == NULL)
        return;
    oari_tape_tell_end(tape, OAR_E_STATE);
    while (tape->nodes > 0) {
        oari_node *node = tape->node[--tape->nodes];

        oari_node_spend(node);
        if (node->mark.drop != NULL && !node->mark.is_end)
            node->mark.drop(node->mark.arg);
        memset(&node->mark, 0, sizeof node->mark);
    }
    oari_leaves_reset(&tape->leaves, &tape->pool);
    oari_pool_reset(&tape->pool);
    while (tape->objects.count > 0) { /* drop may give the tape another one */
        oari_owned_object last = tape->objects.data[--tape->objects.count];

        last.drop(last.object);
    }
    tape->deferred.count = 0;
    tape->seeds.count = 0;
    tape->halved = 0;
}

void oar_tape_destroy(oar_tape *tape)
{
    if (tape == NULL)
        return;
    oar_tape_reset(tape);
    for (int64_t i = 0; i < tape->nodes_made; i++)
        oari_free(tape->node[i]);
    oari_free(tape->node);
    oari_leaves_close(&tape->leaves, &tape->pool);
    oari_pool_close(&tape->pool);
    oari_vec_free(&tape->deferred);
    oari_vec_free(&tape->end_calls);
    oari_vec_free(&tape->objects);
    oari_vec_free(&tape->seeds);
    oar_tape_destroy(tape->inner);
    oari_free(tape);
}

int oar_tape_record(oar_tape *tape, int on)
{
    int before;

    if (tape == NULL)
        return 0;
    before = tape->recording;
    tape->recording = on != 0;
    return before;
}

int oar_tape_rebuild(oar_tape *tape, int on)
{
    int before;

    if (tape == NULL)
        return 0;
    before = tape->rebuilds;
    tape->rebuilds = on != 0;
    return before;
}

size_t oar_tape_share(oar_tape *tape, size_t least_bytes)
{
    size_t before;

    if (tape == NULL)
        return 0;
    before = tape->pool.share_from;
    tape->pool.share_from = least_bytes;
    return before;
}

oar_pass oar_tape_pass(const oar_tape *tape)
{
    return tape != NULL ? tape->pass : OAR_PASS_NONE;
}

int oar_tape_replays(const oar_tape *tape)
{
    return oari_replaying(tape);
}

oari_node *oari_tape_node(oar_tape *tape)
{
    oari_node *node;

    if (tape->nodes < tape->nodes_made) {
        node = tape->node[tape->nodes];
        memset(node, 0, sizeof *node);
        node->tape = tape;
        return node;
    }
    if (oari_array_reserve(tape->node, tape->nodes_made, tape->nodes_room, 1) !=
        OAR_OK)
        return NULL;
    node = oari_alloc(1, sizeof *node);
    if (node == NULL)
        return NULL;
    node->tape = tape;
    tape->node[tape->nodes_made++] = node;
    return node;
}

oar_status oari_mark_begin(oar_tape *tape, oari_mark_fn fn,
                           void (*drop)(void *arg), void *arg, int64_t *index)
{
    oari_node *node;

    node = oari_tape_node(tape);
    if (node == NULL)
        return OAR_E_NOMEM;
    node->mark = (oari_mark){ .fn = fn, .drop = drop, .arg = arg };
    *index = tape->nodes;
    tape->nodes++;
    return OAR_OK;
}

oar_status oari_mark_end(oar_tape *tape, int64_t begin)
{
    oari_node *node = oari_tape_node(tape);

    if (node == NULL)
        return OAR_E_NOMEM;
    node->mark = tape->node[begin]->mark;
    node->mark.is_end = 1;
    tape->node[begin]->mark.end = tape->nodes;
    tape->nodes++;
    return OAR_OK;
}

oar_tensor *oar_tape_input(oar_tape *tape, oar_tensor *value)
{
    oar_tensor *leaf;

    if (tape == NULL || value == NULL) {
        oari_null("tape_input");
        return NULL;
    }
    if (!oari_dtype_is_float(value->dtype)) {
        oari_fail(OAR_E_DTYPE,
                  "tape_input of %s %s: only floats have gradients",
                  oar_dtype_name(value->dtype),
                  oari_shape_text(value->at.shape).text);
        return NULL;
    }
    if (value->storage == NULL) {
        oari_fail(OAR_E_STATE, "tape_input of a tensor %s %s",
                  oari_shape_text(value->at.shape).text, oari_absence(value));
        return NULL;
    }
    leaf =
        oari_tensor_over(&tape->pool, value->storage, value->dtype, &value->at);
    if (leaf == NULL)
        return NULL;
    leaf->slot.required = 1;
    leaf->slot.input = 1;
    return oari_keep(tape, leaf);
}

oar_status oar_tape_defer(oar_tape *tape, oar_defer_fn fn, void *arg)
{
    if (tape == NULL || fn == NULL)
        return oari_fail(OAR_E_ARG, "tape_defer without a tape or a function");
    /* for the next pass to end, not for the one that is ending now */
    for (int64_t i = tape->deferred_running; i < tape->deferred.count; i++)
        if (tape->deferred.data[i].fn == fn &&
            tape->deferred.data[i].arg == arg)
            return OAR_OK;
    return oari_vec_push(&tape->deferred, (oari_deferred){ fn, arg });
}

oar_status oar_tape_on_end(oar_tape *tape, oar_pass_end_fn fn, void *arg)
{
    if (tape == NULL || fn == NULL)
        return oari_fail(OAR_E_ARG, "tape_on_end without a tape or a function");
    while (tape->outer != NULL)
        tape = tape->outer;
    for (int64_t i = 0; i < tape->end_calls.count; i++)
        if (tape->end_calls.data[i].fn == fn &&
            tape->end_calls.data[i].arg == arg)
            return OAR_OK;
    return oari_vec_push(&tape->end_calls, (oari_end_call){ fn, arg });
}

void oari_tape_tell_end(oar_tape *tape, oar_status status)
{
    int64_t count = tape->end_calls.count;
    oar_error error;

    if (count == 0)
        return;
    error = *oar_last_error();
    for (int64_t i = 0; i < count; i++) {
        oari_end_call call = tape->end_calls.data[i];

        /* it may ask to be called after the next pass too */
        tape->end_calls.data[i].fn = NULL;
        call.fn(call.arg, status);
    }
    tape->end_calls.count -= count;
    memmove(tape->end_calls.data, tape->end_calls.data + count,
            (size_t)tape->end_calls.count * sizeof *tape->end_calls.data);
    oari_fail_with(&error);
}

oar_status oar_tape_own(oar_tape *tape, void *object,
                        void (*drop)(void *object))
{
    oar_status status;

    if (tape == NULL || drop == NULL)
        return oari_fail(OAR_E_ARG, "tape_own without a tape or a drop");
    status = oari_vec_push(&tape->objects, (oari_owned_object){ object, drop });
    if (status != OAR_OK)
        drop(object);
    return status;
}
