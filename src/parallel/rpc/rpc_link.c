/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: messages between agents, over a loose group of their own.
 *
 * Heads travel with tag 0 into receives that are always posted; values and
 * arrays that are too large follow with a tag made of the message's number.
 * Messages of a peer are handled in the order of their numbers, one thread at a
 * time (pump), so that a large one is not overtaken. A callback may come while
 * another call of this file is under way on the same thread: it only appends to
 * a list, and the outer call finds it there.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "parallel/rpc/rpc_into.h"
#include "parallel/rpc/rpc_map.h"
#include "parallel/rpc/rpc_stream.h"

enum { PART_TAGS = 0x7ffffff0 };

_Thread_local int oari_rpc_pumping;

int64_t oari_rpc_tag_of(uint64_t sequence)
{
    return 1 + (int64_t)(sequence % PART_TAGS);
}

void oari_rpc_end_part(oari_rpc_net *net)
{
    oar_rpc *agent = net->agent;

    pthread_mutex_lock(&agent->lock);
    if (--net->parts == 0 && net->closing)
        pthread_cond_broadcast(&agent->changed);
    pthread_mutex_unlock(&agent->lock);
}

/* ---- receiving ----------------------------------------------------------- */

/* A message of this peer may be whole now; with the lock. */
static void look_at_peer(oar_rpc *agent, int from)
{
    oari_rpc_peer *peer = &agent->peer[from];

    if (!peer->looked_at) {
        peer->looked_at = 1;
        oari_list_append(&agent->look, &peer->look);
    }
}

static void part_received(void *arg, oar_status status)
{
    oari_rpc_in *in = arg;
    oari_rpc_net *net = in->net;
    oar_rpc *agent = net->agent;
    int from = in->from;

    if (status != OAR_OK)
        in->status = status;
    if (atomic_fetch_sub(&in->parts_left, 1) == 1) {
        pthread_mutex_lock(&agent->lock);
        look_at_peer(agent, from);
        pthread_mutex_unlock(&agent->lock);
        oari_rpc_pump(agent);
    }
    oari_rpc_end_part(net);
}

static void receive_part(oari_rpc_in *in, void *data, size_t bytes)
{
    oar_call_opts opts = oar_call_opts_init();
    oar_status status;
    oar_work *work;

    if (in->arriving) { /* until the call's deadline, 0 being another */
        opts.timeout_ms = oari_deadline_left_ms(in->deadline_ns);
        opts.timeout_ms += opts.timeout_ms == 0;
    }
    status = oar_recv(in->net->group, oar_span_of(data, bytes, OAR_U8),
                      oari_rpc_rank_in(in->net, in->from),
                      oari_rpc_tag_of(in->head.sequence), &opts, &work);
    if (status != OAR_OK) {
        part_received(in, status);
        return;
    }
    oar_work_then(work, part_received, in);
    oar_work_release(work);
}

/* Posts the receives of what follows a head; it may be gone after the last. */
static void receive_parts(oari_rpc_in *in, int parts)
{
    oar_rpc_message *m = in->message;
    int64_t arrays = m->arrays.count;

    if (parts > arrays)
        receive_part(in, m->values, m->bytes);
    for (int64_t i = 0; i < arrays; i++)
        receive_part(in, m->arrays.data[i].data, m->arrays.data[i].bytes);
}

/* Puts a message where its number belongs; with the lock. Returns 0 if one with
 * that number came before. */
static int insert_in(oari_rpc_peer *peer, oari_rpc_in *in)
{
    oari_link *after = peer->incoming.last;

    while (after != NULL &&
           OARI_CONTAINER_OF(after, oari_rpc_in, link)->head.sequence >
               in->head.sequence)
        after = after->prev;
    if (after != NULL &&
        OARI_CONTAINER_OF(after, oari_rpc_in, link)->head.sequence ==
            in->head.sequence)
        return 0;
    in->link.prev = after;
    in->link.next = after != NULL ? after->next : peer->incoming.first;
    if (in->link.next != NULL)
        in->link.next->prev = &in->link;
    else
        peer->incoming.last = &in->link;
    if (after != NULL)
        after->next = &in->link;
    else
        peer->incoming.first = &in->link;
    return 1;
}

