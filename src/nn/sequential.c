/* SPDX-License-Identifier: Apache-2.0 */
/* sequential: children run one after the other. */
#include <limits.h>
#include <stdio.h>

#include <oarsong/layers.h>

#include "base/status.h"
#include "nn/build.h"

/* On a NULL tape this owns what flows between the children. */
static oar_tensor *sequential_forward(oar_tape *tape, oar_module *module,
                                      oar_tensor *x)
{
    oar_tensor *y = x;

    if (oar_module_children(module) == 0)
        return tape == NULL ? oar_tensor_retain(x) : x;
    for (int i = 0; i < oar_module_children(module); i++) {
        oar_module *child = oar_module_child(module, i);
        oar_module *after = oar_module_child(module, i + 1);
        int fuse = after != NULL && oari_layers_fuse(child, after, y);
        oar_tensor *next = fuse ? oari_layers_fused(tape, child, after, y)
                                : oar_forward(tape, child, y);

        if (tape == NULL && i > 0)
            oar_tensor_release(y);
        y = next;
        i += fuse;
    }
    return y;
}

static const oar_module_class sequential_class = {
    .size = sizeof sequential_class,
    .name = "sequential",
    .forward = sequential_forward,
};

/* Takes every child, also on failure. */
static oar_status add_children(oar_module *module, int first, int count,
                               oar_module *const *child)
{
    oar_status status = OAR_OK;

    for (int i = 0; i < count; i++) {
        char name[16];

        snprintf(name, sizeof name, "%d", first + i);
        if (status == OAR_OK)
            status = oar_module_add_child(module, name, child[i]);
        else
            oar_module_release(child[i]);
    }
    return status;
}

oar_status oar_sequential_stage_create(int first, int count,
                                       oar_module *const *child,
                                       oar_module **module)
{
    oar_module *made = NULL;
    oar_status status = OAR_OK;

    if (count < 0 || (count > 0 && child == NULL))
        return oari_fail(OAR_E_ARG, "sequential of %d children: none given",
                         count);
    if (module == NULL)
        status = oari_fail(OAR_E_ARG, "sequential_create: nowhere to give it");
    else if (first < 0 || first > INT_MAX - count)
        status = oari_fail(OAR_E_ARG, "sequential of %d children from %d on",
                           count, first);
    else
        status = oar_module_create(&sequential_class, &made);
    if (status != OAR_OK) {
        for (int i = 0; i < count; i++)
            oar_module_release(child[i]);
        return status;
    }
    status = add_children(made, first, count, child);
    if (status != OAR_OK) {
        oar_module_release(made);
        return status;
    }
    *module = made;
    return OAR_OK;
}

oar_status oar_sequential_create(int count, oar_module *const *child,
                                 oar_module **module)
{
    return oar_sequential_stage_create(0, count, child, module);
}
