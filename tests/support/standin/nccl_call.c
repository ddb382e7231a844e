/* SPDX-License-Identifier: Apache-2.0 */
/* standin/nccl_call.c: NCCL's calls: checked, gathered while a group is open,
 * and put onto their stream as one. Where a communicator does not block, that
 * happens now or, as often, in a thread a little later, and the call is
 * ncclInProgress until then. */
#include <stdlib.h>
#include <string.h>

#include "standin/nccl.h"

enum { PREMULTIPLIED = 100, ON_DEVICE = 0, ON_HOST = 1 };

STANDIN_API int ncclAllReduce(const void *in, void *out, size_t count, int type,
                              int op, nccl_comm *comm, void *stream);
STANDIN_API int ncclBroadcast(const void *in, void *out, size_t count, int type,
                              int root, nccl_comm *comm, void *stream);
STANDIN_API int ncclReduce(const void *in, void *out, size_t count, int type,
                           int op, int root, nccl_comm *comm, void *stream);
STANDIN_API int ncclAllGather(const void *in, void *out, size_t count, int type,
                              nccl_comm *comm, void *stream);
STANDIN_API int ncclReduceScatter(const void *in, void *out, size_t count,
                                  int type, int op, nccl_comm *comm,
                                  void *stream);
STANDIN_API int ncclSend(const void *from, size_t count, int type, int peer,
                         nccl_comm *comm, void *stream);
STANDIN_API int ncclRecv(void *into, size_t count, int type, int peer,
                         nccl_comm *comm, void *stream);
STANDIN_API int ncclGroupStart(void);
STANDIN_API int ncclGroupEnd(void);
STANDIN_API int ncclRedOpCreatePreMulSum(int *op, void *factor, int type,
                                         int residence, nccl_comm *comm);
STANDIN_API int ncclRedOpDestroy(int op, nccl_comm *comm);

/* ---- groups -------------------------------------------------------------- */

typedef struct queued_call {
    nccl_call call;
    stream *on;
} queued_call;

typedef struct call_group { /* what a group has gathered */
    size_t count;
    queued_call *entry;
} call_group;

static _Thread_local int depth;
static _Thread_local int spoiled; /* a call of the group failed */
static _Thread_local call_group now;

static void add(const nccl_call *call, stream *on)
{
    now.entry = realloc(now.entry, (now.count + 1) * sizeof *now.entry);
    now.entry[now.count].call = *call;
    now.entry[now.count++].on = on;
}

/* All of one communicator, on one stream, behind what it did before. */
static void launch(const call_group *p, nccl_comm *comm, stream *on)
{
    nccl_bundle *bundle =
        calloc(1, sizeof *bundle + p->count * sizeof *bundle->call);
    operation *op;
    bundle->comm = nccl_keep(comm);
    for (size_t i = 0; i < p->count; i++) {
        if (p->entry[i].call.comm != comm)
            continue;
        if (p->entry[i].on != on)
            standin_die("a group with two streams of one communicator is not "
                        "something this stand-in can do");
        bundle->call[bundle->count++] = p->entry[i].call;
    }
    pthread_mutex_lock(&comm->lock);
    op = standin_put(on, nccl_run, bundle, comm->last);
    if (comm->last)
        standin_release(comm->last);
    comm->last = op;
    pthread_mutex_unlock(&comm->lock);
}

static int is_first_of_its_comm(const call_group *p, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (p->entry[k].call.comm == p->entry[i].call.comm)
            return 0;
    return 1;
}

static void launch_all(const call_group *p)
{
    for (size_t i = 0; i < p->count; i++)
        if (is_first_of_its_comm(p, i) && !p->entry[i].call.comm->aborted)
            launch(p, p->entry[i].call.comm, p->entry[i].on);
}

static void set_states(const call_group *p, int from, int to)
{
    for (size_t i = 0; i < p->count; i++) {
        int expected = from;
        atomic_compare_exchange_strong(&p->entry[i].call.comm->state, &expected,
                                       to);
    }
}

static void *launch_later(void *arg)
{
    call_group *p = arg;
    uint64_t seed = (uint64_t)standin_now_ns();
    standin_dawdle(&seed);
    launch_all(p);
    set_states(p, NCCL_IN_PROGRESS, NCCL_OK);
    for (size_t i = 0; i < p->count; i++) {
        p->entry[i].call.comm->jobs--;
        nccl_release(p->entry[i].call.comm);
    }
    free(p->entry);
    free(p);
    return NULL;
}

