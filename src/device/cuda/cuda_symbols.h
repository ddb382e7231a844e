/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda_symbols.h: lists every function of the CUDA driver that this
 * library calls, by its versioned name; they are found at run time. X(field,
 * symbol, parameters); oari_cuda has a pointer for each. All return a CUresult.
 */
#ifndef OARI_DEVICE_CUDA_CUDA_SYMBOLS_H
#define OARI_DEVICE_CUDA_CUDA_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

/* The driver's types, as far as they matter here: handles are pointers, a
 * device is a number, device memory is an address in 64 bits. A cudaStream_t or
 * a CUstream of the caller's is an oari_cu_stream. */
typedef void *oari_cu_context, *oari_cu_stream, *oari_cu_event, *oari_cu_module,
    *oari_cu_function, *oari_cu_graph, *oari_cu_graph_exec;
typedef uint64_t oari_cu_memory;
static inline oari_cu_memory oari_cu_address(const void *memory)
{
    return (oari_cu_memory)(uintptr_t)memory;
}
typedef int oari_cu_device;
typedef struct oari_cu_ipc {
    unsigned char bytes[64];
} oari_cu_ipc;
typedef struct oari_cu_uuid {
    unsigned char bytes[16];
} oari_cu_uuid;

/* CUDA_MEMCPY2D_v2: rows of width bytes, a pitch apart. */
typedef struct oari_cu_copy2d {
    size_t from_x, from_y;
    unsigned from_kind; /* OARI_CU_HOST, OARI_CU_DEVICE */
    const void *from_host;
    oari_cu_memory from_device;
    void *from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    unsigned to_kind;
    void *to_host;
    oari_cu_memory to_device;
    void *to_array;
    size_t to_pitch;
    size_t width, height;
} oari_cu_copy2d;

enum { OARI_CU_HOST = 1, OARI_CU_DEVICE = 2 }; /* CUmemorytype */

enum { OARI_CU_STREAM_LEGACY = 1 }; /* names the default stream, as NULL does */

/* CUfunction_attribute: the most dynamic shared memory that a launch may ask
 * for, in bytes. */
enum { OARI_CU_MAX_DYNAMIC_SHARED = 8 };

/* The values of CUresult that this library distinguishes. */
enum {
    OARI_CU_SUCCESS = 0,
    OARI_CU_INVALID_VALUE = 1,
    OARI_CU_OUT_OF_MEMORY = 2,
    OARI_CU_NOT_INITIALIZED = 3,
    OARI_CU_DEINITIALIZED = 4,
    OARI_CU_NO_DEVICE = 100,
    OARI_CU_PEER_ACCESS_ALREADY_ENABLED = 704,
    OARI_CU_NOT_READY = 600,
    OARI_CU_CAPTURE_UNSUPPORTED = 900, /* the first of what a capture says */
    OARI_CU_CAPTURE_INVALIDATED = 901,
    OARI_CU_CAPTURED_EVENT = 907,
    OARI_CU_CAPTURE_WRONG_THREAD = 908 /* the last */
};

/* CUstreamCaptureMode: what a call that might disturb a capture is refused for:
 * captures of any thread, of the calling one, or none. */
enum {
    OARI_CU_CAPTURE_GLOBAL,
    OARI_CU_CAPTURE_THREAD,
    OARI_CU_CAPTURE_RELAXED
};

