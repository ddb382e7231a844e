/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for the CUDA driver does what the driver does: separate memory,
 * asynchronous streams, the driver's own errors. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/standin_driver.h"

/* ---- devices and contexts ------------------------------------------------ */

static int run_calls_without_a_context_are_refused(test_job *c, int rank,
                                                   void *arg)
{
    oari_cu_memory memory;
    void *pinned;
    int count;
    RANK_ZERO(load());
    RANK_IS(OARI_CU_NOT_INITIALIZED, cu.DeviceGetCount(&count));
    RANK_ZERO(begin());
    RANK_ZERO(cu.CtxPopCurrent(NULL));
    RANK_IS(NO_CONTEXT, cu.CtxPopCurrent(NULL));
    RANK_IS(NO_CONTEXT, cu.MemAlloc(&memory, 5));
    RANK_IS(NO_CONTEXT, cu.MemHostAlloc(&pinned, 5, 0));
    RANK_IS(NO_CONTEXT, cu.StreamSynchronize(NULL));
    RANK_IS(NO_CONTEXT, cu.CtxPushCurrent(&count));
    RANK_ZERO(cu.CtxPushCurrent(primary));
    RANK_IS(OARI_CU_INVALID_VALUE, cu.MemAlloc(&memory, 0));
    RANK_IS(BAD_HANDLE, cu.StreamQuery(&count));
    RANK_IS(BAD_HANDLE, cu.EventQuery(&count));
    return 0;
}
IN_A_PROCESS(calls_without_a_context_are_refused)

static int run_without_devices_nothing_begins(test_job *c, int rank, void *arg)
{
    setenv("STANDIN_DEVICES", "0", 1);
    RANK_ZERO(load());
    RANK_IS(OARI_CU_NO_DEVICE, cu.Init(0));
    return 0;
}
IN_A_PROCESS(without_devices_nothing_begins)

static int run_a_child_of_fork_has_no_driver(test_job *c, int rank, void *arg)
{
    int status = 0;
    pid_t child;
    RANK_ZERO(begin());
    child = fork();
    if (child == 0)
        _exit(cu.Init(0) == OARI_CU_NOT_INITIALIZED &&
              cu.CtxSynchronize() == OARI_CU_NOT_INITIALIZED);
    RANK_CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 1);
    return 0;
}
IN_A_PROCESS(a_child_of_fork_has_no_driver)

/* ---- memory -------------------------------------------------------------- */

static int touch_device_memory(test_job *c, int rank, void *arg)
{
    volatile char *memory;
    RANK_ZERO(begin());
    signal(SIGSEGV, SIG_DFL); /* not the sanitizer's */
    memory = (volatile char *)(uintptr_t)make_memory(77);
    RANK_CHECK(memory != NULL);
    return memory[3];
}

static int touch_the_address_of_registered_memory(test_job *c, int rank,
                                                  void *arg)
{
    static char words[64];
    oari_cu_memory device;
    RANK_ZERO(begin());
    signal(SIGSEGV, SIG_DFL);
    RANK_ZERO(cu.MemHostRegister(words, sizeof words, 2));
    RANK_ZERO(cu.MemHostGetDevicePointer(&device, words + 8, 0));
    RANK_CHECK(device != (uintptr_t)(words + 8));
    return *(volatile char *)(uintptr_t)device;
}

static void the_host_cannot_touch_device_memory(void **state)
{
    (void)state;
    expect(touch_device_memory, FAULTED);
    expect(touch_the_address_of_registered_memory, FAULTED);
}

static int run_memory_says_what_it_is(test_job *c, int rank, void *arg)
{
    oari_cu_memory memory, base, other;
    size_t bytes, before, after, total;
    uint64_t id, other_id;
    unsigned kind;
    int device = -1, host = 0;
    RANK_ZERO(begin());
    RANK_ZERO(cu.MemGetInfo(&before, &total));
    RANK_ZERO(cu.MemAlloc(&memory, 1001));
    RANK_ZERO(cu.MemAlloc(&other, 1001));
    RANK_ZERO(cu.MemGetAddressRange(&base, &bytes, memory + 1000));
    RANK_CHECK(base == memory && bytes == 1001);
    RANK_IS(MISSING, cu.MemGetAddressRange(&base, &bytes, memory + 1001));
    RANK_ZERO(cu.PointerGetAttribute(&id, 7, memory + 3));
    RANK_ZERO(cu.PointerGetAttribute(&other_id, 7, other));
    RANK_CHECK(id != other_id);
    RANK_ZERO(cu.PointerGetAttribute(&device, 9, memory));
    RANK_ZERO(cu.PointerGetAttribute(&kind, 2, memory));
    RANK_CHECK(device == 0 && kind == OARI_CU_DEVICE);
    RANK_IS(OARI_CU_INVALID_VALUE,
            cu.PointerGetAttribute(&kind, 2, (uintptr_t)&host));
    RANK_ZERO(cu.MemFree(memory));
    RANK_IS(OARI_CU_INVALID_VALUE, cu.MemFree(memory));
    RANK_IS(OARI_CU_INVALID_VALUE, cu.MemFree(other + 1));
    RANK_ZERO(cu.MemFree(other));
    RANK_ZERO(cu.MemGetInfo(&after, &total));
    RANK_CHECK(after == before);
    RANK_IS(OARI_CU_OUT_OF_MEMORY, cu.MemAlloc(&memory, total + 1));
    return 0;
}
IN_A_PROCESS(memory_says_what_it_is)

