/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/standin_driver.h: the stand-in for the CUDA driver, called by its own
 * tests without the library. Tests run in processes of their own, because a
 * child of a process that uses the driver cannot use it. */
#ifndef TESTS_GPU_STANDIN_DRIVER_H
#define TESTS_GPU_STANDIN_DRIVER_H

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>

#include "device/cuda/cuda_symbols.h"
#include "support/test_job.h"

enum { NONBLOCKING = 1, LAZY = 1, NO_TIMING = 2, GEQ = 0, EQ = 1, AND = 2 };
enum { NO_CONTEXT = 201, BAD_HANDLE = 400, MISSING = 500 };
enum { ABORTED = 128 + SIGABRT, FAULTED = 128 + SIGSEGV };

static oari_cuda cu;
static oari_cu_context primary;

#define RANK_IS(code, call) RANK_CHECK((call) == (code))

static inline int load(void)
{
    void *library = dlopen(getenv("OARSONG_CUDA_LIBRARY"), RTLD_NOW);
    if (!library)
        return -1;
#define X(field, symbol, parameters)                      \
    if (!(*(void **)&cu.field = dlsym(library, #symbol))) \
        return -1;
    OARI_CUDA_SYMBOLS(X)
#undef X
    return 0;
}

static inline int begin(void)
{
    int bad = load();
    bad = bad ? bad : cu.Init(0);
    bad = bad ? bad : cu.DevicePrimaryCtxRetain(&primary, 0);
    return bad ? bad : cu.CtxPushCurrent(primary);
}

static inline oari_cu_stream make_stream(unsigned flags)
{
    oari_cu_stream stream = NULL;
    cu.StreamCreateWithPriority(&stream, flags, 0);
    return stream;
}

static inline oari_cu_event make_event(void)
{
    oari_cu_event event = NULL;
    cu.EventCreate(&event, NO_TIMING);
    return event;
}

static inline oari_cu_memory make_memory(size_t bytes)
{
    oari_cu_memory memory = 0;
    cu.MemAlloc(&memory, bytes);
    return memory;
}

/* A word that the host and the device see; streams wait until it is opened. */
typedef struct driver_gate {
    uint32_t *host;
    oari_cu_memory device;
} driver_gate;

static inline driver_gate make_gate(void)
{
    driver_gate g = { NULL, 0 };
    cu.MemHostAlloc((void **)&g.host, 4, 2);
    cu.MemHostGetDevicePointer(&g.device, g.host, 0);
    return g;
}

static inline void shut(const driver_gate *g, oari_cu_stream stream)
{
    cu.StreamWaitValue32(stream, g->device, 1, EQ);
}

static inline void release(const driver_gate *g)
{
    __atomic_store_n(g->host, 1, __ATOMIC_RELEASE);
}

/* The first byte of device memory, read on its own stream. */
static inline int first_byte(oari_cu_memory memory)
{
    oari_cu_stream stream = make_stream(NONBLOCKING);
    unsigned char byte = 0;
    cu.MemcpyDtoHAsync(&byte, memory, 1, stream);
    cu.StreamDestroy(stream);
    return byte;
}

/* Runs one rank, which is to end like that. */
static inline void expect(test_job_fn fn, int code)
{
    test_job c;
    test_job_start(&c, 1, fn, NULL, "a process with the stand-in");
    test_job_expect(&c, 0, code);
    test_job_end(&c);
}

#define IN_A_PROCESS(name)         \
    static void name(void **state) \
    {                              \
        (void)state;               \
        expect(run_##name, 0);     \
    }

#endif
