/* SPDX-License-Identifier: Apache-2.0 */
/* standin/module.c: kernels of the stand-in. They are the library's own .cu
 * files, compiled for the host (kernel_shim.h); a module is which of them.
 *
 * A kernel gets addresses of views where it was given addresses of the device:
 * every word of its arguments that lies in an allocation is changed, inside of
 * structs too. Addresses that it would have to fetch from memory are not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin/driver.h"
#include "standin/kernel.h"

typedef struct module {
    struct module *next;
    char file[64]; /* "": of any */
} module;

typedef struct launch {
    const standin_kernel *kernel;
    standin_grid grid;
    void *argument[STANDIN_MOST_PARAMETERS];
    _Alignas(16) char bytes[];
} launch;

enum {
    ALIGNMENT = 16,
    MOST_THREADS = 1024,
    USUAL_SHARED = 48 << 10, /* of a block, unless more has been allowed */
    MOST_SHARED = 227 << 10
};

static standin_kernel *kernels;
static module *modules;
static uint64_t launches;

/* Called before main. */
void standin_kernel_add(standin_kernel *kernel)
{
    kernel->next = kernels;
    kernels = kernel;
}

/* ---- modules ------------------------------------------------------------- */

/* The files that stand for fatbins begin with "standin NAME". */
int cuModuleLoadData(oari_cu_module *handle, const void *image)
{
    context *c;
    module *m;
    int bad = standin_enter(&c);
    bad = bad ? bad : standin_unsafe();
    if (bad)
        return bad;
    if (!image)
        return OARI_CU_INVALID_VALUE;
    m = calloc(1, sizeof *m);
    if (strncmp(image, "standin ", 8) == 0)
        sscanf((const char *)image + 8, "%63[a-z0-9_]", m->file);
    pthread_mutex_lock(&standin_lock);
    m->next = modules;
    modules = m;
    pthread_mutex_unlock(&standin_lock);
    *handle = m;
    return OARI_CU_SUCCESS;
}

int cuModuleUnload(oari_cu_module handle)
{
    context *c;
    module *m, **link = &modules;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    while (*link && *link != handle)
        link = &(*link)->next;
    m = *link;
    if (m)
        *link = m->next;
    pthread_mutex_unlock(&standin_lock);
    free(m);
    return m ? OARI_CU_SUCCESS : CU_INVALID_HANDLE;
}

static module *find_module(const void *handle)
{
    module *m = modules;
    while (m && m != handle)
        m = m->next;
    return m;
}

static standin_kernel *find_kernel(const char *file, const char *name)
{
    standin_kernel *k = kernels;
    while (k && (strcmp(k->name, name) != 0 ||
                 (*file && strcmp(k->file, file) != 0)))
        k = k->next;
    return k;
}

int cuModuleGetFunction(oari_cu_function *function, oari_cu_module handle,
                        const char *name)
{
    context *c;
    module *m;
    standin_kernel *k = NULL;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    m = find_module(handle);
    if (m)
        k = find_kernel(m->file, name);
    pthread_mutex_unlock(&standin_lock);
    if (!m)
        return CU_INVALID_HANDLE;
    if (k)
        *function = k;
    return k ? OARI_CU_SUCCESS : CU_NOT_FOUND;
}

/* ---- launches ------------------------------------------------------------ */

static void run_launch(void *arg)
{
    launch *what = arg;
    standin_run_blocks(what->kernel, what->argument, &what->grid);
}

static void check_reach(const context *c, const block *b, const char *kernel)
{
    int device = b->owner->device;
    if (b->kind < BLOCK_PINNED && device != c->device &&
        !(c->peers & (1u << device)))
        standin_die("%s on device %d is given memory of device %d without "
                    "access to it",
                    kernel, c->device, device);
}

