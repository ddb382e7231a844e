/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for NCCL does what NCCL does: every call between processes, on
 * streams. */
#include <math.h>

#include "gpu/standin_nccl.h"

/* ---- collectives --------------------------------------------------------- */

static int spread(test_job *c, int rank, nccl_context *d, nccl_handle comm)
{
    size_t all = (size_t)d->ranks * COUNT;
    oari_cu_memory in = make_values(rank, 0, COUNT), out = make_memory(4 * all);
    float *seen;
    RANK_ZERO(nc.AllGather(at(in, 0), at(out, 0), COUNT, F32, comm, stream));
    seen = fetch(out, all);
    for (size_t i = 0; i < all; i++)
        RANK_CHECK(seen[i] == value((int)(i / COUNT), i % COUNT));
    free(seen);
    RANK_ZERO(nc.Broadcast(at(in, 0), at(out, 0), COUNT, F32, 1, comm, stream));
    seen = fetch(out, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        RANK_CHECK(seen[i] == value(1, i));
    free(seen);
    return 0;
}

static int reduce_parts(test_job *c, int rank, nccl_context *d,
                        nccl_handle comm)
{
    size_t all = (size_t)d->ranks * COUNT, mine = (size_t)rank * COUNT;
    oari_cu_memory in = make_values(rank, 0, all);
    float *seen;
    RANK_ZERO(nc.ReduceScatter(at(in, 0), at(in, mine), COUNT, F32, SUM, comm,
                               stream));
    seen = fetch(in, all);
    for (size_t i = 0; i < all; i++)
        RANK_CHECK(seen[i] == (i >= mine && i - mine < COUNT
                                   ? total(d->ranks, i)
                                   : value(rank, i)));
    free(seen);
    return 0;
}

static int do_every_collective(test_job *c, int rank, void *arg)
{
    nccl_context *d = arg;
    nccl_handle comm;
    int number = -1;
    RANK_ZERO(join(c, rank, d, &comm));
    RANK_ZERO(nc.CommCount(comm, &number));
    RANK_CHECK(number == d->ranks);
    RANK_ZERO(nc.CommUserRank(comm, &number));
    RANK_CHECK(number == rank);
    RANK_ZERO(nc.CommCuDevice(comm, &number));
    RANK_CHECK(number == rank);
    RANK_ZERO(reduce_all(c, rank, d, comm) || spread(c, rank, d, comm) ||
              reduce_parts(c, rank, d, comm));
    RANK_ZERO(nc.CommFinalize(comm));
    RANK_ZERO(nc.CommDestroy(comm));
    return 0;
}

static void every_collective_moves_its_data(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        run_ranks(ranks, do_every_collective, "every collective");
}

/* ---- types and operators ------------------------------------------------- */

/* 1, 2 and 3 in each type. */
static void write_number(unsigned char *to, int type, int number)
{
    static const uint16_t half[] = { 0x3c00, 0x4000, 0x4200 };
    static const uint16_t brain[] = { 0x3f80, 0x4000, 0x4040 };
    static const uint8_t e4m3[] = { 0x38, 0x40, 0x44 };
    static const uint8_t e5m2[] = { 0x3c, 0x40, 0x42 };
    int64_t wide = number;
    double large = number;
    float single = (float)number;
    switch (type) {
    case F16: memcpy(to, &half[number - 1], 2); break;
    case F32: memcpy(to, &single, 4); break;
    case F64: memcpy(to, &large, 8); break;
    case BF16: memcpy(to, &brain[number - 1], 2); break;
    case F8E4M3: *to = e4m3[number - 1]; break;
    case F8E5M2: *to = e5m2[number - 1]; break;
    default: memcpy(to, &wide, 8); /* little end first */
    }
}

static int reduce_one(test_job *c, int rank, nccl_handle comm, int type, int op,
                      int expected)
{
    static const size_t bytes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };
    unsigned char mine[8] = { 0 }, seen[8] = { 0 }, right[8] = { 0 };
    oari_cu_memory memory = make_memory(8);
    write_number(mine, type, rank + 1);
    write_number(right, type, expected);
    RANK_ZERO(cu.MemcpyHtoDAsync(memory, mine, 8, stream));
    RANK_ZERO(
        nc.AllReduce(at(memory, 0), at(memory, 0), 1, type, op, comm, stream));
    RANK_ZERO(cu.MemcpyDtoHAsync(seen, memory, 8, stream));
    RANK_CHECK(memcmp(seen, right, bytes[type]) == 0);
    RANK_ZERO(cu.MemFree(memory));
    return 0;
}

