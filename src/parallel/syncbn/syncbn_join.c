/* SPDX-License-Identifier: Apache-2.0 */
/* syncbn_join: batch norms while some ranks have run out of input.
 *
 * A rank without input does not know what the others' forward and backward come
 * to. So, from the moment that somebody is missing, those with input call out
 * each meeting of a batch norm before it begins, on one group for all layers:
 * which one, what for, how many channels. A rank without input listens, and
 * comes to that meeting with a batch of no rows. Calls cost a small all_reduce
 * each, and are made only in steps in which somebody is missing.
 */
#include <oarsong/collective.h>
#include <oarsong/tape.h>

#include "base/alloc.h"
#include "base/status.h"
#include "parallel/syncbn/syncbn.h"

/* What is called out. */
typedef struct call {
    int64_t deed, layer, channels;
} call;

enum { WORDS = sizeof(call) / sizeof(int64_t) };

/* The layer of that number, in the order of the tree; *number is counted down
 * to it. NULL: there are not so many. */
static oar_module *find(const oar_module *module, int *number)
{
    for (int i = 0; i < oar_module_children(module); i++) {
        oar_module *child = oar_module_child(module, i), *found;

        if (oari_sync_layer_of(child) != NULL && (*number)-- == 0)
            return child;
        if ((found = find(child, number)) != NULL)
            return found;
    }
    return NULL;
}

static oar_module *nth(const oar_module *module, int number)
{
    return number >= 0 ? find(module, &number) : NULL;
}

/* The first layer's group is everybody's. NULL: there are no layers. */
static oar_group *group_of(const oar_module *module)
{
    oar_module *first = nth(module, 0);

    return first != NULL ? oari_sync_layer_of(first)->circle->group : NULL;
}

/* ---- with input ---------------------------------------------------------- */

static int set_calls(const oar_module *module, oar_group *group)
{
    oar_module *at;
    int n = 0;

    for (; (at = nth(module, n)) != NULL; n++) {
        oari_sync_layer *l = oari_sync_layer_of(at);
        l->calls = group;
        l->number = n;
    }
    return n;
}

int oari_syncbn_call_out(const oar_module *module)
{
    return set_calls(module, group_of(module)) != 0;
}

/* The listeners' words are all zero. */
static oar_status meet(oar_group *group, call *said)
{
    return oar_all_reduce(
        group, oar_span_of(said, WORDS, OAR_I64), OAR_MAX,
        OAR_OPTS(oar_call_opts, .label = "batch norm calls out"), NULL);
}

oar_status oari_syncbn_tell(const oari_sync_layer *layer, oari_sync_deed deed,
                            int64_t channels)
{
    call mine = { deed, layer->number, channels };

    return layer->calls != NULL ? meet(layer->calls, &mine) : OAR_OK;
}

oar_status oari_syncbn_dismiss(const oar_module *module)
{
    call end = { OARI_SYNC_END, 0, 0 };

    set_calls(module, NULL);
    return meet(group_of(module), &end);
}

/* ---- without ------------------------------------------------------------- */

static oar_dtype dtype_of(const oar_module *layer)
{
    oar_tensor *some = oar_module_param(layer, 0);

    if (some == NULL)
        some = oar_module_buffer(layer, 0);
    return some != NULL ? oar_tensor_dtype(some) : OAR_F32;
}

/* A forward of no rows: it merges, and moves the running statistics by what the
 * others have. The others train, whatever mode this rank is in. */
static oar_status norm_nothing(oar_module *layer, int64_t channels)
{
    oar_shape shape = OAR_SHAPE(0, channels, 1, 1, 1);
    int training = oar_module_training(layer);
    oar_tensor *x, *y = NULL;

    shape.ndim = 2 + oar_batch_norm_dims(layer);
    x = oar_zeros(NULL, dtype_of(layer), shape);
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

/* Gradients of no rows sum to zero. */
static oar_status sum_nothing(const oar_module *layer, int64_t channels)
{
    const oar_batch_norm_merge *merge = oar_batch_norm_merge_of(layer);
    double *none = oari_alloc((size_t)(2 * channels) + 1, sizeof *none);
    oar_status status;

    if (none == NULL)
        return OAR_E_NOMEM;
    status = merge->sums(merge->arg, 2 * channels, none);
    oari_free(none);
    return status;
}

static oar_status do_as(const oar_module *module, const call *said)
{
    oar_module *layer = nth(module, (int)said->layer);

    if (layer == NULL || said->channels < 0 || said->channels > INT32_MAX)
        return oari_fail(OAR_E_MISMATCH,
                         "the ranks have different models: no batch norm "
                         "%lld of %lld channels here",
                         (long long)said->layer, (long long)said->channels);
    return said->deed == OARI_SYNC_MOMENTS ? norm_nothing(layer, said->channels)
                                           : sum_nothing(layer, said->channels);
}

oar_status oari_syncbn_follow(const oar_module *module)
{
    oar_group *group = group_of(module);

    while (group != NULL) {
        call said = { OARI_SYNC_NOTHING, 0, 0 };

        OARI_TRY(meet(group, &said));
        if (said.deed == OARI_SYNC_END || said.deed == OARI_SYNC_NOTHING)
            break; /* the latter: nobody in this group has input */
        OARI_TRY(do_as(module, &said));
    }
    return OAR_OK;
}
