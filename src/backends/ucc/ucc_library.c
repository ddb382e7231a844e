/* SPDX-License-Identifier: Apache-2.0 */
/* ucc_library: UCC in this process: whether it works here, and its one handle.
 *
 * The first group that opens makes the handle, under a lock. It is never freed:
 * groups that were aborted may have left requests in it.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/ucc/ucc_engine.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ucc_lib_h the_library;

/* 'n': an average divides the sum, at the end. Else UCC divides every
 * contribution, which rounds more, and does not support an average in
 * reduce_scatter. UCC reads this from the environment only. */
static const char divides_first[] = "UCC_TL_UCP_REDUCE_AVG_PRE_OP";

oar_status oari_ucc_fail(ucc_status_t status, const char *what)
{
    oar_status kind = OAR_E_CLOSED;

    switch (status) {
    case UCC_ERR_NO_MEMORY: kind = OAR_E_NOMEM; break;
    case UCC_ERR_TIMED_OUT: kind = OAR_E_TIMEOUT; break;
    case UCC_ERR_NOT_SUPPORTED:
    case UCC_ERR_NOT_IMPLEMENTED: kind = OAR_E_UNSUPPORTED; break;
    case UCC_ERR_INVALID_PARAM: kind = OAR_E_INTERNAL; break;
    default: break;
    }
    return oar_backend_fail(kind, "UCC: %s: %s", what,
                            ucc_status_string(status));
}

/* ---- probing ------------------------------------------------------------- */

/* UCC loads its components from the folder ucc/ beside it; that for CUDA memory
 * is there or not. */
static int has_cuda(void)
{
    char path[512];
    const char *slash;
    Dl_info info;
    void *function;
    int bytes;

    /* C has no cast from a function pointer to void * */
    memcpy(&function, &(const char *(*)(void)){ ucc_get_version_string },
           sizeof function);
    if (dladdr(function, &info) == 0 || info.dli_fname == NULL)
        return 0;
    slash = strrchr(info.dli_fname, '/');
    if (slash == NULL)
        return 0;
    bytes = snprintf(path, sizeof path, "%.*s/ucc/libucc_mc_cuda.so",
                     (int)(slash - info.dli_fname), info.dli_fname);
    return bytes > 0 && (size_t)bytes < sizeof path && access(path, R_OK) == 0;
}

oar_status oari_ucc_probe(oar_backend_caps *caps)
{
    static char note[80];
    int cuda = has_cuda();
    unsigned major, minor, release;

    ucc_get_version(&major, &minor, &release);
    if (major != UCC_API_MAJOR || minor < UCC_API_MINOR)
        return oar_backend_fail(
            OAR_E_UNAVAILABLE,
            "this is UCC %u.%u.%u, and the plugin was built for UCC %d.%d or a "
            "newer %d.x: install that, or build the plugin again",
            major, minor, release, UCC_API_MAJOR, UCC_API_MINOR, UCC_API_MAJOR);
    pthread_mutex_lock(&lock);
    snprintf(note, sizeof note, "UCC %s over UCX, %s memory",
             ucc_get_version_string(), cuda ? "host and CUDA" : "host");
    pthread_mutex_unlock(&lock);
    caps->note = note;
    caps->can = OAR_WANTS_LINKS | OAR_CAN_ANY | OAR_CAN_PROBE |
                OAR_CAN_SYNCHRONOUS |
                OAR_CAN_AT_MOST; /* messages are those of the links */
    if (cuda)
        caps->devices = 1u << OAR_CPU | 1u << OAR_CUDA;
    return OAR_OK;
}

/* ---- the handle ---------------------------------------------------------- */

/* With UCC_THREAD_MULTIPLE: each group has a driver of its own, and UCC keeps
 * pools that all of them use. */
static oar_status init_ucc(void)
{
    ucc_lib_params_t params = { .mask = UCC_LIB_PARAM_FIELD_THREAD_MODE,
                                .thread_mode = UCC_THREAD_MULTIPLE };
    ucc_lib_config_h config;
    ucc_status_t status = ucc_lib_config_read(NULL, NULL, &config);

    if (status != UCC_OK)
        return oari_ucc_fail(status, "reading its settings");
    status = ucc_init(&params, config, &the_library);
    ucc_lib_config_release(config);
    if (status != UCC_OK)
        the_library = NULL;
    return status == UCC_OK ? OAR_OK : oari_ucc_fail(status, "starting it");
}

static oar_status check_threads(void)
{
    ucc_lib_attr_t attr = { .mask = UCC_LIB_ATTR_FIELD_THREAD_MODE };
    ucc_status_t status = ucc_lib_get_attr(the_library, &attr);

    if (status != UCC_OK)
        return oari_ucc_fail(status, "asking for its thread mode");
    if (attr.thread_mode == UCC_THREAD_MULTIPLE)
        return OAR_OK;
    ucc_finalize(the_library);
    the_library = NULL;
    return oar_backend_fail(OAR_E_UNAVAILABLE,
                            "this UCC was built without support for threads "
                            "(UCC_THREAD_MULTIPLE)");
}

static int has_rdma(void)
{
    DIR *folder = opendir("/sys/class/infiniband");
    const struct dirent *entry;
    int found = 0;

    while (folder != NULL && !found && (entry = readdir(folder)) != NULL)
        found = entry->d_name[0] != '.';
    if (folder != NULL)
        closedir(folder);
    return found;
}

/* UCX's cache of registered memory hooks mmap and the like by overwriting their
 * code, and sometimes deadlocks when threads of the process call them at that
 * moment; its own threads do. Without RDMA there is nothing to register, so the
 * cache is switched off. UCX reads this whenever a context is made, so it stays
 * in the environment. */
static oar_status start_library(void)
{
    int ours = getenv(divides_first) == NULL;
    oar_status status;

    if (getenv("UCX_MEM_EVENTS") == NULL && !has_rdma())
        setenv("UCX_RCACHE_ENABLE", "n", 0);
    setenv(divides_first, "n", 0);
    status = init_ucc();
    if (ours)
        unsetenv(divides_first);
    return status == OAR_OK ? check_threads() : status;
}

oar_status oari_ucc_library(ucc_lib_h *library)
{
    oar_status status = OAR_OK;

    pthread_mutex_lock(&lock);
    if (the_library == NULL)
        status = start_library();
    *library = the_library;
    pthread_mutex_unlock(&lock);
    return status;
}
