/* SPDX-License-Identifier: Apache-2.0 */
/* standin/driver.h: a CUDA driver without a GPU, for tests: what its files
 * share, and what the stand-in for NCCL asks of it.
 *
 * Device memory is an address range without access, so that the host cannot
 * touch it by mistake; its bytes are in a memfd that is mapped elsewhere (the
 * view), where copies and kernels find them. A stream is a thread that runs
 * what it is given late. Misuse that the real driver answers with an error is
 * that error here; misuse that it answers with undefined behaviour ends the
 * process with a sentence (standin_die).
 *
 * Environment: STANDIN_DEVICES (1), STANDIN_MEMORY_MB (4096, of each device and
 * process), STANDIN_DELAY_US (300: each operation starts up to that late),
 * STANDIN_SEED (1), STANDIN_IPC_FREE=1, STANDIN_IPC_ONCE=1 (see ipc.c).
 *
 * Locking: standin_lock guards everything; standin_moved is signalled when an
 * operation comes or ends.
 */
#ifndef TESTS_STANDIN_DRIVER_H
#define TESTS_STANDIN_DRIVER_H

#include <pthread.h>
#include <stdint.h>

#include "device/cuda/cuda_symbols.h"

#define STANDIN_API __attribute__((visibility("default")))

/* Every function of the list, so that each is defined as it is called. */
#define X(field, symbol, parameters) STANDIN_API int symbol parameters;
OARI_CUDA_SYMBOLS(X)
#undef X

/* CUresults that symbols.h does not need. */
enum {
    CU_INVALID_DEVICE = 101,
    CU_INVALID_CONTEXT = 201,
    CU_INVALID_HANDLE = 400,
    CU_NOT_FOUND = 500,
    CU_ILLEGAL_STATE = 401,
    CU_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CU_HOST_MEMORY_NOT_REGISTERED = 713,
    CU_NOT_SUPPORTED = 801
};

enum { STANDIN_MOST_DEVICES = 16, STANDIN_NON_BLOCKING = 1 };

extern pthread_mutex_t standin_lock;
extern pthread_cond_t standin_moved;

_Noreturn STANDIN_API void standin_die(const char *format, ...)
    __attribute__((format(printf, 1, 2)));
STANDIN_API long standin_setting(const char *name, long otherwise);
STANDIN_API int64_t standin_now_ns(void);

/* ---- operations (stream.c) ----------------------------------------------- */

/* One operation on a stream. Counted: the stream holds it until it is done,
 * events and waiters for as long as they need it. */
typedef struct operation operation;
typedef void (*operation_fn)(void *arg);

typedef struct context context;
typedef struct stream stream;
typedef struct block block;

struct context {
    int device;
    int retained;
    unsigned peers;   /* bit of each device it may reach */
    stream *standard; /* the default stream */
};

/* Puts fn(arg) onto the stream (NULL: the default one of that context), behind
 * `after` too if there is one. arg is freed when it has run. Gives a reference.
 * Locked: the caller has the lock. */
operation *standin_put_locked(stream *s, operation_fn fn, void *arg,
                              operation *after);
STANDIN_API operation *standin_put(stream *s, operation_fn fn, void *arg,
                                   operation *after);
STANDIN_API void standin_release(operation *op);
void standin_release_locked(operation *op);
operation *standin_keep_locked(operation *op); /* one more reference */
int standin_is_done(const operation *op);      /* locked */
int64_t standin_ended_ns(const operation *op);
/* How often the calling thread has waited for what is on streams. */
STANDIN_API long standin_waits(void);
/* Waits for it, and releases it. */
STANDIN_API void standin_finish(operation *op);

/* The stream behind a handle, NULL if it is none. Takes the lock. */
STANDIN_API stream *standin_stream(context *c, oari_cu_stream handle);
STANDIN_API context *standin_stream_context(stream *s);
stream *standin_stream_locked(context *c, oari_cu_stream handle);

