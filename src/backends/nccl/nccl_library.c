/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_library: NCCL in this process: whether it is there, and its errors.
 *
 * It is loaded once, under a lock, and never unloaded: threads of its own may
 * run in it until the process ends. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/nccl/nccl_engine.h"
#include "base/env.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static oari_nccl the_library;
static oar_status found = OAR_OK;
static char why_not[400];

/* ---- loading ------------------------------------------------------------- */

oari_nccl_version_text oari_nccl_version(int version)
{
    oari_nccl_version_text v;

    snprintf(v.text, sizeof v.text, "%d.%d.%d", version / 10000,
             version / 100 % 100, version % 100);
    return v;
}

static void fail_loading(const char *format, const char *name, const char *what)
{
    found = OAR_E_UNAVAILABLE;
    snprintf(why_not, sizeof why_not, format, name, what);
}

/* Copies the address to a function pointer of any type: C has no cast for it.
 */
static int find_symbol(void *library, const char *symbol, void *pointer)
{
    void *address = dlsym(library, symbol);

    memcpy(pointer, &address, sizeof address);
    return address != NULL;
}

static void find_symbols(void *library, const char *name)
{
    static const char lacks[] =
        "%s has no %s: it is no NCCL, or one older than 2.18; install NCCL "
        "2.18 or newer (libnccl2)";
    oari_nccl *lib = &the_library;
    const char *missing = NULL;

#define X(field, symbol, since, parameters)                            \
    if (!find_symbol(library, #symbol, &lib->field) && (since) == 0 && \
        missing == NULL)                                               \
        missing = #symbol;
    OARI_NCCL_SYMBOLS(X)
#undef X
    if (!find_symbol(library, "ncclGetErrorString", &lib->GetErrorString))
        missing = "ncclGetErrorString";
    find_symbol(library, "ncclGetLastError", &lib->GetLastError);
    if (missing != NULL)
        fail_loading(lacks, name, missing);
}

static void load_library(void)
{
    const char *setting = oari_env_text("OARSONG_NCCL_LIBRARY");
    const char *name = setting != NULL ? setting : "libnccl.so.2", *said;
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    oari_nccl *lib = &the_library;

    if (library == NULL) {
        said = dlerror();
        fail_loading(
            "NCCL cannot be loaded as %s (%s): install NCCL 2.18 or newer "
            "(libnccl2, or nvidia-nccl-cu12 by pip), or name the library "
            "in OARSONG_NCCL_LIBRARY",
            name, said != NULL ? said : "no reason given");
        return;
    }
    find_symbols(library, name);
    if (found != OAR_OK)
        return;
    if (lib->GetVersion(&lib->version) != OARI_NCCL_SUCCESS)
        fail_loading("%s does not say which version it is%s", name, "");
    else if (lib->version < OARI_NCCL_OLDEST)
        fail_loading("%s is NCCL %s: install 2.18 or newer (libnccl2)", name,
                     oari_nccl_version(lib->version).text);
    snprintf(lib->note, sizeof lib->note, "NCCL %s, one rank a GPU",
             oari_nccl_version(lib->version).text);
}

oar_status oari_nccl_load(const oari_nccl **lib)
{
    pthread_once(&once, load_library);
    if (found != OAR_OK)
        return oar_backend_fail(found, "%s", why_not);
    *lib = &the_library;
    return OAR_OK;
}

/* ---- errors -------------------------------------------------------------- */

/* A newer NCCL may have codes that this list does not have. */
static const char *result_name(int result, char *room, size_t bytes)
{
    switch (result) {
#define X(name, value, text) \
    case value: return text;
        OARI_NCCL_RESULTS(X)
#undef X
    default: break;
    }
    snprintf(room, bytes, "result %d, which this library does not know",
             result);
    return room;
}

oar_status oari_nccl_check(const oari_nccl *lib, int result,
                           oari_nccl_handle comm, const char *what)
{
    oar_status status = result == OARI_NCCL_REMOTE ? OAR_E_PEER : OAR_E_GPU;
    char room[64];
    const char *text, *more;

    if (result == OARI_NCCL_SUCCESS || result == OARI_NCCL_IN_PROGRESS)
        return OAR_OK;
    text = lib->GetErrorString(result);
    more = lib->GetLastError != NULL ? lib->GetLastError(comm) : NULL;
    return oar_backend_fail(
        status, "NCCL: %s: %s: %s%s%s", what,
        result_name(result, room, sizeof room), text != NULL ? text : "",
        more != NULL && *more != 0 ? ": " : "", more != NULL ? more : "");
}