/* Checks a head against what its sender may send now; with the lock. */
static oar_status check_turn(oar_rpc *agent, int from,
                             const oari_rpc_head *head)
{
    const oari_rpc_peer *peer = &agent->peer[from];
    const oari_rpc_pending *p;

    if (head->sequence < peer->expected ||
        head->sequence > peer->expected + 4096)
        return oari_fail(OAR_E_DATA, "rank %d sent message %llu out of turn",
                         from, (unsigned long long)head->sequence);
    switch (head->kind) {
    case OARI_RPC_CALL:
        return oari_rpc_call_fits(agent, from, head)
                   ? OAR_OK
                   : oari_fail(OAR_E_DATA, "more calls of rank %d than allowed",
                               from);
    case OARI_RPC_ANSWER:
        p = oari_rpc_find_pending(agent, head->call);
        return p != NULL && p->to == from
                   ? OAR_OK
                   : oari_fail(OAR_E_DATA,
                               "an answer of rank %d that was not asked for",
                               from);
    case OARI_RPC_PART:
        return oari_rpc_part_fits(agent, from, head)
                   ? OAR_OK
                   : oari_fail(OAR_E_DATA, "more parts of rank %d than allowed",
                               from);
    default:
        return head->arrays == 0 && head->value_bytes == 0
                   ? OAR_OK
                   : oari_fail(OAR_E_DATA, "a %s with values",
                               oari_rpc_kind_name(head->kind));
    }
}

/* Makes the record of a message, with its values if they came with the head. */
static oar_status make_in(oari_rpc_net *net, int from,
                          const unsigned char *byte, size_t bytes,
                          oari_rpc_in **made)
{
    oar_rpc *agent = net->agent;
    uint64_t array_bytes[OARI_RPC_ARRAYS];
    void *data[OARI_RPC_ARRAYS];
    oari_rpc_in *in;
    oari_rpc_head head;
    size_t at;

    OARI_TRY(
        oari_rpc_read_head(byte, bytes, agent->opts.message_bytes, &head, &at));
    OARI_TRY(oari_rpc_read_table(byte + at, &head, array_bytes));
    pthread_mutex_lock(&agent->lock);
    if (check_turn(agent, from, &head) != OAR_OK) {
        pthread_mutex_unlock(&agent->lock);
        return OAR_E_DATA;
    }
    in = oari_alloc(1, sizeof *in);
    if (in != NULL)
        in->arriving = oari_rpc_into_begin(agent, &head, array_bytes, data,
                                           &in->deadline_ns);
    pthread_mutex_unlock(&agent->lock);
    if (in == NULL)
        return OAR_E_NOMEM;
    in->net = net;
    in->from = from;
    in->head = head;
    in->status = oari_rpc_message_receive(
        (size_t)head.value_bytes, head.arrays, array_bytes,
        in->arriving ? data : NULL, &in->message);
    at += 8 * (size_t)head.arrays;
    if (in->message != NULL && bytes > at)
        memcpy(in->message->values, byte + at, bytes - at);
    *made = in;
    return OAR_OK;
}

/* Counts a message that is not believed. If it has the next number, that number
 * is used up, so that those behind it are not held up. */
static void refuse(oar_rpc *agent, int from, const unsigned char *byte,
                   size_t bytes)
{
    oari_rpc_in *in = oari_alloc(1, sizeof *in);

    pthread_mutex_lock(&agent->lock);
    agent->stats.refused++;
    if (in != NULL && bytes >= OARI_RPC_HEAD) {
        in->head.sequence = oari_rpc_u64(byte + 8);
        in->skip = 1;
        in->from = from;
        if (in->head.sequence >= agent->peer[from].expected &&
            in->head.sequence <= agent->peer[from].expected + 4096 &&
            insert_in(&agent->peer[from], in)) {
            look_at_peer(agent, from);
            in = NULL;
        }
    }
    pthread_mutex_unlock(&agent->lock);
    oari_free(in);
}

