/* SPDX-License-Identifier: Apache-2.0 */
/* standin/nccl_move.c: what NCCL does on a stream: collectives in chunks
 * through the seats of the hall, one after the other; then all messages of the
 * group at once through its boxes. Everything that waits ends on abort, and
 * then nothing more is written. */
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
    atomic_store(&comm->hall->seat[comm->rank].step, mine);
    for (int i = 0; i < comm->ranks; i++)
        while (atomic_load(&comm->hall->seat[i].step) < mine)
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
static int agree(nccl_comm *comm, const nccl_note *note)
{
    nccl_seat *seat = comm->hall->seat;
    seat[comm->rank].note = *note;
    if (meet(comm))
        return 1;
    for (int i = 0; i < comm->ranks; i++)
        if (memcmp(&seat[i].note, note, sizeof *note) != 0)
            return hang(comm);
    return meet(comm);
}

/* This rank's part of a chunk into its seat, multiplied if it has to be. */
static void offer(const nccl_call *call, const char *from, size_t count)
{
    nccl_comm *comm = call->comm;
    char *seat = comm->hall->seat[comm->rank].data;
    int type = call->note.type;
    if (call->factor.used)
        nccl_scale(seat, from, count, type, call->factor.value);
    else
        memcpy(seat, from, count * nccl_type_bytes(type));
}

static void combine(const nccl_call *call, char *to, size_t count)
{
    const char *from[NCCL_MOST_RANKS];
    for (int i = 0; i < call->comm->ranks; i++)
        from[i] = call->comm->hall->seat[i].data;
    nccl_combine(to, from, call->comm->ranks, count, call->note.type,
                 call->note.op);
}

typedef void (*take_fn)(const nccl_call *call, size_t at, size_t count);

static void take_reduced(const nccl_call *call, size_t at, size_t count)
{
    if (call->note.kind == NCCL_REDUCE && call->note.root != call->comm->rank)
        return;
    combine(call, call->out + at * nccl_type_bytes(call->note.type), count);
}

static void take_broadcast(const nccl_call *call, size_t at, size_t count)
{
    size_t each = nccl_type_bytes(call->note.type);
    memcpy(call->out + at * each, call->comm->hall->seat[call->note.root].data,
           count * each);
}

static void take_gathered(const nccl_call *call, size_t at, size_t count)
{
    size_t each = nccl_type_bytes(call->note.type);
    for (int i = 0; i < call->comm->ranks; i++)
        memcpy(call->out + ((size_t)i * call->note.count + at) * each,
               call->comm->hall->seat[i].data, count * each);
}

/* Everybody offers `from` chunk by chunk and takes what take takes. */
static int in_chunks(const nccl_call *call, const char *from, take_fn take)
{
    size_t each = nccl_type_bytes(call->note.type);
    size_t most = NCCL_CHUNK / each;
    for (size_t at = 0; at < call->note.count; at += most) {
        size_t count = smaller(most, call->note.count - at);
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
    size_t part = call->note.count * nccl_type_bytes(call->note.type);
    for (int i = 0; i < call->comm->ranks; i++)
        if (in_chunks(call, call->in + (size_t)i * part,
                      i == call->comm->rank ? take_reduced : NULL))
            return 1;
    return 0;
}

static int run_collective(nccl_call *call)
{
    nccl_comm *comm = call->comm;
    if (comm->aborted || agree(comm, &call->note))
        return 1;
    if (call->factor.on_device)
        call->factor.value = nccl_value((void *)(uintptr_t)call->factor.address,
                                        call->factor.type);
    switch (call->note.kind) {
    case NCCL_BROADCAST:
        return in_chunks(call, comm->rank == call->note.root ? call->in : NULL,
                         take_broadcast);
    case NCCL_ALL_GATHER: return in_chunks(call, call->in, take_gathered);
    case NCCL_REDUCE_SCATTER: return scatter_reduced(call);
    default: return in_chunks(call, call->in, take_reduced);
    }
}

/* ---- messages ------------------------------------------------------------ */

static size_t message_bytes(const nccl_call *call)
{
    return call->note.count * nccl_type_bytes(call->note.type);
}

/* Done when the receiver has taken the last of it: a send waits for its
 * receive. done_bytes counts one more for what is in the box. */
static int move_send(nccl_call *call)
{
    nccl_box *box = &call->comm->hall->box[call->comm->rank][call->note.root];
    size_t bytes = message_bytes(call), count;
    uint64_t put = atomic_load(&box->put);
    if (put != atomic_load(&box->taken))
        return 0;
    if (call->finished < 0 && call->done_bytes == bytes) {
        call->finished = 1;
        return 1;
    }
    count = smaller(NCCL_CHUNK, bytes - call->done_bytes);
    if (count)
        memcpy(box->data, call->in + call->done_bytes, count);
    box->bytes = bytes;
    call->done_bytes += count;
    call->finished = -1; /* at least one chunk is on its way */
    atomic_store(&box->put, put + 1);
    return 1;
}

static int move_receive(nccl_call *call)
{
    nccl_box *box = &call->comm->hall->box[call->note.root][call->comm->rank];
    size_t bytes = message_bytes(call), count;
    uint64_t taken = atomic_load(&box->taken);
    if (atomic_load(&box->put) == taken || box->bytes != bytes)
        return 0; /* sizes that differ: for ever */
    count = smaller(NCCL_CHUNK, bytes - call->done_bytes);
    if (count)
        memcpy(call->out + call->done_bytes, box->data, count);
    call->done_bytes += count;
    if (call->done_bytes == bytes)
        call->finished = 1;
    atomic_store(&box->taken, taken + 1);
    return 1;
}

static int is_message(const nccl_call *call)
{
    return call->note.kind >= NCCL_SEND;
}

/* Whether an earlier one of the same direction and peer is still under way. */
static int is_behind(const nccl_bundle *bundle, size_t i)
{
    const nccl_note *note = &bundle->call[i].note;
    for (size_t k = 0; k < i; k++) {
        const nccl_call *other = &bundle->call[k];
        if (other->finished <= 0 && other->note.kind == note->kind &&
            other->note.root == note->root)
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
            moved |= call->note.kind == NCCL_SEND ? move_send(call)
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
