/* SPDX-License-Identifier: Apache-2.0 */
/* dist/ddp.h: a wrapped module from the inside.
 *
 *   ddp.c       wrapping, options, what users ask of it
 *   ddp_pass.c  gradients in a backward pass
 *   replica.c   are the parameters of all ranks still the same?
 */
#ifndef OARI_DIST_DDP_H
#define OARI_DIST_DDP_H

#include <oarsong/ddp.h>

#include "dist/reducer.h"

/* One parameter and where its gradient is. */
typedef struct oari_ddp_slot {
    struct oari_ddp *owner;
    int index;
    oar_tensor *param; /* a reference */
    oar_hook *hook;
    oar_tensor *home; /* the view of its bucket */
    int copied;       /* in this pass, from where the gradient really is */
} oari_ddp_slot;

typedef struct oari_ddp {
    oar_group *group;
    oar_module *module; /* the wrapper, borrowed */
    oar_reducer *reducer;
    int slots;
    oari_ddp_slot *slot;
    oar_ddp_opts opts;
    int no_sync;   /* how deep */
    int pending;   /* passes added up since the last that reduced */
    int syncing;   /* the pass under way reduces */
    int told;      /* unused parameters have been named */
    double weight; /* as the user said */
    uint64_t copied_bytes;
    int unused;
} oari_ddp;

/* ---- ddp_pass.c ---------------------------------------------------------- */

/* Takes references to the parameters, makes the reducer and moves the gradients
 * into its buckets. The names are copied. */
oar_status oari_ddp_listen(oari_ddp *d, int params, oar_tensor *const *param,
                           const char *const *name);
/* The name of a parameter, by slot. */
const char *oari_ddp_name(const oari_ddp *d, int slot);
void oari_ddp_clear(oari_ddp *d); /* copes with a half-made one */

/* A forward that will be followed by a backward has begun. */
void oari_ddp_begin(oari_ddp *d);
/* That backward has ended; arg is the oari_ddp. */
oar_status oari_ddp_finish(void *arg);

/* ---- replica.c ----------------------------------------------------------- */

/* Posts the question whether all ranks have the same parameters, and takes the
 * answer: OAR_E_MISMATCH with rank and parameter. */
typedef struct oari_replica_question {
    uint64_t word[2];
    oar_work *work;
} oari_replica_question;
oar_status oari_replica_ask(const oari_ddp *d, oari_replica_question *q);
oar_status oari_replica_answer(const oari_ddp *d, oari_replica_question *q);

#endif
