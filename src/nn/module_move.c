/* SPDX-License-Identifier: Apache-2.0 */
/* module_move: the numbers of a module on another device, or in another dtype.
 * The tensors stay the same; each becomes a view of memory of its own. All that
 * can fail is done before the first tensor changes. */
#include <string.h>

#include <oarsong/device.h>
#include <oarsong/module.h>
#include <oarsong/ops.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/status.h"
#include "nn/module.h"
#include "tensor/tensor.h"

/* What tensors become. */
typedef struct target {
    const char *what;
    const oar_device *device; /* NULL: where it is */
    const oar_dtype *dtype;   /* of floats; NULL: what it is */
    int all;                  /* those of norms, too */
} target;

typedef struct moves {
    oar_tensor **tensor, **made; /* what is moved, and its new numbers */
    int count, room;
} moves;

static int is_norm(const oar_module *module)
{
    static const char *const names[] = { "layer_norm", "rms_norm", "group_norm",
                                         "batch_norm", "sync_batch_norm" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(oar_module_name(module), names[i]) == 0)
            return 1;
    return 0;
}

static oar_tensor *make_copy(const target *t, oar_tensor *from)
{
    oar_dtype dtype = t->dtype != NULL && oari_dtype_is_float(from->dtype)
                          ? *t->dtype
                          : from->dtype;
    oar_tensor *cast, *there;

    if (t->device == NULL)
        return oar_cast(NULL, from, dtype);
    cast = oar_cast(NULL, from, dtype);
    there = cast != NULL ? oar_to(NULL, cast, *t->device) : NULL;
    oar_tensor_release(cast);
    return there;
}

static int is_there(const target *t, const oar_tensor *tensor)
{
    if (t->device != NULL)
        return oari_device_equal(oar_tensor_device(tensor), *t->device);
    return tensor->dtype == *t->dtype || !oari_dtype_is_float(tensor->dtype);
}

static oar_status add_move(const target *t, oar_tensor *tensor, moves *m)
{
    if (is_there(t, tensor))
        return OAR_OK;
    for (int i = 0; i < m->count; i++)
        if (m->tensor[i] == tensor) /* in two places */
            return OAR_OK;
    if (!oari_tensor_attached(tensor))
        return oari_fail(OAR_E_STATE, "%s of a module with a tensor %s %s",
                         t->what, oari_shape_text(tensor->at.shape).text,
                         oari_absence(tensor));
    if (tensor->guard != NULL)
        return oari_fail(OAR_E_STATE, "%s of a module with a tensor %s: %s",
                         t->what, oari_shape_text(tensor->at.shape).text,
                         tensor->guard);
    m->made[m->count] = make_copy(t, tensor);
    if (m->made[m->count] == NULL)
        return oar_last_error()->status;
    m->tensor[m->count++] = tensor;
    return OAR_OK;
}

static oar_status add_moves(const target *t, const oar_module *module, moves *m)
{
    for (int i = 0; i < module->entries; i++) {
        const oari_entry *e = &module->entry[i];

        if (e->kind == OARI_CHILD)
            OARI_TRY(add_moves(t, e->child, m));
        else if (t->device != NULL || t->all || !is_norm(module))
            OARI_TRY(add_move(t, e->tensor, m));
    }
    return OAR_OK;
}

static oar_status move_module(const target *t, oar_module *module)
{
    moves m = { .room =
                    oar_module_params(module) + oar_module_buffers(module) };
    oar_status status = OAR_E_NOMEM;

    m.tensor = oari_alloc((size_t)m.room + 1, sizeof(oar_tensor *));
    m.made = oari_alloc((size_t)m.room + 1, sizeof(oar_tensor *));
    if (m.tensor != NULL && m.made != NULL)
        status = add_moves(t, module, &m);
    for (int i = 0; i < m.count; i++) {
        if (status == OAR_OK)
            status = oar_tensor_rebase(m.tensor[i], m.made[i]->storage,
                                       m.made[i]->at.offset, m.made[i]->dtype);
        oar_tensor_release(m.made[i]);
    }
    oari_free(m.tensor);
    oari_free(m.made);
    return status;
}

oar_status oar_module_to(oar_module *module, oar_device device)
{
    target t = { "module_to", &device, NULL, 1 };

    if (module == NULL)
        return oari_null("module_to");
    return move_module(&t, module);
}

oar_status oar_module_cast(oar_module *module, oar_dtype dtype, int all)
{
    target t = { "module_cast", NULL, &dtype, all };

    if (module == NULL)
        return oari_null("module_cast");
    OARI_TRY(oari_check_dtype("module_cast", dtype));
    if (!oari_dtype_is_float(dtype))
        return oari_fail(OAR_E_DTYPE, "module_cast to %s: floats only",
                         oar_dtype_name(dtype));
    return move_module(&t, module);
}
