/* SPDX-License-Identifier: Apache-2.0 */
/* device.h: GPUs: which there are, their memory, their streams.
 *
 * Nothing of CUDA is needed to build or to load this library. The driver
 * (libcuda.so.1, or what OARSONG_CUDA_LIBRARY names) is looked for at the first
 * call that needs it; where it is not, or finds no GPU, that call is
 * OAR_E_UNAVAILABLE and says why.
 *
 * Streams and events are the driver's own: a cudaStream_t, CUstream,
 * cudaEvent_t or CUevent of the caller's can be given wherever one is asked
 * for, and the other way round. NULL is the default stream of the device that
 * the call is about. Memory comes from cuMemAlloc, in the primary context of
 * the device, which is the one that CUDA's runtime, PyTorch and NCCL use.
 *
 * What the driver refuses is OAR_E_GPU, in its words; a device that is not
 * there, or the cpu where only a GPU makes sense, is OAR_E_DEVICE.
 *
 * Threads: every function may be called by any thread. A child made by fork
 * cannot use a GPU that its parent has used: OAR_E_STATE.
 */
#ifndef OARSONG_DEVICE_H
#define OARSONG_DEVICE_H

#include <oarsong/span.h>

OAR_BEGIN_DECLS

/* ---- which there are ----------------------------------------------------- */

/* oar_device_of(OAR_CUDA, 1), or oar_device_of(OAR_CPU, 0). */
static inline oar_device oar_device_of(oar_device_kind kind, int index)
{
    oar_device device;
    device.kind = kind;
    device.index = index;
    return device;
}

/* "cpu", "cuda:1". Reads what oar_device_text writes, and "cuda" (the current
 * one). OAR_E_ARG for anything else; whether it is there is not asked. */
OAR_API oar_status oar_device_parse(const char *text, oar_device *device);
typedef struct oar_device_name {
    char text[24];
} oar_device_name;
OAR_API oar_device_name oar_device_text(oar_device device);

/* How many of a kind there are; 1 for the cpu, 0 where there is no driver. */
OAR_API int oar_device_count(oar_device_kind kind);

/* OAR_OK if there is one that can be used; OAR_E_UNAVAILABLE with the reason
 * if not. */
OAR_API oar_status oar_device_available(oar_device_kind kind);

typedef struct oar_device_properties {
    size_t size;
    char name[128];
    char bus[24];           /* 0000:1b:00.0 */
    unsigned char uuid[16]; /* the same in all processes of a host */
    int major, minor;       /* compute capability */
    int processors;
    int driver_version; /* 13000 is 13.0 */
    size_t memory_bytes, free_bytes;
} oar_device_properties;
OAR_OPTS_INIT(oar_device_properties);
OAR_API oar_status oar_device_describe(oar_device device,
                                       oar_device_properties *properties);

/* Whether the library's own kernels run there, which reduce, convert and move
 * what is not in one piece: OAR_OK, or OAR_E_UNAVAILABLE with the reason (no
 * nvcc when the library was built, a file that is not beside it). */
OAR_API oar_status oar_device_kernels(oar_device device);

/* Whether products of matrices there are done by cuBLASLt, which is looked for
 * at the first call that needs it (libcublasLt.so.13 or .12, or what
 * OARSONG_CUBLASLT_LIBRARY names): OAR_OK, or OAR_E_UNAVAILABLE with the
 * reason. Without it the library's own kernels do them, about half as fast. */
OAR_API oar_status oar_device_blas(oar_device device);

/* How products of f32 are computed on GPUs. Halves have sums in f32 always. */
typedef enum oar_math {
    OAR_MATH_F32 = 0,
    OAR_MATH_TF32 = 1 /* with 10 bits of mantissa, by tensor cores, where
                         cuBLASLt does them */
} oar_math;

/* Sets that for a GPU, from the next product on; OAR_MATH_F32 until then. */
OAR_API oar_status oar_device_set_math(oar_device device, oar_math math);

