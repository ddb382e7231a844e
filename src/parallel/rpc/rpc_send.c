/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: messages on their way out. They get their numbers in the order in which
 * they are posted, by one thread for each peer at a time. One that is small is
 * an active message if that can be: written on the stack, and gone at once. */
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "comm/active/active.h"
#include "parallel/rpc/rpc_map.h"

enum { PUSH_BYTES = 1024 }; /* of a message that is written on the stack */

static void drop_out(oari_rpc_out *out)
{
    oari_rpc_map_free_lent(out->lent);
    oar_rpc_message_destroy(out->message);
    oari_free(out);
}

static void part_sent(void *arg, oar_status status)
{
    oari_rpc_out *out = arg;
    oari_rpc_net *net = out->net;

    (void)status; /* a rank that is gone is told by rank_gone */
    if (atomic_fetch_sub(&out->parts_left, 1) == 1)
        drop_out(out);
    oari_rpc_end_part(net);
}

static void post_part(oari_rpc_out *out, const void *data, size_t bytes,
                      int64_t tag)
{
    oar_work *work;
    oar_status status =
        oar_send(out->net->group, oar_span_of_const(data, bytes, OAR_U8),
                 oari_rpc_rank_in(out->net, out->to), tag, NULL, &work);

    if (status != OAR_OK) {
        part_sent(out, status);
        return;
    }
    oar_work_then(work, part_sent, out);
    oar_work_release(work);
}

/* Posts all parts of a message, after the last of which it may be gone. */
static void post_parts(oari_rpc_out *out, uint64_t sequence)
{
    const oar_rpc_message *m = out->message;
    int64_t tag = oari_rpc_tag_of(sequence);
    int apart = out->apart, mapped = out->mapped;
    int arrays = atomic_load(&out->parts_left) - 1 - apart;

    if (oari_active_send(out->net->group, oari_rpc_rank_in(out->net, out->to),
                         out->byte, out->bytes))
        part_sent(out, OAR_OK);
    else
        post_part(out, out->byte, out->bytes, 0);
    if (apart)
        post_part(out, m->values, m->bytes, tag);
    for (int64_t i = 0; arrays > 0; i++)
        if (!mapped || !m->arrays.data[i].mapped) {
            arrays--;
            post_part(out, m->arrays.data[i].data, m->arrays.data[i].bytes,
                      tag);
        }
}

/* Posts what waits for a rank, unless another thread, or this one further out,
 * is at it: the order of numbers is that of posts. */
static void flush(oar_rpc *agent, int to)
{
    oari_rpc_peer *peer = &agent->peer[to];
    oari_link *link;

    pthread_mutex_lock(&agent->lock);
    if (!peer->sending) {
        peer->sending = 1;
        while ((link = oari_list_take(&peer->outgoing)) != NULL) {
            oari_rpc_out *out = OARI_CONTAINER_OF(link, oari_rpc_out, link);
            uint64_t sequence = peer->sent + 1;
            int late = out->net != peer->net; /* its rank died meanwhile */

            if (!late) {
                peer->sent = sequence;
                oari_rpc_set_u64(out->byte + 8, sequence);
                out->net->parts += atomic_load(&out->parts_left);
                if (out->lent != NULL && !peer->gone) {
                    out->lent->sequence = sequence;
                    oari_list_append(&peer->lent, &out->lent->link);
                    out->lent = NULL;
                }
            }
            pthread_mutex_unlock(&agent->lock);
            if (late)
                drop_out(out);
            else
                post_parts(out, sequence);
            pthread_mutex_lock(&agent->lock);
        }
        peer->sending = 0;
    }
    pthread_mutex_unlock(&agent->lock);
}

/* Returns whether an array of a message with that head is sent. */
static int is_sent(const oari_rpc_head *head, const oari_rpc_attached *a)
{
    return (head->flags & OARI_RPC_MAPPED) == 0 || !a->mapped;
}

/* Says in the head what follows it, and returns the bytes of the first part. */
static size_t complete_head(oari_rpc_head *head, const oar_rpc_message *m,
                            int mapped)
{
    size_t arrays = 0, values = m != NULL ? m->bytes : 0, bytes;
    int apart;

    head->flags |= mapped ? OARI_RPC_MAPPED : 0;
    for (int64_t i = 0; m != NULL && i < m->arrays.count; i++)
        arrays += is_sent(head, &m->arrays.data[i]);
    bytes =
        OARI_RPC_HEAD + strlen(head->name) + strlen(head->site) + 8 * arrays;
    apart = bytes + values > OARI_RPC_EAGER;
    head->flags |= apart ? OARI_RPC_APART : 0;
    head->arrays = (uint32_t)arrays;
    head->value_bytes = values;
    head->array_bytes =
        m != NULL ? m->array_bytes - (mapped ? m->mapped_bytes : 0) : 0;
    return bytes + (apart ? 0 : values);
}

