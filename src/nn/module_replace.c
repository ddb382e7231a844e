/* SPDX-License-Identifier: Apache-2.0 */
/* module_replace: the children of a module by name, and putting another module
 * or parameter in the place of one. A module through which something was
 * replaced remembers it: its results may then be known to code outside the
 * library, which expects them to stay until the tape is reset. */
#include <stdio.h>
#include <string.h>

#include "base/name_match.h"
#include "base/status.h"
#include "nn/module.h"
#include "tensor/tensor.h"

/* ---- looking up ---------------------------------------------------------- */

const char *oar_module_child_name(const oar_module *module, int index)
{
    for (int i = 0; module != NULL && i < module->entries; i++)
        if (module->entry[i].kind == OARI_CHILD && index-- == 0)
            return module->entry[i].name;
    return NULL;
}

static oari_entry *find_entry(const oar_module *module, const char *name)
{
    module = oari_module_follow(module, &name);
    return module != NULL ? oari_module_entry(module, name, strlen(name))
                          : NULL;
}

oar_module *oar_module_find_module(const oar_module *module, const char *name)
{
    const oari_entry *entry = find_entry(module, name);

    return entry != NULL ? entry->child : NULL;
}

/* ---- the nearest names --------------------------------------------------- */

enum { LETTERS = 64, NEAREST = 3, NEAREST_BYTES = 256 };

/* Whether an entry may stand where the name is looked for: in the middle of a
 * name only a child may. */
static int fits_place(const oari_entry *entry, oari_entry_kind kind, int last)
{
    return entry->kind == (last ? kind : OARI_CHILD);
}

/* Writes the up to NEAREST names at the place where following `name` fails,
 * nearest first, each in full: `name` up to that place and the entry's. */
static void write_nearest(const oar_module *module, const char *name,
                          oari_entry_kind kind, char *text)
{
    const char *part = name, *dot = strchr(name, '.');
    const oari_entry *entry;
    int distance = -1, given = 0;
    size_t used = 0;

    while (dot != NULL) {
        entry = oari_module_entry(module, part, (size_t)(dot - part));
        if (entry == NULL || entry->child == NULL)
            break;
        module = entry->child;
        part = dot + 1;
        dot = strchr(part, '.');
    }
    text[0] = '\0';
    while (given < NEAREST && distance < 2 * LETTERS) {
        distance++;
        for (int i = 0; i < module->entries && given < NEAREST; i++) {
            size_t length = dot != NULL ? (size_t)(dot - part) : strlen(part);

            entry = &module->entry[i];
            if (!fits_place(entry, kind, dot == NULL) ||
                oari_edit_distance(part, length, entry->name) != distance)
                continue;
            snprintf(text + used, NEAREST_BYTES - used, "%s\"%.*s%s\"",
                     given++ > 0 ? ", " : "", (int)(part - name), name,
                     entry->name);
            used = strlen(text);
        }
    }
}

static oar_status not_found(const oar_module *module, const char *name,
                            oari_entry_kind kind)
{
    const char *what = kind == OARI_CHILD ? "child" : "parameter";
    char text[NEAREST_BYTES];

    write_nearest(module, name, kind, text);
    return oari_fail(OAR_E_NOT_FOUND, "module %s has no %s \"%s\"%s%s",
                     module->kind.name, what, name,
                     text[0] != '\0' ? "; the nearest: " : "", text);
}

/* ---- replacing ----------------------------------------------------------- */

/* Marks the modules on the way to the one of this name, which is there. */
static void mark_way(oar_module *module, const char *name)
{
    const char *dot;

    module->replaced = 1;
    for (; (dot = strchr(name, '.')) != NULL; name = dot + 1) {
        module = oari_module_entry(module, name, (size_t)(dot - name))->child;
        module->replaced = 1;
    }
}

static oar_status find_place(oar_module *module, const char *name,
                             oari_entry_kind kind, oari_entry **entry)
{
    oari_entry *found = find_entry(module, name);

    if (found == NULL || found->kind != kind)
        return not_found(module, name, kind);
    *entry = found;
    return OAR_OK;
}

static oar_status put_child(oar_module *module, const char *name,
                            oar_module *child)
{
    const char *last = name;
    const oar_module *holder = oari_module_follow(module, &last);
    oari_entry *entry = NULL;

    OARI_TRY(find_place(module, name, OARI_CHILD, &entry));
    if (oari_module_holds(child, holder))
        return oari_fail(OAR_E_ARG,
                         "replace of \"%s\" in module %s: module %s would be "
                         "inside itself",
                         name, module->kind.name, holder->kind.name);
    mark_way(module, name);
    child->replaced = 1;
    if (child->training != entry->child->training)
        oar_module_train(child, entry->child->training);
    oar_module_release(entry->child);
    entry->child = child;
    return OAR_OK;
}

oar_status oar_module_replace(oar_module *module, const char *name,
                              oar_module *child)
{
    oar_status status;

    if (module == NULL || name == NULL || child == NULL)
        status = oari_null("module_replace");
    else
        status = put_child(module, name, child);
    if (status != OAR_OK)
        oar_module_release(child);
    return status;
}

oar_status oar_module_replace_param(oar_module *module, const char *name,
                                    oar_tensor *param)
{
    oari_entry *entry = NULL;
    oar_status status;

    if (module == NULL || name == NULL || param == NULL)
        status = oari_null("module_replace_param");
    else
        status = find_place(module, name, OARI_PARAM, &entry);
    if (status == OAR_OK)
        status = oar_tensor_require_grad(
            param, oar_tensor_requires_grad(entry->tensor));
    if (status != OAR_OK) {
        oar_tensor_release(param);
        return status;
    }
    oar_tensor_release(entry->tensor);
    entry->tensor = param;
    return OAR_OK;
}
