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
} letter;

oar_status oari_letters_init(oari_letters *letters, int ranks)
{
    letters->count = oari_alloc((size_t)ranks, sizeof *letters->count);
    return letters->count != NULL ? OAR_OK : OAR_E_NOMEM;
}

void oari_letters_clear(oari_letters *letters)
{
    for (letter *l = letters->under_way, *next; l != NULL; l = next) {
        next = l->next;
        oari_free(l);
    }
    oari_free(letters->count);
    *letters = (oari_letters){ 0 };
}

static void drop_sent(oari_letters *letters)
{
    letter **at = &letters->under_way, *l;

    while ((l = *at) != NULL) {
        if (!l->transfer.done) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        letters->count[l->transfer.peer]--;
        oari_free(l);
    }
}

int oari_letters_send(oari_letters *letters, int to, const void *data)
{
    letter *l;

    drop_sent(letters);
    if (letters->count[to] >= IN_FLIGHT_MAX ||
        (l = oari_alloc(1, sizeof *l + letters->bytes)) == NULL)
        return 0;
    memcpy(l->data, data, letters->bytes);
    l->transfer = (oar_transfer){ .size = sizeof l->transfer,
                                  .peer = to,
                                  .tag = letters->tag,
                                  .data = l->data,
                                  .bytes = letters->bytes };
    if (letters->by->send(letters->self, &l->transfer) != OAR_OK) {
        oari_free(l);
        return 0;
    }
    l->next = letters->under_way;
    letters->under_way = l;
    letters->count[to]++;
    return 1;
}

int oari_letters_next(oari_letters *letters, void *data)
{
    oar_transfer *t = &letters->taking;

    drop_sent(letters);
    do {
        oar_envelope e = { .size = sizeof e };

        if (!letters->takes) {
            if (!letters->by->peek(letters->self, -1, letters->tag, 0, &e))
                return -1;
            *t = (oar_transfer){ .size = sizeof *t,
                                 .peer = e.source,
                                 .tag = letters->tag,
                                 .data = data,
                                 .bytes = letters->bytes };
            if (letters->by->recv(letters->self, t) != OAR_OK)
                return -1;
        }
        letters->takes = !t->done;
    } while (t->done && t->status != OAR_OK);
    return t->done ? t->peer : -1;
}