static int run_copies_stay_in_their_memory(test_job *c, int rank, void *arg)
{
    unsigned char bytes[11] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 }, back[11];
    oari_cu_memory memory, freed;
    RANK_ZERO(begin());
    memory = make_memory(11);
    freed = make_memory(11);
    RANK_CHECK(first_byte(memory) == 0xa5); /* fresh memory is not zero */
    RANK_ZERO(cu.MemFree(freed));
    RANK_ZERO(cu.MemcpyHtoDAsync(memory, bytes, 11, NULL));
    RANK_ZERO(cu.MemcpyDtoHAsync(back, memory, 11, NULL));
    RANK_CHECK(memcmp(bytes, back, 11) == 0);
    RANK_IS(OARI_CU_INVALID_VALUE,
            cu.MemcpyHtoDAsync(memory + 1, bytes, 11, NULL));
    RANK_IS(OARI_CU_INVALID_VALUE, cu.MemcpyHtoDAsync(freed, bytes, 1, NULL));
    RANK_IS(OARI_CU_INVALID_VALUE,
            cu.MemcpyDtoHAsync((void *)(uintptr_t)memory, memory, 1, NULL));
    RANK_IS(OARI_CU_INVALID_VALUE,
            cu.MemcpyDtoDAsync((uintptr_t)back, memory, 11, NULL));
    RANK_ZERO(cu.MemcpyHtoDAsync(memory + 11, bytes, 0, NULL));
    return 0;
}
IN_A_PROCESS(copies_stay_in_their_memory)

static int run_rows_are_copied_with_their_pitches(test_job *c, int rank,
                                                  void *arg)
{
    unsigned char from[3][5], back[3][2];
    oari_cu_memory memory;
    oari_cu_copy2d in = { .from_kind = OARI_CU_HOST,
                          .to_kind = OARI_CU_DEVICE,
                          .from_host = from,
                          .from_pitch = 5,
                          .from_x = 1,
                          .to_pitch = 7,
                          .width = 2,
                          .height = 3 };
    oari_cu_copy2d out = { .from_kind = OARI_CU_DEVICE,
                           .from_pitch = 7,
                           .to_kind = OARI_CU_HOST,
                           .to_host = back,
                           .to_pitch = 2,
                           .width = 2,
                           .height = 3 };
    RANK_ZERO(begin());
    for (int i = 0; i < 15; i++)
        from[i / 5][i % 5] = (unsigned char)i;
    memory = make_memory(21);
    in.to_device = out.from_device = memory;
    RANK_ZERO(cu.Memcpy2DAsync(&in, NULL));
    RANK_ZERO(cu.Memcpy2DAsync(&out, NULL));
    for (int row = 0; row < 3; row++)
        RANK_CHECK(back[row][0] == 5 * row + 1 && back[row][1] == 5 * row + 2);
    in.width = 5;
    RANK_IS(OARI_CU_INVALID_VALUE, cu.Memcpy2DAsync(&in, NULL));
    return 0;
}
IN_A_PROCESS(rows_are_copied_with_their_pitches)

/* ---- streams and events -------------------------------------------------- */

static int run_streams_are_late(test_job *c, int rank, void *arg)
{
    oari_cu_memory memory;
    oari_cu_stream stream;
    int late = 0;
    setenv("STANDIN_DELAY_US", "20000", 1);
    RANK_ZERO(begin());
    memory = make_memory(1);
    stream = make_stream(NONBLOCKING);
    for (int i = 0; i < 20; i++) {
        RANK_ZERO(cu.MemsetD8Async(memory, 7, 1, stream));
        late += cu.StreamQuery(stream) == OARI_CU_NOT_READY;
        RANK_ZERO(cu.StreamSynchronize(stream));
        RANK_ZERO(cu.StreamQuery(stream));
    }
    RANK_CHECK(late >= 10);
    return 0;
}
IN_A_PROCESS(streams_are_late)

