/* SPDX-License-Identifier: Apache-2.0 */
/* control_message: see control_message.h. Each message is kept until the backend
 * has sent it. */
#include "link/control_message.h"

#include <string.h>

#include "base/alloc.h"

enum { IN_FLIGHT_MAX = 4 /* to one rank */ };

typedef struct oari_letter {
    struct oari_letter *next;
    oar_transfer transfer;
    unsigned char data[];
} message;

oar_status oari_letters_init(oari_letters *messages, int ranks)
{
    messages->count = oari_alloc((size_t)ranks, sizeof *messages->count);
    return messages->count != NULL ? OAR_OK : OAR_E_NOMEM;
}

void oari_letters_clear(oari_letters *messages)
{
    for (message *l = messages->under_way, *next; l != NULL; l = next) {
        next = l->next;
        oari_free(l);
    }
    oari_free(messages->count);
    *messages = (oari_letters){ 0 };
}

static void drop_sent(oari_letters *messages)
{
    message **at = &messages->under_way, *l;

    while ((l = *at) != NULL) {
        if (!l->transfer.done) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        messages->count[l->transfer.peer]--;
        oari_free(l);
    }
}

int oari_letters_send(oari_letters *messages, int to, const void *data)
{
    message *l;

    drop_sent(messages);
    if (messages->count[to] >= IN_FLIGHT_MAX ||
        (l = oari_alloc(1, sizeof *l + messages->bytes)) == NULL)
        return 0;
    memcpy(l->data, data, messages->bytes);
    l->transfer = (oar_transfer){ .size = sizeof l->transfer,
                                  .peer = to,
                                  .tag = messages->tag,
                                  .data = l->data,
                                  .bytes = messages->bytes };
    if (messages->by->send(messages->self, &l->transfer) != OAR_OK) {
        oari_free(l);
        return 0;
    }
    l->next = messages->under_way;
    messages->under_way = l;
    messages->count[to]++;
    return 1;
}

int oari_letters_next(oari_letters *messages, void *data)
{
    oar_transfer *t = &messages->taking;

    drop_sent(messages);
    do {
        oar_envelope e = { .size = sizeof e };

        if (!messages->takes) {
            if (!messages->by->peek(messages->self, -1, messages->tag, 0, &e))
                return -1;
            *t = (oar_transfer){ .size = sizeof *t,
                                 .peer = e.source,
                                 .tag = messages->tag,
                                 .data = data,
                                 .bytes = messages->bytes };
            if (messages->by->recv(messages->self, t) != OAR_OK)
                return -1;
        }
        messages->takes = !t->done;
    } while (t->done && t->status != OAR_OK);
    return t->done ? t->peer : -1;
}
