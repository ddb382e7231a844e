/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_blas: see cuda_blas.h. A lock guards the first load, whose outcome never
 * changes afterwards, the handles, the workspaces and the use of plans, whose
 * pointers are set for each product. */
#include "device/cuda/cuda_blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/status.h"
#include "device/cuda/blas_plan.h"
#include "device/cuda/cuda_pool.h"
#include "device/cuda/driver.h"

enum { WORKSPACES = 64 };

/* One for each stream: products of one stream run one after another. */
typedef struct workspace {
    int device;
    oari_cu_stream stream;
    void *memory; /* NULL: not used */
} workspace;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int settled; /* the four below are final */
static oar_status outcome;
static char reason[sizeof((oar_error *)0)->text];
static oari_blas_table table;
static oari_lt_handle handles[OARI_CUDA_DEVICES];
static workspace workspaces[WORKSPACES];
static atomic_int math[OARI_CUDA_DEVICES];

/* ---- loading ------------------------------------------------------------- */

static void *open_library(const char **path)
{
    static const char *const names[] = { "libcublasLt.so.13",
                                         "libcublasLt.so.12" };
    void *library = NULL;

    *path = oari_env_text("OARSONG_CUBLASLT_LIBRARY");
    if (*path != NULL)
        return dlopen(*path, RTLD_NOW | RTLD_LOCAL);
    for (int flags = RTLD_NOLOAD;; flags = 0) {
        for (int i = 0; i < 2 && library == NULL; i++) {
            *path = names[i];
            library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | flags);
        }
        if (library != NULL || flags == 0)
            return library;
    }
}

static oar_status load_library(void)
{
    const char *path, *why;
    void *library = open_library(&path), *symbol;

    if (library == NULL) {
        why = dlerror();
        return oari_fail(OAR_E_UNAVAILABLE,
                         "cuBLASLt: %s (OARSONG_CUBLASLT_LIBRARY can name it)",
                         why != NULL ? why : path);
    }
#define X(field, name, parameters)                                          \
    if ((symbol = dlsym(library, #name)) == NULL)                           \
        return oari_fail(OAR_E_UNAVAILABLE, "cuBLASLt: %s has no %s", path, \
                         #name);                                            \
    memcpy(&table.field, &symbol, sizeof symbol);
    OARI_BLAS_SYMBOLS(X)
    X(GetVersion, cublasLtGetVersion, (void))
#undef X
    return OAR_OK;
}

static oar_status load_once(void)
{
    if (!atomic_load_explicit(&settled, memory_order_acquire)) {
        pthread_mutex_lock(&lock);
        if (!atomic_load(&settled)) {
            outcome = load_library();
            if (outcome != OAR_OK)
                snprintf(reason, sizeof reason, "%s", oar_last_error_text());
            atomic_store_explicit(&settled, 1, memory_order_release);
        }
        pthread_mutex_unlock(&lock);
    }
    return outcome;
}

int oari_blas_present(int device)
{
    return device >= 0 && device < OARI_CUDA_DEVICES && load_once() == OAR_OK;
}

oar_status oar_device_blas(oar_device device)
{
    const oari_cuda *cu;

    OARI_TRY(oari_cuda_only(device, "ask for cuBLASLt"));
    OARI_TRY(oari_cuda_known(device.index, &cu));
    if (load_once() != OAR_OK)
        return oari_fail(outcome, "%s", reason);
    return OAR_OK;
}

oar_status oar_device_set_math(oar_device device, oar_math kind)
{
    const oari_cuda *cu;

    OARI_TRY(oari_cuda_only(device, "set the math"));
    OARI_TRY(oari_cuda_known(device.index, &cu));
    if (kind != OAR_MATH_F32 && kind != OAR_MATH_TF32)
        return oari_fail(OAR_E_ARG,
                         "set the math of cuda:%d to %d: there is "
                         "OAR_MATH_F32 and OAR_MATH_TF32",
                         device.index, (int)kind);
    atomic_store(&math[device.index], (int)kind);
    return OAR_OK;
}

/* ---- what a product needs ------------------------------------------------ */

oar_status oari_blas_check(int result, const char *what)
{
    if (result == 0)
        return OAR_OK;
    return oari_fail(result == OARI_LT_NOT_SUPPORTED ? OAR_E_UNSUPPORTED
                                                     : OAR_E_GPU,
                     "%s: cuBLASLt's status %d", what, result);
}

static oar_status find_handle(int device, oari_lt_handle *handle)
{
    if (handles[device] == NULL)
        OARI_TRY(
            oari_blas_check(table.Create(&handles[device]), "start cuBLASLt"));
    *handle = handles[device];
    return OAR_OK;
}

static oar_status find_workspace(int device, oari_cu_stream stream,
                                 void **memory)
{
    workspace *w, *unused = NULL;

    for (w = workspaces; w < workspaces + WORKSPACES; w++) {
        if (w->memory == NULL) {
            unused = unused != NULL ? unused : w;
        } else if (w->device == device && w->stream == stream) {
            *memory = w->memory;
            return OAR_OK;
        }
    }
    if (unused == NULL)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "products by cuBLASLt on more than %d streams",
                         WORKSPACES);
    OARI_TRY(oari_cuda_pool_alloc(device, OARI_BLAS_WORKSPACE, memory));
    *unused = (workspace){ device, stream, *memory };
    return OAR_OK;
}

void oari_blas_forget(int device, oari_cu_stream stream)
{
    pthread_mutex_lock(&lock);
    for (workspace *w = workspaces; w < workspaces + WORKSPACES; w++)
        if (w->memory != NULL && w->device == device && w->stream == stream) {
            oari_cuda_pool_free(device, w->memory, stream);
            w->memory = NULL;
        }
    pthread_mutex_unlock(&lock);
}

static oar_status multiply_locked(oari_blas_run *run, const oari_blas_job *job)
{
    oari_blas_plan *plan;

    OARI_TRY(find_handle(run->device, &run->handle));
    OARI_TRY(find_workspace(run->device, run->stream, &run->workspace));
    OARI_TRY(oari_blas_find_plan(run, job, &plan));
    return oari_blas_run_plan(run, plan, job, &plan->algo, job->to);
}

oar_status oari_blas_multiply(int device, const oari_blas_job *job,
                              oari_cu_stream stream)
{
    oari_blas_run run = { .lt = &table, .device = device, .stream = stream };
    oar_status status;

    if (load_once() != OAR_OK)
        return oari_fail(outcome, "%s", reason);
    OARI_TRY(oari_cuda_enter(device, &run.cu));
    run.tf32 = atomic_load(&math[device]) == OAR_MATH_TF32;
    pthread_mutex_lock(&lock);
    status = multiply_locked(&run, job);
    pthread_mutex_unlock(&lock);
    oari_cuda_leave();
    return status;
}

/* ---- choices ------------------------------------------------------------- */

oar_status oari_blas_write_choices(char **text, size_t *bytes)
{
    const oari_blas_run run = { .lt = &table };
    oar_status status;

    pthread_mutex_lock(&lock);
    status = oari_blas_write_plans(&run, text, bytes);
    pthread_mutex_unlock(&lock);
    return status;
}

oar_status oari_blas_take_choices(const char *text, size_t bytes, int *changed)
{
    const oari_blas_run run = { .lt = &table };
    oar_status status;

    pthread_mutex_lock(&lock);
    status = oari_blas_take_lines(text, bytes);
    if (status == OAR_OK)
        *changed = oari_blas_recall_plans(&run);
    pthread_mutex_unlock(&lock);
    return status;
}
