/* SPDX-License-Identifier: Apache-2.0 */
/* registry: the built-in backends, the engines of others that there are plugins
 * for, and plugins loaded by path or found by name. */
#include "backends/registry/registry.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "backends/registry/engines.h"
#include "backends/registry/plugin.h"

/* One line a backend: deleting its folder and its line here leaves a library
 * that builds. */
extern const oar_backend_ops oari_backend_self, oari_backend_native,
    oari_backend_shm, oari_backend_tcp, oari_backend_sim, oari_backend_nccl,
    oari_backend_ipc;

static const oar_backend_ops *const built_in[] = {
    &oari_backend_self, &oari_backend_sim,    &oari_backend_native,
    &oari_backend_shm,  &oari_backend_tcp,    &oari_backend_nccl,
    &oari_backend_ipc,  &oari_backend_hybrid,
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

/* Plugins that are no engines of ours. */
static const oar_backend_ops *stranger_at(int index)
{
    const oar_backend_ops *ops;

    for (int i = 0; (ops = oari_plugin_at(i)) != NULL; i++) {
        const char *name;
        int known = 0;

        for (int e = 0; (name = oari_known_engine(e)) != NULL; e++)
            known |= strcmp(name, ops->name) == 0;
        if (!known && index-- == 0)
            return ops;
    }
    return NULL;
}

const char *oar_backend_name(int index)
{
    const oar_backend_ops *ops;
    int engines = 0;

    if (index < 0)
        return NULL;
    if (index < BUILT_IN)
        return built_in[index]->name;
    while (oari_known_engine(engines) != NULL)
        engines++;
    if (index < BUILT_IN + engines)
        return oari_known_engine(index - BUILT_IN);
    ops = stranger_at(index - BUILT_IN - engines);
    return ops != NULL ? ops->name : NULL;
}

static const oar_backend_ops *find_loaded(const char *name)
{
    const oar_backend_ops *ops;

    for (int i = 0; i < BUILT_IN; i++)
        if (strcmp(built_in[i]->name, name) == 0)
            return built_in[i];
    for (int i = 0; (ops = oari_plugin_at(i)) != NULL; i++)
        if (strcmp(ops->name, name) == 0)
            return ops;
    return NULL;
}

/* By name: built in, loaded, an engine of ours, or somebody's plugin. */
static oar_status find_named(const char *name, const oar_backend_ops **ops)
{
    oar_status status = OAR_OK;

    if ((*ops = find_loaded(name)) != NULL)
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

static int is_path(const char *name)
{
    size_t n = strlen(name);

    return strchr(name, '/') != NULL ||
           (n > 3 && strcmp(name + n - 3, ".so") == 0);
}

static oar_status probe(const oar_backend_ops *ops, oar_backend_caps *caps)
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

static oar_status find(const char *name, const oar_backend_ops **ops,
                       oar_backend_caps *caps)
{
    if (is_path(name))
        OARI_TRY(oari_plugin_load(name, ops));
    else
        OARI_TRY(find_named(name, ops));
    return probe(*ops, caps);
}

int oari_backend_is_for_gpus(const oar_backend_caps *caps)
{
    return caps->devices == 1u << OAR_CUDA;
}

oar_status oari_backend_probe(const char *name, const oar_backend_ops **ops,
                              oar_backend_caps *caps)
{
    return find(name, ops, caps);
}

oar_status oar_backend_available(const char *name, oar_backend_caps *caps)
{
    const oar_backend_ops *ops;
    oar_backend_caps found;

    if (name == NULL)
        return oari_fail(OAR_E_ARG, "backend_available without a name");
    if (strchr(name, ':') != NULL)
        OARI_TRY(oari_hybrid_probe(name, &found));
    else
        OARI_TRY(find(name, &ops, &found));
    if (caps == NULL)
        return OAR_OK;
    return oari_struct_give(caps, &found, sizeof found, "caps");
}

const oar_backend_ops *oari_backend_links(int ranks)
{
    return ranks == 1 ? &oari_backend_self : &oari_backend_native;
}

oar_status oari_backend_find(const char *name, int ranks,
                             const oar_backend_ops **backend)
{
    oar_backend_caps caps;

    if (name == NULL)
        name = ranks == 1 ? "self" : "native";
    return find(name, backend, &caps);
}
