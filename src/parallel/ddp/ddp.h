/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/ddp/ddp.h: the inside of a wrapped module.
 *
 *   ddp.c       wrapping, options, the public functions
 *   ddp_pass.c  gradients in a backward pass
 *   replica.c   checks that the parameters of all ranks are still the same
 */
#ifndef OARI_PARALLEL_DDP_DDP_H
#define OARI_PARALLEL_DDP_DDP_H

#include <oarsong/ddp.h>

#include "parallel/reducer/reducer.h"

/* One parameter and the place of its gradient. */
typedef struct oari_ddp_slot {
    struct oari_ddp *owner;
    int index;
    oar_tensor *param; /* a reference */
    oar_hook *hook;
    oar_tensor *home; /* the view of its bucket */
    int copied;       /* in this pass, from where the gradient really is */
} oari_ddp_slot;

/* The kind of a backward pass: it adds up gradients locally, or reduces them
 * too. */
typedef enum oari_ddp_pass {
    OARI_PASS_NONE,
    OARI_PASS_LOCAL,
    OARI_PASS_REDUCES
} oari_ddp_pass;

/* A comparison of the parameters of all ranks on a GPU: the least and the
 * greatest of their hashes. Its result is read some passes later, so that
 * nobody waits for it. */
typedef struct oari_gpu_check {
    oar_tensor **param; /* of all slots, borrowed */
    oar_tensor *word[2];
    uint64_t *pinned; /* both words */
    void *event;      /* they are there */
    int64_t read_at;  /* the pass that reads them; 0: none is under way */
} oari_gpu_check;

typedef struct oari_ddp {
    oar_group *group;
    oar_module *module; /* the wrapper, borrowed */
    oar_reducer *reducer;
    int slots;
    oari_ddp_slot *slot;
    oar_ddp_opts opts;
    int frozen; /* number of parameters that were frozen at wrapping */
    int *frozen_index;
    const oar_tape *tape; /* of the last forward */
    int open;             /* tapes whose backward is to come, at least */
    oari_ddp_pass pass;   /* the current one */
    oari_ddp_pass last;   /* the previous one */
    int no_sync;          /* nesting depth */
    int pending;          /* passes added up since the last that reduced */
    int own;              /* some of them were this rank's own */
    int told;             /* a warning has named the unused parameters */
    double weight;        /* as the user set it */
    int source;           /* the rank whose buffers are broadcast */
    int called;           /* batch norms announce their collectives, because
                             some rank has run out of input */
    uint64_t copied_bytes;
    int unused;
    oari_gpu_check check;
} oari_ddp;

/* Returns the inside of a module that oar_ddp_wrap made; NULL for any other. */
oari_ddp *oari_ddp_of(const oar_module *module);

/* ---- ddp_pass.c ---------------------------------------------------------- */

/* Takes references to the parameters, makes the reducer and moves the gradients
 * into its buckets. The names are copied. */
oar_status oari_ddp_listen(oari_ddp *d, int params, oar_tensor *const *param,
                           const char *const *name);

/* Frees what oari_ddp_listen made, also after its failure. */
void oari_ddp_clear(oari_ddp *d);

/* Notes that a forward was recorded on the tape, which a backward may follow.
 */
void oari_ddp_begin(oari_ddp *d, const oar_tape *tape);

/* Ends that backward: reduces the gradients; arg is the oari_ddp. */
oar_status oari_ddp_finish(void *arg);

/* Ends the announcements of batch norms, if there are any; arg is the oari_ddp.
 */
oar_status oari_ddp_dismiss(void *arg);

/* Begins to reduce what passes without communication have added up, and waits
 * for it. All ranks, outside oar_ddp_no_sync_begin and end; nothing runs
 * through the module in between. */
oar_status oari_ddp_reduce_begin(oari_ddp *d);
oar_status oari_ddp_reduce_end(oari_ddp *d);

/* Takes part in a pass of the other ranks on a rank without input. */
oar_status oari_ddp_follow(oari_ddp *d);

/* ---- replica.c ----------------------------------------------------------- */

/* A comparison of the parameters of all ranks. */
typedef struct oari_replica_check {
    uint64_t word[2];
    oar_work *work;
} oari_replica_check;

/* Returns how many passes lie between two comparisons; 0: there are none. */
int oari_replica_interval(const oari_ddp *d);

/* On a GPU, at the end of each pass: reads the result of a comparison that was
 * begun some passes ago, and begins another one when it is time. */
oar_status oari_replica_gpu_pass(oari_ddp *d);
void oari_replica_gpu_close(oari_ddp *d);

/* Posts the comparison. */
oar_status oari_replica_check_begin(oari_ddp *d, oari_replica_check *q);

/* Waits for it: OAR_E_MISMATCH names a rank and a parameter that differ. */
oar_status oari_replica_check_end(oari_ddp *d, oari_replica_check *q);

#endif
