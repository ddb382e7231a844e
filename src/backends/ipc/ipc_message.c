/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_message: sends and receives. They are matched by the hosts (match.h): a
 * sender puts a letter into its box for that rank, which is an offer, and the
 * receiver, once it has a receive that fits, copies the data and answers. Small
 * messages are copied aside first, so that their send waits for nobody.
 *
 * Messages with a peer have a stream of their own, on which nothing ever waits
 * but for what is on a stream already: a send's stream waits for the copy only
 * after the answer has come. So whatever the order in which ranks send and
 * receive, streams never wait for each other in a circle. */
#include <string.h>

#include "backends/ipc/ipc.h"
#include "base/status.h"
#include "comm/group/group.h"
#include "comm/engine/message.h"

enum { CALL = 4 /* scratch word of a receive: its oar_collective */ };

static oar_status stream_for(ipc *self, int peer, oari_cu_stream *stream)
{
    ipc_peer *p = &self->peer[peer];

    if (!self->own_stream) {
        *stream = self->stream;
        return OAR_OK;
    }
    if (p->stream == NULL)
        OARI_TRY(oar_stream_create(oari_ipc_device(self), OAR_STREAM_URGENT,
                                   &p->stream));
    *stream = p->stream;
    return OAR_OK;
}

/* ---- sending ------------------------------------------------------------- */

/* Whether the place of the next letter is free: the one before in it has been
 * answered, and its copy has run. */
static int has_place(const ipc *self, int peer)
{
    ipc_acks *desk = oari_ipc_acks(self, self->rank, peer);
    uint32_t old = self->peer[peer].sent + 1 - IPC_BOX;

    if (self->peer[peer].sent < IPC_BOX)
        return 1;
    return atomic_load(&desk->answer[old % IPC_BOX]) >> 1 ==
               (old & UINT32_MAX >> 1) &&
           ipc_has(&desk->done[old % IPC_BOX], old);
}

/* A place for the data that is the engine's own. */
static oar_status find_aside(ipc *self, int peer, uint32_t place, size_t bytes,
                             void **aside)
{
    ipc_peer *p = &self->peer[peer];

    if (bytes <= self->eager_bytes) {
        if (p->eager == NULL)
            OARI_TRY(oar_device_alloc(oari_ipc_device(self),
                                      IPC_BOX * self->eager_bytes, &p->eager));
        *aside = (unsigned char *)p->eager + place * self->eager_bytes;
        return OAR_OK;
    }
    OARI_TRY(oar_device_alloc(oari_ipc_device(self), bytes, &p->loose[place]));
    *aside = p->loose[place];
    return OAR_OK;
}

/* Shows the data, or a copy of it: then the send waits for nobody. */
static oar_status show_data(ipc *self, const oar_collective *call,
                            uint32_t place, oari_cu_stream stream,
                            ipc_message_header *letter)
{
    void *aside;

    letter->memory.id = 0;
    letter->eager = letter->bytes <= self->eager_bytes;
    if (letter->bytes == 0)
        return OAR_OK;
    if (!letter->eager)
        OARI_TRY(oari_ipc_export(self, call->out.data, &letter->memory));
    if (letter->memory.id != 0)
        return OAR_OK;
    letter->eager = 1;
    OARI_TRY(find_aside(self, call->root, place, letter->bytes, &aside));
    OARI_TRY(oari_ipc_copy(self, oari_cu_address(aside),
                           oari_cu_address(call->out.data), letter->bytes,
                           stream));
    return oari_ipc_export(self, aside, &letter->memory);
}

