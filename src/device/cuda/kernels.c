/* SPDX-License-Identifier: Apache-2.0 */
/* kernels: the library's code for GPUs, in files beside the library. Each
 * device loads a file at its first use and keeps it. A lock guards both lists,
 * which only grow. An entry of a list never moves: a kernel_ref keeps its
 * address and reads it without the lock. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/status.h"
#include "device/cuda/driver.h"

/* The reason why the build left them out; NULL: it did not. */
#ifndef OARSONG_WITHOUT_KERNELS
#define OARSONG_WITHOUT_KERNELS NULL
#endif

static const char *const left_out = OARSONG_WITHOUT_KERNELS;

enum { MAX_MODULES = 256, MAX_KERNELS = 4096, PATH_BYTES = 4096 };

typedef struct module {
    const char *file; /* borrowed: a literal of the caller's */
    int device;
    oari_cu_module module;
} module;

typedef struct oari_cuda_kernel_entry {
    const module *home;
    const char *name; /* borrowed */
    oari_cu_function function;
    atomic_uint shared_bytes; /* dynamic ones that it has been allowed */
} kernel;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static module modules[MAX_MODULES];
static kernel kernels[MAX_KERNELS];
static int module_total, kernel_total;

/* ---- the file ------------------------------------------------------------ */

static oar_status name_file(const char *file, char path[PATH_BYTES])
{
    const char *folder = oari_env_text("OARSONG_KERNELS"), *end;
    Dl_info here;
    int written;

    if (folder != NULL) {
        written = snprintf(path, PATH_BYTES, "%s/%s.fatbin", folder, file);
    } else {
        if (dladdr((const void *)modules, &here) == 0 ||
            here.dli_fname == NULL ||
            (end = strrchr(here.dli_fname, '/')) == NULL)
            return oari_fail(OAR_E_UNAVAILABLE,
                             "the path of this library is not known: name the "
                             "folder of %s.fatbin in OARSONG_KERNELS",
                             file);
        written = snprintf(path, PATH_BYTES, "%.*s/oarsong/%s.fatbin",
                           (int)(end - here.dli_fname), here.dli_fname, file);
    }
    if (written < 0 || written >= PATH_BYTES)
        return oari_fail(OAR_E_UNAVAILABLE, "%s.fatbin: its path is too long",
                         file);
    return OAR_OK;
}

/* Reads a whole file, with a zero after it; oari_free frees it. */
static oar_status read_file(const char *path, char **image)
{
    FILE *file = fopen(path, "rb");
    oar_status status = OAR_OK;
    char *made = NULL;
    long bytes;

    if (file == NULL && left_out != NULL &&
        oari_env_text("OARSONG_KERNELS") == NULL)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "this library was built without kernels for GPUs: %s",
                         left_out);
    if (file == NULL)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "kernels for GPUs: there is no %s (OARSONG_KERNELS "
                         "can name another folder)",
                         path);
    if (fseek(file, 0, SEEK_END) != 0 || (bytes = ftell(file)) <= 0 ||
        fseek(file, 0, SEEK_SET) != 0)
        status = oari_fail(OAR_E_UNAVAILABLE, "%s is empty", path);
    else if ((made = oari_alloc((size_t)bytes + 1, 1)) == NULL)
        status = OAR_E_NOMEM;
    else if (fread(made, 1, (size_t)bytes, file) != (size_t)bytes)
        status = oari_fail(OAR_E_UNAVAILABLE, "%s cannot be read", path);
    fclose(file);
    if (status == OAR_OK)
        *image = made;
    else
        oari_free(made);
    return status;
}

/* ---- modules and kernels ------------------------------------------------- */

static oar_status find_module(const oari_cuda *cu, int device, const char *file,
                              const module **found)
{
    char path[PATH_BYTES], what[PATH_BYTES + 16], *image = NULL;
    module *m = modules;
    int result;

    for (; m < modules + module_total; m++)
        if (m->device == device && strcmp(m->file, file) == 0) {
            *found = m;
            return OAR_OK;
        }
    if (module_total == MAX_MODULES)
        return oari_fail(OAR_E_INTERNAL, "more than %d modules", MAX_MODULES);
    *m = (module){ file, device, NULL };
    OARI_TRY(name_file(file, path));
    OARI_TRY(read_file(path, &image));
    result = cu->ModuleLoadData(&m->module, image);
    oari_free(image);
    snprintf(what, sizeof what, "load %s", path);
    OARI_TRY(oari_cuda_check(result, what));
    module_total++;
    *found = m;
    return OAR_OK;
}

