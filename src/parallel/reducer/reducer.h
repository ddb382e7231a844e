/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/reducer/reducer.h: the inside of a reducer, for DDP.
 *
 *   bucket.c      assigns arrays to buckets
 *   piece.c       posts the pieces of buckets
 *   gpu_bucket.c  posts and awaits buckets on a GPU
 *   reducer.c     runs a pass: ready, reduce, wait
 */
#ifndef OARI_PARALLEL_REDUCER_REDUCER_H
#define OARI_PARALLEL_REDUCER_REDUCER_H

#include <stdatomic.h>

#include <oarsong/reducer.h>
#include <oarsong/tensor.h>

enum { OARI_MAX_PIECES = 8 }; /* of a bucket */

/* The part of a bucket that is posted at once: all of it, or some of a bucket
 * that one large array fills, so that it is reduced while the rest is computed.
 * All ranks have the same pieces. */
typedef struct oari_piece {
    oar_reducer *reducer;
    int bucket;
    size_t first, end; /* elements of the bucket */
    oar_work *work;
    int held; /* on a GPU: is posted at the end of the pass */
    int64_t started_ns;
    _Atomic int64_t done_ns;
} oari_piece;

typedef struct oari_bucket {
    oar_bucket is; /* as hooks see it */
    oar_storage *storage;
    int expected; /* arrays that should get ready in a pass */
    int ready;    /* arrays that are, in this pass */
    size_t told;  /* elements that are ready, of an array that is not */
    int pieces;
    int begun; /* pieces that are posted */
    oari_piece piece[OARI_MAX_PIECES];
} oari_bucket;

typedef struct oari_reducer_array {
    oar_span array; /* the caller's, or without data */
    int bucket;
    size_t at;        /* first element in the bucket */
    int ready;        /* in this pass */
    int given;        /* this rank has numbers for this pass */
    int used;         /* some rank had, in the last one */
    int skipped;      /* static graph: never ready here */
    const char *name; /* or NULL */
} oari_reducer_array;

static inline oar_reduce_op oari_bucket_op(const oar_bucket *bucket)
{
    return bucket->weighted ? OAR_WEIGHTED_MEAN : OAR_AVG;
}

/* Callbacks of the object that uses a reducer. All may be NULL. */
typedef struct oari_reducer_owner {
    void *arg;
    /* Called for an array that is not ready. Returns 1 if it has written the
     * array's place in the bucket, 0 if the reducer should fill it with zeros.
     */
    int (*absent)(void *arg, int array, oar_status *status);
    /* Called when there are new buckets, before the old ones are freed. */
    oar_status (*moved)(void *arg);
    /* oar_reducer_wait posts the last piece, because the pass ends soon after
     * the last array gets ready. */
    int ends_there;
    /* Called on a GPU behind the last bucket, in passes that are replayed, too.
     */
    oar_status (*ended)(void *arg);
} oari_reducer_owner;

struct oar_reducer {
    oar_group *group;
    oar_device device; /* of the buckets */
    oar_reducer_opts opts;
    oar_reduce_hook hook; /* .start == NULL: none */
    oari_reducer_owner owner;
    int arrays, buckets;
    oari_reducer_array *slot;
    oari_bucket *bucket;
    int *order; /* arrays as they lie in the buckets, one after the other */
    size_t *at, *count; /* and where, and how many elements */
    size_t flags_at;    /* in the last bucket: one number for each array */
    int *came;          /* arrays in the order they got ready */
    int ready;          /* how many have, in this pass */
    int begun;          /* buckets that are on their way as a whole */
    double weight;
    int64_t passes;
    oar_reducer_stats stats; /* of the pass under way, then of the last */
    /* On a GPU: */
    unsigned char *flag; /* by array, instead of those in the last bucket */
    int asks_flags;      /* the pass is not replayed, on some rank perhaps */
    int holds;           /* other ranks post buckets at the end of this pass */
    int scales;          /* the engine has no weighted mean */
    double factor;       /* then: of this rank's numbers, in this pass */
};

