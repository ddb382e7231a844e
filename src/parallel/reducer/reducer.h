/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/reducer/reducer.h: a reducer from the inside; DDP and the sharded
 * optimizer stand on it.
 *
 *   bucket.c   which array lies where
 *   piece.c    what is posted, and when
 *   reducer.c  a pass: ready, reduce, wait
 */
#ifndef OARI_PARALLEL_REDUCER_REDUCER_H
#define OARI_PARALLEL_REDUCER_REDUCER_H

#include <stdatomic.h>

#include <oarsong/reducer.h>
#include <oarsong/tensor.h>

enum { OARI_MAX_PIECES = 8 }; /* of a bucket */

/* What is posted at a time: a bucket, or some of one that a large array fills
 * alone, so that it can go while the rest is computed. All ranks cut alike. */
typedef struct oari_piece {
    size_t first, end; /* elements of the bucket */
    oar_work *work;
    int64_t started_ns;
    _Atomic int64_t done_ns;
} oari_piece;

typedef struct oari_bucket {
    oar_bucket is; /* as hooks see it */
    oar_storage *storage;
    int expected; /* of its arrays are ready in a pass, as far as is known */
    int ready;    /* in this pass */
    size_t told;  /* elements that are, of an array that is not */
    int pieces;
    int begun; /* of them are on their way */
    oari_piece piece[OARI_MAX_PIECES];
} oari_bucket;

typedef struct oari_slot {
    oar_span array; /* the caller's, or without data */
    int bucket;
    size_t at;        /* first element in the bucket */
    int ready;        /* in this pass */
    int given;        /* this rank has numbers for this pass */
    int used;         /* some rank had, in the last one */
    int skipped;      /* static graph: never ready here */
    const char *name; /* or NULL */
} oari_slot;

static inline oar_op oari_bucket_op(const oar_bucket *bucket)
{
    return bucket->weighted ? OAR_WEIGHTED_MEAN : OAR_AVG;
}

static inline size_t oari_bytes_of(const oar_span *span)
{
    return span->count * oar_dtype_size(span->dtype);
}

/* What whoever stands on a reducer adds. All may be NULL. */
typedef struct oari_reducer_owner {
    void *arg;
    /* The array is not ready: sees to its place in the bucket, and says whether
     * it has numbers all the same (1) or is to be filled with zeros (0). */
    int (*absent)(void *arg, int array, oar_status *status);
    /* The buckets have been cut anew. The old ones are still there. */
    oar_status (*moved)(void *arg);
    /* The last array is ready when the pass is about to end: the last piece is
     * left to oar_reducer_wait. */
    int ends_there;
} oari_reducer_owner;

struct oar_reducer {
    oar_group *group;
    oar_reducer_opts opts;
    oar_reduce_hook hook; /* .start == NULL: none */
    oari_reducer_owner owner;
    int arrays, buckets;
    oari_slot *slot;
    oari_bucket *bucket;
    int *order; /* arrays as they lie in the buckets, one after the other */
    size_t *at, *count; /* and where, and how many elements */
    int scatter;        /* each rank gets the mean of its slice of a bucket */
    float *flags;       /* scatter: reduced apart */
    oar_work *flags_work;
    size_t flags_at; /* in the last bucket: one number for each array */
    int *came;       /* arrays in the order they got ready */
    int ready;       /* how many have, in this pass */
    int begun;       /* buckets that are on their way as a whole */
    double weight;
    int64_t passes;
    oar_reducer_stats stats; /* of the pass under way, then of the last */
};

/* ---- bucket.c ------------------------------------------------------------ */

/* With the arrays known: how much a bucket holds, where the options do not say;
 * the same on all ranks. */
void oari_buckets_settle(oar_reducer *r);

/* Cuts the arrays, in the order of r->order, into buckets with memory. The old
 * ones are given in *old (as many as *olds), to be dropped. On failure all is
 * as it was. */
oar_status oari_buckets_cut(oar_reducer *r, oari_bucket **old, int *olds);
void oari_buckets_drop(oari_bucket *bucket, int buckets);

/* The place of an array in its bucket. */
oar_span oari_bucket_place(const oar_reducer *r, int array);

/* A rank's slice of a bucket, where it is scattered: equal ones. */
oar_span oari_bucket_slice(const oar_reducer *r, int bucket, int rank);

/* Which arrays this rank has numbers for: into the last bucket, before it is
 * reduced, and out of it, as `used`, after that. */
void oari_flags_write(oar_reducer *r);
void oari_flags_read(oar_reducer *r);

/* ---- piece.c ------------------------------------------------------------- */

/* Begins what may go: its numbers are there, and all before it has gone. */
oar_status oari_pieces_begin(oar_reducer *r);
/* Begins all the rest: what is not ready counts as zero. */
oar_status oari_pieces_begin_rest(oar_reducer *r);

/* Waits for all and lets hooks finish; the first failure counts. */
oar_status oari_pieces_wait(oar_reducer *r);
/* How long at least one was under way, in seconds. */
double oari_pieces_time(const oar_reducer *r);

/* How many elements of the array end the next piece, if `elements` are written;
 * all of them if there are no more pieces. */
size_t oari_pieces_next(const oar_reducer *r, int array, size_t elements);

/* ---- reducer.c ----------------------------------------------------------- */

/* As oar_reducer_create; scatter: every rank gets only its slices. */
oar_status oari_reducer_make(oar_group *group, int arrays,
                             const oar_span *array,
                             const oar_reducer_opts *opts, int scatter,
                             oar_reducer **reducer);

/* The first `elements` of an array that lives in its bucket are written, and
 * will not change: their pieces may begin. The array gets ready later in the
 * pass, unless that is given up. */
oar_status oari_reducer_part_ready(oar_reducer *r, int array, size_t elements);

/* Begins what is not under way yet: what is not ready counts as
 * zero. From here on all ranks have posted the same. */
oar_status oari_reducer_begin_rest(oar_reducer *r);

/* The pass that was begun, if any, is given up: waits for what is under way. */
void oari_reducer_reset(oar_reducer *r);

#endif
