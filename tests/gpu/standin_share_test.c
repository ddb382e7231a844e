/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for the CUDA driver: memory of other processes, values that
 * streams wait for and write, kernels. */
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu/driver.h"

enum { COUNT = 1003 };

typedef struct desk {
    crew_flag told, opened, used, closed;
    oari_cu_ipc handle;
    uint32_t word[2];
} desk;

/* ---- IPC ----------------------------------------------------------------- */

static int lend(crew *c, int rank, desk *d, oari_cu_memory *memory)
{
    OK(begin());
    *memory = make_memory(COUNT);
    OK(cu.MemsetD8Async(*memory, 17, COUNT, NULL));
    OK(cu.StreamSynchronize(NULL));
    IS(OARI_CU_INVALID_VALUE, cu.IpcGetMemHandle(&d->handle, *memory + 8));
    OK(cu.IpcGetMemHandle(&d->handle, *memory));
    crew_raise(&d->told);
    return 0;
}

static int borrow(crew *c, int rank, desk *d, oari_cu_memory *memory)
{
    OK(begin());
    SO(crew_await(&d->told, 1, CREW_PATIENCE_MS));
    IS(OARI_CU_INVALID_VALUE, cu.IpcOpenMemHandle(memory, d->handle, 0));
    OK(cu.IpcOpenMemHandle(memory, d->handle, LAZY));
    crew_raise(&d->opened);
    return 0;
}

static int owner_of_shared_memory(crew *c, int rank, desk *d)
{
    oari_cu_memory memory, again;
    OK(lend(c, rank, d, &memory));
    IS(NO_CONTEXT, cu.IpcOpenMemHandle(&again, d->handle, LAZY));
    SO(crew_await(&d->used, 1, CREW_PATIENCE_MS));
    SO(first_byte(memory + 5) == 99 && first_byte(memory + 4) == 17);
    SO(crew_await(&d->closed, 1, CREW_PATIENCE_MS));
    OK(cu.MemFree(memory));
    return 0;
}

static int peer_of_shared_memory(crew *c, int rank, desk *d)
{
    oari_cu_memory memory, again, base;
    size_t bytes;
    OK(borrow(c, rank, d, &memory));
    OK(cu.IpcOpenMemHandle(&again, d->handle, LAZY));
    SO(again == memory);
    OK(cu.MemGetAddressRange(&base, &bytes, memory + 7));
    SO(base == memory && bytes == COUNT);
    SO(first_byte(memory + COUNT - 1) == 17);
    OK(cu.MemsetD8Async(memory + 5, 99, 1, NULL));
    OK(cu.StreamSynchronize(NULL));
    crew_raise(&d->used);
    IS(OARI_CU_INVALID_VALUE, cu.MemFree(memory));
    OK(cu.IpcCloseMemHandle(memory));
    SO(first_byte(memory) == 17); /* once more opened than closed */
    OK(cu.IpcCloseMemHandle(memory));
    IS(OARI_CU_INVALID_VALUE, cu.IpcCloseMemHandle(memory));
    crew_raise(&d->closed);
    return 0;
}

static int share(crew *c, int rank, void *arg)
{
    return rank == 0 ? owner_of_shared_memory(c, rank, arg)
                     : peer_of_shared_memory(c, rank, arg);
}

static void two_processes_share_device_memory(void **state)
{
    crew c;
    desk *d = crew_page(sizeof *d);
    (void)state;
    crew_start(&c, 2, share, d, "memory through IPC");
    crew_expect(&c, 0, 0);
    crew_expect(&c, 1, 0);
    crew_end(&c);
    crew_drop_page(d, sizeof *d);
}

static int free_too_early(crew *c, int rank, void *arg)
{
    desk *d = arg;
    oari_cu_memory memory;
    if (rank == 1) {
        OK(borrow(c, rank, d, &memory));
        SO(crew_await(&d->used, 1, CREW_PATIENCE_MS));
        return 0;
    }
    signal(SIGABRT, SIG_DFL);
    OK(lend(c, rank, d, &memory));
    SO(crew_await(&d->opened, 1, CREW_PATIENCE_MS));
    return cu.MemFree(memory);
}

static void memory_freed_under_a_peer_ends_the_process(void **state)
{
    crew c;
    desk *d = crew_page(sizeof *d);
    (void)state;
    crew_start(&c, 2, free_too_early, d, "freed while a peer maps it");
    crew_expect(&c, 0, ABORTED);
    crew_raise(&d->used);
    crew_expect(&c, 1, 0);
    crew_end(&c);
    crew_drop_page(d, sizeof *d);
}

static int outlive(crew *c, int rank, void *arg)
{
    desk *d = arg;
    oari_cu_memory memory;
    if (rank == 1)
        return borrow(c, rank, d, &memory);
    OK(lend(c, rank, d, &memory));
    SO(crew_await(&d->closed, 1, CREW_PATIENCE_MS));
    OK(cu.MemFree(memory));
    return 0;
}

