/* SPDX-License-Identifier: Apache-2.0 */
/* module_state: the parameters and buffers of a module by name. */
#include <string.h>

#include "base/status.h"
#include "nn/module.h"
#include "tensor/tensor.h"

/* ---- by name ------------------------------------------------------------- */

/* The entry called by the first `length` letters of name, or NULL. */
static const oari_entry *entry_named(const oar_module *module, const char *name,
                                     size_t length)
{
    for (int i = 0; i < module->entries; i++)
        if (strlen(module->entry[i].name) == length &&
            memcmp(module->entry[i].name, name, length) == 0)
            return &module->entry[i];
    return NULL;
}

oar_tensor *oar_module_find(const oar_module *module, const char *name)
{
    while (module != NULL && name != NULL) {
        const char *dot = strchr(name, '.');
        size_t length = dot != NULL ? (size_t)(dot - name) : strlen(name);
        const oari_entry *entry = entry_named(module, name, length);

        if (entry == NULL)
            return NULL;
        if (dot == NULL)
            return entry->tensor;
        module = entry->child;
        name = dot + 1;
    }
    return NULL;
}

oar_status oar_module_freeze(oar_module *module, int on)
{
    if (module == NULL)
        return oari_null("freeze");
    for (int i = 0; i < oar_module_params(module); i++)
        OARI_TRY(oar_tensor_require_grad(oar_module_param(module, i), !on));
    return OAR_OK;
}

/* ---- from another module ------------------------------------------------- */

enum { NAME_BYTES = 512 };

/* Parameters first, then buffers. */
static int state_count(const oar_module *module)
{
    return oar_module_params(module) + oar_module_buffers(module);
}

static oar_tensor *state_at(const oar_module *module, int index, char *name)
{
    int params = oar_module_params(module);

    if (index < params) {
        oar_module_param_name(module, index, name, NAME_BYTES);
        return oar_module_param(module, index);
    }
    oar_module_buffer_name(module, index - params, name, NAME_BYTES);
    return oar_module_buffer(module, index - params);
}

static oar_status check_pair(const char *name, const oar_tensor *into,
                             const oar_tensor *from)
{
    if (!oari_shape_equal(into->at.shape, from->at.shape) ||
        into->dtype != from->dtype)
        return oari_fail(
            OAR_E_SHAPE, "load of \"%s\": %s %s into %s %s", name,
            oar_dtype_name(from->dtype), oari_shape_text(from->at.shape).text,
            oar_dtype_name(into->dtype), oari_shape_text(into->at.shape).text);
    if (!oari_tensor_attached(into) || !oari_tensor_attached(from))
        return oari_fail(OAR_E_STATE,
                         "load of \"%s\" %s: its storage is detached", name,
                         oari_shape_text(into->at.shape).text);
    OARI_TRY(oari_check_writable("load", into));
    return OAR_OK;
}

/* Checks that everything in `from` fits into what `into` has of the same name,
 * and, if strict, that both have the same names. */
static oar_status check_all(const oar_module *into, const oar_module *from,
                            int strict)
{
    char name[NAME_BYTES];

    for (int i = 0; i < state_count(from); i++) {
        const oar_tensor *source = state_at(from, i, name);
        const oar_tensor *home = oar_module_find(into, name);

        if (home != NULL)
            OARI_TRY(check_pair(name, home, source));
        else if (strict)
            return oari_fail(OAR_E_ARG,
                             "load into module %s: it has no "
                             "\"%s\"",
                             oar_module_name(into), name);
    }
    for (int i = 0; strict && i < state_count(into); i++) {
        state_at(into, i, name);
        if (oar_module_find(from, name) == NULL)
            return oari_fail(OAR_E_ARG,
                             "load into module %s: \"%s\" is not in what is "
                             "loaded",
                             oar_module_name(into), name);
    }
    return OAR_OK;
}

oar_status oar_module_load(oar_module *into, const oar_module *from, int strict)
{
    char name[NAME_BYTES];

    if (into == NULL || from == NULL)
        return oari_null("load");
    OARI_TRY(check_all(into, from, strict));
    for (int i = 0; i < state_count(from); i++) {
        const oar_tensor *source = state_at(from, i, name);
        oar_tensor *home = oar_module_find(into, name);

        if (home != NULL)
            OARI_TRY(oar_tensor_copy(home, source));
    }
    return OAR_OK;
}
