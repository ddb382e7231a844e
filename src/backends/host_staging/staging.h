/* SPDX-License-Identifier: Apache-2.0 */
/* backends/host_staging/staging.h: device memory through the host. The parts of
 * the backend: staging.c takes calls and hands them to a thread, which does
 * them one after the other: collectives in pieces (staging_chunks.c; between
 * ranks of one host, from each other's memory: staging_direct.c, with
 * sums by staging_sum.c), messages as a whole (staging_messages.c).
 * staging_buffer.c has the pinned memory, the streams, and the copies. */
#ifndef OARI_BACKENDS_HOST_STAGING_STAGING_H
#define OARI_BACKENDS_HOST_STAGING_STAGING_H

#include <pthread.h>
#include <stdatomic.h>

#include <oarsong/collective.h>
#include <oarsong/p2p.h>

#include "base/worker.h"
#include "comm/group/group.h"
#include "device/cuda/cuda.h"

/* What goes over the inner group has lines of ours: its thread has no user. */
#undef OAR_HERE
#define OAR_HERE __FILE__, __LINE__

enum {
    HOSTED_LINE = 64, /* bytes */
    HOSTED_SLOTS = 8
};

/* One call, from post to done. */
typedef struct hosted_job {
    oari_job job;   /* the worker's, until it is begun */
    oari_link link; /* then: among the letters, or those that are over */
    struct hosted *h;
    oar_collective call; /* its own counts */
    oar_transfer *done;  /* the driver's */
    oar_status status;   /* once it is in the list of those that are over */
    oar_error why;
    /* of a message */
    oar_work *work;
    void *memory;
    oar_message message;
} hosted_job;

/* Where one piece is, on its way: it is loaded (comes down) and stored (goes
 * up). */
typedef struct hosted_slot {
    unsigned char *data; /* in the stage */
    oari_cu_event loaded, stored;
} hosted_slot;

/* How many pieces a rank has down, has added up, and has up, of a collective in
 * which ranks of one host take from each other. Every rank writes its own,
 * behind its slots, and reads the others'. */
enum { HOSTED_DOWN, HOSTED_WHOLE, HOSTED_UP, HOSTED_MARKS };
typedef struct hosted_marks {
    _Atomic uint64_t of[HOSTED_MARKS];
} hosted_marks;

typedef struct hosted_sum hosted_sum; /* staging_sum.c */

typedef struct hosted {
    oar_group *inner; /* the ranks once more, for host memory */
    int ranks, rank;
    int device; /* of the streams; -1: none yet */
    int home;   /* the device from which the stage was pinned */
    oari_cu_stream down, up;
    hosted_slot slot[HOSTED_SLOTS];
    size_t slot_bytes;
    unsigned char *stage;  /* pinned, and shared with the ranks of this host */
    unsigned char **near;  /* by rank: its stage, as it is mapped here */
    unsigned char *pinned; /* by rank: that mapping, by this one */
    int met;               /* it is known whether all stages are near */
    int is_near;           /* they are */
    int torn;              /* a collective has failed */
    size_t *count, *other; /* scratch: by rank */
    hosted_sum *sum;       /* made when it is first used */
    int sum_threads;       /* 1 or 2 */

    oari_worker *worker; /* does the jobs */
    oari_list letters;   /* its: messages under way */
    pthread_mutex_t lock;
    oari_list over;      /* jobs that are done, for progress; under lock */
    _Atomic int pending; /* posted, and not finished */
    _Atomic int why;     /* oar_status: aborted */
} hosted;

/* For calls on the inner group: the outer one watches. */
static inline oar_call_opts hosted_patience(void)
{
    oar_call_opts o = oar_call_opts_init();

    o.timeout_ms = -1;
    return o;
}

/* staging_buffer.c */
oar_status hosted_stage_open(hosted *h, int device);
void hosted_stage_close(hosted *h);
static inline size_t hosted_stage_bytes(const hosted *h)
{
    return HOSTED_SLOTS * h->slot_bytes + sizeof(hosted_marks);
}
/* Finds the stages of the others; all ranks at once. */
oar_status hosted_meet(hosted *h);
/* Fails when all is over. */
oar_status hosted_goes_on(const hosted *h);
/* Waits for an event, but not when all is over. */
oar_status hosted_await(hosted *h, oari_cu_event event);
/* 1 in *has: it has come. */
oar_status hosted_has_come(hosted *h, oari_cu_event event, int *has);
/* After a look in vain, and so many in a row before it: rests a moment, or
 * fails because all is over. */
oar_status hosted_rest(hosted *h, int *looks);
oar_status hosted_load(hosted *h, void *to, const void *from, size_t bytes);
oar_status hosted_store(hosted *h, void *to, const void *from, size_t bytes);
oar_status hosted_record(hosted *h, oari_cu_event event, oari_cu_stream stream);
/* Both streams begin behind the call's `ready`. */
oar_status hosted_begin(hosted *h, const oar_collective *call);
/* `finished` comes when what was stored is there. */
oar_status hosted_finish(hosted *h, const oar_collective *call);

/* One side of a collective: a row of parts, or one part. */
typedef struct hosted_side {
    unsigned char *data;
    int parts;            /* 0: nothing here; 1: one part; else a row */
    size_t each;          /* elements of a part, where they are all alike */
    const size_t *counts; /* else; by rank */
} hosted_side;

/* A collective on its way. */
typedef struct hosted_passage {
    hosted *h;
    const oar_collective *call;
    hosted_side in, out;
    size_t element, width; /* bytes; elements of a part in a piece */
    size_t pieces;
} hosted_passage;

/* staging_chunks.c */
oar_status hosted_collective(hosted *h, const oar_collective *call);
/* Elements of a part that are in a piece. */
size_t hosted_slice(const hosted_passage *p, const hosted_side *s, int part,
                    size_t piece);
/* Lets a piece come down into a slot, which is free. */
oar_status hosted_load_piece(hosted_passage *p, size_t piece, hosted_slot *s);

/* direct.c */
int hosted_goes_direct(const hosted *h, const oar_collective *call);
oar_status hosted_direct(hosted_passage *p);

/* staging_sum.c */
/* Before and after the pieces of an all_reduce. All ranks. */
oar_status hosted_sum_begin(hosted *h, const oar_collective *call);
void hosted_sum_end(hosted *h);
/* Combines count elements that are `at` bytes into all ranks' stages, into the
 * owner's. */
void hosted_sum_up(hosted *h, int owner, size_t at, size_t count);
void hosted_sum_close(hosted *h);

/* letters.c */
oar_status hosted_letter_begin(hosted *h, hosted_job *job);
/* 1: it is over, with this status. */
int hosted_letter_done(hosted *h, hosted_job *job, oar_status *status);
void hosted_letter_drop(hosted_job *job);

#endif
