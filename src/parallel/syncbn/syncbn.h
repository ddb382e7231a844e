/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/syncbn/syncbn.h: synchronised batch norms from the inside, and what
 * DDP tells them.
 *
 *   syncbn.c       merging statistics
 *   syncbn_join.c  ranks that have run out of input follow the others
 */
#ifndef OARI_PARALLEL_SYNCBN_SYNCBN_H
#define OARI_PARALLEL_SYNCBN_SYNCBN_H

#include <stdatomic.h>

#include <oarsong/syncbn.h>

/* One for all layers that were converted together. */
typedef struct oari_circle {
    _Atomic int layers;
    oar_group *group;
    double weight; /* of this rank's loss */
} oari_circle;

typedef struct oari_sync_layer {
    oari_circle *circle;
    int64_t channels; /* that there is room for */
    double *room;     /* what a rank sends, for each rank and for this one */
    oar_group *calls; /* where it calls out what it is about to do, or NULL */
    int number;       /* under which name */
} oari_sync_layer;

/* The layer of a module, if it is a synchronised batch norm, or NULL. */
oari_sync_layer *oari_sync_layer_of(const oar_module *module);

/* This rank's loss counts so much in the mean over ranks: what its loss sends
 * through the statistics into other ranks' gradients must, too. For all below
 * the module. */
void oari_syncbn_weigh(const oar_module *module, double weight);

/* ---- syncbn_join.c ------------------------------------------------------- */

typedef enum oari_sync_deed {
    OARI_SYNC_NOTHING, /* what a rank says that listens */
    OARI_SYNC_MOMENTS,
    OARI_SYNC_SUMS,
    OARI_SYNC_END
} oari_sync_deed;

/* On a rank with input: from now on all layers below the module call out what
 * they do, until they are dismissed. 0 if there is none, and nothing to do. */
int oari_syncbn_call_out(const oar_module *module);
/* The step is over: those that follow may go. */
oar_status oari_syncbn_dismiss(const oar_module *module);

/* Called by a layer before it meets the others. */
oar_status oari_syncbn_tell(const oari_sync_layer *layer, oari_sync_deed deed,
                            int64_t channels);

/* On a rank without input: does what is called out with no batch of its own,
 * running statistics included, until dismissed. */
oar_status oari_syncbn_follow(const oar_module *module);

#endif
