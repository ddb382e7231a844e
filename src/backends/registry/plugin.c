/* SPDX-License-Identifier: Apache-2.0 */
/* plugin: shared objects with a backend in them. The list only grows; a lock
 * guards it. */
#include "backends/registry/plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/status.h"

enum { MAX_PLUGINS = 64, PATH_BYTES = 4096 };

typedef struct plugin {
    char *path;
    const oar_backend_ops *ops;
} plugin;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static plugin plugins[MAX_PLUGINS];
static int total;

/* ---- loading ------------------------------------------------------------- */

/* Returns what is wrong with a table of our ABI, or NULL. One compiled against
 * older headers is shorter, which is fine if it has everything up to its post
 * array. */
static const char *find_flaw(const oar_backend_ops *ops)
{
    int has_collectives = 0;

    if (ops->size < offsetof(oar_backend_ops, post))
        return "ends before its post array";
    if (ops->post_count >
        (ops->size - offsetof(oar_backend_ops, post)) / sizeof *ops->post)
        return "ends within its post array";
    for (size_t i = 0; i < ops->post_count; i++)
        has_collectives |= ops->post[i] != NULL;
    if (ops->name == NULL || ops->name[0] == 0)
        return "has no name";
    if (ops->self_size == 0)
        return "has no self_size";
    if (ops->open == NULL || ops->close == NULL)
        return "lacks open or close";
    if ((ops->send == NULL) != (ops->recv == NULL))
        return "lacks one of send and recv";
    if ((ops->wait_fd == NULL) != (ops->arm == NULL))
        return "lacks one of wait_fd and arm";
    if (ops->send == NULL && !has_collectives)
        return "has neither messages nor collectives";
    return NULL;
}

static oar_status open_plugin(const char *path, const oar_backend_ops **ops)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const oar_backend_ops *table;
    oar_backend_plugin_fn entry;
    const char *wrong;
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
    *ops = table = entry();
    if (table == NULL)
        oari_fail(OAR_E_UNAVAILABLE, "%s: it gives no table", path);
    else if (table->abi != OAR_BACKEND_ABI)
        oari_fail(OAR_E_UNAVAILABLE,
                  "%s: made for backend ABI %u, this is %u: it has to be built "
                  "against the headers of this library",
                  path, table->abi, OAR_BACKEND_ABI);
    else if ((wrong = find_flaw(table)) != NULL)
        oari_fail(OAR_E_UNAVAILABLE, "%s: its table %s", path, wrong);
    else
        return OAR_OK;
    dlclose(library);
    return OAR_E_UNAVAILABLE;
}

static oar_status load_locked(const char *path, const oar_backend_ops **ops)
{
    char *copy;

    for (int i = 0; i < total; i++)
        if (strcmp(plugins[i].path, path) == 0) {
            *ops = plugins[i].ops;
            return OAR_OK;
        }
    if (total == MAX_PLUGINS)
        return oari_fail(OAR_E_UNAVAILABLE, "more than %d backend plugins",
                         MAX_PLUGINS);
    if ((copy = oari_strdup(path)) == NULL)
        return OAR_E_NOMEM;
    if (open_plugin(path, ops) != OAR_OK) {
        oari_free(copy);
        return OAR_E_UNAVAILABLE;
    }
    plugins[total++] = (plugin){ copy, *ops };
    return OAR_OK;
}

oar_status oari_plugin_load(const char *path, const oar_backend_ops **ops)
{
    oar_status status;

    pthread_mutex_lock(&lock);
    status = load_locked(path, ops);
    pthread_mutex_unlock(&lock);
    return status;
}

const oar_backend_ops *oari_plugin_at(int index)
{
    const oar_backend_ops *ops = NULL;

    pthread_mutex_lock(&lock);
    if (index >= 0 && index < total)
        ops = plugins[index].ops;
    pthread_mutex_unlock(&lock);
    return ops;
}

/* ---- searching ----------------------------------------------------------- */

/* Loads a plugin from a folder; OAR_E_NOT_FOUND if it is not there. */
static oar_status try_folder(const char *folder, int bytes, const char *below,
                             const char *file, const oar_backend_ops **ops)
{
    char path[PATH_BYTES];
    int written = snprintf(path, sizeof path, "%.*s/%sliboarsong-%s.so", bytes,
                           folder, below, file);

    if (written < 0 || (size_t)written >= sizeof path ||
        access(path, F_OK) != 0)
        return OAR_E_NOT_FOUND;
    return oari_plugin_load(path, ops);
}

static oar_status try_list(const char *list, const char *file,
                           const oar_backend_ops **ops)
{
    oar_status status = OAR_E_NOT_FOUND;

    while (list != NULL && status == OAR_E_NOT_FOUND) {
        const char *end = strchrnul(list, ':');

        if (end != list)
            status = try_folder(list, (int)(end - list), "", file, ops);
        list = *end != 0 ? end + 1 : NULL;
    }
    return status;
}

oar_status oari_plugin_search(const char *file, const oar_backend_ops **ops)
{
    oar_status status =
        try_list(oari_env_text("OARSONG_PLUGIN_PATH"), file, ops);
    Dl_info here;
    const char *end;
    int bytes;

    if (status != OAR_E_NOT_FOUND ||
        dladdr((const void *)plugins, &here) == 0 || here.dli_fname == NULL ||
        (end = strrchr(here.dli_fname, '/')) == NULL)
        return status;
    bytes = (int)(end - here.dli_fname);
    status = try_folder(here.dli_fname, bytes, "", file, ops);
    if (status == OAR_E_NOT_FOUND)
        status = try_folder(here.dli_fname, bytes, "oarsong/", file, ops);
    return status;
}