/* The GPU that this thread means when it does not say which. Until it is set:
 * LOCAL_RANK (of the launcher) modulo the number of GPUs, else the first, even
 * where there is none. It is not CUDA's current device, which no call here
 * changes. */
OAR_API oar_status oar_device_set_current(oar_device device);
OAR_API oar_device oar_device_current(void);

/* ---- memory -------------------------------------------------------------- */

/* Memory of that device, aligned to 256 bytes (cpu: 64), from a pool that
 * keeps what is freed. 0 bytes are fine. Where the driver has no more it waits,
 * up to a minute, for memory that was freed and that streams still use. */
OAR_API oar_status oar_device_alloc(oar_device device, size_t bytes,
                                    void **memory);

/* Gives it back, when what is on the stream by now has run: it is not handed
 * out again before. stream: the one of that device that was the last to use it;
 * NULL: the default stream, which is behind all others but those made
 * non-blocking (as those of oar_stream_create are). Others that use it must
 * have ended, or the stream must wait for them. NULL memory is fine. */
OAR_API void oar_device_free(oar_device device, void *memory, void *stream);

/* Gives back to the driver what the pool keeps and nobody uses. May wait until
 * the device has run all that it has been given. */
OAR_API oar_status oar_device_trim(oar_device device);

typedef struct oar_device_usage {
    size_t size;
    size_t used_bytes;    /* given out */
    size_t kept_bytes;    /* with the driver, given out or not */
    size_t most_bytes;    /* used_bytes at its highest */
    uint64_t from_driver; /* times that the driver was asked for memory */
} oar_device_usage;
OAR_OPTS_INIT(oar_device_usage);
OAR_API oar_status oar_device_memory(oar_device device,
                                     oar_device_usage *usage);

/* Host memory that GPUs reach and copy from at full speed. */
OAR_API oar_status oar_pinned_alloc(size_t bytes, void **memory);
OAR_API void oar_pinned_free(void *memory);

/* Copies bytes, in the order of the stream. Host memory that is not pinned is
 * read, or written, before the call returns, which waits for the stream.
 * Between two GPUs too. stream is one of the device that is not the cpu (of
 * `to` if neither is). cpu to cpu: at once. */
OAR_API oar_status oar_device_copy(void *to, oar_device to_device,
                                   const void *from, oar_device from_device,
                                   size_t bytes, void *stream);

/* count elements of that dtype, all set to value, in the order of the stream.
 */
OAR_API oar_status oar_device_fill(oar_span span, double value, void *stream);

/* ---- streams and events -------------------------------------------------- */

enum { OAR_STREAM_URGENT = 1 /* before others */ };

/* A stream of that device that does not wait for the default one. */
OAR_API oar_status oar_stream_create(oar_device device, int flags,
                                     void **stream);
OAR_API void oar_stream_destroy(oar_device device, void *stream);
OAR_API oar_status oar_stream_synchronize(oar_device device, void *stream);
/* *done: everything on it has run. */
OAR_API oar_status oar_stream_query(oar_device device, void *stream, int *done);
/* What comes on the stream waits for the event; the host does not. */
OAR_API oar_status oar_stream_wait(oar_device device, void *stream,
                                   void *event);

/* The stream that this thread means on a device when a call is given none;
 * NULL until it is set. Tensors on a GPU work on it. */
OAR_API oar_status oar_stream_set_current(oar_device device, void *stream);
OAR_API void *oar_stream_current(oar_device device);

/* timed: for oar_event_elapsed; others are cheaper. */
OAR_API oar_status oar_event_create(oar_device device, int timed, void **event);
OAR_API void oar_event_destroy(oar_device device, void *event);
OAR_API oar_status oar_event_record(oar_device device, void *event,
                                    void *stream);
OAR_API oar_status oar_event_query(oar_device device, void *event, int *done);
OAR_API oar_status oar_event_synchronize(oar_device device, void *event);
OAR_API oar_status oar_event_elapsed(oar_device device, void *from, void *to,
                                     double *ms);

OAR_END_DECLS

#endif
