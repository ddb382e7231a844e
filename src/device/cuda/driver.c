/* SPDX-License-Identifier: Apache-2.0 */
/* driver: CUDA's driver library, loaded when it is first needed, and a primary
 * context for each device that is used.
 *
 * A lock guards the first load; its outcome never changes afterwards and is
 * read without the lock. The state of a parent that had begun to load is
 * useless to a child: it checks `begun` before it takes the lock, which a
 * thread that the child does not have may hold. Contexts are kept until the
 * process ends.
 */
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/fork.h"
#include "base/status.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint begun;  /* generation + 1 of the process that loaded it */
static atomic_int settled; /* the fields below are final */
static oar_status outcome;
static char reason[sizeof((oar_error *)0)->text];
static oari_cuda driver;
static int device_count, version;
static _Atomic(oari_cu_context) contexts[OARI_CUDA_DEVICES];

/* ---- texts --------------------------------------------------------------- */

static oar_status status_of(int result)
{
    switch (result) {
    case OARI_CU_OUT_OF_MEMORY: return OAR_E_NOMEM;
    case OARI_CU_NOT_INITIALIZED:
    case OARI_CU_DEINITIALIZED:
    case OARI_CU_NO_DEVICE: return OAR_E_UNAVAILABLE;
    }
    return OAR_E_GPU;
}

oar_status oari_cuda_check(int result, const char *what)
{
    const char *name = NULL, *text = NULL;

    if (result == OARI_CU_SUCCESS)
        return OAR_OK;
    if (driver.GetErrorName == NULL || driver.GetErrorString == NULL ||
        driver.GetErrorName(result, &name) != OARI_CU_SUCCESS ||
        driver.GetErrorString(result, &text) != OARI_CU_SUCCESS ||
        name == NULL || text == NULL)
        return oari_fail(status_of(result), "%s: CUDA error %d", what, result);
    return oari_fail(status_of(result), "%s: %s (%s)", what, text, name);
}

/* ---- loading ------------------------------------------------------------- */

static oar_status open_library(const char *path, void **library)
{
    const char *why;

    if ((*library = dlopen(path, RTLD_NOW | RTLD_LOCAL)) != NULL)
        return OAR_OK;
    why = dlerror();
    if (path == oari_env_text("OARSONG_CUDA_LIBRARY"))
        return oari_fail(OAR_E_UNAVAILABLE, "OARSONG_CUDA_LIBRARY: %s", why);
    if (strncmp(why, path, strlen(path)) == 0 &&
        strstr(why, "No such file") != NULL)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "%s was not found: is NVIDIA's driver installed?",
                         path);
    return oari_fail(OAR_E_UNAVAILABLE, "%s", why);
}

static oar_status fail_missing_symbol(const char *path, const char *symbol)
{
    if (driver.DriverGetVersion == NULL)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "%s has no %s: is it CUDA's driver library?", path,
                         symbol);
    driver.DriverGetVersion(&version);
    return oari_fail(OAR_E_UNAVAILABLE,
                     "%s has no %s: it is of CUDA %d.%d, and a newer driver is "
                     "needed",
                     path, symbol, version / 1000, version % 1000 / 10);
}

