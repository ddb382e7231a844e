/* SPDX-License-Identifier: Apache-2.0 */
#include "support/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"

enum { SKIPPED = 77, EQUAL = 1, MAPPED = 2 };

int gpu_is_real(void)
{
    const char *text = getenv("OARSONG_TEST_GPU");

    return text != NULL && strcmp(text, "1") == 0;
}

static void use_the_real_one(void)
{
    const char *build = getenv("OARSONG_BUILD_DIR");
    char path[4096];

    unsetenv("OARSONG_CUDA_LIBRARY");
    unsetenv("OARSONG_NCCL_LIBRARY");
    if (build == NULL)
        return;
    snprintf(path, sizeof path, "%s/lib/oarsong", build);
    setenv("OARSONG_KERNELS", path, 1);
}

void gpu_begin(void)
{
    /* scripts/gpu-sanitize runs the tests of a program in several processes */
    cmocka_set_test_filter(getenv("OARSONG_TEST_FILTER"));
    if (gpu_is_real()) {
        use_the_real_one();
    } else if (getenv("OARSONG_CUDA_LIBRARY") == NULL) {
        printf("skipped: needs a GPU (OARSONG_TEST_GPU=1) or the stand-in "
               "(ctest, or tests/support/standin/with)\n");
        exit(SKIPPED);
    }
}

void gpu_set_devices(int count)
{
    char text[16];

    snprintf(text, sizeof text, "%d", count);
    setenv("STANDIN_DEVICES", text, 1);
}

oar_device gpu_at(int index)
{
    return oar_device_of(OAR_CUDA, index);
}

void gpu_run(const char *name, test_job_fn fn)
{
    test_job c;

    test_job_start(&c, 1, fn, NULL, "%s", name);
    test_job_expect(&c, 0, 0);
    test_job_end(&c);
}

/* ---- gates --------------------------------------------------------------- */

oar_status stream_gate_create(int device, stream_gate *g)
{
    const oari_cuda *cu;
    int result;

    OARI_TRY(oari_cuda_enter(device, &cu));
    result = cu->MemHostAlloc((void **)&g->word, sizeof *g->word, MAPPED);
    if (result == OARI_CU_SUCCESS) {
        *g->word = 0;
        result = cu->MemHostGetDevicePointer(&g->at, g->word, 0);
    }
    oari_cuda_leave();
    return oari_cuda_check(result, "make a gate");
}

oar_status stream_gate_close(int device, stream_gate *g, void *stream)
{
    const oari_cuda *cu;
    int result;

    __atomic_store_n(g->word, 0, __ATOMIC_RELEASE);
    OARI_TRY(oari_cuda_enter(device, &cu));
    result = cu->StreamWaitValue32(stream, g->at, 1, EQUAL);
    oari_cuda_leave();
    return oari_cuda_check(result, "shut a gate");
}

void stream_gate_open(stream_gate *g)
{
    __atomic_store_n(g->word, 1, __ATOMIC_RELEASE);
}

int gpu_ends(int device, void *stream)
{
    int64_t deadline = oari_deadline(TEST_JOB_LIMIT_MS), since = 0;
    int done = 0;

    while (!done && oari_now_ns() < deadline) {
        if (oar_stream_query(gpu_at(device), stream, &done) != OAR_OK)
            return 0;
        if (!done)
            oari_backoff(&since);
    }
    return done;
}
