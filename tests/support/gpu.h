/* SPDX-License-Identifier: Apache-2.0 */
/* support/gpu.h: tests that need a GPU: on the stand-in, as ctest runs them, or
 * on a real one with OARSONG_TEST_GPU=1.
 *
 * A child of a process that has the driver cannot have it, so the program's
 * first process never touches it: every test is in a process of its own. */
#ifndef TESTS_SUPPORT_GPU_H
#define TESTS_SUPPORT_GPU_H

#include <oarsong/device.h>

#include "device/cuda/cuda.h"
#include "support/crew.h"

/* First in main: with OARSONG_TEST_GPU=1 makes the library look for the real
 * driver, and for the kernels of this build. Ends the program, as skipped and
 * with a sentence, where there is neither that nor a stand-in. */
void gpu_begin(void);

/* Whether tests run on a real GPU. */
int gpu_is_real(void);

/* How many GPUs the stand-in is to have in this process. */
void gpu_set_devices(int count);

/* cuda:N */
oar_device gpu_at(int index);

/* GPU_TEST(name) { ... } is a test in a process of its own; it returns 0. */
#define GPU_TEST(name)                                   \
    static int run_##name(crew *c, int rank, void *arg); \
    static void name(void **state)                       \
    {                                                    \
        gpu_run(#name, run_##name);                      \
    }                                                    \
    static int run_##name(crew *c, int rank, void *arg)
void gpu_run(const char *name, crew_fn fn);

/* In such a test, and in what it calls with c and rank. */
#define SO(condition)  CREW_CHECK(c, rank, condition)
#define DONE(call)     CREW_CHECK(c, rank, (call) == OAR_OK)
#define PART(function) CREW_CHECK(c, rank, (function) == 0)

/* Work on a stream that does not go on before the gate is opened. */
typedef struct gate {
    uint32_t *word;
    oari_cu_memory at;
} gate;
oar_status gate_make(int device, gate *g);
oar_status gate_shut(int device, gate *g, void *stream);
void gate_open(gate *g);

/* Waits for a stream that may not end; 0 if it has not in time. */
int gpu_ends(int device, void *stream);

#endif