static int launch_in_a_thread(void)
{
    call_group *p = malloc(sizeof *p);
    *p = now;
    now = (call_group){ 0, NULL };
    for (size_t i = 0; i < p->count; i++)
        nccl_keep(p->entry[i].call.comm)->jobs++;
    set_states(p, NCCL_OK, NCCL_IN_PROGRESS);
    nccl_spawn(launch_later, p);
    return NCCL_IN_PROGRESS;
}

/* Every other time, where it may be. */
static int shall_wait(void)
{
    static _Atomic unsigned turn;
    int may = 0;
    for (size_t i = 0; i < now.count; i++)
        may |= !now.entry[i].call.comm->blocking;
    return may && (turn++ + (unsigned)standin_setting("STANDIN_SEED", 1)) % 2;
}

static int end_group(void)
{
    int status = spoiled;
    spoiled = NCCL_OK;
    if (!status && shall_wait())
        return launch_in_a_thread();
    if (!status)
        launch_all(&now);
    free(now.entry);
    now = (call_group){ 0, NULL };
    return status;
}

int ncclGroupStart(void)
{
    int status;
    if (nccl_must_fail("GroupStart", &status))
        return status;
    depth++;
    return NCCL_OK;
}

int ncclGroupEnd(void)
{
    int status;
    if (depth == 0)
        return nccl_fail(NCCL_USAGE, "ncclGroupEnd: not in a group call.");
    if (nccl_must_fail("GroupEnd", &status) && depth == 1)
        spoiled = status;
    return --depth ? NCCL_OK : end_group();
}

/* ---- checks -------------------------------------------------------------- */

static int check(const nccl_call *call)
{
    const nccl_signature *signature = &call->signature;
    if (signature->type < 0 || signature->type >= NCCL_TYPES)
        return nccl_fail(NCCL_ARGUMENT, "invalid type %d", signature->type);
    if (signature->root < 0 || signature->root >= call->comm->ranks)
        return nccl_fail(NCCL_ARGUMENT,
                         "invalid root %d (root should be in "
                         "the 0..%d range)",
                         signature->root, call->comm->ranks);
    return NCCL_OK;
}

/* A premultiplied sum is a sum of what each rank multiplies; so is an average
 * of floats. */
static int settle_op(nccl_call *call)
{
    int op = call->signature.op, type = call->signature.type;
    const nccl_factor *factor;
    if (op == NCCL_AVG && type >= NCCL_F16)
        call->factor = (nccl_factor){ 1, type, 0, 1.0 / call->comm->ranks, 0 };
    if (op >= 0 && op < NCCL_OPS)
        return NCCL_OK;
    factor = &call->comm->factor[op < NCCL_OPS ? 0 : op - NCCL_OPS];
    if (op < 0 || op >= NCCL_OPS + NCCL_MOST_FACTORS || !factor->used ||
        factor->type != type)
        return nccl_fail(NCCL_ARGUMENT, "invalid reduction operation %d", op);
    call->factor = *factor;
    call->signature.op = PREMULTIPLIED;
    return NCCL_OK;
}

/* A kernel would fault on what is no memory of the device. */
static void *reach(const void *memory, size_t bytes, const char *name)
{
    void *at = standin_reach((uint64_t)(uintptr_t)memory, bytes);
    if (!at && bytes)
        standin_die("nccl%s of %zu bytes at %p: not all of it is memory that a "
                    "GPU reaches",
                    name, bytes, memory);
    return at;
}

static void find_memory(nccl_call *call, const char *name)
{
    size_t bytes =
        call->signature.count * nccl_type_bytes(call->signature.type);
    size_t all = bytes * (size_t)call->comm->ranks;
    int is_root = call->signature.root == call->comm->rank;
    int kind = call->signature.kind;
    if (kind != NCCL_RECV && (kind != NCCL_BROADCAST || is_root))
        call->in =
            reach(call->in, kind == NCCL_REDUCE_SCATTER ? all : bytes, name);
    if (kind != NCCL_SEND && (kind != NCCL_REDUCE || is_root))
        call->out =
            reach(call->out, kind == NCCL_ALL_GATHER ? all : bytes, name);
}

static int prepare(nccl_call *call, const char *name, void *handle, stream **on)
{
    int status;
    if (nccl_must_fail(name, &status) || (status = nccl_ready(call->comm)) ||
        (status = check(call)) || (status = settle_op(call)))
        return status;
    *on = standin_stream(call->comm->owner, handle);
    if (!*on || standin_stream_context(*on) != call->comm->owner)
        return nccl_fail(NCCL_CUDA, "Cuda failure 'invalid resource handle'");
    find_memory(call, name);
    return NCCL_OK;
}