static int run_a_missing_event_edge_shows(test_job *c, int rank, void *arg)
{
    oari_cu_stream writer, reader;
    oari_cu_memory memory;
    oari_cu_event written;
    unsigned char *seen;
    driver_gate g;
    RANK_ZERO(begin());
    g = make_gate();
    writer = make_stream(NONBLOCKING);
    reader = make_stream(NONBLOCKING);
    memory = make_memory(3);
    written = make_event();
    RANK_ZERO(cu.MemHostAlloc((void **)&seen, 2, 0));
    shut(&g, writer);
    RANK_ZERO(cu.MemsetD8Async(memory, 9, 3, writer));
    RANK_ZERO(cu.EventRecord(written, writer));
    RANK_IS(OARI_CU_NOT_READY, cu.EventQuery(written));
    RANK_ZERO(cu.MemcpyDtoHAsync(seen, memory, 1, reader)); /* no edge */
    RANK_ZERO(cu.StreamSynchronize(reader));
    RANK_ZERO(cu.StreamWaitEvent(reader, written, 0));
    RANK_ZERO(cu.MemcpyDtoHAsync(seen + 1, memory, 1, reader));
    RANK_IS(OARI_CU_NOT_READY, cu.StreamQuery(reader));
    release(&g);
    RANK_ZERO(cu.StreamSynchronize(reader));
    RANK_CHECK(seen[0] == 0xa5 && seen[1] == 9);
    RANK_ZERO(cu.EventSynchronize(written));
    RANK_ZERO(cu.EventQuery(written));
    return 0;
}
IN_A_PROCESS(a_missing_event_edge_shows)

static int run_waiting_for_an_event_waits_for_its_last_record(test_job *c,
                                                              int rank,
                                                              void *arg)
{
    oari_cu_stream held, idle, waiter;
    oari_cu_event event;
    driver_gate g;
    RANK_ZERO(begin());
    g = make_gate();
    held = make_stream(NONBLOCKING);
    idle = make_stream(NONBLOCKING);
    waiter = make_stream(NONBLOCKING);
    event = make_event();
    RANK_ZERO(
        cu.StreamWaitEvent(waiter, event, 0)); /* never recorded: no wait */
    RANK_ZERO(cu.StreamSynchronize(waiter));
    shut(&g, held);
    RANK_ZERO(cu.EventRecord(event, held));
    RANK_ZERO(cu.StreamWaitEvent(waiter, event, 0));
    RANK_ZERO(cu.EventRecord(event, idle));
    RANK_ZERO(cu.EventSynchronize(event));
    RANK_ZERO(cu.EventDestroy(event));
    RANK_IS(BAD_HANDLE, cu.EventQuery(event));
    RANK_IS(OARI_CU_NOT_READY, cu.StreamQuery(waiter));
    release(&g);
    RANK_ZERO(cu.StreamSynchronize(waiter));
    return 0;
}
IN_A_PROCESS(waiting_for_an_event_waits_for_its_last_record)

static int run_the_default_stream_waits_for_blocking_ones(test_job *c, int rank,
                                                          void *arg)
{
    oari_cu_stream blocking, other, free_one;
    oari_cu_memory memory;
    unsigned char *seen;
    driver_gate g;
    RANK_ZERO(begin());
    g = make_gate();
    blocking = make_stream(0);
    other = make_stream(0);
    free_one = make_stream(NONBLOCKING);
    memory = make_memory(1);
    RANK_ZERO(cu.MemHostAlloc((void **)&seen, 3, 0));
    shut(&g, blocking);
    RANK_ZERO(cu.MemsetD8Async(memory, 5, 1, blocking));
    RANK_ZERO(cu.MemcpyDtoHAsync(&seen[0], memory, 1, NULL));
    RANK_ZERO(cu.MemcpyDtoHAsync(&seen[1], memory, 1, other));
    RANK_ZERO(cu.MemcpyDtoHAsync(&seen[2], memory, 1, free_one));
    RANK_ZERO(cu.StreamSynchronize(free_one));
    RANK_IS(OARI_CU_NOT_READY, cu.StreamQuery(NULL));
    RANK_IS(OARI_CU_NOT_READY,
            cu.StreamQuery(other)); /* behind the default one */
    release(&g);
    RANK_ZERO(cu.StreamSynchronize(other));
    RANK_CHECK(seen[0] == 5 && seen[1] == 5 && seen[2] == 0xa5);
    RANK_ZERO(cu.StreamQuery(NULL));
    return 0;
}
IN_A_PROCESS(the_default_stream_waits_for_blocking_ones)

