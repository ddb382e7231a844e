/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for NCCL refuses, waits and fails as the real one does. */
#include "gpu/standin_nccl.h"

/* ---- waiting ------------------------------------------------------------- */

/* Lets the streams of this process do a lot. */
static void let_time_pass(void)
{
    oari_cu_stream other = make_stream(NONBLOCKING);
    oari_cu_memory memory = make_memory(1);
    for (int i = 0; i < 100; i++)
        cu.MemsetD8Async(memory, 1, 1, other);
    cu.StreamSynchronize(other);
    cu.StreamDestroy(other);
}

static int send_without_a_group(test_job *c, int rank, void *arg)
{
    nccl_context *d = arg;
    nccl_handle comm;
    oari_cu_memory in, out;
    RANK_ZERO(join(c, rank, d, &comm));
    in = make_values(rank, 0, SMALL);
    out = make_memory(4 * SMALL);
    RANK_ZERO(nc.Send(at(in, 0), SMALL, F32, 1 - rank, comm, stream));
    RANK_ZERO(nc.Recv(at(out, 0), SMALL, F32, 1 - rank, comm, stream));
    let_time_pass();
    RANK_IS(OARI_CU_NOT_READY, cu.StreamQuery(stream));
    shared_flag_raise(&d->ready);
    RANK_CHECK(shared_flag_await(&d->ready, 2, TEST_JOB_LIMIT_MS));
    RANK_ZERO(nc.CommAbort(comm));
    RANK_ZERO(cu.StreamSynchronize(stream));
    RANK_CHECK(first_byte(out) == 0xa5);
    return 0;
}

static void messages_without_a_group_wait_for_each_other(void **state)
{
    (void)state;
    run_ranks(2, send_without_a_group, "a missing group");
}

/* ---- without blocking ---------------------------------------------------- */

static int go_without_blocking(test_job *c, int rank, void *arg)
{
    nccl_context *d = arg;
    nccl_options config = not_blocking();
    nccl_handle comm;
    oari_cu_memory memory;
    float *seen;
    int ranks, later = 0;
    RANK_ZERO(come(c, rank, d, rank));
    if (rank == 1) /* rank 0 asks while it has to wait for this */
        RANK_CHECK(shared_flag_await(&d->ready, 1, TEST_JOB_LIMIT_MS));
    RANK_IS(IN_PROGRESS,
            nc.CommInitRankConfig(&comm, d->ranks, d->id, rank, &config));
    if (rank == 0) {
        RANK_IS(ARGUMENT, nc.CommCount(comm, &ranks));
        RANK_CHECK(strstr(nc.GetLastError(NULL), "before the previous"));
        shared_flag_raise(&d->ready);
    }
    RANK_ZERO(settle(comm));
    memory = make_values(rank, 0, SMALL);
    for (int i = 0; i < 4; i++) {
        int result = nc.Broadcast(at(memory, 0), at(memory, 0), SMALL, F32, 1,
                                  comm, stream);
        RANK_CHECK(result == 0 || result == IN_PROGRESS);
        later += result == IN_PROGRESS;
        RANK_ZERO(settle(comm));
    }
    RANK_CHECK(later == 2);
    seen = fetch(memory, SMALL);
    for (size_t i = 0; i < SMALL; i++)
        RANK_CHECK(seen[i] == value(1, i));
    free(seen);
    RANK_IS(IN_PROGRESS, nc.CommFinalize(comm));
    RANK_ZERO(settle(comm));
    RANK_ZERO(nc.CommDestroy(comm));
    return 0;
}

static void calls_that_do_not_block_finish_later(void **state)
{
    (void)state;
    run_ranks(2, go_without_blocking, "not blocking");
}

static int abort_while_it_begins(test_job *c, int rank, void *arg)
{
    nccl_context *d = arg;
    nccl_options config = not_blocking();
    nccl_handle comm;
    RANK_ZERO(come(c, rank, d, rank));
    RANK_IS(IN_PROGRESS, nc.CommInitRankConfig(&comm, 3, d->id, rank, &config));
    RANK_ZERO(nc.CommAbort(comm)); /* the third never comes */
    return 0;
}

static void a_communicator_that_begins_can_be_aborted(void **state)
{
    (void)state;
    run_ranks(2, abort_while_it_begins, "abort while it begins");
}

/* ---- refusals and failures ----------------------------------------------- */

static int share_a_gpu(test_job *c, int rank, void *arg)
{
    nccl_context *d = arg;
    nccl_handle comm;
    RANK_ZERO(come(c, rank, d, 2));
    RANK_IS(USAGE, nc.CommInitRank(&comm, d->ranks, d->id, rank));
    RANK_CHECK(strstr(nc.GetLastError(NULL), "Duplicate GPU"));
    return 0;
}

