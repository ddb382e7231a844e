/* SPDX-License-Identifier: Apache-2.0 */
/* hosted/hosted.h: device memory through the host. The parts of the backend:
 * hosted.c takes calls and hands them to a thread, which does them one after
 * the other: collectives in pieces (pieces.c), messages as a whole (letters.c).
 * stage.c has the pinned memory, the streams, and the copies. */
#ifndef OARI_BACKENDS_HOSTED_HOSTED_H
#define OARI_BACKENDS_HOSTED_HOSTED_H

#include <pthread.h>
#include <stdatomic.h>

#include <oarsong/collective.h>
#include <oarsong/p2p.h>

#include "comm/group.h"
#include "device/cuda/cuda.h"

enum {
    HOSTED_SLOTS = 3,
    HOSTED_SLOT_BYTES = 4 << 20 /* of one side of a piece */
};

/* One call, from post to done. */
typedef struct hosted_job {
    struct hosted_job *next;
    oar_collective call; /* its own counts */
    oar_transfer *done;  /* the driver's */
    oar_status status;   /* once it is in the list of those that are over */
    oar_error why;
    /* of a message */
    oar_work *work;
    void *memory;
    oar_message message;
} hosted_job;

/* Where one piece is, on its way. */
typedef struct hosted_slot {
    unsigned char *in,
        *out; /* pinned, and shared with the ranks of this host */
    oari_cu_event loaded, stored;
    int used; /* stored has been recorded */
} hosted_slot;

typedef struct hosted {
    oar_group *inner; /* the ranks once more, for host memory */
    int ranks, rank;
    int device; /* of the streams; -1: none yet */
    oari_cu_stream down, up;
    hosted_slot slot[HOSTED_SLOTS];
    size_t slot_bytes;
    size_t *count, *other; /* scratch: by rank */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    hosted_job *first, *last; /* to do; under lock */
    hosted_job *over;         /* done, for progress; under lock */
    hosted_job *letters;      /* the thread's: messages under way */
    pthread_t thread;
    int has_thread, stop; /* under lock */
    _Atomic int pending;  /* posted, and not finished */
    _Atomic int why;      /* oar_status: aborted */
} hosted;

/* stage.c */
oar_status hosted_stage_open(hosted *h, int device);
void hosted_stage_close(hosted *h);
/* Waits for an event, but not when all is over. */
oar_status hosted_await(hosted *h, oari_cu_event event);
oar_status hosted_load(hosted *h, void *to, const void *from, size_t bytes);
oar_status hosted_store(hosted *h, void *to, const void *from, size_t bytes);
/* Both streams begin behind the call's `ready`. */
oar_status hosted_begin(hosted *h, const oar_collective *call);
/* `finished` comes when what was stored is there. */
oar_status hosted_finish(hosted *h, const oar_collective *call);

/* pieces.c */
oar_status hosted_collective(hosted *h, const oar_collective *call);

/* letters.c */
oar_status hosted_letter_begin(hosted *h, hosted_job *job);
/* 1: it is over, with this status. */
int hosted_letter_done(hosted *h, hosted_job *job, oar_status *status);
void hosted_letter_drop(hosted_job *job);

#endif
