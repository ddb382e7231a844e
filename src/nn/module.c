/* SPDX-License-Identifier: Apache-2.0 */
/* module: a counted, ordered register of named parameters, buffers and
 * children. The order of registration, depth first, is the order everywhere. */
#include "nn/module.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/vec.h"
#include "tensor/tensor.h"

/* ---- life ---------------------------------------------------------------- */

/* Checks that the counters lie in the private data and can be told apart. */
static oar_status check_counters(const oar_module_class *kind)
{
    const oar_counter_entry *c = kind->counters;

    for (int i = 0; c != NULL && c[i].name != NULL; i++) {
        if (c[i].name[0] == '\0' || strchr(c[i].name, '.') != NULL)
            return oari_fail(OAR_E_ARG,
                             "module_create of class %s: \"%s\" is no name for "
                             "a counter; it needs a letter and no dots",
                             kind->name, c[i].name);
        if (c[i].offset % _Alignof(uint64_t) != 0 ||
            kind->self_size < sizeof(uint64_t) ||
            c[i].offset > kind->self_size - sizeof(uint64_t))
            return oari_fail(OAR_E_ARG,
                             "module_create of class %s: counter %s at byte "
                             "%zu of %zu",
                             kind->name, c[i].name, c[i].offset,
                             kind->self_size);
        for (int k = 0; k < i; k++)
            if (strcmp(c[k].name, c[i].name) == 0)
                return oari_fail(OAR_E_ARG,
                                 "module_create of class %s: it has two "
                                 "counters %s",
                                 kind->name, c[i].name);
    }
    return OAR_OK;
}

oar_status oar_module_create(const oar_module_class *kind, oar_module **module)
{
    oar_module *made;
    oar_module_class known;

    if (kind == NULL || module == NULL)
        return oari_fail(OAR_E_ARG, "module_create: no class or nowhere to "
                                    "give it");
    OARI_TRY(oari_opts_read(&known, sizeof known, kind));
    if (known.name == NULL || known.forward == NULL)
        return oari_fail(OAR_E_ARG, "module_create of a class without a name "
                                    "or a forward");
    OARI_TRY(check_counters(&known));
    if (known.self_size > SIZE_MAX - sizeof *made)
        return oari_fail(OAR_E_NOMEM, "out of memory: a module of %zu bytes",
                         known.self_size);
    made = oari_alloc(1, sizeof *made + known.self_size);
    if (made == NULL)
        return OAR_E_NOMEM;
    atomic_init(&made->refs, 1);
    made->kind = known;
    made->given = kind;
    made->training = 1;
    *module = made;
    return OAR_OK;
}

oar_module *oar_module_retain(oar_module *module)
{
    if (module != NULL)
        atomic_fetch_add_explicit(&module->refs, 1, memory_order_relaxed);
    return module;
}

void oar_module_release(oar_module *module)
{
    if (module == NULL ||
        atomic_fetch_sub_explicit(&module->refs, 1, memory_order_acq_rel) > 1)
        return;
    if (module->kind.destroy != NULL)
        module->kind.destroy(module->self);
    for (int i = 0; i < module->entries; i++) {
        oari_free(module->entry[i].name);
        oar_tensor_release(module->entry[i].tensor);
        oar_module_release(module->entry[i].child);
    }
    for (int i = 0; i < OARI_MOMENTS; i++)
        oari_hooks_clear(&module->hooks[i]);
    for (int i = 0; i < OARI_MAPS; i++)
        oari_hooks_clear(&module->maps[i]);
    oari_free(module->entry);
    oari_free(module);
}

void *oar_module_self(oar_module *module)
{
    return module != NULL ? module->self : NULL;
}

const char *oar_module_name(const oar_module *module)
{
    return module != NULL ? module->kind.name : NULL;
}

int oar_module_is(const oar_module *module, const oar_module_class *kind)
{
    return module != NULL && module->given == kind;
}

/* ---- registering --------------------------------------------------------- */

/* Registers an entry without its name; what it holds is taken on success. */
static oar_status append_entry(oar_module *module, const char *name,
                               const oari_entry *entry)
{
    char *copy;

    if (name == NULL || name[0] == '\0' || strchr(name, '.') != NULL)
        return oari_fail(OAR_E_ARG,
                         "module %s: \"%s\" is no name; it needs at least one "
                         "letter and no dots",
                         module->kind.name, name != NULL ? name : "");
    for (int i = 0; i < module->entries; i++)
        if (strcmp(module->entry[i].name, name) == 0)
            return oari_fail(OAR_E_ARG, "module %s has a \"%s\" already",
                             module->kind.name, name);
    OARI_TRY(
        oari_array_reserve(module->entry, module->entries, module->room, 1));
    copy = oari_strdup(name);
    if (copy == NULL)
        return OAR_E_NOMEM;
    module->entry[module->entries] = *entry;
    module->entry[module->entries++].name = copy;
    return OAR_OK;
}

static oar_status add_tensor(oar_module *module, const char *name,
                             oar_tensor *tensor, oari_entry_kind kind)
{
    oar_status status;

    if (module == NULL || tensor == NULL)
        status = oari_null("registration");
    else if (kind == OARI_PARAM)
        status = oar_tensor_require_grad(tensor, 1);
    else
        status = OAR_OK;
    if (status == OAR_OK)
        status = append_entry(module, name,
                              &(oari_entry){ .kind = kind, .tensor = tensor });
    if (status != OAR_OK)
        oar_tensor_release(tensor);
    return status;
}

