/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_courier: blocks for link/relay.h, over Gloo's send and recv. */
#include <stdlib.h>

#include "backends/gloo/gloo.h"
#include "base/status.h"

/* A head is what a peer may send at any time or never, so its connection may
 * well end while one is waited for. */
static int kind_of(const oari_parcel *parcel, int sends)
{
    if (sends)
        return GLOO_OUT;
    return parcel->lane == 0 ? GLOO_HEADS : GLOO_DATA;
}

static gloo_slip *start(gloo_mesh *mesh, const oari_parcel *p, int sends,
                        char why[GLOO_WHY])
{
    gloo_slip *slip;
    sigset_t before;

    gloo_signal_block(&before);
    slip = sends
               ? gloo_mesh_send(mesh, p->peer, p->lane, p->data, p->bytes, why)
               : gloo_mesh_recv(mesh, p->peer, p->lane, p->data, p->bytes, why);
    gloo_signal_restore(&before);
    return slip;
}

static oar_status begin(gloo *g, oari_parcel *parcel, int sends)
{
    gloo_note *note = calloc(1, sizeof *note);
    int kind = kind_of(parcel, sends);

    if (note == NULL)
        return oar_backend_fail(OAR_E_NOMEM, "gloo: out of memory");
    note->parcel = parcel;
    note->silent = kind == GLOO_HEADS;
    note->slip = start(g->hub->mesh, parcel, sends, note->why);
    if (note->slip == NULL) {
        oar_status status = OAR_OK;
        if (!note->silent)
            status = oar_backend_fail(OAR_E_CLOSED, "gloo: %s", note->why);
        free(note);
        return status;
    }
    parcel->scratch[0] = note;
    return gloo_watch_give(g->hub, parcel->peer, kind, note);
}

static oar_status put(void *self, oari_parcel *parcel)
{
    return begin(self, parcel, 1);
}

static oar_status get(void *self, oari_parcel *parcel)
{
    return begin(self, parcel, 0);
}

/* Only when the connections have ended nothing touches the data any more. */
static int drop(void *self, oari_parcel *parcel)
{
    gloo *g = self;
    gloo_note *note = parcel->scratch[0];
    int over;

    pthread_mutex_lock(&g->hub->lock);
    over = g->hub->spoiled || g->hub->closed;
    if (note != NULL)
        note->parcel = NULL;
    pthread_mutex_unlock(&g->hub->lock);
    parcel->scratch[0] = NULL;
    return over;
}

oari_courier gloo_courier(gloo *g)
{
    return (oari_courier){
        .put = put, .get = get, .drop = drop, .self = g, .lanes = 1u << 20
    };
}