static oar_status find_symbols(const char *path, void *library)
{
    void *symbol;

    /* What only GPUs of the kind "Hopper" and later use is not in drivers of
     * CUDA 11: without it their kernels are not chosen. */
#define X(field, name, parameters)                    \
    if ((symbol = dlsym(library, #name)) == NULL &&   \
        strcmp(#name, "cuTensorMapEncodeTiled") != 0) \
        return fail_missing_symbol(path, #name);      \
    memcpy(&driver.field, &symbol, sizeof driver.field);
    OARI_CUDA_SYMBOLS(X)
#undef X
    return OAR_OK;
}

static oar_status fail_no_gpu(const char *path)
{
    return oari_fail(OAR_E_UNAVAILABLE,
                     "%s is there, but finds no GPU (is one in this machine, "
                     "and does CUDA_VISIBLE_DEVICES let it be seen?)",
                     path);
}

static oar_status start_driver(const char *path)
{
    char what[300];
    int result = driver.Init(0), count = 0;

    snprintf(what, sizeof what, "start %s", path);
    if (result == OARI_CU_NO_DEVICE)
        return fail_no_gpu(path);
    if (oari_cuda_check(result, what) != OAR_OK ||
        oari_cuda_check(driver.DriverGetVersion(&version), what) != OAR_OK ||
        oari_cuda_check(driver.DeviceGetCount(&count), what) != OAR_OK)
        return OAR_E_UNAVAILABLE;
    if (count <= 0)
        return fail_no_gpu(path);
    device_count = count < OARI_CUDA_DEVICES ? count : OARI_CUDA_DEVICES;
    return OAR_OK;
}

static oar_status load_driver(void)
{
    const char *path = oari_env_text("OARSONG_CUDA_LIBRARY");
    void *library = NULL;

    if (path == NULL)
        path = "libcuda.so.1";
    OARI_TRY(open_library(path, &library));
    if (find_symbols(path, library) != OAR_OK) {
        memset(&driver, 0, sizeof driver);
        dlclose(library);
        return OAR_E_UNAVAILABLE;
    }
    return start_driver(path);
}

oar_status oari_cuda_load(const oari_cuda **cu)
{
    unsigned mine, seen;

    oari_fork_watch();
    mine = oari_fork_generation() + 1;
    seen = atomic_load(&begun);
    if (seen == 0) /* no parent has begun to load the driver: this one does */
        atomic_compare_exchange_strong(&begun, &seen, mine);
    if (seen != 0 && seen != mine &&
        (!atomic_load(&settled) || outcome == OAR_OK))
        return oari_fail(OAR_E_STATE,
                         "the parent of this process has used CUDA, which does "
                         "not survive a fork: start processes by exec, or fork "
                         "before the first use of a GPU");
    if (!atomic_load_explicit(&settled, memory_order_acquire)) {
        pthread_mutex_lock(&lock);
        if (!atomic_load(&settled)) {
            outcome = load_driver() == OAR_OK ? OAR_OK : OAR_E_UNAVAILABLE;
            if (outcome != OAR_OK)
                snprintf(reason, sizeof reason, "%s", oar_last_error_text());
            atomic_store_explicit(&settled, 1, memory_order_release);
        }
        pthread_mutex_unlock(&lock);
    }
    if (outcome != OAR_OK)
        return oari_fail(outcome, "%s", reason);
    *cu = &driver;
    return OAR_OK;
}

/* ---- devices and their contexts ------------------------------------------ */

oar_status oari_cuda_count(int *count)
{
    const oari_cuda *cu;

    OARI_TRY(oari_cuda_load(&cu));
    *count = device_count;
    return OAR_OK;
}

int oari_cuda_version(void)
{
    return version;
}

oar_status oari_cuda_known(int device, const oari_cuda **cu)
{
    OARI_TRY(oari_cuda_load(cu));
    if (device >= 0 && device < device_count)
        return OAR_OK;
    return oari_fail(OAR_E_DEVICE, "there is no cuda:%d: %d GPU%s here", device,
                     device_count, device_count == 1 ? " is" : "s are");
}

oar_status oari_cuda_context(int device, oari_cu_context *context)
{
    oar_status status = OAR_OK;
    oari_cu_context made;
    oari_cu_device handle;
    const oari_cuda *cu;
    char what[64];

    OARI_TRY(oari_cuda_known(device, &cu));
    if (atomic_load(&contexts[device]) == NULL) {
        pthread_mutex_lock(&lock);
        if (atomic_load(&contexts[device]) == NULL) {
            snprintf(what, sizeof what, "make a context on cuda:%d", device);
            status = oari_cuda_check(cu->DeviceGet(&handle, device), what);
            if (status == OAR_OK)
                status = oari_cuda_check(
                    cu->DevicePrimaryCtxRetain(&made, handle), what);
            if (status == OAR_OK)
                atomic_store(&contexts[device], made);
        }
        pthread_mutex_unlock(&lock);
    }
    if (status == OAR_OK)
        *context = atomic_load(&contexts[device]);
    return status;
}

int oari_cuda_used(int device)
{
    return device >= 0 && device < OARI_CUDA_DEVICES &&
           atomic_load(&contexts[device]) != NULL;
}

oar_status oari_cuda_enter(int device, const oari_cuda **cu)
{
    oari_cu_context context;

    OARI_TRY(oari_cuda_context(device, &context));
    OARI_TRY(oari_cuda_check(driver.CtxPushCurrent(context), "enter a GPU"));
    *cu = &driver;
    return OAR_OK;
}

void oari_cuda_leave(void)
{
    oari_cu_context context;

    driver.CtxPopCurrent(&context);
}