oar_status oar_module_add_param(oar_module *module, const char *name,
                                oar_tensor *param)
{
    return add_tensor(module, name, param, OARI_PARAM);
}

oar_status oar_module_add_buffer(oar_module *module, const char *name,
                                 oar_tensor *buffer)
{
    return add_tensor(module, name, buffer, OARI_BUFFER);
}

int oari_module_holds(const oar_module *module, const oar_module *wanted)
{
    if (module == wanted)
        return 1;
    for (int i = 0; i < module->entries; i++)
        if (module->entry[i].child != NULL &&
            oari_module_holds(module->entry[i].child, wanted))
            return 1;
    return 0;
}

oar_status oar_module_add_child(oar_module *module, const char *name,
                                oar_module *child)
{
    oar_status status;

    if (module == NULL || child == NULL)
        status = oari_null("registration");
    else if (oari_module_holds(child, module))
        status = oari_fail(OAR_E_ARG, "module %s would be inside itself",
                           module->kind.name);
    else
        status = append_entry(
            module, name, &(oari_entry){ .kind = OARI_CHILD, .child = child });
    if (status != OAR_OK)
        oar_module_release(child);
    else
        snprintf(child->name, sizeof child->name, "%s", name);
    return status;
}

/* ---- looking up ---------------------------------------------------------- */

int oar_module_children(const oar_module *module)
{
    int count = 0;

    for (int i = 0; module != NULL && i < module->entries; i++)
        count += module->entry[i].kind == OARI_CHILD;
    return count;
}

oar_module *oar_module_child(const oar_module *module, int index)
{
    for (int i = 0; module != NULL && i < module->entries; i++)
        if (module->entry[i].kind == OARI_CHILD && index-- == 0)
            return module->entry[i].child;
    return NULL;
}

static int count_kind(const oar_module *module, oari_entry_kind kind)
{
    int count = 0;

    for (int i = 0; module != NULL && i < module->entries; i++) {
        count += module->entry[i].kind == kind;
        count += count_kind(module->entry[i].child, kind);
    }
    return count;
}

/* The entry that is *index of its kind below module; *index is counted down by
 * those passed over. */
static const oari_entry *find_kind(const oar_module *module,
                                   oari_entry_kind kind, int *index)
{
    for (int i = 0; module != NULL && i < module->entries; i++) {
        const oari_entry *entry = &module->entry[i];

        if (entry->kind == kind && (*index)-- == 0)
            return entry;
        entry = find_kind(entry->child, kind, index);
        if (entry != NULL)
            return entry;
    }
    return NULL;
}

static oar_tensor *tensor_at(const oar_module *module, oari_entry_kind kind,
                             int index)
{
    const oari_entry *entry =
        index >= 0 ? find_kind(module, kind, &index) : NULL;

    return entry != NULL ? entry->tensor : NULL;
}

int oar_module_params(const oar_module *module)
{
    return count_kind(module, OARI_PARAM);
}

oar_tensor *oar_module_param(const oar_module *module, int index)
{
    return tensor_at(module, OARI_PARAM, index);
}

int oar_module_buffers(const oar_module *module)
{
    return count_kind(module, OARI_BUFFER);
}

oar_tensor *oar_module_buffer(const oar_module *module, int index)
{
    return tensor_at(module, OARI_BUFFER, index);
}

/* Writes the names from module down to the one of its kind with this index,
 * which is there, with dots between. */
static void write_name(const oar_module *module, oari_entry_kind kind,
                       int index, char *name, size_t bytes)
{
    for (int i = 0; i < module->entries; i++) {
        const oari_entry *entry = &module->entry[i];
        int inside = entry->kind == kind ? 1 : count_kind(entry->child, kind);
        size_t used;

        if (index >= inside) {
            index -= inside;
            continue;
        }
        snprintf(name, bytes, "%s%s", entry->name, entry->child ? "." : "");
        used = strlen(name);
        if (entry->child != NULL)
            write_name(entry->child, kind, index, name + used, bytes - used);
        return;
    }
}

static oar_status give_name(const oar_module *module, oari_entry_kind kind,
                            int index, char *name, size_t bytes)
{
    const char *what = kind == OARI_PARAM ? "parameters" : "buffers";

    if (module == NULL || name == NULL || bytes == 0)
        return oari_null(kind == OARI_PARAM ? "param_name" : "buffer_name");
    if (index < 0 || index >= count_kind(module, kind))
        return oari_fail(OAR_E_ARG, "module %s has %d %s, not number %d",
                         module->kind.name, count_kind(module, kind), what,
                         index);
    write_name(module, kind, index, name, bytes);
    return OAR_OK;
}

oar_status oar_module_param_name(const oar_module *module, int index,
                                 char *name, size_t bytes)
{
    return give_name(module, OARI_PARAM, index, name, bytes);
}

oar_status oar_module_buffer_name(const oar_module *module, int index,
                                  char *name, size_t bytes)
{
    return give_name(module, OARI_BUFFER, index, name, bytes);
}