/* Locked. */
static void translate(const context *c, const standin_kernel *k, int i,
                      char *argument)
{
    for (size_t at = 0; at + 8 <= k->bytes[i]; at += 8) {
        uint64_t value;
        block *b;
        memcpy(&value, argument + at, 8);
        b = standin_find(value, 0);
        if (!b && k->is_pointer[i] && value)
            standin_die("parameter %d of %s is %#llx: no memory that a GPU "
                        "reaches",
                        i, k->name, (unsigned long long)value);
        if (!b)
            continue;
        check_reach(c, b, k->name);
        value = (uint64_t)(uintptr_t)b->view + (value - b->address);
        memcpy(argument + at, &value, 8);
    }
}

static size_t padded(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static launch *make_launch(const standin_kernel *k, void **parameters)
{
    size_t bytes = 0, at = 0;
    launch *what;
    for (int i = 0; i < k->count; i++)
        bytes += padded(k->bytes[i]);
    what = calloc(1, sizeof *what + bytes);
    what->kernel = k;
    for (int i = 0; i < k->count; i++) {
        what->argument[i] = what->bytes + at;
        memcpy(what->argument[i], parameters[i], k->bytes[i]);
        at += padded(k->bytes[i]);
    }
    return what;
}

static int is_kernel(const void *function)
{
    for (const standin_kernel *k = kernels; k; k = k->next)
        if (k == function)
            return 1;
    return 0;
}

int cuFuncSetAttribute(oari_cu_function function, int attribute, int value)
{
    standin_kernel *k = function;
    context *c;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    if (!is_kernel(k))
        return CU_INVALID_HANDLE;
    if (attribute != OARI_CU_MAX_DYNAMIC_SHARED || value < 0 ||
        value > MOST_SHARED)
        return OARI_CU_INVALID_VALUE;
    pthread_mutex_lock(&standin_lock);
    k->allowed_bytes = (unsigned)value;
    pthread_mutex_unlock(&standin_lock);
    return OARI_CU_SUCCESS;
}

/* The stand-in has no kernels that use such maps. */
int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *memory,
                           const uint64_t *dims, const uint64_t *strides,
                           const uint32_t *box, const uint32_t *steps,
                           int interleave, int swizzle, int promotion, int fill)
{
    (void)map, (void)type, (void)rank, (void)memory, (void)dims;
    (void)strides, (void)box, (void)steps;
    (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    return CU_NOT_SUPPORTED;
}

/* Locked. */
static int start(context *c, const standin_kernel *k, stream *s,
                 const standin_grid *grid, void **parameters)
{
    launch *what;
    if (!is_kernel(k) || !s || standin_stream_context(s) != c)
        return CU_INVALID_HANDLE;
    if (grid->shared_bytes >
        (k->allowed_bytes > USUAL_SHARED ? k->allowed_bytes : USUAL_SHARED))
        return OARI_CU_INVALID_VALUE;
    what = make_launch(k, parameters);
    what->grid = *grid;
    what->grid.seed =
        (uint64_t)standin_setting("STANDIN_SEED", 1) * 1000003 + launches++;
    for (int i = 0; i < k->count; i++)
        translate(c, k, i, what->argument[i]);
    standin_release_locked(standin_put_locked(s, run_launch, what, NULL));
    return OARI_CU_SUCCESS;
}

int cuLaunchKernel(oari_cu_function function, unsigned grid_x, unsigned grid_y,
                   unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared_bytes,
                   oari_cu_stream stream_handle, void **parameters,
                   void **extra)
{
    const unsigned size[6] = {
        grid_x, grid_y, grid_z, block_x, block_y, block_z
    };
    const standin_grid grid = { { grid_x, grid_y, grid_z },
                                { block_x, block_y, block_z },
                                shared_bytes,
                                0 };
    context *c;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    for (int i = 0; i < 6; i++)
        if (size[i] == 0 || (i >= 3 && size[i] > MOST_THREADS) ||
            (i == 0 && size[i] > 0x7fffffffu) ||
            ((i == 1 || i == 2) && size[i] > 65535))
            return OARI_CU_INVALID_VALUE;
    if (block_x * block_y * block_z > MOST_THREADS || extra)
        return OARI_CU_INVALID_VALUE;
    pthread_mutex_lock(&standin_lock);
    bad = start(c, function, standin_stream_locked(c, stream_handle), &grid,
                parameters);
    pthread_mutex_unlock(&standin_lock);
    return bad;
}