/* Reads the first part of a message. */
static void read_first(oari_rpc_net *net, int source, const unsigned char *byte,
                       size_t bytes)
{
    oar_rpc *agent = net->agent;
    int from = oari_rpc_rank_of(net, source), parts, taken;
    oari_rpc_in *in;

    if (agent->peer[from].net != net)
        return; /* it is of a process that is gone; only this thread changes
                   that (oari_rpc_take_arrival) */
    if (make_in(net, from, byte, bytes, &in) != OAR_OK) {
        refuse(agent, from, byte, bytes);
        return;
    }
    parts = (int)in->head.arrays + ((in->head.flags & OARI_RPC_APART) != 0);
    if (in->message == NULL)
        parts = 0; /* they stay where they are */
    atomic_init(&in->parts_left, parts);
    pthread_mutex_lock(&agent->lock);
    taken = insert_in(&agent->peer[from], in);
    if (taken) {
        look_at_peer(agent, from);
        agent->peer[from].heard++;
        net->parts += parts;
        agent->stats.bytes_in += in->head.value_bytes + in->head.array_bytes;
        if (in->head.kind == OARI_RPC_CALL) {
            agent->peer[from].calls_in++;
            agent->peer[from].bytes_in +=
                in->head.value_bytes + in->head.array_bytes;
        } else if (in->head.kind == OARI_RPC_PART) {
            oari_rpc_count_part(agent, in->head.call,
                                in->head.value_bytes + in->head.array_bytes);
        }
    } else {
        agent->stats.refused++;
        if (in->arriving)
            oari_rpc_into_end(agent,
                              oari_rpc_find_pending(agent, in->head.call));
    }
    pthread_mutex_unlock(&agent->lock);
    if (!taken) {
        oar_rpc_message_destroy(in->message);
        oari_free(in);
    } else if (parts > 0) {
        receive_parts(in, parts);
    }
}

static void slot_received(void *arg, oar_status status)
{
    oari_rpc_slot *slot = arg;
    oar_rpc *agent = slot->net->agent;

    slot->status = status;
    pthread_mutex_lock(&agent->lock);
    oari_list_append(&agent->ready, &slot->link);
    pthread_mutex_unlock(&agent->lock);
    oari_rpc_pump(agent);
}

/* Posts the receive of a slot again. On failure the slot ends. */
static void post_slot(oari_rpc_slot *slot)
{
    oari_rpc_net *net = slot->net;
    oar_rpc *agent = net->agent;
    oar_call_opts opts = oar_call_opts_init();
    int closing;

    oar_work_release(slot->work);
    slot->work = NULL;
    slot->came = oar_message_init();
    opts.at_most = 1;
    opts.message = &slot->came;
    pthread_mutex_lock(&agent->lock);
    closing = net->closing || agent->closing;
    pthread_mutex_unlock(&agent->lock);
    if (slot->status == OAR_OK && !closing &&
        oar_recv(net->group, oar_span_of(slot->byte, OARI_RPC_EAGER, OAR_U8),
                 OAR_ANY_SOURCE, 0, &opts, &slot->work) == OAR_OK) {
        oar_work_then(slot->work, slot_received, slot);
        return;
    }
    pthread_mutex_lock(&agent->lock);
    net->slots_posted--;
    pthread_cond_broadcast(&agent->changed);
    pthread_mutex_unlock(&agent->lock);
}

/* ---- handling ------------------------------------------------------------ */

/* Takes the next message that is whole and in turn; with the lock. */
static oari_rpc_in *take_whole(oar_rpc *agent)
{
    while (agent->look.first != NULL) {
        oari_rpc_peer *peer =
            OARI_CONTAINER_OF(agent->look.first, oari_rpc_peer, look);
        oari_rpc_in *in =
            OARI_CONTAINER_OF(peer->incoming.first, oari_rpc_in, link);

        if (in != NULL && in->head.sequence == peer->expected &&
            atomic_load(&in->parts_left) == 0) {
            oari_list_remove(&peer->incoming, &in->link);
            peer->expected++;
            return in;
        }
        oari_list_remove(&agent->look, &peer->look);
        peer->looked_at = 0;
    }
    return NULL;
}

