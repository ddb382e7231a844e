/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/nccl.h: NCCL (the stand-in) as the tests of it call it: by itself,
 * without the library; and numbers on the device to give it. */
#ifndef TESTS_GPU_NCCL_H
#define TESTS_GPU_NCCL_H

#include <limits.h>
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

static inline int load_nccl(void)
{
    void *library = dlopen(getenv("OARSONG_NCCL_LIBRARY"), RTLD_NOW);
    if (!library)
        return -1;
#define X(type, name, parameters)                             \
    if (!(*(void **)&nc.name = dlsym(library, "nccl" #name))) \
        return -1;
    FUNCTIONS(X)
#undef X
    return 0;
}

/* The driver with a GPU for each rank, and the id that rank 0 makes. */
static inline int come(crew *c, int rank, desk *d, int device)
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

static inline int join(crew *c, int rank, desk *d, nccl_comm *comm)
{
    OK(come(c, rank, d, rank));
    OK(nc.CommInitRank(comm, d->ranks, d->id, rank));
    return 0;
}

static inline void run_ranks(int ranks, crew_fn fn, const char *what)
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

static inline float value(int rank, size_t i)
{
    return (float)((size_t)(rank + 1) * (i % 101));
}

static inline float total(int ranks, size_t i)
{
    return (float)((size_t)(ranks * (ranks + 1) / 2) * (i % 101));
}

/* Device memory with this rank's values from number `from` on. */
static inline oari_cu_memory make_values(int rank, size_t from, size_t count)
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

static inline float *fetch(oari_cu_memory memory, size_t count)
{
    float *values = malloc(count * sizeof *values);
    cu.MemcpyDtoHAsync(values, memory, count * sizeof *values, stream);
    return values;
}

static inline void *at(oari_cu_memory memory, size_t element)
{
    return (void *)(uintptr_t)(memory + element * sizeof(float));
}

/* ---- without blocking ---------------------------------------------------- */

static inline int settle(nccl_comm comm)
{
    int result = IN_PROGRESS;
    while (result == IN_PROGRESS) {
        nc.CommGetAsyncError(comm, &result);
        usleep(100);
    }
    return result;
}

static inline nccl_config not_blocking(void)
{
    nccl_config config = { sizeof config, 0xcafebeef, 22707, 0, { 0 } };
    for (int i = 0; i < 16; i++)
        config.rest[i] = INT_MIN;
    return config;
}

/* ---- a collective that every test can do --------------------------------- */

static inline int reduce_all(crew *c, int rank, desk *d, nccl_comm comm)
{
    oari_cu_memory in = make_values(rank, 0, COUNT),
                   out = make_memory(4 * COUNT);
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
        SO(seen[i] ==
           total(d->ranks, i) * (float)(rank == d->ranks - 1 ? d->ranks : 1));
    free(seen);
    return 0;
}

#endif
