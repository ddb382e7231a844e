/* SPDX-License-Identifier: Apache-2.0 */
/* grad: the one gradient slot of a leaf.
 *
 * The slot's home is either memory of its own, kept from step to step, or a
 * view that was bound to it (of a bucket, say). Clearing only marks it
 * unwritten. */
#include <oarsong/device.h>

#include "autograd/tape.h"
#include "base/dtype.h"
#include "base/status.h"

oar_status oar_tensor_require_grad(oar_tensor *tensor, int on)
{
    if (tensor == NULL)
        return oari_null("require_grad");
    if (oari_tensor_retired(tensor))
        return oari_fail(OAR_E_STATE, "require_grad of a tensor %s %s",
                         oari_shape_text(tensor->at.shape).text,
                         oari_absence(tensor));
    if (tensor->node != NULL)
        return oari_fail(OAR_E_STATE,
                         "require_grad of a tensor %s that an operation made",
                         oari_shape_text(tensor->at.shape).text);
    if (on && !oari_dtype_is_float(tensor->dtype))
        return oari_fail(OAR_E_DTYPE,
                         "require_grad of %s %s: only floats have gradients",
                         oar_dtype_name(tensor->dtype),
                         oari_shape_text(tensor->at.shape).text);
    tensor->slot.required = on != 0;
    if (!on) {
        oar_tensor_release(tensor->slot.home);
        tensor->slot.home = NULL;
        tensor->slot.written = 0;
        tensor->slot.bound = 0;
        tensor->slot.wide = 0;
    }
    return OAR_OK;
}

int oar_tensor_requires_grad(const oar_tensor *tensor)
{
    return tensor != NULL && (tensor->slot.required || tensor->node != NULL);
}

oar_tensor *oar_tensor_grad(const oar_tensor *tensor)
{
    return tensor != NULL && tensor->slot.written ? tensor->slot.home : NULL;
}

/* Whether the gradient of a tensor may be of this dtype. */
static int suits_home(const oar_tensor *tensor, oar_dtype dtype)
{
    return dtype == tensor->dtype ||
           (dtype == OAR_F32 && oari_dtype_is_half(tensor->dtype));
}

/* Makes memory for a gradient of the leaf's own. */
static oar_tensor *make_home(oari_pool *pool, const oar_tensor *leaf)
{
    int wide = leaf->slot.wide && oari_dtype_is_half(leaf->dtype);

    return oari_tensor_make_on(pool, oari_device_of(leaf),
                               wide ? OAR_F32 : leaf->dtype, leaf->at.shape);
}

static oar_status check_home(const oar_tensor *tensor, const oar_tensor *home)
{
    if (home->storage == NULL)
        return oari_fail(OAR_E_STATE, "bind_grad to a tensor %s %s",
                         oari_shape_text(home->at.shape).text,
                         oari_absence(home));
    if (!oari_shape_equal(tensor->at.shape, home->at.shape))
        return oari_fail(OAR_E_SHAPE,
                         "bind_grad of a tensor %s to %s: shapes differ",
                         oari_shape_text(tensor->at.shape).text,
                         oari_shape_text(home->at.shape).text);
    if (!suits_home(tensor, home->dtype))
        return oari_fail(
            OAR_E_DTYPE, "bind_grad of %s %s to %s %s: dtypes differ",
            oar_dtype_name(tensor->dtype),
            oari_shape_text(tensor->at.shape).text, oar_dtype_name(home->dtype),
            oari_shape_text(home->at.shape).text);
    if (!oari_device_equal(oari_device_of(tensor), oari_device_of(home)))
        return oari_fail(OAR_E_DEVICE,
                         "bind_grad of a tensor %s on %s to %s on %s",
                         oari_shape_text(tensor->at.shape).text,
                         oar_device_text(oari_device_of(tensor)).text,
                         oari_shape_text(home->at.shape).text,
                         oar_device_text(oari_device_of(home)).text);
    if (!oari_layout_is_rows(&home->at))
        return oari_fail(OAR_E_ARG,
                         "bind_grad to a tensor %s that is not contiguous",
                         oari_shape_text(home->at.shape).text);
    if (oar_tensor_is_read_only(home))
        return oari_check_writable("bind_grad", home);
    return OAR_OK;
}

/* Makes home, whose reference this takes, the slot's. */
static oar_status move_home(oari_grad_slot *slot, oar_tensor *home, int bound)
{
    oar_status status = OAR_OK;

    if (slot->written && home != NULL)
        status = oar_tensor_copy(home, slot->home);
    if (status != OAR_OK) {
        oar_tensor_release(home);
        return status;
    }
    oar_tensor_release(slot->home);
    slot->home = home;
    slot->bound = bound;
    return OAR_OK;
}