/* clang-format off */
#define OARI_CUDA_SYMBOLS(X)                                                   \
    X(Init, cuInit, (unsigned flags))                                          \
    X(DriverGetVersion, cuDriverGetVersion, (int *version))                    \
    X(GetErrorName, cuGetErrorName, (int error, const char **name))            \
    X(GetErrorString, cuGetErrorString, (int error, const char **text))        \
    X(DeviceGetCount, cuDeviceGetCount, (int *count))                          \
    X(DeviceGet, cuDeviceGet, (oari_cu_device *device, int ordinal))           \
    X(DeviceGetName, cuDeviceGetName,                                          \
      (char *name, int bytes, oari_cu_device device))                          \
    X(DeviceTotalMem, cuDeviceTotalMem_v2,                                     \
      (size_t *bytes, oari_cu_device device))                                  \
    X(DeviceGetAttribute, cuDeviceGetAttribute,                                \
      (int *value, int attribute, oari_cu_device device))                      \
    X(DeviceGetUuid, cuDeviceGetUuid_v2,                                       \
      (oari_cu_uuid *uuid, oari_cu_device device))                             \
    X(DeviceGetPCIBusId, cuDeviceGetPCIBusId,                                  \
      (char *text, int bytes, oari_cu_device device))                          \
    X(DeviceCanAccessPeer, cuDeviceCanAccessPeer,                              \
      (int *can, oari_cu_device device, oari_cu_device peer))                  \
    X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain,                        \
      (oari_cu_context *context, oari_cu_device device))                       \
    X(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2,                   \
      (oari_cu_device device))                                                 \
    X(CtxPushCurrent, cuCtxPushCurrent_v2, (oari_cu_context context))          \
    X(CtxPopCurrent, cuCtxPopCurrent_v2, (oari_cu_context *context))           \
    X(CtxSynchronize, cuCtxSynchronize, (void))                                \
    X(CtxEnablePeerAccess, cuCtxEnablePeerAccess,                              \
      (oari_cu_context peer, unsigned flags))                                  \
    X(CtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange,                  \
      (int *least, int *greatest))                                             \
    X(MemAlloc, cuMemAlloc_v2, (oari_cu_memory *memory, size_t bytes))         \
    X(MemFree, cuMemFree_v2, (oari_cu_memory memory))                          \
    X(MemGetInfo, cuMemGetInfo_v2, (size_t *free, size_t *total))              \
    X(MemGetAddressRange, cuMemGetAddressRange_v2,                             \
      (oari_cu_memory *base, size_t *bytes, oari_cu_memory memory))            \
    X(PointerGetAttribute, cuPointerGetAttribute,                              \
      (void *value, int attribute, oari_cu_memory memory))                     \
    X(MemHostAlloc, cuMemHostAlloc,                                            \
      (void **memory, size_t bytes, unsigned flags))                           \
    X(MemFreeHost, cuMemFreeHost, (void *memory))                              \
    X(MemHostRegister, cuMemHostRegister_v2,                                   \
      (void *memory, size_t bytes, unsigned flags))                            \
    X(MemHostUnregister, cuMemHostUnregister, (void *memory))                  \
    X(MemHostGetDevicePointer, cuMemHostGetDevicePointer_v2,                   \
      (oari_cu_memory *device, void *memory, unsigned flags))                  \
    X(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2,                                   \
      (oari_cu_memory to, const void *from, size_t bytes,                      \
       oari_cu_stream stream))                                                 \
    X(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2,                                   \
      (void *to, oari_cu_memory from, size_t bytes, oari_cu_stream stream))    \
    X(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2,                                   \
      (oari_cu_memory to, oari_cu_memory from, size_t bytes,                   \
       oari_cu_stream stream))                                                 \
    X(MemcpyPeerAsync, cuMemcpyPeerAsync,                                      \
      (oari_cu_memory to, oari_cu_context to_context, oari_cu_memory from,     \
       oari_cu_context from_context, size_t bytes, oari_cu_stream stream))     \
    X(Memcpy2DAsync, cuMemcpy2DAsync_v2,                                       \
      (const oari_cu_copy2d *copy, oari_cu_stream stream))                     \
    X(MemsetD8Async, cuMemsetD8Async,                                          \
      (oari_cu_memory to, unsigned char value, size_t count,                   \
       oari_cu_stream stream))                                                 \
    X(MemsetD16Async, cuMemsetD16Async,                                        \
      (oari_cu_memory to, unsigned short value, size_t count,                  \
       oari_cu_stream stream))                                                 \
    X(MemsetD32Async, cuMemsetD32Async,                                        \
      (oari_cu_memory to, unsigned value, size_t count,                        \
       oari_cu_stream stream))                                                 \
    X(StreamCreateWithPriority, cuStreamCreateWithPriority,                    \
      (oari_cu_stream *stream, unsigned flags, int priority))                  \
    X(StreamDestroy, cuStreamDestroy_v2, (oari_cu_stream stream))              \
    X(StreamSynchronize, cuStreamSynchronize, (oari_cu_stream stream))         \
    X(StreamQuery, cuStreamQuery, (oari_cu_stream stream))                     \
    X(StreamWaitEvent, cuStreamWaitEvent,                                      \
      (oari_cu_stream stream, oari_cu_event event, unsigned flags))            \
    X(StreamWaitValue32, cuStreamWaitValue32_v2,                               \
      (oari_cu_stream stream, oari_cu_memory at, uint32_t value,               \
       unsigned flags))                                                        \
    X(StreamWriteValue32, cuStreamWriteValue32_v2,                             \
      (oari_cu_stream stream, oari_cu_memory at, uint32_t value,               \
       unsigned flags))                                                        \
    X(EventCreate, cuEventCreate, (oari_cu_event *event, unsigned flags))      \
    X(EventDestroy, cuEventDestroy_v2, (oari_cu_event event))                  \
    X(EventRecord, cuEventRecord,                                              \
      (oari_cu_event event, oari_cu_stream stream))                            \
    X(EventQuery, cuEventQuery, (oari_cu_event event))                         \
    X(EventSynchronize, cuEventSynchronize, (oari_cu_event event))             \
    X(EventElapsedTime, cuEventElapsedTime,                                    \
      (float *ms, oari_cu_event from, oari_cu_event to))                       \
    X(IpcGetMemHandle, cuIpcGetMemHandle,                                      \
      (oari_cu_ipc *handle, oari_cu_memory memory))                            \
    X(IpcOpenMemHandle, cuIpcOpenMemHandle_v2,                                 \
      (oari_cu_memory *memory, oari_cu_ipc handle, unsigned flags))            \
    X(IpcCloseMemHandle, cuIpcCloseMemHandle, (oari_cu_memory memory))         \
    X(ModuleLoadData, cuModuleLoadData,                                        \
      (oari_cu_module *module, const void *image))                             \
    X(ModuleUnload, cuModuleUnload, (oari_cu_module module))                   \
    X(ModuleGetFunction, cuModuleGetFunction,                                  \
      (oari_cu_function *function, oari_cu_module module, const char *name))   \
    X(FuncSetAttribute, cuFuncSetAttribute,                                    \
      (oari_cu_function function, int attribute, int value))                   \
    X(LaunchKernel, cuLaunchKernel,                                            \
      (oari_cu_function function, unsigned grid_x, unsigned grid_y,            \
       unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,  \
       unsigned shared_bytes, oari_cu_stream stream, void **parameters,        \
       void **extra))                                                          \
    X(TensorMapEncodeTiled, cuTensorMapEncodeTiled,                            \
      (void *map, int type, unsigned rank, void *memory, const uint64_t *dims, \
       const uint64_t *strides, const uint32_t *box, const uint32_t *steps,    \
       int interleave, int swizzle, int promotion, int fill))                  \
    X(LaunchHostFunc, cuLaunchHostFunc,                                        \
      (oari_cu_stream stream, void (*fn)(void *arg), void *arg))               \
    X(StreamBeginCapture, cuStreamBeginCapture_v2,                             \
      (oari_cu_stream stream, int mode))                                       \
    X(StreamEndCapture, cuStreamEndCapture,                                    \
      (oari_cu_stream stream, oari_cu_graph *graph))                           \
    X(StreamIsCapturing, cuStreamIsCapturing,                                  \
      (oari_cu_stream stream, int *status))                                    \
    X(ThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode,      \
      (int *mode))                                                             \
    X(GraphInstantiate, cuGraphInstantiateWithFlags,                           \
      (oari_cu_graph_exec *exec, oari_cu_graph graph,                          \
       unsigned long long flags))                                              \
    X(GraphLaunch, cuGraphLaunch,                                              \
      (oari_cu_graph_exec exec, oari_cu_stream stream))                        \
    X(GraphExecDestroy, cuGraphExecDestroy, (oari_cu_graph_exec exec))         \
    X(GraphDestroy, cuGraphDestroy, (oari_cu_graph graph))
/* clang-format on */

/* A pointer for each: cu->MemAlloc(...) is cuMemAlloc_v2. */
typedef struct oari_cuda {
#define X(field, symbol, parameters) int(*field) parameters;
    OARI_CUDA_SYMBOLS(X)
#undef X
} oari_cuda;

#endif
