/* SPDX-License-Identifier: Apache-2.0 */
/* nccl/symbols.h: every function of NCCL that this library calls, once: found
 * at run time. X(field, symbol, since, parameters); oari_nccl has a pointer for
 * each. since: 0, or the version that brought it; then it may be NULL. All that
 * are in the list return an ncclResult_t. */
#ifndef OARI_BACKENDS_NCCL_NCCL_SYMBOLS_H
#define OARI_BACKENDS_NCCL_NCCL_SYMBOLS_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/* NCCL's own version code; the oldest that has all that is needed here
 * (ncclCommSplit, and splitShare in its settings). */
enum { OARI_NCCL_OLDEST = 21800, OARI_NCCL_ALL_TO_ALL = 22800 };

/* NCCL's types, as far as they matter here. */
typedef void *oari_nccl_handle; /* ncclComm_t */
typedef struct oari_nccl_id {
    unsigned char bytes[128];
} oari_nccl_id;

/* ncclConfig_t as version 2.18 has it. NCCL reads as many bytes as `size` says
 * and takes its own for what came later. */
typedef struct oari_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cluster_size, min_blocks, max_blocks;
    const char *net;
    int split_share;
    int unused; /* of later versions; they go by version and do not read it */
} oari_nccl_config;
enum { OARI_NCCL_UNSET = INT_MIN };

/* name, value, what it is about. ncclResult_t, those that are told apart; any
 * other number is only a number. */
#define OARI_NCCL_RESULTS(X)              \
    X(SUCCESS, 0, "ncclSuccess")          \
    X(CUDA, 1, "ncclUnhandledCudaError")  \
    X(SYSTEM, 2, "ncclSystemError")       \
    X(INTERNAL, 3, "ncclInternalError")   \
    X(ARGUMENT, 4, "ncclInvalidArgument") \
    X(USAGE, 5, "ncclInvalidUsage")       \
    X(REMOTE, 6, "ncclRemoteError")       \
    X(IN_PROGRESS, 7, "ncclInProgress")
enum {
#define X(name, value, text) OARI_NCCL_##name = value,
    OARI_NCCL_RESULTS(X)
#undef X
};

/* ncclDataType_t, ncclRedOp_t, ncclScalarResidence_t */
enum {
    OARI_NCCL_I8 = 0,
    OARI_NCCL_U8 = 1,
    OARI_NCCL_I32 = 2,
    OARI_NCCL_U32 = 3,
    OARI_NCCL_I64 = 4,
    OARI_NCCL_U64 = 5,
    OARI_NCCL_F16 = 6,
    OARI_NCCL_F32 = 7,
    OARI_NCCL_F64 = 8,
    OARI_NCCL_BF16 = 9,
    OARI_NCCL_F8E4M3 = 10,
    OARI_NCCL_F8E5M2 = 11
};
enum {
    OARI_NCCL_SUM = 0,
    OARI_NCCL_PROD = 1,
    OARI_NCCL_MAX = 2,
    OARI_NCCL_MIN = 3,
    OARI_NCCL_AVG = 4
};
enum { OARI_NCCL_ON_HOST = 1 };

/* clang-format off */
#define OARI_NCCL_SYMBOLS(X)                                                   \
    X(GetVersion, ncclGetVersion, 0, (int *version))                           \
    X(GetUniqueId, ncclGetUniqueId, 0, (oari_nccl_id *id))                     \
    X(CommInitRankConfig, ncclCommInitRankConfig, 0,                           \
      (oari_nccl_handle *made, int ranks, oari_nccl_id id, int rank,           \
       oari_nccl_config *config))                                              \
    X(CommSplit, ncclCommSplit, 0,                                             \
      (oari_nccl_handle comm, int colour, int key, oari_nccl_handle *made,     \
       oari_nccl_config *config))                                              \
    X(CommFinalize, ncclCommFinalize, 0, (oari_nccl_handle comm))              \
    X(CommDestroy, ncclCommDestroy, 0, (oari_nccl_handle comm))                \
    X(CommAbort, ncclCommAbort, 0, (oari_nccl_handle comm))                    \
    X(CommGetAsyncError, ncclCommGetAsyncError, 0,                             \
      (oari_nccl_handle comm, int *result))                                    \
    X(CommCount, ncclCommCount, 0, (oari_nccl_handle comm, int *count))        \
    X(CommUserRank, ncclCommUserRank, 0, (oari_nccl_handle comm, int *rank))   \
    X(RedOpCreatePreMulSum, ncclRedOpCreatePreMulSum, 0,                       \
      (int *op, void *factor, int type, int residence, oari_nccl_handle comm)) \
    X(RedOpDestroy, ncclRedOpDestroy, 0, (int op, oari_nccl_handle comm))      \
    X(AllReduce, ncclAllReduce, 0,                                             \
      (const void *in, void *out, size_t count, int type, int op,              \
       oari_nccl_handle comm, void *stream))                                   \
    X(Broadcast, ncclBroadcast, 0,                                             \
      (const void *in, void *out, size_t count, int type, int root,            \
       oari_nccl_handle comm, void *stream))                                   \
    X(Reduce, ncclReduce, 0,                                                   \
      (const void *in, void *out, size_t count, int type, int op, int root,    \
       oari_nccl_handle comm, void *stream))                                   \
    X(AllGather, ncclAllGather, 0,                                             \
      (const void *in, void *out, size_t count, int type,                      \
       oari_nccl_handle comm, void *stream))                                   \
    X(ReduceScatter, ncclReduceScatter, 0,                                     \
      (const void *in, void *out, size_t count, int type, int op,              \
       oari_nccl_handle comm, void *stream))                                   \
    X(AlltoAll, ncclAlltoAll, OARI_NCCL_ALL_TO_ALL,                            \
      (const void *in, void *out, size_t count, int type,                      \
       oari_nccl_handle comm, void *stream))                                   \
    X(Send, ncclSend, 0,                                                       \
      (const void *from, size_t count, int type, int peer,                     \
       oari_nccl_handle comm, void *stream))                                   \
    X(Recv, ncclRecv, 0,                                                       \
      (void *into, size_t count, int type, int peer, oari_nccl_handle comm,    \
       void *stream))                                                          \
    X(GroupStart, ncclGroupStart, 0, (void))                                   \
    X(GroupEnd, ncclGroupEnd, 0, (void))
/* clang-format on */

/* A pointer for each: lib->AllReduce(...) is ncclAllReduce. The two that give a
 * text are not of that kind. */
typedef struct oari_nccl {
    int version;   /* 22809 is 2.28.9 */
    char note[64]; /* for `oarsong info` */
    const char *(*GetErrorString)(int result);
    const char *(*GetLastError)(oari_nccl_handle comm);
#define X(field, symbol, since, parameters) int(*field) parameters;
    OARI_NCCL_SYMBOLS(X)
#undef X
} oari_nccl;

#endif