static oar_status find_kernel_locked(const oari_cuda *cu, int device,
                                     const char *file, const char *name,
                                     kernel **found)
{
    const module *home = NULL;
    kernel *k = kernels;
    char what[128];

    OARI_TRY(find_module(cu, device, file, &home));
    for (; k < kernels + kernel_total; k++)
        if (k->home == home && strcmp(k->name, name) == 0) {
            *found = k;
            return OAR_OK;
        }
    if (kernel_total == MAX_KERNELS)
        return oari_fail(OAR_E_INTERNAL, "more than %d kernels", MAX_KERNELS);
    k->home = home;
    k->name = name;
    snprintf(what, sizeof what, "find the kernel %s in %s.fatbin", name, file);
    OARI_TRY(oari_cuda_check(
        cu->ModuleGetFunction(&k->function, home->module, name), what));
    kernel_total++;
    *found = k;
    return OAR_OK;
}

static oar_status find_kernel(int device, const char *file, const char *name,
                              kernel **found)
{
    const oari_cuda *cu;
    oar_status status;

    OARI_TRY(oari_cuda_enter(device, &cu));
    pthread_mutex_lock(&lock);
    status = find_kernel_locked(cu, device, file, name, found);
    pthread_mutex_unlock(&lock);
    oari_cuda_leave();
    return status;
}

oar_status oari_cuda_kernel(int device, const char *file, const char *name,
                            oari_cu_function *function)
{
    kernel *found = NULL;

    OARI_TRY(find_kernel(device, file, name, &found));
    *function = found->function;
    return OAR_OK;
}

/* ---- launches ------------------------------------------------------------ */

oar_status oari_cuda_launch(int device, oari_cu_function function,
                            unsigned blocks, unsigned threads,
                            oari_cu_stream stream, void **parameter)
{
    const oari_cuda *cu;
    int result;

    OARI_TRY(oari_cuda_enter(device, &cu));
    result = cu->LaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream,
                              parameter, NULL);
    oari_cuda_leave();
    return oari_cuda_check(result, "start a kernel");
}

/* More than 48 KiB of shared memory, static and dynamic together, have to be
 * allowed for the kernel before it is started with them. */
static oar_status allow_shared(const oari_cuda *cu, kernel *k, unsigned bytes)
{
    oar_status status = OAR_OK;
    char what[160];

    pthread_mutex_lock(&lock);
    if (bytes > atomic_load(&k->shared_bytes)) {
        snprintf(what, sizeof what,
                 "allow %s %u bytes of dynamic shared memory in a block",
                 k->name, bytes);
        status = oari_cuda_check(
            cu->FuncSetAttribute(k->function, OARI_CU_MAX_DYNAMIC_SHARED,
                                 (int)bytes),
            what);
        if (status == OAR_OK)
            atomic_store(&k->shared_bytes, bytes);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static oar_status launch_on(const oari_cuda *cu, kernel *k,
                            const oari_cuda_grid *grid, oari_cu_stream stream,
                            void **parameter)
{
    const unsigned *b = grid->blocks, *t = grid->threads;
    unsigned bytes = grid->shared_bytes;
    char what[256];
    int result;

    if (bytes > atomic_load_explicit(&k->shared_bytes, memory_order_relaxed))
        OARI_TRY(allow_shared(cu, k, bytes));
    result = cu->LaunchKernel(k->function, b[0], b[1], b[2], t[0], t[1], t[2],
                              bytes, stream, parameter, NULL);
    if (result == OARI_CU_SUCCESS)
        return OAR_OK;
    snprintf(what, sizeof what,
             "start %s with %ux%ux%u blocks of %ux%ux%u threads", k->name, b[0],
             b[1], b[2], t[0], t[1], t[2]);
    return oari_cuda_check(result, what);
}

oar_status oari_cuda_start(int device, oari_cuda_kernel_ref *ref,
                           const oari_cuda_grid *grid, oari_cu_stream stream,
                           void **parameter)
{
    const oari_cuda *cu;
    oar_status status;
    kernel *k = NULL;

    OARI_TRY(oari_cuda_enter(device, &cu));
    k = atomic_load_explicit(&ref->entry[device], memory_order_acquire);
    status = k != NULL ? OAR_OK : find_kernel(device, ref->file, ref->name, &k);
    if (status == OAR_OK) {
        atomic_store_explicit(&ref->entry[device], k, memory_order_release);
        status = launch_on(cu, k, grid, stream, parameter);
    }
    oari_cuda_leave();
    return status;
}

oar_status oar_device_kernels(oar_device device)
{
    oari_cu_function function;

    OARI_TRY(oari_cuda_only(device, "kernels"));
    return oari_cuda_kernel(device.index, "elementwise", "oari_move",
                            &function);
}