static int share_a_gpu_by_leave(test_job *c, int rank, void *arg)
{
    nccl_context *d = arg;
    nccl_handle comm;
    setenv("STANDIN_NCCL_SHARE", "1", 1);
    RANK_ZERO(come(c, rank, d, 2));
    RANK_ZERO(nc.CommInitRank(&comm, d->ranks, d->id, rank));
    RANK_ZERO(reduce_all(c, rank, d, comm));
    return 0;
}

static void two_ranks_on_one_gpu_are_refused(void **state)
{
    (void)state;
    run_ranks(3, share_a_gpu, "one GPU");
    run_ranks(2, share_a_gpu_by_leave, "one GPU, by leave");
}

static int fail_as_told(test_job *c, int rank, void *arg)
{
    nccl_context *d = arg;
    nccl_handle comm;
    RANK_ZERO(join(c, rank, d, &comm));
    setenv("STANDIN_NCCL_FAIL", "AllReduce:42", 1);
    RANK_IS(42, nc.AllReduce(NULL, NULL, 1, F32, SUM, comm, stream));
    RANK_CHECK(strcmp(nc.GetErrorString(42), "unknown result code") == 0);
    RANK_ZERO(nc.GroupStart());
    RANK_IS(42, nc.AllReduce(NULL, NULL, 1, F32, SUM, comm, stream));
    RANK_IS(42, nc.GroupEnd());
    unsetenv("STANDIN_NCCL_FAIL");
    RANK_ZERO(reduce_all(c, rank, d, comm));
    return 0;
}

static void a_function_fails_when_it_is_told_to(void **state)
{
    (void)state;
    run_ranks(2, fail_as_told, "told to fail");
}

/* The last rank ends before it calls what the others call. */
static int lose_a_rank(test_job *c, int rank, void *arg)
{
    nccl_context *d = arg;
    nccl_handle comm;
    oari_cu_memory memory;
    int result = 0, notice = getenv("STANDIN_NCCL_NOTICE") != NULL;
    RANK_ZERO(join(c, rank, d, &comm));
    if (rank == d->ranks - 1)
        _exit(0);
    memory = make_values(rank, 0, SMALL);
    RANK_ZERO(nc.AllReduce(at(memory, 0), at(memory, 0), SMALL, F32, SUM, comm,
                           stream));
    while (notice && result == 0)
        RANK_ZERO(nc.CommGetAsyncError(comm, &result));
    RANK_CHECK(result == (notice ? REMOTE : 0));
    let_time_pass();
    RANK_IS(OARI_CU_NOT_READY, cu.StreamQuery(stream));
    RANK_ZERO(nc.CommAbort(comm));
    RANK_ZERO(cu.StreamSynchronize(stream));
    return 0;
}

static void a_lost_rank_is_waited_for_until_abort(void **state)
{
    (void)state;
    run_ranks(3, lose_a_rank, "a lost rank");
    setenv("STANDIN_NCCL_NOTICE", "1", 1);
    run_ranks(3, lose_a_rank, "a lost rank that is noticed");
    unsetenv("STANDIN_NCCL_NOTICE");
}

static int disagree(test_job *c, int rank, void *arg)
{
    nccl_context *d = arg;
    nccl_handle comm;
    oari_cu_memory memory;
    RANK_ZERO(join(c, rank, d, &comm));
    memory = make_values(rank, 0, SMALL + 1);
    RANK_ZERO(nc.AllReduce(at(memory, 0), at(memory, 0), (size_t)(SMALL + rank),
                           F32, SUM, comm, stream));
    let_time_pass();
    RANK_IS(OARI_CU_NOT_READY, cu.StreamQuery(stream));
    shared_flag_raise(&d->ready);
    RANK_CHECK(shared_flag_await(&d->ready, 2, TEST_JOB_LIMIT_MS));
    RANK_ZERO(nc.CommAbort(comm));
    RANK_ZERO(cu.StreamSynchronize(stream));
    return 0;
}

static void ranks_that_disagree_wait_for_ever(void **state)
{
    (void)state;
    run_ranks(2, disagree, "two counts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_without_a_group_wait_for_each_other),
        cmocka_unit_test(calls_that_do_not_block_finish_later),
        cmocka_unit_test(a_communicator_that_begins_can_be_aborted),
        cmocka_unit_test(two_ranks_on_one_gpu_are_refused),
        cmocka_unit_test(a_function_fails_when_it_is_told_to),
        cmocka_unit_test(a_lost_rank_is_waited_for_until_abort),
        cmocka_unit_test(ranks_that_disagree_wait_for_ever),
    };
    return cmocka_run_group_tests_name("standin_nccl_fault", tests, NULL, NULL);
}
