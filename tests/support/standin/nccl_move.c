/* SPDX-License-Identifier: Apache-2.0 */
/* standin/nccl_move.c: what NCCL does on a stream: collectives in chunks
 * through the slots of the shared memory, one after the other; then all
 * messages of the group at once through its queues. Everything that waits ends
 * on abort, and then nothing more is written. */
#include <stddef.h>
#include <string.h>

#include "standin/nccl.h"

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- collectives --------------------------------------------------------- */

/* Until all ranks are there as often. Whether to give up. */
static int meet(nccl_comm *comm)
{
    uint64_t mine = ++comm->steps;
    atomic_store(&comm->shm->slot[comm->rank].step, mine);
    for (int i = 0; i < comm->ranks; i++)
        while (atomic_load(&comm->shm->slot[i].step) < mine)
            if (nccl_pause(comm))
                return 1;
    return comm->aborted;
}

static int hang(nccl_comm *comm)
{
    while (!nccl_pause(comm))
        ;
    return 1;
}

/* Ranks that do not do the same wait for ever, as they would. */
static int agree(nccl_comm *comm, const nccl_signature *signature)
{
    nccl_slot *slot = comm->shm->slot;
    slot[comm->rank].signature = *signature;
    if (meet(comm))
        return 1;
    for (int i = 0; i < comm->ranks; i++)
        if (memcmp(&slot[i].signature, signature, sizeof *signature) != 0)
            return hang(comm);
    return meet(comm);
}

/* Copies this rank's part of a chunk into its slot, multiplied if need be. */
static void offer(const nccl_call *call, const char *from, size_t count)
{
    nccl_comm *comm = call->comm;
    char *slot = comm->shm->slot[comm->rank].data;
    int type = call->signature.type;
    if (call->factor.used)
        nccl_scale(slot, from, count, type, call->factor.value);
    else
        memcpy(slot, from, count * nccl_type_bytes(type));
}

static void combine(const nccl_call *call, char *to, size_t count)
{
    const char *from[NCCL_MOST_RANKS];
    for (int i = 0; i < call->comm->ranks; i++)
        from[i] = call->comm->shm->slot[i].data;
    nccl_combine(to, from, call->comm->ranks, count, call->signature.type,
                 call->signature.op);
}

typedef void (*move_fn)(const nccl_call *call, size_t at, size_t count);

static void take_reduced(const nccl_call *call, size_t at, size_t count)
{
    if (call->signature.kind == NCCL_REDUCE &&
        call->signature.root != call->comm->rank)
        return;
    combine(call, call->out + at * nccl_type_bytes(call->signature.type),
            count);
}

static void take_broadcast(const nccl_call *call, size_t at, size_t count)
{
    size_t each = nccl_type_bytes(call->signature.type);
    memcpy(call->out + at * each,
           call->comm->shm->slot[call->signature.root].data, count * each);
}

static void take_gathered(const nccl_call *call, size_t at, size_t count)
{
    size_t each = nccl_type_bytes(call->signature.type);
    for (int i = 0; i < call->comm->ranks; i++)
        memcpy(call->out + ((size_t)i * call->signature.count + at) * each,
               call->comm->shm->slot[i].data, count * each);
}

/* All ranks offer `from` chunk by chunk and receive by `take`. */
static int in_chunks(const nccl_call *call, const char *from, move_fn take)
{
    size_t each = nccl_type_bytes(call->signature.type);
    size_t most = NCCL_CHUNK / each;
    for (size_t at = 0; at < call->signature.count; at += most) {
        size_t count = smaller(most, call->signature.count - at);
        if (from)
            offer(call, from + at * each, count);
        if (meet(call->comm))
            return 1;
        if (take)
            take(call, at, count);
        if (meet(call->comm))
            return 1;
    }
    return 0;
}

static int scatter_reduced(const nccl_call *call)
{
    size_t part = call->signature.count * nccl_type_bytes(call->signature.type);
    for (int i = 0; i < call->comm->ranks; i++)
        if (in_chunks(call, call->in + (size_t)i * part,
                      i == call->comm->rank ? take_reduced : NULL))
            return 1;
    return 0;
}