static int post(nccl_call call, const char *name, void *handle)
{
    stream *on = NULL;
    int status = prepare(&call, name, handle, &on);
    if (status) {
        if (depth)
            spoiled = status;
        return status;
    }
    if (call.signature.count || call.signature.kind >= NCCL_SEND)
        add(&call, on);
    return depth ? NCCL_OK : end_group();
}

/* ---- calls --------------------------------------------------------------- */

int ncclAllReduce(const void *in, void *out, size_t count, int type, int op,
                  nccl_comm *comm, void *stream_handle)
{
    return post(
        (nccl_call){ .comm = comm,
                     .in = in,
                     .out = out,
                     .signature = { count, NCCL_ALL_REDUCE, type, op, 0 } },
        "AllReduce", stream_handle);
}

int ncclBroadcast(const void *in, void *out, size_t count, int type, int root,
                  nccl_comm *comm, void *stream_handle)
{
    return post(
        (nccl_call){ .comm = comm,
                     .in = in,
                     .out = out,
                     .signature = { count, NCCL_BROADCAST, type, 0, root } },
        "Broadcast", stream_handle);
}

int ncclReduce(const void *in, void *out, size_t count, int type, int op,
               int root, nccl_comm *comm, void *stream_handle)
{
    return post(
        (nccl_call){ .comm = comm,
                     .in = in,
                     .out = out,
                     .signature = { count, NCCL_REDUCE, type, op, root } },
        "Reduce", stream_handle);
}

int ncclAllGather(const void *in, void *out, size_t count, int type,
                  nccl_comm *comm, void *stream_handle)
{
    return post(
        (nccl_call){ .comm = comm,
                     .in = in,
                     .out = out,
                     .signature = { count, NCCL_ALL_GATHER, type, 0, 0 } },
        "AllGather", stream_handle);
}

int ncclReduceScatter(const void *in, void *out, size_t count, int type, int op,
                      nccl_comm *comm, void *stream_handle)
{
    return post(
        (nccl_call){ .comm = comm,
                     .in = in,
                     .out = out,
                     .signature = { count, NCCL_REDUCE_SCATTER, type, op, 0 } },
        "ReduceScatter", stream_handle);
}

int ncclSend(const void *from, size_t count, int type, int peer,
             nccl_comm *comm, void *stream_handle)
{
    return post((nccl_call){ .comm = comm,
                             .in = from,
                             .signature = { count, NCCL_SEND, type, 0, peer } },
                "Send", stream_handle);
}

int ncclRecv(void *into, size_t count, int type, int peer, nccl_comm *comm,
             void *stream_handle)
{
    return post((nccl_call){ .comm = comm,
                             .out = into,
                             .signature = { count, NCCL_RECV, type, 0, peer } },
                "Recv", stream_handle);
}

/* ---- operators ----------------------------------------------------------- */

int ncclRedOpCreatePreMulSum(int *op, void *factor, int type, int residence,
                             nccl_comm *comm)
{
    nccl_factor made = { .used = 1, .type = type };
    int status;
    if (nccl_must_fail("RedOpCreatePreMulSum", &status) ||
        (status = nccl_ready(comm)))
        return status;
    if (type < 0 || type >= NCCL_TYPES || residence < 0 || residence > 1)
        return nccl_fail(NCCL_ARGUMENT, "invalid type or residence");
    made.on_device = residence == ON_DEVICE;
    if (made.on_device)
        made.address = (uint64_t)(uintptr_t)reach(factor, nccl_type_bytes(type),
                                                  "RedOpCreatePreMulSum");
    else
        made.value = nccl_value(factor, type);
    for (int i = 0; i < NCCL_MOST_FACTORS; i++)
        if (!comm->factor[i].used) {
            comm->factor[i] = made;
            *op = NCCL_OPS + i;
            return NCCL_OK;
        }
    standin_die("more than %d premultiplied sums at once", NCCL_MOST_FACTORS);
}

int ncclRedOpDestroy(int op, nccl_comm *comm)
{
    int i = op - NCCL_OPS, status;
    if (nccl_must_fail("RedOpDestroy", &status) || (status = nccl_ready(comm)))
        return status;
    if (i < 0 || i >= NCCL_MOST_FACTORS || !comm->factor[i].used)
        return nccl_fail(NCCL_ARGUMENT, "ncclRedOpDestroy : operator is not "
                                        "one of this communicator");
    comm->factor[i].used = 0;
    return NCCL_OK;
}
