/* SPDX-License-Identifier: Apache-2.0 */
/* standin/nccl.h: an NCCL without GPUs, for tests: what its files share.
 *
 * Ranks are processes (or threads) of one machine. They share memory, which the
 * process that made the id holds open, and move data through it, each call on
 * the stream it was given and in the order in which a communicator was used.
 * Calls that do not match (another operation, count, root), and those whose
 * peers are gone, wait until ncclCommAbort.
 *
 * Environment: STANDIN_NCCL_SHARE=1: several ranks on one GPU are allowed;
 * STANDIN_NCCL_NOTICE=1: ranks notice that another is gone (ncclRemoteError);
 * STANDIN_NCCL_FAIL=AllReduce:42: that function returns this.
 */
#ifndef TESTS_STANDIN_NCCL_H
#define TESTS_STANDIN_NCCL_H

#include <stdatomic.h>

#include "standin/driver.h"

enum {
    NCCL_OK,
    NCCL_CUDA,
    NCCL_SYSTEM,
    NCCL_INTERNAL,
    NCCL_ARGUMENT,
    NCCL_USAGE,
    NCCL_REMOTE,
    NCCL_IN_PROGRESS
};
enum { NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG, NCCL_OPS };
enum {
    NCCL_I8,
    NCCL_U8,
    NCCL_I32,
    NCCL_U32,
    NCCL_I64,
    NCCL_U64,
    NCCL_F16,
    NCCL_F32,
    NCCL_F64,
    NCCL_BF16,
    NCCL_F8E4M3,
    NCCL_F8E5M2,
    NCCL_TYPES
};

typedef struct nccl_id {
    unsigned char bytes[128];
} nccl_id;

/* ncclConfig_t, as far as it is looked at. */
typedef struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
} nccl_config;

/* ---- shared memory (nccl_shm.c) ------------------------------------------ */

enum { NCCL_MOST_RANKS = 16, NCCL_CHUNK = 64 << 10 };

typedef enum nccl_kind {
    NCCL_ALL_REDUCE = 1,
    NCCL_BROADCAST,
    NCCL_REDUCE,
    NCCL_ALL_GATHER,
    NCCL_REDUCE_SCATTER,
    NCCL_SEND,
    NCCL_RECV
} nccl_kind;

/* What all ranks must say alike. */
typedef struct nccl_signature {
    uint64_t count;
    int32_t kind, type, op, root;
} nccl_signature;

typedef struct nccl_shm_name { /* where the shared memory is */
    uint64_t key;
    int32_t pid, fd;
} nccl_shm_name;

typedef struct nccl_slot {
    _Atomic int pid;       /* 0: no process has come */
    _Atomic uint64_t step; /* meetings on streams, and those of callers */
    _Atomic uint64_t meeting;
    int device, ranks;
    nccl_signature signature;
    int colour, key; /* of a split */
    nccl_shm_name split;
    _Alignas(64) char data[NCCL_CHUNK];
} nccl_slot;

/* What one rank sends another. Full when put > taken. */
typedef struct nccl_queue {
    _Atomic uint64_t put, taken;
    uint64_t bytes; /* of the whole message */
    _Alignas(64) char data[NCCL_CHUNK];
} nccl_queue;

typedef struct nccl_shm {
    uint64_t key;
    nccl_slot slot[NCCL_MOST_RANKS];
    nccl_queue queue[NCCL_MOST_RANKS][NCCL_MOST_RANKS]; /* [from][to] */
} nccl_shm;

int nccl_shm_create(nccl_shm_name *place);
void nccl_shm_close(const nccl_shm_name *place); /* if it is this process's */
nccl_shm *nccl_shm_map(const nccl_shm_name *place);
void nccl_shm_unmap(nccl_shm *shm);
int nccl_is_gone(int pid);

/* ---- communicators (nccl_comm.c) ----------------------------------------- */

typedef struct nccl_factor { /* of a premultiplied sum */
    int used, type, on_device;
    double value;
    uint64_t address;
} nccl_factor;

enum { NCCL_MOST_FACTORS = 32 };

typedef struct nccl_comm {
    int rank, ranks;
    context *owner;
    nccl_shm_name place;
    nccl_shm *shm;
    int blocking;
    _Atomic int refs;
    _Atomic int state; /* as ncclCommGetAsyncError tells it */
    _Atomic int aborted;
    _Atomic int jobs; /* threads that begin, split or launch */
    int ended;        /* finalised */
    uint64_t steps, meetings;
    operation *last; /* under `lock` */
    nccl_factor factor[NCCL_MOST_FACTORS];
    pthread_mutex_t lock;
} nccl_comm;

/* The code, with a text for ncclGetLastError. */
int nccl_fail(int code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Whether STANDIN_NCCL_FAIL names this function; what it is to return. */
int nccl_must_fail(const char *function, int *code);
nccl_comm *nccl_keep(nccl_comm *comm);
void nccl_release(nccl_comm *comm);
/* 0, or why the communicator cannot be used now. */
int nccl_ready(const nccl_comm *comm);
/* Runs fn(arg) in a thread of its own. */
void nccl_spawn(void *(*fn)(void *), void *arg);
/* Between two looks at something another rank does. Whether to give up. */
int nccl_pause(nccl_comm *comm);

/* ---- calls --------------------------------------------------------------- */

typedef struct nccl_call {
    nccl_comm *comm;
    nccl_signature signature; /* root: the peer of a message */
    const char *in;
    char *out;
    nccl_factor factor;
    size_t done_bytes; /* of a message */
    int finished;
} nccl_call;

/* What runs on a stream at once. */
typedef struct nccl_bundle {
    nccl_comm *comm;
    size_t count;
    nccl_call call[];
} nccl_bundle;
void nccl_run(void *bundle);

/* ---- arithmetic (nccl_reduce.c) ------------------------------------------ */

size_t nccl_type_bytes(int type);
/* to[i] = factor * from[i] */
void nccl_scale(char *to, const char *from, size_t count, int type,
                double factor);
/* to[i] = from[0][i] op from[1][i] op ..., in that order */
void nccl_combine(char *to, const char *const *from, int ranks, size_t count,
                  int type, int op);
double nccl_value(const void *at, int type);

#endif
