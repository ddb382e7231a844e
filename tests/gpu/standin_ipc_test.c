/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for the CUDA driver: memory of other processes, values that
 * streams wait for and write, kernels. */
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu/standin_driver.h"

enum { COUNT = 1003 };

typedef struct share_page {
    shared_flag told, opened, used, closed;
    oari_cu_ipc handle;
    uint32_t word[2];
} share_page;

/* ---- IPC ----------------------------------------------------------------- */

static int lend(test_job *c, int rank, share_page *d, oari_cu_memory *memory)
{
    RANK_ZERO(begin());
    *memory = make_memory(COUNT);
    RANK_ZERO(cu.MemsetD8Async(*memory, 17, COUNT, NULL));
    RANK_ZERO(cu.StreamSynchronize(NULL));
    RANK_IS(OARI_CU_INVALID_VALUE, cu.IpcGetMemHandle(&d->handle, *memory + 8));
    RANK_ZERO(cu.IpcGetMemHandle(&d->handle, *memory));
    shared_flag_raise(&d->told);
    return 0;
}

static int borrow(test_job *c, int rank, share_page *d, oari_cu_memory *memory)
{
    RANK_ZERO(begin());
    RANK_CHECK(shared_flag_await(&d->told, 1, TEST_JOB_LIMIT_MS));
    RANK_IS(OARI_CU_INVALID_VALUE, cu.IpcOpenMemHandle(memory, d->handle, 0));
    RANK_ZERO(cu.IpcOpenMemHandle(memory, d->handle, LAZY));
    shared_flag_raise(&d->opened);
    return 0;
}

static int owner_of_shared_memory(test_job *c, int rank, share_page *d)
{
    oari_cu_memory memory, again;
    RANK_ZERO(lend(c, rank, d, &memory));
    RANK_IS(NO_CONTEXT, cu.IpcOpenMemHandle(&again, d->handle, LAZY));
    RANK_CHECK(shared_flag_await(&d->used, 1, TEST_JOB_LIMIT_MS));
    RANK_CHECK(first_byte(memory + 5) == 99 && first_byte(memory + 4) == 17);
    RANK_CHECK(shared_flag_await(&d->closed, 1, TEST_JOB_LIMIT_MS));
    RANK_ZERO(cu.MemFree(memory));
    return 0;
}

static int peer_of_shared_memory(test_job *c, int rank, share_page *d)
{
    oari_cu_memory memory, again, base;
    size_t bytes;
    RANK_ZERO(borrow(c, rank, d, &memory));
    RANK_ZERO(cu.IpcOpenMemHandle(&again, d->handle, LAZY));
    RANK_CHECK(again == memory);
    RANK_ZERO(cu.MemGetAddressRange(&base, &bytes, memory + 7));
    RANK_CHECK(base == memory && bytes == COUNT);
    RANK_CHECK(first_byte(memory + COUNT - 1) == 17);
    RANK_ZERO(cu.MemsetD8Async(memory + 5, 99, 1, NULL));
    RANK_ZERO(cu.StreamSynchronize(NULL));
    shared_flag_raise(&d->used);
    RANK_IS(OARI_CU_INVALID_VALUE, cu.MemFree(memory));
    RANK_ZERO(cu.IpcCloseMemHandle(memory));
    RANK_CHECK(first_byte(memory) == 17); /* once more opened than closed */
    RANK_ZERO(cu.IpcCloseMemHandle(memory));
    RANK_IS(OARI_CU_INVALID_VALUE, cu.IpcCloseMemHandle(memory));
    shared_flag_raise(&d->closed);
    return 0;
}

static int share(test_job *c, int rank, void *arg)
{
    return rank == 0 ? owner_of_shared_memory(c, rank, arg)
                     : peer_of_shared_memory(c, rank, arg);
}

static void two_processes_share_device_memory(void **state)
{
    test_job c;
    share_page *d = shared_page(sizeof *d);
    (void)state;
    test_job_start(&c, 2, share, d, "memory through IPC");
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, 0);
    test_job_end(&c);
    shared_page_free(d, sizeof *d);
}

static int free_too_early(test_job *c, int rank, void *arg)
{
    share_page *d = arg;
    oari_cu_memory memory;
    if (rank == 1) {
        RANK_ZERO(borrow(c, rank, d, &memory));
        RANK_CHECK(shared_flag_await(&d->used, 1, TEST_JOB_LIMIT_MS));
        return 0;
    }
    signal(SIGABRT, SIG_DFL);
    RANK_ZERO(lend(c, rank, d, &memory));
    RANK_CHECK(shared_flag_await(&d->opened, 1, TEST_JOB_LIMIT_MS));
    return cu.MemFree(memory);
}

static void memory_freed_under_a_peer_ends_the_process(void **state)
{
    test_job c;
    share_page *d = shared_page(sizeof *d);
    (void)state;
    test_job_start(&c, 2, free_too_early, d, "freed while a peer maps it");
    test_job_expect(&c, 0, ABORTED);
    shared_flag_raise(&d->used);
    test_job_expect(&c, 1, 0);
    test_job_end(&c);
    shared_page_free(d, sizeof *d);
}

