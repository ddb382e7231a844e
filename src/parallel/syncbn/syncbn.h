/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/syncbn/syncbn.h: the inside of synchronised batch norms, for DDP.
 *
 *   syncbn.c       merges statistics
 *   syncbn_join.c  lets ranks without input follow the others
 */
#ifndef OARI_PARALLEL_SYNCBN_SYNCBN_H
#define OARI_PARALLEL_SYNCBN_SYNCBN_H

#include <stdatomic.h>

#include <oarsong/syncbn.h>

/* Shared by all layers that were converted together. */
typedef struct oari_sync_group {
    _Atomic int layers;
    oar_group *group;
    double weight; /* of this rank's loss */
} oari_sync_group;

typedef struct oari_sync_layer {
    oari_sync_group *shared;
    int64_t channels; /* for which `room` is large enough */
    double *room;     /* the send buffer, then the receive buffer */
    oar_group *calls; /* over which it announces its collectives, or NULL */
    int number;       /* its number in these announcements */
} oari_sync_layer;

/* Returns the layer of a module if it is a synchronised batch norm, else NULL.
 */
oari_sync_layer *oari_sync_layer_of(const oar_module *module);

/* Sets the weight of this rank's loss in the mean over ranks, for all layers of
 * the module: the part of other ranks' gradients that comes from this loss by
 * way of the statistics has the same weight. */
void oari_syncbn_weigh(const oar_module *module, double weight);

/* ---- syncbn_join.c ------------------------------------------------------- */

typedef enum oari_sync_call {
    OARI_SYNC_NOTHING, /* the contribution of a rank that listens */
    OARI_SYNC_MOMENTS,
    OARI_SYNC_SUMS,
    OARI_SYNC_END
} oari_sync_call;

/* Returns whether the module has such layers. */
int oari_syncbn_is_in(const oar_module *module);

/* Makes all layers of the module announce their collectives until
 * oari_syncbn_dismiss; for ranks with input. Returns 0 if there are no layers.
 */
int oari_syncbn_announce_all(const oar_module *module);

/* Ends the announcements: oari_syncbn_follow returns on the other ranks. */
oar_status oari_syncbn_dismiss(const oar_module *module);

/* Announces a collective of a layer before it is posted. */
oar_status oari_syncbn_announce(const oari_sync_layer *layer,
                                oari_sync_call deed, int64_t channels);

/* Takes part in the announced collectives with an empty batch, updating the
 * running statistics too, until the others call oari_syncbn_dismiss; for ranks
 * without input. */
oar_status oari_syncbn_follow(const oar_module *module);

#endif