static int run_pinned_copies_do_not_wait(test_job *c, int rank, void *arg)
{
    oari_cu_stream stream;
    oari_cu_memory memory;
    unsigned char *pinned, plain = 1, back = 0;
    driver_gate g;
    RANK_ZERO(begin());
    g = make_gate();
    stream = make_stream(NONBLOCKING);
    memory = make_memory(2);
    RANK_ZERO(cu.MemHostAlloc((void **)&pinned, 1, 0));
    shut(&g, stream);
    *pinned = 1;
    RANK_ZERO(cu.MemcpyHtoDAsync(memory, pinned, 1, stream));
    RANK_ZERO(cu.MemcpyHtoDAsync(memory + 1, &plain, 1, stream));
    *pinned = 2; /* too early: the copy has not been made */
    plain = 2;   /* fine: it is done with */
    release(&g);
    RANK_ZERO(cu.MemcpyDtoHAsync(&back, memory, 1, stream)); /* waits */
    RANK_CHECK(back == 2);
    RANK_ZERO(cu.MemcpyDtoHAsync(&back, memory + 1, 1, stream));
    RANK_CHECK(back == 1);
    return 0;
}
IN_A_PROCESS(pinned_copies_do_not_wait)

static int run_a_destroyed_stream_finishes_its_work(test_job *c, int rank,
                                                    void *arg)
{
    oari_cu_stream stream;
    oari_cu_memory memory;
    driver_gate g;
    RANK_ZERO(begin());
    g = make_gate();
    stream = make_stream(NONBLOCKING);
    memory = make_memory(1);
    shut(&g, stream);
    RANK_ZERO(cu.MemsetD8Async(memory, 3, 1, stream));
    RANK_ZERO(cu.StreamDestroy(stream));
    RANK_IS(BAD_HANDLE, cu.StreamQuery(stream));
    release(&g);
    RANK_ZERO(cu.CtxSynchronize());
    RANK_CHECK(first_byte(memory) == 3);
    return 0;
}
IN_A_PROCESS(a_destroyed_stream_finishes_its_work)

static int run_timed_events_measure(test_job *c, int rank, void *arg)
{
    oari_cu_event from, to, untimed = NULL;
    float ms = -1;
    RANK_ZERO(begin());
    RANK_ZERO(cu.EventCreate(&from, 0));
    RANK_ZERO(cu.EventCreate(&to, 0));
    untimed = make_event();
    RANK_IS(BAD_HANDLE, cu.EventElapsedTime(&ms, from, to)); /* not recorded */
    RANK_ZERO(cu.EventRecord(from, NULL));
    RANK_ZERO(cu.EventRecord(to, NULL));
    RANK_ZERO(cu.EventRecord(untimed, NULL));
    RANK_ZERO(cu.StreamSynchronize(NULL));
    RANK_ZERO(cu.EventElapsedTime(&ms, from, to));
    RANK_CHECK(ms >= 0);
    RANK_IS(BAD_HANDLE, cu.EventElapsedTime(&ms, from, untimed));
    return 0;
}
IN_A_PROCESS(timed_events_measure)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_without_a_context_are_refused),
        cmocka_unit_test(without_devices_nothing_begins),
        cmocka_unit_test(a_child_of_fork_has_no_driver),
        cmocka_unit_test(the_host_cannot_touch_device_memory),
        cmocka_unit_test(memory_says_what_it_is),
        cmocka_unit_test(copies_stay_in_their_memory),
        cmocka_unit_test(rows_are_copied_with_their_pitches),
        cmocka_unit_test(streams_are_late),
        cmocka_unit_test(a_missing_event_edge_shows),
        cmocka_unit_test(waiting_for_an_event_waits_for_its_last_record),
        cmocka_unit_test(the_default_stream_waits_for_blocking_ones),
        cmocka_unit_test(pinned_copies_do_not_wait),
        cmocka_unit_test(a_destroyed_stream_finishes_its_work),
        cmocka_unit_test(timed_events_measure),
    };
    return cmocka_run_group_tests_name("standin", tests, NULL, NULL);
}
