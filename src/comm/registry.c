/* SPDX-License-Identifier: Apache-2.0 */
/* registry: the built-in backends, and plugins loaded by path. The list only
 * grows; a lock guards it. Plugins stay loaded until the process ends. */
#include "comm/registry.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

/* One line a backend: deleting its folder and its line here leaves a library
 * that builds. */
extern const oar_backend_ops oari_backend_self, oari_backend_native,
    oari_backend_shm, oari_backend_tcp, oari_backend_sim;

static const oar_backend_ops *const built_in[] = {
    &oari_backend_self, &oari_backend_sim, &oari_backend_native,
    &oari_backend_shm,  &oari_backend_tcp,
};

enum { BUILT_IN = sizeof built_in / sizeof *built_in, MAX_PLUGINS = 64 };

typedef struct plugin {
    char *path;
    const oar_backend_ops *ops;
} plugin;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static plugin plugins[MAX_PLUGINS];
static int plugin_total;

const char *oar_coll_name(oar_coll kind)
{
    switch (kind) {
#define X(name, value, text) \
    case name: return text;
        OAR_COLL_LIST(X)
#undef X
    case OAR_COLL_COUNT: break;
    }
    return "?";
}

oar_status oar_backend_fail(oar_status status, const char *format, ...)
{
    char text[400];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return oari_fail(status, "%s", text);
}

/* ---- loading
 * -------------------------------------------------------------------*/

/* A table compiled against older headers is shorter, which is fine as long as
 * it has everything up to its post array. */
static oar_status check_table(const char *path, const oar_backend_ops *ops)
{
    if (ops == NULL)
        return oari_fail(OAR_E_UNAVAILABLE, "%s: it gives no table", path);
    if (ops->abi != OAR_BACKEND_ABI)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "%s: made for backend ABI %u, this is %u", path,
                         ops->abi, OAR_BACKEND_ABI);
    if (ops->size < offsetof(oar_backend_ops, post) || ops->name == NULL ||
        ops->open == NULL || ops->close == NULL || ops->self_size == 0 ||
        (ops->send == NULL) != (ops->recv == NULL) ||
        (ops->wait_fd == NULL) != (ops->arm == NULL))
        return oari_fail(OAR_E_UNAVAILABLE, "%s: its table is incomplete",
                         path);
    if (ops->send == NULL)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "%s: a backend without send and recv is not "
                         "supported yet",
                         path);
    return OAR_OK;
}

static oar_status open_plugin(const char *path, const oar_backend_ops **ops)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    oar_backend_plugin_fn entry;
    void *symbol;

    if (library == NULL)
        return oari_fail(OAR_E_UNAVAILABLE, "%s", dlerror());
    symbol = dlsym(library, OAR_BACKEND_PLUGIN_SYMBOL);
    if (symbol == NULL) {
        dlclose(library);
        return oari_fail(OAR_E_UNAVAILABLE, "%s: it does not export %s", path,
                         OAR_BACKEND_PLUGIN_SYMBOL);
    }
    memcpy(&entry, &symbol, sizeof entry);
    *ops = entry();
    if (check_table(path, *ops) != OAR_OK) {
        dlclose(library);
        return OAR_E_UNAVAILABLE;
    }
    return OAR_OK;
}

static oar_status load_locked(const char *path, const oar_backend_ops **ops)
{
    char *copy;

    for (int i = 0; i < plugin_total; i++)
        if (strcmp(plugins[i].path, path) == 0) {
            *ops = plugins[i].ops;
            return OAR_OK;
        }
    if (plugin_total == MAX_PLUGINS)
        return oari_fail(OAR_E_UNAVAILABLE, "more than %d backend plugins",
                         MAX_PLUGINS);
    if ((copy = oari_strdup(path)) == NULL)
        return OAR_E_NOMEM;
    if (open_plugin(path, ops) != OAR_OK) {
        oari_free(copy);
        return OAR_E_UNAVAILABLE;
    }
    plugins[plugin_total++] = (plugin){ copy, *ops };
    return OAR_OK;
}

static oar_status load(const char *path, const oar_backend_ops **ops)
{
    oar_status status;

    pthread_mutex_lock(&lock);
    status = load_locked(path, ops);
    pthread_mutex_unlock(&lock);
    return status;
}

oar_status oar_backend_load(const char *path, const char **name)
{
    const oar_backend_ops *ops;

    if (path == NULL)
        return oari_fail(OAR_E_ARG, "backend_load without a path");
    OARI_TRY(load(path, &ops));
    if (name != NULL)
        *name = ops->name;
    return OAR_OK;
}

/* ---- finding
 * -------------------------------------------------------------------*/

const char *oar_backend_name(int index)
{
    const char *name = NULL;

    if (index < 0)
        return NULL;
    if (index < BUILT_IN)
        return built_in[index]->name;
    pthread_mutex_lock(&lock);
    if (index - BUILT_IN < plugin_total)
        name = plugins[index - BUILT_IN].ops->name;
    pthread_mutex_unlock(&lock);
    return name;
}

static const oar_backend_ops *find_named(const char *name)
{
    const oar_backend_ops *found = NULL;

    for (int i = 0; i < BUILT_IN; i++)
        if (strcmp(built_in[i]->name, name) == 0)
            return built_in[i];
    pthread_mutex_lock(&lock);
    for (int i = 0; i < plugin_total && found == NULL; i++)
        if (strcmp(plugins[i].ops->name, name) == 0)
            found = plugins[i].ops;
    pthread_mutex_unlock(&lock);
    return found;
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
    return ops->probe != NULL ? ops->probe(caps) : OAR_OK;
}

static oar_status find(const char *name, const oar_backend_ops **ops,
                       oar_backend_caps *caps)
{
    if (is_path(name))
        OARI_TRY(load(name, ops));
    else if ((*ops = find_named(name)) == NULL)
        return oari_fail(OAR_E_NOT_FOUND,
                         "there is no backend \"%s\" (`oarsong info` lists "
                         "them)",
                         name);
    return probe(*ops, caps);
}

oar_status oar_backend_available(const char *name, oar_backend_caps *caps)
{
    const oar_backend_ops *ops;
    oar_backend_caps found;

    if (name == NULL)
        return oari_fail(OAR_E_ARG, "backend_available without a name");
    OARI_TRY(find(name, &ops, &found));
    if (caps == NULL)
        return OAR_OK;
    return oari_struct_give(caps, &found, sizeof found, "caps");
}

oar_status oari_backend_find(const char *name, int ranks,
                             const oar_backend_ops **backend)
{
    oar_backend_caps caps;

    if (name == NULL)
        name = ranks == 1 ? "self" : "native";
    return find(name, backend, &caps);
}