static int run_collective(nccl_call *call)
{
    nccl_comm *comm = call->comm;
    if (comm->aborted || agree(comm, &call->signature))
        return 1;
    if (call->factor.on_device)
        call->factor.value = nccl_value((void *)(uintptr_t)call->factor.address,
                                        call->factor.type);
    switch (call->signature.kind) {
    case NCCL_BROADCAST:
        return in_chunks(call,
                         comm->rank == call->signature.root ? call->in : NULL,
                         take_broadcast);
    case NCCL_ALL_GATHER: return in_chunks(call, call->in, take_gathered);
    case NCCL_REDUCE_SCATTER: return scatter_reduced(call);
    default: return in_chunks(call, call->in, take_reduced);
    }
}

/* ---- messages ------------------------------------------------------------ */

static size_t message_bytes(const nccl_call *call)
{
    return call->signature.count * nccl_type_bytes(call->signature.type);
}

/* Done when the receiver has taken the last of it: a send waits for its
 * receive. done_bytes counts one more for what is in the queue. */
static int move_send(nccl_call *call)
{
    nccl_queue *queue =
        &call->comm->shm->queue[call->comm->rank][call->signature.root];
    size_t bytes = message_bytes(call), count;
    uint64_t put = atomic_load(&queue->put);
    if (put != atomic_load(&queue->taken))
        return 0;
    if (call->finished < 0 && call->done_bytes == bytes) {
        call->finished = 1;
        return 1;
    }
    count = smaller(NCCL_CHUNK, bytes - call->done_bytes);
    if (count)
        memcpy(queue->data, call->in + call->done_bytes, count);
    queue->bytes = bytes;
    call->done_bytes += count;
    call->finished = -1; /* at least one chunk is on its way */
    atomic_store(&queue->put, put + 1);
    return 1;
}

static int move_receive(nccl_call *call)
{
    nccl_queue *queue =
        &call->comm->shm->queue[call->signature.root][call->comm->rank];
    size_t bytes = message_bytes(call), count;
    uint64_t taken = atomic_load(&queue->taken);
    if (atomic_load(&queue->put) == taken || queue->bytes != bytes)
        return 0; /* sizes that differ: for ever */
    count = smaller(NCCL_CHUNK, bytes - call->done_bytes);
    if (count)
        memcpy(call->out + call->done_bytes, queue->data, count);
    call->done_bytes += count;
    if (call->done_bytes == bytes)
        call->finished = 1;
    atomic_store(&queue->taken, taken + 1);
    return 1;
}

static int is_message(const nccl_call *call)
{
    return call->signature.kind >= NCCL_SEND;
}

/* Whether an earlier one of the same direction and peer is still under way. */
static int is_behind(const nccl_bundle *bundle, size_t i)
{
    const nccl_signature *signature = &bundle->call[i].signature;
    for (size_t k = 0; k < i; k++) {
        const nccl_call *other = &bundle->call[k];
        if (other->finished <= 0 && other->signature.kind == signature->kind &&
            other->signature.root == signature->root)
            return 1;
    }
    return 0;
}

/* Moves every message on a little. *left: how many are not done. */
static int move_all(nccl_bundle *bundle, size_t *left)
{
    int moved = 0;
    *left = 0;
    for (size_t i = 0; i < bundle->count; i++) {
        nccl_call *call = &bundle->call[i];
        if (!is_message(call) || call->finished > 0)
            continue;
        if (!is_behind(bundle, i))
            moved |= call->signature.kind == NCCL_SEND ? move_send(call)
                                                       : move_receive(call);
        *left += call->finished <= 0;
    }
    return moved;
}

static void run_messages(nccl_bundle *bundle)
{
    size_t left = 1;
    while (left && !bundle->comm->aborted)
        if (!move_all(bundle, &left) && left && nccl_pause(bundle->comm))
            return;
}

void nccl_run(void *arg)
{
    nccl_bundle *bundle = arg;
    int over = bundle->comm->aborted;
    for (size_t i = 0; i < bundle->count && !over; i++)
        if (!is_message(&bundle->call[i]))
            over = run_collective(&bundle->call[i]);
    if (!over)
        run_messages(bundle);
    nccl_release(bundle->comm);
}
