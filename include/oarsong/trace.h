/* SPDX-License-Identifier: Apache-2.0 */
/* trace.h: a program's own intervals, steps and numbers, beside those that the
 * library writes.
 *
 * A job is traced when OARSONG_TRACE names a folder, as `oarsong run --trace
 * DIR` does: every process then keeps its events in a file there
 * (rank-N.oartrace), which is complete up to the last event even if the process
 * is killed. trace_read.h reads the files of a whole job. In a job that is not
 * traced, intervals cost a few nanoseconds. The newest numbers and the step can
 * be read from outside in any job (live.h); giving one costs less than 0.1 us.
 */
#ifndef OARSONG_TRACE_H
#define OARSONG_TRACE_H

#include <stdint.h>

#include <oarsong/export.h>

OAR_BEGIN_DECLS

/* Begins an interval of this thread; intervals of a thread nest. The name is
 * copied when the interval ends, and must be valid until then. Returns what
 * oar_trace_end takes: 0 if the job is not traced. */
OAR_API uint64_t oar_trace_begin(const char *name);

/* Ends an interval, and those inside it that were not ended. 0 is fine. */
OAR_API void oar_trace_end(uint64_t interval);

/* Keeps a number over time, such as "loss" or "tokens/s". Any thread may call
 * it. Of a name, 43 bytes count. The first 64 names of a process are shown
 * live. */
OAR_API void oar_metric(const char *name, double value);

/* Says that a training step has ended. Steps are what reports count by, and
 * what a trace that grows too long is thinned by. */
OAR_API void oar_step(int64_t step);

OAR_END_DECLS

#endif
