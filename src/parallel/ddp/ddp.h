/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/ddp/ddp.h: a wrapped module from the inside.
 *
 *   ddp.c       wrapping, options, what users ask of it
 *   ddp_pass.c  gradients in a backward pass
 *   replica.c   are the parameters of all ranks still the same?
 */
#ifndef OARI_PARALLEL_DDP_DDP_H
#define OARI_PARALLEL_DDP_DDP_H

#include <oarsong/ddp.h>

#include "parallel/reducer/reducer.h"

/* One parameter and where its gradient is. */
typedef struct oari_ddp_slot {
    struct oari_ddp *owner;
    int index;
    oar_tensor *param; /* a reference */
    oar_hook *hook;
    oar_tensor *home; /* the view of its bucket */
    int copied;       /* in this pass, from where the gradient really is */
} oari_ddp_slot;

/* The backward pass under way: adds up gradients here, or reduces them too. */
typedef enum oari_ddp_pass {
    OARI_PASS_NONE,
    OARI_PASS_LOCAL,
    OARI_PASS_REDUCES
} oari_ddp_pass;

typedef struct oari_ddp {
    oar_group *group;
    oar_module *module; /* the wrapper, borrowed */
    oar_reducer *reducer;
    int slots;
    oari_ddp_slot *slot;
    oar_ddp_opts opts;
    int frozen; /* parameters that were when it was wrapped: by index */
    int *frozen_index;
    const oar_tape *tape; /* that the last forward was recorded on */
    int open;             /* tapes whose backward is to come, at least */
    oari_ddp_pass pass;
    oari_ddp_pass last; /* what the last one was */
    int no_sync;        /* how deep */
    int pending;        /* passes added up since the last that reduced */
    int own;            /* and some of them were this rank's own */
    int told;           /* unused parameters have been named */
    double weight;      /* as the user said */
    int source;         /* whose buffers are broadcast */
    int called;         /* batch norms call out what they do: some rank has run
                           out of input */
    uint64_t copied_bytes;
    int unused;
} oari_ddp;

/* The inside of a module that oar_ddp_wrap made; NULL for any other. */
oari_ddp *oari_ddp_of(const oar_module *module);

/* ---- ddp_pass.c ---------------------------------------------------------- */

/* Takes references to the parameters, makes the reducer and moves the gradients
 * into its buckets. The names are copied. */
oar_status oari_ddp_listen(oari_ddp *d, int params, oar_tensor *const *param,
                           const char *const *name);
/* The name of a parameter, by slot. */
const char *oari_ddp_name(const oari_ddp *d, int slot);
void oari_ddp_clear(oari_ddp *d); /* copes with a half-made one */

/* A forward that a backward may follow was recorded on the tape. */
void oari_ddp_begin(oari_ddp *d, const oar_tape *tape);
/* That backward has ended; arg is the oari_ddp. */
oar_status oari_ddp_finish(void *arg);
/* Takes part in a pass of the others without one of its own. */
oar_status oari_ddp_shadow(oari_ddp *d);

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