static int outlive(test_job *c, int rank, void *arg)
{
    share_page *d = arg;
    oari_cu_memory memory;
    if (rank == 1)
        return borrow(c, rank, d, &memory);
    RANK_ZERO(lend(c, rank, d, &memory));
    RANK_CHECK(shared_flag_await(&d->closed, 1, TEST_JOB_LIMIT_MS));
    RANK_ZERO(cu.MemFree(memory));
    return 0;
}

static void memory_of_a_peer_that_is_gone_may_be_freed(void **state)
{
    test_job c;
    share_page *d = shared_page(sizeof *d);
    (void)state;
    test_job_start(&c, 2, outlive, d, "a peer ends with memory open");
    test_job_expect(&c, 1, 0);
    shared_flag_raise(&d->closed);
    test_job_expect(&c, 0, 0);
    test_job_end(&c);
    shared_page_free(d, sizeof *d);
}

static int open_late(test_job *c, int rank, void *arg)
{
    share_page *d = arg;
    oari_cu_memory memory;
    if (rank == 0) {
        RANK_ZERO(lend(c, rank, d, &memory));
        RANK_ZERO(cu.MemFree(memory));
        make_memory(COUNT); /* may have the same descriptor */
        shared_flag_raise(&d->used);
        RANK_CHECK(shared_flag_await(&d->closed, 1, TEST_JOB_LIMIT_MS));
        return 0;
    }
    RANK_ZERO(begin());
    RANK_CHECK(shared_flag_await(&d->used, 1, TEST_JOB_LIMIT_MS));
    RANK_IS(OARI_CU_INVALID_VALUE,
            cu.IpcOpenMemHandle(&memory, d->handle, LAZY));
    shared_flag_raise(&d->closed);
    return 0;
}

static void a_handle_of_freed_memory_is_refused(void **state)
{
    test_job c;
    share_page *d = shared_page(sizeof *d);
    (void)state;
    test_job_start(&c, 2, open_late, d, "a handle that is stale");
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, 0);
    test_job_end(&c);
    shared_page_free(d, sizeof *d);
}

/* ---- values -------------------------------------------------------------- */

/* Two processes take turns on a page that both have registered. */
static int take_turns(test_job *c, int rank, void *arg)
{
    share_page *d = arg;
    oari_cu_memory mine, other;
    oari_cu_stream stream;
    RANK_ZERO(begin());
    RANK_ZERO(cu.MemHostRegister(d, sizeof *d, 2));
    RANK_IS(712, cu.MemHostRegister(d, sizeof *d, 2));
    RANK_ZERO(cu.MemHostGetDevicePointer(&mine, &d->word[rank], 0));
    RANK_ZERO(cu.MemHostGetDevicePointer(&other, &d->word[1 - rank], 0));
    stream = make_stream(NONBLOCKING);
    for (uint32_t turn = 1; turn <= 20; turn++) {
        if (rank == 1)
            RANK_ZERO(cu.StreamWaitValue32(stream, other, turn, GEQ));
        RANK_ZERO(cu.StreamWriteValue32(stream, mine, turn, 0));
        if (rank == 0)
            RANK_ZERO(cu.StreamWaitValue32(stream, other, turn, EQ));
    }
    RANK_ZERO(cu.StreamSynchronize(stream));
    RANK_CHECK(d->word[0] == 20 && d->word[1] == 20);
    RANK_ZERO(cu.MemHostUnregister(d));
    RANK_IS(713, cu.MemHostUnregister(d));
    return 0;
}

static void streams_of_two_processes_take_turns(void **state)
{
    test_job c;
    share_page *d = shared_page(sizeof *d);
    (void)state;
    test_job_start(&c, 2, take_turns, d, "values on a registered page");
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, 0);
    test_job_end(&c);
    shared_page_free(d, sizeof *d);
}

static int run_a_wait_compares_as_it_is_told(test_job *c, int rank, void *arg)
{
    oari_cu_stream stream;
    oari_cu_memory memory;
    uint32_t word = 0xfffffffe;
    RANK_ZERO(begin());
    stream = make_stream(NONBLOCKING);
    memory = make_memory(8);
    RANK_ZERO(cu.MemcpyHtoDAsync(memory, &word, 4, stream));
    RANK_ZERO(cu.StreamWaitValue32(stream, memory, 0xfffffffd, GEQ));
    RANK_ZERO(cu.StreamWaitValue32(stream, memory, 0xfffffffe, EQ));
    RANK_ZERO(cu.StreamWaitValue32(stream, memory, 2, AND));
    RANK_ZERO(cu.StreamSynchronize(stream));
    RANK_ZERO(cu.StreamWaitValue32(stream, memory, 1, AND));
    RANK_IS(OARI_CU_NOT_READY, cu.StreamQuery(stream));
    RANK_IS(OARI_CU_INVALID_VALUE,
            cu.StreamWaitValue32(stream, memory + 1, 2, GEQ));
    RANK_IS(OARI_CU_INVALID_VALUE,
            cu.StreamWriteValue32(NULL, memory + 8, 2, 0));
    RANK_ZERO(
        cu.StreamWriteValue32(NULL, memory, 1, 0)); /* on another stream */
    RANK_ZERO(
        cu.StreamWaitValue32(stream, memory, 0xffffffff, GEQ)); /* wraps */
    RANK_ZERO(cu.StreamSynchronize(stream));
    return 0;
}
IN_A_PROCESS(a_wait_compares_as_it_is_told)

