/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_library: NCCL in this process: whether it is there, and what it says.
 *
 * Looked for once, under a lock, and never let go: threads of its own may run
 * in it until the process ends. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/nccl/nccl_engine.h"
#include "base/env.h"

static const char usual[] = "libnccl.so.2";
static const char variable[] = "OARSONG_NCCL_LIBRARY";

static pthread_once_t once = PTHREAD_ONCE_INIT;
static oari_nccl the_library;
static oar_status found = OAR_OK;
static char why_not[400];

/* ---- finding it ---------------------------------------------------------- */

oari_nccl_version_text oari_nccl_version(int version)
{
    oari_nccl_version_text v;

    snprintf(v.text, sizeof v.text, "%d.%d.%d", version / 10000,
             version / 100 % 100, version % 100);
    return v;
}

static void give_up(const char *format, const char *name, const char *what)
{
    found = OAR_E_UNAVAILABLE;
    snprintf(why_not, sizeof why_not, format, name, what);
}

static const char *name_of_library(void)
{
    const char *name = oari_env_text(variable);

    return name != NULL ? name : usual;
}

/* A function pointer of any type: C has no cast for it. */
static int find(void *library, const char *symbol, void *pointer)
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

#define X(field, symbol, since, parameters)                     \
    if (!find(library, #symbol, &lib->field) && (since) == 0 && \
        missing == NULL)                                        \
        missing = #symbol;
    OARI_NCCL_SYMBOLS(X)
#undef X
    if (!find(library, "ncclGetErrorString", &lib->GetErrorString))
        missing = "ncclGetErrorString";
    find(library, "ncclGetLastError", &lib->GetLastError);
    if (missing != NULL)
        give_up(lacks, name, missing);
}

static void check_version(const char *name)
{
    int result = the_library.GetVersion(&the_library.version);

    if (result != OARI_NCCL_SUCCESS)
        give_up("%s does not say which version it is%s", name, "");
    else if (the_library.version < OARI_NCCL_FLOOR)
        give_up("%s is NCCL %s: install 2.18 or newer (libnccl2)", name,
                oari_nccl_version(the_library.version).text);
    snprintf(the_library.note, sizeof the_library.note,
             "NCCL %s, one rank a GPU",
             oari_nccl_version(the_library.version).text);
}

static void look_for_it(void)
{
    const char *name = name_of_library();
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const char *said;

    if (library == NULL) {
        said = dlerror();
        give_up("NCCL cannot be loaded as %s (%s): install NCCL 2.18 or newer "
                "(libnccl2, or nvidia-nccl-cu12 by pip), or name the library "
                "in OARSONG_NCCL_LIBRARY",
                name, said != NULL ? said : "no reason given");
        return;
    }
    find_symbols(library, name);
    if (found == OAR_OK)
        check_version(name);
}

oar_status oari_nccl_load(const oari_nccl **lib)
{
    pthread_once(&once, look_for_it);
    if (found != OAR_OK)
        return oar_backend_fail(found, "%s", why_not);
    *lib = &the_library;
    return OAR_OK;
}

/* ---- what it says -------------------------------------------------------- */

/* A code that this list does not have, of a newer NCCL, is text like any
 * other. */
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

static const char *last_error(const oari_nccl *lib, oari_nccl_handle comm)
{
    const char *text =
        lib->GetLastError != NULL ? lib->GetLastError(comm) : NULL;

    return text != NULL ? text : "";
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
    more = last_error(lib, comm);
    return oar_backend_fail(status, "NCCL: %s: %s: %s%s%s", what,
                            result_name(result, room, sizeof room),
                            text != NULL ? text : "", *more != 0 ? ": " : "",
                            more);
}
