/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda_trace_clock.h: the clock of a GPU against the host's, for
 * cuda_trace.c.
 *
 * Times of events are relative to an anchor: an event on a stream of its own,
 * on which nothing else ever is. It comes between the moment before it was
 * recorded and the moment at which it was first seen; the middle is its time
 * on the host's clock, and half the width the error. */
#ifndef OARI_DEVICE_CUDA_CUDA_TRACE_CLOCK_H
#define OARI_DEVICE_CUDA_CUDA_TRACE_CLOCK_H

#include "device/cuda/cuda.h"

enum { OARI_GPU_ANCHORS = 8 };

typedef struct oari_gpu_anchor {
    oari_cu_event event;
    uint64_t before, after; /* ticks; after: 0 until it is seen */
    _Atomic int users;      /* intervals that are relative to it */
    unsigned number;        /* another one each time it is made */
    int used;               /* something was written with it */
} oari_gpu_anchor;

typedef struct oari_gpu_clock {
    oari_cu_stream stream;
    oari_gpu_anchor anchor[OARI_GPU_ANCHORS];
    _Atomic int current; /* anchor; -1: none */
    int candidate;       /* for the next; -1: none */
    unsigned made;
} oari_gpu_clock;

void oari_gpu_clock_init(oari_gpu_clock *clock);

/* Returns the anchor of what begins now, with one more user; NULL: there is
 * none. Any thread. */
oari_gpu_anchor *oari_gpu_clock_hold(oari_gpu_clock *clock);

/* The following calls are made by one thread at a time, with the device
 * current. None waits for the device. */

/* Makes an anchor if there is none (looking for it for some ms at most), or the
 * last is old. running: intervals have begun and not ended; they keep their
 * anchor, and what is nested in them has the same. */
void oari_gpu_clock_renew(oari_gpu_clock *clock, const oari_cuda *cu,
                          int running);

/* Looks whether new anchors have come. */
void oari_gpu_clock_see(oari_gpu_clock *clock, const oari_cuda *cu);

/* Looks whether an anchor has come. Returns whether its time is known. */
int oari_gpu_anchor_see(const oari_cuda *cu, oari_gpu_anchor *anchor);

/* Says that an anchor came after and before these moments, in ticks, which is
 * known from other events. It counts until the anchor is used: then its time
 * does not change. */
void oari_gpu_anchor_bound(oari_gpu_anchor *anchor, uint64_t low,
                           uint64_t high);

/* Returns the width of what is known of an anchor's time, as it is `age` ticks
 * later, in ticks. */
double oari_gpu_anchor_width(const oari_gpu_anchor *anchor, uint64_t age);

#endif