static inline int oari_reducer_on_gpu(const oar_reducer *r)
{
    return r->device.kind == OAR_CUDA;
}

/* ---- bucket.c ------------------------------------------------------------ */

/* Sets the sizes of buckets that the options leave open, from the arrays; the
 * same on all ranks. */
void oari_buckets_set_limits(oar_reducer *r);

/* Assigns the arrays, in the order of r->order, to new buckets with memory.
 * Gives the old ones in *old (*olds of them); the caller drops them. On failure
 * nothing has changed. */
oar_status oari_buckets_make(oar_reducer *r, oari_bucket **old, int *olds);

/* Frees buckets. */
void oari_buckets_drop(oari_bucket *bucket, int buckets);

/* Returns the place of an array in its bucket. */
oar_span oari_bucket_place(const oar_reducer *r, int array);

/* Writes for which arrays this rank has numbers, before the last bucket is
 * reduced. */
void oari_flags_write(oar_reducer *r);

/* Reads the reduced flags into `used`. */
void oari_flags_read(oar_reducer *r);

/* ---- piece.c ------------------------------------------------------------- */

/* Posts the next pieces, as far as their numbers are ready. */
oar_status oari_pieces_begin(oar_reducer *r);

/* Posts all remaining pieces: arrays that are not ready count as zero. */
oar_status oari_pieces_begin_rest(oar_reducer *r);

/* Waits for all pieces and calls the hooks' finish; returns the first failure.
 */
oar_status oari_pieces_wait(oar_reducer *r);

/* Returns for how many seconds at least one piece was in progress. */
double oari_pieces_time(const oar_reducer *r);

/* Returns the end, in elements of the array, of the next piece after the first
 * `elements`; the array's count if there are no more pieces. */
size_t oari_pieces_next(const oar_reducer *r, int array, size_t elements);

/* ---- gpu_bucket.c -------------------------------------------------------- */

/* Sets all bytes of a span to zero, or copies a span to one of the same count
 * and dtype; on a GPU in the order of the current stream. */
oar_status oari_span_clear(const oar_span *span);
oar_status oari_span_copy(const oar_span *to, const oar_span *from);

/* Engines without a weighted mean take the plain one of numbers that are scaled
 * before: by this rank's weight over the mean of all weights. A collective. */
oar_status oari_weight_factor(oar_group *group, double weight, double *factor);

/* Scales the numbers at the beginning of a storage. */
oar_status oari_storage_scale(oar_storage *storage, const oar_span *span,
                              double factor);

/* Posts a bucket behind what is on the current stream, which is a place where a
 * replay is cut; at once also if the caller replays the step later. */
oar_status oari_gpu_bucket_post(oari_piece *piece);

/* Posts the last bucket, exchanges the flags, and orders the current stream
 * behind all buckets: the host does not wait for the GPU. */
oar_status oari_gpu_buckets_end(oar_reducer *r);

/* ---- reducer.c ----------------------------------------------------------- */

/* Makes a reducer as oar_reducer_create does, without comparing the ranks. */
oar_status oari_reducer_make(oar_group *group, int arrays,
                             const oar_span *array,
                             const oar_reducer_opts *opts,
                             oar_reducer **reducer);

/* Notes that the first `elements` of an array in its bucket are written and
 * will not change: their pieces may be posted. The array gets ready later in
 * the pass, unless the pass is given up. */
oar_status oari_reducer_part_ready(oar_reducer *r, int array, size_t elements);

/* Posts all remaining pieces: arrays that are not ready count as zero. After
 * this all ranks have posted the same. */
oar_status oari_reducer_begin_rest(oar_reducer *r);

/* Gives up the pass, if one was begun: waits for the posted pieces. */
void oari_reducer_reset(oar_reducer *r);

#endif