/* Writes the first part: head, table, and the values if there is room. */
static void write_first(unsigned char *byte, const oari_rpc_head *head,
                        const oar_rpc_message *m)
{
    size_t at = oari_rpc_write_head(byte, head);

    for (int64_t i = 0; m != NULL && i < m->arrays.count; i++)
        if (is_sent(head, &m->arrays.data[i])) {
            oari_rpc_set_u64(byte + at, m->arrays.data[i].bytes);
            at += 8;
        }
    if ((head->flags & OARI_RPC_APART) == 0 && head->value_bytes > 0)
        memcpy(byte + at, m->values, m->bytes);
}

static oari_rpc_out *write_out(int to, const oari_rpc_head *head,
                               oar_rpc_message *m, size_t bytes)
{
    oari_rpc_out *out = oari_alloc_aligned(16, sizeof *out + bytes);

    if (out == NULL)
        return NULL;
    *out = (oari_rpc_out){ .to = to,
                           .message = m,
                           .apart = (head->flags & OARI_RPC_APART) != 0,
                           .mapped = (head->flags & OARI_RPC_MAPPED) != 0,
                           .bytes = bytes };
    if (out->mapped && oari_rpc_map_lend(m, &out->lent) != OAR_OK) {
        oari_free(out);
        return NULL;
    }
    atomic_init(&out->parts_left, 1 + out->apart + (int)head->arrays);
    write_first(out->byte, head, m);
    return out;
}

/* Whether the next message to a rank can go now; with the lock. */
static int is_my_turn(const oar_rpc *agent, int to, int life)
{
    const oari_rpc_peer *peer = &agent->peer[to];

    return !peer->sending && peer->outgoing.first == NULL && !peer->gone &&
           !agent->closing && peer->life == life && peer->net != NULL;
}

/* The lock is held while the message is written, so that none can overtake it:
 * nothing waits there, and no function runs. */
int oari_rpc_push(oar_rpc *agent, int to, oari_rpc_head *head,
                  const oar_rpc_message *message)
{
    oari_rpc_peer *peer = &agent->peer[to];
    unsigned char byte[PUSH_BYTES];
    size_t bytes;

    if (!is_my_turn(agent, to, head->life) || head->kind == OARI_RPC_LAPSED ||
        (message != NULL &&
         (message->refs.count > 0 || message->arrays.count > 0)))
        return 0;
    bytes = complete_head(head, message, 0);
    if (bytes > PUSH_BYTES || (head->flags & OARI_RPC_APART) != 0)
        return 0;
    head->sequence = peer->sent + 1;
    write_first(byte, head, message);
    if (!oari_active_send(peer->net->group, oari_rpc_rank_in(peer->net, to),
                          byte, bytes))
        return 0;
    peer->sent++;
    agent->stats.bytes_out += head->value_bytes;
    return 1;
}

oar_status oari_rpc_send(oar_rpc *agent, int to, oari_rpc_head *head,
                         oar_rpc_message *message)
{
    oari_rpc_out *out;
    size_t bytes;
    int keep, sent;

    pthread_mutex_lock(&agent->lock);
    sent = oari_rpc_push(agent, to, head, message);
    pthread_mutex_unlock(&agent->lock);
    if (sent) {
        oar_rpc_message_destroy(message);
        return OAR_OK;
    }
    bytes =
        complete_head(head, message, oari_rpc_map_applies(agent, to, message));
    out = write_out(to, head, message, bytes);
    if (out == NULL) {
        oar_rpc_message_destroy(message);
        return OAR_E_NOMEM;
    }
    pthread_mutex_lock(&agent->lock);
    keep = !agent->peer[to].gone && !agent->closing &&
           head->life == agent->peer[to].life;
    if (keep) {
        oari_rref_send_all(agent, to, message);
        if (head->kind == OARI_RPC_LAPSED)
            oari_rref_lapse(agent, to); /* what is given later is behind it */
        out->net = agent->peer[to].net;
        oari_list_append(&agent->peer[to].outgoing, &out->link);
        agent->stats.bytes_out += head->value_bytes + head->array_bytes;
    }
    pthread_mutex_unlock(&agent->lock);
    if (!keep) {
        drop_out(out);
        return OAR_OK;
    }
    flush(agent, to);
    return OAR_OK;
}
