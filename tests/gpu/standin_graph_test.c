/* SPDX-License-Identifier: Apache-2.0 */
/* Captures and graphs of the stand-in: what is captured runs when the graph is
 * launched, and what a capture must not meet is the driver's error. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/standin_driver.h"

enum { UNJOINED = 904, ISOLATION = 905 };

static int capture(oari_cu_stream stream)
{
    return cu.StreamBeginCapture(stream, OARI_CU_CAPTURE_THREAD);
}

static int run_a_graph_runs_what_was_captured(test_job *c, int rank, void *arg)
{
    oari_cu_stream stream, other;
    oari_cu_memory memory;
    oari_cu_event fork, join;
    oari_cu_graph graph;
    oari_cu_graph_exec exec;
    unsigned char *pinned;
    int status = -1;

    RANK_ZERO(begin());
    stream = make_stream(NONBLOCKING);
    other = make_stream(NONBLOCKING);
    fork = make_event();
    join = make_event();
    memory = make_memory(3);
    RANK_ZERO(cu.MemHostAlloc((void **)&pinned, 1, 0));
    RANK_ZERO(cu.MemsetD8Async(memory, 1, 3, stream));
    RANK_ZERO(cu.StreamSynchronize(stream));
    RANK_ZERO(capture(stream));
    RANK_ZERO(cu.StreamIsCapturing(stream, &status));
    RANK_CHECK(status == 1);
    RANK_ZERO(cu.MemcpyHtoDAsync(memory, pinned, 1, stream));
    RANK_ZERO(cu.EventRecord(fork, stream));
    RANK_ZERO(cu.StreamWaitEvent(other, fork, 0)); /* comes into the capture */
    RANK_ZERO(cu.MemcpyDtoDAsync(memory + 1, memory, 1, other));
    RANK_ZERO(cu.EventRecord(join, other));
    RANK_ZERO(cu.StreamWaitEvent(stream, join, 0));
    RANK_ZERO(cu.StreamEndCapture(stream, &graph));
    RANK_ZERO(cu.StreamIsCapturing(other, &status));
    RANK_CHECK(status == 0 && first_byte(memory + 1) == 1);
    RANK_ZERO(cu.GraphInstantiate(&exec, graph, 0));
    RANK_ZERO(cu.GraphDestroy(graph));
    for (unsigned char i = 7; i < 9; i++) { /* read again at each launch */
        *pinned = i;
        RANK_ZERO(cu.GraphLaunch(exec, stream));
        RANK_ZERO(cu.StreamSynchronize(stream));
        RANK_CHECK(first_byte(memory + 1) == i && first_byte(memory + 2) == 1);
    }
    RANK_ZERO(cu.GraphExecDestroy(exec));
    RANK_IS(BAD_HANDLE, cu.GraphLaunch(exec, stream));
    RANK_ZERO(cu.MemFree(memory));
    return 0;
}
IN_A_PROCESS(a_graph_runs_what_was_captured)

/* After each of these the end of the capture fails too. */
static int run_a_capture_cannot_wait(test_job *c, int rank, void *arg)
{
    oari_cu_stream stream, other;
    oari_cu_memory memory, more;
    oari_cu_event outside, inside;
    oari_cu_graph graph;
    unsigned char plain = 1;

    RANK_ZERO(begin());
    stream = make_stream(NONBLOCKING);
    other = make_stream(NONBLOCKING);
    memory = make_memory(1);
    outside = make_event();
    inside = make_event();
    RANK_ZERO(cu.EventRecord(outside, other));
    RANK_IS(OARI_CU_CAPTURE_UNSUPPORTED, capture(NULL));
    for (int i = 0; i < 7; i++) {
        RANK_ZERO(capture(stream));
        RANK_ZERO(cu.MemsetD8Async(memory, 1, 1, stream));
        switch (i) {
        case 0:
            RANK_IS(OARI_CU_CAPTURE_UNSUPPORTED, cu.StreamSynchronize(stream));
            break;
        case 1:
            RANK_IS(OARI_CU_CAPTURE_UNSUPPORTED, cu.StreamQuery(stream));
            break;
        case 2:
            RANK_IS(OARI_CU_CAPTURE_UNSUPPORTED, cu.MemAlloc(&more, 1));
            break;
        case 3:
            RANK_IS(OARI_CU_CAPTURE_UNSUPPORTED, cu.CtxSynchronize());
            break;
        case 4:
            RANK_IS(OARI_CU_CAPTURE_UNSUPPORTED,
                    cu.MemcpyDtoHAsync(&plain, memory, 1, stream));
            break;
        case 5:
            RANK_IS(OARI_CU_CAPTURE_UNSUPPORTED, cu.EventSynchronize(outside));
            break;
        case 6:
            RANK_IS(ISOLATION, cu.StreamWaitEvent(stream, outside, 0));
            break;
        }
        RANK_IS(OARI_CU_CAPTURE_INVALIDATED,
                cu.StreamEndCapture(stream, &graph));
    }
    RANK_ZERO(capture(stream));
    RANK_ZERO(cu.EventRecord(inside, stream));
    RANK_ZERO(cu.StreamWaitEvent(other, inside, 0));
    RANK_ZERO(cu.MemsetD8Async(memory, 1, 1, other));
    RANK_IS(UNJOINED, cu.StreamEndCapture(stream, &graph));
    return 0;
}
IN_A_PROCESS(a_capture_cannot_wait)

