/* SPDX-License-Identifier: Apache-2.0 */
/* backends/host_staging/staging.h: collectives and messages of device memory
 * through the host. staging.c takes calls and gives them to a worker thread,
 * which runs them one after the other: collectives in chunks (staging_chunks.c;
 * between ranks of one host straight from each other's buffers:
 * staging_direct.c, with reductions by staging_sum.c), messages as a whole.
 * staging_buffer.c has the pinned memory, the streams and the copies.
 *
 * Data is loaded from the GPU into the buffer (down) and stored to the GPU from
 * there (up). */
#ifndef OARI_BACKENDS_HOST_STAGING_STAGING_H
#define OARI_BACKENDS_HOST_STAGING_STAGING_H

#include <pthread.h>
#include <stdatomic.h>

#include <oarsong/collective.h>
#include <oarsong/p2p.h>

#include "base/worker.h"
#include "comm/group/group.h"
#include "device/cuda/cuda.h"

/* Calls on the inner group have call sites of this library: no user made them.
 */
#undef OAR_HERE
#define OAR_HERE __FILE__, __LINE__

enum {
    STAGING_LINE = 64, /* bytes */
    STAGING_SLOTS = 8
};

/* One call, from the post until it is done. */
typedef struct staging_call {
    oari_job job;   /* the worker's, until it is started */
    oari_link link; /* then: in the list of messages, or of done calls */
    struct staging *h;
    oar_collective call; /* with a copy of the counts */
    oar_transfer *done;  /* the driver's */
    oar_status status;   /* set before it is in the list of done calls */
    oar_error why;
    /* of a message */
    oar_work *work;
    void *memory;
    oar_message message;
} staging_call;

/* The place of a chunk in the buffer. */
typedef struct staging_slot {
    unsigned char *data;
    oari_cu_event loaded, stored;
} staging_slot;

/* How many chunks a rank has loaded, reduced and stored, of a collective in
 * which ranks of one host read each other's buffers. Every rank writes its own
 * counters, after its slots, and reads the others'. */
enum { STAGING_LOADED, STAGING_REDUCED, STAGING_STORED, STAGING_COUNTERS };
typedef struct staging_counters {
    _Atomic uint64_t of[STAGING_COUNTERS];
} staging_counters;

typedef struct staging_sum staging_sum; /* staging_sum.c */

typedef struct staging {
    oar_group *inner; /* the same ranks, for host memory */
    int ranks, rank;
    oar_call_opts untimed; /* for calls on the inner group: the outer one has
                              the timeouts */
    int device;            /* of the streams; -1: none yet */
    int home;              /* the device for which the buffer was pinned */
    oari_cu_stream down, up;
    staging_slot slot[STAGING_SLOTS];
    size_t slot_bytes;
    size_t buffer_bytes;    /* of all slots and the counters */
    unsigned char *buffer;  /* pinned, and shared with the ranks of this host */
    unsigned char **mapped; /* by rank: its buffer, as it is mapped here */
    unsigned char *pinned;  /* by rank: this rank has pinned that mapping */
    int has_mapped;         /* all_mapped is known */
    int all_mapped;         /* all ranks have mapped all buffers */
    int failed;             /* a collective has failed */
    size_t *in_count, *out_count; /* scratch: by rank */
    staging_sum *sum;             /* made when it is first used */
    int sum_threads;              /* 1 or 2 */

    oari_worker *worker; /* runs the calls */
    oari_list messages;  /* the worker's: in flight */
    pthread_mutex_t lock;
    oari_list done;      /* calls that are done, for progress; under lock */
    _Atomic int pending; /* calls that are posted and not finished */
    _Atomic int why;     /* oar_status: aborted */
} staging;

/* ---- staging_buffer.c ---------------------------------------------------- */

/* Makes the buffer, and the streams of a device. */
oar_status staging_buffer_open(staging *h, int device);
void staging_buffer_close(staging *h);
/* Maps the other ranks' buffers, if that is possible; a collective. */
oar_status staging_map_peers(staging *h);
/* Fails if the group was aborted. */
oar_status staging_check_aborted(const staging *h);
/* Waits for an event, unless the group is aborted. */
oar_status staging_wait_event(staging *h, oari_cu_event event);
/* Sets *has to 1 if the event has come. */
oar_status staging_test_event(staging *h, oari_cu_event event, int *has);
/* Pauses after *spins tests in a row that found nothing, longer the more there
 * were; fails if the group was aborted. */
oar_status staging_backoff(staging *h, int *spins);
oar_status staging_copy_down(staging *h, void *to, const void *from,
                             size_t bytes);
oar_status staging_copy_up(staging *h, void *to, const void *from,
                           size_t bytes);
oar_status staging_record_event(staging *h, oari_cu_event event,
                                oari_cu_stream stream);
/* Orders both streams after the call's `ready`. */
oar_status staging_wait_ready(staging *h, const oar_collective *call);

/* ---- staging_chunks.c ---------------------------------------------------- */

/* One side of a collective: a row of parts, or one part. */
typedef struct staging_side {
    unsigned char *data;
    int parts;            /* 0: nothing here; 1: one part; else a row */
    size_t each;          /* elements of a part, where all are equal */
    const size_t *counts; /* else: by rank */
} staging_side;

/* A collective that is running. */
typedef struct staging_run {
    staging *h;
    const oar_collective *call;
    staging_side in, out;
    size_t element; /* bytes */
    size_t width;   /* elements of a part in a chunk */
    size_t chunks;
} staging_run;

oar_status staging_run_collective(staging *h, const oar_collective *call);
/* Returns how many elements of a part are in a chunk. */
size_t staging_chunk_count(const staging_run *p, const staging_side *s,
                           int part, size_t chunk);
/* Starts to load a chunk into a slot, which is free. */
oar_status staging_load_chunk(staging_run *p, size_t chunk, staging_slot *s);

/* ---- staging_direct.c ---------------------------------------------------- */

int staging_can_run_direct(const staging *h, const oar_collective *call);
oar_status staging_run_direct(staging_run *p);

/* ---- staging_sum.c ------------------------------------------------------- */

/* Before and after the chunks of an all_reduce. All ranks. */
oar_status staging_sum_begin(staging *h, const oar_collective *call);
void staging_sum_end(staging *h);
/* Combines count elements that begin `at` bytes into each rank's buffer, into
 * the owner's. */
void staging_sum_run(staging *h, int owner, size_t at, size_t count);
void staging_sum_close(staging *h);

#endif
