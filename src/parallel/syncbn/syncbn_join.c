/* SPDX-License-Identifier: Apache-2.0 */
/* syncbn_join: batch norms while some ranks have run out of input.
 *
 * A rank without input does not know which collectives the others' forward and
 * backward will post. So, as soon as a rank has no input, those with input
 * announce each collective of a batch norm before it begins, on one group for
 * all layers: which layer, what for, how many channels. A rank without input
 * listens and takes part with an empty batch. An announcement is a small
 * all_reduce, made only in steps in which some rank has no input.
 */
#include <oarsong/collective.h>
#include <oarsong/tape.h>

#include "base/alloc.h"
#include "base/status.h"
#include "parallel/syncbn/syncbn.h"

/* An announcement. */
typedef struct call {
    int64_t deed, layer, channels;
} call;

enum { WORDS = sizeof(call) / sizeof(int64_t) };

/* Returns the layer of that number in the order of the tree, counting *number
 * down; NULL: there are fewer. */
static oar_module *find_layer(const oar_module *module, int *number)
{
    for (int i = 0; i < oar_module_children(module); i++) {
        oar_module *child = oar_module_child(module, i), *found;

        if (oari_sync_layer_of(child) != NULL && (*number)-- == 0)
            return child;
        if ((found = find_layer(child, number)) != NULL)
            return found;
    }
    return NULL;
}

static oar_module *nth_layer(const oar_module *module, int number)
{
    return number >= 0 ? find_layer(module, &number) : NULL;
}

int oari_syncbn_is_in(const oar_module *module)
{
    return nth_layer(module, 0) != NULL;
}

/* Returns the first layer's group, which serves all; NULL: there are no layers.
 */
static oar_group *group_of(const oar_module *module)
{
    oar_module *first = nth_layer(module, 0);

    return first != NULL ? oari_sync_layer_of(first)->shared->group : NULL;
}

/* ---- with input ---------------------------------------------------------- */

static int set_calls(const oar_module *module, oar_group *group)
{
    oar_module *at;
    int n = 0;

    for (; (at = nth_layer(module, n)) != NULL; n++) {
        oari_sync_layer *l = oari_sync_layer_of(at);
        l->calls = group;
        l->number = n;
    }
    return n;
}

int oari_syncbn_announce_all(const oar_module *module)
{
    return set_calls(module, group_of(module)) != 0;
}

/* The contribution of a rank that listens is all zero. */
static oar_status exchange_call(oar_group *group, call *said)
{
    return oar_all_reduce(
        group, oar_span_of(said, WORDS, OAR_I64), OAR_MAX,
        OAR_OPTS(oar_call_opts, .label = "batch norm calls out"), NULL);
}

oar_status oari_syncbn_announce(const oari_sync_layer *layer,
                                oari_sync_call deed, int64_t channels)
{
    call mine = { deed, layer->number, channels };

    return layer->calls != NULL ? exchange_call(layer->calls, &mine) : OAR_OK;
}

oar_status oari_syncbn_dismiss(const oar_module *module)
{
    call end = { OARI_SYNC_END, 0, 0 };

    set_calls(module, NULL);
    return exchange_call(group_of(module), &end);
}

/* ---- without input ------------------------------------------------------- */

/* Runs a forward of an empty batch, which merges the statistics and updates the
 * running ones from the other ranks. These train, whatever mode this rank is
 * in. */
static oar_status norm_nothing(oar_module *layer, int64_t channels)
{
    oar_shape shape = OAR_SHAPE(0, channels, 1, 1, 1);
    int training = oar_module_training(layer);
    oar_tensor *some = oar_module_param(layer, 0), *x, *y = NULL;

    if (some == NULL)
        some = oar_module_buffer(layer, 0);
    shape.ndim = 2 + oar_batch_norm_dims(layer);
    x = some != NULL ? oar_empty_on(NULL, oar_tensor_device(some),
                                    oar_tensor_dtype(some), shape)
                     : oar_empty(NULL, OAR_F32, shape);
    oar_module_train(layer, 1);
    if (x != NULL)
        y = oar_forward(NULL, layer, x);
    oar_module_train(layer, training);
    oar_tensor_release(x);
    if (y == NULL)
        return oar_last_error()->status;
    oar_tensor_release(y);
    return OAR_OK;
}

/* The gradients of an empty batch sum to zero. On a GPU what others sum is not
 * needed here. */
static oar_status sum_nothing(const oar_module *layer, int64_t channels)
{
    const oar_batch_norm_merge *merge = oar_batch_norm_merge_of(layer);
    oar_tensor *some = oar_module_param(layer, 0), *none, *there, *all;
    oar_shape shape = OAR_SHAPE(2 * channels);
    oar_span mine, parts;
    oar_status status;

    if (some == NULL)
        some = oar_module_buffer(layer, 0);
    none = oar_zeros(NULL, OAR_F64, shape);
    if (none == NULL)
        return OAR_E_NOMEM;
    if (some == NULL || oar_tensor_device(some).kind == OAR_CPU) {
        status = merge->sums(merge->arg, 2 * channels, oar_tensor_data(none));
        oar_tensor_release(none);
        return status;
    }
    shape.dim[0] *= merge->parts(merge->arg);
    there = oar_to(NULL, none, oar_tensor_device(some));
    all = oar_empty_on(NULL, oar_tensor_device(some), OAR_F64, shape);
    status = there != NULL && all != NULL ? oar_tensor_span(there, &mine)
                                          : oar_last_error()->status;
    if (status == OAR_OK)
        status = oar_tensor_span(all, &parts);
    if (status == OAR_OK)
        status = merge->gather_on(merge->arg, 1, mine, parts);
    oar_tensor_release(none);
    oar_tensor_release(there);
    oar_tensor_release(all);
    return status;
}

oar_status oari_syncbn_follow(const oar_module *module)
{
    oar_group *group = group_of(module);

    while (group != NULL) {
        call said = { OARI_SYNC_NOTHING, 0, 0 };
        oar_module *layer;

        OARI_TRY(exchange_call(group, &said));
        if (said.deed == OARI_SYNC_END || said.deed == OARI_SYNC_NOTHING)
            break; /* the latter: no rank of this group has input */
        layer = nth_layer(module, (int)said.layer);
        if (layer == NULL || said.channels < 0 || said.channels > INT32_MAX)
            return oari_fail(OAR_E_MISMATCH,
                             "the ranks have different models: no batch norm "
                             "%lld of %lld channels here",
                             (long long)said.layer, (long long)said.channels);
        OARI_TRY(said.deed == OARI_SYNC_MOMENTS
                     ? norm_nothing(layer, said.channels)
                     : sum_nothing(layer, said.channels));
    }
    return OAR_OK;
}
