/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for NCCL keeps what it promises: every call between processes,
 * on streams; and the ways in which the real one refuses, waits and fails. */
#include <limits.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "gpu/driver.h"

enum { COUNT = 40009, SMALL = 7 };
enum { SUM, PROD, MAX, MIN, AVG };
enum { I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16, F8E4M3, F8E5M2 };
enum { ARGUMENT = 4, USAGE = 5, REMOTE = 6, IN_PROGRESS = 7 };

typedef struct nccl_id {
    unsigned char bytes[128];
} nccl_id;
typedef void *nccl_comm;
typedef struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, rest[16];
} nccl_config;

/* clang-format off */
#define FUNCTIONS(X)                                                           \
    X(int, GetVersion, (int *))                                                \
    X(int, GetUniqueId, (nccl_id *))                                           \
    X(int, CommInitRank, (nccl_comm *, int, nccl_id, int))                     \
    X(int, CommInitRankConfig, (nccl_comm *, int, nccl_id, int, nccl_config *)) \
    X(int, CommSplit, (nccl_comm, int, int, nccl_comm *, nccl_config *))       \
    X(int, CommFinalize, (nccl_comm))                                          \
    X(int, CommDestroy, (nccl_comm))                                           \
    X(int, CommAbort, (nccl_comm))                                             \
    X(int, CommGetAsyncError, (nccl_comm, int *))                              \
    X(int, CommCount, (nccl_comm, int *))                                      \
    X(int, CommUserRank, (nccl_comm, int *))                                   \
    X(int, CommCuDevice, (nccl_comm, int *))                                   \
    X(const char *, GetErrorString, (int))                                     \
    X(const char *, GetLastError, (nccl_comm))                                 \
    X(int, AllReduce, (const void *, void *, size_t, int, int, nccl_comm,      \
                       void *))                                                \
    X(int, Broadcast, (const void *, void *, size_t, int, int, nccl_comm,      \
                       void *))                                                \
    X(int, Reduce, (const void *, void *, size_t, int, int, int, nccl_comm,    \
                    void *))                                                   \
    X(int, AllGather, (const void *, void *, size_t, int, nccl_comm, void *))  \
    X(int, ReduceScatter, (const void *, void *, size_t, int, int, nccl_comm,  \
                           void *))                                            \
    X(int, Send, (const void *, size_t, int, int, nccl_comm, void *))          \
    X(int, Recv, (void *, size_t, int, int, nccl_comm, void *))                \
    X(int, GroupStart, (void))                                                 \
    X(int, GroupEnd, (void))                                                   \
    X(int, RedOpCreatePreMulSum, (int *, void *, int, int, nccl_comm))         \
    X(int, RedOpDestroy, (int, nccl_comm))
/* clang-format on */

static struct {
#define X(type, name, parameters) type(*name) parameters;
    FUNCTIONS(X)
#undef X
} nc;

typedef struct desk {
    crew_flag made, ready, gone;
    nccl_id id;
    int ranks;
} desk;

static oari_cu_stream stream;

/* ---- beginning ----------------------------------------------------------- */