static oar_status put_letter(ipc *self, ipc_work *work,
                             ipc_message_header **put)
{
    const oar_collective *call = work->call;
    ipc_box *box = oari_ipc_box(self, self->rank, call->root);
    uint32_t number = self->peer[call->root].sent + 1;
    uint32_t place = number % IPC_BOX;
    ipc_message_header *letter = *put = &box->letter[place];
    oari_cu_stream stream;

    OARI_TRY(stream_for(self, call->root, &stream));
    oar_device_free(oari_ipc_device(self), self->peer[call->root].loose[place],
                    stream);
    self->peer[call->root].loose[place] = NULL;
    letter->tag = (uint64_t)call->tag;
    letter->bytes = oari_span_bytes(&call->out);
    letter->dtype = (uint32_t)call->out.dtype;
    OARI_TRY(oari_ipc_wait_event(self, stream, call->ready));
    OARI_TRY(show_data(self, call, place, stream, letter));
    OARI_TRY(oari_ipc_write_word(self, stream, self->rank, &box->ready[place],
                                 number));
    if (letter->eager)
        OARI_TRY(oari_ipc_record_event(self, stream, call->finished));
    work->number = number;
    self->peer[call->root].sent = number;
    atomic_store(&box->sent, number);
    return OAR_OK;
}

static void send_waiting(ipc *self, int peer)
{
    ipc_peer *p = &self->peer[peer];

    while (p->outbox.first != NULL && has_place(self, peer)) {
        ipc_message_header *letter;
        oar_status status = put_letter(self, p->outbox.first, &letter);

        if (status != OAR_OK || letter->eager)
            oari_ipc_queue_end(self, &p->outbox, &p->outbox.first, status);
        else { /* it waits for its answer */
            ipc_work *work = p->outbox.first;
            p->outbox.first = work->next;
            if (p->outbox.first == NULL)
                p->outbox.end = &p->outbox.first;
            work->next = NULL;
            *p->asked.end = work;
            p->asked.end = &work->next;
        }
    }
}

/* The copy is on the receiver's stream: ours may wait for it. */
static oar_status await_copy(ipc *self, const ipc_work *work)
{
    int peer = work->call->root;
    ipc_acks *desk = oari_ipc_acks(self, self->rank, peer);
    oari_cu_stream stream;

    OARI_TRY(stream_for(self, peer, &stream));
    OARI_TRY(oari_ipc_wait_word(
        self, stream, peer, &desk->done[work->number % IPC_BOX], work->number));
    return oari_ipc_record_event(self, stream, work->call->finished);
}

static void hear_answers(ipc *self, int peer)
{
    ipc_peer *p = &self->peer[peer];
    ipc_acks *desk = oari_ipc_acks(self, self->rank, peer);
    ipc_work **at = &p->asked.first;

    while (*at != NULL) {
        uint32_t number = (*at)->number;
        uint32_t answer = atomic_load(&desk->answer[number % IPC_BOX]);

        if (answer >> 1 != (number & UINT32_MAX >> 1))
            at = &(*at)->next;
        else
            oari_ipc_queue_end(self, &p->asked, at,
                               (answer & 1) != 0 ? OAR_E_SIZE
                                                 : await_copy(self, *at));
    }
}

/* ---- receiving ----------------------------------------------------------- */

static oar_status copy_data(ipc *self, const oar_collective *call,
                            const oari_offer *offer)
{
    uint32_t number = (uint32_t)offer->word[0], place = number % IPC_BOX;
    ipc_box *box = oari_ipc_box(self, offer->source, self->rank);
    ipc_acks *desk = oari_ipc_acks(self, offer->source, self->rank);
    oari_cu_memory from;
    oari_cu_stream stream;

    OARI_TRY(stream_for(self, offer->source, &stream));
    OARI_TRY(
        oari_ipc_map(self, offer->source, &box->letter[place].memory, &from));
    OARI_TRY(oari_ipc_wait_event(self, stream, call->ready));
    OARI_TRY(oari_ipc_wait_word(self, stream, offer->source, &box->ready[place],
                                number));
    OARI_TRY(oari_ipc_copy(self, oari_cu_address(call->out.data), from,
                           offer->bytes, stream));
    OARI_TRY(oari_ipc_write_word(self, stream, self->rank, &desk->done[place],
                                 number));
    return oari_ipc_record_event(self, stream, call->finished);
}

