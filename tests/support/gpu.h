/* SPDX-License-Identifier: Apache-2.0 */
/* support/gpu.h: tests that need a GPU: on the stand-in, as ctest runs them, or
 * on a real one with OARSONG_TEST_GPU=1.
 *
 * A child of a process that uses the driver cannot use it, so the program's
 * first process never touches it: every test runs in a process of its own. */
#ifndef TESTS_SUPPORT_GPU_H
#define TESTS_SUPPORT_GPU_H

#include <oarsong/device.h>

#include "device/cuda/cuda.h"
#include "support/test_job.h"

/* First in main: with OARSONG_TEST_GPU=1 makes the library look for the real
 * driver, and for the kernels of this build. Ends the program, as skipped and
 * with a sentence, where there is neither that nor a stand-in. */
void gpu_begin(void);

/* Returns whether tests run on a real GPU. */
int gpu_is_real(void);

/* Sets how many GPUs the stand-in has in this process. */
void gpu_set_devices(int count);

/* Returns the device cuda:N. */
oar_device gpu_at(int index);

/* GPU_TEST(name) { ... } is a test in a process of its own; it returns 0. Its
 * checks are RANK_CHECK, RANK_OK and RANK_ZERO. */
#define GPU_TEST(name)                                       \
    static int run_##name(test_job *c, int rank, void *arg); \
    static void name(void **state)                           \
    {                                                        \
        gpu_run(#name, run_##name);                          \
    }                                                        \
    static int run_##name(test_job *c, int rank, void *arg)
void gpu_run(const char *name, test_job_fn fn);

/* A word on which a stream waits until the test opens the gate. */
typedef struct stream_gate {
    uint32_t *word;
    oari_cu_memory at;
} stream_gate;
oar_status stream_gate_create(int device, stream_gate *g);
oar_status stream_gate_close(int device, stream_gate *g, void *stream);
void stream_gate_open(stream_gate *g);

/* Waits until a stream is done. Returns 0 if it is not in time. */
int gpu_ends(int device, void *stream);

#endif