static int run_a_relaxed_thread_may_allocate(test_job *c, int rank, void *arg)
{
    int mode = OARI_CU_CAPTURE_RELAXED;
    oari_cu_stream stream;
    oari_cu_memory memory;
    oari_cu_graph graph;

    RANK_ZERO(begin());
    stream = make_stream(NONBLOCKING);
    RANK_ZERO(capture(stream));
    RANK_ZERO(cu.ThreadExchangeStreamCaptureMode(&mode));
    RANK_CHECK(mode == OARI_CU_CAPTURE_GLOBAL);
    RANK_ZERO(cu.MemAlloc(&memory, 1));
    RANK_ZERO(cu.ThreadExchangeStreamCaptureMode(&mode));
    RANK_ZERO(cu.MemsetD8Async(memory, 1, 1, stream));
    RANK_ZERO(cu.StreamEndCapture(stream, &graph));
    RANK_ZERO(cu.GraphDestroy(graph));
    RANK_ZERO(cu.MemFree(memory));
    return 0;
}
IN_A_PROCESS(a_relaxed_thread_may_allocate)

/* Memory of the graph is used for something else by then. */
static int run_an_event_outlives_its_graph(test_job *c, int rank, void *arg)
{
    enum { LEAST = 64, MOST = 256, STEP = 16 };
    oari_cu_stream stream, other;
    oari_cu_event inside;
    oari_cu_graph graph;
    void *taken[(MOST - LEAST) / STEP];
    int status = -1;

    RANK_ZERO(begin());
    stream = make_stream(NONBLOCKING);
    other = make_stream(NONBLOCKING);
    inside = make_event();
    RANK_ZERO(capture(stream));
    RANK_ZERO(cu.EventRecord(inside, stream));
    RANK_ZERO(cu.StreamEndCapture(stream, &graph));
    RANK_ZERO(cu.GraphDestroy(graph));
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        taken[i] = malloc(LEAST + STEP * i);
        RANK_CHECK(taken[i] != NULL);
        memset(taken[i], 1, LEAST + STEP * i);
    }
    RANK_ZERO(cu.StreamWaitEvent(other, inside, 0));
    RANK_ZERO(cu.StreamIsCapturing(other, &status));
    RANK_CHECK(status == 0);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        free(taken[i]);
    return 0;
}
IN_A_PROCESS(an_event_outlives_its_graph)

static int free_what_a_graph_uses(test_job *c, int rank, void *arg)
{
    oari_cu_stream stream;
    oari_cu_memory memory;
    oari_cu_graph graph;

    RANK_ZERO(begin());
    signal(SIGABRT, SIG_DFL);
    stream = make_stream(NONBLOCKING);
    memory = make_memory(40);
    RANK_ZERO(capture(stream));
    RANK_ZERO(cu.MemsetD8Async(memory + 4, 1, 1, stream));
    RANK_ZERO(cu.StreamEndCapture(stream, &graph));
    return cu.MemFree(memory);
}

static void memory_of_a_graph_stays(void **state)
{
    (void)state;
    expect(free_what_a_graph_uses, ABORTED);
}

static void add_one(void *arg)
{
    __atomic_add_fetch((int *)arg, 1, __ATOMIC_SEQ_CST);
}

static int run_streams_call_functions_of_the_host(test_job *c, int rank,
                                                  void *arg)
{
    oari_cu_stream stream;
    int calls = 0;

    RANK_ZERO(begin());
    stream = make_stream(NONBLOCKING);
    RANK_ZERO(cu.LaunchHostFunc(stream, add_one, &calls));
    RANK_ZERO(cu.StreamSynchronize(stream));
    RANK_CHECK(calls == 1);
    return 0;
}
IN_A_PROCESS(streams_call_functions_of_the_host)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_graph_runs_what_was_captured),
        cmocka_unit_test(a_capture_cannot_wait),
        cmocka_unit_test(a_relaxed_thread_may_allocate),
        cmocka_unit_test(an_event_outlives_its_graph),
        cmocka_unit_test(memory_of_a_graph_stays),
        cmocka_unit_test(streams_call_functions_of_the_host),
    };
    return cmocka_run_group_tests_name("standin_graph", tests, NULL, NULL);
}