/* Waits until all that is on any stream of the context by now has run. */
void standin_drain(context *c);

/* ---- captures and graphs (graph.c) --------------------------------------- */

/* A graph: what was put on a stream between the begin and the end of a capture,
 * in the order of the calls. All of it is locked. */
typedef struct graph graph;

/* The capture that a stream is in; NULL: none. A stream comes into one by
 * waiting for an event of it. */
graph **standin_stream_capture(stream *s);
/* The number of the capture that an operation belongs to, which never runs
 * itself; its graph may be gone. 0: none. */
uint64_t standin_captured_in(const operation *op);
uint64_t standin_graph_number(const graph *g); /* 0: no graph */
/* Adds to the graph; arg belongs to it. */
void standin_capture(graph *g, operation_fn fn, void *arg);
/* Makes the end of the capture fail. Returns 900. */
int standin_spoil_capture(graph *g);
/* Returns 900, and spoils the captures, if the calling thread may not make a
 * call now that could disturb a capture. Takes the lock. */
int standin_unsafe(void);
/* Ends the process if a graph uses the block. */
void standin_check_graphs(const block *b);
/* Locked: an operation that is not put on the stream but stands for what has
 * been captured on it. */
operation *standin_captured_operation(stream *s);
void standin_each_stream(void (*fn)(stream *s, void *arg), void *arg);
int *standin_joined(operation *op); /* the first stream has waited for it */
operation *standin_last(stream *s);
int standin_is_standard(const stream *s);

/* Sleeps as long as a stream would before it begins something. */
STANDIN_API void standin_dawdle(uint64_t *seed);

/* ---- contexts (driver.c) ------------------------------------------------- */

/* 0, or the CUresult that a call gives that cannot go on: 3 before cuInit and
 * after fork, 201 without a current context. */
int standin_begin(void);
STANDIN_API int standin_enter(context **c);
/* Of a device whose primary context is retained; NULL if it is not. */
STANDIN_API context *standin_context(int device);

/* ---- memory (memory.c) --------------------------------------------------- */

typedef enum block_kind {
    BLOCK_DEVICE,
    BLOCK_PEER,      /* of another process, through IPC */
    BLOCK_PINNED,    /* host memory of ours; its address is the host's */
    BLOCK_REGISTERED /* host memory of the caller's; has an address of its own
                      */
} block_kind;

/* At the end of the memfd of device memory: which other processes map it. */
enum { STANDIN_MOST_PEERS = 64 };
typedef struct block_ledger {
    uint64_t key;
    uint32_t freed;
    int32_t peer[STANDIN_MOST_PEERS]; /* process; 0: none */
} block_ledger;

struct block {
    block *next;
    block_kind kind;
    uint64_t address;
    char *view;
    size_t bytes, mapped_bytes;
    context *owner;
    uint64_t id;
    int fd;               /* device memory; -1 else */
    int opens;            /* of a peer's */
    uint64_t key;         /* the same in all processes that map it */
    block_ledger *ledger; /* device memory and a peer's */
};

size_t standin_page(void);
/* Maps bytes of fd (with a ledger behind them) at an address without access and
 * at a view. Locked. 0 or a CUresult. */
int standin_map(block *b);
void standin_unmap(block *b);
void standin_list(block *b);
block *standin_unlist(uint64_t address, block_kind kind);

/* The block that has these bytes, or NULL. Locked. The host's: by the address
 * that the host uses, of pinned and registered memory. */
block *standin_find(uint64_t address, size_t bytes);
block *standin_find_host(const void *memory, size_t bytes);
block *standin_find_key(uint64_t key);
int standin_knows(const void *memory, size_t bytes, const char **start,
                  const char **end);

/* Where bytes at an address of the device's really are; NULL if they are not
 * all in one allocation. Takes the lock. */
STANDIN_API void *standin_reach(uint64_t address, size_t bytes);

#endif
