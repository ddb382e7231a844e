/* SPDX-License-Identifier: Apache-2.0 */
/* ucc_library: UCC in this process: whether it can work, and the one handle of
 * it.
 *
 * Made by the first group that opens it, under a lock, and never given back:
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

/* UCC reads it from the environment and has no other way to be told: that the
 * sum is divided, at the end. Else every contribution is, which rounds more,
 * and an average in reduce_scatter is not supported. */
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

/* UCC loads its parts from the folder ucc/ beside it; the one for memory of
 * CUDA is there or it is not. */
static int has_cuda(void)
{
    char path[512];
    const char *slash;
    Dl_info info;
    void *function;
    int bytes;

    /* a cast between the two kinds of pointers is not C */
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

static oar_status check_version(void)
{
    unsigned major, minor, release;

    ucc_get_version(&major, &minor, &release);
    if (major == UCC_API_MAJOR && minor >= UCC_API_MINOR)
        return OAR_OK;
    return oar_backend_fail(OAR_E_UNAVAILABLE,
                            "this is UCC %u.%u.%u, and the plugin was built "
                            "for UCC %d.%d or a newer %d.x: install that, or "
                            "build the plugin again",
                            major, minor, release, UCC_API_MAJOR, UCC_API_MINOR,
                            UCC_API_MAJOR);
}

oar_status oari_ucc_probe(oar_backend_caps *caps)
{
    static char note[80];
    int cuda = has_cuda();
    oar_status status = check_version();

    if (status != OAR_OK)
        return status;
    pthread_mutex_lock(&lock);
    snprintf(note, sizeof note, "UCC %s over UCX, %s memory",
             ucc_get_version_string(), cuda ? "host and CUDA" : "host");
    pthread_mutex_unlock(&lock);
    caps->note = note;
    caps->can = OAR_WANTS_LINKS | OAR_CAN_ANY | OAR_CAN_PROBE |
                OAR_CAN_SYNCHRONOUS; /* messages are those of the links */
    if (cuda)
        caps->devices = 1u << OAR_CPU | 1u << OAR_CUDA;
    return OAR_OK;
}

/* ---- the handle ---------------------------------------------------------- */

/* Several groups of a process have drivers of their own, and UCC keeps pools
 * that all of them use. */
static oar_status start(void)
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

/* UCX's cache of registered memory hooks mmap and its like by writing over
 * their code, and sometimes waits for itself for ever when threads of the
 * process use them at that moment: its own do. Without RDMA there is nothing to
 * register. UCX reads this whenever a context is made, so it stays. */
static void keep_from_hooks(void)
{
    if (getenv("UCX_MEM_EVENTS") == NULL && !has_rdma())
        setenv("UCX_RCACHE_ENABLE", "n", 0);
}

static oar_status start_so(void)
{
    int ours = getenv(divides_first) == NULL;
    oar_status status;

    keep_from_hooks();
    setenv(divides_first, "n", 0);
    status = start();
    if (ours)
        unsetenv(divides_first);
    return status == OAR_OK ? check_threads() : status;
}

oar_status oari_ucc_library(ucc_lib_h *library)
{
    oar_status status = OAR_OK;

    pthread_mutex_lock(&lock);
    if (the_library == NULL)
        status = start_so();
    *library = the_library;
    pthread_mutex_unlock(&lock);
    return status;
}