static int reduce_every_type(test_job *c, int rank, void *arg)
{
    nccl_handle comm;
    RANK_ZERO(join(c, rank, arg, &comm));
    for (int type = I8; type <= F8E5M2; type++) {
        RANK_ZERO(reduce_one(c, rank, comm, type, SUM, 3));
        RANK_ZERO(reduce_one(c, rank, comm, type, PROD, 2));
        RANK_ZERO(reduce_one(c, rank, comm, type, MAX, 2));
        RANK_ZERO(reduce_one(c, rank, comm, type, MIN, 1));
    }
    RANK_ZERO(reduce_one(c, rank, comm, I32, AVG, 1)); /* 3 / 2 */
    RANK_IS(ARGUMENT, nc.AllReduce(NULL, NULL, 1, 12, SUM, comm, stream));
    RANK_IS(ARGUMENT, nc.AllReduce(NULL, NULL, 1, F32, 9, comm, stream));
    return 0;
}

static void every_type_is_reduced(void **state)
{
    (void)state;
    run_ranks(2, reduce_every_type, "every type");
}

/* Each rank multiplies its own by its own factor: 2 * 1 + 3 * 2 + 4 * 3. */
static int multiply_first(test_job *c, int rank, void *arg)
{
    nccl_handle comm;
    oari_cu_memory factor, memory;
    float mine = (float)(rank + 1), by = (float)(rank + 2), *seen;
    int op;
    RANK_ZERO(join(c, rank, arg, &comm));
    factor = make_memory(4);
    memory = make_memory(4);
    RANK_ZERO(cu.MemcpyHtoDAsync(factor, &by, 4, stream));
    for (int on_host = 0; on_host < 2; on_host++) {
        RANK_ZERO(cu.MemcpyHtoDAsync(memory, &mine, 4, stream));
        RANK_ZERO(nc.RedOpCreatePreMulSum(&op, on_host ? &by : at(factor, 0),
                                          F32, on_host, comm));
        RANK_IS(ARGUMENT, nc.AllReduce(at(memory, 0), at(memory, 0), 1, F16, op,
                                       comm, stream));
        RANK_ZERO(nc.AllReduce(at(memory, 0), at(memory, 0), 1, F32, op, comm,
                               stream));
        RANK_ZERO(nc.RedOpDestroy(op, comm));
        RANK_IS(ARGUMENT, nc.RedOpDestroy(op, comm));
        seen = fetch(memory, 1);
        RANK_CHECK(*seen == 20);
        free(seen);
    }
    RANK_ZERO(cu.MemcpyHtoDAsync(memory, &mine, 4, stream));
    RANK_ZERO(
        nc.AllReduce(at(memory, 0), at(memory, 0), 1, F32, AVG, comm, stream));
    seen = fetch(memory, 1);
    RANK_CHECK(fabsf(*seen - 2) < 1e-6f);
    free(seen);
    return 0;
}

static void a_premultiplied_sum_takes_each_ranks_factor(void **state)
{
    (void)state;
    run_ranks(3, multiply_first, "factors");
}

/* ---- messages ------------------------------------------------------------ */