static void take_leaving(oar_rpc *agent, int from)
{
    pthread_mutex_lock(&agent->lock);
    agent->peer[from].leaving = 1;
    pthread_cond_broadcast(&agent->changed);
    pthread_mutex_unlock(&agent->lock);
}

/* Checks a message that is whole, and gives it what it refers to. */
static oar_status complete_in(oar_rpc *agent, oari_rpc_in *in)
{
    oar_status status = in->status;
    int mapped = (in->head.flags & OARI_RPC_MAPPED) != 0;

    if (status != OAR_OK && mapped)
        oari_rpc_map_return(agent, in->from, in->head.sequence);
    if (status == OAR_OK && mapped)
        status = oari_rpc_map_arrays(agent, in->from, in->head.sequence,
                                     in->message);
    if (status == OAR_OK)
        status = oari_rpc_message_check(in->message);
    if (status == OAR_OK)
        status = oari_rref_receive_all(agent, in->from, in->message);
    return status;
}

/* Handles a message that is neither a call nor an answer. */
static void handle_note(oar_rpc *agent, oari_rpc_in *in, oar_status status)
{
    if (in->head.kind == OARI_RPC_PART) {
        oari_rpc_take_part(agent, in->from, in->head.call, in->message, status);
        return;
    }
    oar_rpc_message_destroy(in->message);
    if (in->head.kind == OARI_RPC_CANCEL)
        oari_rpc_take_cancel(agent, in->from, in->head.call);
    else if (in->head.kind == OARI_RPC_LEAVING)
        take_leaving(agent, in->from);
    else if (in->head.kind == OARI_RPC_CREDIT)
        oari_rpc_take_credit(agent, in->from, &in->head);
    else if (in->head.kind == OARI_RPC_RETURNED)
        oari_rpc_map_returned(agent, in->from, in->head.reference);
    else
        oari_rref_take_note(agent, in->from, &in->head);
}

/* Handles a message that was checked, with that status; with the lock, which it
 * releases meanwhile. */
static void handle(oar_rpc *agent, oari_rpc_in *in, oar_status status)
{
    agent->stats.refused += in->status == OAR_OK && status != OAR_OK;
    if (in->head.kind == OARI_RPC_CALL) {
        oari_rpc_take_call(agent, in->from, &in->head, in->message, status);
    } else if (in->head.kind == OARI_RPC_ANSWER) {
        oari_rpc_take_answer(agent, in->from, in->head.call,
                             (in->head.flags & OARI_RPC_FAILED) != 0,
                             in->message, status);
    } else {
        pthread_mutex_unlock(&agent->lock);
        handle_note(agent, in, status);
        pthread_mutex_lock(&agent->lock);
    }
}

/* Handles all there is, as the only thread (pumping); with the lock, which it
 * releases. */
static void handle_all(oar_rpc *agent)
{
    for (;;) {
        oari_rpc_slot *slot = OARI_CONTAINER_OF(oari_list_take(&agent->ready),
                                                oari_rpc_slot, link);
        oari_rpc_in *in = slot == NULL ? take_whole(agent) : NULL;
        oar_status status = OAR_OK;

        if (slot == NULL && in == NULL) {
            if (!oari_rpc_take_arrival(agent))
                break;
            continue;
        }
        pthread_mutex_unlock(&agent->lock);
        if (slot != NULL && slot->status == OAR_OK)
            read_first(slot->net, slot->came.source, slot->byte,
                       slot->came.bytes);
        if (slot != NULL)
            post_slot(slot);
        else if (!in->skip)
            status = complete_in(agent, in);
        pthread_mutex_lock(&agent->lock);
        if (in != NULL && !in->skip)
            handle(agent, in, status);
        oari_free(in);
    }
    agent->pumping = 0;
    if (agent->closing || agent->to_pump > 0)
        pthread_cond_broadcast(&agent->changed);
    pthread_mutex_unlock(&agent->lock);
    oari_rref_send_notes(agent);
}

