/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of a block on the stand-in: they meet at barriers and in shuffles,
 * share memory, and begin in an order from the seed; a kernel that is wrong
 * about any of it ends the process with a sentence that names kernel, thread
 * and line. The kernels are those of probe_block.cu. */
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu/standin_driver.h"

enum { ROOM = 4096 /* bytes */ };

typedef struct block_launch {
    const char *kernel;
    unsigned blocks, threads, shared_bytes;
    int number; /* the last argument of kernels that take one */
} block_launch;

/* Starts a kernel with (to, from, number), as many of them as it takes, and
 * gives what it wrote. */
static int run_kernel(const block_launch *l, void *to, const void *from)
{
    oari_cu_memory memory = make_memory(ROOM), source = make_memory(ROOM);
    int number = l->number;
    void *parameter[] = { &memory, from ? (void *)&source : &number, &number };
    oari_cu_function function;
    oari_cu_module module;
    int bad = cu.ModuleLoadData(&module, "standin probe_block");

    bad = bad ? bad : cu.ModuleGetFunction(&function, module, l->kernel);
    bad = bad ? bad : cu.MemcpyHtoDAsync(memory, to, ROOM, NULL);
    if (from != NULL)
        bad = bad ? bad : cu.MemcpyHtoDAsync(source, from, ROOM, NULL);
    bad = bad ? bad
              : cu.LaunchKernel(function, l->blocks, 1, 1, l->threads, 1, 1,
                                l->shared_bytes, NULL, parameter, NULL);
    bad = bad ? bad : cu.StreamSynchronize(NULL);
    bad = bad ? bad : cu.MemcpyDtoHAsync(to, memory, ROOM, NULL);
    cu.MemFree(memory);
    cu.MemFree(source);
    return bad;
}

/* ---- right kernels ------------------------------------------------------- */

static int run_blocks_sum_and_reverse(test_job *c, int rank, void *arg)
{
    static float numbers[ROOM / 4], sums[ROOM / 4];
    static int order[ROOM / 4], turned[ROOM / 4];
    const block_launch sum = { "probe_sum", 5, 96, 0, 0 };
    const block_launch reverse = { "probe_reverse", 3, 200, 200 * sizeof(int),
                                   0 };

    RANK_ZERO(begin());
    for (int i = 0; i < ROOM / 4; i++) {
        numbers[i] = (float)(i % 7);
        order[i] = i;
    }
    for (int again = 0; again < 3; again++) {
        RANK_ZERO(run_kernel(&sum, sums, numbers));
        for (int b = 0; b < 5; b++) {
            float wanted = 0;
            for (int i = 0; i < 96; i++)
                wanted += numbers[b * 96 + i];
            RANK_CHECK(sums[b] == wanted);
        }
        RANK_ZERO(run_kernel(&reverse, turned, order));
        for (int i = 0; i < 600; i++)
            RANK_CHECK(turned[i] == i / 200 * 200 + 199 - i % 200);
    }
    return 0;
}
IN_A_PROCESS(blocks_sum_and_reverse)

static int run_lanes_vote_and_shuffle(test_job *c, int rank, void *arg)
{
    static unsigned to[ROOM / 4];
    const block_launch votes = { "probe_votes", 2, 64, 0, 0 };

    RANK_ZERO(begin());
    RANK_ZERO(run_kernel(&votes, to, NULL));
    RANK_CHECK(to[0] == 0xaaaaaaaau && to[1] == 31 * 16);
    RANK_CHECK(to[2] == 1 && to[3] == 0);
    RANK_CHECK(to[4] == 1);   /* lane 1 has nobody 3 below */
    RANK_CHECK(to[5] == 102); /* lane 2 of its 8 */
    RANK_CHECK(to[6] == 1 && to[7] == 8);
    RANK_CHECK(to[8] == 128 && to[9] == 63);
    return 0;
}
IN_A_PROCESS(lanes_vote_and_shuffle)