/* A message has its receive, or (NULL) one of another size: then nothing is
 * copied, and nobody waits for that. */
static void take(void *given, const oari_offer *offer, oar_transfer *receive)
{
    ipc *self = given;
    ipc_acks *desk = oari_ipc_acks(self, offer->source, self->rank);
    uint32_t number = (uint32_t)offer->word[0], place = number % IPC_BOX;
    oar_status status = OAR_E_SIZE;

    if (receive != NULL)
        status = copy_data(self, receive->scratch[CALL], offer);
    else
        atomic_store(&desk->done[place], number);
    if (status == OAR_OK || status == OAR_E_SIZE)
        atomic_store(&desk->answer[place], number << 1 | (receive == NULL));
    if (receive != NULL)
        oari_transfer_finish(receive, status);
}

/* Tells the match of letters that have come. They stay in the box until they
 * are answered. */
static oar_status look_into_boxes(ipc *self)
{
    for (int r = 0; r < self->ranks; r++) {
        ipc_box *box = oari_ipc_box(self, r, self->rank);
        uint32_t sent = atomic_load(&box->sent);

        for (uint32_t *seen = &self->peer[r].seen; *seen != sent; ++*seen) {
            const ipc_message_header *letter =
                &box->letter[(*seen + 1) % IPC_BOX];
            oari_offer offer = { .source = r,
                                 .tag = oari_message_tag((int64_t)letter->tag) |
                                        (uint64_t)(letter->dtype + 1)
                                            << OARI_TAG_DTYPE,
                                 .bytes = letter->bytes,
                                 .word = { *seen + 1 } };
            OARI_TRY(oari_match_offer(self->match, &offer, &self->taker));
        }
    }
    return OAR_OK;
}

/* ---- both ---------------------------------------------------------------- */

void oari_ipc_progress_messages(ipc *self)
{
    const oari_cuda *cu;
    int some = oari_match_posted(self->match) != 0;

    for (int r = 0; r < self->ranks; r++)
        some |= self->peer[r].outbox.first != NULL ||
                self->peer[r].asked.first != NULL;
    if (!some || oari_cuda_enter(self->device, &cu) != OAR_OK)
        return;
    for (int r = 0; r < self->ranks; r++) {
        send_waiting(self, r);
        hear_answers(self, r);
    }
    if (oari_match_posted(self->match) != 0)
        look_into_boxes(self); /* what is left there is found again */
    oari_cuda_leave();
}

oar_status oari_ipc_open_messages(ipc *self)
{
    self->taker = (oari_taker){ take, self };
    return oari_match_create(self->rank, self->ranks, 0, &self->match);
}

oar_status oari_ipc_send(void *given, const oar_collective *call,
                         oar_transfer *done)
{
    ipc *self = given;
    oar_status why = (oar_status)atomic_load(&self->why);

    if (why != OAR_OK) {
        oari_transfer_finish(done, why);
        return OAR_OK;
    }
    OARI_TRY(
        oari_ipc_queue_add(self, &self->peer[call->root].outbox, call, done));
    oari_ipc_progress_messages(self);
    return OAR_OK;
}

oar_status oari_ipc_recv(void *given, const oar_collective *call,
                         oar_transfer *done)
{
    ipc *self = given;
    oar_status why = (oar_status)atomic_load(&self->why), status;
    const oari_cuda *cu;

    if (why != OAR_OK) {
        oari_transfer_finish(done, why);
        return OAR_OK;
    }
    done->peer = call->root;
    done->tag = oari_message_tag(call->tag);
    done->any = oari_tag_says | (call->tag >= 0 ? 0 : UINT32_MAX);
    done->bytes = oari_span_bytes(&call->out);
    memcpy(&done->scratch[CALL], &call, sizeof call);
    OARI_TRY(oari_cuda_enter(self->device, &cu));
    status = oari_match_recv(self->match, done);
    oari_cuda_leave();
    OARI_TRY(status);
    oari_ipc_progress_messages(self);
    return OAR_OK;
}
