/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for the CUDA driver keeps what it promises: memory apart, late
 * streams, the driver's own errors. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/driver.h"

/* ---- devices and contexts ------------------------------------------------ */

static int run_calls_without_a_context_are_refused(crew *c, int rank, void *arg)
{
    oari_cu_memory memory;
    void *pinned;
    int count;
    OK(load());
    IS(OARI_CU_NOT_INITIALIZED, cu.DeviceGetCount(&count));
    OK(begin());
    OK(cu.CtxPopCurrent(NULL));
    IS(NO_CONTEXT, cu.CtxPopCurrent(NULL));
    IS(NO_CONTEXT, cu.MemAlloc(&memory, 5));
    IS(NO_CONTEXT, cu.MemHostAlloc(&pinned, 5, 0));
    IS(NO_CONTEXT, cu.StreamSynchronize(NULL));
    IS(NO_CONTEXT, cu.CtxPushCurrent(&count));
    OK(cu.CtxPushCurrent(primary));
    IS(OARI_CU_INVALID_VALUE, cu.MemAlloc(&memory, 0));
    IS(BAD_HANDLE, cu.StreamQuery(&count));
    IS(BAD_HANDLE, cu.EventQuery(&count));
    return 0;
}
IN_A_PROCESS(calls_without_a_context_are_refused)

static int run_without_devices_nothing_begins(crew *c, int rank, void *arg)
{
    setenv("STANDIN_DEVICES", "0", 1);
    OK(load());
    IS(OARI_CU_NO_DEVICE, cu.Init(0));
    return 0;
}
IN_A_PROCESS(without_devices_nothing_begins)

static int run_a_child_of_fork_has_no_driver(crew *c, int rank, void *arg)
{
    int status = 0;
    pid_t child;
    OK(begin());
    child = fork();
    if (child == 0)
        _exit(cu.Init(0) == OARI_CU_NOT_INITIALIZED &&
              cu.CtxSynchronize() == OARI_CU_NOT_INITIALIZED);
    SO(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 1);
    return 0;
}
IN_A_PROCESS(a_child_of_fork_has_no_driver)

/* ---- memory -------------------------------------------------------------- */

static int touch_device_memory(crew *c, int rank, void *arg)
{
    volatile char *memory;
    OK(begin());
    signal(SIGSEGV, SIG_DFL); /* not the sanitizer's */
    memory = (volatile char *)(uintptr_t)make_memory(77);
    SO(memory != NULL);
    return memory[3];
}

static int touch_the_address_of_registered_memory(crew *c, int rank, void *arg)
{
    static char words[64];
    oari_cu_memory device;
    OK(begin());
    signal(SIGSEGV, SIG_DFL);
    OK(cu.MemHostRegister(words, sizeof words, 2));
    OK(cu.MemHostGetDevicePointer(&device, words + 8, 0));
    SO(device != (uintptr_t)(words + 8));
    return *(volatile char *)(uintptr_t)device;
}

static void the_host_cannot_touch_device_memory(void **state)
{
    (void)state;
    expect(touch_device_memory, FAULTED);
    expect(touch_the_address_of_registered_memory, FAULTED);
}

static int run_memory_says_what_it_is(crew *c, int rank, void *arg)
{
    oari_cu_memory memory, base, other;
    size_t bytes, before, after, total;
    uint64_t id, other_id;
    unsigned kind;
    int device = -1, host = 0;
    OK(begin());
    OK(cu.MemGetInfo(&before, &total));
    OK(cu.MemAlloc(&memory, 1001));
    OK(cu.MemAlloc(&other, 1001));
    OK(cu.MemGetAddressRange(&base, &bytes, memory + 1000));
    SO(base == memory && bytes == 1001);
    IS(MISSING, cu.MemGetAddressRange(&base, &bytes, memory + 1001));
    OK(cu.PointerGetAttribute(&id, 7, memory + 3));
    OK(cu.PointerGetAttribute(&other_id, 7, other));
    SO(id != other_id);
    OK(cu.PointerGetAttribute(&device, 9, memory));
    OK(cu.PointerGetAttribute(&kind, 2, memory));
    SO(device == 0 && kind == OARI_CU_DEVICE);
    IS(OARI_CU_INVALID_VALUE,
       cu.PointerGetAttribute(&kind, 2, (uintptr_t)&host));
    OK(cu.MemFree(memory));
    IS(OARI_CU_INVALID_VALUE, cu.MemFree(memory));
    IS(OARI_CU_INVALID_VALUE, cu.MemFree(other + 1));
    OK(cu.MemFree(other));
    OK(cu.MemGetInfo(&after, &total));
    SO(after == before);
    IS(OARI_CU_OUT_OF_MEMORY, cu.MemAlloc(&memory, total + 1));
    return 0;
}
IN_A_PROCESS(memory_says_what_it_is)

