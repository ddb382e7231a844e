/* SPDX-License-Identifier: Apache-2.0 */
/* standin/driver.c: devices, contexts and errors of the stand-in. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "standin/driver.h"

enum { VERSION = 13000, DEEPEST = 32 };

pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t standin_moved = PTHREAD_COND_INITIALIZER;

/* All functions of the list: if one is missing this does not link. */
STANDIN_API extern const oari_cuda standin_functions;
const oari_cuda standin_functions = {
#define X(field, symbol, parameters) .field = symbol,
    OARI_CUDA_SYMBOLS(X)
#undef X
};

static _Atomic int ready_pid; /* the process that called cuInit */
static int devices;
static context contexts[STANDIN_MOST_DEVICES];
static _Thread_local context *stack[DEEPEST];
static _Thread_local int depth;

void standin_die(const char *format, ...)
{
    va_list list;
    char text[400];
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "stand-in for the GPU, process %d: %s\n", (int)getpid(),
            text);
    abort();
}

long standin_setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 10) : otherwise;
}

int64_t standin_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- errors -------------------------------------------------------------- */

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    { 0, "CUDA_SUCCESS", "no error" },
    { 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
    { 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
    { 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
    { 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
    { 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
    { 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
    { 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
    { 401, "CUDA_ERROR_ILLEGAL_STATE",
      "the operation cannot be performed in the present state" },
    { 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
    { 600, "CUDA_ERROR_NOT_READY", "device not ready" },
    { 704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
      "peer access is already enabled" },
    { 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
      "part or all of the requested memory range is already mapped" },
    { 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
      "pointer does not correspond to a registered memory region" },
    { 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
    { 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
      "operation not permitted when stream is capturing" },
    { 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
      "operation failed due to a previous error during capture" },
    { 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
      "capturing stream has unjoined work" },
    { 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
      "dependency created on uncaptured work in another stream" },
    { 907, "CUDA_ERROR_CAPTURED_EVENT",
      "operation not permitted on an event last recorded in a capturing "
      "stream" },
    { 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
      "attempt to terminate a thread-local capture sequence from another "
      "thread" },
};

static int find_error(int code)
{
    for (int i = 0; i < (int)(sizeof errors / sizeof *errors); i++)
        if (errors[i].code == code)
            return i;
    return -1;
}

int cuGetErrorName(int error, const char **name)
{
    int i = find_error(error);
    *name = i < 0 ? NULL : errors[i].name;
    return i < 0 ? OARI_CU_INVALID_VALUE : OARI_CU_SUCCESS;
}

int cuGetErrorString(int error, const char **text)
{
    int i = find_error(error);
    *text = i < 0 ? NULL : errors[i].text;
    return i < 0 ? OARI_CU_INVALID_VALUE : OARI_CU_SUCCESS;
}

/* ---- devices ------------------------------------------------------------- */

int cuInit(unsigned flags)
{
    long wanted = standin_setting("STANDIN_DEVICES", 1);
    int status = OARI_CU_SUCCESS;
    if (flags != 0 || wanted < 0 || wanted > STANDIN_MOST_DEVICES)
        return OARI_CU_INVALID_VALUE;
    if (wanted == 0)
        return OARI_CU_NO_DEVICE;
    pthread_mutex_lock(&standin_lock);
    if (ready_pid == 0) {
        devices = (int)wanted;
        for (int i = 0; i < devices; i++)
            contexts[i].device = i;
        ready_pid = (int)getpid();
    } else if (ready_pid != (int)getpid())
        status = OARI_CU_NOT_INITIALIZED; /* as in a child of fork */
    pthread_mutex_unlock(&standin_lock);
    return status;
}

int standin_begin(void)
{
    return ready_pid == (int)getpid() ? OARI_CU_SUCCESS
                                      : OARI_CU_NOT_INITIALIZED;
}

static int check_device(int device)
{
    int bad = standin_begin();
    if (bad)
        return bad;
    return device >= 0 && device < devices ? 0 : CU_INVALID_DEVICE;
}

int cuDriverGetVersion(int *version)
{
    *version = VERSION;
    return OARI_CU_SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    int bad = standin_begin();
    if (!bad)
        *count = devices;
    return bad;
}

int cuDeviceGet(oari_cu_device *device, int ordinal)
{
    int bad = check_device(ordinal);
    if (!bad)
        *device = ordinal;
    return bad;
}

int cuDeviceGetName(char *name, int bytes, oari_cu_device device)
{
    int bad = check_device(device);
    if (!bad)
        snprintf(name, (size_t)bytes, "Stand-in %d", device);
    return bad;
}

int cuDeviceTotalMem_v2(size_t *bytes, oari_cu_device device)
{
    int bad = check_device(device);
    if (!bad)
        *bytes = (size_t)standin_setting("STANDIN_MEMORY_MB", 4096) << 20;
    return bad;
}

int cuDeviceGetUuid_v2(oari_cu_uuid *uuid, oari_cu_device device)
{
    int bad = check_device(device);
    if (!bad) {
        memcpy(uuid->bytes, "stand-in device", 16);
        uuid->bytes[15] = (unsigned char)device;
    }
    return bad;
}

int cuDeviceGetPCIBusId(char *text, int bytes, oari_cu_device device)
{
    int bad = check_device(device);
    if (!bad)
        snprintf(text, (size_t)bytes, "0000:%02X:00.0", device + 1);
    return bad;
}

int cuDeviceGetAttribute(int *value, int attribute, oari_cu_device device)
{
    int bad = check_device(device);
    if (bad)
        return bad;
    if (attribute < 1 || attribute > 200)
        return OARI_CU_INVALID_VALUE;
    switch (attribute) {
    case 1: *value = 1024; break;       /* threads of a block */
    case 8: *value = 48 << 10; break;   /* shared memory of a block */
    case 97: *value = 227 << 10; break; /* the same, where it is allowed */
    case 81: *value = 228 << 10; break; /* of a multiprocessor */
    case 10: *value = 32; break;        /* of a warp */
    case 16: *value = 4; break;         /* multiprocessors */
    case 33: *value = 0; break;         /* PCI bus, device, domain */
    case 34: *value = device + 1; break;
    case 39: *value = 2048; break; /* threads of a multiprocessor */
    case 75: *value = 9; break;    /* compute capability */
    case 76: *value = 0; break;
    case 5: /* blocks of a grid */
    case 2:
    case 3:
    case 4: *value = 1024; break;
    case 19:  /* maps host memory */
    case 40:  /* copy engines */
    case 41:  /* one address space */
    case 78:  /* stream priorities */
    case 122: /* values on streams */
    case 123: *value = 1; break;
    default:
        *value = 0; /* 91 too: registered memory has an address of its own
                       on the device */
    }
    return OARI_CU_SUCCESS;
}

int cuDeviceCanAccessPeer(int *can, oari_cu_device device, oari_cu_device peer)
{
    int bad = check_device(device);
    bad = bad ? bad : check_device(peer);
    if (!bad)
        *can = device != peer;
    return bad;
}

/* ---- contexts ------------------------------------------------------------ */

int cuDevicePrimaryCtxRetain(oari_cu_context *c, oari_cu_device device)
{
    int bad = check_device(device);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    contexts[device].retained++;
    pthread_mutex_unlock(&standin_lock);
    *c = &contexts[device];
    return OARI_CU_SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(oari_cu_device device)
{
    int bad = check_device(device);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    bad = contexts[device].retained > 0 ? 0 : CU_INVALID_CONTEXT;
    if (!bad)
        contexts[device].retained--;
    pthread_mutex_unlock(&standin_lock);
    return bad;
}

static int is_context(const context *c)
{
    for (int i = 0; i < devices; i++)
        if (c == &contexts[i])
            return c->retained > 0;
    return 0;
}

context *standin_context(int device)
{
    context *found = NULL;
    pthread_mutex_lock(&standin_lock);
    if (device >= 0 && device < devices && contexts[device].retained > 0)
        found = &contexts[device];
    pthread_mutex_unlock(&standin_lock);
    return found;
}

int standin_enter(context **c)
{
    int bad = standin_begin();
    if (bad)
        return bad;
    if (depth == 0)
        return CU_INVALID_CONTEXT;
    *c = stack[depth - 1];
    return OARI_CU_SUCCESS;
}

int cuCtxPushCurrent_v2(oari_cu_context c)
{
    int known, bad = standin_begin();
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    known = is_context(c);
    pthread_mutex_unlock(&standin_lock);
    if (!known)
        return CU_INVALID_CONTEXT;
    if (depth == DEEPEST)
        standin_die("%d contexts pushed and none popped", DEEPEST);
    stack[depth++] = c;
    return OARI_CU_SUCCESS;
}

int cuCtxPopCurrent_v2(oari_cu_context *c)
{
    context *top;
    int bad = standin_enter(&top);
    if (bad)
        return bad;
    depth--;
    if (c)
        *c = top;
    return OARI_CU_SUCCESS;
}

int cuCtxSynchronize(void)
{
    context *c;
    int bad = standin_enter(&c);
    bad = bad ? bad : standin_unsafe();
    if (!bad)
        standin_drain(c);
    return bad;
}

int cuCtxEnablePeerAccess(oari_cu_context peer, unsigned flags)
{
    context *c, *other = peer;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    if (!is_context(other) || other == c)
        bad = other == c ? CU_INVALID_DEVICE : CU_INVALID_CONTEXT;
    else if (flags != 0)
        bad = OARI_CU_INVALID_VALUE;
    else if (c->peers & (1u << other->device))
        bad = OARI_CU_PEER_ACCESS_ALREADY_ENABLED;
    else
        c->peers |= 1u << other->device;
    pthread_mutex_unlock(&standin_lock);
    return bad;
}

int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    context *c;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return OARI_CU_SUCCESS;
}