void oari_rpc_pump(oar_rpc *agent)
{
    int outer = oari_rpc_pumping;

    pthread_mutex_lock(&agent->lock);
    if (agent->pumping) {
        pthread_mutex_unlock(&agent->lock);
        return;
    }
    agent->pumping = oari_rpc_pumping = 1;
    handle_all(agent);
    oari_rpc_pumping = outer;
}

/* Reads a message that may be handled at once: a call or an answer of one part.
 * Returns 0 if it is another. */
static int read_small(const oar_rpc *agent, const unsigned char *byte,
                      size_t bytes, oari_rpc_in *in, size_t *behind)
{
    return oari_rpc_read_head(byte, bytes, agent->opts.message_bytes, &in->head,
                              behind) == OAR_OK &&
           (in->head.kind == OARI_RPC_CALL ||
            in->head.kind == OARI_RPC_ANSWER) &&
           in->head.arrays == 0 && in->head.array_bytes == 0 &&
           (in->head.flags & (OARI_RPC_APART | OARI_RPC_MAPPED)) == 0;
}

/* Handles such a message if it is the next in turn: 1. Else nothing has been
 * done. With the lock, which it releases meanwhile. */
static int take_next(oari_rpc_net *net, oari_rpc_in *in,
                     const unsigned char *values)
{
    oar_rpc *agent = net->agent;
    oari_rpc_peer *peer = &agent->peer[in->from];
    oar_status status;

    if (peer->net != net || in->head.sequence != peer->expected ||
        peer->incoming.first != NULL ||
        check_turn(agent, in->from, &in->head) != OAR_OK)
        return 0;
    peer->expected++;
    peer->heard++;
    agent->stats.bytes_in += in->head.value_bytes;
    if (in->head.kind == OARI_RPC_CALL) {
        peer->calls_in++;
        peer->bytes_in += in->head.value_bytes;
    }
    in->net = net;
    in->skip = in->arriving = 0;
    in->message = NULL;
    in->status = status = oari_rpc_message_receive((size_t)in->head.value_bytes,
                                                   0, NULL, NULL, &in->message);
    if (status == OAR_OK) {
        if (in->message->bytes > 0)
            memcpy(in->message->values, values, in->message->bytes);
        status = complete_in(agent, in);
    }
    handle(agent, in, status);
    return 1;
}

/* A thread that drives another net may be at it: that one is waited for. It
 * needs nothing of this one. */
void oari_rpc_take_active(void *arg, int from, const unsigned char *data,
                          size_t bytes)
{
    oari_rpc_net *net = arg;
    oar_rpc *agent = net->agent;
    int outer = oari_rpc_pumping, small;
    oari_rpc_in in;
    size_t behind = 0;

    small = read_small(agent, data, bytes, &in, &behind);
    in.from = oari_rpc_rank_of(net, from);
    pthread_mutex_lock(&agent->lock);
    agent->to_pump++;
    while (agent->pumping)
        oari_rpc_wait_change(agent, OARI_NEVER);
    agent->to_pump--;
    agent->pumping = oari_rpc_pumping = 1;
    if (!small || !take_next(net, &in, data + behind)) {
        pthread_mutex_unlock(&agent->lock);
        read_first(net, from, data, bytes);
        pthread_mutex_lock(&agent->lock);
    }
    handle_all(agent);
    oari_rpc_pumping = outer;
}

void oari_rpc_start_slots(oari_rpc_net *net)
{
    net->slots_posted = net->slots;
    for (int i = 0; i < net->slots; i++)
        post_slot(&net->slot[i]);
}

void oari_rpc_drop_incoming(oari_rpc_peer *peer)
{
    oari_link *link;

    while ((link = oari_list_take(&peer->incoming)) != NULL) {
        oari_rpc_in *in = OARI_CONTAINER_OF(link, oari_rpc_in, link);

        oar_rpc_message_destroy(in->message);
        oari_free(in);
    }
}