oar_status oar_tensor_bind_grad(oar_tensor *tensor, oar_tensor *home)
{
    oar_tensor *own = NULL;

    if (tensor == NULL)
        return oari_null("bind_grad");
    if (!tensor->slot.required)
        return oari_fail(OAR_E_STATE,
                         "bind_grad of a tensor %s that is no leaf which "
                         "requires a gradient",
                         oari_shape_text(tensor->at.shape).text);
    if (home != NULL) {
        OARI_TRY(check_home(tensor, home));
        return move_home(&tensor->slot, oar_tensor_retain(home), 1);
    }
    if (!tensor->slot.bound)
        return OAR_OK;
    if (tensor->slot.written) {
        own = make_home(NULL, tensor);
        if (own == NULL)
            return OAR_E_NOMEM;
    }
    return move_home(&tensor->slot, own, 0);
}

oar_status oar_tensor_set_grad_dtype(oar_tensor *leaf, oar_dtype dtype)
{
    oar_tensor *own = NULL;
    int before;

    if (leaf == NULL)
        return oari_null("set_grad_dtype");
    if (!leaf->slot.required)
        return oari_fail(OAR_E_STATE,
                         "set_grad_dtype of a tensor %s that is no leaf which "
                         "requires a gradient",
                         oari_shape_text(leaf->at.shape).text);
    if (!suits_home(leaf, dtype))
        return oari_fail(OAR_E_DTYPE,
                         "a gradient in %s of a tensor %s of %s: it has that "
                         "dtype, or f32 for a half type",
                         oar_dtype_name(dtype),
                         oari_shape_text(leaf->at.shape).text,
                         oar_dtype_name(leaf->dtype));
    before = leaf->slot.wide;
    leaf->slot.wide = dtype != leaf->dtype;
    if (leaf->slot.bound || leaf->slot.wide == before)
        return OAR_OK;
    if (leaf->slot.written) {
        own = make_home(NULL, leaf);
        if (own == NULL) {
            leaf->slot.wide = before;
            return OAR_E_NOMEM;
        }
    }
    return move_home(&leaf->slot, own, 0);
}

void oar_tensor_clear_grad(oar_tensor *tensor)
{
    if (tensor != NULL)
        tensor->slot.written = 0;
}

oar_status oar_tensor_mark_grad(oar_tensor *tensor)
{
    if (tensor == NULL)
        return oari_null("mark_grad");
    if (!tensor->slot.bound)
        return oari_fail(OAR_E_STATE,
                         "mark_grad of a tensor %s: no gradient is bound",
                         oari_shape_text(tensor->at.shape).text);
    tensor->slot.written = 1;
    if (tensor->slot.home->storage != NULL)
        tensor->slot.home->storage->version++;
    return OAR_OK;
}

oar_status oar_tensor_on_grad(oar_tensor *leaf, oar_grad_fn fn, void *arg,
                              oar_hook **hook)
{
    if (leaf == NULL)
        return oari_null("on_grad");
    if (!leaf->slot.required)
        return oari_fail(OAR_E_STATE,
                         "on_grad of a tensor %s that is no leaf which "
                         "requires a gradient",
                         oari_shape_text(leaf->at.shape).text);
    return oari_hook_add(&leaf->slot.hooks, (oari_hook_fn)fn, arg, hook);
}

oar_status oar_tensor_on_grad_parts(oar_tensor *leaf, oar_grad_fn whole,
                                    oar_grad_part_fn part, void *arg,
                                    oar_hook **hook)
{
    oar_hook *made;

    OARI_TRY(oar_tensor_on_grad(leaf, whole, arg, &made));
    made->part = (oari_hook_fn)part;
    if (hook != NULL)
        *hook = made;
    return OAR_OK;
}

oar_status oari_grad_slot_open(oari_pool *pool, oar_tensor *leaf)
{
    oari_grad_slot *slot = &leaf->slot;

    if (slot->home == NULL)
        slot->home = make_home(slot->input ? pool : NULL, leaf);
    if (slot->home == NULL)
        return OAR_E_NOMEM;
    return oari_check_not_read_only("backward into the gradient", slot->home);
}

oar_status oari_grad_slot_part(oar_tensor *leaf, int64_t done, int64_t *next)
{
    const oar_hook *hook = oari_hook_at(leaf->slot.hooks.first);
    oar_status status;

    *next = leaf->count;
    if (hook == NULL || hook->part == NULL)
        return OAR_OK;
    status = ((oar_grad_part_fn)hook->part)(leaf, leaf->slot.home, done, next,
                                            hook->arg);
    return status == OAR_OK ? OAR_OK : oari_hook_failed("gradient", status);
}

oar_status oari_grad_slot_ready(oar_tensor *leaf)
{
    OARI_EACH_HOOK(hook, following, &leaf->slot.hooks)
    {
        oar_status status = ((oar_grad_fn)hook->fn)(leaf, hook->arg);

        if (status != OAR_OK)
            return oari_hook_failed("gradient", status);
    }
    return OAR_OK;
}
