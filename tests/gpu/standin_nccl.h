/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/standin_nccl.h: the stand-in for NCCL, called by its own tests without
 * the library; and numbers on the device for it. */
#ifndef TESTS_GPU_STANDIN_NCCL_H
#define TESTS_GPU_STANDIN_NCCL_H

#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "gpu/standin_driver.h"

enum { COUNT = 40009, SMALL = 7 };
enum { SUM, PROD, MAX, MIN, AVG };
enum { I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16, F8E4M3, F8E5M2 };
enum { ARGUMENT = 4, USAGE = 5, REMOTE = 6, IN_PROGRESS = 7 };

typedef struct nccl_unique_id {
    unsigned char bytes[128];
} nccl_unique_id;
typedef void *nccl_handle;
typedef struct nccl_options {
    size_t size;
    unsigned magic, version;
    int blocking, rest[16];
} nccl_options;

/* clang-format off */
#define FUNCTIONS(X)                                                          \
    X(int, GetVersion, (int *))                                               \
    X(int, GetUniqueId, (nccl_unique_id *))                                   \
    X(int, CommInitRank, (nccl_handle *, int, nccl_unique_id, int))           \
    X(int, CommInitRankConfig, (nccl_handle *, int, nccl_unique_id,           \
      int, nccl_options *))                                                   \
    X(int, CommSplit, (nccl_handle, int, int, nccl_handle *,                  \
      nccl_options *))                                                        \
    X(int, CommFinalize, (nccl_handle))                                       \
    X(int, CommDestroy, (nccl_handle))                                        \
    X(int, CommAbort, (nccl_handle))                                          \
    X(int, CommGetAsyncError, (nccl_handle, int *))                           \
    X(int, CommCount, (nccl_handle, int *))                                   \
    X(int, CommUserRank, (nccl_handle, int *))                                \
    X(int, CommCuDevice, (nccl_handle, int *))                                \
    X(const char *, GetErrorString, (int))                                    \
    X(const char *, GetLastError, (nccl_handle))                              \
    X(int, AllReduce, (const void *, void *, size_t, int, int, nccl_handle,   \
                       void *))                                               \
    X(int, Broadcast, (const void *, void *, size_t, int, int, nccl_handle,   \
                       void *))                                               \
    X(int, Reduce, (const void *, void *, size_t, int, int, int,              \
      nccl_handle, void *))                                                   \
    X(int, AllGather, (const void *, void *, size_t, int,                     \
      nccl_handle, void *))                                                   \
    X(int, ReduceScatter, (const void *, void *, size_t, int, int,            \
      nccl_handle, void *))                                                   \
    X(int, Send, (const void *, size_t, int, int, nccl_handle, void *))       \
    X(int, Recv, (void *, size_t, int, int, nccl_handle, void *))             \
    X(int, GroupStart, (void))                                                \
    X(int, GroupEnd, (void))                                                  \
    X(int, RedOpCreatePreMulSum, (int *, void *, int, int, nccl_handle))      \
    X(int, RedOpDestroy, (int, nccl_handle))
/* clang-format on */

static struct {
#define X(type, name, parameters) type(*name) parameters;
    FUNCTIONS(X)
#undef X
} nc;

typedef struct nccl_context {
    shared_flag made, ready, gone;
    nccl_unique_id id;
    int ranks;
} nccl_context;

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
static inline int come(test_job *c, int rank, nccl_context *d, int device)
{
    oari_cu_context own;
    setenv("STANDIN_DEVICES", "4", 1);
    RANK_ZERO(load() || cu.Init(0) || load_nccl());
    RANK_ZERO(cu.DevicePrimaryCtxRetain(&own, device));
    RANK_ZERO(cu.CtxPushCurrent(own));
    stream = make_stream(NONBLOCKING);
    if (rank == 0) {
        RANK_ZERO(nc.GetUniqueId(&d->id));
        shared_flag_raise(&d->made);
    }
    RANK_CHECK(shared_flag_await(&d->made, 1, TEST_JOB_LIMIT_MS));
    return 0;
}

static inline int join(test_job *c, int rank, nccl_context *d,
                       nccl_handle *comm)
{
    RANK_ZERO(come(c, rank, d, rank));
    RANK_ZERO(nc.CommInitRank(comm, d->ranks, d->id, rank));
    return 0;
}

static inline void run_ranks(int ranks, test_job_fn fn, const char *what)
{
    test_job c;
    nccl_context *d = shared_page(sizeof *d);
    d->ranks = ranks;
    test_job_start(&c, ranks, fn, d, "%s at %d ranks", what, ranks);
    for (int rank = 0; rank < ranks; rank++)
        test_job_expect(&c, rank, 0);
    test_job_end(&c);
    shared_page_free(d, sizeof *d);
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

static inline int settle(nccl_handle comm)
{
    int result = IN_PROGRESS;
    while (result == IN_PROGRESS) {
        nc.CommGetAsyncError(comm, &result);
        usleep(100);
    }
    return result;
}

static inline nccl_options not_blocking(void)
{
    nccl_options config = { sizeof config, 0xcafebeef, 22707, 0, { 0 } };
    for (int i = 0; i < 16; i++)
        config.rest[i] = INT_MIN;
    return config;
}

/* ---- a collective that every test can do --------------------------------- */

static inline int reduce_all(test_job *c, int rank, nccl_context *d,
                             nccl_handle comm)
{
    oari_cu_memory in = make_values(rank, 0, COUNT),
                   out = make_memory(4 * COUNT);
    float *seen;
    RANK_ZERO(
        nc.AllReduce(at(in, 0), at(out, 0), COUNT, F32, SUM, comm, stream));
    RANK_ZERO(
        nc.AllReduce(at(in, 0), at(in, 0), COUNT, F32, SUM, comm, stream));
    RANK_ZERO(nc.AllReduce(NULL, NULL, 0, F32, SUM, comm, stream));
    for (int in_place = 0; in_place < 2; in_place++) {
        seen = fetch(in_place ? in : out, COUNT);
        for (size_t i = 0; i < COUNT; i++)
            RANK_CHECK(seen[i] == total(d->ranks, i));
        free(seen);
    }
    RANK_ZERO(nc.Reduce(at(in, 0), at(out, 0), SMALL, F32, SUM, d->ranks - 1,
                        comm, stream));
    seen = fetch(out, SMALL);
    for (size_t i = 0; i < SMALL; i++)
        RANK_CHECK(seen[i] == total(d->ranks, i) *
                                  (float)(rank == d->ranks - 1 ? d->ranks : 1));
    free(seen);
    return 0;
}

#endif