static int run_a_wait_blocks_only_its_stream(test_job *c, int rank, void *arg)
{
    oari_cu_stream stream;
    driver_gate g;
    RANK_ZERO(begin());
    g = make_gate();
    stream = make_stream(NONBLOCKING);
    shut(&g, stream); /* for ever */
    RANK_CHECK(first_byte(make_memory(1)) == 0xa5);
    RANK_IS(OARI_CU_NOT_READY, cu.StreamQuery(stream));
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

static int run_kernels_reach_device_memory(test_job *c, int rank, void *arg)
{
    float values[COUNT], back[COUNT], factor = 3, shift = 1;
    struct {
        oari_cu_memory from, to;
    } pair;
    unsigned count = COUNT;
    unsigned long long wide = COUNT;
    oari_cu_memory from, to;
    RANK_ZERO(begin());
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)i;
    from = make_memory(sizeof values);
    to = make_memory(sizeof values);
    RANK_ZERO(cu.MemcpyHtoDAsync(from, values, sizeof values, NULL));
    RANK_ZERO(start("probe_scale",
                    (void *[]){ &to, &from, &factor, &shift, &count }, NULL));
    factor = NAN; /* the launch has its own */
    pair.from = to;
    pair.to = from;
    RANK_ZERO(start("probe_copy", (void *[]){ &pair, &wide }, NULL));
    RANK_ZERO(cu.MemcpyDtoHAsync(back, from, sizeof back, NULL));
    for (int i = 0; i < COUNT; i++)
        RANK_CHECK(back[i] == 3.0f * (float)i + 1.0f);
    return 0;
}
IN_A_PROCESS(kernels_reach_device_memory)

static int run_kernels_are_found_by_file_and_name(test_job *c, int rank,
                                                  void *arg)
{
    oari_cu_module module;
    oari_cu_function function;
    RANK_ZERO(begin());
    RANK_CHECK(find_kernel("probe_fill_int") &&
               find_kernel("probe_fill_double"));
    RANK_ZERO(cu.ModuleLoadData(&module, "standin elsewhere\n"));
    RANK_IS(MISSING, cu.ModuleGetFunction(&function, module, "probe_scale"));
    RANK_ZERO(cu.ModuleUnload(module));
    RANK_IS(BAD_HANDLE, cu.ModuleGetFunction(&function, module, "probe_scale"));
    RANK_IS(BAD_HANDLE,
            cu.LaunchKernel(&function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    RANK_IS(OARI_CU_INVALID_VALUE,
            cu.LaunchKernel(find_kernel("probe_scale"), 0, 1, 1, 1, 1, 1, 0,
                            NULL, NULL, NULL));
    RANK_IS(OARI_CU_INVALID_VALUE,
            cu.LaunchKernel(find_kernel("probe_scale"), 1, 1, 1, 1025, 1, 1, 0,
                            NULL, NULL, NULL));
    return 0;
}
IN_A_PROCESS(kernels_are_found_by_file_and_name)

static int launch_on_host_memory(test_job *c, int rank, void *arg)
{
    int plain = 0, value = 1;
    int *at = &plain;
    RANK_ZERO(begin());
    return start("probe_fill_int", (void *[]){ &at, &value }, NULL);
}

static int write_past_the_end(test_job *c, int rank, void *arg)
{
    oari_cu_memory memory;
    int value = 1;
    RANK_ZERO(begin());
    memory = make_memory(sizeof(int) * (3 * 32 - 1));
    RANK_ZERO(start("probe_fill_int", (void *[]){ &memory, &value }, NULL));
    return cu.MemFree(memory);
}

static int launch_without_access(test_job *c, int rank, void *arg)
{
    oari_cu_context second;
    oari_cu_memory memory;
    int value = 1;
    setenv("STANDIN_DEVICES", "2", 1);
    RANK_ZERO(begin());
    RANK_ZERO(cu.DevicePrimaryCtxRetain(&second, 1));
    RANK_ZERO(cu.CtxPushCurrent(second));
    memory = make_memory(sizeof(int) * 3 * 32);
    RANK_ZERO(cu.CtxPopCurrent(NULL));
    if (arg)
        RANK_ZERO(cu.CtxEnablePeerAccess(second, 0));
    RANK_ZERO(start("probe_fill_int", (void *[]){ &memory, &value }, NULL));
    return cu.StreamSynchronize(NULL);
}

static int launch_with_access(test_job *c, int rank, void *arg)
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
