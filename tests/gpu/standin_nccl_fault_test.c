/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for NCCL refuses, waits and fails as the real one does. */
#include "gpu/nccl.h"

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

static int send_without_a_group(crew *c, int rank, void *arg)
{
    desk *d = arg;
    nccl_comm comm;
    oari_cu_memory in, out;
    OK(join(c, rank, d, &comm));
    in = make_values(rank, 0, SMALL);
    out = make_memory(4 * SMALL);
    OK(nc.Send(at(in, 0), SMALL, F32, 1 - rank, comm, stream));
    OK(nc.Recv(at(out, 0), SMALL, F32, 1 - rank, comm, stream));
    let_time_pass();
    IS(OARI_CU_NOT_READY, cu.StreamQuery(stream));
    crew_raise(&d->ready);
    SO(crew_await(&d->ready, 2, CREW_PATIENCE_MS));
    OK(nc.CommAbort(comm));
    OK(cu.StreamSynchronize(stream));
    SO(first_byte(out) == 0xa5);
    return 0;
}

static void messages_without_a_group_wait_for_each_other(void **state)
{
    (void)state;
    run_ranks(2, send_without_a_group, "a missing group");
}

/* ---- without blocking ---------------------------------------------------- */

static int go_without_blocking(crew *c, int rank, void *arg)
{
    desk *d = arg;
    nccl_config config = not_blocking();
    nccl_comm comm;
    oari_cu_memory memory;
    float *seen;
    int ranks, later = 0;
    OK(come(c, rank, d, rank));
    if (rank == 1) /* rank 0 asks while it has to wait for this */
        SO(crew_await(&d->ready, 1, CREW_PATIENCE_MS));
    IS(IN_PROGRESS,
       nc.CommInitRankConfig(&comm, d->ranks, d->id, rank, &config));
    if (rank == 0) {
        IS(ARGUMENT, nc.CommCount(comm, &ranks));
        SO(strstr(nc.GetLastError(NULL), "before the previous"));
        crew_raise(&d->ready);
    }
    OK(settle(comm));
    memory = make_values(rank, 0, SMALL);
    for (int i = 0; i < 4; i++) {
        int result = nc.Broadcast(at(memory, 0), at(memory, 0), SMALL, F32, 1,
                                  comm, stream);
        SO(result == 0 || result == IN_PROGRESS);
        later += result == IN_PROGRESS;
        OK(settle(comm));
    }
    SO(later == 2);
    seen = fetch(memory, SMALL);
    for (size_t i = 0; i < SMALL; i++)
        SO(seen[i] == value(1, i));
    free(seen);
    IS(IN_PROGRESS, nc.CommFinalize(comm));
    OK(settle(comm));
    OK(nc.CommDestroy(comm));
    return 0;
}

static void calls_that_do_not_block_finish_later(void **state)
{
    (void)state;
    run_ranks(2, go_without_blocking, "not blocking");
}

static int abort_while_it_begins(crew *c, int rank, void *arg)
{
    desk *d = arg;
    nccl_config config = not_blocking();
    nccl_comm comm;
    OK(come(c, rank, d, rank));
    IS(IN_PROGRESS, nc.CommInitRankConfig(&comm, 3, d->id, rank, &config));
    OK(nc.CommAbort(comm)); /* the third never comes */
    return 0;
}

static void a_communicator_that_begins_can_be_aborted(void **state)
{
    (void)state;
    run_ranks(2, abort_while_it_begins, "abort while it begins");
}

/* ---- refusals and failures ----------------------------------------------- */

static int share_a_gpu(crew *c, int rank, void *arg)
{
    desk *d = arg;
    nccl_comm comm;
    OK(come(c, rank, d, 2));
    IS(USAGE, nc.CommInitRank(&comm, d->ranks, d->id, rank));
    SO(strstr(nc.GetLastError(NULL), "Duplicate GPU"));
    return 0;
}

static int share_a_gpu_by_leave(crew *c, int rank, void *arg)
{
    desk *d = arg;
    nccl_comm comm;
    setenv("STANDIN_NCCL_SHARE", "1", 1);
    OK(come(c, rank, d, 2));
    OK(nc.CommInitRank(&comm, d->ranks, d->id, rank));
    OK(reduce_all(c, rank, d, comm));
    return 0;
}

static void two_ranks_on_one_gpu_are_refused(void **state)
{
    (void)state;
    run_ranks(3, share_a_gpu, "one GPU");
    run_ranks(2, share_a_gpu_by_leave, "one GPU, by leave");
}

static int fail_as_told(crew *c, int rank, void *arg)
{
    desk *d = arg;
    nccl_comm comm;
    OK(join(c, rank, d, &comm));
    setenv("STANDIN_NCCL_FAIL", "AllReduce:42", 1);
    IS(42, nc.AllReduce(NULL, NULL, 1, F32, SUM, comm, stream));
    SO(strcmp(nc.GetErrorString(42), "unknown result code") == 0);
    OK(nc.GroupStart());
    IS(42, nc.AllReduce(NULL, NULL, 1, F32, SUM, comm, stream));
    IS(42, nc.GroupEnd());
    unsetenv("STANDIN_NCCL_FAIL");
    OK(reduce_all(c, rank, d, comm));
    return 0;
}

static void a_function_fails_when_it_is_told_to(void **state)
{
    (void)state;
    run_ranks(2, fail_as_told, "told to fail");
}

/* The last rank ends before it calls what the others call. */
static int lose_a_rank(crew *c, int rank, void *arg)
{
    desk *d = arg;
    nccl_comm comm;
    oari_cu_memory memory;
    int result = 0, notice = getenv("STANDIN_NCCL_NOTICE") != NULL;
    OK(join(c, rank, d, &comm));
    if (rank == d->ranks - 1)
        _exit(0);
    memory = make_values(rank, 0, SMALL);
    OK(nc.AllReduce(at(memory, 0), at(memory, 0), SMALL, F32, SUM, comm,
                    stream));
    while (notice && result == 0)
        OK(nc.CommGetAsyncError(comm, &result));
    SO(result == (notice ? REMOTE : 0));
    let_time_pass();
    IS(OARI_CU_NOT_READY, cu.StreamQuery(stream));
    OK(nc.CommAbort(comm));
    OK(cu.StreamSynchronize(stream));
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

static int disagree(crew *c, int rank, void *arg)
{
    desk *d = arg;
    nccl_comm comm;
    oari_cu_memory memory;
    OK(join(c, rank, d, &comm));
    memory = make_values(rank, 0, SMALL + 1);
    OK(nc.AllReduce(at(memory, 0), at(memory, 0), (size_t)(SMALL + rank), F32,
                    SUM, comm, stream));
    let_time_pass();
    IS(OARI_CU_NOT_READY, cu.StreamQuery(stream));
    crew_raise(&d->ready);
    SO(crew_await(&d->ready, 2, CREW_PATIENCE_MS));
    OK(nc.CommAbort(comm));
    OK(cu.StreamSynchronize(stream));
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