static int run_copies_stay_in_their_memory(crew *c, int rank, void *arg)
{
    unsigned char bytes[11] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 }, back[11];
    oari_cu_memory memory, freed;
    OK(begin());
    memory = make_memory(11);
    freed = make_memory(11);
    SO(first_byte(memory) == 0xa5); /* fresh memory is not zero */
    OK(cu.MemFree(freed));
    OK(cu.MemcpyHtoDAsync(memory, bytes, 11, NULL));
    OK(cu.MemcpyDtoHAsync(back, memory, 11, NULL));
    SO(memcmp(bytes, back, 11) == 0);
    IS(OARI_CU_INVALID_VALUE, cu.MemcpyHtoDAsync(memory + 1, bytes, 11, NULL));
    IS(OARI_CU_INVALID_VALUE, cu.MemcpyHtoDAsync(freed, bytes, 1, NULL));
    IS(OARI_CU_INVALID_VALUE,
       cu.MemcpyDtoHAsync((void *)(uintptr_t)memory, memory, 1, NULL));
    IS(OARI_CU_INVALID_VALUE,
       cu.MemcpyDtoDAsync((uintptr_t)back, memory, 11, NULL));
    OK(cu.MemcpyHtoDAsync(memory + 11, bytes, 0, NULL));
    return 0;
}
IN_A_PROCESS(copies_stay_in_their_memory)

static int run_rows_are_copied_with_their_pitches(crew *c, int rank, void *arg)
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
    OK(begin());
    for (int i = 0; i < 15; i++)
        from[i / 5][i % 5] = (unsigned char)i;
    memory = make_memory(21);
    in.to_device = out.from_device = memory;
    OK(cu.Memcpy2DAsync(&in, NULL));
    OK(cu.Memcpy2DAsync(&out, NULL));
    for (int row = 0; row < 3; row++)
        SO(back[row][0] == 5 * row + 1 && back[row][1] == 5 * row + 2);
    in.width = 5;
    IS(OARI_CU_INVALID_VALUE, cu.Memcpy2DAsync(&in, NULL));
    return 0;
}
IN_A_PROCESS(rows_are_copied_with_their_pitches)

/* ---- streams and events -------------------------------------------------- */

static int run_streams_are_late(crew *c, int rank, void *arg)
{
    oari_cu_memory memory;
    oari_cu_stream stream;
    int late = 0;
    setenv("STANDIN_DELAY_US", "20000", 1);
    OK(begin());
    memory = make_memory(1);
    stream = make_stream(NONBLOCKING);
    for (int i = 0; i < 20; i++) {
        OK(cu.MemsetD8Async(memory, 7, 1, stream));
        late += cu.StreamQuery(stream) == OARI_CU_NOT_READY;
        OK(cu.StreamSynchronize(stream));
        OK(cu.StreamQuery(stream));
    }
    SO(late >= 10);
    return 0;
}
IN_A_PROCESS(streams_are_late)

static int run_a_missing_event_edge_shows(crew *c, int rank, void *arg)
{
    oari_cu_stream writer, reader;
    oari_cu_memory memory;
    oari_cu_event written;
    unsigned char *seen;
    gate g;
    OK(begin());
    g = make_gate();
    writer = make_stream(NONBLOCKING);
    reader = make_stream(NONBLOCKING);
    memory = make_memory(3);
    written = make_event();
    OK(cu.MemHostAlloc((void **)&seen, 2, 0));
    shut(&g, writer);
    OK(cu.MemsetD8Async(memory, 9, 3, writer));
    OK(cu.EventRecord(written, writer));
    IS(OARI_CU_NOT_READY, cu.EventQuery(written));
    OK(cu.MemcpyDtoHAsync(seen, memory, 1, reader)); /* no edge */
    OK(cu.StreamSynchronize(reader));
    OK(cu.StreamWaitEvent(reader, written, 0));
    OK(cu.MemcpyDtoHAsync(seen + 1, memory, 1, reader));
    IS(OARI_CU_NOT_READY, cu.StreamQuery(reader));
    release(&g);
    OK(cu.StreamSynchronize(reader));
    SO(seen[0] == 0xa5 && seen[1] == 9);
    OK(cu.EventSynchronize(written));
    OK(cu.EventQuery(written));
    return 0;
}
IN_A_PROCESS(a_missing_event_edge_shows)

static int run_who_waits_for_an_event_waits_for_its_last_record(crew *c,
                                                                int rank,
                                                                void *arg)
{
    oari_cu_stream held, idle, waiter;
    oari_cu_event event;
    gate g;
    OK(begin());
    g = make_gate();
    held = make_stream(NONBLOCKING);
    idle = make_stream(NONBLOCKING);
    waiter = make_stream(NONBLOCKING);
    event = make_event();
    OK(cu.StreamWaitEvent(waiter, event, 0)); /* never recorded: no wait */
    OK(cu.StreamSynchronize(waiter));
    shut(&g, held);
    OK(cu.EventRecord(event, held));
    OK(cu.StreamWaitEvent(waiter, event, 0));
    OK(cu.EventRecord(event, idle));
    OK(cu.EventSynchronize(event));
    OK(cu.EventDestroy(event));
    IS(BAD_HANDLE, cu.EventQuery(event));
    IS(OARI_CU_NOT_READY, cu.StreamQuery(waiter));
    release(&g);
    OK(cu.StreamSynchronize(waiter));
    return 0;
}
IN_A_PROCESS(who_waits_for_an_event_waits_for_its_last_record)

