/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda_trace.h: writes into the trace what runs on a GPU, as
 * intervals between two timed events on a stream (docs/observability.md). The
 * host never waits for them: an interval is written when a later call sees that
 * it is over.
 *
 * Nothing is put into a capture. Where nothing is traced a call costs one load
 * and one branch. */
#ifndef OARI_DEVICE_CUDA_CUDA_TRACE_H
#define OARI_DEVICE_CUDA_CUDA_TRACE_H

#include <oarsong/device.h>

#include "base/trace.h"

enum { OARI_GPU_INTERVALS = 2048 }; /* of a device, that are not over */

typedef struct oari_gpu_interval oari_gpu_interval;

oari_gpu_interval *oari_gpu_trace_start(int device, void *stream);
void oari_gpu_trace_finish(oari_gpu_interval *interval, const char *name);

/* Begins an interval behind what is on the stream. Returns NULL where nothing
 * is traced, on a stream that is captured, and for want of events; the latter
 * is counted in the trace. */
static inline oari_gpu_interval *oari_gpu_trace_begin(oar_device device,
                                                      void *stream)
{
    return oari_tracing() && device.kind == OAR_CUDA
               ? oari_gpu_trace_start(device.index, stream)
               : NULL;
}

/* Ends it behind what is on its stream now; the name is copied. Without a name
 * the interval is dropped. NULL is fine. */
static inline void oari_gpu_trace_end(oari_gpu_interval *interval,
                                      const char *name)
{
    if (interval != NULL)
        oari_gpu_trace_finish(interval, name);
}

/* The same for an operation of an engine, which is known by the event that it
 * ends with. An operation that fails is not ended: its interval is dropped when
 * another operation has that event. */
extern __attribute__((visibility("hidden"))) _Atomic int oari_gpu_trace_open;
void oari_gpu_trace_call_start(int device, void *stream, const void *finished);
void oari_gpu_trace_call_finish(int device, const void *finished,
                                const char *name);

static inline void oari_gpu_trace_call_begin(int device, void *stream,
                                             const void *finished)
{
    if (oari_tracing())
        oari_gpu_trace_call_start(device, stream, finished);
}

static inline void oari_gpu_trace_call_end(int device, const void *finished,
                                           const char *name)
{
    if (__builtin_expect(atomic_load_explicit(&oari_gpu_trace_open,
                                              memory_order_relaxed) != 0,
                         0))
        oari_gpu_trace_call_finish(device, finished, name);
}

#endif