static int load_nccl(void)
{
    void *library = dlopen(getenv("OARSONG_NCCL_LIBRARY"), RTLD_NOW);
    if (!library)
        return -1;
#define X(type, name, parameters)                               \
    if (!(*(void **)&nc.name = dlsym(library, "nccl" #name)))   \
        return -1;
    FUNCTIONS(X)
#undef X
    return 0;
}

/* The driver with a GPU for each rank, and the id that rank 0 makes. */
static int come(crew *c, int rank, desk *d, int device)
{
    oari_cu_context own;
    setenv("STANDIN_DEVICES", "4", 1);
    OK(load() || cu.Init(0) || load_nccl());
    OK(cu.DevicePrimaryCtxRetain(&own, device));
    OK(cu.CtxPushCurrent(own));
    stream = make_stream(NONBLOCKING);
    if (rank == 0) {
        OK(nc.GetUniqueId(&d->id));
        crew_raise(&d->made);
    }
    SO(crew_await(&d->made, 1, CREW_PATIENCE_MS));
    return 0;
}

static int join(crew *c, int rank, desk *d, nccl_comm *comm)
{
    OK(come(c, rank, d, rank));
    OK(nc.CommInitRank(comm, d->ranks, d->id, rank));
    return 0;
}

static void run_ranks(int ranks, crew_fn fn, const char *what)
{
    crew c;
    desk *d = crew_page(sizeof *d);
    d->ranks = ranks;
    crew_start(&c, ranks, fn, d, "%s at %d ranks", what, ranks);
    for (int rank = 0; rank < ranks; rank++)
        crew_expect(&c, rank, 0);
    crew_end(&c);
    crew_drop_page(d, sizeof *d);
}

/* ---- numbers ------------------------------------------------------------- */

static float value(int rank, size_t i)
{
    return (float)((size_t)(rank + 1) * (i % 101));
}

static float total(int ranks, size_t i)
{
    return (float)((size_t)(ranks * (ranks + 1) / 2) * (i % 101));
}

/* Device memory with this rank's values from number `from` on. */
static oari_cu_memory make_values(int rank, size_t from, size_t count)
{
    float *values = malloc(count * sizeof *values);
    oari_cu_memory memory = make_memory(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = value(rank, from + i);
    cu.MemcpyHtoDAsync(memory, values, count * sizeof *values, stream);
    cu.StreamSynchronize(stream);
    free(values);
    return memory;
}

static float *fetch(oari_cu_memory memory, size_t count)
{
    float *values = malloc(count * sizeof *values);
    cu.MemcpyDtoHAsync(values, memory, count * sizeof *values, stream);
    return values;
}

static void *at(oari_cu_memory memory, size_t element)
{
    return (void *)(uintptr_t)(memory + element * sizeof(float));
}

/* ---- collectives --------------------------------------------------------- */

static int reduce_all(crew *c, int rank, desk *d, nccl_comm comm)
{
    oari_cu_memory in = make_values(rank, 0, COUNT), out = make_memory(4 * COUNT);
    float *seen;
    OK(nc.AllReduce(at(in, 0), at(out, 0), COUNT, F32, SUM, comm, stream));
    OK(nc.AllReduce(at(in, 0), at(in, 0), COUNT, F32, SUM, comm, stream));
    OK(nc.AllReduce(NULL, NULL, 0, F32, SUM, comm, stream));
    for (int in_place = 0; in_place < 2; in_place++) {
        seen = fetch(in_place ? in : out, COUNT);
        for (size_t i = 0; i < COUNT; i++)
            SO(seen[i] == total(d->ranks, i));
        free(seen);
    }
    OK(nc.Reduce(at(in, 0), at(out, 0), SMALL, F32, SUM, d->ranks - 1, comm,
                 stream));
    seen = fetch(out, SMALL);
    for (size_t i = 0; i < SMALL; i++)
        SO(seen[i] == total(d->ranks, i) *
                          (float)(rank == d->ranks - 1 ? d->ranks : 1));
    free(seen);
    return 0;
}

static int spread(crew *c, int rank, desk *d, nccl_comm comm)
{
    size_t all = (size_t)d->ranks * COUNT;
    oari_cu_memory in = make_values(rank, 0, COUNT), out = make_memory(4 * all);
    float *seen;
    OK(nc.AllGather(at(in, 0), at(out, 0), COUNT, F32, comm, stream));
    seen = fetch(out, all);
    for (size_t i = 0; i < all; i++)
        SO(seen[i] == value((int)(i / COUNT), i % COUNT));
    free(seen);
    OK(nc.Broadcast(at(in, 0), at(out, 0), COUNT, F32, 1, comm, stream));
    seen = fetch(out, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        SO(seen[i] == value(1, i));
    free(seen);
    return 0;
}

static int reduce_parts(crew *c, int rank, desk *d, nccl_comm comm)
{
    size_t all = (size_t)d->ranks * COUNT, mine = (size_t)rank * COUNT;
    oari_cu_memory in = make_values(rank, 0, all);
    float *seen;
    OK(nc.ReduceScatter(at(in, 0), at(in, mine), COUNT, F32, SUM, comm,
                        stream));
    seen = fetch(in, all);
    for (size_t i = 0; i < all; i++)
        SO(seen[i] == (i >= mine && i - mine < COUNT ? total(d->ranks, i)
                                                     : value(rank, i)));
    free(seen);
    return 0;
}

static int do_every_collective(crew *c, int rank, void *arg)
{
    desk *d = arg;
    nccl_comm comm;
    int number = -1;
    OK(join(c, rank, d, &comm));
    OK(nc.CommCount(comm, &number));
    SO(number == d->ranks);
    OK(nc.CommUserRank(comm, &number));
    SO(number == rank);
    OK(nc.CommCuDevice(comm, &number));
    SO(number == rank);
    OK(reduce_all(c, rank, d, comm) || spread(c, rank, d, comm) ||
       reduce_parts(c, rank, d, comm));
    OK(nc.CommFinalize(comm));
    OK(nc.CommDestroy(comm));
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

static int reduce_one(crew *c, int rank, nccl_comm comm, int type, int op,
                      int expected)
{
    static const size_t bytes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };
    unsigned char mine[8] = { 0 }, seen[8] = { 0 }, right[8] = { 0 };
    oari_cu_memory memory = make_memory(8);
    write_number(mine, type, rank + 1);
    write_number(right, type, expected);
    OK(cu.MemcpyHtoDAsync(memory, mine, 8, stream));
    OK(nc.AllReduce(at(memory, 0), at(memory, 0), 1, type, op, comm, stream));
    OK(cu.MemcpyDtoHAsync(seen, memory, 8, stream));
    SO(memcmp(seen, right, bytes[type]) == 0);
    OK(cu.MemFree(memory));
    return 0;
}

static int reduce_every_type(crew *c, int rank, void *arg)
{
    nccl_comm comm;
    OK(join(c, rank, arg, &comm));
    for (int type = I8; type <= F8E5M2; type++) {
        OK(reduce_one(c, rank, comm, type, SUM, 3));
        OK(reduce_one(c, rank, comm, type, PROD, 2));
        OK(reduce_one(c, rank, comm, type, MAX, 2));
        OK(reduce_one(c, rank, comm, type, MIN, 1));
    }
    OK(reduce_one(c, rank, comm, I32, AVG, 1)); /* 3 / 2 */
    IS(ARGUMENT, nc.AllReduce(NULL, NULL, 1, 12, SUM, comm, stream));
    IS(ARGUMENT, nc.AllReduce(NULL, NULL, 1, F32, 9, comm, stream));
    return 0;
}

static void every_type_is_reduced(void **state)
{
    (void)state;
    run_ranks(2, reduce_every_type, "every type");
}

/* Each rank multiplies its own by its own factor: 2 * 1 + 3 * 2 + 4 * 3. */
static int multiply_first(crew *c, int rank, void *arg)
{
    nccl_comm comm;
    oari_cu_memory factor, memory;
    float mine = (float)(rank + 1), by = (float)(rank + 2), *seen;
    int op;
    OK(join(c, rank, arg, &comm));
    factor = make_memory(4);
    memory = make_memory(4);
    OK(cu.MemcpyHtoDAsync(factor, &by, 4, stream));
    for (int on_host = 0; on_host < 2; on_host++) {
        OK(cu.MemcpyHtoDAsync(memory, &mine, 4, stream));
        OK(nc.RedOpCreatePreMulSum(&op, on_host ? &by : at(factor, 0), F32,
                                   on_host, comm));
        IS(ARGUMENT, nc.AllReduce(at(memory, 0), at(memory, 0), 1, F16, op,
                                  comm, stream));
        OK(nc.AllReduce(at(memory, 0), at(memory, 0), 1, F32, op, comm,
                        stream));
        OK(nc.RedOpDestroy(op, comm));
        IS(ARGUMENT, nc.RedOpDestroy(op, comm));
        seen = fetch(memory, 1);
        SO(*seen == 20);
        free(seen);
    }
    OK(cu.MemcpyHtoDAsync(memory, &mine, 4, stream));
    OK(nc.AllReduce(at(memory, 0), at(memory, 0), 1, F32, AVG, comm, stream));
    seen = fetch(memory, 1);
    SO(fabsf(*seen - 2) < 1e-6f);
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
static int send_around(crew *c, int rank, void *arg)
{
    desk *d = arg;
    int next = (rank + 1) % d->ranks, before = (rank + d->ranks - 1) % d->ranks;
    nccl_comm comm;
    oari_cu_memory in, out;
    float *seen;
    OK(join(c, rank, d, &comm));
    in = make_values(rank, 0, COUNT);
    out = make_memory(4 * (COUNT + 2 * SMALL));
    OK(nc.GroupStart());
    OK(nc.Send(at(in, 0), COUNT, F32, next, comm, stream));
    OK(nc.Send(at(in, SMALL), SMALL, F32, next, comm, stream));
    OK(nc.Recv(at(out, 0), COUNT, F32, before, comm, stream));
    OK(nc.Recv(at(out, COUNT), SMALL, F32, before, comm, stream));
    OK(nc.Recv(at(out, COUNT + SMALL), SMALL, F32, rank, comm, stream));
    OK(nc.Send(at(in, 0), SMALL, F32, rank, comm, stream));
    OK(nc.Send(NULL, 0, F32, next, comm, stream));
    OK(nc.Recv(NULL, 0, F32, before, comm, stream));
    OK(nc.GroupEnd());
    seen = fetch(out, COUNT + 2 * SMALL);
    for (size_t i = 0; i < COUNT; i++)
        SO(seen[i] == value(before, i));
    for (size_t i = 0; i < SMALL; i++)
        SO(seen[COUNT + i] == value(before, SMALL + i) &&
           seen[COUNT + SMALL + i] == value(rank, i));
    free(seen);
    OK(nc.CommDestroy(comm));
    return 0;
}

static void messages_of_a_group_go_at_once(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        run_ranks(ranks, send_around, "messages");
}

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

static int settle(nccl_comm comm)
{
    int result = IN_PROGRESS;
    while (result == IN_PROGRESS) {
        nc.CommGetAsyncError(comm, &result);
        usleep(100);
    }
    return result;
}

static nccl_config not_blocking(void)
{
    nccl_config config = { sizeof config, 0xcafebeef, 22707, 0, { 0 } };
    for (int i = 0; i < 16; i++)
        config.rest[i] = INT_MIN;
    return config;
}

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

/* ---- splits -------------------------------------------------------------- */

/* 0 and 3 in one, the other way round; 2 alone; 1 in none. */
static int split(crew *c, int rank, void *arg)
{
    static const int colour[] = { 5, -1, 6, 5 };
    desk *d = arg;
    nccl_config config = not_blocking();
    nccl_comm comm, part = NULL;
    oari_cu_memory memory;
    float *seen;
    int number = -1;
    OK(come(c, rank, d, rank));
    IS(IN_PROGRESS,
       nc.CommInitRankConfig(&comm, d->ranks, d->id, rank, &config));
    OK(settle(comm));
    IS(IN_PROGRESS, nc.CommSplit(comm, colour[rank], -rank, &part, NULL));
    OK(settle(comm));
    SO((part == NULL) == (rank == 1));
    if (rank == 1)
        return 0;
    OK(settle(part));
    OK(nc.CommUserRank(part, &number));
    SO(number == (rank == 0));
    OK(nc.CommCount(part, &number));
    SO(number == (rank == 2 ? 1 : 2));
    memory = make_values(rank, 0, SMALL);
    number = nc.Broadcast(at(memory, 0), at(memory, 0), SMALL, F32, 0, part,
                          stream);
    OK(number == IN_PROGRESS ? settle(part) : number);
    seen = fetch(memory, SMALL);
    for (size_t i = 0; i < SMALL; i++)
        SO(seen[i] == value(rank == 0 ? 3 : rank, i));
    free(seen);
    OK(nc.CommDestroy(part));
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
        cmocka_unit_test(messages_without_a_group_wait_for_each_other),
        cmocka_unit_test(calls_that_do_not_block_finish_later),
        cmocka_unit_test(a_communicator_that_begins_can_be_aborted),
        cmocka_unit_test(two_ranks_on_one_gpu_are_refused),
        cmocka_unit_test(a_function_fails_when_it_is_told_to),
        cmocka_unit_test(a_lost_rank_is_waited_for_until_abort),
        cmocka_unit_test(ranks_that_disagree_wait_for_ever),
        cmocka_unit_test(a_split_makes_communicators_by_colour_and_key),
    };
    return cmocka_run_group_tests_name("standin_nccl", tests, NULL, NULL);
}