static int run_lanes_compute_as_one(test_job *c, int rank, void *arg)
{
    static int to[ROOM / 4], from[ROOM / 4];
    const block_launch meet = { "probe_meet", 1, 64, 0, 0 };
    block_launch late = { "probe_late_copy", 1, 40, 40 * sizeof(int), 1 };

    RANK_ZERO(begin());
    RANK_ZERO(run_kernel(&meet, to, NULL));
    for (int i = 0; i < 64; i++)
        RANK_CHECK(to[i] == i + 10 * (i / 32 * 32 + 31 - i % 32));
    for (int i = 0; i < 40; i++)
        from[i] = 3 * i;
    RANK_ZERO(run_kernel(&late, to, from));
    for (int i = 0; i < 40; i++)
        RANK_CHECK(to[i] == 3 * i);
    return 0;
}
IN_A_PROCESS(lanes_compute_as_one)

/* Starts the kernel that notes in which order its threads begin. */
static int note_order(unsigned *order)
{
    static unsigned none[ROOM / 4];
    oari_cu_memory next = make_memory(4), to = make_memory(ROOM);
    void *parameter[] = { &next, &to };
    oari_cu_function function;
    oari_cu_module module;
    int bad = cu.ModuleLoadData(&module, "standin probe_block");

    bad = bad ? bad : cu.ModuleGetFunction(&function, module, "probe_order");
    bad = bad ? bad : cu.MemcpyHtoDAsync(next, none, 4, NULL);
    bad = bad ? bad
              : cu.LaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, NULL,
                                parameter, NULL);
    bad = bad ? bad : cu.MemcpyDtoHAsync(order, to, ROOM, NULL);
    return bad;
}

static int run_each_launch_has_another_order(test_job *c, int rank, void *arg)
{
    static unsigned order[4][ROOM / 4];
    unsigned char seen[ROOM / 4];
    int differ = 0;

    RANK_ZERO(begin());
    for (int l = 0; l < 4; l++) {
        RANK_ZERO(note_order(order[l]));
        memset(seen, 0, sizeof seen);
        for (int i = 0; i < ROOM / 4; i++) {
            RANK_CHECK(order[l][i] < ROOM / 4 && !seen[order[l][i]]);
            seen[order[l][i]] = 1;
        }
        differ += l > 0 && memcmp(order[l], order[0], ROOM) != 0;
    }
    RANK_CHECK(differ > 0);
    return 0;
}
IN_A_PROCESS(each_launch_has_another_order)

static int run_shared_memory_has_limits(test_job *c, int rank, void *arg)
{
    static int to[ROOM / 4], from[ROOM / 4];
    block_launch l = { "probe_reverse", 1, 64, (48 << 10) + 4, 0 };
    oari_cu_function function;
    oari_cu_module module;

    RANK_ZERO(begin());
    RANK_IS(OARI_CU_INVALID_VALUE, run_kernel(&l, to, from));
    RANK_ZERO(cu.ModuleLoadData(&module, "standin probe_block"));
    RANK_ZERO(cu.ModuleGetFunction(&function, module, l.kernel));
    RANK_IS(OARI_CU_INVALID_VALUE,
            cu.FuncSetAttribute(function, OARI_CU_MAX_DYNAMIC_SHARED,
                                (227 << 10) + 1));
    RANK_ZERO(cu.FuncSetAttribute(function, OARI_CU_MAX_DYNAMIC_SHARED,
                                  l.shared_bytes));
    RANK_ZERO(run_kernel(&l, to, from));
    return 0;
}
IN_A_PROCESS(shared_memory_has_limits)

/* ---- faulty kernels ------------------------------------------------------ */

static int kernels_are_watched(void)
{
    void *library = dlopen(getenv("OARSONG_CUDA_LIBRARY"), RTLD_NOW);
    int (*are)(void) = NULL;

    if (library != NULL)
        *(void **)&are = dlsym(library, "standin_looks");
    return are != NULL && are();
}

static int said; /* file that takes what the process says at its end */

