/* SPDX-License-Identifier: Apache-2.0 */
/* module_state: the parameters, buffers and counters of a module by name. */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "nn/module.h"
#include "tensor/tensor.h"

/* ---- by name ------------------------------------------------------------- */

oari_entry *oari_module_entry(const oar_module *module, const char *name,
                              size_t length)
{
    for (int i = 0; i < module->entries; i++)
        if (strlen(module->entry[i].name) == length &&
            memcmp(module->entry[i].name, name, length) == 0)
            return &module->entry[i];
    return NULL;
}

const oar_module *oari_module_follow(const oar_module *module,
                                     const char **name)
{
    const char *dot = *name != NULL ? strchr(*name, '.') : NULL;

    while (module != NULL && dot != NULL) {
        const oari_entry *entry =
            oari_module_entry(module, *name, (size_t)(dot - *name));

        module = entry != NULL ? entry->child : NULL;
        *name = dot + 1;
        dot = strchr(*name, '.');
    }
    return *name != NULL ? module : NULL;
}

oar_tensor *oar_module_find(const oar_module *module, const char *name)
{
    const oari_entry *entry;

    module = oari_module_follow(module, &name);
    entry =
        module != NULL ? oari_module_entry(module, name, strlen(name)) : NULL;
    return entry != NULL ? entry->tensor : NULL;
}

oar_status oar_module_freeze(oar_module *module, int on)
{
    if (module == NULL)
        return oari_null("freeze");
    for (int i = 0; i < oar_module_params(module); i++)
        OARI_TRY(oar_tensor_require_grad(oar_module_param(module, i), !on));
    return OAR_OK;
}

/* ---- counters ------------------------------------------------------------ */

/* Returns how many counters the module itself has, without those below. */
static int own_counters(const oar_module *module)
{
    const oar_counter_entry *entry = module->kind.counters;
    int count = 0;

    while (entry != NULL && entry[count].name != NULL)
        count++;
    return count;
}

int oar_module_counters(const oar_module *module)
{
    int count = module != NULL ? own_counters(module) : 0;

    for (int i = 0; module != NULL && i < module->entries; i++)
        count += oar_module_counters(module->entry[i].child);
    return count;
}

/* Returns the module that has counter *index, which exists, and makes *index
 * its number there. Writes the names on the way, each with a dot after it. */
static const oar_module *counter_holder(const oar_module *module, int *index,
                                        char *name, size_t bytes)
{
    int own = own_counters(module), i = 0;

    name[0] = '\0';
    while (*index >= own) {
        const oari_entry *entry = &module->entry[i++];
        int inside = oar_module_counters(entry->child);
        size_t used;

        if (*index - own >= inside) {
            *index -= inside;
            continue;
        }
        snprintf(name, bytes, "%s.", entry->name);
        used = strlen(name);
        name += used;
        bytes -= used;
        *index -= own;
        module = entry->child;
        own = own_counters(module);
        i = 0;
    }
    return module;
}

/* Modules are never const objects: what is found through a const handle may be
 * written, as oar_module_param's tensors may. */
static uint64_t *counter_at(const oar_module *module, int own)
{
    return (uint64_t *)((uintptr_t)module->self +
                        module->kind.counters[own].offset);
}

uint64_t *oar_module_counter(const oar_module *module, int index)
{
    char name[1];

    if (index < 0 || index >= oar_module_counters(module))
        return NULL;
    module = counter_holder(module, &index, name, sizeof name);
    return counter_at(module, index);
}

oar_status oar_module_counter_name(const oar_module *module, int index,
                                   char *name, size_t bytes)
{
    const oar_module *holder;
    size_t used;

    if (module == NULL || name == NULL || bytes == 0)
        return oari_null("counter_name");
    if (index < 0 || index >= oar_module_counters(module))
        return oari_fail(OAR_E_ARG, "module %s has %d counters, not number %d",
                         module->kind.name, oar_module_counters(module), index);
    holder = counter_holder(module, &index, name, bytes);
    used = strlen(name);
    snprintf(name + used, bytes - used, "%s",
             holder->kind.counters[index].name);
    return OAR_OK;
}

uint64_t *oar_module_find_counter(const oar_module *module, const char *name)
{
    module = oari_module_follow(module, &name);
    for (int i = 0; module != NULL && i < own_counters(module); i++)
        if (strcmp(module->kind.counters[i].name, name) == 0)
            return counter_at(module, i);
    return NULL;
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
    if (!oari_tensor_attached(from))
        return oari_fail(OAR_E_STATE, "load of \"%s\" from a tensor %s %s",
                         name, oari_shape_text(from->at.shape).text,
                         oari_absence(from));
    if (!oari_tensor_attached(into))
        return oari_fail(OAR_E_STATE, "load of \"%s\" into a tensor %s %s",
                         name, oari_shape_text(into->at.shape).text,
                         oari_absence(into));
    return oari_check_writable("load", into);
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