static int run_the_default_stream_waits_for_blocking_ones(crew *c, int rank,
                                                          void *arg)
{
    oari_cu_stream blocking, other, free_one;
    oari_cu_memory memory;
    unsigned char *seen;
    gate g;
    OK(begin());
    g = make_gate();
    blocking = make_stream(0);
    other = make_stream(0);
    free_one = make_stream(NONBLOCKING);
    memory = make_memory(1);
    OK(cu.MemHostAlloc((void **)&seen, 3, 0));
    shut(&g, blocking);
    OK(cu.MemsetD8Async(memory, 5, 1, blocking));
    OK(cu.MemcpyDtoHAsync(&seen[0], memory, 1, NULL));
    OK(cu.MemcpyDtoHAsync(&seen[1], memory, 1, other));
    OK(cu.MemcpyDtoHAsync(&seen[2], memory, 1, free_one));
    OK(cu.StreamSynchronize(free_one));
    IS(OARI_CU_NOT_READY, cu.StreamQuery(NULL));
    IS(OARI_CU_NOT_READY, cu.StreamQuery(other)); /* behind the default one */
    release(&g);
    OK(cu.StreamSynchronize(other));
    SO(seen[0] == 5 && seen[1] == 5 && seen[2] == 0xa5);
    OK(cu.StreamQuery(NULL));
    return 0;
}
IN_A_PROCESS(the_default_stream_waits_for_blocking_ones)

static int run_pinned_copies_do_not_wait(crew *c, int rank, void *arg)
{
    oari_cu_stream stream;
    oari_cu_memory memory;
    unsigned char *pinned, plain = 1, back = 0;
    gate g;
    OK(begin());
    g = make_gate();
    stream = make_stream(NONBLOCKING);
    memory = make_memory(2);
    OK(cu.MemHostAlloc((void **)&pinned, 1, 0));
    shut(&g, stream);
    *pinned = 1;
    OK(cu.MemcpyHtoDAsync(memory, pinned, 1, stream));
    OK(cu.MemcpyHtoDAsync(memory + 1, &plain, 1, stream));
    *pinned = 2; /* too early: the copy has not been made */
    plain = 2;   /* fine: it is done with */
    release(&g);
    OK(cu.MemcpyDtoHAsync(&back, memory, 1, stream)); /* waits */
    SO(back == 2);
    OK(cu.MemcpyDtoHAsync(&back, memory + 1, 1, stream));
    SO(back == 1);
    return 0;
}
IN_A_PROCESS(pinned_copies_do_not_wait)

static int run_a_destroyed_stream_finishes_its_work(crew *c, int rank,
                                                    void *arg)
{
    oari_cu_stream stream;
    oari_cu_memory memory;
    gate g;
    OK(begin());
    g = make_gate();
    stream = make_stream(NONBLOCKING);
    memory = make_memory(1);
    shut(&g, stream);
    OK(cu.MemsetD8Async(memory, 3, 1, stream));
    OK(cu.StreamDestroy(stream));
    IS(BAD_HANDLE, cu.StreamQuery(stream));
    release(&g);
    OK(cu.CtxSynchronize());
    SO(first_byte(memory) == 3);
    return 0;
}
IN_A_PROCESS(a_destroyed_stream_finishes_its_work)

static int run_timed_events_measure(crew *c, int rank, void *arg)
{
    oari_cu_event from, to, untimed = NULL;
    float ms = -1;
    OK(begin());
    OK(cu.EventCreate(&from, 0));
    OK(cu.EventCreate(&to, 0));
    untimed = make_event();
    IS(BAD_HANDLE, cu.EventElapsedTime(&ms, from, to)); /* not recorded */
    OK(cu.EventRecord(from, NULL));
    OK(cu.EventRecord(to, NULL));
    OK(cu.EventRecord(untimed, NULL));
    OK(cu.StreamSynchronize(NULL));
    OK(cu.EventElapsedTime(&ms, from, to));
    SO(ms >= 0);
    IS(BAD_HANDLE, cu.EventElapsedTime(&ms, from, untimed));
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
        cmocka_unit_test(who_waits_for_an_event_waits_for_its_last_record),
        cmocka_unit_test(the_default_stream_waits_for_blocking_ones),
        cmocka_unit_test(pinned_copies_do_not_wait),
        cmocka_unit_test(a_destroyed_stream_finishes_its_work),
        cmocka_unit_test(timed_events_measure),
    };
    return cmocka_run_group_tests_name("standin", tests, NULL, NULL);
}