static int run_faulty(test_job *c, int rank, void *arg)
{
    static int to[ROOM / 4];
    const block_launch *l = arg;
    const void *host = to;
    int takes_two = strcmp(l->kernel, "probe_missing_barrier") == 0;

    RANK_ZERO(begin());
    memcpy(to, &host, sizeof host); /* for the kernel that follows it */
    signal(SIGABRT, SIG_DFL);
    dup2(said, STDERR_FILENO);
    return run_kernel(l, to, takes_two ? to : NULL);
}

/* The kernel ends the process, and what is said has all these texts. */
static void expect_fault(block_launch l, const char *const *texts)
{
    char text[1000] = "";
    test_job c;
    ssize_t got;

    said = memfd_create("said", 0);
    test_job_start(&c, 1, run_faulty, &l, "%s", l.kernel);
    test_job_expect(&c, 0, ABORTED);
    test_job_end(&c);
    got = pread(said, text, sizeof text - 1, 0);
    close(said);
    assert_true(got > 0);
    for (int i = 0; texts[i] != NULL; i++)
        if (strstr(text, texts[i]) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", text, texts[i]);
}

#define FAULT(...) ((block_launch){ __VA_ARGS__ })
#define TEXTS(...) ((const char *const[]){ __VA_ARGS__, NULL })

static void barriers_have_to_be_reached_by_all(void **state)
{
    (void)state;
    expect_fault(FAULT("probe_divergent_barrier", 1, 64, 0, 0),
                 TEXTS("kernel probe_divergent_barrier, block (0,0,0)",
                       "__syncthreads at probe_block.cu:", "is not there",
                       "it waits in __syncthreads at probe_block.cu:"));
    expect_fault(FAULT("probe_early_end", 1, 64, 0, 63),
                 TEXTS("kernel probe_early_end", "thread (63,0,0) is not there",
                       "it has ended"));
}

static void shuffles_need_the_lanes_of_their_mask(void **state)
{
    (void)state;
    expect_fault(FAULT("probe_missing_lanes", 1, 32, 0, 31),
                 TEXTS("kernel probe_missing_lanes",
                       "__shfl_down_sync at probe_block.cu:",
                       "thread (31,0,0) is not there: it has ended"));
    expect_fault(FAULT("probe_not_in_mask", 1, 32, 0, 0),
                 TEXTS("its own lane is not in the mask"));
}

/* Where the compiler of the kernels can show every access. */
static void accesses_are_looked_at(void **state)
{
    (void)state;
    if (!kernels_are_watched())
        skip();
    expect_fault(FAULT("probe_unwritten", 1, 32, 32 * 4, 0),
                 TEXTS("kernel probe_unwritten, block (0,0,0), thread (3,0,0), "
                       "a read at probe_block.cu:",
                       "no thread has written this shared memory"));
    expect_fault(FAULT("probe_missing_barrier", 1, 64, 0, 0),
                 TEXTS("kernel probe_missing_barrier",
                       "a read at probe_block.cu:",
                       "no thread has written this shared memory"));
    expect_fault(FAULT("probe_host_memory", 1, 32, 0, 0),
                 TEXTS("kernel probe_host_memory, block (0,0,0), thread "
                       "(2,0,0), a read at probe_block.cu:",
                       "memory of the host"));
}

static void the_end_of_shared_memory_is_kept(void **state)
{
    (void)state;
    expect_fault(FAULT("probe_behind_the_end", 1, 32, 31 * 4, 0),
                 TEXTS("kernel probe_behind_the_end",
                       "behind its 124 bytes of dynamic shared"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_sum_and_reverse),
        cmocka_unit_test(lanes_vote_and_shuffle),
        cmocka_unit_test(lanes_compute_as_one),
        cmocka_unit_test(each_launch_has_another_order),
        cmocka_unit_test(shared_memory_has_limits),
        cmocka_unit_test(barriers_have_to_be_reached_by_all),
        cmocka_unit_test(shuffles_need_the_lanes_of_their_mask),
        cmocka_unit_test(accesses_are_looked_at),
        cmocka_unit_test(the_end_of_shared_memory_is_kept),
    };
    return cmocka_run_group_tests_name("standin_block", tests, NULL, NULL);
}