/* To the next from the one before, twice, in one group; and to itself. */
static int send_around(test_job *c, int rank, void *arg)
{
    nccl_context *d = arg;
    int next = (rank + 1) % d->ranks, before = (rank + d->ranks - 1) % d->ranks;
    nccl_handle comm;
    oari_cu_memory in, out;
    float *seen;
    RANK_ZERO(join(c, rank, d, &comm));
    in = make_values(rank, 0, COUNT);
    out = make_memory(4 * (COUNT + 2 * SMALL));
    RANK_ZERO(nc.GroupStart());
    RANK_ZERO(nc.Send(at(in, 0), COUNT, F32, next, comm, stream));
    RANK_ZERO(nc.Send(at(in, SMALL), SMALL, F32, next, comm, stream));
    RANK_ZERO(nc.Recv(at(out, 0), COUNT, F32, before, comm, stream));
    RANK_ZERO(nc.Recv(at(out, COUNT), SMALL, F32, before, comm, stream));
    RANK_ZERO(nc.Recv(at(out, COUNT + SMALL), SMALL, F32, rank, comm, stream));
    RANK_ZERO(nc.Send(at(in, 0), SMALL, F32, rank, comm, stream));
    RANK_ZERO(nc.Send(NULL, 0, F32, next, comm, stream));
    RANK_ZERO(nc.Recv(NULL, 0, F32, before, comm, stream));
    RANK_ZERO(nc.GroupEnd());
    seen = fetch(out, COUNT + 2 * SMALL);
    for (size_t i = 0; i < COUNT; i++)
        RANK_CHECK(seen[i] == value(before, i));
    for (size_t i = 0; i < SMALL; i++)
        RANK_CHECK(seen[COUNT + i] == value(before, SMALL + i) &&
                   seen[COUNT + SMALL + i] == value(rank, i));
    free(seen);
    RANK_ZERO(nc.CommDestroy(comm));
    return 0;
}

static void messages_of_a_group_go_at_once(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        run_ranks(ranks, send_around, "messages");
}

/* ---- splits -------------------------------------------------------------- */

/* 0 and 3 in one, the other way round; 2 alone; 1 in none. */
static int split(test_job *c, int rank, void *arg)
{
    static const int colour[] = { 5, -1, 6, 5 };
    nccl_context *d = arg;
    nccl_options config = not_blocking();
    nccl_handle comm, part = NULL;
    oari_cu_memory memory;
    float *seen;
    int number = -1;
    RANK_ZERO(come(c, rank, d, rank));
    RANK_IS(IN_PROGRESS,
            nc.CommInitRankConfig(&comm, d->ranks, d->id, rank, &config));
    RANK_ZERO(settle(comm));
    RANK_IS(IN_PROGRESS, nc.CommSplit(comm, colour[rank], -rank, &part, NULL));
    RANK_ZERO(settle(comm));
    RANK_CHECK((part == NULL) == (rank == 1));
    if (rank == 1)
        return 0;
    RANK_ZERO(settle(part));
    RANK_ZERO(nc.CommUserRank(part, &number));
    RANK_CHECK(number == (rank == 0));
    RANK_ZERO(nc.CommCount(part, &number));
    RANK_CHECK(number == (rank == 2 ? 1 : 2));
    memory = make_values(rank, 0, SMALL);
    number =
        nc.Broadcast(at(memory, 0), at(memory, 0), SMALL, F32, 0, part, stream);
    RANK_ZERO(number == IN_PROGRESS ? settle(part) : number);
    seen = fetch(memory, SMALL);
    for (size_t i = 0; i < SMALL; i++)
        RANK_CHECK(seen[i] == value(rank == 0 ? 3 : rank, i));
    free(seen);
    RANK_ZERO(nc.CommDestroy(part));
    return 0;
}

static void a_split_makes_communicators_by_colour_and_key(void **state)
{
    (void)state;
    run_ranks(4, split, "a split");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective_moves_its_data),
        cmocka_unit_test(every_type_is_reduced),
        cmocka_unit_test(a_premultiplied_sum_takes_each_ranks_factor),
        cmocka_unit_test(messages_of_a_group_go_at_once),
        cmocka_unit_test(a_split_makes_communicators_by_colour_and_key),
    };
    return cmocka_run_group_tests_name("standin_nccl", tests, NULL, NULL);
}