static void memory_of_a_peer_that_is_gone_may_be_freed(void **state)
{
    crew c;
    desk *d = crew_page(sizeof *d);
    (void)state;
    crew_start(&c, 2, outlive, d, "a peer ends with memory open");
    crew_expect(&c, 1, 0);
    crew_raise(&d->closed);
    crew_expect(&c, 0, 0);
    crew_end(&c);
    crew_drop_page(d, sizeof *d);
}

static int open_late(crew *c, int rank, void *arg)
{
    desk *d = arg;
    oari_cu_memory memory;
    if (rank == 0) {
        OK(lend(c, rank, d, &memory));
        OK(cu.MemFree(memory));
        make_memory(COUNT); /* may have the same descriptor */
        crew_raise(&d->used);
        SO(crew_await(&d->closed, 1, CREW_PATIENCE_MS));
        return 0;
    }
    OK(begin());
    SO(crew_await(&d->used, 1, CREW_PATIENCE_MS));
    IS(OARI_CU_INVALID_VALUE, cu.IpcOpenMemHandle(&memory, d->handle, LAZY));
    crew_raise(&d->closed);
    return 0;
}

static void a_handle_of_freed_memory_is_refused(void **state)
{
    crew c;
    desk *d = crew_page(sizeof *d);
    (void)state;
    crew_start(&c, 2, open_late, d, "a handle that is stale");
    crew_expect(&c, 0, 0);
    crew_expect(&c, 1, 0);
    crew_end(&c);
    crew_drop_page(d, sizeof *d);
}

/* ---- values -------------------------------------------------------------- */

/* Two processes take turns on a page that both have registered. */
static int take_turns(crew *c, int rank, void *arg)
{
    desk *d = arg;
    oari_cu_memory mine, other;
    oari_cu_stream stream;
    OK(begin());
    OK(cu.MemHostRegister(d, sizeof *d, 2));
    IS(712, cu.MemHostRegister(d, sizeof *d, 2));
    OK(cu.MemHostGetDevicePointer(&mine, &d->word[rank], 0));
    OK(cu.MemHostGetDevicePointer(&other, &d->word[1 - rank], 0));
    stream = make_stream(NONBLOCKING);
    for (uint32_t turn = 1; turn <= 20; turn++) {
        if (rank == 1)
            OK(cu.StreamWaitValue32(stream, other, turn, GEQ));
        OK(cu.StreamWriteValue32(stream, mine, turn, 0));
        if (rank == 0)
            OK(cu.StreamWaitValue32(stream, other, turn, EQ));
    }
    OK(cu.StreamSynchronize(stream));
    SO(d->word[0] == 20 && d->word[1] == 20);
    OK(cu.MemHostUnregister(d));
    IS(713, cu.MemHostUnregister(d));
    return 0;
}

static void streams_of_two_processes_take_turns(void **state)
{
    crew c;
    desk *d = crew_page(sizeof *d);
    (void)state;
    crew_start(&c, 2, take_turns, d, "values on a registered page");
    crew_expect(&c, 0, 0);
    crew_expect(&c, 1, 0);
    crew_end(&c);
    crew_drop_page(d, sizeof *d);
}

static int run_a_wait_compares_as_it_is_told(crew *c, int rank, void *arg)
{
    oari_cu_stream stream;
    oari_cu_memory memory;
    uint32_t word = 0xfffffffe;
    OK(begin());
    stream = make_stream(NONBLOCKING);
    memory = make_memory(8);
    OK(cu.MemcpyHtoDAsync(memory, &word, 4, stream));
    OK(cu.StreamWaitValue32(stream, memory, 0xfffffffd, GEQ));
    OK(cu.StreamWaitValue32(stream, memory, 0xfffffffe, EQ));
    OK(cu.StreamWaitValue32(stream, memory, 2, AND));
    OK(cu.StreamSynchronize(stream));
    OK(cu.StreamWaitValue32(stream, memory, 1, AND));
    IS(OARI_CU_NOT_READY, cu.StreamQuery(stream));
    IS(OARI_CU_INVALID_VALUE, cu.StreamWaitValue32(stream, memory + 1, 2, GEQ));
    IS(OARI_CU_INVALID_VALUE, cu.StreamWriteValue32(NULL, memory + 8, 2, 0));
    OK(cu.StreamWriteValue32(NULL, memory, 1, 0)); /* on another stream */
    OK(cu.StreamWaitValue32(stream, memory, 0xffffffff, GEQ)); /* wraps */
    OK(cu.StreamSynchronize(stream));
    return 0;
}
IN_A_PROCESS(a_wait_compares_as_it_is_told)

static int run_a_wait_blocks_only_its_stream(crew *c, int rank, void *arg)
{
    oari_cu_stream stream;
    gate g;
    OK(begin());
    g = make_gate();
    stream = make_stream(NONBLOCKING);
    shut(&g, stream); /* for ever */
    SO(first_byte(make_memory(1)) == 0xa5);
    IS(OARI_CU_NOT_READY, cu.StreamQuery(stream));
    return 0;
}
IN_A_PROCESS(a_wait_blocks_only_its_stream)

/* ---- kernels ------------------------------------------------------------- */

