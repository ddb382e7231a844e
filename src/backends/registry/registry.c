/* SPDX-License-Identifier: Apache-2.0 */
/* registry: the built-in backends, the external engines that there are plugins
 * for, and plugins loaded by path or found by name. */
#include "backends/registry/registry.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "backends/backends.h"
#include "base/status.h"
#include "backends/registry/engines.h"
#include "backends/registry/plugin.h"

static const oari_backend *const built_in[] = {
#define X(name) &oari_backend_##name,
    OARI_BACKEND_LIST(X)
#undef X
};

enum { BUILT_IN = sizeof built_in / sizeof *built_in };

oar_status oar_backend_fail(oar_status status, const char *format, ...)
{
    char text[400];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return oari_fail(status, "%s", text);
}

oar_status oar_backend_load(const char *path, const char **name)
{
    const oar_backend_ops *ops;

    if (path == NULL)
        return oari_fail(OAR_E_ARG, "backend_load without a path");
    OARI_TRY(oari_plugin_load(path, &ops));
    if (name != NULL)
        *name = ops->name;
    return OAR_OK;
}

/* ---- finding ------------------------------------------------------------- */

/* Returns the index-th built-in backend that users may name. */
static const oar_backend_ops *built_in_at(int index)
{
    for (int i = 0; i < BUILT_IN; i++)
        if (built_in[i]->role != OARI_ROLE_STAGING && index-- == 0)
            return &built_in[i]->ops;
    return NULL;
}

const char *oar_backend_name(int index)
{
    const oar_backend_ops *ops;
    int names = 0, engines = 0;

    if (index < 0)
        return NULL;
    if ((ops = built_in_at(index)) != NULL)
        return ops->name;
    while (built_in_at(names) != NULL)
        names++;
    while (oari_known_engine(engines) != NULL)
        engines++;
    if (index < names + engines)
        return oari_known_engine(index - names);
    index -= names + engines; /* of the other plugins that are loaded */
    for (int i = 0; (ops = oari_plugin_at(i)) != NULL; i++) {
        int known = 0;

        for (int e = 0; e < engines; e++)
            known |= strcmp(oari_known_engine(e), ops->name) == 0;
        if (!known && index-- == 0)
            return ops->name;
    }
    return NULL;
}

/* Finds a built-in backend, a loaded one, an engine, or another plugin. */
static oar_status find_named(const char *name, const oar_backend_ops **ops)
{
    oar_status status;

    for (int i = 0; (*ops = built_in_at(i)) != NULL; i++)
        if (strcmp((*ops)->name, name) == 0)
            return OAR_OK;
    for (int i = 0; (*ops = oari_plugin_at(i)) != NULL; i++)
        if (strcmp((*ops)->name, name) == 0)
            return OAR_OK;
    status = oari_known_engine_find(name, ops);
    if (status == OAR_E_NOT_FOUND)
        status = oari_plugin_search(name, ops);
    if (status == OAR_E_NOT_FOUND)
        return oari_fail(OAR_E_NOT_FOUND,
                         "there is no backend \"%s\" (`oarsong info` lists "
                         "them), nor a liboarsong-%s.so in OARSONG_PLUGIN_PATH "
                         "or beside the library",
                         name, name);
    return status;
}

static oar_status probe_table(const oar_backend_ops *ops,
                              oar_backend_caps *caps)
{
    *caps = oar_backend_caps_init();
    if (ops->probe != NULL)
        OARI_TRY(ops->probe(caps));
    if (ops->send == NULL && (caps->can & OAR_WANTS_LINKS) == 0)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "backend \"%s\" has no messages, and does not ask "
                         "for links of ours",
                         ops->name);
    return OAR_OK;
}

int oari_backend_is_for_gpus(const oar_backend_caps *caps)
{
    return caps->devices == 1u << OAR_CUDA;
}

oar_status oari_backend_probe(const char *name, const oar_backend_ops **ops,
                              oar_backend_caps *caps)
{
    size_t n = strlen(name);
    int is_path = strchr(name, '/') != NULL ||
                  (n > 3 && strcmp(name + n - 3, ".so") == 0);

    if (is_path)
        OARI_TRY(oari_plugin_load(name, ops));
    else
        OARI_TRY(find_named(name, ops));
    return probe_table(*ops, caps);
}

/* ---- what the core needs ------------------------------------------------- */

oar_status oari_backend_in_role(oari_role role, const oari_backend **backend)
{
    static const char *const what[OARI_ROLES] = {
        [OARI_ROLE_ALONE] = "links for a group of one",
        [OARI_ROLE_PROCESSES] = "links between processes",
        [OARI_ROLE_THREADS] = "ranks as threads of one process",
        [OARI_ROLE_STAGING] = "a way for device memory through the host",
    };

    for (int i = 0; i < BUILT_IN; i++)
        if (built_in[i]->role == role) {
            *backend = built_in[i];
            return OAR_OK;
        }
    return oari_fail(OAR_E_UNAVAILABLE, "this library was built without %s",
                     what[role]);
}

oar_status oari_backend_links(int ranks, const oar_backend_ops **links)
{
    const oari_backend *found = NULL;

    OARI_TRY(oari_backend_in_role(
        ranks == 1 ? OARI_ROLE_ALONE : OARI_ROLE_PROCESSES, &found));
    *links = &found->ops;
    return OAR_OK;
}

oar_status oari_backend_find(const char *name, int ranks,
                             const oar_backend_ops **backend)
{
    oar_backend_caps caps;

    if (name != NULL)
        return oari_backend_probe(name, backend, &caps);
    OARI_TRY(oari_backend_links(ranks, backend));
    return probe_table(*backend, &caps);
}

const oari_backend *oari_backend_in_tree(const oar_backend_ops *ops)
{
    static const oari_backend none;

    for (int i = 0; i < BUILT_IN; i++)
        if (&built_in[i]->ops == ops)
            return built_in[i];
    return &none;
}

oar_status oari_backend_open(const oar_backend_ops *ops, void *self,
                             const oari_open *with)
{
    const oari_backend *ours = oari_backend_in_tree(ops);

    return ours->open != NULL ? ours->open(self, with)
                              : ops->open(self, &with->env);
}
