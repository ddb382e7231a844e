/* SPDX-License-Identifier: Apache-2.0 */
/* kernels: the library's code for GPUs, in files beside the library. Each
 * device loads a file at its first use and keeps it. A lock guards both lists,
 * which only grow. */
#include <dlfcn.h>
#include <pthread.h>
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

typedef struct kernel {
    const module *home;
    const char *name; /* borrowed */
    oari_cu_function function;
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
                                     oari_cu_function *function)
{
    const module *home = NULL;
    kernel *k = kernels;
    char what[128];

    OARI_TRY(find_module(cu, device, file, &home));
    for (; k < kernels + kernel_total; k++)
        if (k->home == home && strcmp(k->name, name) == 0) {
            *function = k->function;
            return OAR_OK;
        }
    if (kernel_total == MAX_KERNELS)
        return oari_fail(OAR_E_INTERNAL, "more than %d kernels", MAX_KERNELS);
    *k = (kernel){ home, name, NULL };
    snprintf(what, sizeof what, "find the kernel %s in %s.fatbin", name, file);
    OARI_TRY(oari_cuda_check(
        cu->ModuleGetFunction(&k->function, home->module, name), what));
    kernel_total++;
    *function = k->function;
    return OAR_OK;
}

oar_status oari_cuda_kernel(int device, const char *file, const char *name,
                            oari_cu_function *function)
{
    const oari_cuda *cu;
    oar_status status;

    OARI_TRY(oari_cuda_enter(device, &cu));
    pthread_mutex_lock(&lock);
    status = find_kernel_locked(cu, device, file, name, function);
    pthread_mutex_unlock(&lock);
    oari_cuda_leave();
    return status;
}

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

oar_status oar_device_kernels(oar_device device)
{
    oari_cu_function function;

    OARI_TRY(oari_cuda_only(device, "kernels"));
    return oari_cuda_kernel(device.index, "elementwise", "oari_move",
                            &function);
}