static oari_cu_function find_kernel(const char *name)
{
    oari_cu_module module = NULL;
    oari_cu_function function = NULL;
    cu.ModuleLoadData(&module, "standin probe\n");
    cu.ModuleGetFunction(&function, module, name);
    return function;
}

static int start(const char *name, void **parameters, oari_cu_stream stream)
{
    return cu.LaunchKernel(find_kernel(name), 3, 1, 1, 32, 1, 1, 0, stream,
                           parameters, NULL);
}

static int run_kernels_reach_device_memory(crew *c, int rank, void *arg)
{
    float values[COUNT], back[COUNT], factor = 3, shift = 1;
    struct {
        oari_cu_memory from, to;
    } pair;
    unsigned count = COUNT;
    unsigned long long wide = COUNT;
    oari_cu_memory from, to;
    OK(begin());
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)i;
    from = make_memory(sizeof values);
    to = make_memory(sizeof values);
    OK(cu.MemcpyHtoDAsync(from, values, sizeof values, NULL));
    OK(start("probe_scale", (void *[]){ &to, &from, &factor, &shift, &count },
             NULL));
    factor = NAN; /* the launch has its own */
    pair.from = to;
    pair.to = from;
    OK(start("probe_copy", (void *[]){ &pair, &wide }, NULL));
    OK(cu.MemcpyDtoHAsync(back, from, sizeof back, NULL));
    for (int i = 0; i < COUNT; i++)
        SO(back[i] == 3.0f * (float)i + 1.0f);
    return 0;
}
IN_A_PROCESS(kernels_reach_device_memory)

static int run_kernels_are_found_by_file_and_name(crew *c, int rank, void *arg)
{
    oari_cu_module module;
    oari_cu_function function;
    OK(begin());
    SO(find_kernel("probe_fill_int") && find_kernel("probe_fill_double"));
    OK(cu.ModuleLoadData(&module, "standin elsewhere\n"));
    IS(MISSING, cu.ModuleGetFunction(&function, module, "probe_scale"));
    OK(cu.ModuleUnload(module));
    IS(BAD_HANDLE, cu.ModuleGetFunction(&function, module, "probe_scale"));
    IS(BAD_HANDLE,
       cu.LaunchKernel(&function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    IS(OARI_CU_INVALID_VALUE, cu.LaunchKernel(find_kernel("probe_scale"), 0, 1,
                                              1, 1, 1, 1, 0, NULL, NULL, NULL));
    IS(OARI_CU_INVALID_VALUE,
       cu.LaunchKernel(find_kernel("probe_scale"), 1, 1, 1, 1025, 1, 1, 0, NULL,
                       NULL, NULL));
    return 0;
}
IN_A_PROCESS(kernels_are_found_by_file_and_name)

static int launch_on_host_memory(crew *c, int rank, void *arg)
{
    int plain = 0, value = 1;
    int *at = &plain;
    OK(begin());
    return start("probe_fill_int", (void *[]){ &at, &value }, NULL);
}

static int write_past_the_end(crew *c, int rank, void *arg)
{
    oari_cu_memory memory;
    int value = 1;
    OK(begin());
    memory = make_memory(sizeof(int) * (3 * 32 - 1));
    OK(start("probe_fill_int", (void *[]){ &memory, &value }, NULL));
    return cu.MemFree(memory);
}

static int launch_without_access(crew *c, int rank, void *arg)
{
    oari_cu_context second;
    oari_cu_memory memory;
    int value = 1;
    setenv("STANDIN_DEVICES", "2", 1);
    OK(begin());
    OK(cu.DevicePrimaryCtxRetain(&second, 1));
    OK(cu.CtxPushCurrent(second));
    memory = make_memory(sizeof(int) * 3 * 32);
    OK(cu.CtxPopCurrent(NULL));
    if (arg)
        OK(cu.CtxEnablePeerAccess(second, 0));
    OK(start("probe_fill_int", (void *[]){ &memory, &value }, NULL));
    return cu.StreamSynchronize(NULL);
}

static int launch_with_access(crew *c, int rank, void *arg)
{
    return launch_without_access(c, rank, c);
}

static void what_a_gpu_would_suffer_in_silence_ends_the_process(void **state)
{
    (void)state;
    expect(launch_on_host_memory, ABORTED);
    expect(write_past_the_end, ABORTED);
    expect(launch_without_access, ABORTED);
    expect(launch_with_access, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_processes_share_device_memory),
        cmocka_unit_test(memory_freed_under_a_peer_ends_the_process),
        cmocka_unit_test(memory_of_a_peer_that_is_gone_may_be_freed),
        cmocka_unit_test(a_handle_of_freed_memory_is_refused),
        cmocka_unit_test(streams_of_two_processes_take_turns),
        cmocka_unit_test(a_wait_compares_as_it_is_told),
        cmocka_unit_test(a_wait_blocks_only_its_stream),
        cmocka_unit_test(kernels_reach_device_memory),
        cmocka_unit_test(kernels_are_found_by_file_and_name),
        cmocka_unit_test(what_a_gpu_would_suffer_in_silence_ends_the_process),
    };
    return cmocka_run_group_tests_name("standin_share", tests, NULL, NULL);
}
